# SPDX-License-Identifier: Apache-2.0
"""What the tests of `colibri size` share: a board, a firmware, ways to look at a verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from colibri.boards import Budgets
from colibri.fit import Verdict, judge
from colibri.fit.memory_map import Usage
from elf_writer import AX, FUNC, OBJECT, WA, ElfWriter

FLASH, RAM = 0x0800_0000, 0x2000_0000
CODE = b"\x01\xbf"


def region(
    name: str,
    base: int,
    size: int,
    kind: str = "sram",
    access: str = "rwx",
    aliases: Sequence[int] = (),
    reserved: Sequence[Any] = (),
) -> SimpleNamespace:
    return SimpleNamespace(
        name=name,
        kind=kind,
        base=base,
        size=size,
        access=access,
        aliases=list(aliases),
        reserved=list(reserved),
    )


def board(
    *more: SimpleNamespace,
    os: str = "none",
    budgets: dict[str, Any] | None = None,
    flash_size: int = 0x10000,
    flash_aliases: Sequence[int] = (),
    ram_reserved: Sequence[Any] = (),
) -> Any:
    """64 KiB of flash, 128 KiB of RAM, and what a test adds."""
    regions = [
        region("FLASH", FLASH, flash_size, "nor", "rx", flash_aliases),
        region("SRAM", RAM, 0x20000, reserved=ram_reserved),
        *more,
    ]
    return SimpleNamespace(
        id="test-board",
        os=os,
        regions=regions,
        warnings=(),
        firmware=SimpleNamespace(
            model_region="FLASH", target="cortex-m33", os_reserve_bytes=0, os_reserve_reason=""
        ),
        budgets=Budgets.model_validate(budgets or {}),
    )


def judge_in(folder: Path) -> Callable[..., Verdict]:
    """A function that writes an ELF and judges it on a board (the default one, or None)."""

    def run(elf: ElfWriter, on: Any = "default", **how: bool) -> Verdict:
        path = elf.write(folder / "firmware.elf", **how)
        return judge(path, board() if on == "default" else on)

    return run


def usage(verdict: Verdict, name: str) -> Usage:
    return next(u for u in verdict.map.usages if u.region.name == name)


def used(verdict: Verdict) -> dict[str, int]:
    return {u.region.name: u.used for u in verdict.map.usages}


def codes(verdict: Verdict, level: str | None = None) -> list[str]:
    return [f.code for f in verdict.findings if level in (None, f.level)]


def said(verdict: Verdict, code: str) -> str:
    return " | ".join(f"{f.where}: {f.what}" for f in verdict.findings if f.code == code)


def firmware(bss: int = 0x200, **how: Any) -> ElfWriter:
    """.text 0x400 and .data 0x100 in flash, .data and .bss in RAM."""
    elf = ElfWriter(**how)
    text = elf.section(".text", FLASH, CODE * 0x200, flags=AX)
    data = elf.section(".data", RAM, b"\x07" * 0x100, flags=WA)
    zero = elf.section(".bss", RAM + 0x100, bss, flags=WA)
    elf.load([text])
    elf.load([data, zero], paddr=FLASH + 0x400)
    elf.symbol("main", FLASH | 1, 0x300, FUNC, section=text)
    elf.symbol("table", RAM, 0x100, OBJECT, section=data)
    elf.symbol("buffer", RAM + 0x100, bss, OBJECT, section=zero)
    return elf
