# SPDX-License-Identifier: Apache-2.0
"""`colibri size` on ELFs whose right answer is known by hand.

Tests are named after the public reports that they cover, as project and number: faults that users
of other size and map tools met. Each ELF is the smallest one that shows the fault.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import elf_writer as ew
from colibri.errors import SizeError
from colibri.fit import Verdict, judge
from elf_writer import ARM, AX, FUNC, OBJECT, WA, A, ElfWriter
from size_support import (
    CODE,
    FLASH,
    RAM,
    board,
    codes,
    firmware,
    judge_in,
    region,
    said,
    usage,
    used,
)


@pytest.fixture
def sized(tmp_path: Path) -> Callable[..., Verdict]:
    return judge_in(tmp_path)


# -- sections and segments ------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("little", [True, False])
@pytest.mark.parametrize("machine", [ARM, ew.AARCH64, ew.RISCV, ew.X86, ew.X86_64, ew.XTENSA])
def test_bloaty_126_every_class_and_byte_order(
    sized: Any, bits: int, little: bool, machine: int
) -> None:
    """bloaty#126: big-endian and unusual ELFs give the same numbers."""
    elf = firmware(bits=bits, little=little, machine=machine)
    if machine != ARM:
        elf.symbols[0] = ("main", FLASH, *elf.symbols[0][2:])
    verdict = sized(elf)
    assert used(verdict) == {"FLASH": 0x500, "SRAM": 0x300}
    assert verdict.verdict == "fits"
    assert verdict.exit_code == 0
    assert usage(verdict, "FLASH").unattributed == 0x100
    assert usage(verdict, "SRAM").unattributed == 0


def test_micropython_153_load_image_past_the_end_of_flash(sized: Any) -> None:
    elf = ElfWriter()
    text = elf.section(".text", FLASH, CODE * 8, flags=AX)
    data = elf.section(".data", RAM, b"\x07" * 0x100, flags=WA)
    elf.load([text])
    elf.load([data], paddr=FLASH + 0x10000)
    verdict = sized(elf)
    flash = usage(verdict, "FLASH")
    assert (flash.used, flash.overflow) == (0x110, 0x100)
    assert verdict.exit_code == 1
    assert "overflows by 256 B" in said(verdict, "overflow")


def test_overflow_of_a_straddling_section(sized: Any) -> None:
    elf = ElfWriter()
    zero = elf.section(".bss", RAM + 0x1FF00, 0x180, flags=WA)
    elf.load([zero])
    verdict = sized(elf)
    assert usage(verdict, "SRAM").overflow == 0x80
    assert verdict.exit_code == 1


def test_a_section_over_two_adjacent_regions_is_split(sized: Any) -> None:
    elf = ElfWriter()
    zero = elf.section(".bss", RAM + 0x1FF00, 0x180, flags=WA)
    elf.load([zero])
    elf.symbol("big", RAM + 0x1FF00, 0x180, OBJECT, section=zero)
    verdict = sized(elf, board(region("SRAM2", RAM + 0x20000, 0x1000)))
    assert used(verdict) == {"FLASH": 0, "SRAM": 0x100, "SRAM2": 0x80}
    assert verdict.verdict == "fits"
    assert verdict.unattributed == 0


def test_energia_583_load_address_in_ram_among_flash_sections(sized: Any) -> None:
    elf = firmware()
    table = elf.section(".vtable", RAM + 0x1000, b"\x01" * 0x40, flags=A)
    elf.load([table])
    verdict = sized(elf)
    assert "non-volatile" in said(verdict, "volatile-load")
    assert ".vtable" in said(verdict, "volatile-load")
    assert usage(verdict, "FLASH").load_span == 0x500  # not the 384 MiB in between
    assert used(verdict) == {"FLASH": 0x500, "SRAM": 0x340}


def test_px4_28789_segment_that_covers_the_elf_header(sized: Any) -> None:
    elf = ElfWriter()
    text = elf.section(".text", FLASH + 0x1000, CODE * 0x80, flags=AX)
    elf.load([text], lead=0x1000)
    verdict = sized(elf)
    assert used(verdict)["FLASH"] == 0x100
    assert usage(verdict, "FLASH").load_span == 0x100
    below = ElfWriter()
    below.load([below.section(".text", FLASH, CODE * 0x80, flags=AX)], lead=0x1000)
    assert used(sized(below))["FLASH"] == 0x100
    assert "outside" not in codes(sized(below))


