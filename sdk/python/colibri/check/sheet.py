# SPDX-License-Identifier: Apache-2.0
"""The rows of one board while they are written."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from colibri.boards import Budgets
from colibri.check.rows import Row
from colibri.errors import EXIT_DOES_NOT_FIT, TRACEBACK, ColibriError, internal_error
from colibri.fit.budgets import Figure

#: Figures with a budget of their own, and its key where it is another.
FIGURES = (
    "image", "arena", "code", "stack", "stack_depth", "tok_s", "first_token_s", "deadline_s"
)  # fmt: skip
BUDGETS = {name: f"{name}_bytes" for name in ("image", "arena", "code", "stack")}
_FIRMWARE = ("region", "span", "group", "code", "stack", "stack_depth")
_SPEED = ("emulate", "emulate = ['native'] with max_new_tokens above 1")
#: The step that gives a figure, and what makes it run.
_GIVEN_BY = {
    "image": ("pack", "a [model]"), "arena": ("plan", "a [model]"),
    **dict.fromkeys(_FIRMWARE, ("size", "build or elf")),
    **dict.fromkeys(("tok_s", "first_token_s", "deadline_s"), _SPEED),
}  # fmt: skip


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
        except Exception as error:  # other boards' rows and all reports are worth more than a trace
            if os.environ.get(TRACEBACK):
                traceback.print_exception(error)
            self.say(step, name, name, "unknown", internal_error(error))

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

    def missing(self, asked: Mapping[str, bool], left_out: Collection[str] = ()) -> None:
        """Figures that the project file holds and no step gave: unknown, not silently fine.

        `asked` says of each whether it stands in this board's table. What all boards are held to is
        skipped in steps of `left_out`: turned off here, and run for another board.
        """
        given = {row.name for row in self.rows if row.status != "skipped"}
        given |= {name.replace("planned.", "region.", 1) for name in given}  # of the same budget
        failed = {row.step for row in self.rows if row.status in ("skipped", "unknown", "over")}
        for name, own in asked.items():
            if name in given:
                continue
            kind, _, key = name.partition(".")
            budget = f"budgets.{kind}s.{key}" if key else f"budgets.{BUDGETS.get(name, name)}"
            step, way = _GIVEN_BY[kind]
            status = "skipped"
            if step in failed:
                detail = f"a step before it failed: {step}"
            elif step in left_out and not own:
                detail = f"{step} is turned off for this board"
            else:
                status, detail = "unknown", f"{budget}: no step gave this figure; {way} would"
            self.say("budget", name, budget, status, detail)
