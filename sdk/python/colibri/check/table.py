# SPDX-License-Identifier: Apache-2.0
"""A check as a table in the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from colibri.check.rows import STATUSES, CheckResult, Row, counts
from colibri.cli.common import table

STYLES = {
    "ok": "green", "info": "dim", "skipped": "dim", "warning": "yellow",
    "unknown": "bold yellow", "over": "bold red",
}  # fmt: skip
WORDS = {"fits": "fits", "over": "does not fit", "unknown": "could not be told"}
_WORD_STYLES = {"fits": "bold green", "over": "bold red", "unknown": "bold yellow"}


def tables(result: CheckResult) -> Iterator[RenderableType]:
    """The rows, then what is wrong in full, then the verdict."""
    yield _rows(result)
    for row in result.rows:
        if row.status in ("over", "unknown", "warning") and row.detail:
            where = f"{row.board}, {row.step}: " if row.board else f"{row.step}: "
            yield Text.assemble((f"{row.status:8}", STYLES[row.status]), where, row.detail)
    word = result.verdict
    said = f": {result.project}, {summary(result)}"
    yield Text.assemble((WORDS[word], _WORD_STYLES[word]), said)


def _rows(result: CheckResult) -> Table:
    made = table(f"{result.project}: {result.file}", "step", "what", ">value", ">held to", "")
    before = ("", "")
    for row in result.rows:
        if row.board != before[0]:
            made.add_row("", Text(row.board or result.project, style="bold"), "", "", "")
        step = row.step if (row.board, row.step) != before else ""
        before = (row.board, row.step)
        status = Text(row.status if row.status != "info" else "", style=STYLES[row.status])
        made.add_row(Text(step), Text(row.what), value(row), row.bound, status)
    return made


def value(row: Row) -> str:
    """The figure for people; what was predicted is marked."""
    if row.value is None:
        return ""
    return ("~" if row.kind == "predicted" else "") + row.shown(row.value)


def summary(result: CheckResult) -> str:
    """How many boards, and rows by status: ``2 boards, 1 over, 12 ok``."""
    found = counts(result.rows)
    boards = len(result.boards)
    parts = [f"{boards} board" + "s" * (boards != 1)]
    parts += [f"{found[s]} {s}" for s in reversed(STATUSES) if found[s] and s != "info"]
    return ", ".join(parts)
