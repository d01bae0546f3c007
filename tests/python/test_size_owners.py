# SPDX-License-Identifier: Apache-2.0
"""`colibri size`: sources by debug information, groups by pattern."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import elf_writer as ew
from archive import write_archive
from colibri.errors import SizeError
from colibri.fit import Verdict, judge
from colibri.fit.attribution import Attribution
from colibri.fit.debug_info import Sources
from dwarf_writer import ABBREV, Unit, add_dwarf
from elf_writer import AX, FUNC, OBJECT, ElfWriter
from needs import need
from size_support import CODE, FLASH, board, codes, firmware, said, used

UNITS: list[Unit] = [
    ("src/main.c", "/project/app", FLASH, 0x300),
    ("../lib/util.c", "/project/app", FLASH + 0x300, 0x80),
]


def with_dwarf(units: list[Unit], version: int = 4, **how: Any) -> ElfWriter:
    elf = firmware(**how)
    elf.symbol("util", FLASH + 0x300 | 1, 0x80, FUNC, section=1)
    if how.get("machine", ew.ARM) != ew.ARM:
        elf.symbols[0] = ("main", FLASH, *elf.symbols[0][2:])
        elf.symbols[-1] = ("util", FLASH + 0x300, *elf.symbols[-1][2:])
    add_dwarf(elf, units, version)
    return elf


def judged(folder: Path, elf: ElfWriter, **how: Any) -> Verdict:
    return judge(elf.write(folder / "f.elf"), board(), **how)


def by_name(rows: Any) -> dict[str, dict[str, int]]:
    return {row.name: row.bytes for row in rows}


# -- sources --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [2, 3, 4, 5])
@pytest.mark.parametrize("little", [True, False])
@pytest.mark.parametrize("bits", [32, 64])
def test_zephyr_50106_bloaty_126_sources_of_every_version(
    tmp_path: Path, version: int, little: bool, bits: int
) -> None:
    """DWARF 2 to 5, both byte orders and widths."""
    elf = firmware(bits=bits, little=little, machine=ew.RISCV)
    elf.symbols[0] = ("main", FLASH, *elf.symbols[0][2:])
    elf.symbol("util", FLASH + 0x300, 0x80, FUNC, section=1)
    add_dwarf(elf, UNITS, version)
    verdict = judged(tmp_path, elf)
    assert by_name(verdict.attribution.sources) == {
        "/project/app/src/main.c": {"FLASH": 0x300},
        "/project/lib/util.c": {"FLASH": 0x80},
        "(source not known)": {"FLASH": 0x100, "SRAM": 0x300},
        "(unattributed)": {"FLASH": 0x80},
    }
    folders = by_name(verdict.attribution.directories)
    assert folders["/project/app/src"] == {"FLASH": 0x300}
    assert folders["/project/lib"] == {"FLASH": 0x80}
    assert "debug-info" not in codes(verdict)


def test_debug_information_changes_no_verdict(tmp_path: Path) -> None:
    assert used(judged(tmp_path, with_dwarf(UNITS))) == used(judged(tmp_path, firmware()))


@pytest.mark.parametrize("bits", [32, 64])
def test_ranges_are_relative_to_their_base(tmp_path: Path, bits: int) -> None:
    """`.debug_ranges` of DWARF 4: offsets from low_pc, then an entry that moves the base."""
    word = "I" if bits == 32 else "Q"
    moved = FLASH + 0x300
    elf = firmware(bits=bits, machine=ew.RISCV)
    elf.symbols[0] = ("main", FLASH, *elf.symbols[0][2:])
    elf.symbol("util", moved, 0x80, FUNC, section=1)
    head, tail = struct.pack("<HIB", 4, 0, bits // 8), struct.pack(f"<{word}I", FLASH, 0)
    body = b"\x01a.c\0/src\0" + tail
    elf.section(".debug_info", 0, struct.pack("<I", len(head + body)) + head + body, flags=0)
    forms = ABBREV.replace(bytes([0x12, 0x06]), bytes([0x55, 0x17]))  # ranges, as an offset
    elf.section(".debug_abbrev", 0, forms, flags=0)
    highest = (1 << bits) - 1
    ranges = struct.pack(f"<8{word}", 0, 0x200, highest, moved, 0, 0x80, 0, 0)
    elf.section(".debug_ranges", 0, ranges, flags=0)
    verdict = judged(tmp_path, elf)
    assert {s.name: s.source for s in verdict.symbols if s.kind == "FUNC"} == {
        "main": "/src/a.c",
        "util": "/src/a.c",
    }
    assert "debug-info" not in codes(verdict)


def test_bloaty_126_high_pc_below_low_pc_is_a_warning(tmp_path: Path) -> None:
    """One unit claims a range that wraps; the other keeps its own."""
    elf = with_dwarf([("bad.c", "/project", FLASH, FLASH - 4), UNITS[1]])
    abbrev = next(s for s in elf.sections if s.name == ".debug_abbrev")
    abbrev.data = ABBREV.replace(bytes([0x12, 0x06]), bytes([0x12, 0x01]))  # high_pc an address
    info = next(s for s in elf.sections if s.name == ".debug_info")
    info.data = info.data.replace(
        (0x80).to_bytes(4, "little"), (FLASH + 0x380).to_bytes(4, "little")
    )
    verdict = judged(tmp_path, elf)
    assert "1 ranges end before they begin" in said(verdict, "debug-info")
    assert by_name(verdict.attribution.sources)["/project/lib/util.c"] == {"FLASH": 0x80}
    assert verdict.verdict == "fits"


@pytest.mark.parametrize(
    ("change", "section"),
    [
        (lambda d: d[:9], ".debug_info"),
        (lambda d: b"\xff" * len(d), ".debug_info"),
        (lambda d: d[:4] + b"\x63" + d[5:], ".debug_info"),  # version 99
        (lambda d: d[:4] + b"\x01" + d[5:], ".debug_info"),  # version 1
        (lambda d: b"\x01\x11", ".debug_abbrev"),
        (lambda d: b"\x02" + d[1:], ".debug_abbrev"),  # the code that is asked for is not there
    ],
)
def test_zephyr_50106_damaged_debug_information_is_a_warning(
    tmp_path: Path, change: Any, section: str
) -> None:
    elf = with_dwarf(UNITS)
    target = next(s for s in elf.sections if s.name == section)
    target.data = change(target.data)
    target.size = len(target.data)
    verdict = judged(tmp_path, elf)
    assert "debug-info" in codes(verdict, "warning")
    assert (verdict.verdict, used(verdict)) == ("fits", {"FLASH": 0x500, "SRAM": 0x300})


def test_units_before_a_damaged_one_keep_their_sources(tmp_path: Path) -> None:
    elf = with_dwarf(UNITS)
    info = next(s for s in elf.sections if s.name == ".debug_info")
    second = 4 + int.from_bytes(info.data[:4], "little")
    info.data = info.data[: second + 4] + b"\x01" + info.data[second + 5 :]  # version 1
    verdict = judged(tmp_path, elf)
    assert "from a unit on" in said(verdict, "debug-info")
    assert by_name(verdict.attribution.sources)["/project/app/src/main.c"] == {"FLASH": 0x300}


def test_local_symbols_name_their_file(tmp_path: Path) -> None:
    """Without debug information the symbol table tells file names of local symbols."""
    elf = ElfWriter()
    text = elf.section(".text", FLASH, CODE * 0x40, flags=AX)
    elf.load([text])
    elf.symbol("first.c", 0, 0, ew.FILE, section=ew.ABS, bind=ew.LOCAL)
    elf.symbol("one", FLASH | 1, 0x10, FUNC, section=text, bind=ew.LOCAL)
    elf.symbol("second.c", 0, 0, ew.FILE, section=ew.ABS, bind=ew.LOCAL)
    elf.symbol("two", FLASH + 0x10 | 1, 0x10, FUNC, section=text, bind=ew.LOCAL)
    elf.symbol("three", FLASH + 0x20 | 1, 0x10, FUNC, section=text)
    verdict = judged(tmp_path, elf)
    assert {s.name: s.source for s in verdict.symbols} == {
        "one": "first.c",
        "two": "second.c",
        "three": "",
    }


def test_data_of_a_local_symbol_gets_the_path_that_its_name_has(tmp_path: Path) -> None:
    elf = ElfWriter()
    text = elf.section(".text", FLASH, CODE * 0x40, flags=AX)
    const = elf.section(".rodata", FLASH + 0x80, b"\x01" * 0x20)
    elf.load([text, const])
    elf.symbol("main.c", 0, 0, ew.FILE, section=ew.ABS, bind=ew.LOCAL)
    elf.symbol("key", FLASH + 0x80, 0x20, OBJECT, section=const, bind=ew.LOCAL)
    add_dwarf(elf, [("src/main.c", "/project", FLASH, 0x80)])
    verdict = judged(tmp_path, elf)
    assert next(s.source for s in verdict.symbols if s.name == "key") == "/project/src/main.c"


def test_sources_split_a_range() -> None:
    sources = Sources([10, 30], [20, 40], ["a", "b"])
    assert list(sources.split(0, 50)) == [
        ("", 0, 10),
        ("a", 10, 10),
        ("", 20, 10),
        ("b", 30, 10),
        ("", 40, 10),
    ]
    assert list(sources.split(12, 3)) == [("a", 12, 3)]
    assert list(sources.split(45, 5)) == [("", 45, 5)]
    assert list(Sources().split(1, 2)) == [("", 1, 2)]


SOURCE = """
#include <stdint.h>
static uint32_t state = 5;
static inline uint32_t mix(uint32_t x) { return x * 2654435761u ^ (x >> 7); }
uint32_t next(void) { return state = mix(state); }
void start(void) { for (;;) next(); }
"""


@pytest.mark.parametrize("version", [2, 3, 4, 5])
@pytest.mark.parametrize("prefix", ["arm-none-eabi-", "riscv64-unknown-elf-", ""])
def test_zephyr_50106_sources_of_gcc(tmp_path: Path, version: int, prefix: str) -> None:
    need(f"{prefix}gcc")
    (tmp_path / "one.c").write_text(SOURCE)
    flags = f"-gdwarf-{version} -Os -ffreestanding -nostdlib -static -ffunction-sections -e start"
    command = [f"{prefix}gcc", *flags.split(), "one.c", "-o", "a.elf"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    verdict = judge(tmp_path / "a.elf")
    functions = {s.name: s.source for s in verdict.symbols if s.name in ("next", "start")}
    assert set(functions.values()) == {str(tmp_path / "one.c")}
    assert len(functions) == 2
    assert "debug-info" not in codes(verdict)


def test_sources_of_clang(tmp_path: Path) -> None:
    """Indexed forms of DWARF 5 (strx, addrx, rnglistx)."""
    need("module:ziglang")
    (tmp_path / "one.c").write_text(SOURCE)
    flags = (
        "-target thumb-freestanding-eabihf -mcpu=cortex_m33 -Os -g -nostdlib -static "
        "-ffunction-sections -fno-sanitize=all -Wl,-e,start"
    )
    command = [sys.executable, "-m", "ziglang", "cc", *flags.split(), "one.c", "-o", "a.elf"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    verdict = judge(tmp_path / "a.elf")
    assert Path(next(s.source for s in verdict.symbols if s.name == "start")).name == "one.c"


def test_compressed_debug_information_says_what_helps(tmp_path: Path) -> None:
    need("gcc", "objcopy")
    (tmp_path / "one.c").write_text(SOURCE)
    flags = "-g -Os -ffreestanding -nostdlib -static -e start -gz"
    command = ["gcc", *flags.split(), "one.c", "-o", "a.elf"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert "--decompress-debug-sections" in said(judge(tmp_path / "a.elf"), "debug-info")
    subprocess.run(["objcopy", "--decompress-debug-sections", "a.elf"], cwd=tmp_path, check=True)
    assert "debug-info" not in codes(judge(tmp_path / "a.elf"))


# -- groups ---------------------------------------------------------------------------------------


def library(folder: Path) -> Path:
    content = {}
    for name, size in (("gpio.o", 8), ("uart.o", 16), ("math.o", 4)):
        elf = ElfWriter(kind=ew.REL)
        text = elf.section(f".text.{name[:4]}", 0, CODE * (size // 2), flags=AX)
        elf.symbol(f"hal_{name[:4]}", 0, size, FUNC, section=text)
        content[name] = elf.build()
    return write_archive(folder / "libhal.a", content)


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ({"all": ["*"]}, {"all": 28}),
        ({"io": ["gpio.o", "uart.o"]}, {"io": 24, "(other)": 4}),
        ({"io": ["libhal.a(gpio.o)"]}, {"io": 8, "(other)": 20}),
        ({"hal": ["library:libhal.a"]}, {"hal": 28}),
        ({"uart": ["symbol:hal_u*"]}, {"uart": 16, "(other)": 12}),
        ({"math": ["section:.text.math"]}, {"math": 4, "(other)": 24}),
        ({"code": ["region:text"]}, {"code": 28}),
        ({"one": ["object:gpio.*"], "two": ["*.o"]}, {"two": 20, "one": 8}),
        ({"none": ["nothing"]}, {"(other)": 28}),
        ({"class": ["[gm]*.o"]}, {"class": 12, "(other)": 16}),
    ],
)
def test_groups(tmp_path: Path, groups: dict[str, list[str]], expected: dict[str, int]) -> None:
    verdict = judge(library(tmp_path), groups=groups)
    assert {s.name: s.total for s in verdict.attribution.groups} == expected


def test_groups_by_source(tmp_path: Path) -> None:
    verdict = judged(tmp_path, with_dwarf(UNITS), groups={"app": ["source:/project/app/*"]})
    groups = by_name(verdict.attribution.groups)
    assert groups["app"] == {"FLASH": 0x300}
    assert groups["(unattributed)"] == {"FLASH": 0x80}
    total = {r: sum(b.get(r, 0) for b in groups.values()) for r in ("FLASH", "SRAM")}
    assert total == used(verdict)


@pytest.mark.parametrize(
    ("groups", "says"),
    [
        ({"io": []}, r"groups\.io: has no list of patterns"),
        ({"io": "*.o"}, r"groups\.io: has no list of patterns"),
        ({"io": ["file:*.o"]}, r"groups\.io: 'file' is nothing .* use one of symbol:"),
    ],
)
def test_bad_groups(tmp_path: Path, groups: Any, says: str) -> None:
    with pytest.raises(SizeError, match=says):
        judge(library(tmp_path), groups=groups)


def test_windows_paths_have_no_prefix(tmp_path: Path) -> None:
    verdict = judge(library(tmp_path), groups={"c": ["C:/src/*"]})
    assert {s.name for s in verdict.attribution.groups} == {"(other)"}


def test_no_owner_is_known_of_a_stripped_file(tmp_path: Path) -> None:
    path = firmware().write(tmp_path / "f.elf", symbols=False)
    owners = judge(path, board(), groups={"all": ["*"]}).attribution
    assert owners == Attribution(owned=[], groups=owners.groups)
    assert by_name(owners.groups) == {"(unattributed)": {"FLASH": 0x500, "SRAM": 0x300}}
