# SPDX-License-Identifier: Apache-2.0
"""qemu-user: the static Linux executable of a board with an operating system."""

from __future__ import annotations

import json
import struct
import subprocess
import tempfile
from pathlib import Path

from colibri._core import WEIGHTS
from colibri.boards import Board
from colibri.engine import POLICIES, ExpertStats, policy_name
from colibri.errors import EmulateError
from colibri_emulator.build_firmware import Firmware
from colibri_emulator.machine import Buffer, Result, no_experts
from colibri_emulator.mailbox import KV_TYPES, Request
from colibri_emulator.qemu_engine import counting, read_count

PROGRAM = "qemu-aarch64"
_CPUS = ("cortex-a53", "cortex-a72", "cortex-a76")  # of QEMU 7.2


class QemuUserMachine:
    """A Linux board's processor; its memory is the host's."""

    def __init__(self, board: Board, timeout: float = 3600.0) -> None:
        self._timeout = timeout
        memory = [region for region in board.regions if region.kind == "dram"]
        self._region = max(memory, key=lambda region: region.usable).name
        self.target: str = board.firmware.target
        core = board.cores[0].cpu
        self._cpu = core if core in _CPUS else "max"
        self.name = f"{PROGRAM} {self._cpu} (Linux user mode)"
        self.notes: tuple[str, ...] = (
            "the memory of the board is not enforced under qemu-user; --machine native does that",
        )

    def run(self, firmware: Firmware, request: Request) -> Result:
        """Runs one request to its end."""
        with tempfile.TemporaryDirectory(prefix="cq-") as name:
            log = Path(name) / "log"
            command = [PROGRAM, "-cpu", self._cpu]
            # The count is not atomic over threads.
            if request.workers <= 1:
                command += counting(PROGRAM, log)
            command += [str(firmware.elf), str(firmware.model), *_arguments(request)]
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=self._timeout, check=False
                )
            except subprocess.TimeoutExpired:
                raise EmulateError(f"{self.name}: no result after {self._timeout:.0f} s") from None
            return self._result(done, read_count(log) if request.workers <= 1 else None)

    def _result(self, done: subprocess.CompletedProcess[str], count: int | None) -> Result:
        try:
            out = json.loads(done.stdout)
        except ValueError:
            reason = done.stderr.strip()[:400] or f"exit code {done.returncode}"
            raise EmulateError(f"{self.name}: {reason}") from None
        name = self._region
        return Result(
            engine=self.name,
            tokens=tuple(out["tokens"]),
            logits_crc32=out["logits_crc32"],
            status=out["status"],
            stage=out["stage"],
            error=tuple(out["error"]),
            total_bytes=out["total_bytes"],
            used={name: out["total_bytes"]},
            high_water={name: out["high_water"]},
            buffers=tuple(Buffer(kind, name, at, size) for kind, at, size in out["buffers"]),
            stack_bytes=0,
            stack_high_water=0,
            instructions=count,
            fault=None,
            notes=self.notes,
            experts=_experts(out["experts"]),
        )


def _experts(given: list[int]) -> ExpertStats | None:
    slots, per_layer, policy, hits, misses, size, retries = given
    if not slots:
        return None
    return no_experts()._replace(
        slots=slots,
        slots_per_layer=per_layer,
        policy=policy_name(policy),
        hits=hits,
        misses=misses,
        bytes_read=size,
        retries=retries,
    )


def _arguments(request: Request) -> list[str]:
    """The command line that linux_main.c reads."""
    prompt = ",".join(str(token) for token in request.prompt)
    settings = {
        "max_new": request.max_new_tokens,
        "ignore_eos": int(request.ignore_eos),
        "context": request.context,
        "batch": request.batch,
        "workers": request.workers,
        "kv": KV_TYPES[request.kv],
        "temperature": _bits(request.temperature),
        "top_k": request.top_k,
        "top_p": _bits(request.top_p),
        "seed": request.seed,
        "selftest": int(request.selftest),
        "weights": WEIGHTS[request.weights],
        "slots": request.expert_slots,
        "policy": POLICIES[request.policy],
    }
    return [prompt, *(f"{name}={value}" for name, value in settings.items())]


def _bits(value: float) -> int:
    """The bits of a single, so that its text form cannot change it."""
    return int.from_bytes(struct.pack("<f", value), "little")
