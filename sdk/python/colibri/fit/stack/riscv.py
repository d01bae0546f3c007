# SPDX-License-Identifier: Apache-2.0
"""RISC-V instructions as steps: RV32 and RV64, compressed ones, Zcmp's push and pop."""

from __future__ import annotations

from dataclasses import replace

from colibri.fit.stack.disassembler import InstructionText, Text, capstone, number
from colibri.fit.stack.program import Program
from colibri.fit.stack.steps import SP, Effect, Flow, Step, kill, move_sp

LINK = "ra"
ARGUMENTS = tuple(f"a{i}" for i in range(8))
SCRATCH = (*ARGUMENTS, *(f"t{i}" for i in range(7)), LINK)
_NAMES = (
    "zero", "ra", "sp", "gp", "tp", "t0", "t1", "t2", "s0", "s1",
    *(f"a{i}" for i in range(8)), *(f"s{i}" for i in range(2, 12)), "t3", "t4", "t5", "t6",
)  # fmt: skip
_GENERAL = frozenset(_NAMES)
_TRAPS = frozenset(("ebreak", "unimp"))
_RETURNS = frozenset(("ret", "mret", "sret", "uret", "dret", "mnret"))
_STORES = frozenset(("sb", "sh", "sw", "sd", "swsp", "sdsp", "fence", "fence.i", "nop"))
_TWO_OPERANDS = frozenset(("beqz", "bnez", "bgez", "blez", "bltz", "bgtz"))
_THREE_OPERANDS = frozenset(
    ("beq", "bne", "blt", "bge", "bltu", "bgeu", "bgt", "ble", "bgtu", "bleu")
)


