# SPDX-License-Identifier: Apache-2.0
"""A map file alone, as a record that can be placed: for a link that failed and left no ELF.

A map does not say which sections have bytes in the file. That is told by load addresses, which go
on behind what is stored, and by the names of input sections (``.bss``, ``COMMON``, ``.noinit``), so
the result is marked inexact.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from colibri.fit.elf import SHF_ALLOC, SHF_EXECINSTR, SHF_WRITE, Elf, Section, Segment, Symbol
from colibri.fit.findings import Finding
from colibri.fit.link_map import LinkMap, MapPart, MapSection

_NOBITS = re.compile(
    r"\.?(\w+\.)*(s|t|z)?bss\d*(\..*)?|COMMON|\.?no_?init.*|\.?(heap|stack).*|.*_noinit"
)
_CODE = re.compile(r"\.?(text|init|fini|vector|isr|iram|itcm|plt|fast|ramfunc|code).*")
_DATA = re.compile(r"\.?(s|t|z)?(data|dram|dtcm|bss|noinit).*")


def elf_of_map(found: LinkMap) -> Elf:
    """Sections, segments and symbols as the map has them; input sections stand for symbols."""
    listed = list(found.loaded)
    sections = [Section(0, "", "NULL", 0, 0, 0, 0, 1)]
    segments: list[Segment] = []
    offset = 0
    empty = _without_bytes(listed)
    for number, part in enumerate(listed):
        nobits = number in empty or _is_nobits(part)
        kind = "NOBITS" if nobits else "PROGBITS"
        flags = _flags(part, nobits)
        sections.append(
            Section(len(sections), part.name, kind, flags, part.address, offset, part.size, 1)
        )
        stored = 0 if nobits else part.size
        segments.append(
            Segment(
                len(segments), "LOAD", offset, part.address, part.load, stored, part.size, flags
            )
        )
        offset += stored
    high = max(s.address + s.size for s in listed)
    return Elf(
        path=found.path,
        file_size=found.path.stat().st_size,
        bits=32 if high <= 1 << 32 else 64,
        endian="",
        machine="",
        kind="map",
        header_bytes=0,
        sections=tuple(sections),
        segments=tuple(segments),
        symbols=tuple(_symbols(found, listed)),
        stripped=False,
        format="map",
        memory=tuple(found.memory),
        notes=(
            Finding(
                "note",
                "map-only",
                "which sections are stored is told by the names of their input sections: the "
                "result is inexact, give the ELF for exact numbers",
                found.path.name,
            ),
        ),
        link_map=found,
    )


def _without_bytes(listed: list[MapSection]) -> set[int]:
    """Numbers of sections whose load address another one has too: nothing of them is stored."""
    found: set[int] = set()
    at: dict[int, int] = {}
    for number, section in enumerate(listed):
        before = at.get(section.load)
        if before is not None and section.load != section.address != listed[before].address:
            found.add(before)
        at[section.load] = number
    return found


def _is_nobits(section: MapSection) -> bool:
    """Whether nothing in a section has bytes: fill and moves of the script alone have none."""
    parts = [p for p in section.parts if p.size and not p.fill]
    if not parts and section.parts and _CODE.fullmatch(section.name):
        return False
    return all(_NOBITS.fullmatch(p.name) for p in parts)


def _flags(section: MapSection, nobits: bool) -> int:
    if nobits or _DATA.fullmatch(section.name):
        return SHF_ALLOC | SHF_WRITE
    return SHF_ALLOC | (SHF_EXECINSTR if _CODE.fullmatch(section.name) else 0)


def _symbols(found: LinkMap, listed: list[MapSection]) -> Iterator[Symbol]:
    names: dict[tuple[str, int], str] = {}
    for name, address, number in found.symbols:
        names.setdefault((found.sections[number].name, address & ~1), name)
    for index, section in enumerate(listed, start=1):
        for part in section.parts:
            if part.size:
                known = part.name if part.fill else names.get((section.name, part.address))
                yield _symbol(part, known, index, bool(_CODE.fullmatch(section.name)))
    for name, value in found.constants.items():
        yield Symbol(name, value, 0, "NOTYPE", "GLOBAL", None, "ABS")


def _symbol(part: MapPart, known: str | None, section: int, code: bool) -> Symbol:
    kind = "FUNC" if code and not part.fill else "OBJECT"
    return Symbol(known or part.name, part.address, part.size, kind, "GLOBAL", section, "")
