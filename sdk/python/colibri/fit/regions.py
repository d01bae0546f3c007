# SPDX-License-Identifier: Apache-2.0
"""The memory that an ELF is placed into: a board's regions, looked up by address.

A region is one physical memory. It may be visible through several windows (aliases); every
address is turned into the region and its *home* address, so that usage through all windows adds
up to one number.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from colibri.errors import SizeError

#: How far past the end of a region a section still counts as overflowing it: linkers continue
#: there when a region runs over. Anything further away lies outside every region.
PAST_END = 64 * 1024
#: Ranges that are nearer than this are one row when no board was given.
_NEAR = 4096
NON_VOLATILE = frozenset({"nor", "mram", "rom"})


@dataclass(frozen=True, slots=True)
class Reserved:
    """A part of a region that firmware must not use, and why."""

    offset: int
    size: int
    reason: str


@dataclass(frozen=True, slots=True)
class Region:
    """One physical memory; ``size`` None means that no board told it."""

    name: str
    kind: str
    base: int
    size: int | None
    access: str = ""
    aliases: tuple[int, ...] = ()
    reserved: tuple[Reserved, ...] = ()
    extent: int = 0

    @property
    def end(self) -> int:
        return self.base + (self.extent if self.size is None else self.size)

    @property
    def reserved_bytes(self) -> int:
        return sum(part.size for part in self.reserved)

    @property
    def capacity(self) -> int | None:
        """What firmware may use: the size without the reserved parts."""
        return None if self.size is None else max(0, self.size - self.reserved_bytes)

    @property
    def non_volatile(self) -> bool:
        return self.kind in NON_VOLATILE

    @property
    def read_only(self) -> bool:
        return bool(self.access) and "w" not in self.access


class Piece(NamedTuple):
    """Bytes ``[start, start + size)`` in home addresses of a region; None is outside of all."""

    region: Region | None
    start: int
    size: int

    @property
    def end(self) -> int:
        return self.start + self.size


class BoardLike(Protocol):
    """What the size tools need of a board (:class:`colibri.boards.Board` has it)."""

    @property
    def id(self) -> str: ...
    @property
    def os(self) -> str: ...
    @property
    def regions(self) -> Sequence[Any]: ...
    @property
    def firmware(self) -> Any: ...
    @property
    def budgets(self) -> Any: ...


def board_regions(board: BoardLike) -> tuple[Region, ...]:
    """Copy a board's regions into the plain records used here."""
    return tuple(
        Region(
            name=region.name,
            kind=str(region.kind),
            base=region.base,
            size=region.size,
            access=str(region.access),
            aliases=tuple(region.aliases),
            reserved=tuple(Reserved(r.offset, r.size, r.reason) for r in region.reserved),
        )
        for region in board.regions
    )


def main_memory(board: BoardLike, regions: Sequence[Region]) -> Region:
    """The memory that an operating system hands out: the largest writable region.

    What the system keeps for itself (``firmware.os_reserve_bytes``) is taken off.
    """
    writable = [r for r in regions if not r.read_only and not r.non_volatile]
    if not writable:
        raise SizeError("the board has no writable region to run in", field="regions")
    main = max(writable, key=lambda r: r.size or 0)
    kept = getattr(board.firmware, "os_reserve_bytes", 0)
    if not kept:
        return main
    own = Reserved(0, kept, getattr(board.firmware, "os_reserve_reason", "") or "operating system")
    return replace(main, reserved=(*main.reserved, own))


def derived_regions(ranges: Iterable[tuple[int, int]]) -> tuple[Region, ...]:
    """One region per contiguous range of ``(start, end)`` addresses, for use without a board."""
    merged: list[list[int]] = []
    for start, end in sorted(ranges):
        if merged and start <= merged[-1][1] + _NEAR:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return tuple(
        Region(
            name=f"{start:#010x}", kind="no board given", base=start, size=None, extent=end - start
        )
        for start, end in merged
    )


class AddressMap:
    """Finds the region behind an address.

    ``virtual`` names the region that backs every address, for boards with an operating system:
    there the addresses of an ELF are virtual and say nothing about physical memory.
    """

    def __init__(self, regions: Sequence[Region], virtual: Region | None = None) -> None:
        self.regions = tuple(regions)
        self.virtual = virtual
        self._homes = _windows((r.base, r) for r in self.regions)
        self._aliases = _windows((a, r) for r in self.regions for a in r.aliases)
        self._reach: dict[str, int] = {}

    def locate(self, address: int, size: int) -> tuple[Piece, ...]:
        """Split a range into the regions that hold it, in address order."""
        if self.virtual is not None:
            return (Piece(self.virtual, address, size),)
        return tuple(self._split(address, size))

    def _split(self, address: int, size: int) -> Iterator[Piece]:
        while size > 0:
            found = self._window(address)
            if found is None:
                region = self._overrun(address)
                piece = Piece(region, address, size)
                if region is not None:
                    self._note(region, piece.end)
                yield piece
                return
            start, region = found
            length = region.end - region.base
            here = min(size, start + length - address)
            rest = self._window(address + here) if here < size else None
            if here < size and rest is None:
                here = size  # runs past the end of this region: its overflow
            piece = Piece(region, region.base + address - start, here)
            self._note(region, piece.end)
            yield piece
            address, size = address + here, size - here

    def _window(self, address: int) -> tuple[int, Region] | None:
        for windows in (self._homes, self._aliases):
            at = bisect_right(windows[0], address) - 1
            if at >= 0:
                start, region = windows[1][at]
                if address - start < region.end - region.base:
                    return start, region
        return None

    def _overrun(self, address: int) -> Region | None:
        """The region that a range just past its end overflows, if there is one."""
        at = bisect_right(self._homes[0], address) - 1
        if at < 0:
            return None
        region = self._homes[1][at][1]
        reach = max(region.end, self._reach.get(region.name, 0))
        return region if region.end <= address <= reach + PAST_END else None

    def _note(self, region: Region, end: int) -> None:
        self._reach[region.name] = max(self._reach.get(region.name, 0), end)


_Windows = tuple[list[int], list[tuple[int, Region]]]


def _windows(pairs: Iterable[tuple[int, Region]]) -> _Windows:
    ordered = sorted((p for p in pairs if p[1].end > p[1].base), key=lambda pair: pair[0])
    return [start for start, _ in ordered], ordered


class Extent:
    """A set of addresses as disjoint ranges; adding tells how many were new."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, start: int, end: int) -> int:
        """Cover ``[start, end)`` and return the number of addresses not covered before."""
        if end <= start:
            return 0
        if not self._starts or start > self._ends[-1]:  # upwards, as most callers go
            self._starts.append(start)
            self._ends.append(end)
            return end - start
        if start >= self._starts[-1]:
            new = max(0, end - self._ends[-1])
            self._ends[-1] += new
            return new
        low = bisect_right(self._ends, start - 1)
        high = bisect_right(self._starts, end, lo=low)
        old = list(zip(self._starts[low:high], self._ends[low:high], strict=True))
        if old:
            start, end = min(start, old[0][0]), max(end, old[-1][1])
        self._starts[low:high], self._ends[low:high] = [start], [end]
        return end - start - sum(e - s for s, e in old)
