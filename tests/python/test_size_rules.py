# SPDX-License-Identifier: Apache-2.0
"""Rules about symbols and variables: forbidden, allowed, required, owners without variables."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import elf_writer as ew
from archive import write_archive
from colibri.cli import main
from colibri.errors import SizeError
from colibri.fit import Verdict, judge
from colibri.fit.symbol_names import fits
from colibri.fit.symbol_rules import COMPILER_HELPERS, LIBRARY_RULES, SymbolRules
from elf_writer import AX, FUNC, NOTYPE, OBJECT, WA, A, ElfWriter, T
from size_support import CODE, FLASH, board, codes, firmware, region, said

ITCM = region("ITCM", 0x0, 0x10000)


def with_names(*names: str) -> ElfWriter:
    """The common firmware and functions in its .text."""
    elf = firmware()
    for index, name in enumerate(names):
        elf.symbol(name, FLASH + 0x300 + 16 * index | 1, 16, FUNC, section=1)
    return elf


def held(folder: Path, elf: ElfWriter, on: Any = None, **rules: Any) -> Verdict:
    return judge(elf.write(folder / "a.elf"), on, rules=SymbolRules(**rules))


# -- forbidden and allowed ------------------------------------------------------------------------


def test_own_patterns_are_errors_without_a_board(tmp_path: Path) -> None:
    elf = with_names("uart_debug", "uart_send", "malloc")
    verdict = held(tmp_path, elf, forbidden=("*_debug", "buf*"))
    assert (verdict.verdict, verdict.exit_code) == ("over", 1)
    text = said(verdict, "forbidden")
    assert "uart_debug (forbidden by *_debug) is linked in, 16 B" in text
    assert "buffer (forbidden by buf*) is linked in, 512 B" in text  # objects, too
    assert "contains or needs malloc: bare-metal firmware must not" in text
    assert codes(verdict, "error") == ["forbidden"] * 2


def test_allowed_names_are_exempt_from_groups_and_patterns(tmp_path: Path) -> None:
    elf = with_names("malloc", "_malloc_r", "uart_debug")
    assert held(tmp_path, elf, board()).exit_code == 1
    verdict = held(tmp_path, elf, board(), forbidden=("uart_*",), allowed=("*malloc*", "uart_*"))
    assert (verdict.exit_code, codes(verdict, "error")) == (0, [])
    assert "1 rules about symbols hold" in said(verdict, "rules")


def test_a_group_is_forbidden_without_a_board(tmp_path: Path) -> None:
    elf = with_names("malloc", "puts")
    verdict = held(tmp_path, elf, forbidden=("group:heap",))
    assert "malloc (heap) is linked in" in said(verdict, "forbidden")
    assert codes(verdict, "error") == ["forbidden"]
    with pytest.raises(SizeError, match="no group 'heaps'; groups are heap, threads, stdio, exit"):
        held(tmp_path, elf, forbidden=("group:heaps",))


@pytest.mark.parametrize("pattern", ["_ZN4uart4send*", "uart::send", "uart::*"])
def test_cxx_names_mangled_or_as_written(tmp_path: Path, pattern: str) -> None:
    verdict = held(tmp_path, with_names("_ZN4uart4sendEPKh"), forbidden=(pattern,))
    assert "uart::send" in said(verdict, "forbidden")
    assert " (_ZN4uart4sendEPKh) (forbidden by" in said(verdict, "forbidden")


def test_local_labels_and_files_are_nothing(tmp_path: Path) -> None:
    elf = firmware()
    elf.symbol("debug.c", 0, 0, ew.FILE, bind=ew.LOCAL)
    elf.symbol("$debug", FLASH, 0, NOTYPE, section=1, bind=ew.LOCAL)
    elf.symbol("loop_debug", FLASH, 0, NOTYPE, section=1, bind=ew.LOCAL)
    elf.symbol("weak_debug", 0, 0, NOTYPE, section=0, bind=ew.WEAK)
    assert held(tmp_path, elf, forbidden=("*debug*",)).exit_code == 0


# -- required -------------------------------------------------------------------------------------


def hot_firmware(*names: str) -> ElfWriter:
    """Functions in ITCM (stored in flash), and the common firmware."""
    elf = firmware()
    fast = elf.section(".fast", 0x0, CODE * 8 * len(names), flags=AX)
    elf.load([fast], paddr=FLASH + 0x2000)
    for index, name in enumerate(names):
        elf.symbol(name, 16 * index | 1, 16, FUNC, section=fast)
    return elf


def test_zephyr_97432_a_required_symbol_has_to_be_in_its_region(tmp_path: Path) -> None:
    on = board(ITCM)
    rules = {"dot": "ITCM", "main": "FLASH", "table": "SRAM", "buffer": ""}
    assert held(tmp_path, hot_firmware("dot"), on, required=rules).exit_code == 0
    elf = hot_firmware("other")
    elf.symbol("dot", FLASH + 0x300 | 1, 16, FUNC, section=1)
    verdict = held(tmp_path, elf, on, required=rules)
    assert (verdict.verdict, verdict.exit_code) == ("over", 1)
    assert "ITCM: dot runs in FLASH, the rule wants ITCM" in said(verdict, "misplaced")
    verdict = held(tmp_path, hot_firmware("dot"), on, required={"dot": "FLASH"})
    assert "dot runs in ITCM" in said(verdict, "misplaced")  # where it is stored does not count


def test_each_symbol_that_a_pattern_means_has_to_be_there(tmp_path: Path) -> None:
    elf = hot_firmware("dot_a", "dot_b")
    assert held(tmp_path, elf, board(ITCM), required={"dot_*": "ITCM"}).exit_code == 0
    elf.symbol("dot_c", FLASH + 0x300 | 1, 16, FUNC, section=1)
    verdict = held(tmp_path, elf, board(ITCM), required={"dot_*": "ITCM"})
    assert said(verdict, "misplaced") == "ITCM: dot_c runs in FLASH, the rule wants ITCM"


def test_what_compilers_append_to_a_name(tmp_path: Path) -> None:
    """A clone counts when the name itself is gone; a cold part beside it may lie elsewhere."""
    elf = hot_firmware("dot.constprop.0", "sum")
    elf.symbol("sum.cold", FLASH + 0x300 | 1, 16, FUNC, section=1)
    rules = {"dot": "ITCM", "sum": "ITCM"}
    assert held(tmp_path, elf, board(ITCM), required=rules).exit_code == 0


def test_a_missing_symbol_with_the_nearest_names(tmp_path: Path) -> None:
    elf = with_names("dot_product", "_ZN4uart4sendEv")
    verdict = held(tmp_path, elf, required={"dot_prodct": "", "uart::sent": "", "xyzzy": ""})
    text = said(verdict, "required")
    assert "dot_prodct is required and not there" in text
    assert "nearest: dot_product" in text
    assert re.search(r"nearest: uart::send(\(\))? \(_ZN4uart4sendEv\)", text)
    assert text.endswith("renamed?)")  # nothing is near xyzzy
    elf.symbol("hook", 0, 0, NOTYPE, section=0, bind=ew.WEAK)
    assert codes(held(tmp_path, elf, required={"hook": ""}), "error") == ["required"]


def test_regions_that_no_board_has(tmp_path: Path) -> None:
    with pytest.raises(SizeError, match="no region ITCN; regions are FLASH, SRAM, ITCM"):
        held(tmp_path, hot_firmware("dot"), board(ITCM), required={"dot": "ITCN"})
    with pytest.raises(SizeError, match="no region has a name without a board"):
        held(tmp_path, hot_firmware("dot"), None, required={"dot": "ITCM"})


def test_what_cannot_be_told_is_exit_code_2(tmp_path: Path) -> None:
    an_object = ElfWriter(kind=ew.REL)
    text = an_object.section(".text", 0, CODE * 8, flags=AX)
    an_object.symbol("dot", 0, 16, FUNC, section=text)
    verdict = held(tmp_path, an_object, required={"dot": "ITCM"})
    assert (verdict.verdict, verdict.exit_code) == ("unknown", 2)
    assert "objects have no addresses" in said(verdict, "symbols-unknown")
    assert held(tmp_path, an_object, required={"dot": ""}).exit_code == 0
    (tmp_path / "a.hex").write_text(":0400000001020304F2\n:00000001FF\n")
    verdict = judge(tmp_path / "a.hex", rules=SymbolRules(forbidden=("malloc",)))
    assert verdict.exit_code == 2
    slim = ElfWriter(kind=ew.REL)
    slim.section(".gnu.lto_f", 0, b"\x01" * 40, flags=0)
    slim.symbol("__gnu_lto_slim", 1, 1, OBJECT, section=ew.COMMON)
    verdict = held(tmp_path, slim, no_writable=("*",))
    path = write_archive(tmp_path / "lib.a", {"a.o": an_object.build(), "b.o": slim.build()})
    verdict = judge(path, rules=SymbolRules(no_writable=("*",)))
    assert (codes(verdict, "error"), verdict.exit_code) == (["symbols-unknown"], 2)
    assert "lib.a(b.o): cannot be told: these objects hold" in said(verdict, "symbols-unknown")


def test_a_map_alone_does_not_tell_of_static_functions(tmp_path: Path) -> None:
    path = tmp_path / "a.map"
    path.write_text("""\
