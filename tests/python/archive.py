# SPDX-License-Identifier: Apache-2.0
"""The members of a static library, for checks of what it defines and needs."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

from elftools.elf.constants import SH_FLAGS
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

_HEADER = 60
_MAGIC = b"!<arch>\n"


def members(path: Path) -> Iterator[ELFFile]:
    """Each object file of an archive."""
    data = path.read_bytes()
    assert data.startswith(_MAGIC)
    at = len(_MAGIC)
    while at < len(data):
        size = int(data[at + 48 : at + 58])
        content = data[at + _HEADER : at + _HEADER + size]
        if content.startswith(b"\x7fELF"):
            yield ELFFile(io.BytesIO(content))
        at += _HEADER + size + size % 2


def global_symbols(path: Path) -> tuple[set[str], set[str]]:
    """(defined, undefined) names of the whole library; what a member defines is not undefined."""
    defined: set[str] = set()
    undefined: set[str] = set()
    for elf in members(path):
        table = elf.get_section_by_name(".symtab")
        assert isinstance(table, SymbolTableSection)
        for symbol in table.iter_symbols():
            if symbol.name and symbol["st_info"]["bind"] in ("STB_GLOBAL", "STB_WEAK"):
                (undefined if symbol["st_shndx"] == "SHN_UNDEF" else defined).add(symbol.name)
    return defined, undefined - defined


def writable_bytes(path: Path) -> int:
    """Bytes of .data, .bss and the like over all members."""
    need = SH_FLAGS.SHF_ALLOC | SH_FLAGS.SHF_WRITE
    return sum(
        section["sh_size"]
        for elf in members(path)
        for section in elf.iter_sections()
        if section["sh_flags"] & need == need
    )
