# SPDX-License-Identifier: Apache-2.0
"""`colibri size`: symbols, verdict and baseline, on ELFs whose right answer is known by hand.

Tests are named after the public reports that they cover, as project and number: faults that users
of other size and map tools met. Each ELF is the smallest one that shows the fault.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import elf_writer as ew
from colibri.boards import Limit, RegionBudget
from colibri.errors import SizeError
from colibri.fit import Verdict, judge
from colibri.fit.budgets import Figure
from colibri.fit.compare import compare
from colibri.fit.format import as_json
from elf_writer import ARM, AX, FUNC, NOTYPE, OBJECT, WA, A, ElfWriter
from size_support import CODE, FLASH, RAM, board, codes, firmware, judge_in, said, usage


@pytest.fixture
def sized(tmp_path: Path) -> Callable[..., Verdict]:
    return judge_in(tmp_path)


# -- symbols --------------------------------------------------------------------------------------


def test_perry_10571_aliases_are_charged_once(sized: Any) -> None:
    elf = ElfWriter()
    text = elf.section(".text", FLASH, CODE * 0x20, flags=AX)
    elf.load([text])
    for name, bind in (("local", ew.LOCAL), ("folded_b", ew.GLOBAL), ("folded_a", ew.GLOBAL)):
        elf.symbol(name, FLASH | 1, 0x40, FUNC, section=text, bind=bind)
    (symbol,) = sized(elf).symbols
    assert (symbol.name, symbol.size) == ("folded_a", 0x40)
    assert symbol.aliases == ("folded_b", "local")


def test_pyelftools_197_thumb_bit_of_functions_only(sized: Any) -> None:
    elf = ElfWriter()
    text = elf.section(".text", FLASH, CODE * 0x100, flags=AX)
    data = elf.section(".bss", RAM, 0x200, flags=WA)
    elf.load([text])
    elf.load([data])
    elf.symbol("code", FLASH + 0x101, 4, FUNC, section=text)
    elf.symbol("odd", RAM + 0x101, 3, OBJECT, section=data)
    assert {s.name: s.address for s in sized(elf).symbols} == {
        "code": FLASH + 0x100,
        "odd": RAM + 0x101,
    }
    elf.machine = ew.X86
    assert {s.name: s.address for s in sized(elf).symbols}["code"] == FLASH + 0x101


@pytest.mark.parametrize(
    ("machine", "name", "kind", "bind", "shown"),
    [
        (ew.RISCV, "$xrv64i2p1_m2p0", NOTYPE, ew.LOCAL, False),
        (ew.RISCV, ".L0 ", NOTYPE, ew.LOCAL, False),
        (ew.RISCV, ".LVL1", NOTYPE, ew.LOCAL, False),
        (ARM, "$t", NOTYPE, ew.LOCAL, False),
        (ARM, "$d.12", NOTYPE, ew.LOCAL, False),
        (ew.AARCH64, "$x", NOTYPE, ew.LOCAL, False),
        (ew.X86_64, "$x", NOTYPE, ew.LOCAL, True),
        (ARM, "$total", OBJECT, ew.GLOBAL, True),
    ],
)
def test_dynamorio_5646_riscv_gnu_toolchain_1036_labels_own_nothing(
    sized: Any, machine: int, name: str, kind: int, bind: int, shown: bool
) -> None:
    elf = ElfWriter(machine=machine)
    text = elf.section(".text", FLASH, CODE * 0x20, flags=AX)
    elf.load([text])
    elf.symbol(name, FLASH, 8, kind, section=text, bind=bind)
    assert [s.name for s in sized(elf).symbols] == ([name] if shown else [])


def test_riscv_gnu_toolchain_1036_sizes_end_at_symbol_or_section(
    sized: Any,
) -> None:
    elf = ElfWriter(machine=ew.RISCV)
    text = elf.section(".text", FLASH, CODE * 0x20, flags=AX)
    elf.load([text])
    elf.symbol("first", FLASH, 0x30, FUNC, section=text)
    elf.symbol(".L0", FLASH + 8, 4, NOTYPE, section=text, bind=ew.LOCAL)
    elf.symbol("last", FLASH + 0x20, 0x24, FUNC, section=text)
    verdict = sized(elf)
    assert {s.name: s.size for s in verdict.symbols} == {"first": 0x20, "last": 0x20}
    assert all(s.clipped for s in verdict.symbols)
    assert "clipped" in codes(verdict, "note")
    assert verdict.unattributed == 0


def test_symbols_without_a_size_own_nothing_and_cut_nothing(sized: Any) -> None:
    elf = ElfWriter()
    text = elf.section(".text", FLASH, CODE * 0x20, flags=AX)
    elf.load([text])
    elf.symbol("whole", FLASH | 1, 0x40, FUNC, section=text, bind=ew.WEAK)
    elf.symbol("inner_label", FLASH + 0x10 | 1, 0, FUNC, section=text)
    elf.symbol("_etext", FLASH + 0x40, 0, NOTYPE, section=text)
    elf.symbol("absent", 0, 0, NOTYPE, section=0, bind=ew.WEAK)
    (symbol,) = sized(elf).symbols
    assert (symbol.name, symbol.size, symbol.clipped) == ("whole", 0x40, False)


def test_thread_local_symbols_without_a_template_own_nothing(sized: Any) -> None:
    """Their value is an offset into a TLS segment. There is none, so it is no address."""
    elf = ElfWriter()
    elf.load([elf.section(".text", FLASH, CODE * 0x40, flags=AX)])
    data = elf.section(".data", RAM, b"\x07" * 0x100, flags=WA)
    elf.load([data], paddr=FLASH + 0x80)
    elf.symbol("table", RAM, 0x80, OBJECT, section=data)
    elf.symbol("errno", RAM + 0x80, 8, ew.TLS, section=data)
    verdict = sized(elf)
    assert [s.name for s in verdict.symbols] == ["table"]
    assert usage(verdict, "SRAM").unattributed == 0x80
    assert [s.place for s in verdict.elf.symbols if s.name == "errno"] == ["OTHER"]


def test_a_strong_name_stands_before_a_weak_one(sized: Any) -> None:
    elf = ElfWriter()
    text = elf.section(".text", FLASH, CODE * 0x20, flags=AX)
    elf.load([text])
    elf.symbol("a_default", FLASH | 1, 0x40, FUNC, section=text, bind=ew.WEAK)
    elf.symbol("handler", FLASH | 1, 0x40, FUNC, section=text)
    (symbol,) = sized(elf).symbols
    assert (symbol.name, symbol.aliases) == ("handler", ("a_default",))


def test_platformio_5040_names_are_data(sized: Any, capsys: Any) -> None:
    elf = firmware()
    name = 'a::operator()(int, char)::{lambda "x", [bold]}\x1b[31m\n'
    elf.symbol(name, FLASH + 0x380, 4, OBJECT, section=1)
    verdict = sized(elf)
    assert name in {s.name for s in verdict.symbols}
    assert json.loads(json.dumps(as_json(verdict)))["symbols_total"] == 4
    from colibri.cli.common import console
    from colibri.fit.format import show

    show(console(), verdict)
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "{lambda" in out
    assert "[bold]" in out


def test_eld_445_absolute_and_common_symbols_are_not_memory(sized: Any) -> None:
    elf = ElfWriter(kind=ew.REL)
    elf.section(".text", 0, CODE * 4, flags=AX)
    elf.symbol("constant", 0x40000, 4, OBJECT, section=ew.ABS)
    elf.symbol("tentative", 4, 0x1000, OBJECT, section=ew.COMMON)
    verdict = sized(elf, None)
    assert not verdict.symbols
    assert "4,096 B" in said(verdict, "common")
    assert verdict.map.totals == {"text": 8, "rodata": 0, "data": 0, "bss": 0}


def test_mapfile_parser_37_zephyr_15968_fill_is_unattributed_and_sums_match(sized: Any) -> None:
    elf = ElfWriter()
    text = elf.section(".text", FLASH, b"\x01" * 0xC000, flags=AX)
    elf.load([text])
    elf.symbol("small", FLASH | 1, 0x10, FUNC, section=text)
    verdict = sized(elf)
    (row,) = as_json(verdict)["regions"][:1]
    assert row["unattributed"] == 0xBFF0
    assert row["used"] == row["unattributed"] + sum(s.size for s in verdict.symbols)
    assert row["used"] == sum(r["bytes"] for r in row["rows"])


# -- verdict --------------------------------------------------------------------------------------


def test_relocatable_object_has_totals_and_no_verdict(sized: Any) -> None:
    elf = ElfWriter(kind=ew.REL)
    elf.section(".text.a", 0, CODE * 4, flags=AX)
    elf.section(".rodata", 0, b"\x01" * 6, flags=A)
    elf.section(".data", 0, b"\x01" * 5, flags=WA)
    elf.section(".bss", 0, 7, flags=WA)
    verdict = sized(elf)
    assert verdict.map.totals == {"text": 8, "rodata": 6, "data": 5, "bss": 7}
    assert (verdict.verdict, verdict.exit_code) == ("unknown", 2)
    assert sized(elf, None).exit_code == 0


def test_shared_object_without_final_addresses(sized: Any) -> None:
    elf = ElfWriter(kind=ew.DYN)
    elf.load([elf.section(".text", 0x1000, CODE, flags=AX)])
    assert sized(elf).exit_code == 2


@pytest.mark.parametrize(
    ("name", "forbidden"),
    [
        ("malloc", True),
        ("_malloc_r", True),
        ("free", True),
        ("realloc", True),
        ("calloc", True),
        ("_sbrk", True),
        ("pthread_create", True),
        ("printf", True),
        ("vsnprintf", True),
        ("siprintf", True),
        ("_vfprintf_r", True),
        ("exit", True),
        ("puts", True),
        ("_Znwj", True),
        ("memcpy", False),
        ("colibri_free_list", False),
        ("mallocator", False),
        ("print", False),
    ],
)
def test_bare_metal_31_forbidden_symbols(sized: Any, name: str, forbidden: bool) -> None:
    elf = firmware()
    elf.symbol(name, FLASH + 0x301, 0x20, FUNC, section=1)
    verdict = sized(elf)
    assert ("forbidden" in codes(verdict, "error")) == forbidden
    assert verdict.exit_code == int(forbidden)


def test_bare_metal_31_undefined_malloc(sized: Any) -> None:
    elf = firmware()
    elf.symbol("malloc", 0, 0, NOTYPE, section=0)
    assert "needed but not defined" in said(sized(elf), "forbidden")
    weak = firmware()
    weak.symbol("malloc", 0, 0, NOTYPE, section=0, bind=ew.WEAK)
    weak.symbol("free", RAM, 4, OBJECT, section=2)
    assert sized(weak).verdict == "fits"


@pytest.mark.parametrize(
    ("budget", "code", "exit_code"),
    [
        ({"limit": "75 B"}, None, None),
        ({"limit": 0x300}, None, 0),
        ({"limit": 0x2FF}, "budget", 1),
        ({"warn": 0x2FF, "limit": 0x300}, "budget-warn", 0),
        ({"limit": "0.5 %"}, "budget", 1),
        ({"limit": "0.6 %"}, None, 0),
    ],
)
def test_region_budgets(
    sized: Any, budget: dict[str, Any], code: str | None, exit_code: int | None
) -> None:
    if exit_code is None:
        with pytest.raises(ValueError):
            RegionBudget.model_validate(budget)
        return
    limits = {"SRAM": RegionBudget.model_validate(budget)}
    verdict = sized(firmware(), board(budgets={"regions": limits}))
    assert verdict.exit_code == exit_code
    assert codes(verdict) == ([code] if code else [])
    assert Limit.model_validate("0.5 %").of(0x20000) == 655


@pytest.mark.parametrize(
    ("field", "value"), [("code_bytes", 0x400), ("image_bytes", 0x1000), ("stack_bytes", 0x800)]
)
def test_other_budgets(sized: Any, field: str, value: int) -> None:
    elf = firmware()
    for name, number in (
        ("colibri_model_base", FLASH + 0x1000),
        ("colibri_model_size", 0x1000),
        ("__stack_bottom", RAM + 0x1000),
        ("__stack_top", RAM + 0x1800),
    ):
        elf.symbol(name, number)
    assert sized(elf, board(budgets={field: value})).verdict == "fits"
    verdict = sized(elf, board(budgets={field: value - 1}))
    assert f"1 B more than budgets.{field}" in said(verdict, "budget")
    assert verdict.exit_code == 1


# -- baseline -------------------------------------------------------------------------------------


def test_px4_28789_nrf_softsim_194_canary_of_one_kib(tmp_path: Path) -> None:
    before = firmware().write(tmp_path / "before.elf")
    after = firmware(bss=0x200 + 1024).write(tmp_path / "after.elf")
    result = compare(judge(after, board()), before, board())
    assert [(d.name, d.delta) for d in result.regions] == [("FLASH", 0), ("SRAM", 1024)]
    assert [(d.name, d.delta) for d in result.symbols or ()] == [("buffer", 1024)]
    causes = {d.name: [(c.kind, c.name, c.delta) for c in d.causes] for d in result.regions}
    assert causes == {"FLASH": [], "SRAM": [("symbol", "buffer", 1024)]}


@pytest.mark.parametrize(
    ("stored", "sram"),
    [
        ({"schema": 0, "memory": []}, None),
        ({"schema": 1, "regions": [{"name": "SRAM", "used": 0x100}]}, 0x200),
        ({"schema": 99, "regions": {"SRAM": 5}, "symbols": "x"}, None),
        ({"regions": [1, None, {"name": 4}, {"name": "SRAM", "used": "a lot"}]}, None),
        ({}, None),
    ],
)
def test_old_and_odd_baselines_are_not_available(
    tmp_path: Path, stored: dict[str, Any], sram: int | None
) -> None:
    path = tmp_path / "old.json"
    path.write_text(json.dumps(stored))
    now = judge(firmware().write(tmp_path / "f.elf"), board())
    result = compare(now, path, board())
    assert {d.name: d.delta for d in result.regions}["SRAM"] == sram
    json.dumps(as_json(now, result))


def test_own_json_is_a_baseline(tmp_path: Path) -> None:
    now = judge(firmware().write(tmp_path / "f.elf"), board())
    path = tmp_path / "stored.json"
    path.write_text(json.dumps({"schema": 1, **as_json(now)}))
    result = compare(now, path, board())
    assert [d.delta for d in result.regions] == [0, 0]
    assert result.symbols == []


@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b"\xff\xfe\x00", b"[" * 100_000])
def test_bad_baseline(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    now = judge(firmware().write(tmp_path / "f.elf"), board())
    with pytest.raises(SizeError, match="neither an ELF nor a JSON object"):
        compare(now, path, board())


# -- budgets of spans, groups, numbers -------------------------------------------------------------


def test_budget_of_a_flat_file_openevse_1241(sized: Any) -> None:
    """Two areas 60 KiB apart: the sum fits the partition, the padded file does not."""
    elf = ElfWriter()
    elf.load([elf.section(".text", FLASH, CODE, flags=AX)])
    elf.load([elf.section(".config", FLASH + 0xF000, bytes(0x100), flags=A)])
    held = board(budgets={"regions": {"FLASH": "8 KiB"}, "spans": {"FLASH": "60 KiB"}})
    verdict = sized(elf, held)
    assert "budget" in codes(verdict)
    assert "flat file of FLASH: 61,696 B, 256 B more than" in said(verdict, "budget")
    wider = board(budgets={"spans": {"FLASH": {"warn": 61695, "limit": 61696}}})
    assert sized(elf, wider).verdict == "fits"
    assert "1 B more than" in said(sized(elf, wider), "budget-warn")


def test_budget_of_a_group_that_nobody_defined(tmp_path: Path) -> None:
    path = firmware().write(tmp_path / "firmware.elf")
    held = board(budgets={"groups": {"drivers": "1 KiB"}})
    unknown = judge(path, held)
    assert (unknown.verdict, unknown.exit_code) == ("unknown", 2)
    assert "group drivers is not known" in said(unknown, "budget-unknown")
    none = judge(path, held, groups={"drivers": ["symbol:uart*"]})  # 0 bytes
    assert none.verdict == "fits"
    assert "no owner of bytes matches 'symbol:uart*'" in said(none, "group-empty")
    hidden = judge(path, held, groups={"drivers": ["*uart*"]})  # objects, without a map
    assert (hidden.verdict, hidden.exit_code) == ("unknown", 2)
    assert "not known without a map" in said(hidden, "budget-unknown")
    over = judge(path, held, groups={"drivers": ["section:*"]})
    assert over.verdict == "over"


@pytest.mark.parametrize(
    ("value", "at_least", "status"),
    [(7.9, True, "over"), (8, True, "warning"), (12, True, "ok"), (12.1, False, "over"),
     (8.1, False, "warning"), (8, False, "ok"), (None, True, "unknown")],
)  # fmt: skip
def test_a_figure_against_its_marks(value: float | None, at_least: bool, status: str) -> None:
    marks = {"warn": 12, "limit": 8} if at_least else {"warn": 8, "limit": 12}
    figure = Figure("f", "it", value, "budgets.f", unit="tok/s", at_least=at_least, **marks)
    assert figure.status == status
    finding = figure.finding()
    assert (finding is None) == (status == "ok")
