# SPDX-License-Identifier: Apache-2.0
"""A check against the figures on record (`ratchet`): rows for what got worse."""

from __future__ import annotations

from colibri.check.ratchet import Change, Figure, Record, Value, compare, record
from colibri.check.ratchet_file import load, save
from colibri.check.rows import CheckResult, Row
from colibri.errors import ColibriError
from colibri.project.loader import LoadedProject

_STEP = "record"
_UNSURE = frozenset({"unknown", "skipped"})


def hold(result: CheckResult, loaded: LoadedProject, recording: bool, reason: str) -> None:
    """Adds rows to `result`; writes the file when `recording`.

    Raises
    ------
    RatchetError
        While recording: something got worse without a reason, or the file cannot be written.
    """
    ratchet = loaded.project.ratchet
    if ratchet is None:
        return
    path, tolerance = loaded.path(ratchet.file), ratchet.tolerance
    if recording:
        stored = load(path, missing_ok=True)
        now = figures_of(result, stored)
        written = save(path, record(now, stored, reason, tolerances=tolerance), stored)
        said = f"{len(now)} figures, in {ratchet.file}"
        _row(result, "recorded", said if written else f"{said}: nothing moved", "ok")
        return
    try:
        stored = load(path)
        changes = compare(figures_of(result, stored), stored, tolerance)
    except ColibriError as error:
        _row(result, "file", f"figures in {ratchet.file}", "unknown", str(error))
        return
    for change in changes:
        if change.worse:
            result.rows.append(_worse(change))
    better = sum(change.better for change in changes)
    new = sum(change.status == "new" for change in changes)
    unknown = sum(change.status == "unknown" for change in changes)
    said = f"{len(changes)} figures against {ratchet.file}: {better} better, {new} new"
    said += f", {unknown} not known this time" if unknown else ""
    _row(result, "compared", said, "info")
    order = [one.name for one in result.boards]
    result.rows.sort(key=lambda row: order.index(row.board) if row.board in order else len(order))


def figures_of(result: CheckResult, stored: Record) -> dict[Figure, Value | None]:
    """Every figure of the rows; None for those on record that this check could not give."""
    now: dict[Figure, Value | None] = {
        (row.board, row.name): _rounded(row.value) for row in result.rows if row.value is not None
    }
    boards = {one.name for one in result.boards}
    unsure = {row.board for row in result.rows if row.status in _UNSURE}
    for board, name in stored.figures:
        left_out = board in result.left_out or (board in boards and board in unsure)
        if left_out and (board, name) not in now:
            now[board, name] = None
    return now


def _rounded(value: Value) -> Value:
    """Predictions with six digits: more would move with each change of a compiler."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _worse(change: Change) -> Row:
    board, name = change.figure
    what, detail = f"{name}, as on record", "run with --record --reason TEXT to accept it"
    if change.now is None:
        said = f"{name}: {_text(change.before)} on record, gone"
        return Row(board, _STEP, name, what, "over", f"{said}; {detail}")
    assert change.before is not None
    by = change.now - change.before
    sign = "+" if by > 0 else "-"
    said = f"{name}: {_text(change.before)} on record, {sign}{_text(abs(by))} now"
    return Row(board, _STEP, name, what, "over", f"{said}; {detail}")


def _text(value: Value | None) -> str:
    return f"{value:,.6g}" if isinstance(value, float) else f"{value:,}"


def _row(result: CheckResult, name: str, what: str, status: str, detail: str = "") -> None:
    result.rows.append(Row("", _STEP, name, what, status, detail))
