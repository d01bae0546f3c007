# SPDX-License-Identifier: Apache-2.0
"""The C side as its users meet it: CMake alone, an installed package, examples, other languages."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile

from needs import need

PackedAs = Callable[[str], Path]
CONSUMER = """
cmake_minimum_required(VERSION 3.18)
project(consumer LANGUAGES C)
find_package(Colibri 0.1 REQUIRED)
add_executable(consumer main.c)
target_link_libraries(consumer PRIVATE Colibri::posix)
add_executable(consumer_shared main.c)
target_link_libraries(consumer_shared PRIVATE Colibri::shared)
"""


def run(*command: str | Path, **kwargs: Any) -> str:
    """Output of a command; its errors become the test's."""
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False, **kwargs
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def configure_and_build(source: Path, build: Path, *options: str) -> None:
    run("cmake", "-S", source, "-B", build, *options)
    run("cmake", "--build", build, "--parallel", "2")


@pytest.fixture(scope="module")
def built(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runtime built alone, with the examples, and installed to ``prefix``."""
    build = tmp_path_factory.mktemp("sdk-c")
    prefix = f"-DCMAKE_INSTALL_PREFIX={build / 'prefix'}"
    configure_and_build(root / "sdk/c", build, "-DCOLIBRI_EXAMPLES=ON", prefix)
    run("cmake", "--install", build)
    return build


@pytest.fixture(scope="module")
def expected(prompts: list[dict[str, Any]]) -> tuple[list[str], str]:
    """Arguments for an example, and the first line it must print."""
    words = [str(token) for token in prompts[1]["ids"]]
    return words, ",".join(str(token) for token in prompts[1]["greedy_ids"][:16])


@pytest.mark.parametrize("name", ["minimal", "cpp17"])
def test_examples_print_the_reference(
    built: Path, demo_image: PackedAs, expected: tuple[list[str], str], name: str
) -> None:
    words, line = expected
    out = run(built / "examples" / name, demo_image("f32"), *words).splitlines()
    assert out[0] == line
    assert int(out[1].split()[0]) > 100_000


@pytest.mark.parametrize("name", ["minimal", "cpp17"])
def test_examples_refuse_what_is_no_image(built: Path, tmp_path: Path, name: str) -> None:
    bad = tmp_path / "bad"
    bad.write_bytes(bytes(1000))
    program = built / "examples" / name
    for path, words in ((bad, "not a Colibri image"), (tmp_path / "none", "")):
        done = subprocess.run([program, path, "1"], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert words in done.stderr


def test_ctypes_example(
    root: Path, built: Path, demo_image: PackedAs, expected: tuple[list[str], str]
) -> None:
    words, line = expected
    example = root / "sdk/c/examples/ctypes_example.py"
    out = run(sys.executable, example, built / "libcolibri.so", demo_image("f32"), *words)
    assert out.splitlines()[0] == line


def test_the_readme_shows_minimal_c(root: Path) -> None:
    blocks = re.findall(r"```c\n(.*?)```", (root / "README.md").read_text("utf-8"), re.DOTALL)
    example = (root / "sdk/c/examples/minimal.c").read_text("utf-8")
    assert example in [f"/* SPDX-License-Identifier: Apache-2.0 */\n{block}" for block in blocks]


def test_installed_package(
    root: Path, built: Path, demo_image: PackedAs, expected: tuple[list[str], str], tmp_path: Path
) -> None:
    """find_package(Colibri) finds headers and libraries that need nothing of the source tree."""
    words, line = expected
    (tmp_path / "CMakeLists.txt").write_text(CONSUMER)
    (tmp_path / "main.c").write_bytes((root / "sdk/c/examples/minimal.c").read_bytes())
    configure_and_build(tmp_path, tmp_path / "build", f"-DCMAKE_PREFIX_PATH={built / 'prefix'}")
    for program in ("consumer", "consumer_shared"):
        out = run(tmp_path / "build" / program, demo_image("f32"), *words)
        assert out.splitlines()[0] == line


def test_the_shared_library_shows_the_headers_and_nothing_else(root: Path, built: Path) -> None:
    """Exports are what include/colibri and the POSIX port declare, no more and no less."""
    headers = [
        *(root / "sdk/c/include/colibri").glob("*.h"),
        root / "sdk/c/ports/posix/colibri_posix.h",
    ]
    text = "".join(re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL) for path in headers)
    inline = set(re.findall(r"static inline \w+ (colibri_\w+)\(", text))
    declared = set(re.findall(r"\b(colibri_\w+)\(", text)) - inline | {"colibri_kernels_ref"}
    symbols = run("nm", "-D", "--defined-only", built / "libcolibri.so")
    assert {line.split()[-1] for line in symbols.splitlines()} == declared


def test_the_template_port_is_built_freestanding(built: Path) -> None:
    (port,) = built.rglob("port.c.o")
    symbols = run("nm", port).splitlines()
    assert not [line for line in symbols if " U " in line]
    defined = {line.split()[-1] for line in symbols if " R " in line or " D " in line}
    assert defined == {"port_storage", "port_pool", "port_platform"}


def test_nothing_is_fused_or_approximated(root: Path, tmp_path: Path) -> None:
    """The flags that keep the numbers: seen on the compiler's command line, for every file."""
    run("cmake", "-S", root / "sdk/c", "-B", tmp_path, "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON")
    commands = (tmp_path / "compile_commands.json").read_text()
    lines = [line for line in commands.splitlines() if '"command"' in line and "/src/" in line]
    assert len(lines) > 10
    for line in lines:
        for flag in ("-std=c11", "-ffreestanding", "-ffp-contract=off", "-Werror", "-Wvla"):
            assert flag in line
    assert not re.search(r"-mfma|-ffast-math|-Ofast|-march=native", commands)


@pytest.mark.parametrize(
    ("toolchain", "tool", "machine"),
    [
        ("arm-none-eabi-gcc", "arm-none-eabi-gcc", "EM_ARM"),
        ("aarch64-linux-gnu-gcc", "aarch64-linux-gnu-gcc", "EM_AARCH64"),
        ("riscv64-unknown-elf-gcc", "riscv64-unknown-elf-gcc", "EM_RISCV"),
        ("zig", "module:ziglang", "EM_ARM"),
    ],
)
def test_toolchain_files(
    root: Path, tmp_path: Path, toolchain: str, tool: str, machine: str
) -> None:
    """Each builds the static library for its machine."""
    need(tool)
    file = root / "sdk/c/cmake/toolchains" / f"{toolchain}.cmake"
    python = [f"-DZIG_PYTHON={sys.executable}"] if toolchain == "zig" else []
    options = [f"-DCMAKE_TOOLCHAIN_FILE={file}", "-DCOLIBRI_SHARED=OFF", *python]
    run("cmake", "-S", root / "sdk/c", "-B", tmp_path, "-DCMAKE_BUILD_TYPE=MinSizeRel", *options)
    run("cmake", "--build", tmp_path, "--target", "colibri", "--parallel", "2")
    archive = (tmp_path / "libcolibri.a").read_bytes()
    assert archive.startswith(b"!<arch>\n")
    objects = list((tmp_path / "CMakeFiles/colibri.dir").rglob("*.c.o*"))
    objects = [path for path in objects if path.suffix in (".o", ".obj")]
    assert len(objects) > 15
    for path in objects:
        assert path.name.encode()[:14] in archive
        with path.open("rb") as stream:
            assert ELFFile(stream)["e_machine"] == machine
