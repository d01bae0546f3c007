# SPDX-License-Identifier: Apache-2.0
"""Unicorn as a board: exactly its regions with their access rights, everything else faults."""

from __future__ import annotations

import ctypes
import mmap
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import unicorn as _unicorn
from unicorn import arm64_const, arm_const, riscv_const
from unicorn.unicorn_py3.unicorn import uclib

from colibri.boards import Board, Region
from colibri.errors import EmulateError
from colibri_emulator.block_device import BlockDevice
from colibri_emulator.build_firmware import Firmware
from colibri_emulator.faults import NO_FAULTS, Faults
from colibri_emulator.machine import Ending, Fault, Result, result_from_mailbox
from colibri_emulator.mailbox import STACK_PAINT, Mailbox, Request
from colibri_emulator.native import native_library
from colibri_emulator.symbols import Program

unicorn: Any = _unicorn  # its annotations are incomplete

_PAGE = 4096
# MAP_NORESERVE, which Python names from 3.13 on: untouched memory costs nothing.
_LAZY = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (0x4000 if sys.platform == "linux" else 0)
_CODE_BUFFER = 64 << 20  # Unicorn's own cache of translated code; the default reserves 1 GiB
_STACK_LIMIT = 19  # QEMU's number for a stack pointer below MSPLIM
_SYSTEM_CONTROL = 0xE000E000  # Cortex-M: CPACR, VTOR; reads back what was written


