# SPDX-License-Identifier: Apache-2.0
"""Static libraries: what one defines and needs, and small ones written for the size tool."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

from elftools.elf.constants import SH_FLAGS
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

INDICES = {"gnu": "/", "bsd": "__.SYMDEF SORTED", "thin": "/"}
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


def write_archive(path: Path, content: dict[str, bytes], style: str = "gnu") -> Path:
    """An archive with a symbol index; names over 15 characters are stored as the style does.

    The members of a thin archive have to be beside it, under their names.
    """
    out = bytearray(b"!<thin>\n" if style == "thin" else _MAGIC)
    long = b"".join(name.encode() + b"/\n" for name in content if len(name.encode()) > 15)
    _member(out, INDICES[style], bytes(8))
    if style != "bsd" and long:
        _member(out, "//", long)
    for name, data in content.items():
        if style == "bsd":
            stored = name.encode().ljust(-(-len(name.encode()) // 4) * 4, b"\0")
            _member(out, f"#1/{len(stored)}", stored + data)
            continue
        short = len(name.encode()) <= 15
        field = f"{name}/" if short else f"/{long.index(name.encode() + b'/')}"
        _member(out, field, data, stored=style != "thin")
    path.write_bytes(out)
    return path


def _member(out: bytearray, name: str, data: bytes, stored: bool = True) -> None:
    field = name.encode().ljust(16)
    out += field + b"0".ljust(12) + b"0".ljust(6) * 2 + b"644".ljust(8)
    out += str(len(data)).encode().ljust(10) + b"`\n"
    if stored:
        out += data + (b"\n" if len(data) % 2 else b"")
