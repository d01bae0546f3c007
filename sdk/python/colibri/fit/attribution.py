# SPDX-License-Identifier: Apache-2.0
"""Who the bytes belong to: symbol → object → library → source folder, and groups by pattern.

Symbols come first, then what is left of the map's input sections (strings, constants and fill
that no symbol names). Each byte is charged once, and what nobody owns is a row of its own, so
every table adds up to what its regions use.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from typing import NamedTuple

from colibri.errors import SizeError
from colibri.fit.debug_info import Sources
from colibri.fit.demangle import demangled
from colibri.fit.elf import Elf
from colibri.fit.findings import Finding
from colibri.fit.link_map import LinkMap, PartFinder
from colibri.fit.memory_map import OWN, MemoryMap
from colibri.fit.objects import member_and_library
from colibri.fit.symbols import STACK_NAME, OwnSymbol, SymbolTable

UNATTRIBUTED, FILL_NAME, LINKER, OTHER = "(unattributed)", "(fill)", "(linker)", "(other)"
NO_LIBRARY, NO_SOURCE = "(objects)", "(source not known)"
#: Names of rows of the tables by source that are none.
NOT_SOURCES = (UNATTRIBUTED, NO_SOURCE, STACK_NAME)
_FIELDS = ("symbol", "section", "object", "library", "source", "region")


class Owned(NamedTuple):
    """Bytes of one owner, by region (of objects: by group of the totals)."""

    charged: Mapping[str, int]
    symbol: str = ""
    section: str = ""
    object: str = ""
    library: str = ""
    source: str = ""


@dataclass(slots=True)
class Share:
    """One line of a table: a name, and its bytes by region."""

    name: str
    library: str = ""
    bytes: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(self.bytes.values())


@dataclass(slots=True)
class Attribution:
    """Tables of owners, largest first; one that nothing is known for is empty."""

    owned: list[Owned] = field(default_factory=list)
    objects: list[Share] = field(default_factory=list)
    libraries: list[Share] = field(default_factory=list)
    sources: list[Share] = field(default_factory=list)
    directories: list[Share] = field(default_factory=list)
    groups: list[Share] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def attribution(
    placed: MemoryMap,
    table: SymbolTable,
    sources: Sources,
    groups: Mapping[str, Sequence[str]] | None = None,
) -> Attribution:
    """Group the charged bytes of a placed ELF.

    Parameters
    ----------
    placed, table
        The map and its charged symbols (:func:`colibri.fit.symbols.attribute`); what is left of
        the link map's parts is charged here.
    sources : Sources
        Source files by address; empty when there is no debug information.
    groups : mapping, optional
        Patterns by group name, see :class:`Grouping`.
    """
    link_map = placed.elf.link_map
    result = Attribution(findings=[*sources.findings, *_lto(placed.elf, sources)])
    result.owned = [*_owned_symbols(placed.elf, table, sources), *_rest(placed.elf, table)]
    left = _left(placed, result.owned)
    by_object = link_map is not None or placed.elf.kind == "relocatable"
    if by_object and not (link_map is not None and link_map.lto):
        result.objects = _shares(result.owned, left, lambda o: (o.object, o.library))
        result.libraries = _shares(result.owned, left, _library)
    if any("/" in o.source for o in result.owned):
        result.sources = _shares(result.owned, left, lambda o: (o.source or NO_SOURCE, ""))
        result.directories = _directories(result.sources)
    if groups:
        group = Grouping(groups)
        result.groups = _shares(result.owned, left, lambda o: (group.of(o), ""))
    return result


def _owned_symbols(elf: Elf, table: SymbolTable, sources: Sources) -> Iterator[Owned]:
    finder = PartFinder(elf.link_map) if elf.link_map is not None else None
    paths = _by_basename([*sources.files, *sources.variables.values()])
    for row in table.rows:
        row.object, row.library = _origin(elf, row, finder)
        section = elf.sections[row.section]
        pieces: list[tuple[str, int, int]] = []
        if section.executable and sources.starts:
            pieces = list(sources.split(row.address, row.size))
        row.source = _most(pieces) or sources.variables.get(row.address, "")
        row.source = row.source or paths.get(row.file, row.file)
        if row.kind == "STACK":
            row.source = row.name
        owned = Owned(row.charged, row.name, section.name, row.object, row.library, row.source)
        if sources.lto and len(pieces) > 1:
            yield from _inlined(owned, pieces)
        else:
            yield owned


def _by_basename(files: Iterable[str]) -> dict[str, str]:
    """Full paths of the file names that only one source has."""
    paths: dict[str, str] = {}
    for file in set(files):
        name = posixpath.basename(file)
        paths[name] = file if name not in paths else name
    return paths


def _inlined(owned: Owned, pieces: Iterable[tuple[str, int, int]]) -> Iterator[Owned]:
    """A function's bytes by the sources that were inlined into it."""
    left = dict(owned.charged)
    for file, _, size in pieces:
        taken = {region: min(size, rest) for region, rest in left.items()}
        left = {region: rest - taken[region] for region, rest in left.items()}
        yield owned._replace(charged=taken, source=file or owned.source)
    yield owned._replace(charged=left)


