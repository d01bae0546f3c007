# SPDX-License-Identifier: Apache-2.0
"""`colibri kernels`: which kernel tables there are, and whether they give the right bits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from colibri import _core
from colibri.cli.common import (
    JsonOption,
    command,
    console,
    emit_json,
    progress,
    table,
)
from colibri.conformance import Level, Verdict, conformance
from colibri.errors import EXIT_DOES_NOT_FIT, EmulateError, EngineError

if TYPE_CHECKING:
    from colibri_emulator.toolchain import ToolchainName

HOST = "this machine"

app = command("List kernel tables, and hold them to the reference bit for bit.")


@dataclass(frozen=True)
class _Outcome:
    """One table on one CPU, and the checksum that it should have."""

    table: str
    cpu: str
    verdict: Verdict
    expected: str

    @property
    def ok(self) -> bool:
        return self.verdict.failures == 0 and self.verdict.crc32 == self.expected

    @property
    def problem(self) -> str:
        """What is wrong, or an empty text."""
        if self.verdict.first is not None:
            return f"{self.table} on {self.cpu}: {self.verdict.first}"
        if not self.ok:
            return (
                f"{self.table} on {self.cpu}: agrees with the reference there, but the reference "
                f"itself gives {self.verdict.crc32} and not {self.expected} (compiler flags?)"
            )
        return ""

    def to_json(self) -> dict[str, Any]:
        named = {"table": self.table, "cpu": self.cpu, "ok": self.ok, "expected": self.expected}
        return {**named, **self.verdict.to_json()}


@app.callback(invoke_without_command=True)
def kernels(context: typer.Context, as_json: JsonOption = False) -> None:
    """List the kernel tables when no command is given."""
    if context.invoked_subcommand is None:
        _list(as_json)


def _list(as_json: bool) -> None:
    from colibri_emulator.bench_program import CPUS, cpu_tables

    here = _core.kernels()
    cpus = {cpu.name: [table.name for table in cpu_tables(cpu)] for cpu in CPUS.values()}
    if as_json:
        emit_json({"host": here, "cpus": cpus})
        return
    rows = table("Kernel tables", "CPU", "tables", caption="the last one is the fastest")
    rows.add_row(HOST, ", ".join(here))
    for name, tables in cpus.items():
        rows.add_row(f"--cpu {name}", ", ".join(tables))
    console().print(rows)


@app.command("test")
def check_command(
    name: Annotated[
        str | None, typer.Option("--table", metavar="NAME", help="One table. Default: all.")
    ] = None,
    cpus: Annotated[
        list[str] | None,
        typer.Option(
            "--cpu",
            metavar="CPU",
            help="Cross-compile and run on this emulated CPU; repeat. all: every one.",
        ),
    ] = None,
    level: Annotated[
        Level | None,
        typer.Option(
            "--level", help="Lengths to try. Default: full here, quick on an emulated CPU."
        ),
    ] = None,
    toolchain: Annotated[
        Literal["auto", "zig", "gcc"],
        typer.Option("--toolchain", help="auto: zig from pip when installed, else GNU GCC."),
    ] = "auto",
    as_json: JsonOption = False,
) -> None:
    """Run every operation of kernel tables against the reference. Exit code 1: not the same bits.

    One checksum covers all outputs; it is the same for every table and every CPU.
    """  # fmt: skip
    if cpus:
        outcomes = list(_on_cpus(cpus, name, level or "quick", toolchain))
    else:
        outcomes = list(_here(name, level or "full"))
    ok = all(outcome.ok for outcome in outcomes)
    if as_json:
        emit_json({"ok": ok, "results": [outcome.to_json() for outcome in outcomes]})
    else:
        _show(outcomes)
    if not ok:
        raise typer.Exit(EXIT_DOES_NOT_FIT)


def _here(name: str | None, level: Level) -> Iterator[_Outcome]:
    """The tables of this machine; the reference says what is expected."""
    here = _core.kernels()
    if name is not None and name not in here:
        raise EngineError(
            f"this machine has no table '{name}'", field="--table", hint=f"one of {', '.join(here)}"
        )
    expected = conformance("ref", level)[0].crc32
    for one in [name] if name else here:
        with progress(f"{one}, {level}"):
            verdict = conformance(one, level)[0]
        yield _Outcome(one, HOST, verdict, expected)


def _on_cpus(
    names: list[str], only: str | None, level: Level, toolchain: ToolchainName
) -> Iterator[_Outcome]:
    """Tables on emulated CPUs; the reference of this machine says what is expected."""
    from colibri_emulator.bench_program import CPUS, cpu_tables
    from colibri_emulator.conformance import conformance_on_cpu

    unknown = sorted(set(names) - {*CPUS, "all"})
    if unknown:
        raise EmulateError(
            f"no CPU '{unknown[0]}'", field="--cpu", hint=f"one of all, {', '.join(CPUS)}"
        )
    chosen = [CPUS[name] for name in (CPUS if "all" in names else dict.fromkeys(names))]
    jobs = [
        (cpu, one) for cpu in chosen for one in cpu_tables(cpu) if only is None or only == one.name
    ]
    if not jobs:
        has = ", ".join(sorted({one.name for cpu in chosen for one in cpu_tables(cpu)}))
        raise EmulateError(f"no such CPU runs '{only}'", field="--table", hint=f"they run {has}")
    expected = conformance("ref", level)[0].crc32
    for cpu, one in jobs:
        with progress(f"{one.name} on {cpu.name}, {level}"):
            verdict = conformance_on_cpu(cpu, one, level, toolchain=toolchain)
        yield _Outcome(one.name, cpu.name, verdict, expected)


def _show(outcomes: list[_Outcome]) -> None:
    rows = table(
        "Conformance to the reference", "table", "CPU", ">cases", ">differ", "checksum", ""
    )
    for outcome in outcomes:
        verdict = outcome.verdict
        rows.add_row(
            outcome.table,
            outcome.cpu,
            f"{verdict.cases:,}",
            f"{verdict.failures:,}",
            verdict.crc32,
            "ok" if outcome.ok else "NOT THE SAME BITS",
        )
    out = console()
    out.print(rows)
    for outcome in outcomes:
        if outcome.problem:
            out.print(outcome.problem, markup=False, soft_wrap=True)
