# SPDX-License-Identifier: Apache-2.0
"""Firmware of the families on emulated CPUs: the tokens, bits and memory of the native twin."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from colibri.boards import load_board
from colibri.generate import Request
from colibri.image import Image
from colibri.pack import pack
from colibri.planner import plan
from colibri.sampling import Sampling
from colibri_emulator.cpu import run_cpu
from colibri_emulator.machine import EngineName
from colibri_emulator.report import EmulationReport
from colibri_emulator.twin import run_twin
from needs import need
from runtime_sizes import GOLDEN, goldens

PICO, A53, RV64 = "pimoroni-pico-plus-2", "qemu-virt-aarch64-2gb", "qemu-virt-riscv64"
PROGRAM = {A53: "qemu-system-aarch64", RV64: "qemu-system-riscv64"}
# One of each kind of layer and router; all of them take minutes.
USUAL = ("deepseek_v3", "lfm2_moe", "qwen3_next", "granitemoehybrid", "gemma4_text", "gpt_oss",
         "phimoe", "jamba", "minimax")  # fmt: skip
CONTEXT, PROMPT, NEW = 32, 20, 4  # more than one token a step, and more than one step


def long(*values: str) -> object:
    return pytest.param(*values, marks=pytest.mark.long)


def run_both(
    golden: str, folder: Path, board_id: str, engine: EngineName
) -> tuple[EmulationReport, EmulationReport]:
    """The same request in the twin and in the firmware."""
    pack(GOLDEN / golden, folder / "image", quant="q4")
    image, board = Image(folder / "image"), load_board(board_id)
    with np.load(GOLDEN / golden / "reference.npz") as reference:
        prompt = reference["input_ids"][0, :PROMPT].tolist()
    request = Request(prompt, Sampling(), NEW, ignore_eos=True)
    planned = plan(image, board, context=CONTEXT)
    return (
        run_twin(image, board, request, planned, kernels="ref"),
        run_cpu(image, board, request, planned, prefer=engine),
    )


@pytest.mark.parametrize(
    ("golden", "board", "engine"),
    [(n, PICO, "unicorn") if n in USUAL else long(n, PICO, "unicorn") for n in goldens()]
    + [long("qwen3_next", A53, "qemu"), long("qwen3_next", RV64, "qemu")],
)
def test_firmware_is_the_twin(golden: str, board: str, engine: EngineName, tmp_path: Path) -> None:
    need("module:ziglang", "module:unicorn" if engine == "unicorn" else PROGRAM[board])
    native, cpu = run_both(golden, tmp_path, board, engine)
    assert native.fault is None
    assert cpu.fault is None
    assert len(cpu.tokens) == NEW
    assert cpu.tokens == native.tokens
    assert cpu.logits_crc32 == native.logits_crc32
    assert cpu.total_bytes == native.total_bytes
    assert cpu.high_water == native.high_water
    used = [[(use.name, use.used) for use in report.regions] for report in (cpu, native)]
    assert used[0] == used[1]
