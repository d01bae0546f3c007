# SPDX-License-Identifier: Apache-2.0
"""A trace replayed: what each policy would have read, over slot counts.

The cache is the runtime's own, without weights; only the optimum is computed here.

>>> study = Study(read_trace(Path("trace.json")))                  # doctest: +SKIP
>>> study.replay("lru", "per-layer", 4).hit_rate                   # doctest: +SKIP
0.5123

Caches start empty, so first uses are misses for every policy. All that is counted here follows
from the trace alone; what it costs on a board is predicted elsewhere
(`colibri_emulator.miss_time`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from colibri import _core
from colibri.errors import TraceError
from colibri.experts.policies import Belady, hottest_first
from colibri.experts.trace import ExpertTrace

Sharing = Literal["per-layer", "shared"]
SHARINGS: tuple[Sharing, ...] = ("per-layer", "shared")
#: What the planner takes unless it is told otherwise.
AUTOMATIC = "frequency"
#: What the runtime can do, pinning with the automatic policy, and the optimum.
PINNED = "pinned"
ONLINE = (*_core.POLICIES, PINNED)
BELADY = "belady"
POLICIES = (*ONLINE, BELADY)
_COUNT = re.compile(r"([0-9]{1,5})( ?%)?", re.ASCII)


@dataclass(frozen=True)
class Outcome:
    """One replay.

    Attributes
    ----------
    slots : int
        Per layer; a shared cache has that many times the layers.
    uses, hits : int
        Experts that tokens asked for, and those that were there.
    misses : tuple of int
        Experts read, by layer.
    bytes_read : int
        Of all misses.
    tokens : int
        Of the trace.
    """

    policy: str
    sharing: Sharing
    slots: int
    uses: int
    hits: int
    misses: tuple[int, ...]
    bytes_read: int
    tokens: int

    @property
    def hit_rate(self) -> float:
        return self.hits / self.uses if self.uses else 1.0

    @property
    def misses_per_token(self) -> float:
        return sum(self.misses) / self.tokens

    @property
    def bytes_per_token(self) -> float:
        return self.bytes_read / self.tokens


class Study:
    """Replays one trace.

    Parameters
    ----------
    trace : ExpertTrace
    pin : ExpertTrace, optional
        Whose heat says what to pin. Default: the trace's own, which no one has beforehand.
    """

    def __init__(self, trace: ExpertTrace, pin: ExpertTrace | None = None) -> None:
        if pin is not None:
            _check_same(trace, pin)
        self.trace = trace
        self.pinned_by_another = pin is not None
        self._hot = hottest_first((pin or trace).heat)
        self._done: dict[tuple[str, Sharing, int], Outcome] = {}

    def slots_of(self, text: str) -> list[int]:
        """Slots per layer from ``4,8`` or ``25%,50%``, rising; TraceError for what cannot be."""
        found = [self._slots(word.strip()) for word in text.split(",")]
        return sorted(set(found))

    @property
    def default_slots(self) -> list[int]:
        """Twice what a token needs, and 25, 50 and 75 % of a layer's experts."""
        most, need = self.trace.experts, self._needed
        shares = [2 * need, *(_rounded(most * share / 100) for share in (25, 50, 75))]
        return sorted({slots for slots in shares if need <= slots <= most} or {most})

    def replay(self, policy: str, sharing: Sharing, slots: int) -> Outcome:
        """One policy with `slots` slots per layer; each is replayed once."""
        key = (policy, sharing, slots)
        if key not in self._done:
            self._check(slots)
            self._done[key] = self._replay(policy, sharing, slots)
        return self._done[key]

    def best(self, sharings: Iterable[Sharing], slots: int) -> Outcome:
        """The policy that a runtime can have that reads least; of equal ones the simplest.

        "pinned" counts only when its heat is of another trace.
        """
        possible = [p for p in ONLINE if p != PINNED or self.pinned_by_another]
        every = [self.replay(p, s, slots) for s in sharings for p in possible]
        return min(every, key=lambda outcome: outcome.bytes_read)

    def automatic(self, slots: int) -> Outcome:
        """What the planner takes: each layer has slots of its own from those of a token on."""
        return self.replay(AUTOMATIC, "per-layer", slots)

    def points_from_belady(self, outcome: Outcome) -> float:
        """How much higher the hit rate could be with the same slots, in percentage points."""
        optimum = self.replay(BELADY, outcome.sharing, outcome.slots)
        return 100 * (optimum.hit_rate - outcome.hit_rate)

    @cached_property
    def _needed(self) -> int:
        """Slots that a layer's choices fill at once."""
        return max(map(len, self.trace.steps))

    def _slots(self, word: str) -> int:
        match = _COUNT.fullmatch(word)
        if match is None:
            hint = "write counts per layer or shares of its experts, as in 4,8 or 25%,50%"
            raise TraceError(f"{word[:20]!r} is not a number of slots", field="slots", hint=hint)
        count = int(match[1])
        if match[2]:
            count = _rounded(self.trace.experts * count / 100)
        self._check(count)
        return count

    def _check(self, slots: int) -> None:
        most = min(self.trace.experts, _core.MAX_SLOTS // len(self.trace.layers))
        if not self._needed <= slots <= most:
            raise TraceError(
                f"{slots} slots per layer", field="slots",
                hint=f"a token uses {self._needed} of the {self.trace.experts} experts of a layer: "
                f"valid is {self._needed} to {most}",
            )  # fmt: skip

    def _replay(self, policy: str, sharing: Sharing, slots: int) -> Outcome:
        trace, layers = self.trace, len(self.trace.layers)
        optimum = policy == BELADY
        missed = self._optimum(sharing, slots) if optimum else self._run(policy, sharing, slots)
        misses = np.bincount(np.array(missed, np.int64) // trace.experts, minlength=layers)
        uses = sum(map(len, trace.steps))
        return Outcome(
            policy, sharing, slots, uses, uses - len(missed), tuple(misses.tolist()),
            int(misses @ np.array(trace.record_bytes, np.int64)), trace.tokens,
        )  # fmt: skip

    def _run(self, policy: str, sharing: Sharing, slots: int) -> list[int]:
        """What the runtime's cache would have read."""
        layers, pin = len(self.trace.layers), policy == PINNED
        number = _core.POLICIES[AUTOMATIC if pin else policy]
        cache = _core.ExpertCache(
            layers, self.trace.experts, slots * layers, number,
            sharing == "shared", self._needed, self._hot if pin else (),
        )  # fmt: skip
        missed: list[int] = []
        for at, step in enumerate(self.trace.steps):
            if at % layers == 0:
                cache.begin_token()
            missed += cache.touch(step)
        return missed

    def _optimum(self, sharing: Sharing, slots: int) -> list[int]:
        """What Belady would have read: in one cache, or in one a layer."""
        steps, layers = self.trace.steps, len(self.trace.layers)
        shared = sharing == "shared"
        missed: list[int] = []
        for asked in [steps] if shared else [steps[m::layers] for m in range(layers)]:
            cache = Belady(slots * layers if shared else slots, asked)
            for step in asked:
                missed += cache.touch(step)
        return missed


def _check_same(trace: ExpertTrace, pin: ExpertTrace) -> None:
    if (trace.experts, trace.layers) != (pin.experts, pin.layers):
        raise TraceError(
            f"the trace to pin by has {len(pin.layers)} layers of {pin.experts} experts",
            field="pin",
            hint=f"use one of a model with {len(trace.layers)} layers of {trace.experts}",
        )


def _rounded(value: float) -> int:
    return int(value + 0.5)
