# SPDX-License-Identifier: Apache-2.0
"""Capstone's text of instructions, and what the decoders share to read it."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import Any

from colibri.errors import SizeError
from colibri.fit.stack.program import Program

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
        self._groups: dict[int, int] = {}

    def at(self, address: int) -> tuple[int, str, str, str] | None:
        """Size, mnemonic, operands and condition of the instruction, or None."""
        if address not in self._known:
            self._sweep(address)
        return self._known.get(address)

    def skip(self, address: int) -> int | None:
        """Bytes behind a conditional instruction of Thumb that have its condition too.

        None for one that follows another of the same condition: it is not reached alone.
        """
        return self._groups.get(address, 0) if self._groups.get(address, 0) >= 0 else None

    def known(self, address: int) -> tuple[int, str, str, str] | None:
        """The same, of what has been looked at already."""
        return self._known.get(address)

    def _sweep(self, address: int) -> None:
        """A run, not ending within an IT block: its conditions are in the block's first word."""
        data = self.program.read(address, RUN * _LONGEST)
        waiting: list[str] = []
        found = self._disassembler.disasm_lite(data, address)
        for count, (at, size, mnemonic, operands) in enumerate(found):
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
        self._group(address)

    def _group(self, address: int) -> None:
        """Runs of one condition: their first has the length of the others, these have -1."""
        run: list[tuple[int, int]] = []
        last = ""
        at = address
        while (known := self._known.get(at)) is not None:
            if known[3] and known[3] == last:
                run.append((at, known[0]))
                self._groups[at] = -1
            else:
                self._close(run)
                run = [(at, known[0])] if known[3] else []
            last = known[3]
            at += known[0]
        self._close(run)

    def _close(self, run: list[tuple[int, int]]) -> None:
        if len(run) > 1:
            self._groups[run[0][0]] = sum(size for _, size in run[1:])


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
