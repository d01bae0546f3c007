# SPDX-License-Identifier: Apache-2.0
"""What a report is made of: a page of sections, and in them bars, pictures, tables, findings.

Nothing here knows HTML.  `colibri.report.html` writes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from colibri.fit.findings import Finding
from colibri.report.bars import Bar
from colibri.report.treemap import Node


class Address(int):
    """A number that is shown as an address."""


class Change(int):
    """A number that is shown with its sign."""


Cell = str | int | float | None

#: What a verdict is called; other words are shown as they are.
WORDS = {"fits": "fits", "over": "does not fit", "unknown": "no verdict"}


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under named columns; a column named ``>x`` holds numbers and is right-aligned.

    None is shown as n/a.  Of more than `html.MOST_ROWS` rows the first are written, and a line
    says how many are not: order them so that those matter least.
    """

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Cell]]
    note: str = ""

    def without_empty(self, most: int) -> Table:
        """The first `most` rows, without the columns in which all of them say nothing."""
        first = self.rows[:most]
        kept = [i for i in range(len(self.columns)) if any(row[i] != "" for row in first)]
        columns = tuple(self.columns[i] for i in kept)
        return Table(self.title, columns, [[row[i] for i in kept] for row in first], self.note)


@dataclass(frozen=True, slots=True)
class VerdictRow:
    """One figure and what it is held to.

    ``status`` is ok, warning, over, unknown, or another word; ``kind`` is what the value is:
    counted, planned, predicted or declared; ``detail`` says what is wrong.
    """

    board: str
    step: str
    figure: str
    value: Cell
    limit: Cell
    status: str
    unit: str = ""
    kind: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """One result: a firmware, a plan, an emulation, or all that is known of a board.

    Parameters
    ----------
    title : str
        What it is about.
    status : str
        fits, over, unknown; or another word.
    summary : str
        One sentence beside it.
    facts : sequence of (str, str)
        What it was made from.
    bars, trees, tables, findings
        What is shown, in this order.
    rule : str
        What is counted.
    data : mapping, optional
        The result as the command's ``--json`` has it: becomes part of the page.
    """

    title: str
    status: str = ""
    summary: str = ""
    facts: Sequence[tuple[str, str]] = ()
    bars: Sequence[Bar] = ()
    trees: Sequence[Node] = ()
    tables: Sequence[Table] = ()
    findings: Sequence[Finding] = ()
    rule: str = ""
    data: Mapping[str, Any] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Page:
    """A report.

    Parameters
    ----------
    title : str
        Its heading.
    status, summary : str
        The verdict over all, and one sentence.
    sections : sequence of Section
        One for each result or board.
    rows : sequence of VerdictRow
        The first table: every figure that was held against a limit.
    facts : sequence of (str, str)
        What all of it was made from.
    """

    title: str
    status: str
    sections: Sequence[Section]
    summary: str = ""
    rows: Sequence[VerdictRow] = ()
    facts: Sequence[tuple[str, str]] = ()

    @classmethod
    def of(cls, section: Section, *more: Section, rows: Sequence[VerdictRow] = ()) -> Page:
        """A page of one result, with what belongs to it."""
        return cls(section.title, section.status, (section, *more), section.summary, rows)
