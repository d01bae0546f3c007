# SPDX-License-Identifier: Apache-2.0
"""The result of a check: rows, which every report shows, and one verdict over them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from colibri.errors import EXIT_BAD_INPUT, EXIT_DOES_NOT_FIT, EXIT_OK
from colibri.fit.budgets import Figure

STATUSES = ("ok", "info", "skipped", "warning", "unknown", "over")
#: One word for a result: over wins, because no missing answer could change it.
_WORDS = (("over", "over"), ("unknown", "unknown"))
_EXITS = {"fits": EXIT_OK, "over": EXIT_DOES_NOT_FIT, "unknown": EXIT_BAD_INPUT}


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that was checked, or a figure that nothing holds.

    Attributes
    ----------
    board, step, name
        Where it belongs; `name` is stable, for scripts. `board` is empty for the project itself.
    status : str
        ok, info (a figure without a mark), warning, over, unknown (could not be told), skipped (a
        step before it failed).
    detail : str
        What is wrong, or where the figure comes from.
    """

    board: str
    step: str
    name: str
    what: str
    status: str
    detail: str = ""
    value: float | None = None
    unit: str = ""
    kind: str = ""
    warn: float | None = None
    limit: float | None = None
    capacity: float | None = None
    at_least: bool = False

    @classmethod
    def of(cls, board: str, step: str, figure: Figure, detail: str = "") -> Row:
        """A figure with its marks; the detail says what is wrong when something is."""
        finding = figure.finding()
        status = figure.status if figure.held else "info"
        if figure.capacity is not None and (figure.value or 0) > figure.capacity:
            status = "over"
        return cls(
            board, step, figure.name, figure.what, status,
            "; ".join(part for part in (finding.what if finding else "", detail) if part),
            figure.value, figure.unit, figure.kind, figure.warn, figure.limit, figure.capacity,
            figure.at_least,
        )  # fmt: skip

    def shown(self, number: float | None) -> str:
        """A number of this row for people; empty for None."""
        if number is None:
            return ""
        return Figure(self.name, self.what, None, "", self.unit).shown(number)

    @property
    def bound(self) -> str:
        """What the value is held to, for people."""
        sign = "≥ " if self.at_least else "≤ "
        if self.limit is not None:
            return sign + self.shown(self.limit)
        if self.warn is not None:
            return f"{sign}{self.shown(self.warn)} (warns)"
        return f"of {self.shown(self.capacity)}" if self.capacity is not None else ""


@dataclass(slots=True)
class CheckResult:
    """All rows of a check, and what reports show beside them.

    ``left_out`` are boards of the project that were not asked for.
    """

    project: str
    file: Path
    rows: list[Row] = field(default_factory=list)
    boards: list[BoardResult] = field(default_factory=list)
    left_out: frozenset[str] = frozenset()

    @property
    def verdict(self) -> str:
        """fits, over or unknown."""
        return word_of(self.rows)

    @property
    def exit_code(self) -> int:
        return _EXITS[self.verdict]

    def of_board(self, name: str) -> list[Row]:
        return [row for row in self.rows if row.board == name]


@dataclass(slots=True)
class BoardResult:
    """What the steps of one board gave; None where a step did not run."""

    name: str
    board: Any
    image: Path | None = None
    plan: Any = None
    firmware: Any = None
    size: Any = None
    reports: dict[str, Any] = field(default_factory=dict)


def word_of(rows: Iterable[Row]) -> str:
    """One word for rows: fits, over or unknown."""
    found = {row.status for row in rows}
    return next((word for status, word in _WORDS if status in found), "fits")


def counts(rows: Iterable[Row]) -> dict[str, int]:
    """Rows by status, in the order of `STATUSES`."""
    found = dict.fromkeys(STATUSES, 0)
    for row in rows:
        found[row.status] += 1
    return found
