# SPDX-License-Identifier: Apache-2.0
"""Memory that is taken once, for several engines side by side or one after the other.

>>> arena = Arena(8 << 20)                                          # doctest: +SKIP
>>> chat = Engine("chat.colibri", context=512, memory=arena)        # doctest: +SKIP
>>> tools = Engine("tools.colibri", context=128, memory=arena)      # doctest: +SKIP
>>> arena.clear()  # both are gone, nothing was freed               # doctest: +SKIP
>>> other = Engine("other.colibri", memory=arena)                   # doctest: +SKIP
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from colibri import _core
from colibri.errors import DoesNotFitError, PlanError
from colibri.status import MEMORY

ALIGNMENT = 64


class MemoryRegion(NamedTuple):
    """Memory that the caller gives an engine and keeps alive while it is used.

    `use` is one of `_core.REGION_USES`: what may lie there.
    """

    name: str
    address: int
    size: int
    rank: int = 0
    use: int = 0


Make = Callable[[Sequence[MemoryRegion], _core.Engine | None], _core.Engine]


class Arena:
    """Memory for engines.

    Each engine that is made with it (``Engine(image, memory=arena)``) is planned into what the
    others left: its weights, sequences and slots are its own, and what it uses only during a call
    it shares with them.  The engines take turns: a call waits for one under way.  Make the engine
    first whose calls use most (the largest `batch`): the others then share all of it.

    Parameters
    ----------
    memory : int or sequence of MemoryRegion
        Bytes to take, or regions to use; the caller keeps those alive.
    """

    def __init__(self, memory: int | Sequence[MemoryRegion]) -> None:
        self._lock = threading.Lock()
        self._engines: list[weakref.ref[_core.Engine]] = []
        if isinstance(memory, int):
            if not 0 <= memory < 2**48:
                raise PlanError(f"an arena of {memory} bytes", hint="use 0 to 2^48 - 1")
            self._memory = np.empty(memory + ALIGNMENT, np.uint8)
            start = self._memory.ctypes.data
            memory = [MemoryRegion("memory", start + -start % ALIGNMENT, memory)]
        self.regions: tuple[MemoryRegion, ...] = tuple(MemoryRegion(*region) for region in memory)
        self._planned: tuple[_core.Image, _core.Limits, Sequence[MemoryRegion]] | None = None
        self.used = 0  # bytes that engines take, shared ones once

    @property
    def size(self) -> int:
        """Bytes there are."""
        return sum(region.size for region in self.regions)

    @property
    def left(self) -> Sequence[MemoryRegion]:
        """What the next engine is planned in; PlanError when that is in too many pieces."""
        if self._planned is None:
            return self.regions
        return [MemoryRegion(*region) for region in _core.plan_beside(*self._planned)]

    def clear(self) -> None:
        """Takes the memory back for others; engines in it answer with EngineError from now on."""
        with self._lock:
            for reference in self._engines:
                engine = reference()
                if engine is not None:
                    engine.close()
            self._engines.clear()
            self._planned, self.used = None, 0

    def place(self, image: _core.Image, make: Make) -> _core.Engine:
        """One more engine; `make` gets its regions and an engine to take turns with."""
        with self._lock:
            living = (engine for reference in self._engines if (engine := reference()) is not None)
            regions = self.left
            try:
                engine = make(regions, next(living, None))
            except DoesNotFitError as error:
                raise self._too_small(error, regions) from None
            self._engines.append(weakref.ref(engine))
            self._planned = (image, engine.limits, regions)
            own = (index for index, region in enumerate(regions) if not region.use)
            self.used += sum(engine.high_water(index) for index in own)
            return engine

    def _too_small(
        self, error: DoesNotFitError, regions: Sequence[MemoryRegion]
    ) -> DoesNotFitError:
        """The shortage in terms of the whole region, not of what was left of it."""
        status = error.status
        if not self._engines or status is None or status.code != MEMORY:
            return error
        short = regions[status.where]
        whole = next(region for region in self.regions if region.name == short.name)
        made = DoesNotFitError(
            f"{short.name} has {status.have:,} bytes left beside the engines in it",
            file=error.file,
            hint=f"make it {whole.size + status.need - status.have:,} bytes",
        )
        made.status = status
        return made
