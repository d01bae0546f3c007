# SPDX-License-Identifier: Apache-2.0
"""Smallest debug information for tests: one compilation unit for each source file."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from elf_writer import ElfWriter

_COMPILE_UNIT, _NAME, _COMP_DIR, _LOW, _HIGH = 0x11, 0x03, 0x1B, 0x11, 0x12
_ADDR, _DATA4, _STRING = 0x01, 0x06, 0x08
#: Abbreviation 1: a unit without children, with name, folder, low_pc and high_pc.
ABBREV = bytes(
    [1, _COMPILE_UNIT, 0, _NAME, _STRING, _COMP_DIR, _STRING, _LOW, _ADDR, _HIGH, _DATA4, 0, 0, 0]
)
Unit = tuple[str, str, int, int]  # name, folder, low, size


def add_dwarf(elf: ElfWriter, units: Iterable[Unit], version: int = 4) -> None:
    """Add `.debug_info` and `.debug_abbrev`; a negative size makes high_pc lie below low_pc."""
    order, wide = ("<" if elf.little else ">"), ("I" if elf.bits == 32 else "Q")
    info = bytearray()
    for name, folder, low, size in units:
        form = struct.pack(f"{order}{wide}I", low, size & 0xFFFFFFFF)
        body = b"\x01" + name.encode() + b"\0" + folder.encode() + b"\0" + form
        if version >= 5:
            head = struct.pack(f"{order}HBBI", version, 1, elf.bits // 8, 0)
        else:
            head = struct.pack(f"{order}HIB", version, 0, elf.bits // 8)
        info += struct.pack(f"{order}I", len(head) + len(body)) + head + body
    elf.section(".debug_info", 0, bytes(info), flags=0)
    elf.section(".debug_abbrev", 0, ABBREV, flags=0)