def test_pyocd_700_segment_bytes_of_no_section(sized: Any) -> None:
    elf = ElfWriter()
    text = elf.section(".text", FLASH, CODE * 0x80, flags=AX)
    elf.load([text], extra=0x40)
    verdict = sized(elf)
    flash = usage(verdict, "FLASH")
    assert flash.used == 0x140
    assert [(r.name, r.bytes) for r in flash.rows if r.kind == "segment"] == [
        ("unattributed (segment 0 only)", 0x40)
    ]


def test_padding_is_shown_but_not_counted(sized: Any) -> None:
    elf = ElfWriter()
    text = elf.section(".text", FLASH, b"\x01" * 0x101, flags=AX)
    ro = elf.section(".rodata", FLASH + 0x108, b"\x02" * 0x10, align=8)
    elf.load([text, ro])
    flash = usage(sized(elf), "FLASH")
    assert (flash.used, flash.padding, flash.load_span) == (0x111, 7, 0x118)


def test_llvm_54075_nobits_in_the_middle_of_a_segment(sized: Any) -> None:
    elf = ElfWriter()
    zero = elf.section(".bss", RAM, 0x8000, flags=WA)
    data = elf.section(".data", RAM + 0x8000, b"\x07" * 0x10, flags=WA)
    elf.load([zero, data], paddr=FLASH)
    verdict = sized(elf)
    assert used(verdict) == {"FLASH": 0x10, "SRAM": 0x8010}
    assert ".bss" in said(verdict, "nobits-in-file")
    assert "gap" in said(verdict, "nobits-in-file")


def test_bincopy_42_overlapping_load_addresses(sized: Any) -> None:
    elf = ElfWriter()
    one = elf.section(".one", FLASH, b"\x01" * 0x100, flags=AX)
    two = elf.section(".two", RAM, b"\x01" * 0x100, flags=WA)
    elf.load([one])
    elf.load([two], paddr=FLASH + 0xF0)
    verdict = sized(elf)
    assert ".one and .two overlap by 16 B" in said(verdict, "load-overlap")
    assert verdict.exit_code == 1
    elf = ElfWriter()
    elf.section(".filler", 0, bytes(0x400), flags=0)
    elf.segment(1, 0x100, FLASH, FLASH, 0x80, 0x80)
    elf.segment(1, 0x200, RAM, FLASH + 0x40, 0x70, 0x70)
    assert "segment 0 and segment 1" in said(sized(elf, headers=False), "load-overlap")


def test_llvm_80336_tls_bss_takes_nothing(sized: Any) -> None:
    elf = ElfWriter()
    tls = elf.section(".tbss", RAM, 0x400, flags=WA | ew.T)
    data = elf.section(".data", RAM, b"\x07" * 0x100, flags=WA)
    elf.load([data], paddr=FLASH)
    elf.symbol("per_thread", 0, 0x400, ew.TLS, section=tls)
    verdict = sized(elf)
    assert used(verdict) == {"FLASH": 0x100, "SRAM": 0x100}
    assert verdict.verdict == "fits"
    assert not verdict.symbols
    assert codes(verdict) == []


def test_eld_1748_overlays(sized: Any) -> None:
    elf = ElfWriter()
    one = elf.section(".ovl1", RAM, b"\x01" * 0x100, flags=AX)
    two = elf.section(".ovl2", RAM, b"\x01" * 0x180, flags=AX)
    elf.load([one], paddr=FLASH)
    elf.load([two], paddr=FLASH + 0x100)
    elf.symbol("in_one", RAM | 1, 0x100, FUNC, section=one)
    elf.symbol("in_two", RAM | 1, 0x180, FUNC, section=two)
    verdict = sized(elf)
    assert used(verdict) == {"FLASH": 0x280, "SRAM": 0x180}
    assert codes(verdict) == ["overlay"]
    assert verdict.verdict == "fits"
    assert verdict.unattributed == 0


def test_zephyr_23897_region_without_capacity(sized: Any) -> None:
    verdict = sized(firmware(), board(region("NONE", 0x9000_0000, 0)))
    empty = usage(verdict, "NONE")
    assert (empty.used, empty.free, empty.percent) == (0, 0, None)


@pytest.mark.parametrize(
    ("kind", "size", "says"),
    [
        ("dram", 512 << 30, "512 GiB is more than any dram has (up to 256 GiB)"),
        ("sram", 512 << 20, "512 MiB is more than any sram has (up to 256 MiB)"),
        ("nor", 32 << 30, "more than any nor"),
        ("dram", 2 << 30, ""),
    ],
)
def test_zephyr_23897_size_that_cannot_be_meant(
    sized: Any, kind: str, size: int, says: str
) -> None:
    verdict = sized(firmware(bits=64), board(region("BIG", 1 << 40, size, kind)))
    assert says in said(verdict, "region-size")
    assert ("region-size" in codes(verdict)) == bool(says)
    assert verdict.exit_code == 0


