# SPDX-License-Identifier: Apache-2.0
"""Every part of the runtime can be left out: it compiles without a warning, and links."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from needs import need

ROOT = Path(__file__).resolve().parents[2]
RUNTIME = ROOT / "sdk" / "c"
SOURCES = sorted([*RUNTIME.glob("src/*.c"), *RUNTIME.glob("kernels/ref/*.c")])
OPTIONS = re.findall(r"#ifndef (COLIBRI_WITH_\w+)", (RUNTIME / "src" / "options.h").read_text())


def flags() -> list[str]:
    """Those that sdk/c/CMakeLists.txt compiles C with."""
    text = (RUNTIME / "CMakeLists.txt").read_text("utf-8")
    calls = re.findall(r"target_compile_options\(colibri(?:_flags)? \w+([^()]*)\)", text)
    found = re.findall(r"(?<![\w-])-[\w=-]+", " ".join(c for c in calls if "fsanitize" not in c))
    assert {"-Werror", "-Wundef", "-Wconversion", "-ffreestanding"} <= set(found)
    return ["-std=c11", "-Os", "-fPIC", "-I", f"{RUNTIME}/include", "-I", f"{RUNTIME}/src", *found]


def gcc(folder: Path, *arguments: object) -> None:
    command = ["gcc", *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the object files of the whole runtime."""
    need("gcc")
    folder = tmp_path_factory.mktemp("whole")
    gcc(folder, *flags(), "-c", *SOURCES)
    return folder


def users(options: Iterable[str]) -> list[Path]:
    """Sources that an option can change: all of them when a header asks for it."""

    def asks(path: Path) -> bool:
        return any(re.search(rf"\b{option}\b", path.read_text("utf-8")) for option in options)

    headers = [h for h in RUNTIME.rglob("*.h") if h.name != "options.h"]
    return SOURCES if any(map(asks, headers)) else [s for s in SOURCES if asks(s)]


@pytest.mark.parametrize(
    "left_out",
    [*([o] for o in OPTIONS), OPTIONS],
    ids=lambda o: o[0][13:] if len(o) == 1 else "ALL",
)
def test_runtime_without_a_part(left_out: list[str], whole: Path, tmp_path: Path) -> None:
    changed = users(left_out)
    assert changed, "an option that nothing asks for"
    gcc(tmp_path, *flags(), *(f"-D{option}=0" for option in left_out), "-c", *changed)
    objects = [
        folder / f"{source.stem}.o"
        for source in SOURCES
        for folder in [tmp_path if source in changed else whole]
    ]
    gcc(tmp_path, "-shared", "-Wl,--no-undefined", "-o", "runtime.so", *objects)


def test_options_are_read_from_the_header() -> None:
    assert len(OPTIONS) > 15
