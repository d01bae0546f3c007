# SPDX-License-Identifier: Apache-2.0
"""Map files of GNU ld (``-Map``), also those of a link that failed afterwards.

Only the part below "Linker script and memory map" places bytes; "Discarded input sections" is
added up apart. Names of 16 characters and more stand on a line of their own, with the numbers on
the next one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from colibri.fit.elf import MemoryRange
from colibri.fit.link_map import (
    CROSS_REFERENCES,
    CrossReferences,
    LinkMap,
    MapPart,
    MapSection,
    object_and_library,
)

_NUMBERS = r"0x([0-9a-f]{1,16}) {1,99}0x([0-9a-f]{1,16})"
_OUTPUT = re.compile(rf"(\S.*?) {{1,99}}{_NUMBERS}(?: load address 0x([0-9a-f]{{1,16}}))?")
_INPUT = re.compile(rf" (\S.*?) {{1,99}}{_NUMBERS}(?: (.*))?")
_NUMBERS_ALONE = re.compile(rf" +{_NUMBERS}(?:$| )")
_DATA = re.compile(rf" {{10,}}{_NUMBERS} (?:BYTE|SHORT|LONG|QUAD|SQUAD|ASCIZ)\b.*")
_SYMBOL = re.compile(r" {10,}0x([0-9a-f]{1,16}) {8,}(\S.*)")
_ASSIGNED = re.compile(r"(?:(?:PROVIDE|HIDDEN|PROVIDE_HIDDEN) ?\()?([A-Za-z_.$][\w.$]*) = .*")
_MEMORY = re.compile(rf"(\S.*?) {{1,99}}{_NUMBERS}(?: +(\S+))?")
_NEEDED_BY = re.compile(r"(\S+) {1,99}(\S.*?) \((.+)\)")
_NEEDED_BY_BELOW = re.compile(r" {10,99}(\S.*?) \((.+)\)")
_NAME_ALONE = re.compile(r" ?[^\s(][^(]*")
_HEADINGS = {
    "Archive member included to satisfy reference by file (symbol)": "included",
    "As-needed library included to satisfy reference by file (symbol)": "before",
    "Allocating common symbols": "before",
    "Discarded input sections": "discarded",
    "Memory Configuration": "memory",
    "Linker script and memory map": "map",
    CROSS_REFERENCES: "uses",
}
_DEFAULT, _DISCARD = "*default*", "/DISCARD/"
_LINE = 8192


def parse_gnu(path: Path, text: str) -> LinkMap:
    """All that a map of GNU ld says; lines that are not understood are passed over."""
    parser = _Parser(LinkMap(path, "GNU ld"))
    part = "before"
    uses = CrossReferences(parser.map)
    for line in _joined(text):
        if line in _HEADINGS:
            part = _HEADINGS[line]
        elif part == "discarded":
            found = _INPUT.fullmatch(line)
            parser.map.discarded += int(found[3], 16) if found else 0
        elif part == "memory":
            parser.memory(line)
        elif part == "map":
            parser.line(line)
        elif part == "included":
            parser.included(line)
        elif part == "uses":
            uses.line(line)
    return parser.map


def _joined(text: str) -> Iterator[str]:
    """Lines, each long name put before the numbers that follow it."""
    waiting: str | None = None
    for line in text.splitlines():
        line = line[:_LINE].rstrip()
        if waiting is not None:
            if _NUMBERS_ALONE.match(line):
                line = f"{waiting} {line.lstrip()}"
            else:
                yield waiting
        waiting = None
        if len(line) >= 15 and _NAME_ALONE.fullmatch(line) and " 0x" not in line:
            waiting = line
        else:
            yield line
    if waiting is not None:
        yield waiting


class _Parser:
    def __init__(self, found: LinkMap) -> None:
        self.map = found
        self.section: MapSection | None = None
        self.member = ""  # of the list of included members, when its reason is on the next line

    def included(self, line: str) -> None:
        """``lib.a(member.o)  main.o (symbol)``; a long name has the rest on the next line."""
        if found := _NEEDED_BY_BELOW.fullmatch(line):
            if self.member:
                self.map.included.setdefault(self.member, (found[1], found[2]))
        elif found := _NEEDED_BY.fullmatch(line):
            self.map.included.setdefault(found[1], (found[2], found[3]))
        self.member = line if line[:1].strip() else ""

    def memory(self, line: str) -> None:
        found = _MEMORY.fullmatch(line)
        if found and found[1] != _DEFAULT:
            name, origin, length, attributes = found.groups()
            entry = MemoryRange(name, int(origin, 16), int(length, 16), attributes or "")
            self.map.memory.append(entry)

    def line(self, line: str) -> None:
        if line[:1] not in (" ", ""):
            self.output(line)
        elif line[:1] == " " and line[1:2] != " ":
            self.input(line)
        elif found := _DATA.fullmatch(line):
            self.part("(data of the linker script)", found[1], found[2], "")
            self.scripted()
        elif found := _SYMBOL.fullmatch(line):
            self.symbol(int(found[1], 16), found[2])

    def output(self, line: str) -> None:
        found = _OUTPUT.fullmatch(line)
        if found is None:
            if line.startswith(_DISCARD):
                self.section = None
            return
        name, address, size, load = found.groups()
        start = int(address, 16)
        self.section = MapSection(
            name, start, int(size, 16), int(load, 16) if load is not None else start
        )
        self.map.sections.append(self.section)

    def input(self, line: str) -> None:
        found = _INPUT.fullmatch(line)
        if found is None:
            if "(" in line:  # a pattern of the script
                self.scripted()
            return
        name, address, size, where = found.groups()
        self.part(name, address, size, where or "")

    def part(self, name: str, address: str, size: str, where: str) -> None:
        if self.section is None:
            return
        origin, library = object_and_library(where)
        part = MapPart(name, int(address, 16), int(size, 16), origin, library)
        self.section.parts.append(part)

    def scripted(self) -> None:
        if self.section is not None:
            self.section.scripted = True

    def symbol(self, address: int, text: str) -> None:
        if text.startswith((". = ", "ASSERT", "[")):
            self.scripted()
        elif " = " in text:
            self.scripted()
            if found := _ASSIGNED.fullmatch(text):
                self.map.constants[found[1]] = address
        else:
            self.map.symbols.append((text, address, len(self.map.sections) - 1))
