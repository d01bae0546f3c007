# SPDX-License-Identifier: Apache-2.0
"""The worst case of a call graph: the deepest sum of frames along any chain of calls.

What is not known is never taken for nothing: a bound says whether it is complete, and what is
missing stands in a list.  Functions that call each other in a circle have a bound only when a depth
is declared for one of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

#: Most activations that may be declared for the functions of one circle.
MOST_TURNS = 10_000
_MOST_STATES = 4_000_000


@dataclass(frozen=True, slots=True)
class Edge:
    """A call of a node, with ``depth`` bytes of the caller's frame below it."""

    target: int
    depth: int


@dataclass(slots=True)
class Node:
    """A function: ``frame`` is its deepest point by itself; ``unknown`` is why it may be deeper."""

    name: str
    frame: int = 0
    source: str = "code"
    edges: list[Edge] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Link:
    """One function of a chain, and the bytes of the chain that are its own."""

    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Unknown:
    """What could make a stack deeper than a bound says, and in which function."""

    function: str
    what: str


@dataclass(frozen=True, slots=True)
class Bound:
    """Stack of a function and all it calls; ``unknown`` is empty when ``bytes`` is the worst."""

    name: str
    bytes: int
    chain: tuple[Link, ...]
    unknown: tuple[Unknown, ...]
    functions: int

    @property
    def complete(self) -> bool:
        return not self.unknown


