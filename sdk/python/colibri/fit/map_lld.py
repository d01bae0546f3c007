# SPDX-License-Identifier: Apache-2.0
"""Map files of LLVM's lld (``-Map``): columns of addresses, then nesting by indentation.

Output sections stand at column 0 of the last field, input sections at 8, symbols at 16. lld does
not repeat the script's ``MEMORY``, and the address beside an assignment is not its value. It lists
all that it places but alignment: what lies between two parts is fill.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from colibri.fit.link_map import (
    CROSS_REFERENCES,
    FILL,
    CrossReferences,
    LinkMap,
    MapPart,
    MapSection,
    object_and_library,
)

_LINE = re.compile(r" *([0-9a-f]+) +([0-9a-f]+) +([0-9a-f]+) +(\d+) (.*)")
_ASSIGNMENT = re.compile(r"\S+ (=|\+=|-=) .*|(PROVIDE|HIDDEN|PROVIDE_HIDDEN|ASSERT) ?\(.*")
_LIMIT = 8192


def parse_lld(path: Path, text: str) -> LinkMap:
    """All that a map of lld says; lines that are not understood are passed over."""
    result = LinkMap(path, "lld")
    section: MapSection | None = None
    lines = iter(text.splitlines()[1:])
    for line in lines:
        if line == CROSS_REFERENCES:
            break
        found = _LINE.fullmatch(line[:_LIMIT].rstrip())
        if found is None:
            continue
        run, stored, length, what = found.group(1, 2, 3, 5)
        address, load, size = int(run, 16), int(stored, 16), int(length, 16)
        depth = len(what) - len(what.lstrip(" "))
        what = what.strip()
        if depth >= 16:
            if not what.startswith("$"):
                result.symbols.append((what, address, len(result.sections) - 1))
        elif depth >= 8:
            if section is not None:
                section.parts.append(_part(what, address, size))
        elif not _ASSIGNMENT.fullmatch(what):
            section = MapSection(what, address, size, load, scripted=True)
            result.sections.append(section)
    for section in result.sections:
        section.parts = list(_with_fill(section))
    uses = CrossReferences(result)
    for line in lines:
        uses.line(line[:_LIMIT].rstrip())
    return result


def _with_fill(section: MapSection) -> Iterator[MapPart]:
    """The parts of a section that has any, and the gaps between them."""
    at = section.address
    for part in section.parts:
        if part.address > at:
            yield MapPart(FILL, at, part.address - at, "", "")
        yield part
        at = max(at, part.address + part.size)
    rest = section.address + section.size - at
    if section.parts and rest > 0:
        yield MapPart(FILL, at, rest, "", "")


def _part(what: str, address: int, size: int) -> MapPart:
    file, mark, name = what.removesuffix(")").rpartition(":(")
    if not mark or not what.endswith(")"):  # `. = ALIGN(16)`, `LONG(1)`
        name = FILL if what.startswith(".") else "(data of the linker script)"
        return MapPart(name, address, size, "", "")
    origin, library = object_and_library(file)
    return MapPart(name, address, size, "" if origin == "<internal>" else origin, library)