class RiscvDecoder:
    """Steps of RISC-V code."""

    link = LINK
    arguments = ARGUMENTS
    scratch = SCRATCH

    def __init__(self, program: Program) -> None:
        cs = capstone()
        self.bits = program.elf.bits
        self._program = program
        mode = cs.CS_MODE_RISCV64 if self.bits == 64 else cs.CS_MODE_RISCV32
        self._text = Text(program, cs.Cs(cs.CS_ARCH_RISCV, mode | cs.CS_MODE_RISCVC))
        self._zcmp = _has_zcmp(program)

    def step(self, pointer: int) -> Step | None:
        """The instruction at an address, or None for what is none."""
        data = self._program.read(pointer, 4)
        if pointer & 1 or len(data) < 2:
            return None
        half = int.from_bytes(data[:2], "little")
        if self._zcmp and half & 0xE003 == 0xA002:
            return self._push_pop(half)
        found = self._text.at(pointer)
        if found is None:
            return self._unknown(half, data)
        size, name, text, _ = found
        if name == "c.unimp" or half == 0:
            return Step(2, Flow.STOP, text="unimp")
        step = _Reader(pointer, size, name.removeprefix("c."), text, self.bits).step()
        if name in ("lui", "auipc") and step.effects[:1] and step.effects[0].register == SP:
            return self._with_low_part(pointer, step)
        return step

    def _with_low_part(self, pointer: int, high: Step) -> Step:
        """``la sp, top`` is two instructions, of which the second is no push."""
        found = self._text.at(pointer + high.size)
        if found is None or found[1].removeprefix("c.") not in ("addi", "addiw"):
            return high
        low = _Reader(pointer, found[0], found[1].removeprefix("c."), found[2], self.bits).step()
        (effect,) = low.effects or (None,)
        if effect is None or (effect.register, effect.source) != (SP, SP):
            return high
        top = Effect("set", SP, value=high.effects[0].value + effect.value)
        return replace(high, size=high.size + low.size, effects=(top,))

    def _unknown(self, half: int, data: bytes) -> Step | None:
        """Vectors and newer extensions: no control flow, at most one register written.

        Major opcodes of loads, arithmetic and vectors are let pass; a vector load's destination
        is no general register.
        """
        if half & 3 != 3:
            return self._unknown_short(half)
        if len(data) < 4 or half & 0x1F == 0x1F:
            return None
        word = int.from_bytes(data, "little")
        opcode, register, form = word & 0x7F, _NAMES[word >> 7 & 31], word >> 12 & 7
        if opcode in (0x07, 0x27):
            return Step(4, text="vector access")
        if opcode == 0x57:
            scalar = form == 7 or (form == 2 and word >> 26 == 0x10)  # vsetvl, vmv.x.s
            return Step(4, effects=kill(register) if scalar else (), text="vector")
        if opcode in (
            0x03,
            0x13,
            0x1B,
            0x33,
            0x3B,
            0x2F,
            0x73,
            0x53,
            0x43,
            0x47,
            0x4B,
            0x4F,
            0x0B,
            0x2B,
        ):
            return Step(4, effects=kill(register), text="unknown arithmetic")
        if opcode in (0x23, 0x0F):
            return Step(4, text="unknown store")
        return None

    def _unknown_short(self, half: int) -> Step | None:
        """Zcb: loads and stores of bytes, sign extension, products."""
        register = _NAMES[8 + (half >> 7 & 7)]
        if half & 0xE003 == 0x8000:
            low = _NAMES[8 + (half >> 2 & 7)]
            return Step(2, effects=kill(low) if not half & 0x0800 else (), text="zcb")
        if half & 0xFC03 == 0x9C01:
            return Step(2, effects=kill(register), text="zcb")
        return None

    def _push_pop(self, half: int) -> Step | None:
        """cm.push and its kin; their frame is a multiple of 16 that the list decides."""
        kind, extra = half >> 8 & 0x1F, (half >> 2 & 3) * 16
        listed = half >> 4 & 15
        if listed >= 4 and kind in (0x18, 0x1A, 0x1C, 0x1E):
            count = listed - 3 + (listed == 15)  # ra, s0 ..; the last list has two more
            size = -(-count * self.bits // 8 // 16) * 16 + extra
            saved = (LINK, "s0", "s1", *(f"s{i}" for i in range(2, 12)))[:count]
            if kind == 0x18:
                return Step(2, effects=move_sp(-size), text="cm.push")
            flow = Flow.NEXT if kind == 0x1A else Flow.RETURN
            return Step(2, flow, effects=(*move_sp(size), *kill(*saved)), text="cm.pop")
        if half & 0xFC63 == 0xAC22:
            return Step(2, effects=kill(*_moved(half)), text="cm.mvsa01")
        if half & 0xFC63 == 0xAC62:
            return Step(2, effects=kill("a0", "a1"), text="cm.mva01s")
        if half & 0xFC03 == 0xA002:  # cm.jt, cm.jalt: a table that jvt points to
            return Step(2, Flow.CALL if half >> 2 & 0xFF >= 32 else Flow.JUMP, "jvt", text="cm.jt")
        return None


def _moved(half: int) -> tuple[str, str]:
    return f"s{half >> 7 & 7}", f"s{half >> 2 & 7}"


def _has_zcmp(program: Program) -> bool:
    """Whether the build attributes name the extension: its codes are others' without it."""
    section = next((s for s in program.elf.sections if s.name == ".riscv.attributes"), None)
    if section is None or not section.in_file or section.size > 1 << 16:
        return False
    with program.elf.path.open("rb") as stream:
        stream.seek(section.offset)
        return b"zcmp" in stream.read(section.size)


class _Reader(InstructionText):
    """One instruction's text."""

    def __init__(self, address: int, size: int, name: str, text: str, bits: int) -> None:
        super().__init__(address, size, name, text)
        self.bits = bits

    def step(self) -> Step:
        name, parts = self.name, self.parts
        if name in _TRAPS:
            return self.make(Flow.STOP)
        if name in _RETURNS:
            return self.make(Flow.RETURN)
        if name in _TWO_OPERANDS or name in _THREE_OPERANDS:
            return self.make(Flow.JUMP, self.relative(parts[-1]), maybe=True)
        if name == "j":
            return self.make(Flow.JUMP, self.relative(parts[-1]))
        if name == "jal":
            return self.call(parts[0] if len(parts) == 2 else LINK, self.relative(parts[-1]))
        if name in ("jr", "jalr"):
            return self.indirect()
        effects = self.understood()
        if effects is None:
            effects = kill(*(p for p in parts[:1] if p in _GENERAL and name not in _STORES))
        return self.make(effects=effects)

    def relative(self, text: str) -> int:
        return self.address + (number(text) or 0)

    def call(self, link: str, target: int | str) -> Step:
        """jal: with another link it is part of a prologue, which comes back by that register."""
        if link == "zero":
            return self.make(Flow.JUMP, target)
        if link == LINK:
            return self.make(Flow.CALL, target)
        back = (Effect("set", link, value=self.address + self.size),)
        return replace(self.make(Flow.JUMP, target, back), inline=True)

    def indirect(self) -> Step:
        """jr and jalr in their forms; an offset goes into a register of no name."""
        parts = self.parts
        link = {"jr": "zero"}.get(self.name, LINK) if len(parts) < 2 else parts[0]
        register = parts[0] if len(parts) < 2 else parts[1]
        offset = number(parts[2]) or 0 if len(parts) == 3 else 0
        if "(" in register:  # 16(t1)
            text, register = register.rstrip(")").split("(")
            offset = number(text) or 0
        if link == "zero" and register == LINK and offset == 0:
            return self.make(Flow.RETURN)
        target = "target"
        there = (Effect("add", target, register, offset),)
        step = self.call(link, target)
        return replace(step, effects=(*there, *step.effects))

    def understood(self) -> tuple[Effect, ...] | None:
        name, parts = self.name, self.parts
        if name in ("addi", "addi16sp") and len(parts) == 2:
            return (Effect("add", parts[0], parts[0], number(parts[1]) or 0),)
        if name in ("addi", "addi4spn"):
            value = number(parts[2]) or 0
            if parts[1] == "zero":
                return (Effect("set", parts[0], value=value),)
            return (Effect("add", parts[0], parts[1], value),)
        if name in ("li", "lui", "auipc"):
            value = number(parts[1]) or 0
            if name != "li":
                value = (value & 0xFFFFF) << 12
                value -= 1 << 32 if value >> 31 else 0
            value += self.address if name == "auipc" else 0
            return (Effect("set", parts[0], value=value),)
        if name == "mv":
            return (Effect("add", parts[0], parts[1]),)
        if name in ("add", "sub", "neg"):
            return self.added()
        if name == "slli":
            source = parts[1] if len(parts) == 3 else parts[0]
            return (Effect("shift", parts[0], source, number(parts[-1]) or 0),)
        if name == "andi" and len(parts) == 3:
            return (Effect("mask", parts[0], parts[1], number(parts[2]) or 0),)
        if (name == "addiw" and len(parts) == 2) or (name == "addiw" and parts[0] == parts[1]):
            # behind lui: the same as addi for what a frame can measure
            return (Effect("add", parts[0], parts[0], number(parts[-1]) or 0),)
        return None

    def added(self) -> tuple[Effect, ...]:
        parts = self.parts
        if self.name == "neg":
            return (Effect("set", "zero"), Effect("difference", parts[0], "zero", other=parts[1]))
        source, other = parts[-2:] if len(parts) == 3 else parts
        kind = "sum" if self.name == "add" else "difference"
        return (Effect(kind, parts[0], source, other=other),)
