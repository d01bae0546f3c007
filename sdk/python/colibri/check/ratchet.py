# SPDX-License-Identifier: Apache-2.0
"""Figures may not get worse than those on record without a reason.

A figure got worse when it grew by more than its tolerance (tokens per second: shrank), or is gone.
Smaller steps into the wrong direction stay unrecorded, so that many of them do not add up unseen;
a reason takes them over with all others. Improvements and new figures need none. A figure that is
not known this time (None) keeps the value on record. The file: ``ratchet_file``.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from fractions import Fraction
from typing import Any

from colibri.boards.problems import shown
from colibri.errors import RatchetError
from colibri.units import parse_percent, parse_size, percent_of

#: Figures of which more is better, also as a part of a name between dots.
HIGHER_IS_BETTER = frozenset(("tok_s",))
_LARGEST = 2**64 - 1
_LONGEST = 500
_TOLD = 5

#: Board and name of a figure.
Figure = tuple[str, str]
Value = int | float
#: Patterns of names (shell style) with bytes, a size such as "1 KiB" or a share such as "2 %".
Tolerances = Mapping[str, str | int]


@dataclass(frozen=True, slots=True)
class Entry:
    """One change of the record: values before and after by "board name"; None: none there."""

    date: str
    reason: str
    changes: Mapping[str, tuple[Value | None, Value | None]]


@dataclass(frozen=True, slots=True)
class Record:
    """Figures on record, and how they came about, oldest change first."""

    figures: Mapping[Figure, Value] = field(default_factory=dict)
    history: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """One figure on record and now.

    ``status`` is same, grown, shrunk, new, gone, or unknown when there is no value now; ``worse``
    says that a reason is needed.
    """

    figure: Figure
    before: Value | None
    now: Value | None
    status: str
    worse: bool = False

    @property
    def better(self) -> bool:
        """Whether it moved, and in the right direction."""
        wanted = "grown" if higher_is_better(self.figure[1]) else "shrunk"
        return self.status == wanted


def higher_is_better(name: str) -> bool:
    """Whether more of a figure is better."""
    return not HIGHER_IS_BETTER.isdisjoint(name.split("."))


# -- comparing ------------------------------------------------------------------------------------


def compare(
    now: Mapping[Figure, Value | None], stored: Record, tolerances: Tolerances | None = None
) -> list[Change]:
    """Hold figures against those on record.

    Parameters
    ----------
    now : mapping
        Value by (board, name), bytes or another unit; None where it is not known this time, as of
        a board that was not checked. What is on record and not in `now` at all is gone.
    stored : Record
        The record.
    tolerances : mapping, optional
        By how much a figure may get worse, by pattern of its name; the first that matches holds,
        without one it is nothing. A share is of the value on record.

    Returns
    -------
    list of Change
        Every figure of either, sorted.

    Raises
    ------
    RatchetError, UnitError
        A value or a name that cannot be recorded; a tolerance that is none.
    """
    allowed = {pattern: _tolerance(value) for pattern, value in (tolerances or {}).items()}
    changes = []
    for figure in sorted({*now, *stored.figures}):
        try:
            for part in (*figure, " ".join(map(str, figure))):
                checked_name(part)
            if now.get(figure) is not None:
                checked_value(now[figure])
        except ValueError as error:
            raise RatchetError(str(error), field=" ".join(map(str, figure))) from error
        changes.append(_change(figure, now, stored, allowed))
    return changes


def _change(
    figure: Figure,
    now: Mapping[Figure, Value | None],
    stored: Record,
    allowed: Mapping[str, tuple[Value, bool]],
) -> Change:
    before, value = stored.figures.get(figure), now.get(figure)
    if figure not in now:
        return Change(figure, before, None, "gone", worse=True)
    if value is None:
        return Change(figure, before, None, "unknown")
    if before is None:
        return Change(figure, None, value, "new")
    if value == before:
        return Change(figure, before, value, "same")
    grown = Fraction(str(value)) - Fraction(str(before))
    lost = -grown if higher_is_better(figure[1]) else grown
    status = "grown" if value > before else "shrunk"
    return Change(
        figure, before, value, status, lost > 0 and _beyond(lost, before, figure, allowed)
    )


def _beyond(
    lost: Fraction, before: Value, figure: Figure, allowed: Mapping[str, tuple[Value, bool]]
) -> bool:
    """Whether a loss is more than the first tolerance whose pattern matches."""
    for pattern, (most, percent) in allowed.items():
        if fnmatchcase(figure[1], pattern):
            return lost > (percent_of(before, most) if percent else most)
    return True


def _tolerance(value: str | int) -> tuple[Value, bool]:
    """A number, and whether it is a percentage."""
    if isinstance(value, str) and value.strip().endswith("%"):
        return parse_percent(value.strip()), True
    return parse_size(value), False


# -- recording ------------------------------------------------------------------------------------


def record(
    now: Mapping[Figure, Value | None],
    stored: Record,
    reason: str = "",
    date: datetime.date | None = None,
    tolerances: Tolerances | None = None,
) -> Record:
    """The record with figures of now; `stored` itself when nothing is to be written.

    Without a reason it takes improvements and new figures; with one, all that moved.

    Raises
    ------
    RatchetError
        Something got worse and there is no reason.
    """
    changes = compare(now, stored, tolerances)
    reason = _on_one_line(reason)
    worse = [change for change in changes if change.worse]
    if worse and not reason:
        raise RatchetError(
            f"{_told(worse)} got worse",
            field="reason",
            hint="say why, in a sentence that a reviewer can judge",
        )
    taken = [change for change in changes if _taken(change, bool(reason))]
    if not taken:
        return stored
    figures = dict(stored.figures)
    for change in taken:
        if change.now is None:
            del figures[change.figure]
        else:
            figures[change.figure] = change.now
    day = (date or datetime.datetime.now(datetime.UTC).date()).isoformat()
    moved = {" ".join(change.figure): (change.before, change.now) for change in taken}
    entry = Entry(day, reason or _usual_reason(taken), moved)
    return Record(figures, (*stored.history, entry))


def _taken(change: Change, reason: bool) -> bool:
    if change.status in ("same", "unknown"):
        return False
    return reason or change.better or change.status == "new"


def _usual_reason(taken: Iterable[Change]) -> str:
    """What improvements and new figures are recorded with."""
    new = [change.status == "new" for change in taken]
    if all(new):
        return "New figures."
    return "Improved, and new figures." if any(new) else "Improved."


def _on_one_line(reason: str) -> str:
    reason = " ".join(reason.split())
    try:
        return checked_reason(reason) if reason else ""
    except ValueError as error:
        raise RatchetError(str(error), field="reason") from error


def _told(changes: list[Change]) -> str:
    """The first of some figures with their values."""
    first = [
        f"{' '.join(c.figure)} ({_number(c.before)} → {_number(c.now)})" for c in changes[:_TOLD]
    ]
    more = f" and {len(changes) - _TOLD:,} more" if len(changes) > _TOLD else ""
    return ", ".join(first) + more


def _number(value: Value | None) -> str:
    return f"{value:,}" if value is not None else "gone"


# -- what a record can hold -----------------------------------------------------------------------


def checked_name(text: Any) -> str:
    """A name of a board or figure, that one line of the file can hold.

    Raises
    ------
    ValueError
        With the name and what would work.
    """
    good = isinstance(text, str) and 0 < len(text) <= _LONGEST and text == text.strip()
    if not good or not text.isprintable():
        raise ValueError(
            f"{shown(text)} is no name; write 1 to {_LONGEST} printable characters, no space at "
            "either end"
        )
    return str(text)


def checked_value(value: Any) -> Value:
    """A value of a figure; raises ValueError like `checked_name`."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(_bounded(value)) or not 0 <= value <= _LARGEST:
        raise ValueError(f"{shown(value)} is no value; write a number of 0 or more, up to 2^64 - 1")
    good: Value = value
    return good


def _bounded(value: Value) -> Value:
    """Integers that no float can hold are not finite either."""
    return math.inf if isinstance(value, int) and value > _LARGEST else value


def checked_reason(text: Any) -> str:
    """A reason on one line; raises ValueError like `checked_name`."""
    if not isinstance(text, str) or not text.strip() or not text.isprintable():
        raise ValueError(f"{shown(text)} is no reason; write a sentence of printable characters")
    return text
