# SPDX-License-Identifier: Apache-2.0
"""Figures, and the budgets that they are held to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from colibri.fit.attribution import Attribution
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

    @property
    def status(self) -> str:
        """ok, warning, over, or unknown where a budget holds a number that is not known."""
        if self.value is None:
            return "ok" if self.warn is None and self.limit is None else "unknown"
        if self._misses(self.limit):
            return "over"
        return "warning" if self._misses(self.warn) else "ok"

    def _misses(self, mark: float | None) -> bool:
        if mark is None or self.value is None:
            return False
        return self.value < mark if self.at_least else self.value > mark

    def finding(self) -> Finding | None:
        """What there is to say of it."""
        status = self.status
        if status == "ok":
            return None
        if status == "unknown":
            what = f"{self.what} is not known, so {self.budget} cannot be held to it"
            return Finding("error", "budget-unknown", what, self.name)
        mark, word = (self.limit, "limit") if status == "over" else (self.warn, "warning mark")
        assert mark is not None
        assert self.value is not None
        by = self._shown(abs(self.value - mark))
        than = f"{by} {'less' if self.at_least else 'more'} than {self.budget} {word}"
        what = f"{self.what}: {self._shown(self.value)}, {than} = {self._shown(mark)}"
        level, code = ("error", "budget") if status == "over" else ("warning", "budget-warn")
        return Finding(level, code, what, self.name, _whole(self.value), _whole(mark))

    def _shown(self, number: float) -> str:
        return f"{number:,.0f} B" if self.unit == "B" else f"{number:,.4g} {self.unit}"


def _whole(number: float) -> int | None:
    return int(number) if number == int(number) else None


def figures_of(
    placed: MemoryMap, owners: Attribution, budgets: Any = None, groups: Iterable[str] = ()
) -> list[Figure]:
    """Every figure of a placed ELF, with the marks that a board's budgets set.

    Groups that own nothing have 0 bytes; those that only a budget names are not known.
    """
    figures = [
        figure
        for usage in placed.usages
        if usage.region.capacity is not None
        for figure in _of_region(usage, budgets)
    ]
    shares = dict.fromkeys(groups, 0)
    shares |= {share.name: share.total for share in owners.groups if share.name in shares}
    named = budgets.groups if budgets is not None else {}
    for name in dict.fromkeys([*shares, *named]):
        marks = _marks(named.get(name))
        figures.append(
            Figure(f"group.{name}", f"group {name}", shares.get(name), f"budgets.groups.{name}",
                   warn=marks[0], limit=marks[1])
        )  # fmt: skip
    code = placed.totals["text"] + placed.totals["rodata"]
    for name, what, value in (
        ("image", "the model image", placed.image_bytes),
        ("stack", "the reserved stack", placed.stack_bytes),
        ("code", "code and constants", code),
    ):
        warn, limit = _marks(getattr(budgets, f"{name}_bytes", None))
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


def _marks(budget: Any) -> tuple[float | None, float | None]:
    return (None, None) if budget is None else (budget.warn, budget.limit)


def budget_findings(figures: Iterable[Figure]) -> Iterator[Finding]:
    """What is over a mark, or not known where a mark is set."""
    for figure in figures:
        finding = figure.finding()
        if finding is not None:
            yield finding


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
