# SPDX-License-Identifier: Apache-2.0
"""Instructions of the quantised products on emulated CPUs: those of tests/instructions.json.

The figures are counted, so they have no noise; what moves is recorded again with a reason in the
commit: ``python bench/instructions.py --record``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from colibri_emulator.bench_program import CPUS, cpu_tables
from colibri_emulator.toolchain import TARGETS
from needs import need

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench"))
import instructions as bench  # noqa: E402

RECORDED: dict[str, Any] = json.loads(bench.RECORD.read_text("utf-8"))["measured"]
SHAPES: list[bench.Shape] = [("q8", 192, 128, 64), ("q4", 192, 128, 64)]
SAME_PERCENT, OTHER_PERCENT = 1, 15  # with the compiler that was recorded, with another version

# Instructions per weight that a 512x512 product may take, the better compiler's, by type and CPU.
DEMANDED = {
    ("cortex-m33", "q4"): 4.0, ("cortex-m33", "q8"): 2.3,
    ("cortex-m7", "q4"): 4.0, ("cortex-m7", "q8"): 2.3,
    ("cortex-m55", "q4"): 0.455,
}  # fmt: skip


@pytest.mark.parametrize("key", list(RECORDED))
def test_products_take_what_is_recorded(key: str) -> None:
    name, table_name, toolchain = key.split()
    cpu = CPUS[name]
    prefix = TARGETS[cpu.target].gcc_prefix
    need(cpu.program, "module:ziglang" if toolchain == "zig" else f"{prefix}gcc")
    table = next(table for table in cpu_tables(cpu) if table.name == table_name)
    same = bench.compiler(cpu, toolchain) == RECORDED[key]["compiler"]
    percent = SAME_PERCENT if same else OTHER_PERCENT
    for row in bench.measure(cpu, table, toolchain, SHAPES):
        recorded = RECORDED[key]["instructions"][row.name]
        assert abs(row.instructions - recorded) <= recorded * percent / 100, row


@pytest.mark.parametrize(("cpu", "type"), list(DEMANDED))
def test_recorded_products_are_fast_enough(cpu: str, type: str) -> None:
    """Group scales included, whatever the group."""
    for group in bench.GROUPS:
        best = min(
            entry["instructions"][f"{type} 512x512 g{group}"]
            for key, entry in RECORDED.items()
            if key.split()[0] == cpu
        )
        assert best / (512 * 512) < DEMANDED[cpu, type], group
