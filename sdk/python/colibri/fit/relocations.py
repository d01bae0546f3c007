# SPDX-License-Identifier: Apache-2.0
"""Relocation tables: which place of a section refers to which symbol.

Layout: gABI 4.1, "Relocation".  Objects have them; a linked ELF keeps them when it was linked with
``--emit-relocs`` (``-q``).  Entries that point nowhere are passed over: no size depends on them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from colibri.fit.elf import Elf, Section, Symbol

#: By bits and kind of table: offset, info, and the addend where there is one.
_LAYOUT = {(32, "REL"): "2I", (32, "RELA"): "2Ii", (64, "REL"): "2Q", (64, "RELA"): "2Qq"}
#: Types whose place holds the address itself, where the table has no addends.
_WORDS = {"ARM": (2, 38), "386": (1,)}  # R_ARM_ABS32, R_ARM_TARGET1; R_386_32
#: Tables that describe code to an unwinder: what they point to is not needed for it.
_UNWIND = (".ARM.exidx", ".ARM.extab", ".eh_frame", ".gcc_except_table")
#: What they do need: the routines that the unwinder calls.
_PERSONALITY = ("__aeabi_unwind_cpp_pr", "__gxx_personality", "__gcc_personality")


class Reference(NamedTuple):
    """A place of a section and the symbol that it refers to.

    ``place`` is an address of a linked ELF, an offset into the section of an object.  ``addend``
    is None where only the instruction has it.
    """

    section: Section
    place: int
    symbol: Symbol
    addend: int | None


def tables(elf: Elf) -> Iterator[tuple[Section, Section]]:
    """Relocation tables of allocated sections, with the section that each is of."""
    symbols = next((s.index for s in elf.sections if s.kind == "SYMTAB"), None)
    for section in elf.sections:
        if (elf.bits, section.kind) not in _LAYOUT or section.link != symbols:
            continue
        if 0 < section.info < len(elf.sections) and elf.sections[section.info].allocated:
            yield section, elf.sections[section.info]


def references(elf: Elf, stream: BinaryIO) -> Iterator[Reference]:
    """Every reference from an allocated section, in file order."""
    left = elf.file_size  # tables of a sound file do not overlap
    for section, target in tables(elf):
        if section.size <= left:
            left -= section.size
            yield from _entries(elf, stream, section, target)


def _entries(elf: Elf, stream: BinaryIO, section: Section, target: Section) -> Iterator[Reference]:
    layout = ("<" if elf.endian == "little" else ">") + _LAYOUT[elf.bits, section.kind]
    shift, width = (8, 0xFF) if elf.bits == 32 else (32, 0xFFFF_FFFF)
    data = _read(stream, section.offset, section.size - section.size % struct.calcsize(layout))
    content = _Words(elf, stream, target) if section.kind == "REL" else None
    for place, info, *addend in struct.iter_unpack(layout, data):
        number = info >> shift
        if not 0 < number < len(elf.symbols):
            continue
        symbol = elf.symbols[number]
        if is_unwinding(target) and not symbol.name.startswith(_PERSONALITY):
            continue
        held = addend[0] if content is None else content.addend(place, symbol, info & width)
        yield Reference(target, place, symbol, held)


def is_unwinding(section: Section) -> bool:
    """Whether a section tells an unwinder about code."""
    return section.name.startswith(_UNWIND)


class _Words:
    """Addends that stand in the section itself (tables of kind REL)."""

    def __init__(self, elf: Elf, stream: BinaryIO, section: Section) -> None:
        self.elf, self.stream, self.section = elf, stream, section
        self.types = _WORDS.get(elf.machine, ())

    def addend(self, place: int, symbol: Symbol, kind: int) -> int | None:
        """Of a linked ELF the word is the final address: what it is beyond the symbol's."""
        if kind not in self.types or symbol.kind != "SECTION":
            return None
        linked = self.elf.kind != "relocatable"
        offset = place - self.section.address if linked else place
        if not self.section.in_file or not 0 <= offset <= self.section.size - 4:
            return None
        word = _read(self.stream, self.section.offset + offset, 4)
        value = int.from_bytes(word, "little" if self.elf.endian == "little" else "big")
        return value - symbol.address if linked else value


def _read(stream: BinaryIO, offset: int, size: int) -> bytes:
    stream.seek(offset)
    data = stream.read(size)
    return data if len(data) == size else b""
