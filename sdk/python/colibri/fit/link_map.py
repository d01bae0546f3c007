# SPDX-License-Identifier: Apache-2.0
"""Map files of GNU ld and lld: which object every byte came from.

The parsers (:mod:`~colibri.fit.map_gnu`, :mod:`~colibri.fit.map_lld`) fill the records below. A
map is text for people: a line that is not understood is passed over, and what is understood is
checked against the ELF before it is believed (:func:`check_belongs`).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from colibri.errors import SizeError
from colibri.fit.elf import Elf, MemoryRange
from colibri.fit.findings import OF_A_KIND, Finding

_GNU_MARK = "Linker script and memory map"
_GNU_EARLIER = (
    "Archive member included",
    "Memory Configuration",
    "Discarded input sections",
    "Allocating common symbols",
    "Merging program properties",
    "As-needed library included",
)
_LLD_MARK = re.compile(r"\s*VMA\s+LMA\s+Size\s+Align\s+Out\s+In\s+Symbol")
#: Most bytes of a map: some 190,000 input sections, which take 10 s and 400 MB.
MAX_MAP_BYTES = 32 << 20
#: Objects that a linker makes out of all others when it optimises at link time.
_LTO_OBJECT = re.compile(
    r"\.ltrans\d*\.(ltrans\.)?o$|\.lto\.o$|lto\.tmp$|ld-temp\.o$|\.lto\.\d+\.o$"
)
CROSS_REFERENCES = "Cross Reference Table"
#: Where the file of a cross reference begins, unless the symbol's name is longer.
_FILE_COLUMN = 50
#: How far back a file is looked for that uses a symbol twice.
MOST_USERS = 64
FILL = "*fill*"
#: Sections that linkers list at address 0 because they take no memory.
_NOT_LOADED = re.compile(
    r"\.(debug_|zdebug_|stab|comment|symtab|strtab|shstrtab|gnu\.|note\.GNU-stack|ARM\.attributes"
    r"|riscv\.attributes|xtensa\.info|xt\.|gnu_debug|llvm|line|mdebug|pdr).*"
)


class MapPart(NamedTuple):
    """Bytes of one input section (or fill, or data of the script) in an output section."""

    name: str
    address: int
    size: int
    object: str
    library: str

    @property
    def fill(self) -> bool:
        return self.name == FILL


@dataclass(slots=True)
class MapSection:
    """One output section; ``scripted`` is False when the linker put it by its own rules."""

    name: str
    address: int
    size: int
    load: int
    parts: list[MapPart] = field(default_factory=list)
    scripted: bool = False

    @property
    def loaded(self) -> bool:
        """Whether it takes memory, as far as a map tells."""
        return self.size > 0 and not (self.address == 0 and _NOT_LOADED.fullmatch(self.name))


@dataclass(slots=True)
class LinkMap:
    """A map file. ``symbols`` are global names, their addresses, and the index of the section that
    lists them; ``constants`` are what scripts assign.

    ``included``: for each archive member the file that needed it, and the symbol. ``uses``
    (``--cref``): for each symbol the files that name it, the one that defines it first.
    """

    path: Path
    linker: str
    memory: list[MemoryRange] = field(default_factory=list)
    sections: list[MapSection] = field(default_factory=list)
    symbols: list[tuple[str, int, int]] = field(default_factory=list)
    constants: dict[str, int] = field(default_factory=dict)
    discarded: int = 0
    included: dict[str, tuple[str, str]] = field(default_factory=dict)
    uses: dict[str, list[str]] = field(default_factory=dict)

    @property
    def loaded(self) -> Iterator[MapSection]:
        return (section for section in self.sections if section.loaded)

    @property
    def lto(self) -> bool:
        """Whether objects are the linker's own: link-time optimisation has mixed all sources."""
        objects = {part.object for s in self.loaded for part in s.parts if part.size}
        return any(_LTO_OBJECT.search(name) for name in objects)


class CrossReferences:
    """Reads the table of ``--cref``, which both linkers write alike.

    A symbol and the file that defines it, on the lines below the files that use it.
    """

    def __init__(self, found: LinkMap) -> None:
        self.uses = found.uses
        self.name = ""

    def line(self, line: str) -> None:
        name, file = line[:_FILE_COLUMN].rstrip(), line[_FILE_COLUMN:]
        if line[_FILE_COLUMN - 1 : _FILE_COLUMN] != " ":
            name, _, file = line.rpartition(" ")
        if not file or (name, file) == ("Symbol", "File"):
            return
        self.name = name or self.name
        files = self.uses.setdefault(self.name, [])
        if file not in files[-MOST_USERS:]:
            files.append(file)


def looks_like_map(head: bytes) -> bool:
    """Whether the first bytes of a file are those of a map."""
    text = head.decode("utf-8", "replace").lstrip("\ufeff\r\n")
    return _LLD_MARK.match(text) is not None or text.startswith((_GNU_MARK, *_GNU_EARLIER))


