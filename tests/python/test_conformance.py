# SPDX-License-Identifier: Apache-2.0
"""Every kernel table against the reference, here and on emulated CPUs; defects are seen."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from colibri import _core
from colibri.cli import app
from colibri.conformance import Failure, Level, Verdict, conformance
from colibri.errors import EmulateError
from colibri_emulator import bench_program
from colibri_emulator.bench_program import CPUS, ProgramFaultError, build_program, cpu_tables
from colibri_emulator.conformance import conformance_on_cpu
from colibri_emulator.kernel_tables import REF, KernelTable
from colibri_emulator.toolchain import TARGETS, Source
from native import SANITIZERS, build, program
from needs import need

FROZEN = json.loads((Path(__file__).resolve().parents[1] / "golden" / "numerics.json").read_text())
TABLES = _core.kernels()
LEVELS = ["quick", pytest.param("full", marks=pytest.mark.long)]
CROSS = [(cpu.name, table) for cpu in CPUS.values() for table in cpu_tables(cpu)]


def cross(cpu: str, table: KernelTable, level: Level, toolchain: str = "auto") -> Verdict:
    """A run on an emulated CPU, if its tools are here."""
    need(CPUS[cpu].program)
    prefix = TARGETS[CPUS[cpu].target].gcc_prefix
    need(f"{prefix}gcc" if toolchain == "gcc" else "module:ziglang")
    return conformance_on_cpu(CPUS[cpu], table, level, toolchain=toolchain)  # type: ignore[arg-type]


# Tables of this machine


@pytest.mark.parametrize("table", TABLES)
def test_table_gives_the_frozen_bits(table: str) -> None:
    total, parts = conformance(table, "full")
    assert total.first is None, str(total.first)
    assert (total.failures, total.crc32) == (0, FROZEN["full"])
    assert total.cases == sum(part.cases for part in parts) > 50_000
    found = {
        f"{p.operation} {p.type} {p.group} {('rows', 'tiles').index(p.order)}": part.crc32
        for part in parts
        for p in [part.part]
    }
    assert found == FROZEN["parts"]
    assert conformance(table, "quick")[0].crc32 == FROZEN["quick"]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("table", TABLES)
def test_no_kernel_reads_or_writes_beyond_its_buffers(table: str, level: Level) -> None:
    lines = program("conformance", table, level, sanitize=SANITIZERS, seconds=900).splitlines()
    assert lines[-1] == f"all {FROZEN[level]}"


@pytest.mark.parametrize("level", ["quick", "full"])
def test_scratch_is_what_the_header_says(level: Level, root: Path) -> None:
    header = (root / "sdk" / "c" / "conformance" / "conformance.h").read_text("utf-8")
    found = re.search(rf"CONFORMANCE_{level.upper()}_BYTES \((\d+)u << 10\)", header)
    assert found is not None
    used, given = conformance("ref", level)[0].scratch, int(found.group(1)) << 10
    assert given * 0.8 < used <= given


def test_conformance_refuses_another_level() -> None:
    with pytest.raises(ValueError, match="level must be"):
        _core.Kernels("ref").conformance(2)


# Defects (tests/c/broken.c)

OPERATION = {
    "ties_away": "quantize", "no_raise": "quantize", "padding_left": "quantize",
    "input_changed": "quantize", "sqrtf": "rms_norm", "expf": "silu_gate",
    "sink_forgotten": "attend", "out_before_query": "attend", "whole_value": "attend",
    "sum_in_order": "attend", "score_too_many": "attend",
}  # fmt: skip


def test_every_defect_is_seen() -> None:
    """At the smaller level already."""
    run = str(build() / "conformance")
    names = program("conformance", "broken").split()
    assert len(names) >= 20
    for name in names:
        done = subprocess.run(
            [run, f"broken:{name}", "quick"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 1, name
        where = re.search(r"first: (\w+) type", done.stderr)
        assert where is not None, name
        assert where.group(1) == OPERATION.get(name, "matmul"), (name, done.stderr)


# Emulated CPUs


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("cpu", "table"), CROSS, ids=[f"{c}-{t.name}" for c, t in CROSS])
def test_table_gives_the_same_bits_on_every_cpu(cpu: str, table: KernelTable, level: Level) -> None:
    verdict = cross(cpu, table, level)
    assert verdict.first is None, str(verdict.first)
    assert (verdict.failures, verdict.crc32) == (0, FROZEN[level])


@pytest.mark.parametrize("cpu", [cpu.name for cpu in CPUS.values() if cpu.memory])
def test_another_compiler_gives_the_same_bits(cpu: str) -> None:
    table = cpu_tables(CPUS[cpu])[-1]
    assert cross(cpu, table, "quick", "gcc").crc32 == FROZEN["quick"]


BAD = """
#include "colibri/kernels.h"
#include "{ref}"
static void norm(const float *x, const float *w, uint32_t n, float e, float *out)
{{
    colibri_ref_rms_norm(x, w, n, e, out);
    {defect}
}}
const colibri_kernels bad = {{.struct_bytes = sizeof bad, .name = "bad", .rms_norm = norm,
    .quantize = colibri_ref_quantize, .matmul = colibri_ref_matmul, .attend = colibri_ref_attend,
    .silu_gate = colibri_ref_silu_gate}};
