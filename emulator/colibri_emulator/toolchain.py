# SPDX-License-Identifier: Apache-2.0
"""Cross compilers behind one interface: zig from pip, GNU GCC when it is installed.

`TARGETS` says what each target needs from either; `find_toolchain` picks one; `compile_all`
compiles in parallel and keeps objects in the cache, named by the hash of everything that goes in.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal, Protocol

from colibri._data import data_path
from colibri.errors import BuildError
from colibri_emulator.cache import cached, digest

ToolchainName = Literal["auto", "zig", "gcc"]


@dataclass(frozen=True)
class Target:
    """What a compiler must be told for one kind of CPU.

    The FPU is named, double precision is not used, and Helium is integer only: its float lanes
    flush denormals, which docs/numerics.md forbids.
    """

    zig: tuple[str, ...]
    gcc: tuple[str, ...]
    gcc_prefix: str
    start: tuple[str, ...]
    entry: str


# "-meabi gnu": memcpy is called memcpy, not __aeabi_memcpy8.
_ZIG_CORTEX_M = ("-target", "thumb-freestanding-eabihf", "-meabi", "gnu")

TARGETS = {
    "cortex-m4": Target(
        zig=(*_ZIG_CORTEX_M, "-mcpu=cortex_m4+vfp4d16sp"),
        gcc=("-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16"),
        gcc_prefix="arm-none-eabi-",
        start=("start_cortex_m.c",),
        entry="Reset_Handler",
    ),
    "cortex-m7": Target(
        zig=(*_ZIG_CORTEX_M, "-mcpu=cortex_m7+fp_armv8d16sp"),
        gcc=("-mcpu=cortex-m7", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv5-sp-d16"),
        gcc_prefix="arm-none-eabi-",
        start=("start_cortex_m.c",),
        entry="Reset_Handler",
    ),
    "cortex-m33": Target(
        zig=(*_ZIG_CORTEX_M, "-mcpu=cortex_m33+dsp+fp_armv8d16sp"),
        gcc=("-mcpu=cortex-m33", "-mthumb", "-mfloat-abi=hard", "-mfpu=auto"),
        gcc_prefix="arm-none-eabi-",
        start=("start_cortex_m.c",),
        entry="Reset_Handler",
    ),
    "cortex-m55": Target(
        zig=(*_ZIG_CORTEX_M, "-mcpu=cortex_m55+mve+fp_armv8d16sp"),
        gcc=("-mcpu=cortex-m55+nomve.fp", "-mthumb", "-mfloat-abi=hard", "-mfpu=auto"),
        gcc_prefix="arm-none-eabi-",
        start=("start_cortex_m.c",),
        entry="Reset_Handler",
    ),
    "aarch64": Target(
        zig=("-target", "aarch64-freestanding-none", "-mcpu=cortex_a53"),
        gcc=("-mcpu=cortex-a53", "-mno-outline-atomics"),
        gcc_prefix="aarch64-linux-gnu-",
        start=("start_aarch64.S", "mmu_aarch64.c", "cores_aarch64.c"),
        entry="_start",
    ),
    "riscv64": Target(
        zig=("-target", "riscv64-freestanding-none", "-mcpu=generic_rv64+m+a+f+d+c",
             "-mcmodel=medany"),
        gcc=("-march=rv64gc", "-misa-spec=2.2", "-mabi=lp64d", "-mcmodel=medany"),
        gcc_prefix="riscv64-unknown-elf-",
        start=("start_riscv64.S",),
        entry="_start",
    ),
    "aarch64-linux-musl": Target(
        zig=("-target", "aarch64-linux-musl", "-mcpu=cortex_a53"),
        gcc=(),
        gcc_prefix="",
        start=(),
        entry="_start",
    ),
    "riscv64-linux-musl": Target(
        zig=("-target", "riscv64-linux-musl", "-mcpu=generic_rv64+m+a+f+d+c"),
        gcc=(),
        gcc_prefix="",
        start=(),
        entry="_start",
    ),
}  # fmt: skip

# One float operation is one IEEE operation, and nothing but what is written is emitted.
COMMON = (
    "-std=c11", "-ffp-contract=off", "-fno-math-errno", "-ffunction-sections",
    "-fdata-sections", "-fno-stack-protector", "-fomit-frame-pointer", "-fno-unwind-tables",
    "-fno-asynchronous-unwind-tables", "-fno-pic", "-g0",
    "-Wall", "-Wextra", "-Wconversion", "-Wvla", "-Werror",
)  # fmt: skip
_LINK = (
    "-nostdlib", "-static", "-Wl,--gc-sections", "-Wl,--fatal-warnings",
    "-Wl,-z,max-page-size=4096",
)  # fmt: skip


# Folders of an absolute path in a map: the compiler's own libraries and their members.
_FOLDERS = re.compile(r"(?<![^\s(])/[^\n:()]*/(?=[^\s/:()])")


@dataclass(frozen=True)
class Source:
    """One file to compile, the options that are its own, and its object's name in archive and map.

    `name` is without ``.o``; empty takes the file's.
    """

    path: Path
    flags: tuple[str, ...] = ()
    name: str = ""

    @property
    def object_name(self) -> str:
        return f"{self.name or self.path.stem}.o"


class Toolchain(Protocol):
    """A compiler for one target.

    Links and archives run in the folder of what they make and name what lies in it from there;
    together with `plain_map`, maps tell nothing of the machine.
    """

    @property
    def name(self) -> str:
        """As ``--toolchain`` spells it."""

    def identity(self) -> str:
        """Name, version, target: objects of another compiler are not reused."""

    def compile(self, source: Path, output: Path, flags: Sequence[str]) -> None:
        """One object file."""

    def link(
        self,
        objects: Sequence[Path],
        script: Path,
        elf: Path,
        link_map: Path,
        library: Path | None = None,
    ) -> None:
        """A bare-metal executable and its map; all of `library` follows the objects."""

    def archive(self, objects: Sequence[Path], library: Path) -> None:
        """A static library."""


def run_tool(command: Sequence[str], what: str, folder: Path | None = None) -> str:
    """Standard output of a tool that must succeed, in English, run in a folder."""
    english = {**os.environ, "LC_ALL": "C"}  # GNU ld translates the headings of its map
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=folder, env=english
    )
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise BuildError(f"{what} failed:\n  " + "\n  ".join(lines[:12]))
    return done.stdout


def _seen_from(folder: Path, paths: Sequence[Path]) -> list[str]:
    """Paths as a tool that runs in a folder is given them."""
    base = folder.resolve()
    whole = (path.resolve() for path in paths)
    return [str(p.relative_to(base) if p.is_relative_to(base) else p) for p in whole]


def _inputs(folder: Path, objects: Sequence[Path], library: Path | None) -> list[str]:
    """Objects, then every member of a library in its order, where garbage collection drops some."""
    names = _seen_from(folder, objects)
    if library is not None:
        names += ["-Wl,--whole-archive", *_seen_from(folder, [library]), "-Wl,--no-whole-archive"]
    return names


def plain_map(text: str) -> str:
    """A map without the folders that the compiler keeps its own libraries in."""
    return _FOLDERS.sub("", text)


@dataclass(frozen=True)
class Zig:
    """clang and lld from the pip package ziglang."""

    target: Target
    name: str = "zig"

    def _cc(self) -> tuple[str, ...]:
        return (sys.executable, "-m", "ziglang", "cc", *self.target.zig, "-fno-sanitize=all")

    def identity(self) -> str:
        return " ".join(("zig", version("ziglang"), *self.target.zig))

    def compile(self, source: Path, output: Path, flags: Sequence[str]) -> None:
        # Unrolling triples the plain kernels for a few percent (docs: toolchains).
        command = (*self._cc(), "-fno-unroll-loops", *flags, "-c", str(source), "-o", str(output))
        run_tool(command, f"compiling {source.name}")

    def link(
        self,
        objects: Sequence[Path],
        script: Path,
        elf: Path,
        link_map: Path,
        library: Path | None = None,
    ) -> None:
        """The driver refuses -Map=FILE but prints the map; ENTRY() is overridden by -e."""
        flags = (*_LINK, "-rtlib=compiler-rt", f"-Wl,-e,{self.target.entry}")
        script_flags = ("-T", *_seen_from(elf.parent, [script]))
        self._link((*flags, *script_flags), objects, elf, link_map, library)

    def link_hosted(
        self, objects: Sequence[Path], elf: Path, link_map: Path, library: Path | None = None
    ) -> None:
        """A static Linux executable with zig's musl."""
        script = data_path("emulator", "firmware", "linux.ld")  # the driver strips all or nothing
        flags = ("-static", "-Wl,--gc-sections", "-T", str(script))
        self._link(flags, objects, elf, link_map, library)

    def _link(
        self,
        flags: Sequence[str],
        objects: Sequence[Path],
        elf: Path,
        link_map: Path,
        library: Path | None,
    ) -> None:
        inputs = _inputs(elf.parent, objects, library)
        command = (*self._cc(), *flags, "-Wl,--print-map", *inputs, "-o", elf.name)
        text = run_tool(command, f"linking {elf.name}", elf.parent)
        link_map.write_text(plain_map(text), "utf-8")

    def archive(self, objects: Sequence[Path], library: Path) -> None:
        names = _seen_from(library.parent, objects)
        command = (sys.executable, "-m", "ziglang", "ar", "rcsD", library.name, *names)
        run_tool(command, f"archiving {library.name}", library.parent)


