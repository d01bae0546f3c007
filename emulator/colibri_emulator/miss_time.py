# SPDX-License-Identifier: Apache-2.0
"""What the misses of an expert cache cost on a board.

    time per token = time of a token with all weights in RAM
                     + by layer: misses per token * time to read one expert record

The first part is the clock's, for the events of a real token in the middle of a window. A record
is read at once, so the storage works at the speed of its curve for blocks of that size. Nothing
overlaps: a runtime that reads while it computes is faster, by the smaller of the two at most.
"""

from __future__ import annotations

from functools import cached_property

from colibri.boards import Board
from colibri.engine import Engine
from colibri.errors import EmulateError, TraceError
from colibri.experts.study import Outcome
from colibri.experts.trace import ExpertTrace, image_id
from colibri.image import Image
from colibri_emulator.clock import SCENARIOS, Charge, Clock, Placement, Scenario
from colibri_emulator.report import Input, Range
from colibri_emulator.storage import Medium


class MissTime:
    """Predicts the time per token of replays of one trace.

    Parameters
    ----------
    board : Board
        Weights, slots and KV cache lie in its largest writable region.
    image : Image
        The one that the trace was made with.
    storage : str, optional
        Name of one of the board's storages. Default: the first.
    workers : int
        Cores that compute.

    Raises
    ------
    TraceError
        When the image is another one.
    EmulateError
        For a board without storage, or a name that it does not have.
    """

    def __init__(
        self,
        board: Board,
        image: Image,
        trace: ExpertTrace,
        *,
        storage: str | None = None,
        workers: int = 1,
    ) -> None:
        if image_id(image) != trace.image:
            raise TraceError(f"the image has the id {image_id(image)}", file=image.name,
                             hint=f"the trace is of {trace.image}")  # fmt: skip
        self.medium = _medium(board, storage)
        self.region = max((r for r in board.regions if r.writable), key=lambda r: r.usable).name
        place = Placement(weights=self.region, kv=self.region, work=self.region)
        self._clock = Clock(board, place, workers=workers, medium=self.medium)
        self._image, self._trace = image, trace

    @property
    def inputs(self) -> list[Input]:
        """What the prediction rests on, each with its class."""
        return self._clock.inputs

    @cached_property
    def compute(self) -> Range:
        """Seconds of a token when nothing is missing."""
        return _range(self._compute, {})

    def per_token(self, outcome: Outcome) -> Range:
        """Seconds of a token with the misses of a replay."""
        return _range(self._compute, self._reading(outcome))

    def reading(self, outcome: Outcome) -> Range:
        """Seconds of it that go into reads."""
        return _range(Charge(), self._reading(outcome))

    def _reading(self, outcome: Outcome) -> dict[Scenario, float]:
        seconds = dict.fromkeys(SCENARIOS, 0.0)
        for misses, size in zip(outcome.misses, self._trace.record_bytes, strict=True):
            record = self._clock.charge_read(size, size)
            for name in SCENARIOS:
                seconds[name] += misses / outcome.tokens * record.seconds[name]
        return seconds

    @cached_property
    def _compute(self) -> Charge:
        ids, window = self._trace.text.ids, self._trace.window
        before = min(len(ids), window) // 2
        engine = Engine(self._image, context=before + 1, trace=True)
        if before:
            engine.infer(ids[:before])
            engine.take_trace()
        engine.infer(ids[before : before + 1])
        return self._clock.charge(engine.take_trace())


def _range(charge: Charge, more: dict[Scenario, float]) -> Range:
    slow, mid, fast = (charge.seconds[name] + more.get(name, 0.0) for name in SCENARIOS)
    return Range(low=fast, mid=mid, high=slow)


def _medium(board: Board, name: str | None) -> Medium:
    known = ", ".join(storage.name for storage in board.storage)
    for storage in board.storage:
        if name in (None, storage.name):
            return Medium(storage)
    if not known:
        raise EmulateError(f"board {board.id} has no storage to read experts from",
                           hint="use a board whose file has [[storage]]")  # fmt: skip
    raise EmulateError(f"board {board.id} has no storage '{name}'", hint=f"it has {known}")