class _Counter(ctypes.Structure):
    """The head of ``colibri_counter`` in native/count.c; its table follows."""

    _fields_: ClassVar = [
        ("instructions", ctypes.c_uint64),
        ("code", ctypes.c_void_p),
        ("base", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("kind", ctypes.c_uint64),
    ]


_FIXED4, _THUMB, _RISCV = range(3)  # how native/count.c tells instruction lengths


@dataclass(frozen=True)
class _Cpu:
    """What Unicorn calls a CPU, and what firmware is built for it."""

    target: str
    arch: int
    mode: int
    model: int | None
    pc: int
    count: int


_CPUS = {
    **{
        name: _Cpu(
            name,
            unicorn.UC_ARCH_ARM,
            unicorn.UC_MODE_THUMB | unicorn.UC_MODE_MCLASS,
            model,
            arm_const.UC_ARM_REG_PC,
            _THUMB,
        )
        for name, model in (
            ("cortex-m4", arm_const.UC_CPU_ARM_CORTEX_M4),
            ("cortex-m7", arm_const.UC_CPU_ARM_CORTEX_M7),
            ("cortex-m33", arm_const.UC_CPU_ARM_CORTEX_M33),
        )
    },
    "cortex-a53": _Cpu(
        "aarch64",
        unicorn.UC_ARCH_ARM64,
        unicorn.UC_MODE_ARM,
        arm64_const.UC_CPU_ARM64_A53,
        arm64_const.UC_ARM64_REG_PC,
        _FIXED4,
    ),
    "rv64": _Cpu(
        "riscv64",
        unicorn.UC_ARCH_RISCV,
        unicorn.UC_MODE_RISCV64,
        None,
        riscv_const.UC_RISCV_REG_PC,
        _RISCV,
    ),
}

_KINDS = {
    unicorn.UC_MEM_READ_UNMAPPED: "read of unmapped memory",
    unicorn.UC_MEM_WRITE_UNMAPPED: "write to unmapped memory",
    unicorn.UC_MEM_FETCH_UNMAPPED: "execution of unmapped memory",
    unicorn.UC_MEM_READ_PROT: "read of protected memory",
    unicorn.UC_MEM_WRITE_PROT: "write to read-only memory",
    unicorn.UC_MEM_FETCH_PROT: "execution of non-executable memory",
}


class UnicornMachine:
    """A board in Unicorn."""

    def __init__(self, board: Board, faults: Faults = NO_FAULTS) -> None:
        cpu = board.firmware.unicorn_cpu
        if cpu not in _CPUS:
            raise EmulateError(
                f"Unicorn has no CPU '{cpu}'",
                file=board.id,
                field="firmware.unicorn_cpu",
                hint=f"one of {', '.join(_CPUS)}",
            )
        self._board, self._cpu, self._faults = board, _CPUS[cpu], faults
        self.target = self._cpu.target
        self.name = f"unicorn {unicorn.__version__} {cpu}"
        self.notes: tuple[str, ...] = ()
        if self.target != board.firmware.target:
            self.notes = (
                f"built for {self.target} and run on an emulated {cpu}: no engine has this "
                f"board's {board.cores[0].cpu}; its Helium code is not exercised",
            )

    def run(self, firmware: Firmware, request: Request) -> Result:
        """Runs one request to its end or to a fault."""
        if firmware.target != self.target:
            raise EmulateError(
                f"the firmware is built for {firmware.target}, the machine runs {self.target}",
                file=firmware.elf,
                hint=f"build it for target {self.target}",
            )
        if request.workers > 1:
            raise EmulateError(
                f"Unicorn emulates one core, not {request.workers}",
                field="workers",
                hint="1 worker, or QEMU: the tokens and bits are the same",
            )
        session = _Session(self._board, self._cpu, firmware, self._faults)
        box = session.program.address("colibri_mailbox")
        session.write(box, request.pack())
        try:
            fault = session.run_until(session.program.address("colibri_done"))
        finally:
            session.close()
        result = Mailbox.from_buffer_copy(session.read(box, ctypes.sizeof(Mailbox)))
        if fault is not None:
            result.stack_bytes, result.stack_high_water = session.stack()
        ending = Ending(self.name, session.instructions(), fault, self.notes)
        return result_from_mailbox(firmware, result, ending)


class _Session:
    """One power-up: memory, CPU, hooks."""

    def __init__(self, board: Board, cpu: _Cpu, firmware: Firmware, faults: Faults) -> None:
        assert firmware.layout is not None
        self._board, self._cpu = board, cpu
        self.program = Program(firmware.elf)
        self._fault: Fault | None = None
        self._memory: list[tuple[int, mmap.mmap, Any]] = []
        self._uc = unicorn.Uc(cpu.arch, cpu.mode)
        self._uc.ctl_set_tcg_buffer_size(_CODE_BUFFER)
        if cpu.model is not None:
            self._uc.ctl_set_cpu_model(cpu.model)
        for region in board.regions:
            self._map(region)
        for address, data in self.program.segments:
            self.write(address, data)
        if firmware.layout.model_bytes:
            self._load(firmware.model, firmware.layout.model_base, firmware.layout.model_bytes)
        self._device: BlockDevice | None = None
        if firmware.layout.device_base:
            self._attach(firmware, faults)
        self._pc = self._reset(firmware.layout.code_start)
        self._hook()

    def _load(self, model: Path, base: int, size: int) -> None:
        """Puts the image where the link wants it."""
        with model.open("rb") as file:
            memory, offset = self._find(base)
            view = memoryview(memory)[offset : offset + size]
            if file.readinto(view) != size:
                raise EmulateError("is shorter than at build time", file=model)
            view.release()

    def _attach(self, firmware: Firmware, faults: Faults) -> None:
        """The storage that the image stays in."""
        assert firmware.layout is not None
        device = BlockDevice(firmware.model, self._store, faults)
        self._uc.mmio_map(
            firmware.layout.device_base, _PAGE,
            lambda _uc, offset, _size, _user: device.load(offset), None,
            lambda _uc, offset, _size, value, _user: device.write(offset, value), None,
        )  # fmt: skip
        self._device = device

    def close(self) -> None:
        """Ends the storage."""
        if self._device is not None:
            self._device.close()

    def _store(self, address: int, data: bytes) -> bool:
        """A write by a device: to memory that can be written, and nowhere else."""
        for region in self._board.regions:
            inside = region.base <= address and address + len(data) <= region.end
            if inside and region.writable:
                self.write(address, data)
                return True
        return False

    def _map(self, region: Region) -> None:
        """A region and its aliases over one piece of host memory, committed as it is touched."""
        if region.base % _PAGE or region.size % _PAGE:
            raise EmulateError(
                f"region {region.name} at {region.base:#x} with {region.size:#x} bytes is not made "
                f"of pages of {_PAGE} bytes, which Unicorn needs"
            )
        try:
            memory = mmap.mmap(-1, region.size, flags=_LAZY)
        except OSError as error:
            raise EmulateError(
                f"this machine cannot reserve {region.size:#x} bytes for region {region.name}: "
                f"{error.strerror}"
            ) from error
        anchor = ctypes.c_char.from_buffer(memory)
        pointer = ctypes.c_void_p(ctypes.addressof(anchor))
        rights = {"r": unicorn.UC_PROT_READ, "w": unicorn.UC_PROT_WRITE, "x": unicorn.UC_PROT_EXEC}
        access = sum(rights[letter] for letter in region.access)
        for base in (region.base, *region.aliases):
            try:
                self._uc.mem_map_ptr(base, region.size, access, pointer)
            except unicorn.UcError as error:
                raise EmulateError(
                    f"Unicorn cannot map region {region.name} at {base:#x}: {error}"
                ) from error
            self._memory.append((base, memory, anchor))

    def _find(self, address: int) -> tuple[mmap.mmap, int]:
        for base, memory, _ in self._memory:
            if base <= address < base + len(memory):
                return memory, address - base
        raise EmulateError(
            f"the program has bytes at {address:#x}, where the board has no memory",
            file=self.program.path,
        )

    def write(self, address: int, data: bytes) -> None:
        """Writes as a debugger does, past access rights."""
        memory, offset = self._find(address)
        memory[offset : offset + len(data)] = data

    def read(self, address: int, size: int) -> bytes:
        """Reads as a debugger does."""
        memory, offset = self._find(address)
        return memory[offset : offset + size]

    def _reset(self, code_start: int) -> int:
        """The state of the CPU at reset; returns the first pc."""
        if self._cpu.arch != unicorn.UC_ARCH_ARM:
            return self.program.entry
        if any(base <= _SYSTEM_CONTROL < base + len(memory) for base, memory, _ in self._memory):
            raise EmulateError(
                f"a region of the board covers {_SYSTEM_CONTROL:#x}, where a Cortex-M has its "
                "system control block",
                hint="end the region below 0xe0000000",
            )
        self._uc.mem_map(_SYSTEM_CONTROL, _PAGE, unicorn.UC_PROT_READ | unicorn.UC_PROT_WRITE)
        stack, reset = (int.from_bytes(self.read(code_start + at, 4), "little") for at in (0, 4))
        self._uc.reg_write(arm_const.UC_ARM_REG_SP, stack)
        self._uc.reg_write(arm_const.UC_ARM_REG_FPEXC, 1 << 30)
        return reset | 1

    def _hook(self) -> None:
        self._uc.hook_add(unicorn.UC_HOOK_MEM_INVALID, self._on_invalid)
        self._uc.hook_add(unicorn.UC_HOOK_INTR, self._on_exception)
        native = ctypes.CDLL(str(native_library("count")))
        native.colibri_counter_bytes.restype = ctypes.c_uint64
        # Kept for the life of the session, like the hook that writes to it.
        self._native = native
        self._table = ctypes.create_string_buffer(native.colibri_counter_bytes())
        self._counter = _Counter.from_buffer(self._table)
        memory, offset = self._find(self.program.entry)
        base = self.program.entry - offset
        anchor = next(anchor for at, _, anchor in self._memory if at == base)
        self._counter.code = ctypes.addressof(anchor)
        self._counter.base, self._counter.size = base, len(memory)
        self._counter.kind = self._cpu.count
        handle = ctypes.c_size_t()
        status = uclib.uc_hook_add(
            self._uc._uch,
            ctypes.byref(handle),
            unicorn.UC_HOOK_BLOCK,
            ctypes.cast(native.colibri_on_block, ctypes.c_void_p),
            ctypes.byref(self._counter),
            ctypes.c_uint64(1),
            ctypes.c_uint64(0),
        )
        if status != unicorn.UC_ERR_OK:
            raise EmulateError(f"Unicorn refused the counting hook (error {status})")

    def instructions(self) -> int:
        """Executed so far, whole blocks: exact at the end, at a fault up to a block too many."""
        return int(self._counter.instructions)

    def stack(self) -> tuple[int, int]:
        """Size and high-water mark of the stack, as start-up painted it."""
        bottom, top = (self.program.address(f"__stack_{end}") for end in ("bottom", "top"))
        words = memoryview(self.read(bottom, top - bottom)).cast("I")
        clean = next((i for i, word in enumerate(words) if word != STACK_PAINT), len(words))
        return top - bottom, top - bottom - 4 * clean

    def _on_invalid(
        self, _uc: Any, access: int, address: int, size: int, _value: int, _user: Any
    ) -> bool:
        kind = _KINDS.get(access, f"access {access}")
        pc = int(self._uc.reg_read(self._cpu.pc))
        self._fault = Fault(f"{kind} ({size} bytes)", address, pc, self.program.where(pc))
        return False

    def _on_exception(self, _uc: Any, number: int, _user: Any) -> None:
        pc = int(self._uc.reg_read(self._cpu.pc))
        what = f"CPU exception {number}"
        if self._cpu.arch == unicorn.UC_ARCH_ARM and number == _STACK_LIMIT:
            what = "stack overflow: firmware.stack_bytes of the board file is too small"
        self._fault = self._fault or Fault(what, pc, pc, self.program.where(pc))
        self._uc.emu_stop()

    def run_until(self, end: int) -> Fault | None:
        """Runs from reset; what stopped it before `end`, or None.

        In a thread of its own: Python sees Ctrl-C only between its own steps.
        """
        with ThreadPoolExecutor(1) as pool:
            run = pool.submit(self._uc.emu_start, self._pc, end)
            try:
                error = run.exception()
            except BaseException:
                self._uc.emu_stop()
                raise
        if isinstance(error, unicorn.UcError):
            pc = int(self._uc.reg_read(self._cpu.pc))
            self._fault = self._fault or Fault(str(error), pc, pc, self.program.where(pc))
        elif error is not None:
            raise error
        return self._fault
