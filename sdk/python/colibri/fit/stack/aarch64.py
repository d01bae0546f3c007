# SPDX-License-Identifier: Apache-2.0
"""AArch64 instructions as steps."""

from __future__ import annotations

import re

from colibri.fit.stack.disassembler import InstructionText, Text, capstone, number
from colibri.fit.stack.program import Program
from colibri.fit.stack.steps import SP, Effect, Flow, Step, kill

LINK = "x30"
ARGUMENTS = tuple(f"x{i}" for i in range(8))
SCRATCH = (*(f"x{i}" for i in range(19)), LINK)
_REGISTER = re.compile(r"[wx](\d\d?|zr)|sp|wsp|fp|lr")
_MEMORY = re.compile(r"\[(\w+)(?:, ([^\]]+))?\](!?)")
_WRITE_NOTHING = re.compile(
    r"cmp|cmn|tst|ccm[np]|fc?cmpe?|nop|dsb|dmb|isb|msr|wf[ei]t?|sevl?|yield|hint|bti|csdb|esb"
    r"|clrex|svc|hvc|smc|tlbi|dc|ic|at|sys"
)
_TRAPS = frozenset(("brk", "hlt", "udf", "dcps1", "dcps2", "dcps3"))
_BRANCHES = frozenset(("cbz", "cbnz", "tbz", "tbnz"))


class Aarch64Decoder:
    """Steps of AArch64 code."""

    bits = 64
    link = LINK
    arguments = ARGUMENTS
    scratch = SCRATCH

    def __init__(self, program: Program) -> None:
        cs = capstone()
        self._program = program
        self._text = Text(program, cs.Cs(cs.CS_ARCH_ARM64, cs.CS_MODE_LITTLE_ENDIAN))

    def step(self, pointer: int) -> Step | None:
        """The instruction at an address; one that is unknown there is a vector one, or new."""
        if pointer & 3:
            return None
        found = self._text.at(pointer)
        if found is None:
            return self._unknown(pointer)
        size, name, text, _ = found
        return _Reader(self._program, pointer, size, name, text).step()

    def _unknown(self, address: int) -> Step | None:
        """Groups by bits 28..25: SVE and SME (2, 0 with bit 31), SIMD (7, 15) leave sp alone."""
        data = self._program.read(address, 4)
        if len(data) < 4:
            return None
        word = int.from_bytes(data, "little")
        group = word >> 25 & 15
        if group == 2:
            return Step(4, effects=kill(f"x{word & 31}"), text="sve")
        if group == 0 and word >> 31:
            return Step(4, text="sme")
        if group in (7, 15):
            return Step(4, effects=kill(f"x{word & 31}"), text="simd")
        return None


def _full(register: str) -> str:
    """The 64-bit name: a write to w3 is one to x3."""
    if register in ("fp", "x29", "w29"):
        return "x29"
    if register == "lr":
        return LINK
    if register == "wsp":
        return SP
    return "x" + register[1:] if register[0] == "w" else register


