# SPDX-License-Identifier: Apache-2.0
"""The conformance test of a kernel table on an emulated CPU: ``colibri kernels test --cpu``."""

from __future__ import annotations

import tempfile
from pathlib import Path

from colibri._data import data_path
from colibri.conformance import LEVELS, Level, Verdict
from colibri.errors import EmulateError
from colibri_emulator.bench_program import Cpu, build_program, kernel_sources, run_program
from colibri_emulator.kernel_tables import KernelTable
from colibri_emulator.toolchain import Source, ToolchainName


def conformance_on_cpu(
    cpu: Cpu,
    table: KernelTable,
    level: Level = "quick",
    *,
    toolchain: ToolchainName = "auto",
    timeout: float = 3600.0,
) -> Verdict:
    """Builds the test with one table for a CPU and runs it there.

    On Linux CPUs every buffer ends at a page that cannot be touched, so that a read beyond one is
    a fault; the message ends with the part of the test that was under way.

    Raises
    ------
    BuildError
        When it cannot be compiled.
    ProgramFaultError
        When the table touches what is not its own.
    EmulateError
        When the emulator is missing, or the program does not come to its end.
    """
    folder = data_path("sdk", "c", "conformance")
    main = data_path("emulator", "firmware", "conformance_main.c")
    sources = [
        Source(main, (f"-DCOLIBRI_BOARD_KERNELS={table.symbol}",)),
        *(Source(path, ("-ffreestanding", "-O2")) for path in sorted(folder.glob("*.c"))),
        *kernel_sources(cpu, table, toolchain=toolchain),
    ]
    with tempfile.TemporaryDirectory(prefix="colibri-") as name:
        elf = build_program(cpu, sources, Path(name), includes=[folder], toolchain=toolchain)
        run = run_program(cpu, elf, [LEVELS.index(level)], timeout=timeout)
    status, *words = run.results
    if status:
        raise EmulateError(f"{cpu.name}: the conformance test ended with status {status}")
    return Verdict.from_words(words, run.instructions)