def test_zephyr_94905_emuflight_1258_windows_of_one_memory(sized: Any) -> None:
    elf = ElfWriter()
    low = elf.section(".low", 0x100, b"\x01" * 0x80, flags=AX)
    high = elf.section(".high", FLASH + 0x1000, b"\x01" * 0x80, flags=AX)
    same = elf.section(".same", 0x2000, b"\x01" * 0x40, flags=AX)
    elf.load([low])
    elf.load([high])
    elf.load([same], paddr=FLASH + 0x2000)
    verdict = sized(elf, board(flash_aliases=[0]))
    assert used(verdict) == {"FLASH": 0x140, "SRAM": 0}
    assert verdict.verdict == "fits"


def test_a_load_address_in_another_window_is_the_same_place(sized: Any) -> None:
    elf = ElfWriter()
    elf.load([elf.section(".same", 0x2000, b"\x01" * 0x40, flags=AX)], paddr=FLASH + 0x2000)
    flash = usage(sized(elf, board(flash_aliases=[0])), "FLASH")
    assert [(r.name, r.role, r.bytes) for r in flash.rows] == [(".same", "both", 0x40)]
    assert flash.load_bytes == 0x40


@pytest.mark.parametrize(("bits", "address"), [(32, 0xFFFF_FFF0), (64, (1 << 64) - 16)])
def test_a_section_beyond_the_address_space(sized: Any, bits: int, address: int) -> None:
    elf = ElfWriter(bits=bits)
    elf.section(".bss", address, 17, flags=WA)
    with pytest.raises(SizeError, match=f"beyond {bits}-bit addresses"):
        sized(elf)
    elf.sections[1].size = 16
    assert sized(elf).map.outside[0].bytes == 16


def test_zephyr_94905_overlap_through_an_alias(sized: Any) -> None:
    elf = ElfWriter()
    elf.load([elf.section(".a", 0, b"\x01" * 0x80, flags=AX)])
    elf.load([elf.section(".b", FLASH + 0x40, b"\x01" * 0x80, flags=AX)])
    assert "load-overlap" in codes(sized(elf, board(flash_aliases=[0])), "error")


def test_xpcc_97_zephyr_108762_every_region_is_reported(sized: Any) -> None:
    elf = firmware()
    elf.load([elf.section(".ccm", 0x1000_0000, 0x40, flags=WA)])
    extra = [region("CCM", 0x1000_0000, 0x1000), region("DTCM", 0x3000_0000, 0x1000)]
    assert used(sized(elf, board(*extra))) == {
        "FLASH": 0x500,
        "SRAM": 0x300,
        "CCM": 0x40,
        "DTCM": 0,
    }


@pytest.mark.parametrize("name", [".flash_only", ".lower.text", ".bss", ".ddr", "no dot", "ä" * 90])
def test_x_heep_858_timsp430_35_names_do_not_matter(sized: Any, name: str) -> None:
    elf = ElfWriter()
    elf.load([elf.section(name, FLASH, b"\x01" * 0x80, flags=WA)])
    assert used(sized(elf)) == {"FLASH": 0x80, "SRAM": 0}


def test_zephyr_37365_free_bytes_are_exact(sized: Any) -> None:
    elf = ElfWriter()
    elf.load([elf.section(".bss", RAM, 128_000, flags=WA)])
    assert usage(sized(elf), "SRAM").free == 3_072


@pytest.mark.parametrize("name", [".data", "uninitialized_ram"])
def test_executorch_21741_pico_sdk_966_zero_bytes_in_the_image(sized: Any, name: str) -> None:
    elf = ElfWriter()
    content = b"\x01" * 100 + bytes(5000) + b"\x02" * 10 + bytes(1023) + b"\x03"
    elf.load([elf.section(name, RAM, content, flags=WA)], paddr=FLASH)
    verdict = sized(elf)
    (finding,) = [f for f in verdict.findings if f.code == "zero-bytes"]
    assert finding.value == 5000
    assert finding.where == name
    assert "NOBITS" in finding.what


def test_bloaty_9_stripped_and_without_section_headers(sized: Any) -> None:
    whole = used(sized(firmware()))
    stripped = sized(firmware(), symbols=False)
    assert used(stripped) == whole
    assert stripped.elf.detail == "sections"
    assert not stripped.symbols
    assert stripped.unattributed == 0x500 + 0x300
    bare = sized(firmware(), symbols=False, headers=False)
    assert used(bare) == whole
    assert bare.elf.detail == "segments"
    assert "detail" in codes(bare, "note")


