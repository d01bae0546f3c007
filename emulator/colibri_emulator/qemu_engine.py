# SPDX-License-Identifier: Apache-2.0
"""QEMU system emulation as a board: for what Unicorn lacks, and as a second opinion.

The image and the request are in memory at reset (``-device loader``); the mailbox is polled over
QMP until the firmware says that it is done.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from colibri.boards import Board
from colibri.errors import EmulateError
from colibri_emulator import mailbox
from colibri_emulator.build_firmware import Firmware
from colibri_emulator.machine import Ending, Fault, Result, result_from_mailbox
from colibri_emulator.mailbox import Mailbox, Request
from colibri_emulator.native import native_library
from colibri_emulator.symbols import Program

_PROGRAMS = {
    "cortex-m4": "qemu-system-arm",
    "cortex-m7": "qemu-system-arm",
    "cortex-m33": "qemu-system-arm",
    "cortex-m55": "qemu-system-arm",
    "aarch64": "qemu-system-aarch64",
    "riscv64": "qemu-system-riscv64",
}
# Machines whose RAM is as large as the command line says.
_SIZED = {"virt"}
_MACHINE_OPTIONS = {
    "aarch64": ("-cpu", "cortex-a53"),
    "riscv64": ("-cpu", "rv64", "-bios", "none"),
}
_VECTOR_CPU = "rv64,v=true,vlen=128"  # the shortest registers that V allows
_QUIET = (
    "-display", "none", "-monitor", "none", "-serial", "none", "-nodefaults", "-net", "none",
)  # fmt: skip
_POLL_FIRST, _POLL_LONGEST = 0.02, 0.25  # seconds


def qemu_program(board: Board) -> str:
    """Which QEMU has the board's CPU."""
    return _PROGRAMS[board.firmware.target]


@cache
def _can_count(program: str) -> bool:
    """Our plugin's interface is that of QEMU 4.2 to 8.2."""
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"version (\d+)\.", told.stdout)
    return found is not None and 5 <= int(found.group(1)) <= 8


def counting(program: str, log: Path, options: str = "") -> list[str]:
    """Options that make a QEMU count instructions into a log; none where it cannot."""
    if not _can_count(program):
        return []
    plugin = ",".join(filter(None, (str(native_library("qemu_count")), options)))
    return ["-plugin", plugin, "-d", "plugin", "-D", str(log)]


class QemuMachine:
    """A board in QEMU."""

    def __init__(self, board: Board, timeout: float = 3600.0) -> None:
        self._board, self._timeout = board, timeout
        self.target: str = board.firmware.target
        program = qemu_program(board)
        self.name = f"{program} {board.firmware.qemu_machine}"
        self.notes: tuple[str, ...] = (
            f"QEMU's '{board.firmware.qemu_machine}' has memory and devices beside the board's "
            "regions; touching those is not reported as a fault",
        )

    def run(self, firmware: Firmware, request: Request) -> Result:
        """Runs one request to its end or to a fault."""
        assert firmware.layout is not None
        if firmware.layout.device_base:
            raise EmulateError(
                "QEMU's machines have no block device to read the image from",
                hint="--engine unicorn, or --machine native"
                if self._board.firmware.unicorn_cpu and request.workers <= 1
                else "--machine native",
            )
        program = Program(firmware.elf)
        run = run_bare(
            self._command(request),
            program,
            {
                firmware.layout.model_base: firmware.model,
                program.address("colibri_mailbox"): request.pack(),
            },
            # The count is not atomic over cores.
            code=(firmware.layout.code_start, firmware.layout.code_limit)
            if request.workers <= 1
            else None,
            timeout=self._timeout,
        )
        notes = self.notes
        if run.box.cores > 1:
            cores = run.box.cores
            notes += (f"{cores} cores were at work; instructions are not counted over several",)
        ending = Ending(self.name, run.instructions, fault_of(run.box, program), notes)
        return result_from_mailbox(firmware, run.box, ending)

    def _command(self, request: Request) -> list[str]:
        """QEMU with the board's machine."""
        fw = self._board.firmware
        command = [qemu_program(self._board), "-M", fw.qemu_machine or ""]
        if fw.qemu_machine in _SIZED:
            ram = self._board.region(fw.data_region).size
            command += ["-m", f"{ram >> 20}M", *_MACHINE_OPTIONS.get(fw.target, ())]
            if "rvv" in self._board.cores[0].features:
                command += ["-cpu", _VECTOR_CPU]
        if request.workers > 1:
            command += ["-smp", str(self._board.firmware_cores)]
        return command


@dataclass(frozen=True)
class BareRun:
    """How a bare-metal program ended: its mailbox, and the bytes of the symbol asked for."""

    box: Mailbox
    memory: bytes
    instructions: int | None


