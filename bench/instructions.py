# SPDX-License-Identifier: Apache-2.0
"""Instructions per weight of the quantised matrix-vector products, counted on emulated CPUs.

    python bench/instructions.py [--cpu cortex-m33] [--table dsp] [--toolchain gcc] [--json]
    python bench/instructions.py --record     # into tests/instructions.json, for the tests

One call of a kernel table's `matmul` with one token: all that it executes, group scales included,
over the weights of the matrix.  Exact: the difference of two runs of one program (instructions.c)
that call it once and twice.  Instructions are not cycles.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from colibri.image_format import Order
from colibri_emulator.bench_program import (
    CPUS,
    Cpu,
    build_program,
    cpu_tables,
    kernel_sources,
    run_program,
)
from colibri_emulator.kernel_tables import KernelTable
from colibri_emulator.toolchain import TARGETS, Source, find_toolchain

PROGRAM = Path(__file__).with_name("instructions.c")
TYPES = {"q8": 4, "q4": 5}
SHAPES = ((192, 128), (128, 192), (512, 512))
GROUPS = (32, 64, 128)
Toolchain = Literal["zig", "gcc"]
Shape = tuple[str, int, int, int]  # type, rows, columns, group
RECORD = PROGRAM.parents[1] / "tests" / "instructions.json"


@dataclass(frozen=True)
class Row:
    """One product: `instructions` of the whole call, `crc32` of its outputs."""

    cpu: str
    table: str
    toolchain: str
    type: str
    rows: int
    columns: int
    group: int
    instructions: int
    crc32: str

    @property
    def name(self) -> str:
        """The product: type, shape, group."""
        return f"{self.type} {self.rows}x{self.columns} g{self.group}"

    @property
    def per_weight(self) -> float:
        """Instructions over rows times columns."""
        return self.instructions / (self.rows * self.columns)


def toolchains(cpu: Cpu) -> list[Toolchain]:
    """Compilers that build programs for a CPU."""
    return ["zig", "gcc"] if TARGETS[cpu.target].gcc_prefix else ["zig"]


def order(cpu: Cpu) -> Order:
    """The weight order that `pack --target` chooses for such a CPU."""
    return Order.ROWS if cpu.target.startswith("cortex-m") else Order.TILES


def shapes() -> Iterator[Shape]:
    """All of them; groups that do not divide the columns are left out."""
    for kind in TYPES:
        for rows, columns in SHAPES:
            for group in GROUPS:
                if columns % group == 0:
                    yield kind, rows, columns, group


def measure(
    cpu: Cpu, table: KernelTable, toolchain: Toolchain, only: Sequence[Shape] | None = None
) -> Iterator[Row]:
    """Every shape, or those asked for, with one table and one compiler."""
    with tempfile.TemporaryDirectory() as folder:
        program = Source(PROGRAM, ("-O2", f"-DTABLE={table.symbol}"))
        sources = [program, *kernel_sources(cpu, table, toolchain=toolchain)]
        elf = build_program(cpu, sources, Path(folder), toolchain=toolchain)
        for kind, rows, columns, group in only or shapes():
            arguments = (TYPES[kind], rows, columns, group)
            once, twice = (
                run_program(cpu, elf, [*arguments, calls, order(cpu)]) for calls in (1, 2)
            )
            if once.instructions is None or twice.instructions is None:
                raise SystemExit(f"{cpu.program} cannot count instructions; QEMU 5 to 8 can")
            count = twice.instructions - once.instructions
            crc = f"{once.results[0]:08x}"
            yield Row(cpu.name, table.name, toolchain, kind, rows, columns, group, count, crc)


def compiler(cpu: Cpu, toolchain: Toolchain) -> str:
    """Name and version."""
    return " ".join(find_toolchain(cpu.target, toolchain).identity().split()[:2])


def record(rows: Sequence[Row]) -> dict[str, Any]:
    """The recorded form: by CPU, table and compiler, instructions of each product."""
    found: dict[str, Any] = {}
    for row in rows:
        key = f"{row.cpu} {row.table} {row.toolchain}"
        entry = found.setdefault(
            key, {"compiler": compiler(CPUS[row.cpu], row.toolchain), "instructions": {}}
        )
        entry["instructions"][row.name] = row.instructions
    return {
        "schema": 1,
        "what": "Instructions of one matrix-vector product, counted on the emulated CPU. "
        "python bench/instructions.py --record",
        "measured": found,
    }


def main() -> None:
    """Prints a table or JSON, or records."""
    parser = argparse.ArgumentParser(description="instructions per weight on emulated CPUs")
    parser.add_argument("--cpu", choices=CPUS, action="append", help="default: all")
    parser.add_argument("--table", action="append", help="kernel tables by name; default: all")
    parser.add_argument("--toolchain", choices=["zig", "gcc"], action="append")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--record", action="store_true", help=f"write {RECORD.name}")
    asked = parser.parse_args()
    rows: list[Row] = []
    for name in asked.cpu or CPUS:
        cpu = CPUS[name]
        for table in cpu_tables(cpu):
            for toolchain in toolchains(cpu):
                wanted = table.name in (asked.table or [table.name])
                if wanted and toolchain in (asked.toolchain or [toolchain]):
                    print(f"{name} {table.name} {toolchain}", file=sys.stderr)
                    rows += measure(cpu, table, toolchain)
    if asked.record:
        old = json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else {"measured": {}}
        new = record(rows)
        new["measured"] = dict(sorted({**old["measured"], **new["measured"]}.items()))
        RECORD.write_text(json.dumps(new, indent=1) + "\n", "utf-8")
    elif asked.json:
        print(json.dumps([{**asdict(row), "per_weight": row.per_weight} for row in rows], indent=1))
    else:
        for row in rows:
            print(f"{row.cpu:12} {row.table:5} {row.toolchain:4} {row.name:20} "
                  f"{row.per_weight:8.4f}  {row.crc32}")  # fmt: skip


if __name__ == "__main__":
    main()