def test_openevse_1241_gap_between_flash_sections(sized: Any) -> None:
    elf = ElfWriter()
    elf.load([elf.section(".a", FLASH, b"\x01" * 0x100, flags=AX)])
    elf.load([elf.section(".b", FLASH + 0xF000, b"\x01" * 0x100, flags=AX)])
    flash = usage(sized(elf), "FLASH")
    assert (flash.used, flash.load_span) == (0x200, 0xF100)


@pytest.mark.parametrize(
    ("span", "code", "says"),
    [
        ({"limit": 0xF100}, None, ""),
        ({"limit": 0xF0FF}, "budget", "1 B more than budgets.spans.FLASH limit = 61,695 B"),
        (
            {"warn": 0xF0FF, "limit": 0xF100},
            "budget-warn",
            "1 B more than budgets.spans.FLASH warning mark = 61,695 B",
        ),
        ({"limit": "94 %"}, "budget", "more than budgets.spans.FLASH limit = 61,603 B"),
        ({"limit": "95 %"}, None, ""),
    ],
)
def test_openevse_1241_the_gate_can_use_the_flat_file(
    sized: Any, span: dict[str, Any], code: str | None, says: str
) -> None:
    """0x200 bytes fit any budget of what is used; the file with its gap of 60 KiB does not."""
    elf = ElfWriter()
    elf.load([elf.section(".a", FLASH, b"\x01" * 0x100, flags=AX)])
    elf.load([elf.section(".b", FLASH + 0xF000, b"\x01" * 0x100, flags=AX)])
    budgets = {"regions": {"FLASH": 0x200}, "spans": {"FLASH": span}}
    verdict = sized(elf, board(budgets=budgets))
    assert verdict.exit_code == (1 if code == "budget" else 0)
    assert [c for c in codes(verdict) if c.startswith("budget")] == ([code] if code else [])
    assert code is None or says in said(verdict, code)
    assert code is None or "flat file of FLASH: 61,696 B" in said(verdict, code)


def test_simavr_504_zephyr_37658_outside_every_region(sized: Any) -> None:
    elf = firmware()
    elf.load([elf.section(".lost", 0x6000_0000, b"\x01" * 0x40, flags=AX)])
    verdict = sized(elf)
    assert [(r.name, r.bytes) for r in verdict.map.outside] == [(".lost", 0x40)]
    assert "64 B lie outside every declared region" in said(verdict, "outside")
    assert verdict.exit_code == 1
    assert used(verdict) == {"FLASH": 0x500, "SRAM": 0x300}


def test_llvm_163_suspicious_load_address(sized: Any) -> None:
    elf = ElfWriter()
    elf.load([elf.section(".text", FLASH, CODE * 0x80, flags=AX)], paddr=0xFFFF_A000)
    verdict = sized(elf)
    assert verdict.map.inexact
    assert "0xffffa000" in said(verdict, "load-address")
    assert used(verdict) == {"FLASH": 0x100, "SRAM": 0}
    assert not verdict.map.outside


def test_load_addresses_left_at_zero_say_nothing(sized: Any) -> None:
    elf = ElfWriter()
    elf.load([elf.section(".a", FLASH, b"\x01" * 0x80, flags=AX)], paddr=0)
    elf.load([elf.section(".b", RAM, b"\x01" * 0x80, flags=WA)], paddr=0)
    assert used(sized(elf, board(flash_aliases=[0]))) == {"FLASH": 0x80, "SRAM": 0x80}


def test_pyelftools_138_program_headers_are_not_counted_twice(sized: Any) -> None:
    elf = firmware()
    elf.segment(6, 52, FLASH, FLASH, 96, 96)  # PT_PHDR over the first PT_LOAD
    assert used(sized(elf)) == {"FLASH": 0x500, "SRAM": 0x300}


def test_zephyr_35460_reserved_part(sized: Any) -> None:
    part = SimpleNamespace(offset=0x1FFE0, size=32, reason="erratum 2.4.5")
    on = board(ram_reserved=[part])
    assert usage(sized(firmware(), on), "SRAM").free == 0x20000 - 32 - 0x300
    elf = firmware()
    elf.load([elf.section(".end", RAM + 0x1FFD0, 0x20, flags=WA)])
    verdict = sized(elf, on)
    assert verdict.exit_code == 1
    assert "erratum 2.4.5" in said(verdict, "reserved")
    assert "uses 16 B" in said(verdict, "reserved")


