# SPDX-License-Identifier: Apache-2.0
"""What the conformance test of a kernel table found (``sdk/c/conformance/conformance.h``)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from colibri import _core

Level = Literal["quick", "full"]
LEVELS: tuple[Level, ...] = get_args(Level)  # by their number in C

_OPERATIONS = ("", "quantize", "matmul", "rms_norm", "silu_gate", "attend")
_WRONG = ("", "value", "outside", "input")
_ORDERS = ("rows", "tiles")
_TYPES = {number: name for name, number in _core.TYPES.items()}
_WORDS = 16  # of colibri_conformance_result


@dataclass(frozen=True)
class Case:
    """One call of an operation.

    For ``attend``, `type` is the cache's, `rows` are positions, `columns` the head size, `tokens`
    the value size; for vectors `columns` is the length.  `numbers` is the class of values.
    """

    operation: str
    type: str
    order: str
    group: int
    rows: int
    columns: int
    tokens: int
    numbers: int


@dataclass(frozen=True)
class Failure:
    """The first difference: what was wrong, at which element, and the bits.

    `wrong` is ``value`` (another number), ``outside`` (a write where there is no output; `index`
    is relative to the output) or ``input`` (input number `index` was changed).
    """

    case: Case
    wrong: str
    index: int
    want: str
    got: str

    def __str__(self) -> str:
        c = self.case
        sizes = f"rows {c.rows}, columns {c.columns}, tokens {c.tokens}"
        if c.operation == "attend":
            sizes = f"positions {c.rows}, head size {c.columns}, value size {c.tokens}"
        elif c.operation != "matmul":
            sizes = f"length {c.columns}"
        what = {
            "value": f"element {self.index} is {self.got}, not {self.want}",
            "outside": f"wrote {self.got} outside its output, at element {self.index}",
            "input": f"changed its input {self.index}",
        }[self.wrong]
        group = f", group {c.group}" if c.group else ""
        order = f", order {c.order}" if c.operation == "matmul" else ""
        return f"{c.operation} {c.type}{group}{order}, {sizes}, numbers {c.numbers}: {what}"


@dataclass(frozen=True)
class Verdict:
    """The outcome of all cases, or of a part of them.

    `crc32` covers all outputs and is one number on every CPU; `first` is None when all is well.
    """

    cases: int
    failures: int
    crc32: str
    first: Failure | None
    part: Case
    scratch: int
    instructions: int | None = None

    @classmethod
    def from_words(cls, words: Sequence[int], instructions: int | None = None) -> Verdict:
        """From the words of ``colibri_conformance_result``."""
        operation, type, order, *sizes = words[:8]
        cases, failures, crc32, wrong, index, want, got, scratch = words[8:_WORDS]
        case = Case(_OPERATIONS[operation], _TYPES[type], _ORDERS[order], *sizes)
        (signed,) = struct.unpack("<i", struct.pack("<I", index))
        first = None
        if wrong:
            first = Failure(case, _WRONG[wrong], signed, f"{want:#010x}", f"{got:#010x}")
        return cls(cases, failures, f"{crc32:08x}", first, case, scratch, instructions)

    def to_json(self) -> dict[str, Any]:
        """As ``colibri kernels test --json`` prints it."""
        return {
            "cases": self.cases,
            "failures": self.failures,
            "crc32": self.crc32,
            "instructions": self.instructions,
            "first": asdict(self.first) if self.first else None,
        }


def conformance(table: str, level: Level = "full") -> tuple[Verdict, list[Verdict]]:
    """Runs the test for a table of this machine.

    Parameters
    ----------
    table : str
        One of `_core.kernels()`.
    level : {"full", "quick"}
        All lengths, or selected ones.

    Returns
    -------
    total : Verdict
    parts : list of Verdict
        By operation, type, order and group.
    """
    total, parts = _core.Kernels(table).conformance(LEVELS.index(level))
    return Verdict.from_words(total), [Verdict.from_words(part) for part in parts]
