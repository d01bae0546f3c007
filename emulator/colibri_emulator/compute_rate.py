# SPDX-License-Identifier: Apache-2.0
"""Multiply-adds a cycle of a core: the assumption that compute time rests on.

Instructions per multiply-add were counted in emulation, all that ran included, for the demo model
(q4, KV f16, 12 tokens of prompt and 4 new ones, zig), with each kernel table and order of weights.
They are taken at one instruction a cycle, three on out-of-order cores; an instruction on long
vectors takes as many cycles as its parts go through the unit.  Relatives of a core get the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from colibri.boards import Board, Core
from colibri.image_format import Order
from colibri_emulator.kernel_tables import tables_for

_WITH_TABLE = {
    ("dsp", Order.ROWS): 2.33,
    ("mve", Order.ROWS): 0.85,
    ("neon", Order.TILES): 0.54,
    ("neon", Order.ROWS): 1.16,
    ("neon-dot", Order.TILES): 0.41,
    ("neon-dot", Order.ROWS): 0.95,
    ("rvv", Order.TILES): 0.46,
    ("rvv", Order.ROWS): 2.33,
}
_LIKE = {"neon-i8mm": "neon-dot"}  # SMMLA works on several tokens at once, SDOT on one
_REFERENCE = {
    "armv7e-m": 8.5,
    "armv8-m.main": 8.5,
    "armv8.1-m.main": 3.7,
    "armv7-a": 7.3,
    "armv8-a": 7.3,
    "armv8.2-a": 7.3,
    "armv9-a": 7.3,
    "rv32imafc": 9.9,
    "rv32gc": 9.9,
    "rv64gc": 9.9,
    "rv64gcv": 9.9,
    "x86-64": 7.3,
}
_WITHOUT_FPU = 33.0  # armv6-m, rv32imac and the like: floats in software, not counted
_OUT_OF_ORDER = {"armv8.2-a": 3.0, "armv9-a": 3.0, "x86-64": 3.0}
# M55: 128 bits in two beats. RVV: four registers at once, 128 bits a cycle.
_CYCLES = {"mve": 2.0, "rvv": 4.0}
# Instructions a byte of colibri_crc32, counted in runs that stream against runs that do not.
_CHECKSUM, _CHECKSUM_RISCV = 12.1, 17.1
_CHECKSUM_CRC = 0.69  # with AArch64's instructions for it


@dataclass(frozen=True)
class ComputeRate:
    """Multiply-adds a cycle of one core, and how it was come by."""

    per_cycle: float
    source: str


def compute_rate(board: Board, order: Order) -> ComputeRate:
    """Of a board's first core, with the kernels that its firmware would get and weights so laid."""
    core = board.cores[0]
    table = tables_for(board.firmware.target, core)[-1].name
    counted = _WITH_TABLE.get((_LIKE.get(table, table), order))
    if counted is None:
        table, counted = "ref", _REFERENCE.get(core.isa, _WITHOUT_FPU)
    per_cycle = _OUT_OF_ORDER.get(core.isa, 1.0) / (counted * _CYCLES.get(table, 1.0))
    kernels = "reference" if table == "ref" else table
    return ComputeRate(
        float(f"{per_cycle:.2g}"),
        f"{kernels} kernels on {core.isa}, weights in {order.name.lower()}: "
        "instructions counted in emulation",
    )


def checksum_cycles(core: Core) -> float:
    """Cycles a byte for the checksum of what was read."""
    counted = _CHECKSUM_RISCV if core.isa.startswith("rv") else _CHECKSUM
    if core.isa.startswith(("armv8-a", "armv8.2-a", "armv9")) and "crc" in core.features:
        counted = _CHECKSUM_CRC
    return counted / _OUT_OF_ORDER.get(core.isa, 1.0)
