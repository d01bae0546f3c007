# SPDX-License-Identifier: Apache-2.0
"""The best that a cache of experts could do, and what is worth pinning.

A *step* is one token in one layer: its experts are in use together. Those that are there are
hits; the others are read, and for each one that finds no free slot an expert leaves that is not
of this step. So a cache needs as many slots as a token has choices.

Experts are numbers: ``place of the layer * experts of a layer + expert``. What the runtime does
when a cache is full is its own (sdk/c/src/expert_cache.c); `Belady` knows the future and exists
only for comparison.
"""

from __future__ import annotations

from collections.abc import Sequence

NEVER = 1 << 62


class Belady:
    """The expert whose next use is furthest away leaves: nobody can miss less.

    L. A. Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems
    Journal 5(2), 1966. It holds for steps too: all choices of a step must be there at once,
    whatever the rule.

    Parameters
    ----------
    slots : int
        For one layer's experts, or for all.
    steps : sequence of sequences of int
        All that `touch` will be called with.
    """

    def __init__(self, slots: int, steps: Sequence[Sequence[int]]) -> None:
        self.slots = slots
        self.held: dict[int, int] = {}  # with the step of the next use
        self.future: dict[int, list[int]] = {}  # the next use last
        for at in range(len(steps) - 1, -1, -1):
            for x in steps[at]:
                self.future.setdefault(x, [NEVER]).append(at)

    def touch(self, experts: Sequence[int]) -> list[int]:
        """Uses the experts of one step; returns those that had to be read, in the same order."""
        missing = [x for x in experts if x not in self.held]
        for x in experts:  # in use: not to be found by max
            self.held.pop(x, None)
        while len(self.held) + len(experts) > self.slots:
            del self.held[max(self.held, key=self.held.__getitem__)]
        for x in experts:
            self.future[x].pop()
            self.held[x] = self.future[x][-1]
        return missing


def hottest_first(heat: Sequence[Sequence[int]]) -> list[int]:
    """Experts that were used at all, from uses by layer: the most used first, then the lowest."""
    flat = [uses for layer in heat for uses in layer]
    return sorted((x for x, uses in enumerate(flat) if uses), key=lambda x: (-flat[x], x))
