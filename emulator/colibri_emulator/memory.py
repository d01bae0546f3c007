# SPDX-License-Identifier: Apache-2.0
"""A board's memory region on the host: exactly its size, with nothing on either side.

Each region is mapped between two inaccessible pages.  Pages are coarser than regions, so one
edge of the region touches its guard page exactly and the few bytes left over at the other edge
are a canary::

    side "end"      | guard | canary | region ............ | guard |
    side "start"    | guard | region ............ | canary | guard |

A store past a guarded edge stops the program at that instruction; one past the other edge shows
in the canary.  A twin run on each side leaves no byte unwatched.  The region is painted before
the run, and what is no longer painted afterwards was written: that is the high-water mark.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from colibri.errors import EmulateError
from colibri.units import format_bytes

Side = Literal["end", "start"]
Bytes = npt.NDArray[np.uint8]

PAGE = mmap.PAGESIZE
# What is painted beyond the plan. Further up, memory that was never touched costs nothing and is
# told from touched memory by its pages, so that a 2 GiB region takes neither time nor RAM.
PAINT_MARGIN = 1 << 20
_CHUNK = 1 << 16
_PROT_NONE = 0
# Python names it from 3.13 on. What a host would promise to its programs must not matter.
_MAP_NORESERVE = 0x4000 if sys.platform == "linux" else 0


@dataclass(frozen=True)
class Overrun:
    """Bytes outside the region that changed: offsets from its base."""

    region: str
    first: int
    last: int


class GuardedRegion:
    """One mapped region.

    Parameters
    ----------
    name : str
        As the board calls it.
    size : int
        Bytes, exact.
    alignment : int
        Alignment of the base; what it leaves over at a guarded end is canary.
    planned : int
        Bytes that the plan uses: painted, with a margin.
    side : {"end", "start"}
        The edge that touches its guard page.
    seed : int
        Paint of another seed differs in almost every byte.
    """

    def __init__(
        self, name: str, size: int, *, alignment: int, planned: int, side: Side, seed: int = 1
    ) -> None:
        self.name, self.size, self.side = name, size, side
        body = -(-size // PAGE) * PAGE
        self._map = _map_memory(name, body + 2 * PAGE)
        self._all: Bytes = np.frombuffer(self._map, dtype=np.uint8)
        self._first, self._end = PAGE, PAGE + body
        start = self._end - size if side == "end" else self._first
        self._start = start - start % alignment
        self._painted = min(size, planned + PAINT_MARGIN)
        paint = np.random.default_rng(seed).integers(0, 256, _CHUNK, dtype=np.uint8)
        self._paint = np.tile(paint, 2)  # so that any stretch of a chunk's length is one piece
        self._fill()
        _protect(self._map, 0, PAGE)
        _protect(self._map, self._end, PAGE)

    @property
    def base(self) -> int:
        """Address of the first byte."""
        return int(self._all.ctypes.data) + self._start

    def high_water(self) -> int:
        """Offset behind the last byte that was written, by reading back.

        One written byte in 256 equals its paint, so a mark can be low by a byte or, rarely, two;
        a second run with another seed tells.
        """
        return self._touched_beyond_paint() or self._last_repainted()

    def overrun(self) -> Overrun | None:
        """Bytes that changed in the canaries, or None."""
        head = self._changed(self._first, self._start)
        tail = self._changed(self._start + self.size, self._end)
        where = np.concatenate((head, tail))
        if not where.size:
            return None
        return Overrun(self.name, int(where[0]) - self._start, int(where[-1]) - self._start)

    def _pattern(self, begin: int, end: int) -> Bytes:
        """Of at most a chunk."""
        first = begin % _CHUNK
        return self._paint[first : first + end - begin]

    def _fill(self) -> None:
        for begin in range(self._first, self._start + self._painted, _CHUNK):
            end = min(begin + _CHUNK, self._start + self._painted)
            self._all[begin:end] = self._pattern(begin, end)
        begin = max(self._first, self._start + self.size)
        self._all[begin : self._end] = self._pattern(begin, self._end)

    def _changed(self, begin: int, end: int) -> npt.NDArray[np.intp]:
        """Positions in [begin, end) that are no longer painted."""
        if begin >= end:
            return np.empty(0, dtype=np.intp)
        return np.flatnonzero(self._all[begin:end] != self._pattern(begin, end)) + begin

    def _last_repainted(self) -> int:
        end = self._start + self._painted
        while end > self._start:
            begin = max(self._start, end - _CHUNK)
            changed = self._changed(begin, end)
            if changed.size:
                return int(changed[-1]) + 1 - self._start
            end = begin
        return 0

    def _touched_beyond_paint(self) -> int:
        """The same for the part that was left unpainted: zero, and not even there."""
        begin, end = self._start + self._painted, self._start + self.size
        for page in reversed(self._resident_pages(begin, end)):
            low, high = max(begin, page), min(end, page + PAGE)
            written = np.flatnonzero(self._all[low:high])
            if written.size:
                return low + int(written[-1]) + 1 - self._start
        return 0

    def _resident_pages(self, begin: int, end: int) -> list[int]:
        """Positions of the pages in [begin, end) that exist."""
        if begin >= end:
            return []
        first = begin - begin % PAGE
        count = -(-(end - first) // PAGE)
        vector = (ctypes.c_ubyte * count)()
        address = ctypes.c_void_p(int(self._all.ctypes.data) + first)
        if _libc().mincore(address, ctypes.c_size_t(count * PAGE), vector):
            raise EmulateError(f"cannot read back region {self.name}: mincore failed")
        resident = np.flatnonzero(np.frombuffer(bytes(vector), dtype=np.uint8) & 1)
        return [first + int(index) * PAGE for index in resident]


def _map_memory(name: str, size: int) -> mmap.mmap:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    try:
        memory = mmap.mmap(-1, size, flags=flags)
    except (OSError, ValueError, OverflowError) as error:
        raise EmulateError(
            f"this machine cannot reserve {format_bytes(size)} for region {name}: {error}",
            hint="emulate a smaller board, or run on a machine with more address space",
        ) from error
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        # A huge page would make two megabytes look touched when one byte was.
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return memory


def _protect(memory: mmap.mmap, offset: int, size: int) -> None:
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + offset
    if _libc().mprotect(ctypes.c_void_p(start), ctypes.c_size_t(size), _PROT_NONE):
        raise EmulateError("cannot protect a guard page: mprotect failed")


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mincore"):
        raise EmulateError("the twin needs mmap, mprotect and mincore", hint="use Linux or macOS")
    return libc
