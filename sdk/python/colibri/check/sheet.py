# SPDX-License-Identifier: Apache-2.0
"""The rows of one board while they are written."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from colibri.boards import Budgets
from colibri.check.rows import Row
from colibri.errors import EXIT_DOES_NOT_FIT, ColibriError
from colibri.fit.budgets import Figure

#: Figures with a budget of their own, and its key where it is another.
FIGURES = (
    "image", "arena", "code", "stack", "stack_depth", "tok_s", "first_token_s", "deadline_s"
)  # fmt: skip
BUDGETS = {name: f"{name}_bytes" for name in ("image", "arena", "code", "stack")}


@dataclass
class Sheet:
    """Rows of a board, and the budgets that its figures are held to."""

    board: str
    budgets: Budgets
    rows: list[Row] = field(default_factory=list)

    def step(self, step: str, name: str, needs: object, action: Callable[[], None]) -> None:
        """Does a step; its error becomes a row, and without what it needs it is skipped."""
        if not needs:
            self.say(step, name, name, "skipped", "a step before it failed")
            return
        try:
            action()
        except (ColibriError, OSError) as error:
            fits_not = isinstance(error, ColibriError) and error.exit_code == EXIT_DOES_NOT_FIT
            self.say(step, name, name, "over" if fits_not else "unknown", str(error))

    def say(self, step: str, name: str, what: str, status: str, detail: str = "") -> None:
        """A row without a figure."""
        self.rows.append(Row(self.board, step, name, what, status, detail))

    def figure(self, step: str, figure: Figure, detail: str = "") -> None:
        """A row of a figure that has its marks."""
        self.rows.append(Row.of(self.board, step, figure, detail))

    def held(
        self,
        step: str,
        name: str,
        what: str,
        value: float | None,
        budget: str,
        *,
        unit: str = "B",
        kind: str = "counted",
        at_least: bool = False,
        interval: tuple[float, float] | None = None,
        detail: str = "",
    ) -> None:
        """A row of a figure that `budget` holds."""
        warn, limit = self.budgets.marks(budget)
        figure = Figure(name, what, value, f"budgets.{budget}", unit, kind, warn, limit,
                        at_least=at_least, interval=interval)  # fmt: skip
        self.figure(step, figure, detail)

    def missing(self, asked: Collection[str]) -> None:
        """Budgets of the project file whose figure no step gave: unknown, not silently fine."""
        given = {row.name for row in self.rows if row.status != "skipped"}
        for name in FIGURES:
            budget = BUDGETS.get(name, name)
            if budget in asked and name not in given:
                self.say("budget", name, f"budgets.{budget}", "unknown", "no step gave its figure")
