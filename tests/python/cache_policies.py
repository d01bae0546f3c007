# SPDX-License-Identifier: Apache-2.0
"""The policies of the expert cache in lists and plain loops: the runtime's must agree with them.

Everything is looked for among all that a set of slots holds. A layer of a token goes through as
the runtime does it: what is there is used, the missing ones get their slots, then what was there
is given back, and the missing ones arrive, are used and given back one after the other.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

USES_AN_EXPERT, MOST_USES = 8, 31


class Lru:
    """The one that was given back longest ago leaves.

    Parameters
    ----------
    layers, each, slots : int
        Layers, experts of one, and slots in all; the first layers have those left over.
    shared : bool
        One set of slots for all layers.
    pins : collection of int
        That stay once they have been read.
    """

    def __init__(
        self, layers: int, each: int, slots: int, shared: bool, pins: Collection[int] = ()
    ) -> None:
        self.layers, self.each, self.shared, self.pins = layers, each, shared, frozenset(pins)
        part, over = divmod(slots, layers)
        self.sizes = [slots] if shared else [part + (m < over) for m in range(layers)]
        self.held: list[set[int]] = [set() for _ in self.sizes]
        self.waiting: list[list[int]] = [[] for _ in self.sizes]  # who may leave, as given back
        self.layer = 0

    def begin_token(self) -> None:
        """The first layer of a token comes next."""

    def touch(self, experts: Sequence[int]) -> list[int]:
        """Uses the experts of a layer; returns those that had to be read."""
        if not experts:
            return []
        self.layer = experts[0] // self.each
        place = 0 if self.shared else self.layer
        held, waiting = self.held[place], self.waiting[place]
        found = [x for x in experts if x in held]
        missing = [x for x in experts if x not in held]
        for x in found:
            if x in waiting:
                waiting.remove(x)
            self.use(x)
        for x in missing:
            if len(held) == self.sizes[place]:
                leaves = self.victim(waiting)
                waiting.remove(leaves)
                held.remove(leaves)
            held.add(x)
        waiting += [x for x in found if x not in self.pins]
        for x in missing:
            self.use(x)
            waiting += [x] if x not in self.pins else []
        return missing

    def use(self, expert: int) -> None:
        """What a rule wants to know of an expert that is used."""

    def victim(self, waiting: list[int]) -> int:
        """Who leaves."""
        return waiting[0]


class Frequency(Lru):
    """The one with the fewest uses leaves; of those, the first."""

    most, uses_an_expert = MOST_USES, USES_AN_EXPERT

    def __init__(
        self, layers: int, each: int, slots: int, shared: bool, pins: Collection[int] = ()
    ) -> None:
        super().__init__(layers, each, slots, shared, pins)
        self.counts = [0] * (layers * each)
        self.uses = 0

    def use(self, expert: int) -> None:
        self.counts[expert] = min(self.counts[expert] + 1, self.most)
        self.uses += 1
        if self.uses == self.uses_an_expert * self.layers * self.each:
            self.uses = 0
            for waiting in self.waiting:  # of two that become equal, the one with fewer is first
                waiting.sort(key=self.counts.__getitem__)
            self.counts = [count // 2 for count in self.counts]

    def victim(self, waiting: list[int]) -> int:
        return min(waiting, key=self.counts.__getitem__)


class LeastStale(Lru):
    """The one whose layer has run most often since it was used leaves.

    Then the one whose layer's turn comes last, then the first.
    """

    def __init__(
        self, layers: int, each: int, slots: int, shared: bool, pins: Collection[int] = ()
    ) -> None:
        super().__init__(layers, each, slots, shared, pins)
        self.token = 0
        self.used: dict[int, int] = {}  # run of its layer; every layer runs once a token

    def begin_token(self) -> None:
        self.token += 1

    def use(self, expert: int) -> None:
        self.used[expert] = self.token

    def victim(self, waiting: list[int]) -> int:
        def staleness(x: int) -> tuple[int, int]:
            layer = x // self.each
            runs = self.token - (layer > self.layer)
            return runs - self.used[x], (layer - self.layer - 1) % self.layers

        return max(waiting, key=staleness)


ORACLES = {"lru": Lru, "frequency": Frequency, "least-stale": LeastStale}
