# SPDX-License-Identifier: Apache-2.0
"""The rest of the user's program: what it takes of a board's memory, as its author declares it.

Its room is the end of a region (of the longest part without reserved bytes), so that nothing else
moves: code, stack and image stay where they are, and the engine has less.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from colibri.boards import Board
from colibri.errors import DoesNotFitError, Lack, PlanError, UnitError
from colibri.units import format_bytes, parse_size

if TYPE_CHECKING:
    from colibri.fit.regions import BoardLike

ROW = "application (declared)"
WHY = "the rest of the program"
NOT_GIVEN = "application: not given; --application REGION=SIZE keeps room for it"
ALIGNMENT = 64


class Room(NamedTuple):
    """Bytes of a region; `offset` from its start."""

    region: str
    offset: int
    bytes: int


def checked_application(
    board: BoardLike, application: Mapping[str, int | str] | None
) -> dict[str, int] | None:
    """Bytes by region; None when nothing was declared.

    Raises
    ------
    PlanError
        For a region that the board does not have.
    UnitError
        For what is not a size.
    """
    if application is None:
        return None
    known = [region.name for region in board.regions]
    found = {}
    for name, size in application.items():
        if name not in known:
            raise PlanError(
                f"board {board.id} has no region '{str(name)[:40]}' for the application",
                field="application",
                hint=f"its regions are {', '.join(known)}",
            )
        try:
            found[name] = parse_size(size)
        except UnitError as error:
            raise UnitError(error.what, field=f"application.{name}", hint=error.hint) from None
    return found


def application_rooms(board: Board, application: Mapping[str, int] | None) -> Iterator[Room]:
    """Where it lies; DoesNotFitError when a region is too small for it."""
    for name, size in (application or {}).items():
        if not size:
            continue
        region = board.region(name)
        start, end = (region.base + edge for edge in region.longest_piece)
        start += -start % ALIGNMENT
        have = max(end - start, 0)
        if size > have:
            error = DoesNotFitError(
                f"the application needs {size:,} bytes of {name}, which has {have:,} "
                f"({size - have:,} more)",
                hint=f"declare {format_bytes(have, exact=True)} of {name} at most",
            )
            error.lack = Lack(ROW, name, have, size)
            raise error
        at = end - size
        yield Room(name, at - at % ALIGNMENT - region.base, size)


def application_note(application: Mapping[str, int] | None) -> str:
    """For reports: what was declared, or that nothing was."""
    if application is None:
        return NOT_GIVEN
    each = (f"{name} {format_bytes(size)}" for name, size in application.items())
    return f"{ROW}: {', '.join(each) or 'nothing'}"
