# SPDX-License-Identifier: Apache-2.0
"""One region of memory as a bar: the data model of all reports, and the bar in a terminal.

A bar's pieces and what is free add up to its capacity; what does not fit is its overflow. From the
left come the pieces by role, then what is free, then what is nobody's to use. So a budget is a mark
that many bytes from the left.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from rich.text import Text

from colibri.report.palette import COMPUTED, ROLES, TAKEN, RoleName

#: What a figure is. None of them is a measurement.
Kind = Literal["counted", "planned", "predicted", "declared"]
FULL, FREE, WARN, LIMIT = "█", "░", "╎", "│"
TERMINAL_WIDTH = 24
STRIP_CELLS = 240


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of one role; ``start`` is their address, when it is known."""

    name: str
    role: RoleName
    bytes: int
    start: int | None = None

    def __post_init__(self) -> None:
        if self.bytes < 0:
            raise ValueError(f"piece {self.name!r} has {self.bytes} bytes")
        if self.role not in ROLES or self.role in COMPUTED:
            raise ValueError(f"piece {self.name!r} has the role {self.role!r}")


class Part(NamedTuple):
    """What a bar draws: all bytes of one role, and the share of its length that they get."""

    role: RoleName
    bytes: int
    weight: float


@dataclass(frozen=True, slots=True)
class Bar:
    """A region and what is in it.

    Parameters
    ----------
    title : str
        The region's name.
    base, capacity : int or None
        First address and bytes, reserved ones included; None when nothing tells them.
    pieces : tuple of Piece
        What takes memory.
    warn, limit : int, optional
        Budget of ``used``, in bytes.
    note : str
        What is to be said about it.
    kind : str
        What the bytes are: counted, planned, predicted or declared.
    beyond : int
        Bytes in use past the end of the region: by address, which sums do not tell.
    """

    title: str
    base: int | None
    capacity: int | None
    pieces: tuple[Piece, ...]
    warn: int | None = None
    limit: int | None = None
    note: str = ""
    kind: Kind = "counted"
    beyond: int = 0

    def __post_init__(self) -> None:
        if self.capacity is not None and self.capacity < 0:
            raise ValueError(f"bar {self.title!r} has a capacity of {self.capacity} bytes")

    @property
    def used(self) -> int:
        """Bytes of all pieces that are not reserved."""
        return sum(piece.bytes for piece in self.pieces if piece.role not in TAKEN)

    @property
    def taken(self) -> int:
        """Bytes that are nobody's to use."""
        return sum(piece.bytes for piece in self.pieces if piece.role in TAKEN)

    @property
    def usable(self) -> int | None:
        """The capacity without what is reserved."""
        return None if self.capacity is None else max(0, self.capacity - self.taken)

    @property
    def free(self) -> int | None:
        return None if self.usable is None else max(0, self.usable - self.used)

    @property
    def overflow(self) -> int:
        """Bytes that do not fit, by their sum or by the last address in use."""
        if self.capacity is None:
            return 0
        return max(self.beyond, self.used + self.taken - self.capacity, 0)

    @property
    def scale(self) -> float:
        """Bytes that the whole length stands for."""
        return sum(part.weight for part in self.parts())

    def by_role(self) -> dict[RoleName, int]:
        """Bytes of each role that has some, in the order of the palette."""
        sums: dict[RoleName, int] = dict.fromkeys(ROLES, 0)
        for piece in self.pieces:
            sums[piece.role] += piece.bytes
        return {role: size for role, size in sums.items() if size}

    def parts(self) -> list[Part]:
        """From left to right. An overfull region shows all it holds, then its overflow."""
        sums, used = self.by_role(), self.used
        shrink = min(1.0, self.usable / used) if used and self.usable is not None else 1.0
        parts = [Part(r, n, n * shrink) for r, n in sums.items() if r not in TAKEN]
        parts.append(Part("overflow", self.overflow, self.overflow))
        parts.append(Part("free", self.free or 0, self.free or 0))
        parts += [Part(r, n, n) for r, n in sums.items() if r in TAKEN]
        return [part for part in parts if part.bytes]

    def marks(self) -> list[tuple[str, str, int]]:
        """Character, name and bytes of each budget that is below what is usable."""
        given = ((WARN, "warning mark", self.warn), (LIMIT, "limit", self.limit))
        return [
            (character, name, mark)
            for character, name, mark in given
            if mark is not None and self.usable is not None and 0 <= mark < self.usable
        ]


