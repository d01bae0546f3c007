# SPDX-License-Identifier: Apache-2.0
"""What one instruction does to the stack pointer, in words that every CPU shares.

A decoder turns an instruction into a `Step`: where control goes next, and *effects* on registers.
Only two kinds of register content matter, and all others are unknown: a constant, and the stack
pointer at the function's entry plus a constant.  That is enough to follow ``sub sp, sp, r3`` behind
``movw r3, #5000`` and ``mov sp, fp`` behind an alloca.

Code addresses of Arm carry the Thumb bit, as in pointers to functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

SP = "sp"
#: Stands for the caller's address: in the link register at entry, and in what is popped.
RETURN = -1


class Flow(Enum):
    """Where control goes behind an instruction."""

    NEXT = auto()
    JUMP = auto()  # to ``target``: an address, or a register
    CALL = auto()  # the same, and comes back
    TABLE = auto()  # to one of ``targets``, or, when there are none, to one that is not known
    RETURN = auto()
    STOP = auto()  # a trap: nothing follows


@dataclass(frozen=True, slots=True)
class Effect:
    """``register`` becomes: see `kind`.

    ``set`` value; ``add`` source + value; ``sum`` source + other << value; ``difference``
    source - (other << value); ``mask`` source & value; ``shift`` source << value; ``insert`` the
    16 bits of value at bit ``at``; ``either`` source or other; ``pop`` what may be the return
    address; ``kill`` unknown; ``forget`` unknown when it was a constant.
    """

    kind: str
    register: str
    source: str = ""
    value: int = 0
    other: str = ""
    at: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction.

    ``maybe``: it is conditional, and may do nothing but go on ``skip`` bytes behind it (0: at the
    next; more where those that follow have the same condition).  ``inline``: a jump to a helper of
    prologues, which is followed as the function's own code.
    """

    size: int
    flow: Flow = Flow.NEXT
    target: int | str | None = None
    maybe: bool = False
    effects: tuple[Effect, ...] = ()
    targets: tuple[int, ...] = ()
    literal: tuple[int, int] | None = None  # first byte and end of data among the code
    inline: bool = False
    skip: int = 0
    text: str = ""


@dataclass(frozen=True, slots=True)
class Value:
    """A constant, or (``on_stack``) the stack pointer at entry plus an offset.

    ``more`` are other constants that it may be: pointers to functions that a condition picks from.
    """

    on_stack: bool
    number: int
    more: tuple[int, ...] = ()

    @property
    def numbers(self) -> tuple[int, ...]:
        return (self.number, *self.more)


Registers = dict[str, Value]
#: Most pointers that one register may be known to pick from.
MOST_CHOICES = 16


def either(one: Value, other: Value) -> Value | None:
    """A constant that is one of two, or of more."""
    if one.on_stack or other.on_stack:
        return None
    first, *rest = sorted({*one.numbers, *other.numbers})
    return Value(False, first, tuple(rest)) if len(rest) < MOST_CHOICES else None


def kill(*registers: str) -> tuple[Effect, ...]:
    """Registers that hold something unknown from here on."""
    return tuple(Effect("kill", register) for register in registers)


def forget(*registers: str) -> tuple[Effect, ...]:
    """The same for instructions that a compiler does not use on the stack's registers."""
    return tuple(Effect("forget", register, register) for register in registers)


def move_sp(bytes_up: int) -> tuple[Effect, ...]:
    """The stack pointer moves; down is negative."""
    return (Effect("add", SP, SP, bytes_up),)


def apply(effects: tuple[Effect, ...], registers: Registers, bits: int) -> Registers:
    """Registers behind an instruction.

    The stack pointer set to a constant is another stack, on which nothing lies yet: depths count
    from there, and what pointed into the old one is forgotten.
    """
    after = dict(registers)
    for effect in effects:
        value = _result(effect, after, (1 << bits) - 1)
        if value is None:
            after.pop(effect.register, None)
        elif effect.register == SP and not value.on_stack:
            after = {name: held for name, held in after.items() if not held.on_stack}
            after[SP] = Value(True, 0)
        else:
            after[effect.register] = value
    return after


def _result(effect: Effect, held: Registers, mask: int) -> Value | None:
    if effect.kind == "set":
        return Value(False, effect.value & mask)
    if effect.kind == "pop":
        return Value(False, RETURN)
    source = held.get(effect.source)
    if source is None:
        return None
    if effect.kind == "forget":
        return source if source.on_stack else None
    if effect.kind == "either":
        chosen = held.get(effect.other)
        return None if chosen is None else either(source, chosen)
    if source.more:
        return source if effect.kind == "add" and effect.value == 0 else None
    if source == Value(False, RETURN):
        return source if effect.kind == "add" and effect.value == 0 else None
    if effect.kind == "add":
        return _moved(source, effect.value, mask)
    if effect.kind in ("sum", "difference"):
        return _combined(effect, source, held.get(effect.other), mask)
    if effect.kind == "mask":
        return _masked(source, effect.value, mask)
    if source.on_stack:
        return None
    if effect.kind == "shift":
        return Value(False, (source.number << effect.value) & mask)
    if effect.kind == "insert":
        rest = source.number & ~(0xFFFF << effect.at)
        return Value(False, (rest | effect.value << effect.at) & mask)
    return None


def _moved(source: Value, by: int, mask: int) -> Value:
    number = source.number + by
    return Value(source.on_stack, number if source.on_stack else number & mask)


def _combined(effect: Effect, source: Value, other: Value | None, mask: int) -> Value | None:
    if other is None or other.more or other == Value(False, RETURN):
        return None
    if other.on_stack:
        if effect.kind == "sum" and not source.on_stack and effect.value == 0:
            return _moved(other, _signed(source.number, mask), mask)
        if effect.kind == "difference" and source.on_stack and effect.value == 0:
            return Value(False, (source.number - other.number) & mask)
        return None
    by = _signed(other.number << effect.value & mask, mask)
    return _moved(source, by if effect.kind == "sum" else -by, mask)


def _masked(source: Value, keep: int, mask: int) -> Value | None:
    """Rounding a stack address down takes what its alignment at entry allows at most."""
    if not source.on_stack:
        return Value(False, source.number & keep & mask)
    align = (~keep & mask) + 1
    if align & (align - 1) or align > 1 << 16:
        return None
    aligned = 16 if mask >> 32 else 8  # the stack at entry, by the ABIs
    lost = max((source.number + rest) % align for rest in range(0, max(align, aligned), aligned))
    return Value(True, source.number - lost)


def _signed(number: int, mask: int) -> int:
    return number - mask - 1 if number > mask >> 1 else number
