# SPDX-License-Identifier: Apache-2.0
"""Virtual time of reads beside the CPU.

The trace says when a read begins and when the runtime waits for it.  The storage works through
reads one after the other, in the order in which they begin; the CPU goes on meanwhile, and only
what is left when it waits costs time.  Where there is no device that moves bytes by itself
(experts in mapped flash), the CPU copies them when it waits.

What has arrived is checked against its checksum, by the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from colibri._core import GLOBAL_LAYER
from colibri_emulator.faults import Faults

READ, READ_WAIT = 8, 12
_OK, _CORRUPT = 0, 62  # colibri_status


@dataclass
class ReadTime:
    """What reads cost, in seconds."""

    working: float = 0.0  # the storage ...
    waited: float = 0.0  # ... the CPU for it
    copying: float = 0.0  # the CPU, where it moves the bytes ...
    checking: float = 0.0  # ... and over checksums
    loading: float = 0.0  # of reads at init, which nothing runs beside

    def __add__(self, other: ReadTime) -> ReadTime:
        mine, its = astuple(self), astuple(other)
        return ReadTime(*(a + b for a, b in zip(mine, its, strict=True)))


class StorageTime:
    """The timeline of a storage in one scenario; it goes on from one piece of trace to the next.

    Parameters
    ----------
    seconds : callable
        Of a read of so many bytes, alone.
    load_seconds : callable
        The same for what is read in one go at init.
    check : float
        Seconds a byte for a checksum.
    copies : bool
        Whether the CPU moves the bytes.
    faults : Faults
        By the number of the read.
    """

    def __init__(
        self,
        seconds: Callable[[int], float],
        load_seconds: Callable[[int], float],
        *,
        check: float,
        copies: bool,
        faults: Faults,
    ) -> None:
        self._seconds, self._load = seconds, load_seconds
        self._check, self._copies, self._faults = check, copies, faults
        self._now = self._free = 0.0
        self._reads = 0
        self._done: dict[tuple[int, int], float] = {}  # when a read is done, or how long it takes

    def advance(self, events: npt.NDArray[Any], cpu: npt.NDArray[np.float64]) -> ReadTime:
        """Walks through a piece of trace; `cpu` is what each event costs the CPU, in seconds."""
        out = ReadTime()
        columns = (events[name].tolist() for name in ("kind", "layer", "index", "count", "bytes"))
        for seconds, kind, layer, index, count, size in zip(cpu.tolist(), *columns, strict=True):
            self._now += seconds
            if kind == READ and layer == GLOBAL_LAYER:
                self._load_now(size, out)
            elif kind == READ:
                self._begin((layer, index), size, out)
            elif kind == READ_WAIT:
                self._wait((layer, index), size, count, out)
        return out

    def _duration(self, alone: float) -> float:
        self._reads += 1
        fault = self._faults.at(self._reads)
        return fault.duration(alone) if fault else alone

    def _load_now(self, size: int, out: ReadTime) -> None:
        seconds, checking = self._duration(self._load(size)), size * self._check
        out.loading += seconds
        out.checking += checking
        self._now += seconds + checking
        self._free = self._now

    def _begin(self, expert: tuple[int, int], size: int, out: ReadTime) -> None:
        seconds = self._duration(self._seconds(size))
        if self._copies:
            self._done[expert] = seconds
            return
        out.working += seconds
        self._free = max(self._free, self._now) + seconds
        self._done[expert] = self._free

    def _wait(self, expert: tuple[int, int], size: int, status: int, out: ReadTime) -> None:
        done = self._done.pop(expert)
        if self._copies:
            out.copying += done
            self._now += done
        else:
            late = max(0.0, done - self._now)
            out.waited += late
            self._now += late
        if status in (_OK, _CORRUPT):
            out.checking += size * self._check
            self._now += size * self._check