def test_renode_787_addresses_of_64_bits(sized: Any) -> None:
    """renode#787: regions above 2^63."""
    base = 1 << 63
    elf = ElfWriter(bits=64, machine=ew.RISCV)
    elf.load([elf.section(".bss", base, 0x100, flags=WA)])
    assert used(sized(elf, board(region("NVM", base, 0x1000))))["NVM"] == 0x100


def test_operating_system_addresses_are_virtual(sized: Any) -> None:
    on = board(region("SDRAM", 0, 1 << 29, "dram"), os="linux")
    on.firmware.os_reserve_bytes, on.firmware.os_reserve_reason = 1 << 20, "kernel"
    elf = ElfWriter(bits=64, machine=ew.AARCH64, kind=ew.DYN)
    text = elf.section(".text", 0x40_0000_0000, b"\x01" * 0x100, flags=AX)
    elf.load([text])
    elf.symbol("malloc", 0x40_0000_0000, 0x80, FUNC, section=text)
    verdict = sized(elf, on)
    sdram = usage(verdict, "SDRAM")
    assert (sdram.used, sdram.free) == (0x100, (1 << 29) - (1 << 20) - 0x100)
    assert verdict.exit_code == 0
    assert codes(verdict, "error") == []


def test_without_a_board(sized: Any) -> None:
    verdict = sized(firmware(), None)
    assert used(verdict) == {"0x08000000": 0x500, "0x20000000": 0x300}
    assert {u.region.kind for u in verdict.map.usages} == {"no board given"}
    assert (verdict.verdict, verdict.exit_code) == ("unknown", 0)


def test_extended_section_numbering(sized: Any) -> None:
    elf = ElfWriter(machine=ew.X86)
    count = 66_000
    members = [elf.section(f".t{i}", FLASH + i, b"\x01", flags=AX) for i in range(count)]
    elf.load(members)
    elf.symbol("last", FLASH + count - 1, 1, FUNC, section=members[-1])
    verdict = sized(elf, board(flash_size=0x20000))
    assert used(verdict)["FLASH"] == count
    assert [(s.name, s.size) for s in verdict.symbols] == [("last", 1)]
    assert usage(verdict, "FLASH").unattributed == count - 1


# -- image and stack ------------------------------------------------------------------------------


def test_image_and_stack_are_rows_of_their_own(sized: Any) -> None:
    elf = firmware()
    elf.symbol("colibri_model_base", FLASH + 0x1000)
    elf.symbol("colibri_model_size", 0x3000)
    elf.symbol("__stack_bottom", RAM + 0x1F000)
    elf.symbol("__stack_top", RAM + 0x20000)
    verdict = sized(elf)
    assert used(verdict) == {"FLASH": 0x3500, "SRAM": 0x1300}
    rows = [(r.name, r.bytes) for u in verdict.map.usages for r in u.rows if r.kind != "section"]
    assert rows == [("image", 0x3000), ("stack", 0x1000)]
    assert (verdict.map.image_bytes, verdict.map.stack_bytes) == (0x3000, 0x1000)
    assert verdict.unattributed == 0x100
    assert verdict.verdict == "fits"


def test_image_over_code_or_past_the_end(sized: Any) -> None:
    elf = firmware()
    elf.symbol("colibri_model_base", FLASH + 0x480)
    elf.symbol("colibri_model_size", 0x10000)
    verdict = sized(elf)
    assert "image" in said(verdict, "overlap")
    assert ".data" in said(verdict, "overlap")
    assert usage(verdict, "FLASH").overflow == 0x480
    assert verdict.exit_code == 1


def test_stack_inside_a_section_is_not_counted_again(sized: Any) -> None:
    elf = firmware()
    elf.symbol("__stack_bottom", RAM + 0x180)
    elf.symbol("__stack_top", RAM + 0x280)
    assert used(sized(elf)) == {"FLASH": 0x500, "SRAM": 0x300}


def test_image_file_beside_the_elf(tmp_path: Path) -> None:
    path, image = firmware().write(tmp_path / "f.elf"), tmp_path / "m.colibri"
    image.write_bytes(bytes(0xF000))
    verdict = judge(path, board(), image)
    assert used(verdict) == {"FLASH": 0xF500, "SRAM": 0x300}
    assert verdict.verdict == "fits"
    image.write_bytes(bytes(0xFC00))
    assert judge(path, board(), image).exit_code == 1
    with pytest.raises(SizeError, match="model_region"):
        judge(path, None, image)
    with pytest.raises(SizeError, match="not a file"):
        judge(path, board(), tmp_path / "none")