@dataclass(frozen=True)
class Gcc:
    """A GNU cross compiler of the system."""

    target: Target
    name: str = "gcc"

    def _tool(self, tool: str) -> str:
        return self.target.gcc_prefix + tool

    def identity(self) -> str:
        found = run_tool((self._tool("gcc"), "-dumpfullversion"), "asking gcc for its version")
        return " ".join((self._tool("gcc"), found.strip(), *self.target.gcc))

    def compile(self, source: Path, output: Path, flags: Sequence[str]) -> None:
        # Without the second flag GCC turns the loops of memcpy into calls of memcpy.
        own = (*self.target.gcc, "-fno-tree-loop-distribute-patterns")
        command = (self._tool("gcc"), *own, *flags, "-c", str(source), "-o", str(output))
        run_tool(command, f"compiling {source.name}")

    def link(
        self,
        objects: Sequence[Path],
        script: Path,
        elf: Path,
        link_map: Path,
        library: Path | None = None,
    ) -> None:
        map_name, script_name = _seen_from(elf.parent, [link_map, script])
        command = (
            self._tool("gcc"), *self.target.gcc, *_LINK, f"-Wl,-e,{self.target.entry}",
            "-Wl,--build-id=none", "-Wl,--no-warn-rwx-segments", f"-Wl,-Map={map_name}",
            "-T", script_name, *_inputs(elf.parent, objects, library), "-lgcc", "-o", elf.name,
        )  # fmt: skip
        run_tool(command, f"linking {elf.name}", elf.parent)
        link_map.write_text(plain_map(link_map.read_text("utf-8")), "utf-8")

    def archive(self, objects: Sequence[Path], library: Path) -> None:
        names = _seen_from(library.parent, objects)
        run_tool((self._tool("ar"), "rcsD", library.name, *names), "archiving", library.parent)


