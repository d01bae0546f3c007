# SPDX-License-Identifier: Apache-2.0
"""Capstone's text of instructions, and what the decoders share to read it."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import Any

from colibri.errors import SizeError
from colibri.fit.stack.program import Program
from colibri.fit.stack.steps import Effect, Flow, Step

#: Instructions that are disassembled at a time.
RUN = 64
_LONGEST = 4
_NUMBER = re.compile(r"#?(-?)(0x[0-9a-f]+|\d+)")


def capstone() -> Any:
    """The module.

    Raises
    ------
    SizeError
        It is not installed.
    """
    if find_spec("capstone") is None:
        raise SizeError(
            "reading machine code needs the package capstone",
            field="--stack",
            hint='pip install "colibri-sdk[stack]", or give --su DIR with the .ci files of gcc',
        )
    import capstone as module

    return module


class Text:
    """Disassembles runs of instructions and remembers them by address."""

    def __init__(self, program: Program, disassembler: Any) -> None:
        self.program = program
        self._disassembler = disassembler
        self._known: dict[int, tuple[int, str, str, str]] = {}
        self._skips: dict[int, int | None] = {}
        self._extra: dict[int, int] = {}

    def at(self, address: int) -> tuple[int, str, str, str] | None:
        """Size, mnemonic, operands and condition of the instruction, or None."""
        if address not in self._known:
            self._sweep(address)
        return self._known.get(address)

    def skip(self, address: int) -> int | None:
        """Bytes behind a conditional Thumb instruction that are not executed with it.

        None for one that is reached only when it is executed.
        """
        return self._skips.get(address, 0)

    def extra(self, address: int) -> int:
        """Bytes behind it that have the opposite condition: executed, it goes on behind them."""
        return self._extra.get(address, 0)

    def known(self, address: int) -> tuple[int, str, str, str] | None:
        """The same, of what has been looked at already."""
        return self._known.get(address)

    def _sweep(self, address: int) -> None:
        """A run, not ending within an IT block: its conditions are in the block's first word."""
        data = self.program.read(address, RUN * _LONGEST)
        waiting: list[str] = []
        swept: list[int] = []
        found = self._disassembler.disasm_lite(data, address)
        for count, (at, size, mnemonic, operands) in enumerate(found):
            if at in self._known and not waiting:
                break
            swept.append(at)
            condition = waiting.pop(0) if waiting else ""
            if condition and mnemonic.endswith(condition):
                mnemonic = mnemonic[: -len(condition)]
            elif condition and mnemonic.endswith(condition + ".w"):
                mnemonic = mnemonic[: -len(condition) - 2]
            self._known[at] = (size, mnemonic, operands, condition)
            if _IT.fullmatch(mnemonic):
                waiting = _conditions(mnemonic, operands)
            if count >= RUN - 8 and not waiting:
                break
        self._group(swept, whole=not waiting)

    def _group(self, swept: list[int], whole: bool) -> None:
        """IT blocks: one path of the instructions with its condition, one of the others."""
        block: list[int] = []
        for at in swept:
            if self._known[at][3]:
                block.append(at)
            elif block:
                self._split(block)
                block = []
        if block and whole:
            self._split(block)

    def _split(self, block: list[int]) -> None:
        """A block in which nothing sets the flags; in others each instruction is its own."""
        if any(_SETS_FLAGS.match(self._known[at][1]) for at in block):
            return
        runs: list[list[int]] = []
        for at in block:
            same = runs and self._known[runs[-1][-1]][3] == self._known[at][3]
            runs[-1].append(at) if same else runs.append([at])
        length = [sum(self._known[at][0] for at in run) for run in runs]
        for at in block:
            self._skips[at] = None
        self._skips[block[0]] = length[0] - self._known[block[0]][0]
        for run, following in zip(runs, length[1:], strict=False):
            self._extra[run[-1]] = following


_SETS_FLAGS = re.compile(
    r"cmp|cmn|tst|teq|vmrs|bl|(add|sub|and|orr|eor|bic|rsb|adc|sbc|ls[lr]|asr|mov|mvn|mul)s"
)
_IT = re.compile(r"it[te]{0,3}")
_OPPOSITE = {"eq": "ne", "hs": "lo", "mi": "pl", "vs": "vc", "hi": "ls", "ge": "lt", "gt": "le"}
_OPPOSITE |= {b: a for a, b in _OPPOSITE.items()}


def _conditions(mnemonic: str, first: str) -> list[str]:
    """The conditions of an IT block's instructions; ``al`` has no suffix."""
    if first == "al":
        return [""] * len(mnemonic[1:])
    return [first if c == "t" else _OPPOSITE.get(first, first) for c in mnemonic[1:]]


def number(text: str) -> int | None:
    """``#-0x10``, ``16`` or ``#8``."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    value = int(match[2], 0)
    return -value if match[1] else value


def operands(text: str) -> list[str]:
    """Operands; what stands in brackets or braces is one."""
    parts, depth, start = [], 0, 0
    for index, letter in enumerate(text):
        if letter in "[{":
            depth += 1
        elif letter in "]}":
            depth -= 1
        elif letter == "," and depth == 0:
            parts.append(text[start:index].strip())
            start = index + 1
    rest = text[start:].strip()
    return [*parts, rest] if rest else parts


class InstructionText:
    """One instruction as Capstone writes it: what the readers of all CPUs start from."""

    def __init__(self, address: int, size: int, name: str, text: str) -> None:
        self.address, self.size, self.name, self.text = address, size, name, text
        self.parts = operands(text)

    def make(
        self,
        flow: Flow = Flow.NEXT,
        target: int | str | None = None,
        effects: tuple[Effect, ...] = (),
        *,
        maybe: bool = False,
        targets: tuple[int, ...] = (),
        literal: tuple[int, int] | None = None,
    ) -> Step:
        """The step that it is."""
        text = f"{self.name} {self.text}".strip()
        return Step(self.size, flow, target, maybe, effects, targets, literal, text=text)
