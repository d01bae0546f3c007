# SPDX-License-Identifier: Apache-2.0
"""Arm: Thumb, Thumb-2 and A32 instructions as steps."""

from __future__ import annotations

import re
from dataclasses import replace

from colibri.fit.stack.disassembler import InstructionText, Text, capstone, number, operands
from colibri.fit.stack.program import Program
from colibri.fit.stack.steps import SP, Effect, Flow, Step, forget, kill, move_sp

EF_BE8 = 0x0080_0000
LINK = "lr"
ARGUMENTS = ("r0", "r1", "r2", "r3")
#: Lost in a call.
SCRATCH = (*ARGUMENTS, "ip", LINK)
_CONDITIONS = ["eq", "ne", "hs", "lo", "mi", "pl", "vs", "vc", "hi", "ls", "ge", "lt", "gt", "le"]
_NAMES = {"r9": "sb", "r10": "sl", "r11": "fp", "r12": "ip", "r13": SP, "r14": LINK, "r15": "pc"}
_REGISTERS = frozenset((*(f"r{i}" for i in range(13)), *_NAMES.values()))
_WRITE_NOTHING = re.compile(
    r"(v?str|vst|stm|stl|push|vpush|cmp|cmn|tst|teq|vcmp|it|nop|dsb|dmb|isb|pld|pli|cps|wf|sev"
    r"|yield|msr|mcr|cdp|stc|svc|hvc|smc|clrex|hint|dbg|setend|vmsr|sg|bti|pac|aut|csdb|esb).*"
)
_WRITE_TWO = re.compile(r"(ldrd|ldrexd|ldaexd|[us]mull|[us]mlal|umaal|smlal|smlsl|mrrc|ldm|vmov).*")
_LOAD = re.compile(r"ldr(b|h|sb|sh|d|t)?")
_STORE = re.compile(r"str(b|h|d|t)?")
_MOST_ENTRIES = 4096
_TRAPS = frozenset(("udf", "bkpt", "hlt", "trap"))
_MEMORY = re.compile(r"\[(\w+)(?:, (#?-?(?:0x)?[0-9a-f]+|-?\w+.*))?\](!?)")