def _origin(elf: Elf, row: OwnSymbol, finder: PartFinder | None) -> tuple[str, str]:
    section = elf.sections[row.section]
    if finder is None:
        return member_and_library(section.member)
    part = finder.at(section.name, section.address, row.address)
    if row.kind == "STACK" and (part is None or part.fill or not part.object):
        return row.name, ""
    if part is None:
        return LINKER, ""
    return (FILL_NAME if part.fill else part.object or LINKER), part.library


def _most(pieces: Sequence[tuple[str, int, int]]) -> str:
    """The source that most bytes of a function come from."""
    if len(pieces) == 1:
        return pieces[0][0]
    sizes: dict[str, int] = {}
    for file, _, size in pieces:
        sizes[file] = sizes.get(file, 0) + size
    return max(sizes, key=lambda file: (sizes[file], file)) if sizes else ""


def _rest(elf: Elf, table: SymbolTable) -> Iterator[Owned]:
    """What symbols do not own: map parts, or whole sections of objects."""
    if elf.kind == "relocatable":
        for section in elf.sections:
            if section.takes_memory:
                charged = _charged(table, section.index, 0, section.size)
                origin, library = member_and_library(section.member)
                yield Owned(charged, "", section.name, origin, library)
        return
    if elf.link_map is None:
        return
    index = {(s.name, s.address): s.index for s in elf.sections if s.takes_memory}
    for output in elf.link_map.loaded:
        at = index.get((output.name, output.address))
        for part in output.parts if at is not None else ():
            assert at is not None
            charged = _charged(table, at, part.address, part.size)
            origin = FILL_NAME if part.fill else part.object or LINKER
            yield Owned(charged, "", output.name, origin, part.library)


def _charged(table: SymbolTable, section: int, address: int, size: int) -> Mapping[str, int]:
    charged = table.charger.charge(section, address, size)
    return table.charger.sums(part for part in charged if part[2])


def _left(placed: MemoryMap, owned: Iterable[Owned]) -> dict[str, int]:
    """Bytes of each region that nobody owns; the model image and the stack are their own."""
    left = {
        usage.region.name: sum(r.bytes for r in usage.rows if r.kind not in OWN)
        for usage in placed.usages
    }
    for part in owned:
        for name, size in part.charged.items():
            if name in left:
                left[name] -= size
    return {name: size for name, size in left.items() if size}


def _shares(
    owned: Iterable[Owned], left: dict[str, int], key: Callable[[Owned], tuple[str, str]]
) -> list[Share]:
    shares: dict[tuple[str, str], Share] = {}
    for part in owned:
        names = key(part)
        share = shares.get(names)
        if share is None:
            share = shares[names] = Share(*names)
        sums = share.bytes
        for region, size in part.charged.items():
            sums[region] = sums.get(region, 0) + size
    if left:
        shares["", UNATTRIBUTED] = Share(UNATTRIBUTED, "", dict(left))
    return sorted(
        (s for s in shares.values() if s.total), key=lambda s: (-s.total, s.library, s.name)
    )


