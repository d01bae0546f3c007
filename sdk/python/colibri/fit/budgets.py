# SPDX-License-Identifier: Apache-2.0
"""Figures, and the budgets that they are held to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from colibri.fit.attribution import Attribution, untold_owners
from colibri.fit.elf import Elf
from colibri.fit.findings import Finding
from colibri.fit.memory_map import MemoryMap, Usage


@dataclass(frozen=True, slots=True)
class Figure:
    """A number that a budget may hold.

    Attributes
    ----------
    name : str
        For files and scripts: ``region.SRAM``, ``group.drivers``, ``code``, ``tok_s``.
    what : str
        For people.
    value : float, optional
        None: not known.
    kind : str
        counted, planned or predicted.
    budget : str
        Where its marks stand in a file.
    warn, limit : float, optional
        The marks; at most, or `at_least`.
    capacity : int, optional
        What there is of it.
    interval : (float, float), optional
        Of a prediction. Its likely value decides; an end beyond the limit is a warning.
    untold : str
        Why a mark that is set cannot be held; empty: it can.
    """

    name: str
    what: str
    value: float | None
    budget: str
    unit: str = "B"
    kind: str = "counted"
    warn: float | None = None
    limit: float | None = None
    capacity: int | None = None
    at_least: bool = False
    interval: tuple[float, float] | None = None
    untold: str = ""

    @property
    def status(self) -> str:
        """ok, warning, over, or unknown where a budget holds a number that is not known."""
        if self._misses(self.limit, self.value):
            return "over"
        if self.value is None or self.untold:
            return "unknown" if self.held else "ok"
        missed = self._misses(self.warn, self.value) or self._misses(self.limit, self._worst)
        return "warning" if missed else "ok"

    @property
    def held(self) -> bool:
        """Whether a mark is set."""
        return self.warn is not None or self.limit is not None or bool(self.untold)

    @property
    def _worst(self) -> float | None:
        """The interval's end on the wrong side."""
        if self.interval is None:
            return self.value
        return min(self.interval) if self.at_least else max(self.interval)

    def _misses(self, mark: float | None, value: float | None) -> bool:
        if mark is None or value is None:
            return False
        return value < mark if self.at_least else value > mark

    def finding(self) -> Finding | None:
        """What there is to say of it."""
        status = self.status
        if status == "ok":
            return None
        if status == "unknown":
            why = f": {self.untold}" if self.untold else " is not known"
            what = f"{self.what}{why}, so {self.budget} cannot be held to it"
            return Finding("error", "budget-unknown", what, self.name)
        assert self.value is not None
        level, code = ("error", "budget") if status == "over" else ("warning", "budget-warn")
        mark, word = (self.limit, "limit") if status == "over" else (self.warn, "warning mark")
        if not self._misses(mark, self.value):
            mark, word = self.limit, "limit at the interval's end"
        assert mark is not None
        assert self._worst is not None
        value = self._worst if word.startswith("limit at") else self.value
        by = self.shown(abs(value - mark))
        than = f"{by} {'less' if self.at_least else 'more'} than {self.budget} {word}"
        what = f"{self.what}: {self.shown(value)}, {than} = {self.shown(mark)}"
        return Finding(level, code, what, self.name, _whole(value), _whole(mark))

    def shown(self, number: float) -> str:
        """A number as it stands in a report, with its unit."""
        return (
            f"{number:,.0f} {self.unit}".rstrip()
            if self.unit in ("B", "")
            else (f"{number:,.4g} {self.unit}")
        )


def _whole(number: float) -> int | None:
    return int(number) if number == int(number) else None


def figures_of(
    placed: MemoryMap,
    owners: Attribution,
    budgets: Any = None,
    groups: Mapping[str, Sequence[str]] | None = None,
) -> list[Figure]:
    """Every figure of a placed ELF, with the marks that a board's budgets set.

    Groups that own nothing have 0 bytes; those that only a budget names are not known, nor are
    those whose patterns name what this input does not tell.
    """
    figures = [
        figure
        for usage in placed.usages
        if usage.region.capacity is not None
        for figure in _of_region(usage, budgets)
    ]
    groups = groups or {}
    shares: dict[str, int | None] = dict.fromkeys(groups, 0)
    shares |= {share.name: share.total for share in owners.groups if share.name in shares}
    named = budgets.groups if budgets is not None else {}
    for name in dict.fromkeys([*shares, *named]):
        marks = _marks(named.get(name))
        size = shares.get(name)
        untold = "" if size or marks == (None, None) else untold_group(placed.elf, groups, name)
        figures.append(
            Figure(f"group.{name}", f"group {name}", None if untold else size,
                   f"budgets.groups.{name}", warn=marks[0], limit=marks[1], untold=untold)
        )  # fmt: skip
    code: int | None = placed.totals["text"] + placed.totals["rodata"]
    if placed.elf.detail == "segments":
        code = None
    for name, what, value in (
        ("image", "the model image", placed.image_bytes),
        ("stack", "the reserved stack", placed.stack_bytes),
        ("code", "code and constants", code),
    ):
        warn, limit = budgets.marks(f"{name}_bytes") if budgets is not None else (None, None)
        figures.append(Figure(name, what, value, f"budgets.{name}_bytes", warn=warn, limit=limit))
    return figures


def _of_region(usage: Usage, budgets: Any) -> Iterator[Figure]:
    name, capacity = usage.region.name, usage.region.capacity
    for table, figure, what, value in (
        ("regions", f"region.{name}", name, usage.used),
        ("spans", f"span.{name}", f"flat file of {name}", usage.load_span),
    ):
        budget = getattr(budgets, table).get(name) if budgets is not None else None
        if table == "spans" and budget is None and not usage.load_span:
            continue
        warn, limit = budget.marks(capacity) if budget is not None else (None, None)
        yield Figure(figure, what, value, f"budgets.{table}.{name}",
                     warn=warn, limit=limit, capacity=capacity)  # fmt: skip


def untold_group(elf: Elf, groups: Mapping[str, Sequence[str]], name: str) -> str:
    """Why a group that owns nothing may own something; empty when it is known to own nothing."""
    return next((why for p in groups.get(name, ()) if (why := untold_owners(elf, p))), "")


def _marks(budget: Any) -> tuple[float | None, float | None]:
    return (None, None) if budget is None else (budget.warn, budget.limit)


def budget_findings(figures: Iterable[Figure]) -> Iterator[Finding]:
    """What is over a mark, or not known where a mark is set."""
    for figure in figures:
        finding = figure.finding()
        if finding is not None:
            yield finding


def empty_groups(owners: Attribution, groups: Mapping[str, Sequence[str]]) -> Iterator[Finding]:
    """Groups that own nothing: most likely patterns that are not what is meant."""
    owning = {share.name for share in owners.groups if share.total}
    for name, patterns in groups.items():
        if name not in owning:
            listed = ", ".join(repr(pattern) for pattern in patterns[:4])
            what = f"no owner of bytes matches {listed or 'an empty list of patterns'}"
            yield Finding("warning", "group-empty", what, name)


def overflow_findings(placed: MemoryMap) -> Iterator[Finding]:
    """Regions that do not hold what lies in them."""
    for usage in placed.usages:
        region, capacity = usage.region, usage.region.capacity
        if capacity is None or not usage.overflow:
            continue
        last = max(usage.rows, key=lambda row: row.address + row.bytes)
        what = (
            f"{region.name} overflows by {usage.overflow:,} B (last: {last.name}); it has "
            f"{capacity:,} B"
        )
        yield Finding("error", "overflow", what, region.name, usage.used, capacity)
