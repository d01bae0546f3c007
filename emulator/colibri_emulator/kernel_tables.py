# SPDX-License-Identifier: Apache-2.0
"""Kernel tables for firmware: which the runtime has, and which a core can run.

Chosen at build time from the core's features in its SoC file.  Every table gives the same bits
(docs/numerics.md), so the choice changes speed and code size and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

from colibri.boards.model import Core
from colibri.errors import BuildError


@dataclass(frozen=True)
class KernelTable:
    """One table: sdk/c/kernels/<folder>, its symbol, and what a core and a compiler need for it.

    `targets` are names of `toolchain.TARGETS`; `zig` and `gcc` are flags that its files get after
    the target's own; `gcc` is None where GCC cannot compile it, whose builds take the next table
    then.  `files` are patterns within the folder.  What a table does not speed up it borrows from
    the reference, which is always compiled.
    """

    name: str
    folder: str
    symbol: str
    targets: tuple[str, ...]
    features: tuple[str, ...] = ()
    zig: tuple[str, ...] = ()
    gcc: tuple[str, ...] | None = ()
    files: tuple[str, ...] = ("*.c",)


REF = KernelTable("ref", "ref", "colibri_kernels_ref", ())

DSP = KernelTable(
    "dsp", "dsp", "colibri_kernels_dsp",
    ("cortex-m4", "cortex-m7", "cortex-m33", "cortex-m55"), ("dsp",),
)  # fmt: skip
# Helium's float lanes only here, where they are written out: a vectoriser would use them anywhere.
# Unscheduled, the order of the sources stays, and fits the eight vector registers.
MVE = KernelTable(
    "mve", "mve", "colibri_kernels_mve", ("cortex-m55",), ("mve",),
    zig=("-mcpu=cortex_m55+mve_fp+fp_armv8d16sp", "-fno-vectorize", "-fno-slp-vectorize",
         "-mllvm", "-enable-misched=false"),
    gcc=("-mcpu=cortex-m55", "-fno-tree-vectorize", "-fno-schedule-insns"),
    files=("*.c", "../dsp/attend.c"),
)  # fmt: skip

_AARCH64 = ("aarch64", "aarch64-linux-musl")
_NEON = ("vector.c", "attend.c", "floats.c")

# The fastest last.  GCC takes the features of AArch64 from the name of a CPU that has them, and
# GCC 12 has no RISC-V vectors.
TABLES: tuple[KernelTable, ...] = (
    REF,
    DSP,
    MVE,
    KernelTable("neon", "neon", "colibri_kernels_neon", _AARCH64, ("neon",),
                files=(*_NEON, "plain.c")),
    KernelTable("neon-dot", "neon", "colibri_kernels_neon_dot", _AARCH64, ("neon", "dotprod"),
                zig=("-mcpu=cortex_a53+dotprod",), gcc=("-mcpu=cortex-a55",),
                files=(*_NEON, "dot.c")),
    KernelTable("neon-i8mm", "neon", "colibri_kernels_neon_i8mm", _AARCH64,
                ("neon", "dotprod", "i8mm"),
                zig=("-mcpu=cortex_a53+dotprod+i8mm",), gcc=("-mcpu=cortex-a55+i8mm",),
                files=(*_NEON, "i8mm.c")),
    KernelTable("rvv", "rvv", "colibri_kernels_rvv", ("riscv64",), ("rvv",),
                zig=("-mcpu=generic_rv64+m+a+f+d+c+v",), gcc=None),
)  # fmt: skip


def tables_for(target: str, core: Core, compiler: str = "zig") -> list[KernelTable]:
    """Tables that a core can run and a compiler can make for a target; the fastest last."""
    return [
        table
        for table in TABLES
        if table is REF
        or (
            target in table.targets
            and set(table.features) <= set(core.features)
            and (compiler != "gcc" or table.gcc is not None)
        )
    ]


def pick_table(
    target: str, core: Core, name: str = "auto", *, compiler: str = "zig"
) -> KernelTable:
    """The fastest table, or the one that is asked for.

    Raises
    ------
    BuildError
        When the core cannot run that table, or the compiler cannot make it; the message names
        those that fit.
    """
    fit = {table.name: table for table in tables_for(target, core, compiler)}
    if name == "auto":
        return list(fit.values())[-1]
    if name not in fit:
        raise BuildError(
            f"core {core.id} cannot run '{name}' when built for {target} by {compiler}",
            field="--kernels", hint=f"one of auto, {', '.join(fit)}")  # fmt: skip
    return fit[name]