def _library(part: Owned) -> tuple[str, str]:
    if part.library:
        return part.library, ""
    named = part.object in (FILL_NAME, LINKER, STACK_NAME)
    return (part.object if named else NO_LIBRARY), ""


def _directories(sources: Iterable[Share]) -> list[Share]:
    parts = (Owned(share.bytes, source=share.name) for share in sources)
    return _shares(parts, {}, lambda o: (_directory(o.source), ""))


def _directory(file: str) -> str:
    if file in NOT_SOURCES:
        return file
    return posixpath.dirname(file) or NO_SOURCE


def _lto(elf: Elf, sources: Sources) -> Iterator[Finding]:
    by_map: LinkMap | None = elf.link_map
    if sources.lto or (by_map is not None and by_map.lto):
        yield Finding(
            "note",
            "lto",
            "built with link-time optimisation: attribution to objects and libraries is "
            "impossible; debug information (-g) tells the source of inlined code",
            elf.path.name,
        )


# -- groups ---------------------------------------------------------------------------------------


class Grouping:
    """Groups of a project file: shell patterns by group name; the first that matches wins.

    A pattern such as ``*/drivers/*`` or ``libm.a`` is held against the object's path, the library
    and ``library(object)``, and the source file. ``symbol:``, ``section:``, ``object:``,
    ``library:``, ``source:`` and ``region:`` in front narrow it to one of them; symbols of C++
    and Rust by either form of their names.

    Raises
    ------
    SizeError
        A group without patterns, or a prefix that is none.
    """

    def __init__(self, groups: Mapping[str, Sequence[str]]) -> None:
        self.rules = [
            (name, *pattern_rule(f"groups.{name}", pattern))
            for name, patterns in groups.items()
            for pattern in _listed(name, patterns)
        ]
        self.by_symbol = any(what == "symbol" for _, what, _ in self.rules)

    def of(self, part: Owned) -> str:
        """The group of some bytes; ``(other)`` when no pattern matches."""
        values = {
            "symbol": (part.symbol, demangled(part.symbol) if self.by_symbol else ""),
            "section": (part.section,),
            "object": (part.object,),
            "library": (part.library,),
            "source": (part.source,),
            "region": tuple(part.charged),
            "": (part.object, part.library, f"{part.library}({part.object})", part.source),
        }
        for name, what, pattern in self.rules:
            if any(text and pattern.fullmatch(text) for text in values[what]):
                return name
        return OTHER


def untold_owners(elf: Elf, pattern: str) -> str:
    """Why an input does not tell whether it has owners of a pattern; empty when it does."""
    what, link_map = _prefix(pattern)[0], elf.link_map
    if what == "symbol" and elf.detail in ("areas", "segments", "sections"):
        return "it has no symbol table"
    if what in ("", "object", "library") and elf.kind != "relocatable":
        if link_map is None:
            return "objects and libraries are not known without a map"
        if link_map.lto:
            return "objects and libraries are not known after link-time optimisation"
    return ""


def _prefix(pattern: str) -> tuple[str, str]:
    """What a pattern is held against (empty: owners of any kind), and the pattern itself."""
    what, colon, rest = pattern.partition(":")
    told = colon and not rest.startswith(":") and re.fullmatch(r"[a-z]{2,}", what)  # not std::
    return (what, rest) if told else ("", pattern)


def _listed(name: str, patterns: Sequence[str]) -> Sequence[str]:
    if isinstance(patterns, str) or not patterns:
        raise SizeError(
            "has no list of patterns",
            field=f"groups.{name}",
            hint='write it as in drivers = ["*/drivers/*", "libhal.a"]',
        )
    return patterns


def pattern_rule(field: str, pattern: str) -> tuple[str, re.Pattern[str]]:
    """What a pattern is held against ("" without a prefix), and what matches it."""
    what, rest = _prefix(pattern)
    if what and what not in _FIELDS:
        raise SizeError(
            f"{what!r} is nothing that a pattern can be held against",
            field=field,
            hint=f"use one of {', '.join(f'{f}:' for f in _FIELDS)} or no prefix",
        )
    return what, re.compile(translate(rest))
