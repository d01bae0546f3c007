# SPDX-License-Identifier: Apache-2.0
"""One interface for every CPU that can run a firmware, and the choice among them.

`pick_machine` says which engine runs a board and why; `run_on_cpu` builds the firmware for it and
runs one request.  The results come from the firmware's mailbox, so they do not depend on the
engine.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, Protocol

from colibri.boards import Board
from colibri.engine import ExpertStats, policy_name
from colibri.errors import EmulateError
from colibri_emulator import mailbox
from colibri_emulator.build_firmware import Firmware, build_firmware
from colibri_emulator.faults import NO_FAULTS, Faults
from colibri_emulator.mailbox import Mailbox, Request
from colibri_emulator.toolchain import ToolchainName

EngineName = Literal["unicorn", "qemu"]
_PIP = 'pip install "colibri-sdk[cpu]"'
_APT = "apt-get install qemu-system-arm qemu-system-misc qemu-user"


@dataclass(frozen=True)
class Fault:
    """The firmware touched what the board does not have, or broke another rule of its CPU."""

    kind: str
    address: int
    pc: int
    where: str

    def __str__(self) -> str:
        return f"{self.kind} at {self.address:#x}, in {self.where} (pc {self.pc:#x})"


@dataclass(frozen=True)
class Buffer:
    """One buffer of the plan that the firmware made; `kind` as colibri_buffer_name takes it."""

    kind: int
    region: str
    offset: int
    bytes: int


@dataclass(frozen=True)
class Result:
    """What a run produced.

    `status` is 0 when all went well, else the colibri_status of `stage`, with its error's
    `where`, `have`, `need`.  `instructions` is None where an engine cannot count exactly.
    `stack_bytes` is each core's, `stack_high_water` that of the core that used most.
    """

    engine: str
    tokens: tuple[int, ...]
    logits_crc32: str
    status: int
    stage: str
    error: tuple[int, int, int]
    total_bytes: int
    used: dict[str, int]
    high_water: dict[str, int]
    buffers: tuple[Buffer, ...]
    stack_bytes: int
    stack_high_water: int
    instructions: int | None
    fault: Fault | None
    notes: tuple[str, ...]
    cores: int = 1
    experts: ExpertStats | None = None

    @property
    def ok(self) -> bool:
        """Whether the request was carried out."""
        return self.fault is None and self.status == 0


class Machine(Protocol):
    """A CPU with a board's memory."""

    name: str
    """Engine and CPU, for reports."""
    target: str
    """What firmware must be built for."""
    notes: tuple[str, ...]
    """What a reader of the results must know."""

    def run(self, firmware: Firmware, request: Request) -> Result:
        """Runs one request to its end."""


def pick_machine(
    board: Board,
    prefer: EngineName | None = None,
    *,
    workers: int = 1,
    faults: Faults = NO_FAULTS,
) -> Machine:
    """The engine that can run a board's firmware.

    Unicorn comes first: its memory map is exactly the board's.  QEMU takes what Unicorn lacks
    (Helium, several cores, Linux executables), or what is asked for.

    Raises
    ------
    EmulateError
        When none can, with what to install.
    """
    if board.os == "linux":
        return _linux_machine(board, prefer)
    if workers > 1:
        prefer = _check_cores(board, prefer, workers)
    missing = []
    if prefer in (None, "unicorn") and board.firmware.unicorn_cpu:
        if find_spec("unicorn") is not None:
            from colibri_emulator.unicorn_engine import UnicornMachine

            return UnicornMachine(board, faults)
        missing.append(_PIP)
    if prefer in (None, "qemu") and board.firmware.qemu_machine:
        from colibri_emulator.qemu_engine import QemuMachine, qemu_program

        if shutil.which(qemu_program(board)):
            return QemuMachine(board)
        missing.append(_APT)
    if missing:
        raise EmulateError(f"no CPU engine for {board.id} is installed", hint=" or ".join(missing))
    offered = [name for name in ("unicorn_cpu", "qemu_machine") if getattr(board.firmware, name)]
    raise EmulateError(
        f"board {board.id} does not run on {prefer or 'any CPU engine'}",
        field="firmware",
        hint=f"the board file offers {', '.join(offered)}" if offered else "use --machine native",
    )


