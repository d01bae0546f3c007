# SPDX-License-Identifier: Apache-2.0
"""The firmware of size_firmware/ in all the forms that size tools are asked about.

Its sizes are known by hand: arrays are declared so, and the linker scripts fill code up.

=========  ==========================================================================  =====
FLASH      vectors 64, .text 1,536, .rodata 544; load images 256 + 256 + 128 + 1,024   3,808
SRAM       .data 256, .bss 776, .noinit 256, the larger overlay 640, stack 2,048       3,976
TCM        code copied at start 256, cleared 1,024, data copied at start 128           1,408
=========  ==========================================================================  =====
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).with_name("size_firmware")
ARM, RISCV = "arm-none-eabi-", "riscv64-unknown-elf-"
ARM_FLAGS = ("-mcpu=cortex-m33", "-mthumb")
RISCV_FLAGS = ("-march=rv32imc", "-mabi=ilp32", "-mno-relax")
FLAGS = (
    "-Os", "-g", "-std=c11", "-ffreestanding", "-nostdlib", "-fno-common", "-ffunction-sections",
    "-fdata-sections", "-fstack-usage", "-fcallgraph-info=su", "-Wall", "-Wextra", "-Werror",
)  # fmt: skip
TOO_LARGE = 40 * 1024  # a canary that SRAM cannot hold

#: By hand; see above.  `fault` has three names, `mode_b` shares its address with `mode_a`.
KNOWN: dict[str, int | str] = {
    "flash": 3808,
    "sram": 3976,
    "tcm": 1408,
    "all ram": 3976 + 1408,
    "mode_b": 640,
    "uart.o in ram": 32 + 256,
    "canary": 1024,
    "failed link": 3976 + TOO_LARGE - 32 * 1024,
    "too large": "exit 1",
    "malloc": "exit 1",
    "big-endian": 3808,
    "stripped": 3808,
    "hex": 3808,
    "archive": 4096,
}
#: Of the ESP32-C3 layout.
KNOWN_ESP: dict[str, int] = {
    "DRAM": 1408 + 1800 + 256, "IRAM": 256, "Flash Code": 1536, "Flash Data": 608, "image": 3808,
}  # fmt: skip


@dataclass(frozen=True)
class Built:
    """One link: `elf` and `bin` are missing when it failed."""

    folder: Path
    said: str  # by the linker

    @property
    def elf(self) -> Path:
        return self.folder / "firmware.elf"

    @property
    def map(self) -> Path:
        return self.folder / "firmware.map"

    @property
    def objects(self) -> Path:
        return self.folder / "obj"

    @property
    def archive(self) -> Path:
        return self.objects / "libhal.a"


def run(*command: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A program's exit code and output, whatever they are."""
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=cwd, capture_output=True, text=True, errors="replace")


def build(
    folder: Path, *more: str, prefix: str = ARM, flags: tuple[str, ...] = ARM_FLAGS,
    script: str = "link.ld",
) -> Built:  # fmt: skip
    """Compile and link in `folder`; `more` are compiler flags.  A link may fail, a compiler not."""
    (folder / "obj").mkdir(parents=True)
    compiler = [f"{prefix}gcc", *flags, *FLAGS, *more]
    for name in ("main", "uart", "unused"):
        done = run(*compiler, "-c", SOURCES / f"{name}.c", "-o", f"obj/{name}.o", cwd=folder)
        if done.returncode != 0:
            raise RuntimeError(f"{prefix}gcc does not compile {name}.c: {done.stderr}")
    run(f"{prefix}ar", "rcs", "obj/libhal.a", "obj/uart.o", "obj/unused.o", cwd=folder)
    done = run(
        *compiler, "-Wl,--print-memory-usage,-Map=firmware.map,--cref", "-T", SOURCES / script,
        "obj/main.o", "obj/libhal.a", "-o", "firmware.elf", cwd=folder,
    )  # fmt: skip
    return Built(folder, done.stdout + done.stderr)


@dataclass(frozen=True)
class Firmware:
    """All forms of the firmware; `esp` is missing without a RISC-V compiler."""

    base: Built
    canary: Built  # 1,024 bytes of .bss more
    malloc: Built  # with a function of that name
    failed: Built  # SRAM overflows
    big: Built  # big-endian
    stripped: Path
    hex: Path
    esp: Built | None


def build_all(folder: Path) -> Firmware:
    """Build each form below `folder`, which exists and is empty."""
    base = build(folder / "base")
    stripped, hexed = base.folder / "stripped.elf", base.folder / "firmware.hex"
    run(f"{ARM}strip", base.elf, "-o", stripped)
    run(f"{ARM}objcopy", "-O", "ihex", base.elf, hexed)
    esp = None
    if shutil.which(f"{RISCV}gcc"):
        esp = build(folder / "esp", prefix=RISCV, flags=RISCV_FLAGS, script="link_esp32c3.ld")
    return Firmware(
        base=base,
        canary=build(folder / "canary", "-DCANARY=1024"),
        malloc=build(folder / "malloc", "-DHEAP"),
        failed=build(folder / "failed", f"-DCANARY={TOO_LARGE}"),
        big=build(folder / "big", "-mbig-endian"),
        stripped=stripped,
        hex=hexed,
        esp=esp,
    )


def known(firmware: Firmware) -> dict[str, int | str]:
    """The right answers: by hand, and what the compiler decides by nm and by its .su files."""
    named, fault = named_in_flash(nm(firmware.base.elf)), nm_size(firmware.base.elf, "fault")
    frames = frame_sizes(firmware.base.objects)
    chain = ("reset", "main", "control", "fast_filter")
    return KNOWN | {
        "fault": fault,
        "unnamed": 3808 - named,
        "stack": sum(frames[name] for name in chain),
    }


def nm(elf: Path) -> list[tuple[int, int, str]]:
    """Address, size and name of each symbol that has a size."""
    rows = [line.split() for line in run(f"{ARM}nm", "-S", elf).stdout.splitlines()]
    return [(int(row[0], 16), int(row[1], 16), row[3]) for row in rows if len(row) == 4]


def nm_size(elf: Path, name: str) -> int:
    return next(size for _, size, symbol in nm(elf) if symbol == name)


def named_in_flash(symbols: list[tuple[int, int, str]]) -> int:
    """Bytes of flash that a symbol has: where it lies, or as the image of what is copied."""
    copied = ("table", "uart_settings", "window", "mode_a", "mode_b", "fast_filter")
    bodies = {(a, s) for a, s, n in symbols if 0x0800_0000 <= a < 0x0801_0000 or n in copied}
    return sum(size for _, size in bodies)


def frame_sizes(folder: Path) -> dict[str, int]:
    """Stack of each function as gcc -fstack-usage wrote it."""
    lines = [line for file in folder.glob("*.su") for line in file.read_text().splitlines()]
    fields = [line.split("\t") for line in lines]
    return {place.rsplit(":", 1)[1]: int(size) for place, size, _ in fields}