class ArmDecoder:
    """Steps of Arm code; the lowest bit of an address says Thumb."""

    bits = 32
    link = LINK
    arguments = ARGUMENTS
    scratch = SCRATCH

    def __init__(self, program: Program) -> None:
        cs = capstone()
        big = program.elf.endian == "big" and not program.elf.flags & EF_BE8
        order = cs.CS_MODE_BIG_ENDIAN if big else 0
        self._order = "big" if big else "little"
        self._program = program
        thumb = cs.CS_MODE_THUMB | cs.CS_MODE_V8 | order
        if program.arm_only_thumb:
            thumb |= cs.CS_MODE_MCLASS
        self._thumb = Text(program, cs.Cs(cs.CS_ARCH_ARM, thumb))
        self._arm = Text(program, cs.Cs(cs.CS_ARCH_ARM, cs.CS_MODE_ARM | cs.CS_MODE_V8 | order))

    def step(self, pointer: int) -> Step | None:
        """The instruction that a code pointer means, or None for what is none."""
        thumb, address = pointer & 1, pointer & ~1
        newer = self._newer(address) if thumb else None
        if newer is not None:
            return newer
        found = (self._thumb if thumb else self._arm).at(address)
        if found is None:
            return self._unknown(address) if thumb else None
        size, mnemonic, text, condition = found
        if not thumb:
            mnemonic, condition = self._unconditional(address, mnemonic)
        mnemonic = mnemonic.removesuffix(".w")
        reader = _Reader(self._program, address, size, thumb, mnemonic, text)
        if mnemonic in ("tbb", "tbh"):
            reader.entries = self._entries(address, text)
        made = reader.step()
        if not condition:
            return made
        skip = self._thumb.skip(address) if thumb else self._arm_skip(address, condition)
        extra = self._thumb.extra(address) if thumb else 0
        if skip is None:
            return replace(made, size=size + extra)
        return replace(made, size=size + extra, maybe=True, skip=skip - extra)

    def _entries(self, address: int, text: str) -> int:
        """Of a table of branches: the comparison before it says how many, if it is still there."""
        index = re.findall(r"\w+", text)[1]
        for before in range(address - 2, address - 14, -2):
            found = self._thumb.known(before)
            if found is not None and found[1].removesuffix(".w") == "cmp":
                register, _, last = found[2].partition(", ")
                return (
                    (number(last) or 0) + 1 if register == index and number(last) else _MOST_ENTRIES
                )
        return _MOST_ENTRIES

    def _word(self, address: int, size: int) -> int | None:
        data = self._program.read(address, size)
        return int.from_bytes(data, self._order) if len(data) == size else None  # type: ignore[arg-type]

    def _unconditional(self, address: int, mnemonic: str) -> tuple[str, str]:
        """An A32 mnemonic without its condition, which is in the instruction's highest bits."""
        word = self._word(address, 4)
        field = 14 if word is None else word >> 28
        if field >= len(_CONDITIONS):
            return mnemonic, ""
        return mnemonic.removesuffix(_CONDITIONS[field]), _CONDITIONS[field]

    def _arm_skip(self, address: int, condition: str) -> int | None:
        """A32: the same of instructions in a row, as long as none of them sets the flags."""
        if self._same_condition(address - 4, condition):
            return None
        skip = 0
        while skip < 64 and self._same_condition(address + skip, condition):
            skip += 4
        last = self._arm.at(address + skip)
        same = last is not None and self._unconditional(address + skip, last[1])[1] == condition
        return skip if same else max(0, skip - 4)

    def _same_condition(self, address: int, condition: str) -> bool:
        """Whether an instruction has a condition and leaves the flags alone."""
        found = self._arm.at(address)
        if found is None:
            return False
        name, own = self._unconditional(address, found[1])
        sets = name.endswith("s") or name.startswith(("cmp", "cmn", "tst", "teq", "vmrs", "bl"))
        return own == condition and not sets

    def _newer(self, address: int) -> Step | None:
        """Armv8.1-M's csel and long shifts, which Capstone takes for orrs."""
        first, second = self._word(address, 2), self._word(address + 2, 2)
        if first is None or second is None or first & 0xFFF0 != 0xEA50:
            return None
        into, one, other = _name(second >> 8 & 15), _name(first & 15), _name(second & 15)
        if second >> 14 == 0b10:
            kind = "either" if second >> 12 == 8 else "kill"  # csinc, csinv, csneg: a sum
            return Step(4, effects=(Effect(kind, into, one, other=other),), text="csel")
        if second & 13 == 13:
            return Step(4, effects=forget(into, _name(first & 14)), text="long shift")
        return None

    def _unknown(self, address: int) -> Step | None:
        """What Capstone does not know: low-overhead loops, Helium, new system instructions.

        Only coprocessor space (where Helium lives) and the loops' corner of branch space are let
        pass; the stack pointer moves in neither, but for a Helium access that writes back to it.
        """
        first, second = self._word(address, 2), self._word(address + 2, 2)
        if first is None or second is None or first >> 11 < 0b11101:
            return None
        if first == 0xF3DE and second >> 8 == 0x8F:  # subs pc, lr, #n: exception return
            return Step(4, Flow.RETURN, text="subs pc, lr")
        if first >> 7 == 0x1E0 and second >> 14 == 0b11 and not second & 1 << 12:
            return _loop(address, first, second)
        if first >> 8 & 0xEC == 0xEC:  # EC to EF, FC to FF
            back = first >> 8 & 0xEE == 0xEC and bool(first & 0x20)  # an access, writing back
            fields = (second >> 12, second >> 12 & 14, first >> 3 & 14 | 1, second >> 8 & 15)
            lost = [
                _NAMES.get(f"r{n}", f"r{n}") for n in (*fields, first & 15) if n not in (13, 15)
            ]
            effects = forget(*dict.fromkeys(lost))
            return Step(4, effects=(*effects, *kill(SP)) if back and first & 15 == 13 else effects,
                        text="vector")  # fmt: skip
        return None


