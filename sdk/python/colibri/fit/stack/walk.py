# SPDX-License-Identifier: Apache-2.0
"""Follow a function's code along all its paths: how deep its stack gets, and whom it calls where.

A forward analysis to a fixed point.  Each address keeps the registers that are known on every path
to it (`steps`) and the deepest stack pointer of them all.  A branch that leaves the function with
its frame gone is a tail call; with the frame still there (cold parts, shared epilogues) the code
at its target is followed as the function's own.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Protocol

from colibri.fit.stack.program import Function, Program
from colibri.fit.stack.steps import RETURN, SP, Flow, Registers, Step, Value, apply, either

#: Instructions that one function's analysis may look at; more than any compiler makes.
MOST_STEPS = 400_000
#: The largest number that one instruction of Arm loads as such.
IMMEDIATE = 0xFFFF
#: Times that the stack may get deeper at one address before it counts as growing in a loop.
MOST_RISES = 24


_UPPER_HALF = ("adrp", "lui", "auipc")
_NOTHING = ("movs r0, r0", "mov r8, r8", "mov r0, r0")


class Decoder(Protocol):
    """Turns code into steps."""

    @property
    def bits(self) -> int: ...
    @property
    def link(self) -> str: ...
    @property
    def scratch(self) -> tuple[str, ...]: ...
    def step(self, pointer: int) -> Step | None: ...


@dataclass(frozen=True, slots=True)
class Call:
    """A call at an address; ``target`` is None when only the running program knows it.

    ``depth``: bytes of the caller's frame at that point; None where it is not known.
    """

    at: int
    target: int | None
    depth: int | None
    tail: bool = False


@dataclass(slots=True)
class Body:
    """What one function does to the stack.

    ``frame`` is its deepest point without calls; ``problems`` say why it may be deeper;
    ``constants`` are the numbers that its instructions put together, addresses among them.
    """

    function: Function
    frame: int = 0
    calls: list[Call] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    constants: set[int] = field(default_factory=set)


def walk(program: Program, decoder: Decoder, function: Function) -> Body:
    """The body of one function."""
    return _Walk(program, decoder, function).run()


class _Walk:
    def __init__(self, program: Program, decoder: Decoder, function: Function) -> None:
        self.program, self.decoder, self.function = program, decoder, function
        self.before: dict[int, Registers] = {}
        self.steps: dict[int, Step] = {}
        self.rises: dict[int, int] = {}
        self.waiting: list[int] = []
        self.queued: set[int] = set()
        self.data: list[tuple[int, int]] = []
        self.switches: list[int] = []
        self.inner: set[int] = set()  # those of them that stay in the function
        self.own = {function.start}  # starts of other functions whose code is followed here
        self.body = Body(function)
        self.said: dict[str, None] = {}
        self.visits = 0

    def run(self) -> Body:
        entry = {SP: Value(True, 0), "zero": Value(False, 0)}
        entry[self.decoder.link] = Value(False, RETURN)
        self.arrive(self.function.start, entry)
        self.settle()
        self.follow_switches()
        self.collect()
        self.body.problems = list(self.said)
        return self.body

    def problem(self, text: str) -> None:
        self.said[text] = None

    def where(self, at: int) -> str:
        offset = self.program.plain(at) - self.program.plain(self.function.start)
        return f"at +{offset:#x}" if offset >= 0 else f"at {self.program.plain(at):#x}"

    # -- the fixed point ------------------------------------------------------------------------

    def settle(self) -> None:
        """Steps until nothing changes, lowest address first."""
        while self.waiting:
            at = heapq.heappop(self.waiting)
            self.queued.discard(at)
            self.visits += 1
            if self.visits > MOST_STEPS:
                self.problem(f"has more than {MOST_STEPS:,} steps to follow")
                self.waiting.clear()
                return
            self.visit(at)

    def visit(self, at: int) -> None:
        if self.is_data(self.program.plain(at)):
            return
        step = self.steps.get(at) or self.decoder.step(at)
        if step is None:
            self.problem(f"has no instruction {self.where(at)}")
            return
        self.steps[at] = step
        if step.literal is not None:
            self.data.append(step.literal)
        before = self.before[at]
        if step.maybe:
            self.arrive(at + step.size + step.skip, before, at)
        self.leave(at, step, apply(step.effects, before, self.decoder.bits))

    def leave(self, at: int, step: Step, after: Registers) -> None:
        """To where control goes behind a step."""
        following = at + step.size
        if step.flow is Flow.NEXT:
            self.arrive(following, after, at)
        elif step.flow is Flow.CALL:
            if self.stays_inside(step):
                inside = {name: v for name, v in after.items() if name != self.decoder.link}
                self.arrive(self.target(step, after) or 0, inside)
            self.arrive(following, self.behind_call(after), at, called=True)
            if self.is_data(self.program.plain(following)):
                self.switches.append(at)  # a helper that reads the table behind its call
        elif step.flow is Flow.TABLE:
            if not step.targets:
                self.switches.append(at)
            for target in step.targets:
                if self.is_own(target):  # a table that was read too far
                    self.arrive(target, after)
        elif step.flow is Flow.JUMP:
            goal = self.target(step, after)
            if self.calls_by_hand(following, after):
                self.arrive(following, self.behind_call(after), at, called=True)
            elif goal is None:
                self.switches.append(at)
            elif goal == RETURN:
                return
            elif step.inline or not self.is_tail_call(goal, after):
                self.arrive(goal, after)

    def behind_call(self, registers: Registers) -> Registers:
        scratch = self.decoder.scratch
        return {name: value for name, value in registers.items() if name not in scratch}

    def stays_inside(self, step: Step) -> bool:
        """A call into the function's own code: a subroutine in its frame, or a far jump of Thumb-1.

        Both are followed as the function's own, and so is what stands behind the call.
        """
        target = step.target
        if not isinstance(target, int) or not self.is_own(target):
            return False
        return target != self.function.start and not self.program.is_start(target)

    def calls_by_hand(self, following: int, registers: Registers) -> bool:
        """``mov lr, pc`` before the jump makes it a call."""
        link = registers.get(self.decoder.link)
        return link is not None and not link.on_stack and link.number == following

    def target(self, step: Step, after: Registers) -> int | None:
        """The address of a jump or call, when it is known."""
        if not isinstance(step.target, str):
            return step.target
        value = after.get(step.target)
        known = value is not None and not value.on_stack and value.number != 0
        return value.number if known and value is not None and not value.more else None

    def choices(self, step: Step, after: Registers) -> tuple[int, ...]:
        """The addresses of a call through a pointer that a condition picked."""
        value = after.get(step.target) if isinstance(step.target, str) else None
        if value is None or not value.more or not all(map(self.is_pointer, value.numbers)):
            return ()
        return value.numbers

    def is_pointer(self, number: int) -> bool:
        """Whether a constant is the address of a function."""
        address = self.program.plain(number)
        return number > 0 and self.program.is_code(address) and self.program.is_start(number)

    def is_tail_call(self, target: int, after: Registers) -> bool:
        """Whether a jump leaves for another function for good."""
        address = self.program.plain(target)
        if address == self.program.plain(self.function.start):
            return False  # a loop
        if not self.program.is_code(address):
            return True
        held = after.get(SP)
        if held is None or held.number != 0:
            self.own.add(target)
        return target not in self.own and self.program.is_start(target)

    # -- states ---------------------------------------------------------------------------------

    def arrive(
        self, at: int, registers: Registers, source: int | None = None, called: bool = False
    ) -> None:
        """Another path to an address: what differs is no longer known, the deeper stack stays."""
        if source is not None and self.leaves_by_falling(at, called, registers):
            return
        known = self.before.get(at)
        if known is None:
            self.before[at] = dict(registers)
        else:
            merged = self.merge(at, known, registers)
            if merged == known:
                return
            self.before[at] = merged
        if at not in self.queued:
            self.queued.add(at)
            heapq.heappush(self.waiting, at)

    def leaves_by_falling(self, at: int, called: bool, registers: Registers) -> bool:
        """Past the end: behind a call that does not return nothing follows, else a jump does."""
        if self.is_own(at):
            return False
        if called:
            return self.program.plain(at) == self.function.end or self.program.is_start(at)
        return self.program.is_start(at) and self.is_tail_call(at, registers)

    def is_own(self, at: int) -> bool:
        """Whether an address is one of the function's own."""
        start = self.program.plain(self.function.start)
        return start <= self.program.plain(at) < self.function.end

    def merge(self, at: int, known: Registers, other: Registers) -> Registers:
        merged = {}
        for name, value in known.items():
            also = other.get(name)
            same = value if also == value else self.either(value, also)
            if same is not None:
                merged[name] = same
        mine, theirs = known.get(SP), other.get(SP)
        if mine is None or theirs is None or mine == theirs:
            return merged
        lower = mine if mine.number <= theirs.number else theirs
        if lower is not mine:
            self.rises[at] = self.rises.get(at, 0) + 1
            if self.rises[at] > MOST_RISES:
                self.problem(f"moves the stack pointer in a loop {self.where(at)}")
                return merged
        merged[SP] = lower
        return merged

    def either(self, one: Value, other: Value | None) -> Value | None:
        """Two constants on two paths are both kept where they point to functions."""
        both = None if other is None else either(one, other)
        return both if both is not None and all(map(self.is_pointer, both.numbers)) else None

    def is_data(self, address: int) -> bool:
        if self.program.hint(address) == "d":
            return True
        return any(start <= address < end for start, end in self.data)

    # -- switches -------------------------------------------------------------------------------

    def follow_switches(self) -> None:
        """A jump to a computed address goes to the code that nothing else reaches, if any."""
        while self.switches and self.visits <= MOST_STEPS:
            jumps = [at for at in dict.fromkeys(self.switches) if self.may_stay(at)]
            gap = self.unreached() if jumps else None
            if gap is None:
                return
            alone = sum(self.steps[at].flow is not Flow.CALL for at in jumps) == 1
            for at in jumps:
                after = self.after(at)
                if alone or self.stays(at, after):
                    self.inner.add(at)
                self.arrive(gap, after)
            self.settle()

    def may_stay(self, at: int) -> bool:
        """Arm's bx is never a switch."""
        return self.steps[at].flow is Flow.TABLE or not self.steps[at].text.startswith("bx")

    def stays(self, at: int, after: Registers) -> bool:
        """Whether a jump is a switch for sure: its frame is in place, or its target is a sum."""
        held, step = after.get(SP), self.steps[at]
        before = next((self.steps[at - n] for n in (2, 4) if at - n in self.steps), None)
        sum_of = before is not None and any(
            effect.kind == "sum" and effect.register == step.target for effect in before.effects
        )
        return step.flow is Flow.TABLE or sum_of or (held is not None and held.number != 0)

    def after(self, at: int) -> Registers:
        return apply(self.steps[at].effects, self.before[at], self.decoder.bits)

    def unreached(self) -> int | None:
        """The first instruction that no path has reached, padding aside."""
        at, thumb = self.program.plain(self.function.start), self.function.start & 1
        thumb = thumb if self.program.elf.machine == "ARM" else 0
        seen = sorted(
            (self.program.plain(a), self.program.plain(a) + s.size) for a, s in self.steps.items()
        )
        for start, end in [*seen, (self.function.end, self.function.end)]:
            while at < min(start, self.function.end):
                pointer = at | thumb
                step = None if self.is_data(at) else self.decoder.step(pointer)
                if step is None:
                    at += 2 if thumb else 4
                elif _is_padding(step) or pointer in self.before:
                    at += step.size
                else:
                    return pointer
            at = max(at, end)
        return None

    # -- the result -----------------------------------------------------------------------------

    def collect(self) -> None:
        """Depths, calls and returns, from the states that the fixed point left."""
        balanced = {0, *self.depths_of_subroutines()}
        for at in sorted(self.steps):
            step, after = self.steps[at], self.after(at)
            held = after.get(SP)
            self.deepen(at, held)
            self.note_other_stack(at, step)
            self.note_constants(step, after)
            depth = max(0, -held.number) if held is not None else None
            if step.flow is Flow.CALL and not self.stays_inside(step):
                self.add_call(at, step, after, depth)
            elif step.flow is Flow.JUMP:
                self.add_jump(at, step, after, depth)
            elif step.flow is Flow.TABLE and not step.targets and at not in self.inner:
                self.body.calls.append(Call(at, None, depth, True))
            if self.returns(step, after) and held is not None and held.number not in balanced:
                by = f"{abs(held.number)} B {'down' if held.number < 0 else 'up'}"
                self.problem(f"returns with the stack pointer {by} {self.where(at)}")
            if step.flow is Flow.NEXT or step.maybe:
                self.add_fall(at, step, depth)

    def depths_of_subroutines(self) -> set[int]:
        """Stack pointers at the calls of the function's own subroutines, which return to them."""
        inside = (
            at for at, s in self.steps.items() if s.flow is Flow.CALL and self.stays_inside(s)
        )
        held = (self.before[at].get(SP) for at in inside)
        return {value.number for value in held if value is not None}

    def returns(self, step: Step, after: Registers) -> bool:
        return step.flow is Flow.RETURN or (
            step.flow is Flow.JUMP and self.target(step, after) == RETURN
        )

    def deepen(self, at: int, held: Value | None) -> None:
        if held is not None:
            self.body.frame = max(self.body.frame, -held.number)
        elif SP in self.before[at]:
            self.problem(f"moves the stack pointer by an unknown amount {self.where(at)}")

    def note_other_stack(self, at: int, step: Step) -> None:
        """Depths before and after are of different stacks."""
        for effect in step.effects:
            value = self.before[at].get(effect.source) if effect.register == SP else None
            if value is not None and not value.on_stack:
                self.body.notes.append(
                    f"changes to the stack below {value.number:#x} {self.where(at)}"
                )

    def note_constants(self, step: Step, after: Registers) -> None:
        """Small immediate numbers are no addresses, nor is the upper half of one alone."""
        if step.text.startswith(_UPPER_HALF):
            return
        for effect in step.effects:
            value = after.get(effect.register)
            if value is None or value.on_stack:
                continue
            loaded = step.literal is not None or effect.kind == "insert"
            self.body.constants.update(n for n in value.numbers if n > IMMEDIATE or loaded)

    def add_call(self, at: int, step: Step, after: Registers, depth: int | None) -> None:
        target = self.target(step, after)
        for choice in self.choices(step, after):
            self.body.calls.append(Call(at, choice, depth))
        if self.choices(step, after):
            return
        if target == RETURN:
            target = None  # popped, and no return
        if target != at + step.size:  # which only learns the own address
            self.body.calls.append(Call(at, target, depth))

    def add_jump(self, at: int, step: Step, after: Registers, depth: int | None) -> None:
        target = self.target(step, after)
        if self.calls_by_hand(at + step.size, after):
            self.body.calls.append(Call(at, target, depth))
        elif target == RETURN:
            return
        elif target is None:
            if at not in self.inner:
                for choice in self.choices(step, after) or (None,):
                    self.body.calls.append(Call(at, choice, depth, True))
        elif not step.inline and self.is_tail_call(target, after):
            self.body.calls.append(Call(at, target, depth, True))

    def add_fall(self, at: int, step: Step, depth: int | None) -> None:
        """The function goes on in the next one."""
        following = at + step.size
        falls = not self.is_own(following) and following not in self.before
        if falls and self.program.is_start(following) and not _is_padding(step):
            self.body.calls.append(Call(at, following, depth, True))


def _is_padding(step: Step) -> bool:
    """What stands between functions: nothing, or zeros."""
    return step.text.split(" ")[0] in ("nop", "udf", "unimp") or step.text in _NOTHING