class _Reader(InstructionText):
    """One instruction's text."""

    def __init__(self, program: Program, address: int, size: int, name: str, text: str) -> None:
        super().__init__(address, size, name, text)
        self.program = program

    def step(self) -> Step:
        name = self.name
        if name in _TRAPS:
            return self.make(Flow.STOP)
        if name.startswith("ret") or name in ("eret", "eretaa", "eretab", "drps"):
            if self.parts and _full(self.parts[0]) != LINK:
                return self.make(Flow.JUMP, _full(self.parts[0]))
            return self.make(Flow.RETURN)
        if name in ("b", "bl") or name.startswith("b.") or name in _BRANCHES:
            flow = Flow.CALL if name == "bl" else Flow.JUMP
            return self.make(flow, number(self.parts[-1]), maybe=name not in ("b", "bl"))
        if name.startswith("blr"):
            return self.make(Flow.CALL, _full(self.parts[0]))
        if name == "br" or name.startswith("bra"):
            return self.make(Flow.JUMP, _full(self.parts[0]))
        if any(part.startswith("[") for part in self.parts):
            return self.access()
        return self.arithmetic()

    def access(self) -> Step:
        """Loads and stores: bases that are written back, registers that are loaded."""
        index = next(i for i, part in enumerate(self.parts) if part.startswith("["))
        match = _MEMORY.fullmatch(self.parts[index])
        behind = self.parts[index + 1 :]
        effects: tuple[Effect, ...] = ()
        if match is not None:
            base, offset = (
                _full(match[1]),
                match[2] if match[3] else (behind[0] if behind else None),
            )
            if offset is not None:
                by = number(offset)
                effects = kill(base) if by is None else (Effect("add", base, base, by),)
        if not self.name.startswith(("st", "prf")) or self.name.startswith(("stx", "stlx")):
            effects += kill(*self.general(self.parts[:index]))
        return self.make(effects=effects)

    def arithmetic(self) -> Step:
        if not self.parts or _WRITE_NOTHING.fullmatch(self.name):
            return self.make()
        if self.name.startswith("ldr") and number(self.parts[-1]) is not None:
            return self.literal()
        into = _full(self.parts[0])
        narrow = self.parts[0][0] == "w" and self.parts[0] != "wsp"
        effects = self.understood(into, self.parts[1:], narrow)
        if effects is None:
            effects = kill(*self.general(self.parts[:1]))
        return self.make(effects=effects)

    def literal(self) -> Step:
        """A constant among the code."""
        at, register = number(self.parts[-1]) or 0, self.parts[0]
        size = 4 if register[0] in "ws" or self.name == "ldrsw" else 8
        value = self.program.number(at, size)
        general = self.general([register])
        effects = kill(*general)
        if general and value is not None and self.name == "ldr":
            effects = (Effect("set", _full(register), value=value),)
        return self.make(effects=effects, literal=(at, at + size))

    def understood(self, into: str, rest: list[str], narrow: bool) -> tuple[Effect, ...] | None:
        name = self.name
        if name in ("adr", "adrp") or (name in ("mov", "movz") and number(rest[0]) is not None):
            value = number(rest[0]) or 0
            if len(rest) > 1:
                value <<= number(rest[1].removeprefix("lsl ")) or 0
            return (Effect("set", into, value=value & 0xFFFF_FFFF if narrow else value),)
        if name == "mov" and _REGISTER.fullmatch(rest[0]):
            return None if narrow else (Effect("add", into, _full(rest[0])),)
        if name == "movk":
            at = number(rest[1].removeprefix("lsl ")) or 0 if len(rest) > 1 else 0
            return (Effect("insert", into, into, number(rest[0]) or 0, at=at),)
        if name == "movn" and number(rest[0]) is not None:
            value = number(rest[0]) or 0
            if len(rest) > 1:
                value <<= number(rest[1].removeprefix("lsl ")) or 0
            return (Effect("set", into, value=~value & 0xFFFF_FFFF if narrow else ~value),)
        if name in ("add", "sub", "adds", "subs") and len(rest) >= 2 and not narrow:
            return self.added(into, name.startswith("sub"), rest)
        if name == "csel" and not narrow:
            return (Effect("either", into, _full(rest[0]), other=_full(rest[1])),)
        if name == "and" and len(rest) == 2 and number(rest[1]) is not None and not narrow:
            return (Effect("mask", into, _full(rest[0]), number(rest[1]) or 0),)
        if name == "lsl" and len(rest) == 2 and number(rest[1]) is not None and not narrow:
            return (Effect("shift", into, _full(rest[0]), number(rest[1]) or 0),)
        return None

    def added(self, into: str, minus: bool, rest: list[str]) -> tuple[Effect, ...] | None:
        source, by, shift = _full(rest[0]), number(rest[1]), 0
        if len(rest) == 3:
            kind, _, amount = rest[2].partition(" ")
            if kind not in ("lsl", "uxtx", "uxtw"):
                return None
            shift = number(amount) or 0 if amount else 0
        if by is not None:
            return (Effect("add", into, source, (-by if minus else by) << shift),)
        if not _REGISTER.fullmatch(rest[1]):
            return None
        kind = "difference" if minus else "sum"
        return (Effect(kind, into, source, shift, _full(rest[1])),)

    @staticmethod
    def general(registers: list[str]) -> list[str]:
        return [_full(r) for r in registers if _REGISTER.fullmatch(r)]
