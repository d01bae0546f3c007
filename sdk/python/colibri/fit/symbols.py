# SPDX-License-Identifier: Apache-2.0
"""Charge bytes to symbols, so that symbols and an explicit rest add up to what is used.

Third step of the ELF trail. A byte belongs to at most one symbol: aliases are charged once, sizes
end at the next symbol or at the section's end, labels and mapping symbols own nothing.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter

from colibri.fit.demangle import can_demangle, is_mangled
from colibri.fit.elf import Elf, Symbol
from colibri.fit.findings import Finding
from colibri.fit.memory_map import MemoryMap, group_of
from colibri.fit.places import Place
from colibri.fit.regions import Extent

_OWNERS = frozenset({"FUNC", "OBJECT", "NOTYPE", "TLS", "COMMON", "GNU_IFUNC", "LOOS"})
_MAPPING_MACHINES = frozenset({"ARM", "AARCH64", "RISCV", "CSKY"})
_MAPPING = re.compile(r"\$(a|t|d|x(rv[^.]*)?)(\..*)?")
#: Bytes of a reserved stack that no symbol has, and the section that some scripts reserve it by.
STACK_NAME, STACK_SECTION = "(stack)", ".stack"
_ADDRESS = attrgetter("address")
_BINDING = {"GLOBAL": 0, "WEAK": 1}


@dataclass(slots=True)
class OwnSymbol:
    """A symbol with the bytes it is charged; ``aliases`` are other names of the same bytes.

    ``charged`` has the bytes by region (of an object: by text, rodata, data and bss); ``file`` is
    the source file of a local symbol as the symbol table names it; ``object``, ``library`` and
    ``source`` are set by :func:`colibri.fit.attribution.attribution`.
    """

    name: str
    address: int
    size: int
    declared_size: int
    kind: str
    section: int
    aliases: tuple[str, ...] = ()
    region: str | None = None
    load_region: str | None = None
    file: str = ""
    object: str = ""
    library: str = ""
    source: str = ""
    charged: Mapping[str, int] = field(default_factory=dict)

    @property
    def clipped(self) -> bool:
        return self.size < self.declared_size


@dataclass(slots=True)
class SymbolTable:
    """All charged symbols, largest first, and what there is to say about them."""

    charger: Charger
    rows: list[OwnSymbol] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def hidden(symbol: Symbol, machine: str) -> bool:
    """Whether a symbol is a hint of the toolchain: ``.L`` labels and ``$t``, ``$d``, ``$x``."""
    if symbol.name.startswith(".L") or not symbol.name:
        return True
    return (
        machine in _MAPPING_MACHINES
        and symbol.kind == "NOTYPE"
        and symbol.binding == "LOCAL"
        and _MAPPING.fullmatch(symbol.name) is not None
    )


def attribute(placed: MemoryMap) -> SymbolTable:
    """Charge the map's regions to symbols (sets ``symbol_bytes`` of every usage)."""
    table = SymbolTable(Charger(placed), findings=list(_remarks(placed.elf)))
    table.rows = list(own_symbols(placed.elf))
    for row in table.rows:
        _charge(table.charger, row)
    table.findings += _unread(placed.elf)
    stacks = [_stack(table.charger, *found) for found in _stacks(placed)]
    table.rows += [row for row in stacks if row.size]
    clipped = [row for row in table.rows if row.clipped]
    if clipped:
        lost = sum(row.declared_size - row.size for row in clipped)
        table.findings.append(
            Finding(
                "note",
                "clipped",
                (
                    f"{len(clipped):,} symbols reach past the next symbol or the end of their "
                    f"section: {lost:,} B not charged to them"
                ),
                clipped[0].name,
                lost,
            )
        )
    table.rows.sort(key=lambda row: (-row.size, row.name, row.address))
    return table


def _stacks(placed: MemoryMap) -> Iterator[tuple[int, int, int]]:
    """Section, address and size of reserved stacks: by linker symbols, or sections of that name."""
    reserved = [place for place in placed.places if place.kind == "stack"]
    for section in placed.elf.sections if placed.elf.kind != "relocatable" else ():
        if not section.takes_memory:
            continue
        if section.name == STACK_SECTION and not section.in_file:
            yield section.index, section.address, section.size
        for place in reserved:
            start = max(section.address, place.address)
            end = min(section.address + section.size, place.address + place.size)
            if start < end:
                yield section.index, start, end - start


def _stack(charger: Charger, section: int, address: int, size: int) -> OwnSymbol:
    """What no symbol has of a reserved stack, as a row of its own."""
    row = OwnSymbol(STACK_NAME, address, size, size, "STACK", section)
    _charge(charger, row)
    row.size = row.declared_size = max(row.charged.values(), default=0)
    return row


