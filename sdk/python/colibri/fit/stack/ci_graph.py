# SPDX-License-Identifier: Apache-2.0
"""The call graph of GCC's .ci files alone: for CPUs whose code is not read, or without Capstone."""

from __future__ import annotations

from colibri.fit.stack.declared import Declared, matches
from colibri.fit.stack.graph import Edge, Node
from colibri.fit.stack.usage_files import INDIRECT, UsageFiles


class CiGraph:
    """Nodes of all functions that the files name."""

    def __init__(self, usage: UsageFiles, declared: Declared) -> None:
        self.usage, self.declared = usage, declared
        called = {callee for callees in usage.calls.values() for callee in callees}
        self.names = sorted({*usage.frames, *usage.calls, *called} - {INDIRECT})
        self._numbers = {name: index for index, name in enumerate(self.names)}
        self.nodes = [self._node(name) for name in self.names]
        found = ((index, declared.turns((name,))) for index, name in enumerate(self.names))
        self.turns = {index: turns for index, turns in found if turns is not None}
        self._called = called

    def _node(self, name: str) -> Node:
        node, said = Node(name, source="ci"), self.usage.frame((name,))
        given = self.declared.frame((name,))
        node.frame = max(said.bytes if said is not None else 0, given or 0)
        if given is None and said is None:
            node.unknown.append("frame: no .su or .ci file has it")
        elif given is None and said is not None and not said.bounded:
            node.unknown.append("frame: gcc says that its size depends on the input (dynamic)")
        for callee in sorted(self.usage.calls.get(name, ())):
            for target in self._targets(node, name, callee):
                node.edges.append(Edge(self._numbers[target], node.frame))
        return node

    def _targets(self, node: Node, name: str, callee: str) -> list[str]:
        if callee != INDIRECT:
            return [callee]
        callees = self.declared.callees((name,))
        if callees is None:
            node.unknown.append("indirect call: declare it in [stack.calls]")
            return []
        node.unknown += [f"no file defines the group {group}" for group in callees.missing]
        return [n for n in self.names if any(matches(p, (n,)) for p in callees.patterns)]

    def find(self, pattern: str) -> list[int]:
        """Nodes that an entry's name or pattern means."""
        return [index for index, name in enumerate(self.names) if matches(pattern, (name,))]

    def roots(self) -> list[int]:
        """Functions that no other calls, of those with a frame."""
        return [
            index
            for index, name in enumerate(self.names)
            if name not in self._called and name in self.usage.frames
        ]
