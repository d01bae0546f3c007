# SPDX-License-Identifier: Apache-2.0
"""A check as Markdown, for the summary of a CI job."""

from __future__ import annotations

from collections.abc import Iterator

from colibri.check.rows import CheckResult, Row, word_of
from colibri.check.table import WORDS, summary, value
from colibri.cli.common import printable

_MARKS = {
    "ok": "✅", "info": "", "skipped": "⏭️ skipped", "warning": "⚠️ warning",
    "unknown": "❓ unknown", "over": "❌ over",
}  # fmt: skip


def markdown(result: CheckResult) -> str:
    """The summary as text: verdict, what is wrong, then each board's rows folded away."""
    return "\n".join(_lines(result)) + "\n"


def _lines(result: CheckResult) -> Iterator[str]:
    yield f"## {_cell(result.project)}: {WORDS[result.verdict]}"
    yield ""
    yield summary(result)
    wrong = [row for row in result.rows if row.status in ("over", "unknown", "warning")]
    if wrong:
        yield from ("", "| board | step | what | value | held to | |", "|---|---|---|--:|--:|---|")
        yield from (_row(row, row.board, row.detail) for row in wrong)
    for name in dict.fromkeys(row.board for row in result.rows):
        rows = result.of_board(name)
        yield from ("", f"<details><summary>{_cell(name)}: {WORDS[word_of(rows)]}</summary>", "")
        yield from ("| step | what | value | held to | |", "|---|---|--:|--:|---|")
        yield from (_row(row) for row in rows)
        yield from ("", "</details>")
    if any(row.kind == "predicted" for row in result.rows):
        yield from ("", "`~` is predicted from figures of the board, not measured.")


def _row(row: Row, board: str | None = None, detail: str = "") -> str:
    cells = [row.step, detail or row.what, value(row), row.bound, _MARKS[row.status]]
    cells = cells if board is None else [board, *cells]
    return f"| {' | '.join(_cell(cell) for cell in cells)} |"


_OWN = str.maketrans({"<": "&lt;", ">": "&gt;", **{c: f"\\{c}" for c in "\\`*_[]|"}})


def _cell(text: str) -> str:
    """One line, with what Markdown or HTML would take for its own written as text."""
    return " ".join(printable(text).split()).translate(_OWN)