"""


def bad_table(folder: Path, root: Path, defect: str) -> KernelTable:
    ref = root / "sdk" / "c" / "kernels" / "ref" / "ref.h"
    (folder / "bad.c").write_text(BAD.format(ref=ref, defect=defect), "utf-8")
    return KernelTable("bad", str(folder), "bad", ())


@pytest.mark.parametrize("cpu", ["cortex-m33", "cortex-a53"])
def test_wrong_table_is_seen_on_an_emulated_cpu(cpu: str, tmp_path: Path, root: Path) -> None:
    table = bad_table(tmp_path, root, "if (n == 16) out[3] = out[3] * 1.0000001f;")
    verdict = cross(cpu, table, "quick")
    assert verdict.failures > 0
    assert verdict.first is not None
    assert verdict.first.case.operation == "rms_norm"
    assert (verdict.first.index, verdict.first.case.columns) == (3, 16)
    assert "rms_norm f32, length 16" in str(verdict.first)


def test_reading_on_is_a_fault(tmp_path: Path, root: Path) -> None:
    table = bad_table(tmp_path, root, "(void)*(const volatile float *)&w[n];")
    with pytest.raises(ProgramFaultError, match="SIGSEGV"):
        cross("cortex-a53", table, "quick")


COUNTED = """
#include "program.h"
void firmware_run(void)
{
    for (uint32_t i = 0; i < colibri_arguments[0]; i++)
        colibri_results[1] += colibri_arguments[1];
    colibri_results[0] = 7;
}
"""


@pytest.mark.parametrize("cpu", ["cortex-m33", "cortex-m7", "cortex-m55", "cortex-a53", "rv64"])
def test_program_takes_and_gives_words_and_is_counted(cpu: str, tmp_path: Path) -> None:
    need(CPUS[cpu].program, "module:ziglang")
    (tmp_path / "p.c").write_text(COUNTED, "utf-8")
    elf = build_program(CPUS[cpu], [Source(tmp_path / "p.c")], tmp_path)
    runs = [bench_program.run_program(CPUS[cpu], elf, [times, 5]) for times in (0, 1, 2, 102)]
    assert [run.results[:3] for run in runs] == [(7, 5 * n, 0) for n in (0, 1, 2, 102)]
    counts = [run.instructions for run in runs]
    assert None not in counts
    one = counts[2] - counts[1]  # type: ignore[operator]
    assert 3 <= one <= 40
    assert counts[3] - counts[2] == 100 * one  # type: ignore[operator]
    with pytest.raises(EmulateError, match="at most 16 arguments"):
        bench_program.run_program(CPUS[cpu], elf, [0] * 17)


# Words, and the command


def test_failure_says_where() -> None:
    words = [2, 5, 1, 64, 17, 130, 3, 2, 10, 1, 0xABC, 2, 2**32 - 4, 0xA5A5A5A5, 1, 512]
    failure = Verdict.from_words(words).first
    assert isinstance(failure, Failure)
    assert str(failure) == (
        "matmul q4, group 64, order tiles, rows 17, columns 130, tokens 3, numbers 2: "
        "wrote 0x00000001 outside its output, at element -4"
    )


def run_cli(*arguments: str) -> tuple[int, str]:
    from colibri.cli import main

    done = CliRunner().invoke(app, list(arguments))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        return main(arguments), done.output
    return done.exit_code, done.output


def test_command_lists_and_tests() -> None:
    code, text = run_cli("kernels", "--json")
    listed = json.loads(text)
    assert (code, listed["host"]) == (0, TABLES)
    assert set(listed["cpus"]) == set(CPUS)
    code, text = run_cli("kernels", "test", "--level", "quick", "--json")
    told = json.loads(text)
    assert (code, told["ok"]) == (0, True)
    assert [(r["table"], r["crc32"]) for r in told["results"]] == [
        (table, FROZEN["quick"]) for table in TABLES
    ]


def test_command_says_what_is_not_there() -> None:
    assert run_cli("kernels", "test", "--table", "none")[0] == 2
    assert run_cli("kernels", "test", "--cpu", "none")[0] == 2
    assert run_cli("kernels", "test", "--cpu", "rv64", "--table", "none")[0] == 2


def test_command_fails_for_a_table_that_differs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, root: Path
) -> None:
    need("qemu-system-arm", "module:ziglang")
    table = bad_table(tmp_path, root, "if (n == 16) out[3] = 1.0f;")
    monkeypatch.setattr(bench_program, "TABLES", (REF, table))
    monkeypatch.setattr(bench_program, "cpu_tables", lambda _: [REF, table])
    code, text = run_cli("kernels", "test", "--cpu", "cortex-m33")
    assert code == 1
    assert "NOT THE SAME BITS" in text
    assert "bad on cortex-m33: rms_norm f32, length 16" in text.replace("\n", " ")