def find_toolchain(target: str, prefer: ToolchainName = "auto") -> Zig | Gcc:
    """The compiler for a target: zig unless told otherwise or not installed.

    Raises
    ------
    BuildError
        When it is not installed, with the command that installs it.
    """
    described = TARGETS[target]
    has_gcc = bool(described.gcc_prefix) and shutil.which(described.gcc_prefix + "gcc") is not None
    if prefer in ("auto", "zig") and _has_zig():
        return Zig(described)
    if prefer in ("auto", "gcc") and has_gcc:
        return Gcc(described)
    if prefer == "gcc" and not described.gcc_prefix:
        raise BuildError(
            f"target {target} is built with musl, which comes with zig",
            field="--toolchain",
            hint="use --toolchain zig",
        )
    if prefer == "gcc":
        raise BuildError(
            f"{described.gcc_prefix}gcc is not installed",
            hint="apt-get install gcc-arm-none-eabi gcc-aarch64-linux-gnu gcc-riscv64-unknown-elf",
        )
    raise BuildError(
        f"no cross compiler for {target}", hint='pip install "colibri-sdk[cross]" installs zig'
    )


def _has_zig() -> bool:
    try:
        version("ziglang")
    except PackageNotFoundError:
        return False
    return True


def compile_all(
    toolchain: Toolchain,
    sources: Sequence[Source],
    flags: Sequence[str],
    includes: Sequence[Path],
) -> list[Path]:
    """Object files in the order of the sources, compiled in parallel or taken from the cache."""
    folders = [*includes, data_path("sdk", "c")]  # a kernel includes headers of other folders too
    headers = [path.read_bytes() for folder in folders for path in sorted(folder.rglob("*.h"))]
    base = digest([toolchain.identity(), *flags, *headers])
    include_flags = [f"-I{folder}" for folder in includes]

    def one(source: Source) -> Path:
        beside = [path.read_bytes() for path in sorted(source.path.parent.glob("*.h"))]
        key = digest([base, source.path.name, source.path.read_bytes(), *source.flags, *beside])
        all_flags = (*flags, *source.flags, *include_flags)
        return cached(
            f"objects/{source.path.stem}-{key}.o",
            lambda output: toolchain.compile(source.path, output, all_flags),
        )

    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        return list(pool.map(one, sources))
