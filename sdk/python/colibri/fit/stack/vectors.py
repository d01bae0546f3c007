# SPDX-License-Identifier: Apache-2.0
"""Cortex-M: the vector table, and what the CPU itself puts on the stack at an exception.

Frames: Armv7-M Architecture Reference Manual, B1.5.6 and B1.5.7; Armv8-M, B3.19: eight words, or 26
with floating-point registers, and a word more where the stack is not at a multiple of 8.
"""

from __future__ import annotations

from colibri.fit.stack.program import Program

BASIC_FRAME, EXTENDED_FRAME, ALIGNMENT = 32, 104, 4
_SYSTEM = {
    1: "Reset", 2: "NMI", 3: "HardFault", 4: "MemManage", 5: "BusFault", 6: "UsageFault",
    7: "SecureFault", 11: "SVCall", 12: "DebugMonitor", 14: "PendSV", 15: "SysTick",
}  # fmt: skip
_MOST = 16 + 480


def vector_table(program: Program) -> dict[int, list[str]]:
    """Handlers of the vector table: code pointer to the exceptions that it handles."""
    if program.elf.machine != "ARM" or not program.arm_only_thumb:
        return {}
    for address, size, named in _candidates(program):
        stack, reset = program.number(address, 4), program.number(address + 4, 4)
        good = reset is not None and reset & 1 and program.is_code(reset & ~1)
        if stack and stack % 4 == 0 and not program.is_code(stack) and good:
            if not named and program.elf.entry and (reset or 0) | 1 != program.elf.entry | 1:
                continue  # a table by its name may differ: a loader enters elsewhere
            return _handlers(program, address, size)
    return {}


def _candidates(program: Program) -> list[tuple[int, int, bool]]:
    """Places where a table may begin: objects and sections called so, and starts of sections."""
    objects = [
        (address, size, True)
        for name, places in program.objects.items()
        for address, size in places
        if _called_so(name)
    ]
    sections = [
        (section.address, section.size, True)
        for section in program.elf.sections
        if section.allocated and section.in_file and _called_so(section.name)
    ]
    starts = [(span.address, 4 * _MOST, False) for span in program.spans if span.address % 4 == 0]
    return [place for place in (*objects, *sections, *starts) if place[1] >= 8]


def _called_so(name: str) -> bool:
    return "vector" in name.lower() or "isr" in name.lower()


def _handlers(program: Program, address: int, size: int) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for index in range(1, min(size // 4, _MOST)):
        value = program.number(address + 4 * index, 4)
        if value == 0:
            continue
        if value is None or not value & 1 or not program.is_code(value & ~1):
            break
        if index >= 16 and program.has_functions and not program.is_start(value):
            break
        found.setdefault(value, []).append(_SYSTEM.get(index, f"IRQ{index - 16}"))
    return found


def exception_frame(fpu: bool | None) -> int:
    """Bytes that an exception takes before its handler runs; with the FPU's unless told not to."""
    return (BASIC_FRAME if fpu is False else EXTENDED_FRAME) + ALIGNMENT
