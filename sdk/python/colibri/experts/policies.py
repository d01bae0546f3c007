# SPDX-License-Identifier: Apache-2.0
"""Who leaves when a cache of experts is full.

A *step* is one token in one layer: its experts are in use together. Those that are there are
hits; the others are read, and for each one that finds no free slot an expert leaves that is not
of this step. So a cache needs as many slots as a token has choices. Of a step those that were
there are used first, then those that were read, each by number: as the runtime does it.

Experts are numbers: ``place of the layer * experts of a layer + expert``. A cache may serve one
layer or all of them; the policies are the same.

`Policy` is all that a replay asks for, so that the runtime's own cache can stand in for a policy
here. `Belady` knows the future and exists only for comparison.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

NEVER = 1 << 62
#: Frequency halves its counts after so many uses for each expert.
USES_AN_EXPERT = 16


class Policy(Protocol):
    """A cache of experts with its rule."""

    def touch(self, experts: Sequence[int]) -> list[int]:
        """Uses the experts of one step; returns those that had to be read, in the same order."""
        ...


class Lru:
    """The least recently used expert leaves."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.held: dict[int, None] = {}  # the oldest first

    def touch(self, experts: Sequence[int]) -> list[int]:
        """See `Policy`."""
        held = self.held
        missing = [x for x in experts if x not in held]
        found = [x for x in experts if x in held]
        for x in found:  # in use: not to be found by victim
            del held[x]
        self.use(found)
        while len(held) + len(experts) > self.slots:
            del held[self.victim()]
        self.use(missing)
        for x in found + missing:
            held[x] = None
        return missing

    def use(self, experts: Sequence[int]) -> None:
        """What a rule wants to know of the experts that are used."""

    def victim(self) -> int:
        """Which of `held` leaves."""
        return next(iter(self.held))


class Frequency(Lru):
    """The expert with the fewest uses leaves, the least recently used of them first.

    Uses count whether the expert is held or not, and all are halved after `USES_AN_EXPERT` uses
    for each expert there is, so that what was hot in an earlier part of a text does not stay
    forever.

    Parameters
    ----------
    experts : int
        That the cache serves: of a layer, or of all layers.
    """

    def __init__(self, slots: int, experts: int) -> None:
        super().__init__(slots)
        self.counts: dict[int, int] = {}
        self.period = USES_AN_EXPERT * experts
        self.uses = 0

    def use(self, experts: Sequence[int]) -> None:
        for x in experts:
            self.counts[x] = self.counts.get(x, 0) + 1
            self.uses += 1
            if self.uses == self.period:
                self.uses = 0
                self.counts = {x: count >> 1 for x, count in self.counts.items()}

    def victim(self) -> int:
        # Halving may come to 0, not remove: whoever is held has a count.
        return min(self.held, key=self.counts.__getitem__)


class Belady(Lru):
    """The expert whose next use is furthest away leaves: nobody can miss less.

    L. A. Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems
    Journal 5(2), 1966. It holds for steps too: all choices of a step must be there at once,
    whatever the rule.
    """

    def __init__(self, slots: int, steps: Sequence[Sequence[int]]) -> None:
        super().__init__(slots)
        self.future: dict[int, list[int]] = {}  # the next use last
        self.next: dict[int, int] = {}
        for at in range(len(steps) - 1, -1, -1):
            for x in steps[at]:
                self.future.setdefault(x, [NEVER]).append(at)

    def use(self, experts: Sequence[int]) -> None:
        for x in experts:
            self.future[x].pop()
            self.next[x] = self.future[x][-1]

    def victim(self) -> int:
        return max(self.held, key=self.next.__getitem__)


class LeastStale:
    """The stalest expert leaves: the one whose layer has run most often since it was used.

    Layers run in a fixed circle. In a cache that all layers share, plain age tells little: what
    the next layer needs was always used long ago, and LRU throws it out just before its turn.
    Counting runs of the expert's own layer, an expert that its layer has just passed over is
    staler than one that its layer has not asked for yet. Of two that are equally stale the one
    whose layer's turn comes later leaves, then the least recently used.

    After the idea of Least-Stale eviction in SpecMD (arXiv 2602.03921), whose exact rule is not
    repeated here. In a cache of one layer, without prefetching, it is LRU.
    """

    def __init__(self, slots: int, experts: int, layers: int) -> None:
        self.slots, self.experts, self.layers = slots, experts, layers
        self.runs = [0] * layers
        self.held: list[dict[int, int]] = [{} for _ in range(layers)]  # run of the last use
        self.count = 0

    def touch(self, experts: Sequence[int]) -> list[int]:
        """See `Policy`."""
        here = experts[0] // self.experts % self.layers
        held = self.held[here]
        self.runs[here] += 1
        missing = [x for x in experts if x not in held]
        found = [x for x in experts if x in held]
        for x in found:
            del held[x]
        self.count += len(missing)
        while self.count > self.slots:
            self._evict(here)
        for x in found + missing:
            held[x] = self.runs[here]
        return missing

    def _evict(self, here: int) -> None:
        """Of each layer only the oldest can be the one."""
        most, layer = -1, -1
        for other, held in enumerate(self.held):
            if held:
                stale = self.runs[other] - held[next(iter(held))]
                rank = stale * self.layers + (other - here - 1) % self.layers
                if rank > most:
                    most, layer = rank, other
        del self.held[layer][next(iter(self.held[layer]))]
        self.count -= 1


class PinnedLru:
    """Some experts stay once they have been read; LRU in the slots that are not kept for them."""

    def __init__(self, slots: int, pinned: Collection[int]) -> None:
        self.pinned = frozenset(pinned)
        self.read: set[int] = set()
        self.rest = Lru(slots - len(self.pinned))

    def touch(self, experts: Sequence[int]) -> list[int]:
        """See `Policy`."""
        missing = [x for x in experts if x in self.pinned and x not in self.read]
        self.read.update(missing)
        return missing + self.rest.touch([x for x in experts if x not in self.pinned])


def hottest(heat: Iterable[tuple[int, int]], count: int) -> list[int]:
    """The `count` experts with the most uses of (expert, uses); of equal ones the lowest."""
    ordered = sorted(heat, key=lambda each: (-each[1], each[0]))
    return [expert for expert, _ in ordered[:count]]