def read_map(path: Path) -> LinkMap:
    """Read a map file of GNU ld or lld.

    Raises
    ------
    SizeError
        The file cannot be read or is no map that is known.
    """
    from colibri.fit.map_gnu import parse_gnu
    from colibri.fit.map_lld import parse_lld

    if not path.is_file():
        what = "is not a regular file" if path.exists() else "does not exist"
        raise SizeError(what, file=path, hint="link with -Wl,-Map=FILE")
    try:
        if path.stat().st_size > MAX_MAP_BYTES:
            raise SizeError(
                f"has {path.stat().st_size:,} bytes; maps of up to {MAX_MAP_BYTES:,} are read",
                file=path,
                hint="give the ELF without its map",
            )
        text = path.read_text(encoding="utf-8", errors="replace").lstrip("\ufeff")
    except OSError as error:
        raise SizeError(f"cannot be read: {error.strerror}", file=path) from error
    if _LLD_MARK.match(text):
        found = parse_lld(path, text)
    elif f"\n{_GNU_MARK}" in f"\n{text}":
        found = parse_gnu(path, text)
    else:
        raise SizeError(
            f"has no line {_GNU_MARK!r} and no head of lld's columns",
            file=path,
            hint="give the complete map of GNU ld (made with LC_ALL=C) or lld",
        )
    if not any(found.loaded):
        raise SizeError("lists no section that takes memory", file=path, hint="link again")
    return found


def object_and_library(text: str) -> tuple[str, str]:
    """``lib.a(member.o)`` as member and library, anything else as an object without one."""
    text = text.strip()
    if text.endswith(")") and "(" in text:
        library, _, member = text[:-1].rpartition("(")
        if library and member:
            return member, library
    return text, ""


def orphans(found: LinkMap) -> Iterator[Finding]:
    """Sections that no rule of the linker script names: the linker chose their place."""
    names = [s.name for s in found.loaded if not s.scripted and s.parts]
    if names and found.memory:
        yield Finding(
            "note",
            "orphan",
            "no rule of the linker script names it: the linker chose its place",
            ", ".join(names[:OF_A_KIND]),
            len(names),
        )


class PartFinder:
    """The map part at an address of an output section."""

    def __init__(self, found: LinkMap) -> None:
        self.parts = {
            (s.name, s.address): sorted(
                (p for p in s.parts if p.size), key=lambda p: (p.address, p.size)
            )
            for s in found.loaded
        }
        self.starts = {key: [p.address for p in parts] for key, parts in self.parts.items()}

    def at(self, section: str, base: int, address: int) -> MapPart | None:
        starts = self.starts.get((section, base), [])
        index = bisect_right(starts, address) - 1
        if index < 0:
            return None
        part = self.parts[section, base][index]
        return part if address < part.address + part.size else None


def with_map(elf: Elf, found: LinkMap) -> Elf:
    """An ELF and its own map: attribution to objects, and the linker's regions.

    Raises
    ------
    SizeError
        The map is of another build, or there is nothing that it could belong to.
    """
    if elf.format != "elf" or elf.kind == "relocatable":
        raise SizeError(
            f"{elf.path.name} is no linked ELF ({elf.format}, {elf.kind})",
            file=found.path,
            field="--map",
            hint="give the map beside its ELF, or alone",
        )
    check_belongs(found, elf)
    return replace(elf, memory=tuple(found.memory), link_map=found)


def check_belongs(found: LinkMap, elf: Elf) -> None:
    """Refuse a map of another build: every section and common symbol has to be where the ELF's is.

    Maps do not carry the build id, so addresses, sizes and symbols are compared.

    Raises
    ------
    SizeError
        The first difference, with both values.
    """
    listed = {(s.name, s.address): s.size for s in found.sections}
    for section in elf.sections:
        if not section.takes_memory:
            continue
        size = listed.get((section.name, section.address))
        if size != section.size:
            there = "is not in the map" if size is None else f"has {size:,} B in the map"
            raise _another_build(
                found,
                f"{section.name} of {elf.path.name} ({section.size:,} B at {section.address:#x}) "
                f"{there}",
            )
    here: dict[str, set[int]] = {}
    for symbol in elf.symbols:
        if symbol.binding != "LOCAL" and symbol.section is not None:
            here.setdefault(symbol.name, set()).add(symbol.address & ~1)
    for name, address, _ in found.symbols:
        if name in here and address & ~1 not in here[name]:
            other = min(here[name])
            raise _another_build(
                found, f"{name} is at {address:#x} in the map and at {other:#x} in {elf.path.name}"
            )


def _another_build(found: LinkMap, what: str) -> SizeError:
    return SizeError(
        f"is the map of another build: {what}",
        file=found.path,
        field="--map",
        hint="give the map that was written with this ELF",
    )