def _name(number: int) -> str:
    """A general register as Capstone spells it."""
    return _NAMES.get(f"r{number}", f"r{number}")


def _loop(address: int, first: int, second: int) -> Step:
    """dls, wls (forward) and le (back): F00n C001, F04n E001 and their tail-predicated twins."""
    distance = (second >> 1 & 0x3FF) << 2 | (second >> 11 & 1) << 1
    lost = kill(LINK)
    if second >> 13 & 1:  # dls: no branch
        return Step(4, effects=lost, text="dls")
    if first & 0xF == 0xF or first & 0x50 == 0x10:  # le, letp
        return Step(4, Flow.JUMP, (address + 4 - distance) | 1, True, lost, text="le")
    return Step(4, Flow.JUMP, (address + 4 + distance) | 1, True, lost, text="wls")


class _Reader(InstructionText):
    """One instruction's text."""

    def __init__(
        self, program: Program, address: int, size: int, thumb: int, name: str, text: str
    ) -> None:
        super().__init__(address, size, name, text)
        self.program, self.thumb = program, thumb
        self.pc = address + (4 if thumb else 8)
        self.entries = _MOST_ENTRIES

    def step(self) -> Step:
        name, parts = self.name, self.parts
        if name in _TRAPS:
            return self.make(Flow.STOP)
        if name in ("push", "pop", "vpush", "vpop"):
            return self.push_pop()
        if name in ("bx", "bxj", "bxns"):
            return self.leave(parts[0])
        if name in ("b", "bl", "blx", "blxns", "cbz", "cbnz") or (
            name[0] == "b" and name[1:] in _CONDITIONS
        ):
            return self.branch()
        if name in ("tbb", "tbh"):
            return self.table(1 if name == "tbb" else 2)
        if name.startswith(("rfe", "eret")):
            return self.make(Flow.RETURN)
        if name.startswith(("ldm", "stm", "vldm", "vstm", "fldm", "fstm", "srs")):
            return self.multiple()
        if _LOAD.fullmatch(name) or _STORE.fullmatch(name):
            return self.access()
        return self.arithmetic()

    # -- control --------------------------------------------------------------------------------

    def branch(self) -> Step:
        name, operand = self.name, self.parts[-1]
        target: int | str | None = number(operand)
        if target is None:
            return self.make(Flow.CALL, operand)
        assert isinstance(target, int)
        thumb = self.thumb ^ (name == "blx")
        flow = Flow.CALL if name in ("bl", "blx") else Flow.JUMP
        maybe = flow is Flow.JUMP and name != "b"
        return self.make(flow, target | thumb, maybe=maybe)

    def leave(self, register: str) -> Step:
        """bx, mov pc: a return, or a jump to where the register points."""
        if register == "pc":  # the change of mode in a veneer
            return self.make(Flow.JUMP, self.pc & ~3)
        return self.make(Flow.RETURN if register == LINK else Flow.JUMP, register)

    def table(self, entry: int) -> Step:
        """tbb, tbh: distances in halfwords behind the instruction, up to the first target."""
        start, targets, at = self.pc, [], 0
        if not self.text.startswith("[pc"):
            return self.make(Flow.TABLE)
        end = min(self.entries * entry, (self.program.data_end(start) or 1 << 48) - start)
        while at < end:
            distance = self.program.number(start + at, entry)
            if distance is None:
                break
            end = min(end, 2 * distance)
            targets.append((start + 2 * distance) | 1)
            at += entry
        literal = (start, start + at)
        return self.make(Flow.TABLE, targets=tuple(dict.fromkeys(targets)), literal=literal)

    # -- the stack ------------------------------------------------------------------------------

    def push_pop(self) -> Step:
        registers = operands(self.text.strip("{}"))
        size = sum(8 if r[0] == "d" else 16 if r[0] == "q" else 4 for r in registers)
        if self.name.endswith("push"):
            return self.make(effects=move_sp(-size))
        flow = Flow.RETURN if "pc" in registers else Flow.NEXT
        popped = (Effect("pop", register) for register in self.general(registers))
        return self.make(flow, effects=(*move_sp(size), *popped))

    def multiple(self) -> Step:
        """Forms that push and pop do not name."""
        base, back = self.parts[0].removesuffix("!"), self.parts[0].endswith("!")
        registers = operands(self.parts[1].strip("{}^")) if len(self.parts) > 1 else []
        size = sum(8 if r[0] == "d" else 4 for r in registers)
        load = "ld" in self.name
        lost = kill(*self.general(registers)) if load else ()
        moved: tuple[Effect, ...] = ()
        if back:
            down = self.name.endswith(("db", "fd", "da")) and not (
                load and self.name.endswith("fd")
            )
            moved = (Effect("add", base, base, -size if down else size),)
            if self.name.startswith("srs"):
                moved = kill(SP)
        if load and "pc" in registers:
            return self.make(Flow.RETURN, effects=(*moved, *lost))
        return self.make(effects=(*moved, *lost))

    def access(self) -> Step:
        """ldr and str: constants among the code, and bases that are written back."""
        load, first = self.name.startswith("ld"), self.parts[0]
        two = self.name.endswith("d") and self.name not in ("ld", "st")
        memory = next((p for p in self.parts if p.startswith("[")), "")
        match = _MEMORY.fullmatch(memory)
        lost = kill(*self.general(self.parts[: 2 if two else 1])) if load else ()
        if match is None:
            return self.unless_pc(first, load, (*lost,))
        base, offset, back = match[1], match[2], match[3]
        if base == "pc" and load and not two and self.name == "ldr":
            return self.literal(first, offset)
        moved = self.write_back(base, offset if back else None)
        if self.parts[-1] is not memory and self.parts[-1] != memory:
            moved = self.write_back(base, self.parts[-1])
        return self.unless_pc(first, load, (*moved, *lost), offset)

    def write_back(self, base: str, offset: str | None) -> tuple[Effect, ...]:
        if offset is None:
            return ()
        by = number(offset)
        return kill(base) if by is None else (Effect("add", base, base, by),)

    def unless_pc(
        self, register: str, load: bool, effects: tuple[Effect, ...], offset: str | None = None
    ) -> Step:
        """A load into pc: from the stack it is a return, else a table of addresses or a pointer."""
        if not load or register != "pc":
            return self.make(effects=effects)
        if "[sp" in self.text:
            return self.make(Flow.RETURN, effects=effects)
        if "[pc" in self.text or (offset is not None and number(offset) is None):
            return self.words(self.pc)
        return self.make(Flow.JUMP, "memory", effects)

    def words(self, start: int) -> Step:
        """``ldr pc, [pc, r3, lsl #2]``: addresses behind the instruction, to the first target."""
        targets: list[int] = []
        at, first = start, start + 4096
        while at < first and "[pc" in self.text:
            value = self.program.number(at, 4)
            if value is None or not self.program.is_code(value & ~1):
                break
            targets.append(value & ~1 | self.thumb)
            first = min(first, value & ~1) if value > at else first
            at += 4
        return self.make(Flow.TABLE, targets=tuple(dict.fromkeys(targets)), literal=(start, at))

    def literal(self, register: str, offset: str | None) -> Step:
        by = number(offset) if offset is not None else 0
        if by is None:  # indexed by a register
            return self.words(self.pc) if register == "pc" else self.make(effects=kill(register))
        at = (self.pc & ~3) + by
        value = self.program.number(at, 4)
        where = (at, at + 4)
        if register == "pc":
            if value is None:
                return self.make(Flow.JUMP, "memory", literal=where)
            return self.make(Flow.JUMP, value, literal=where)
        effects = kill(register) if value is None else (Effect("set", register, value=value),)
        return self.make(effects=effects, literal=where)

    # -- arithmetic -----------------------------------------------------------------------------

    def arithmetic(self) -> Step:
        if self.name == "msr" and self.parts[0] in ("msp", "msp_s"):
            return self.make(effects=(Effect("add", SP, self.parts[1]),))
        into = self.parts[0] if self.parts else ""
        if self.name.startswith(("strex", "stlex")):
            return self.make(effects=kill(into))
        if not into or _WRITE_NOTHING.fullmatch(self.name):
            return self.make()
        if into == "pc":
            return self.into_pc()
        effects = self.understood(into)
        if effects is None:
            several = self.parts if _WRITE_TWO.fullmatch(self.name) else self.parts[:1]
            effects = kill(*self.general(several))
        return self.make(effects=effects)

    def into_pc(self) -> Step:
        """mov pc and the computed jumps of switches."""
        if self.name in ("mov", "movs"):
            return self.leave(self.parts[1])
        if self.name == "subs" and self.parts[1:2] == [LINK]:
            return self.make(Flow.RETURN)
        return self.make(Flow.TABLE)

    def understood(self, into: str) -> tuple[Effect, ...] | None:
        """Effects of the instructions that compilers move the stack pointer with."""
        name, rest = self.name, self.parts[1:]
        base = name if name in ("bics", "ands") else name.removesuffix("s")
        if base in ("mov", "movw") and len(rest) == 1:
            value = number(rest[0])
            if value is not None:
                return (Effect("set", into, value=value),)
            if rest[0] == "pc":
                return (Effect("set", into, value=self.pc | self.thumb),)
            return (Effect("add", into, rest[0]),) if rest[0] in _REGISTERS else None
        if base == "mvn" and len(rest) == 1 and number(rest[0]) is not None:
            return (Effect("set", into, value=~(number(rest[0]) or 0)),)
        if base == "movt":
            return (Effect("insert", into, into, number(rest[0]) or 0, at=16),)
        if base in ("add", "addw", "sub", "subw"):
            return self.added(into, base.startswith("sub"), rest)
        if base in ("bic", "and", "bics", "ands"):
            by = number(rest[-1])
            source = rest[0] if len(rest) == 2 else into
            if by is None:
                return None
            return (Effect("mask", into, source, ~by if base.startswith("bic") else by),)
        if base == "bfc":
            first, width = number(rest[0]) or 0, number(rest[1]) or 0
            return (Effect("mask", into, into, ~(((1 << width) - 1) << first)),)
        if base == "lsl" and number(rest[-1]) is not None:
            source = rest[0] if len(rest) == 2 else into
            return (Effect("shift", into, source, number(rest[-1]) or 0),)
        if base in ("rsb", "neg") and rest and (base == "neg" or rest[-1] in ("#0", "0")):
            return (Effect("set", "zero"), Effect("difference", into, "zero", other=rest[0]))
        return None

    def added(self, into: str, minus: bool, rest: list[str]) -> tuple[Effect, ...] | None:
        if len(rest) == 1:
            rest = [into, *rest]
        by, shift = number(rest[1]), 0
        if rest[0] == "pc":
            value = None if by is None else (self.pc & ~3) + (-by if minus else by)
            return None if value is None else (Effect("set", into, value=value),)
        if by is not None:
            return (Effect("add", into, rest[0], -by if minus else by),)
        if len(rest) == 3:
            amount = number(rest[2].removeprefix("lsl ")) if rest[2].startswith("lsl") else None
            if amount is None:
                return None
            shift = amount
        kind = "difference" if minus else "sum"
        return (Effect(kind, into, rest[0], shift, rest[1]),)

    @staticmethod
    def general(registers: list[str]) -> list[str]:
        return [r for r in registers if r in _REGISTERS and r != "pc"]