class Bounds:
    """Bounds of all nodes of a graph.

    Parameters
    ----------
    nodes : sequence of Node
        Edges are indices into it.
    turns : dict of int to int
        For nodes of circles: how many activations there are at most at a time.
    """

    def __init__(self, nodes: Sequence[Node], turns: dict[int, int] | None = None) -> None:
        self.nodes = nodes
        self.turns = turns or {}
        self.worst = [0] * len(nodes)
        #: The call that the worst chain takes: next node and its level, or None at the end.
        self._next: dict[tuple[int, int], tuple[int, int, int] | None] = {}
        self._level = [0] * len(nodes)
        self.circles: list[list[int]] = []
        self._in_open_circle: dict[int, list[int]] = {}
        for group in components(nodes):
            self._solve(group)

    def _solve(self, group: list[int]) -> None:
        """A strongly connected component whose callees have their bounds."""
        own = group[0]
        if len(group) == 1 and all(edge.target != own for edge in self.nodes[own].edges):
            self.worst[own] = self._take(own, 0, ())
            return
        self.circles.append(group)
        members = frozenset(group)
        total = sum(self.turns.get(index, 0) for index in group)
        order = self._order_without_declared(group, members)
        if order is None or not 0 < total <= MOST_TURNS or total * len(group) > _MOST_STATES:
            for index in group:
                self._in_open_circle[index] = group
                self.worst[index] = self._take(index, 0, members)
            return
        below = dict.fromkeys(group, 0)
        for level in range(total + 1):
            below = self._turn(order, members, level, below)
        for index in group:
            self.worst[index], self._level[index] = below[index], total

    def _turn(
        self, order: list[int], members: frozenset[int], level: int, below: dict[int, int]
    ) -> dict[int, int]:
        """Bounds of a circle's members with ``level`` declared activations left."""
        now: dict[int, int] = {}
        for index in order:
            if index in self.turns:
                now[index] = self._take(index, level, members, below) if level else -1
        for index in order:
            if index not in self.turns:
                now[index] = self._take(index, level, members, now)
        return now

    def _take(
        self,
        index: int,
        level: int,
        members: frozenset[int] | tuple[()],
        inside: dict[int, int] | None = None,
    ) -> int:
        """The deepest of a node's frame and its calls, remembering which it was."""
        node, best = self.nodes[index], self.nodes[index].frame
        choice: tuple[int, int, int] | None = None
        for edge in node.edges:
            if edge.target not in members:
                depth, below = edge.depth + self.worst[edge.target], self._level[edge.target]
            elif inside is None or inside.get(edge.target, -1) < 0:
                continue
            else:
                below = level - (index in self.turns)
                depth = edge.depth + inside[edge.target]
            if depth > best:
                best, choice = depth, (edge.target, below, edge.depth)
        self._next[index, level] = choice
        return best

    def _order_without_declared(
        self, group: list[int], members: frozenset[int]
    ) -> list[int] | None:
        """Members so that callees come first, declared ones cut out; None where circles remain."""
        cut = [
            Node("", edges=[e for e in self.nodes[i].edges if e.target in members]) for i in group
        ]
        place = {index: at for at, index in enumerate(group)}
        for node, index in zip(cut, group, strict=True):
            kept = [] if index in self.turns else node.edges
            node.edges = [Edge(place[e.target], 0) for e in kept if e.target not in self.turns]
        parts = components(cut)
        loops = any(edge.target == at for at, node in enumerate(cut) for edge in node.edges)
        if loops or any(len(part) > 1 for part in parts):
            return None
        return [group[part[0]] for part in parts]

    # -- what is asked of it --------------------------------------------------------------------

    def bound(self, index: int) -> Bound:
        """The bound of one node with its chain and all that is unknown below it."""
        reached = self.reached(index)
        return Bound(
            name=self.nodes[index].name,
            bytes=self.worst[index],
            chain=tuple(self._chain(index)),
            unknown=tuple(self._unknown(reached)),
            functions=len(reached),
        )

    def reached(self, index: int) -> list[int]:
        """Nodes that a node may call, directly or not, and itself."""
        seen, waiting = {index}, [index]
        while waiting:
            for edge in self.nodes[waiting.pop()].edges:
                if edge.target not in seen:
                    seen.add(edge.target)
                    waiting.append(edge.target)
        return sorted(seen)

    def _chain(self, index: int) -> Iterator[Link]:
        level = self._level[index]
        while (choice := self._next.get((index, level))) is not None:
            yield Link(self.nodes[index].name, choice[2])
            index, level = choice[0], choice[1]
        yield Link(self.nodes[index].name, self.nodes[index].frame)

    def _unknown(self, reached: list[int]) -> Iterator[Unknown]:
        said = set()
        for index in reached:
            node = self.nodes[index]
            yield from (Unknown(node.name, what) for what in node.unknown)
            circle = self._in_open_circle.get(index)
            if circle is not None and circle[0] not in said:
                said.add(circle[0])
                yield Unknown(node.name, f"is recursive: {self._round(circle)}")

    def _round(self, circle: list[int]) -> str:
        names = [self.nodes[index].name for index in sorted(circle)]
        shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        return f"{shown} call each other" if len(names) > 1 else "it calls itself"


def components(nodes: Sequence[Node]) -> list[list[int]]:
    """Strongly connected components, callees before callers (Tarjan 1972, without recursion)."""
    number = [0] * len(nodes)
    low = [0] * len(nodes)
    on_stack = [False] * len(nodes)
    stack: list[int] = []
    found: list[list[int]] = []
    count = 0
    for root in range(len(nodes)):
        if number[root]:
            continue
        work: list[tuple[int, Iterator[Edge]]] = []
        enter: int | None = root
        while work or enter is not None:
            if enter is not None:
                count += 1
                number[enter] = low[enter] = count
                stack.append(enter)
                on_stack[enter] = True
                work.append((enter, iter(nodes[enter].edges)))
                enter = None
            index, edges = work[-1]
            for edge in edges:
                if not number[edge.target]:
                    enter = edge.target
                    break
                if on_stack[edge.target]:
                    low[index] = min(low[index], number[edge.target])
            if enter is not None:
                continue
            work.pop()
            if work:
                caller = work[-1][0]
                low[caller] = min(low[caller], low[index])
            if low[index] == number[index]:
                group = []
                while True:
                    member = stack.pop()
                    on_stack[member] = False
                    group.append(member)
                    if member == index:
                        break
                found.append(group)
    return found
