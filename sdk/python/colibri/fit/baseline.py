# SPDX-License-Identifier: Apache-2.0
"""What of a run can be compared, taken from a verdict (from its JSON: ``stored``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from colibri.fit.format_owners import TABLES
from colibri.fit.memory_map import Row, Usage
from colibri.fit.pairing import Item
from colibri.fit.stack.analysis import StackReport
from colibri.fit.verdict import Verdict

#: What is compared of each region; ``used`` is its headline.
FIGURES = ("used", "padding", "load_span", "load_bytes", "unattributed", "overflow")
TOTALS = ("text", "rodata", "data", "bss")
STACK_SUMS = ("bytes", "thread_bytes", "interrupt_bytes")
#: Of which ``detail`` there are symbols, or the input sections of a map in their place.
SYMBOL_DETAIL = ("symbols", "parts")
#: Kinds of rows that are sections, or stand for them.
SECTIONS = ("section", "segment")
DERIVED = "no board given"

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Area:
    """One region: its figures, and the bytes of its rows by (kind, name); ``rows`` may be None."""

    figures: Mapping[str, int]
    rows: Mapping[Key, int] | None = None


@dataclass(frozen=True, slots=True)
class Items:
    """A table; ``complete``: what is not in it does not exist."""

    rows: list[Item]
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Stack:
    """Bounds in bytes with their completeness, by name; ``sums`` are of the whole report."""

    method: str | None
    sums: Mapping[str, int]
    complete: bool | None
    entries: Items
    open: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The numbers of one run that can be compared; None: it does not say.

    ``detail`` is that of :class:`colibri.fit.elf.Elf`; ``regions`` of an object are empty, and its
    symbols are charged to the groups of its totals.
    """

    source: str
    detail: str | None = None
    board: str | None = None
    board_known: bool = False
    totals: Mapping[str, int] = field(default_factory=dict)
    regions: Mapping[str, Area] | None = None
    sections: Items | None = None
    symbols: Items | None = None
    owners: Mapping[str, Items] = field(default_factory=dict)
    stack: Stack | None = None
    notes: tuple[str, ...] = ()

    @property
    def asks_no_board(self) -> bool:
        """Regions are what is used, so that one which is not there has nothing in it."""
        return self.board_known and self.board is None and self.regions is not None


# -- from a verdict -------------------------------------------------------------------------------


def snapshot(verdict: Verdict) -> Snapshot:
    """The numbers of a verdict."""
    placed, elf = verdict.map, verdict.elf
    derived = any(usage.region.kind == DERIVED for usage in placed.usages)
    symbols = [
        Item(
            name=s.name,
            size=s.size,
            by_region=s.charged,
            region=None if derived else s.region,
            section=elf.sections[s.section].name,
            library=s.library,
            object=s.object,
            source=s.source,
        )
        for s in verdict.symbols
    ]
    owners = {name: _shares(getattr(verdict.attribution, name)) for name in TABLES}
    totals = {
        **placed.totals,
        "image": placed.image_bytes,
        "stack": placed.stack_bytes,
        "outside": sum(row.bytes for row in placed.outside),
        "unattributed": verdict.unattributed,
    }
    rows = [(None if derived else u.region.name, u.region.name, r) for u, r in _rows(verdict)]
    rows += [(None, "", row) for row in placed.outside]
    return Snapshot(
        source=str(elf.path),
        detail=elf.detail,
        board=placed.board,
        board_known=True,
        totals=totals,
        regions={usage.region.name: _area(usage) for usage in placed.usages},
        sections=Items(section_items(rows)) if placed.usages else None,
        symbols=Items(symbols) if elf.detail in SYMBOL_DETAIL else None,
        owners={name: items for name, items in owners.items() if items.rows},
        stack=_stack(verdict.stack) if verdict.stack is not None else None,
    )


def _rows(verdict: Verdict) -> Iterable[tuple[Usage, Row]]:
    return ((usage, row) for usage in verdict.map.usages for row in usage.rows)


def _area(usage: Usage) -> Area:
    rows = summed(((row.kind, row.name), row.bytes) for row in usage.rows)
    return Area({name: getattr(usage, name) for name in FIGURES}, rows)


def _shares(rows: Iterable[Any]) -> Items:
    return Items([Item(s.name, s.total, by_region=s.bytes, library=s.library) for s in rows])


def section_items(rows: Iterable[tuple[str | None, str, Row]]) -> list[Item]:
    """Sections by name, from (region to show, region that is charged, row)."""
    sizes: dict[str, int] = {}
    charged: dict[str, dict[str, int]] = {}
    homes: dict[str, str | None] = {}
    for shown, region, row in rows:
        if row.kind not in SECTIONS:
            continue
        part = charged.setdefault(row.name, {})
        part[region] = part.get(region, 0) + row.bytes
        runs = row.role != "load"
        sizes[row.name] = sizes.get(row.name, 0) + (row.bytes if runs else 0)
        if runs:
            homes.setdefault(row.name, shown)
    return [
        Item(name, size, by_region=charged[name], region=homes.get(name))
        for name, size in sizes.items()
    ]


def _stack(report: StackReport) -> Stack:
    entries = [Item(e.name, e.bound.bytes, section=e.role) for e in report.entries]
    sums = {name: getattr(report, name) for name in STACK_SUMS}
    open_ = frozenset(e.name for e in report.entries if not e.bound.complete)
    return Stack(report.method, sums, report.complete, Items(entries), open_)


def summed(pairs: Iterable[tuple[Key, int]]) -> dict[Key, int]:
    """Rows of the same kind and name, added up."""
    sums: dict[Key, int] = {}
    for key, size in pairs:
        sums[key] = sums.get(key, 0) + size
    return sums
