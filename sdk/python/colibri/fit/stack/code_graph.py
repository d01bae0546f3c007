# SPDX-License-Identifier: Apache-2.0
"""The call graph of a program: walked from its entries, completed by what is declared.

Frames of GCC's files, when they are given, are held against the code's.  Where the file's is
larger, or the code's is not known, the file's counts at each call; else calls keep their depths.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from colibri.fit.stack.aarch64 import Aarch64Decoder
from colibri.fit.stack.arm import ArmDecoder
from colibri.fit.stack.declared import Declared, matches, table_pattern
from colibri.fit.stack.graph import Edge, Node
from colibri.fit.stack.program import Function, Program
from colibri.fit.stack.riscv import RiscvDecoder
from colibri.fit.stack.usage_files import UsageFiles
from colibri.fit.stack.walk import Body, Call, Decoder, walk

#: Functions that are followed; a file that has more says so.
MOST_FUNCTIONS = 200_000
_DECODERS: dict[str, Any] = {
    "ARM": ArmDecoder,
    "AARCH64": Aarch64Decoder,
    "RISCV": RiscvDecoder,
}


def decoder_for(program: Program) -> Decoder:
    """The decoder of a program's CPU."""
    decoder: Decoder = _DECODERS[program.elf.machine](program)
    return decoder


class CodeGraph:
    """Nodes of all functions that the entries reach.

    Parameters
    ----------
    program : Program
        The code.
    declared : Declared
        Targets of indirect calls, frames, depths.
    usage : UsageFiles, optional
        Frames as GCC has them.
    """

    def __init__(
        self, program: Program, declared: Declared, usage: UsageFiles | None = None
    ) -> None:
        self.program, self.declared, self.usage = program, declared, usage
        self.decoder = decoder_for(program)
        if not program.has_functions:
            program.discover(self.decoder)
        self.nodes: list[Node] = []
        self.functions: list[Function] = []
        self.turns: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        self._waiting: list[int] = []
        self._named: list[Function] | None = None

    def add(self, pointers: Sequence[int]) -> list[int]:
        """Nodes of functions, with everything that they reach."""
        numbers = [self._number(pointer) for pointer in pointers]
        while self._waiting:
            index = self._waiting.pop()
            self._fill(index, walk(self.program, self.decoder, self.functions[index]))
        return numbers

    def _number(self, pointer: int) -> int:
        function = self.program.function(pointer)
        number = self._numbers.get(function.start)
        if number is None:
            number = self._numbers[function.start] = len(self.nodes)
            self.nodes.append(Node(function.name))
            self.functions.append(function)
            self._waiting.append(number)
        return number

    def _fill(self, index: int, body: Body) -> None:
        node, names = self.nodes[index], body.function.names
        if len(self.nodes) > MOST_FUNCTIONS:
            node.unknown.append(f"more than {MOST_FUNCTIONS:,} functions: the rest is left out")
            return
        node.frame, node.notes = body.frame, body.notes
        problems = [f"frame: it {problem}" for problem in body.problems]
        same = self._compare(node, names, problems)
        given = self.declared.frame(names)
        if problems and given is not None:
            node.frame, node.source, problems, same = max(node.frame, given), "declared", [], False
        node.unknown += problems
        depths = [call.depth if same and call.depth is not None else None for call in body.calls]
        for call, depth in zip(body.calls, depths, strict=True):
            self._add_call(node, call, node.frame if depth is None else depth, names)
        turns = self.declared.turns(names)
        if turns is not None:
            self.turns[index] = turns

    def _compare(self, node: Node, names: Sequence[str], problems: list[str]) -> bool:
        """Takes GCC's frame in; whether the depths of the code's calls still hold."""
        said = self.usage.frame(names) if self.usage is not None else None
        if said is None:
            return True
        if not said.bounded:
            if not problems:
                problems.append("frame: gcc says that its size depends on the input (dynamic)")
            node.frame = max(node.frame, said.bytes)
            return False
        if problems and said.bytes >= node.frame:
            problems.clear()
        if said.bytes == node.frame:
            return True
        node.notes.append(f"the code takes {node.frame:,} B, the .su file says {said.bytes:,} B")
        if said.bytes < node.frame:
            return True
        node.frame, node.source = said.bytes, "su"
        return False

    # -- calls ----------------------------------------------------------------------------------

    def _add_call(self, node: Node, call: Call, depth: int, names: Sequence[str]) -> None:
        at = f"at {self.program.plain(call.at):#x}"
        if call.target is None:
            self._add_indirect(node, depth, names, f"{'jump' if call.tail else 'call'} {at}")
        elif self.program.is_code(self.program.plain(call.target)):
            node.edges.append(Edge(self._number(call.target), depth))
        else:
            what = f"calls {call.target:#x} {at}, which is not in this file"
            self._add_declared(node, depth, names, what)

    def _add_indirect(self, node: Node, depth: int, names: Sequence[str], what: str) -> None:
        self._add_declared(node, depth, names, f"indirect {what}: declare it in [stack.calls]")

    def _add_declared(self, node: Node, depth: int, names: Sequence[str], what: str) -> None:
        callees = self.declared.callees(names)
        if callees is None:
            node.unknown.append(what)
            return
        node.unknown += [f"{what}; no file defines the group {name}" for name in callees.missing]
        targets = {pointer for pattern in callees.patterns for pointer in self._targets(pattern)}
        if callees.patterns and not targets and not callees.groups:
            shown = ", ".join(callees.patterns[:4])
            node.unknown.append(f"{what}; none of {shown} is in this file")
        for pointer in sorted(targets):
            node.edges.append(Edge(self._number(pointer), depth))

    def _targets(self, pattern: str) -> list[int]:
        """Functions that a declared callee means."""
        table = table_pattern(pattern)
        if table is None:
            return [f.start for f in self._all() if matches(pattern, f.names)]
        objects, which = table
        found: list[int] = []
        for name, places in self.program.objects.items():
            if matches(objects, (name,)):
                for address, size in places:
                    pointers = self.program.pointers_in(address, size)
                    found += pointers if which is None else pointers[which : which + 1]
        return found

    def _all(self) -> list[Function]:
        if self._named is None:
            self._named = self.program.functions()
        return self._named

    def find(self, pattern: str) -> list[int]:
        """Starts of the functions that an entry's name or pattern means."""
        return [f.start for f in self._all() if matches(pattern, f.names)]
