# SPDX-License-Identifier: Apache-2.0
"""Virtual time of an accelerator beside the CPU.

The trace says when a call begins, what it moves and computes, and when the runtime waits for it.
The device works through calls one after the other, each for::

    start_us + bytes moved / dma_Bps + max(weights / read_Bps, multiply-adds / macs_per_s)

from the moment when it has begun and the call before is done, whichever is later.  The CPU goes on
meanwhile; only what is left when it waits costs time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from colibri.boards import Accelerator, Figure

BACKEND_COPY, BACKEND_START, BACKEND_WAIT = 9, 10, 11


@dataclass(frozen=True)
class DeviceSpeed:
    """Seconds of an accelerator in one scenario: per byte, per multiply-add, per call."""

    start: float
    dma: float
    read: float
    mac: float

    @classmethod
    def of(cls, device: Accelerator, share: Mapping[str, float]) -> DeviceSpeed:
        """`share`: real speed over the stated one, by class of the figure."""

        def each(figure: Figure) -> float:
            return 1.0 / (float(figure) * share[figure.cls])

        start = device.start_us
        return cls(
            start=float(start) * 1e-6 / share[start.cls] if start else 0.0,
            dma=each(device.dma_Bps),
            read=each(device.read_Bps),
            mac=each(device.macs_per_s),
        )

    def seconds(self, moved: int, weights: int, work: int) -> float:
        """One call by itself."""
        return self.start + moved * self.dma + max(weights * self.read, work * self.mac)


@dataclass(frozen=True)
class DeviceTime:
    """What the device did and what the CPU lost by waiting for it, in seconds."""

    working: float
    waited: float


def device_time(
    events: npt.NDArray[Any], cpu: npt.NDArray[np.float64], speed: DeviceSpeed
) -> DeviceTime:
    """Walks through the trace; `cpu` is what each event costs the CPU, in seconds."""
    now = free = working = waited = 0.0
    moved = 0
    done: dict[tuple[int, int], float] = {}
    columns = (events[name].tolist() for name in ("kind", "layer", "index", "bytes", "work"))
    for seconds, kind, layer, expert, size, work in zip(cpu.tolist(), *columns, strict=True):
        now += seconds
        if kind == BACKEND_COPY:
            moved = size
        elif kind == BACKEND_START:
            call = speed.seconds(moved, size, work)
            working += call
            free = max(free, now) + call
            done[layer, expert] = free
        elif kind == BACKEND_WAIT:
            late = max(0.0, done.pop((layer, expert)) - now)
            waited += late
            now += late
    return DeviceTime(working, waited)