def own_symbols(elf: Elf) -> Iterator[OwnSymbol]:
    """Symbols that own bytes, one for each address, sizes clipped."""
    for section, named in _owners(elf).items():
        start = elf.sections[section].address if elf.kind != "relocatable" else 0
        end = start + elf.sections[section].size
        named.sort(key=_ADDRESS)
        inside = [s for s in named if start <= s.address < end]
        at, count = 0, len(inside)
        while at < count:
            first, address, after = inside[at], inside[at].address, at + 1
            aliases: tuple[str, ...] = ()
            if after < count and inside[after].address == address:
                while after < count and inside[after].address == address:
                    after += 1
                first, *others = sorted(inside[at:after], key=_preference)
                aliases = tuple(dict.fromkeys(s.name for s in others if s.name != first.name))
            limit = inside[after].address if after < count else end
            yield OwnSymbol(
                first.name,
                address,
                min(first.size, limit - address),
                first.size,
                first.kind,
                section,
                aliases,
                file=first.file,
            )
            at = after


def _owners(elf: Elf) -> dict[int, list[Symbol]]:
    """Symbols that can own bytes, by section."""
    memory = {section.index for section in elf.sections if section.takes_memory}
    found: dict[int, list[Symbol]] = defaultdict(list)
    for symbol in elf.symbols:
        section = symbol.section
        if section is None or section not in memory or symbol.size <= 0:
            continue
        if symbol.kind in _OWNERS and not hidden(symbol, elf.machine):
            found[section].append(symbol)
    return found


def _preference(symbol: Symbol) -> tuple[int, int, bool, str]:
    """The name to show for an address: the largest, then global ones, then by alphabet."""
    return (-symbol.size, _BINDING.get(symbol.binding, 2), symbol.kind == "NOTYPE", symbol.name)


class Charger:
    """Hands out the placed bytes of sections, each address of a region once.

    A relocatable object has no regions: its bytes are charged to the groups of its totals.
    """

    def __init__(self, placed: MemoryMap) -> None:
        self.elf = placed.elf
        self.usages = {usage.region.name: usage for usage in placed.usages}
        self.places: dict[int, list[Place]] = defaultdict(list)
        for place in placed.places:
            if place.section is not None:
                self.places[place.section].append(place)
        self.covered: dict[str | int, Extent] = defaultdict(Extent)
        self.shared: dict[tuple[tuple[str, int], ...], Mapping[str, int]] = {}

    def charge(self, section: int, address: int, size: int) -> list[tuple[str | None, str, int]]:
        """Region, role and number of new bytes for each piece of a range of a section."""
        home = self.elf.sections[section]
        if self.elf.kind == "relocatable":
            new = self.covered[section].add(address, address + size)
            return [(group_of(home), "both", new)]
        offset = address - home.address
        charged: list[tuple[str | None, str, int]] = []
        for place in self.places[section]:
            for region, start, length in place.part(offset, size):
                name = region.name if region is not None else None
                new = self.covered[name].add(start, start + length) if name is not None else 0
                charged.append((name, place.role, new))
        return charged

    def sums(self, charged: Iterable[tuple[str | None, str, int]]) -> Mapping[str, int]:
        """New bytes by region; equal ones are one object, of which a file has a handful."""
        sums: dict[str, int] = {}
        for name, _, new in charged:
            if name is not None:
                sums[name] = sums.get(name, 0) + new
        return self.shared.setdefault(tuple(sums.items()), sums)


def _charge(charger: Charger, row: OwnSymbol) -> None:
    charged = charger.charge(row.section, row.address, row.size)
    for name, role, _ in charged:
        if role == "load":
            row.load_region = row.load_region or name
        elif charger.usages:
            row.region = row.region or name
    row.charged = charger.sums(charged)
    for region, new in row.charged.items():
        if region in charger.usages:
            charger.usages[region].symbol_bytes += new


def _unread(elf: Elf) -> Iterator[Finding]:
    """That names stay mangled, once, when the library that reads them is missing."""
    if not can_demangle() and any(is_mangled(symbol.name) for symbol in elf.symbols):
        what = 'C++ and Rust names stay mangled: pip install "colibri-sdk[names]" to read them'
        yield Finding("note", "names", what, elf.path.name)


def _remarks(elf: Elf) -> Iterator[Finding]:
    if elf.detail == "segments":
        yield Finding(
            "note",
            "detail",
            ("no section headers: reported by segment, without sections and symbols"),
            elf.path.name,
        )
    elif elf.detail == "areas":
        yield Finding(
            "note",
            "detail",
            "an image has no sections and no symbols: reported by area, forbidden symbols cannot "
            "be told",
            elf.path.name,
        )
    elif elf.detail == "sections":
        yield Finding(
            "note",
            "detail",
            ("stripped: reported by section, symbols and forbidden symbols cannot be told"),
            elf.path.name,
        )
    commons = [s for s in elf.symbols if s.place == "COMMON"]
    if commons:
        yield Finding(
            "note",
            "common",
            (
                f"{len(commons):,} common symbols ({sum(s.size for s in commons):,} B) have no "
                "memory before the link: not counted"
            ),
            commons[0].name,
            sum(s.size for s in commons),
        )