def allocate(weights: Sequence[float], width: int) -> list[int]:
    """Shares `width` cells out by weight: one or more for each that is not 0.

    When there are more of them than cells, the lightest get none.
    """
    heavy = sorted((i for i, w in enumerate(weights) if w > 0), key=lambda i: -weights[i])[:width]
    cells = [0] * len(weights)
    if not heavy:
        return cells
    total = sum(weights[i] for i in heavy)
    exact = {i: weights[i] / total * width for i in heavy}
    for i in heavy:
        cells[i] = max(1, int(exact[i]))
    while (wrong := width - sum(cells)) != 0:
        step = 1 if wrong > 0 else -1
        choice = [i for i in heavy if cells[i] + step > 0]
        cells[max(choice, key=lambda i: step * (exact[i] - cells[i]))] += step
    return cells


def terminal_bar(bar: Bar, width: int = TERMINAL_WIDTH) -> Text:
    """A line of exactly `width` cells; each role begins with its letter, colours or not."""
    parts = bar.parts()
    if not parts:
        words = "no capacity" if bar.capacity == 0 else ""
        return Text(words[:width].ljust(width), style="dim")
    cells: list[tuple[str, str]] = []
    for part, count in zip(parts, allocate([p.weight for p in parts], width), strict=True):
        role = ROLES[part.role]
        if part.role == "free":
            cells += [(FREE, "dim")] * count
        elif part.role == "overflow":
            cells += [(role.letter, role.letter_style)] * count
        elif count:
            cells += [(role.letter, role.letter_style), *[(FULL, role.style)] * (count - 1)]
    _draw_marks(bar, cells)
    return Text.assemble(*cells)


def _draw_marks(bar: Bar, cells: list[tuple[str, str]]) -> None:
    """Puts budgets where they are, or right of a letter that is there."""
    for character, _, mark in bar.marks():
        at = int(mark / bar.scale * len(cells))
        while at < len(cells) and cells[at][0] not in (FULL, FREE):
            at += 1
        if at < len(cells):
            filled, style = cells[at]
            cells[at] = (character, f"white on {style}" if filled == FULL else "bold")


def legend(bars: Iterable[Bar]) -> Text:
    """What the letters of terminal bars stand for, on one line."""
    shown = list(bars)
    roles = {part.role for bar in shown for part in bar.parts()} - {"free"}
    line = Text()
    for name, role in ROLES.items():
        if name in roles:
            line.append(role.letter, role.letter_style)
            line.append(f" {role.name}  ", "dim")
    marks = dict.fromkeys((mark[0], mark[1]) for bar in shown for mark in bar.marks())
    for character, word in marks:
        line.append(character, "bold")
        line.append(f" {word}  ", "dim")
    line.rstrip()
    return line


def strip(bar: Bar, cells: int = STRIP_CELLS) -> list[tuple[RoleName, int]]:
    """The region by address: runs of cells; what is small hides nothing and is not hidden.

    Empty when a piece has no address, or the region no size.
    """
    if not bar.capacity or bar.base is None or any(p.start is None for p in bar.pieces):
        return []
    painted: list[RoleName] = ["free"] * cells
    for piece in sorted(bar.pieces, key=lambda piece: -piece.bytes):
        begin = (piece.start or 0) - bar.base
        first = begin * cells // bar.capacity
        last = -(-(begin + piece.bytes) * cells // bar.capacity)
        first, last = max(0, first), min(cells, last)
        if piece.bytes and first < last:
            painted[first:last] = [piece.role] * (last - first)
    runs: list[tuple[RoleName, int]] = []
    for role in painted:
        if runs and runs[-1][0] == role:
            runs[-1] = (role, runs[-1][1] + 1)
        else:
            runs.append((role, 1))
    return runs