Memory Configuration

Name             Origin             Length             Attributes
FLASH            0x08000000         0x00010000         xr
ITCM             0x00000000         0x00010000         xr

Linker script and memory map

.text           0x08000000       0x40
 .text          0x08000000       0x20 main.o
                0x08000000                main
 .text          0x08000020       0x20 hot.o
                0x08000020                dot
                0x08000030                sum
""")
    verdict = judge(path, rules=SymbolRules(required={"dot": "FLASH", "main": ""}))
    assert (codes(verdict, "error"), verdict.exit_code) == ([], 0)
    verdict = judge(path, rules=SymbolRules(required={"dot": "ITCM"}))
    assert "dot runs in FLASH, the rule wants ITCM" in said(verdict, "misplaced")
    for name, says in (("sum", "give the ELF"), ("local", "has no static functions")):
        verdict = judge(path, rules=SymbolRules(required={name: "FLASH"}))
        assert (verdict.exit_code, codes(verdict, "error")) == (2, ["symbols-unknown"])
        assert says in said(verdict, "symbols-unknown")


# -- owners without variables ---------------------------------------------------------------------


def variables(*more: str) -> ElfWriter:
    """A constant table and a relocated one; then a static buffer, what is common, per thread."""
    elf = ElfWriter(kind=ew.REL)
    text = elf.section(".text", 0, CODE * 8, flags=AX)
    constant = elf.section(".rodata", 0, bytes(64), flags=A)
    pointers = elf.section(".data.rel.ro.local", 0, bytes(8), flags=WA)
    elf.symbol("work", 0, 16, FUNC, section=text)
    elf.symbol("table", 0, 64, OBJECT, section=constant)
    elf.symbol("names", 0, 8, OBJECT, section=pointers)
    if "buffer" in more:
        zero = elf.section(".bss.buffer", 0, 40, flags=WA)
        elf.symbol("buffer", 0, 40, OBJECT, section=zero, bind=ew.LOCAL)
    if "common" in more:
        elf.symbol("shared", 4, 12, OBJECT, section=ew.COMMON)
    if "thread" in more:
        thread = elf.section(".tbss", 0, 4, flags=WA | T)
        elf.symbol("errno", 0, 4, ew.TLS, section=thread)
    if "unnamed" in more:
        elf.section(".data", 0, b"\x01" * 20, flags=WA)
    return elf


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("buffer", ".bss.buffer: buffer of lib.a(b.o): 40 B that can be written"),
        ("common", "COMMON: shared of lib.a(b.o): 12 B that can be written"),
        ("thread", ".tbss: errno of lib.a(b.o): 4 B that can be written"),
        ("unnamed", ".data: a part of .data without a symbol of lib.a(b.o): 20 B"),
    ],
)
@pytest.mark.parametrize("pattern", ["*", "lib.a", "b.o", "lib.a(b.o)", "object:b.*"])
def test_variables_of_a_library(tmp_path: Path, what: str, says: str, pattern: str) -> None:
    content = {"a.o": variables().build(), "b.o": variables(what).build()}
    path = write_archive(tmp_path / "lib.a", content)
    verdict = judge(path, rules=SymbolRules(no_writable=(pattern,)))
    assert (verdict.verdict, verdict.exit_code) == ("over", 1)
    assert codes(verdict, "error") == ["writable"]
    assert says in said(verdict, "writable")
    assert f"and {pattern} may have none" in said(verdict, "writable")
    assert judge(path, rules=SymbolRules(no_writable=("a.o",))).exit_code == 0


def test_variables_by_symbol(tmp_path: Path) -> None:
    elf = variables("buffer", "common")
    assert held(tmp_path, elf, no_writable=("symbol:table",)).exit_code == 0
    verdict = held(tmp_path, elf, no_writable=("symbol:sh*",))
    assert "shared of a.elf: 12 B" in said(verdict, "writable")
    verdict = held(tmp_path, elf, no_writable=("symbol:bufer",))
    assert verdict.exit_code == 0
    assert "symbol:bufer: this rule about variables names nothing" in said(verdict, "rule-unused")
    with pytest.raises(SizeError, match="no_writable: 'file' is nothing that a pattern"):
        held(tmp_path, elf, no_writable=("file:a.c",))


def test_variables_of_a_linked_elf_need_the_map(tmp_path: Path) -> None:
    """Without it the owners are not known, and a rule about them must not look as if it held."""
    for pattern in ("libhal.a", "*/drivers/*", "source:*/uart.c"):
        verdict = held(tmp_path, firmware(), board(), no_writable=(pattern,))
        assert verdict.exit_code == 2, pattern
        assert f"{pattern}: cannot be told" in said(verdict, "symbols-unknown")
    verdict = held(tmp_path, firmware(), no_writable=("*",))
    assert codes(verdict, "error") == ["writable"] * 2
    assert "table: 256 B that can be written" in said(verdict, "writable")  # stored, once
    assert "buffer: 512 B" in said(verdict, "writable")
    elf = firmware()
    elf.symbols = [symbol for symbol in elf.symbols if symbol[0] != "buffer"]
    text = said(held(tmp_path, elf, no_writable=("*",)), "writable")
    assert ".bss: a part of .bss without a symbol: 512 B" in text


# -- the library's own rules, the command ---------------------------------------------------------


def test_compiler_helpers_are_those_that_sources_cannot_avoid() -> None:
    def helper(name: str) -> bool:
        return any(fits(pattern, name) for pattern in COMPILER_HELPERS)

    for name in ("__aeabi_memcpy4", "__aeabi_fadd", "__aeabi_f2iz", "__aeabi_idivmod", "__muldi3",
                 "__aeabi_lmul", "__aeabi_llsl", "__ashldi3", "__mulsf3", "__fixsfsi", "__clzsi2",
                 "__floatunsisf", "__udivsi3", "__riscv_save_2"):  # fmt: skip
        assert helper(name), name
    for name in ("__aeabi_dadd", "__aeabi_f2d", "__adddf3", "__extendsfdf2", "__udivdi3",
                 "__aeabi_ldivmod", "__aeabi_uldivmod", "sqrtf", "memcpy", "__stack_chk_fail",
                 "__floatsidf", "__fixdfsi"):  # fmt: skip
        assert not helper(name), name
    assert LIBRARY_RULES.no_writable == ("*",)


def run(capsys: Any, *words: object) -> tuple[int, str, str]:
    code = main(["size", *map(str, words)])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_options_of_the_command(tmp_path: Path, capsys: Any) -> None:
    path = with_names("uart_debug", "log").write(tmp_path / "a.elf")
    on = (path, "--board", "st-stm32n6570-dk")
    code, text, _ = run(capsys, path, "--forbid", "uart_*", "--forbid", "log", "--allow", "lo?")
    assert (code, "uart_debug (forbidden by uart_*)" in text) == (1, True)
    assert "log (forbidden" not in text
    code, text, _ = run(capsys, path, "--require", "logg")
    assert (code, "nearest: log" in text) == (1, True)
    code, text, _ = run(capsys, path, "--require", "log", "--no-writable", "symbol:log")
    assert (code, "2 rules about symbols hold" in text) == (0, True)
    code, _, error = run(capsys, *on, "--require", "log@XRAM")
    assert (code, "there is no region XRAM; regions are" in error) == (2, True)
    for wrong in ("log@", "@SRAM", ""):
        code, _, error = run(capsys, path, "--require", wrong)
        assert (code, "write NAME@REGION" in error) == (2, True), wrong
    code, text, _ = run(capsys, path, "--no-writable", "*", "--json")
    findings = json.loads(text)["findings"]
    assert code == 1
    assert {f["code"] for f in findings if f["level"] == "error"} == {"writable"}
    assert all("chain" not in f for f in findings if f["code"] == "writable")


def test_may_need_on_the_command_line(tmp_path: Path, capsys: Any) -> None:
    elf = variables()
    elf.symbol("memcpy", 0, 0, NOTYPE, section=0)
    elf.symbol("sqrtf", 0, 0, NOTYPE, section=0)
    path = write_archive(tmp_path / "lib.a", {"a.o": elf.build()})
    code, text, _ = run(capsys, path, "--may-need", "mem*")
    assert (code, "sqrtf is needed and not among what may be" in text) == (1, True)
    code, text, _ = run(capsys, path, "--may-need", "mem*", "--may-need", "sqrt?")
    assert (code, "1 rules about symbols hold" in text) == (0, True)