def _check_cores(board: Board, prefer: EngineName | None, workers: int) -> EngineName:
    """More than one worker needs firmware that starts cores, and an engine that has them."""
    cores = board.firmware_cores
    if workers > cores:
        why = "" if board.firmware.psci else ": its board file names no psci to start others with"
        raise EmulateError(
            f"firmware for {board.id} works on {cores} core{'s' * (cores > 1)}, not {workers}{why}",
            field="workers",
            hint=f"--workers {cores}; --machine native predicts with more",
        )
    if prefer == "unicorn":
        raise EmulateError(
            f"Unicorn emulates one core, not {workers}",
            field="workers",
            hint="--engine qemu, or --workers 1: the tokens and bits are the same",
        )
    return "qemu"


def _linux_machine(board: Board, prefer: EngineName | None) -> Machine:
    from colibri_emulator.qemu_user_engine import PROGRAM, QemuUserMachine

    if prefer == "unicorn":
        raise EmulateError(
            f"board {board.id} runs Linux programs, which Unicorn does not", hint="use qemu"
        )
    if shutil.which(PROGRAM) is None:
        raise EmulateError(f"{PROGRAM} is not installed", hint=_APT)
    return QemuUserMachine(board)


def run_on_cpu(
    board: Board,
    image: str | Path,
    request: Request,
    *,
    prefer: EngineName | None = None,
    toolchain: ToolchainName = "auto",
    kv: Sequence[str] | None = None,
    faults: Faults = NO_FAULTS,
    application: Mapping[str, int] | None = None,
    code: int | None = None,
) -> tuple[Firmware, Result]:
    """Builds the firmware of a board and runs one request on an emulated CPU.

    The firmware's files are gone afterwards; its record (sizes, layout) is returned.
    """
    machine = pick_machine(board, prefer, workers=request.workers, faults=faults)
    with tempfile.TemporaryDirectory(prefix="colibri-") as folder:
        firmware = build_firmware(
            board,
            image,
            Path(folder) / "firmware",
            toolchain=toolchain,
            target=machine.target,
            kv=kv or (request.kv,),
            copy_model=False,
            weights="mapped" if request.weights == "mapped" else "streamed",
            application=application,
            code=code,
        )
        return firmware, machine.run(firmware, request)


@dataclass
class Ending:
    """How an engine saw a run end."""

    engine: str
    instructions: int | None
    fault: Fault | None
    notes: tuple[str, ...] = field(default=())


def result_from_mailbox(firmware: Firmware, box: Mailbox, ending: Ending) -> Result:
    """The results that the firmware wrote, with what only the engine knows."""
    assert firmware.layout is not None
    if ending.fault is None and box.state != mailbox.DONE:
        raise EmulateError(f"{ending.engine}: the firmware stopped in state {box.state}")
    names = [region.name for region in firmware.layout.regions]
    generated = slice(box.prompt_count, box.prompt_count + box.generated)
    return Result(
        engine=ending.engine,
        tokens=tuple(box.tokens[generated]),
        logits_crc32=f"{box.logits_crc32:08x}",
        status=box.status,
        stage=mailbox.STAGES[box.stage] if box.stage < len(mailbox.STAGES) else str(box.stage),
        error=(box.error_where, box.error_have, box.error_need),
        total_bytes=box.total_bytes,
        used=dict(zip(names, box.used, strict=False)),
        high_water=dict(zip(names, box.high_water, strict=False)),
        buffers=tuple(
            Buffer(b.kind, names[b.region] if b.region < len(names) else "", b.offset, b.bytes)
            for b in box.buffers[: box.buffer_count]
        ),
        stack_bytes=box.stack_bytes,
        stack_high_water=box.stack_high_water,
        instructions=ending.instructions,
        fault=ending.fault,
        notes=ending.notes,
        cores=box.cores,
        experts=_experts(box) if box.slots else None,
    )


def _experts(box: Mailbox) -> ExpertStats:
    """What the firmware counted; it does not have what the runner leaves out."""
    return no_experts()._replace(
        slots=box.slots,
        slots_per_layer=box.slots_per_layer,
        policy=policy_name(box.slots_policy),
        hits=box.hits,
        misses=box.misses,
        bytes_read=box.bytes_read,
        retries=box.retries,
    )


def no_experts() -> ExpertStats:
    """Zeros."""
    return ExpertStats._make(0 for _ in ExpertStats._fields)