def run_bare(
    command: Sequence[str],
    program: Program,
    loads: Mapping[int, Path | bytes],
    *,
    code: tuple[int, int] | None,
    timeout: float,
    symbol: str = "colibri_mailbox",
) -> BareRun:
    """Runs a program on a QEMU machine until its mailbox says that it is done.

    Parameters
    ----------
    command : sequence of str
        The QEMU program and its machine.
    program : Program
        What to run.
    loads : mapping
        Files or bytes that are in memory at reset, by address.
    code : (int, int), optional
        Instructions are counted in this range of addresses; None: not at all.
    timeout : float
        Seconds.
    symbol : str
        Whose bytes to read at the end.
    """
    # Beside other files of this run; a Unix socket's path has to be short.
    with tempfile.TemporaryDirectory(prefix="cq-") as name:
        folder = Path(name)
        count: Sequence[str] = ()
        if code is not None:
            span = f"from={code[0]:#x},to={code[1]:#x}"
            until = f"until={program.address('colibri_done'):#x}"
            count = counting(command[0], folder / "log", f"{span},{until}")
        full = [
            *(*command, *_QUIET, *_loaders(loads, folder)),
            *("-kernel", str(program.path)),
            *("-qmp", f"unix:{folder / 'qmp'},server=on,wait=off"),
            *count,
        ]
        with _started(full, folder) as qmp:
            box = _wait(qmp, program, folder, timeout)
            size = program.size(symbol)
            memory = qmp.memory(program.address(symbol), size, folder / "memory")
        return BareRun(box, memory, read_count(folder / "log"))


def _loaders(loads: Mapping[int, Path | bytes], folder: Path) -> list[str]:
    """Options that put files and bytes into memory."""
    options = []
    for address, data in loads.items():
        file = data if isinstance(data, Path) else folder / f"at-{address:x}"
        if isinstance(data, bytes):
            file.write_bytes(data)
        escaped = str(file).replace(",", ",,")
        options += ["-device", f"loader,file={escaped},addr={address:#x},force-raw=on"]
    return options


def _wait(qmp: _Qmp, program: Program, folder: Path, timeout: float) -> Mailbox:
    """The mailbox, once the program is done."""
    address, size = program.address("colibri_mailbox"), ctypes.sizeof(Mailbox)
    pause, end = _POLL_FIRST, time.monotonic() + timeout
    while time.monotonic() < end:
        time.sleep(pause)
        pause = min(pause * 1.5, _POLL_LONGEST)
        box = Mailbox.from_buffer_copy(qmp.memory(address, size, folder / "mailbox"))
        if box.state in (mailbox.DONE, mailbox.FAULT):
            return box
    raise EmulateError(f"{program.path.name}: no result after {timeout:.0f} s")


class _Qmp:
    """QEMU's control socket."""

    def __init__(self, path: Path, process: subprocess.Popen[str]) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        end = time.monotonic() + 30
        while True:
            try:
                self._socket.connect(str(path))
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > end:
                    raise _died(process) from None
                time.sleep(0.02)
        self._process = process
        self._file = self._socket.makefile("rw", encoding="utf-8")
        self._file.readline()  # greeting
        self.ask("qmp_capabilities")

    def ask(self, command: str, **arguments: Any) -> Any:
        """One command and its answer; events in between are passed over."""
        try:
            self._file.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
            self._file.flush()
            while True:
                line = self._file.readline()
                if not line:
                    raise _died(self._process)
                answer = json.loads(line)
                if "error" in answer:
                    raise EmulateError(f"QEMU refused {command}: {answer['error'].get('desc')}")
                if "return" in answer:
                    return answer["return"]
        except OSError:
            raise _died(self._process) from None

    def memory(self, address: int, size: int, file: Path) -> bytes:
        """Bytes as the CPU sees them."""
        self.ask("memsave", val=address, size=size, filename=str(file))
        return file.read_bytes()

    def close(self) -> None:
        """Ends QEMU."""
        with contextlib.suppress(EmulateError):
            self.ask("quit")
        self._file.close()
        self._socket.close()


@contextlib.contextmanager
def _started(command: list[str], folder: Path) -> Iterator[_Qmp]:
    """QEMU while it is needed; it is gone afterwards, whatever happens."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        qmp = _Qmp(folder / "qmp", process)
        yield qmp
        qmp.close()
        process.wait(timeout=30)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def _died(process: subprocess.Popen[str]) -> EmulateError:
    text = process.communicate(timeout=30)[1].strip() if process.poll() is not None else ""
    return EmulateError(f"QEMU ended early: {text[:400] or 'no message'}")


def read_count(log: Path) -> int | None:
    """What the counting plugin wrote at the end."""
    found = re.search(r"instructions: (\d+)", log.read_text("utf-8") if log.exists() else "")
    return int(found.group(1)) if found else None


def fault_of(box: Mailbox, program: Program) -> Fault | None:
    """The fault that the firmware's vectors recorded."""
    if box.state != mailbox.FAULT:
        return None
    return Fault(
        f"CPU exception, cause {box.fault_cause:#x}",
        box.fault_address,
        box.fault_pc,
        program.where(box.fault_pc),
    )
