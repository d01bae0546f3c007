# SPDX-License-Identifier: Apache-2.0
"""Cross compilers behind one interface: zig from pip, GNU GCC when it is installed.

`TARGETS` says what each target needs from either; `find_toolchain` picks one; `compile_all`
compiles in parallel and keeps objects in the cache, named by the hash of everything that goes in.
"""

from __future__ import annotations

import os
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


@dataclass(frozen=True)
class Source:
    """One file to compile and the options that are its own."""

    path: Path
    flags: tuple[str, ...] = ()


class Toolchain(Protocol):
    """A compiler for one target."""

    @property
    def name(self) -> str:
        """As ``--toolchain`` spells it."""

    def identity(self) -> str:
        """Name, version, target: objects of another compiler are not reused."""

    def compile(self, source: Path, output: Path, flags: Sequence[str]) -> None:
        """One object file."""

    def link(self, objects: Sequence[Path], script: Path, elf: Path, link_map: Path) -> None:
        """A bare-metal executable and its map."""

    def archive(self, objects: Sequence[Path], library: Path) -> None:
        """A static library."""


def run_tool(command: Sequence[str], what: str) -> str:
    """Standard output of a tool that must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise BuildError(f"{what} failed:\n  " + "\n  ".join(lines[:12]))
    return done.stdout


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

    def link(self, objects: Sequence[Path], script: Path, elf: Path, link_map: Path) -> None:
        """The driver refuses -Map=FILE but prints the map; ENTRY() is overridden by -e."""
        command = (
            *self._cc(), *_LINK, "-rtlib=compiler-rt", f"-Wl,-e,{self.target.entry}",
            "-Wl,--print-map", "-T", str(script), *map(str, objects), "-o", str(elf),
        )  # fmt: skip
        link_map.write_text(run_tool(command, f"linking {elf.name}"), "utf-8")

    def link_hosted(self, objects: Sequence[Path], elf: Path, link_map: Path) -> None:
        """A static Linux executable with zig's musl."""
        command = (
            *self._cc(), "-static", "-Wl,--gc-sections", "-Wl,--print-map",
            *map(str, objects), "-o", str(elf),
        )  # fmt: skip
        link_map.write_text(run_tool(command, f"linking {elf.name}"), "utf-8")

    def archive(self, objects: Sequence[Path], library: Path) -> None:
        command = (sys.executable, "-m", "ziglang", "ar", "rcsD", str(library))
        run_tool((*command, *map(str, objects)), f"archiving {library.name}")


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

    def link(self, objects: Sequence[Path], script: Path, elf: Path, link_map: Path) -> None:
        command = (
            self._tool("gcc"), *self.target.gcc, *_LINK, f"-Wl,-e,{self.target.entry}",
            "-Wl,--build-id=none", "-Wl,--no-warn-rwx-segments", f"-Wl,-Map={link_map}",
            "-T", str(script), *map(str, objects), "-lgcc", "-o", str(elf),
        )  # fmt: skip
        run_tool(command, f"linking {elf.name}")

    def archive(self, objects: Sequence[Path], library: Path) -> None:
        run_tool((self._tool("ar"), "rcsD", str(library), *map(str, objects)), "archiving")


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
