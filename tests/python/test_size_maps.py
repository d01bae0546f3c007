# SPDX-License-Identifier: Apache-2.0
"""`colibri size` on map files of GNU ld and lld, alone and beside their ELF."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from colibri.cli import main
from colibri.errors import SizeError
from colibri.fit import Verdict, judge
from colibri.fit.compare import compare
from colibri.fit.link_map import object_and_library, read_map
from elf_writer import AX, FUNC, OBJECT, WA, ElfWriter
from needs import need
from size_support import CODE, FLASH, RAM, board, codes, region, said, usage, used

GNU = """\
Archive member included to satisfy reference by file (symbol)

lib/libhal.a(gpio.o)          main.o (gpio_set)

Discarded input sections

 .text          0x00000000        0x0 main.o
 .text.unused   0x00000000    0x19000 lib/libhal.a(gpio.o)

Memory Configuration

Name             Origin             Length             Attributes
FLASH            0x08000000         0x00010000         xr
RAM              0x20000000         0x00020000         xrw
CCM              0x10000000         0x00001000         rw
*default*        0x00000000         0xffffffff

Linker script and memory map

LOAD main.o
LOAD lib/libhal.a

.text           0x08000000      0x100
 *(.text*)
 .text.main     0x08000000       0x80 main.o
                0x08000000                main
 .text.gpio_set
                0x08000080       0x70 lib/libhal.a(gpio.o)
                0x08000080                gpio_set
                0x080000f0                . = ALIGN (0x10)
 *fill*         0x080000f0       0x10 00

.a_section_with_a_name_of_forty_characters
                0x08000100       0x20
 *(.a_section*)
 .a_section_with_a_name_of_forty_characters
                0x08000100       0x20 main.o

.rodata         0x08000120       0x20
 *(.rodata*)
 .rodata.str1.1
                0x08000120       0x1e main.o
                                 0x25 (size before relaxing)
 *fill*         0x0800013e        0x2\x20

.data           0x20000000       0x10 load address 0x08000140
 *(.data*)
 .data          0x20000000       0x10 lib/libhal.a(gpio.o)
                0x20000000                table

.bss            0x20000010      0x200 load address 0x08000150
 *(.bss*)
 .bss           0x20000010      0x1f0 main.o
                0x20000010                buffer
 *(COMMON)
 COMMON         0x20000200       0x10 lib/libhal.a(gpio.o)
                0x20000200                tentative
                0x20020000                __stack_top = (ORIGIN (RAM) + LENGTH (RAM))
                0x2001f000                __stack_bottom = (__stack_top - 0x1000)
OUTPUT(firmware.elf elf32-littlearm)

.comment        0x00000000       0x26
 .comment       0x00000000       0x26 main.o

.ARM.attributes
                0x00000000       0x34
"""
LLD = """\
     VMA      LMA     Size Align Out     In      Symbol
 8000000  8000000      100     4 .text
 8000000  8000000       80     4         main.o:(.text.main)
 8000000  8000000        0     1                 $t
 8000001  8000001       80     1                 main
 8000080  8000080       70     4         lib/libhal.a(gpio.o):(.text.gpio_set)
 8000081  8000081       70     1                 gpio_set
 80000f0  80000f0       10     1         . = ALIGN(16)
20000000  8000100       10     4 .data
20000000  8000100       10     4         lib/libhal.a(gpio.o):(.data)
20000000  8000100       10     1                 table
20000010 20000010      200     1 .bss
20000010 20000010      200     1         main.o:(.bss.buffer)
20000210 20000210        0     1 __stack_top = ORIGIN(RAM) + LENGTH(RAM)
20000210 20000210     4000     1 . += 0x4000
       0        0       26     1 .comment
       0        0       26     1         <internal>:(.comment)
"""


def written(folder: Path, text: str, name: str = "firmware.map") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def firmware_of_map(**change: int) -> ElfWriter:
    """The ELF that the map `GNU` is of."""
    elf = ElfWriter()
    long = "a_section_with_a_name_of_forty_characters"
    text = elf.section(".text", FLASH, CODE * 0x80, flags=AX)
    extra = elf.section(f".{long}", FLASH + 0x100, CODE * 0x10, flags=AX)
    rodata = elf.section(".rodata", FLASH + 0x120, b"\x02" * 0x20)
    data = elf.section(".data", RAM, b"\x07" * 0x10, flags=WA)
    zero = elf.section(".bss", RAM + 0x10, change.get("bss", 0x200), flags=WA)
    elf.load([text, extra, rodata])
    elf.load([data, zero], paddr=FLASH + 0x140)
    elf.symbol("main", FLASH | 1, 0x80, FUNC, section=text)
    elf.symbol("gpio_set", change.get("gpio", FLASH + 0x80) | 1, 0x70, FUNC, section=text)
    elf.symbol("table", RAM, 0x10, OBJECT, section=data)
    elf.symbol("buffer", RAM + 0x10, 0x1F0, OBJECT, section=zero)
    elf.symbol("__stack_bottom", RAM + 0x1F000)
    elf.symbol("__stack_top", RAM + 0x20000)
    return elf


@pytest.fixture
def both(tmp_path: Path) -> Verdict:
    """The ELF judged beside its map."""
    elf = firmware_of_map().write(tmp_path / "firmware.elf")
    return judge(elf, link_map=written(tmp_path, GNU))


# -- a map alone ----------------------------------------------------------------------------------


def test_mbed_os_10109_rusefi_721_a_map_alone(tmp_path: Path) -> None:
    """Long names wrap; load addresses stand on the line; discarded sections are not counted."""
    verdict = judge(written(tmp_path, GNU))
    assert used(verdict) == {"FLASH": 0x150, "RAM": 0x210 + 0x1000, "CCM": 0}
    assert usage(verdict, "FLASH").unattributed == 0
    assert verdict.map.totals == {"text": 0x100, "rodata": 0x40, "data": 0x10, "bss": 0x200}
    assert read_map(tmp_path / "firmware.map").discarded == 0x19000
    assert verdict.map.inexact
    assert (verdict.verdict, verdict.exit_code) == ("fits", 0)
    assert verdict.map.board is None


def test_mapfile_parser_37_fill_is_a_row_of_its_own(tmp_path: Path) -> None:
    verdict = judge(written(tmp_path, GNU))
    sizes = [(s.name, s.size) for s in verdict.symbols]
    assert ("*fill*", 0x10) in sizes
    assert ("gpio_set", 0x70) in sizes
    fill = next(s for s in verdict.attribution.objects if s.name == "(fill)")
    assert fill.bytes == {"FLASH": 0x12}


def test_gaps_in_a_map_of_lld_are_fill(tmp_path: Path) -> None:
    """lld lists no alignment: here 4 bytes between two inputs, and 20 behind the last one."""
    text = LLD.replace("8000080  8000080       70", "8000084  8000084       68")
    text = re.sub(r".*ALIGN\(16\)\n", "", text)
    objects = {s.name: s.total for s in judge(written(tmp_path, text)).attribution.objects}
    assert objects["(fill)"] == 4 + 20
    assert "(unattributed)" not in objects


OVERLAYS = """\
Memory Configuration

Name             Origin             Length             Attributes
FLASH            0x08000000         0x00010000         xr
RAM              0x20000000         0x00020000         xrw
*default*        0x00000000         0xffffffff

Linker script and memory map

.quick          0x20000000      0x100 load address 0x08000000
 .quick         0x20000000      0x100 main.o
                0x20000000                filter

.lines          0x20000100      0x400 load address 0x08000100
 .lines         0x20000100      0x400 main.o
                0x20000100                line

.window         0x20000500       0x80 load address 0x08000100
 .window        0x20000500       0x80 main.o

.mode_a         0x20000580      0x180 load address 0x08000180
 .mode_a        0x20000580      0x180 main.o
                0x20000580                first

.mode_b         0x20000580      0x280 load address 0x08000300
 .mode_b        0x20000580      0x280 main.o
                0x20000580                second
"""


def test_llvm_54075_eld_1748_map_sections_that_store_nothing(
    tmp_path: Path,
) -> None:
    """`.window` is loaded where `.lines` would be: `.lines` has no bytes, whatever its name."""
    verdict = judge(written(tmp_path, OVERLAYS))
    assert used(verdict) == {"FLASH": 0x100 + 0x80 + 0x180 + 0x280, "RAM": 0x580 + 0x280}
    assert verdict.verdict == "fits"
    sizes = {s.name: s.size for s in verdict.symbols}
    assert sizes == {
        "filter": 0x100,
        "line": 0x400,
        ".window": 0x80,
        "first": 0x180,
        "second": 0x280,
    }


def test_memory_map_plugin_44_an_unused_region_is_at_0_percent(tmp_path: Path) -> None:
    verdict = judge(written(tmp_path, GNU))
    empty = usage(verdict, "CCM")
    assert (empty.used, empty.percent, empty.free) == (0, 0.0, 0x1000)
    assert [u.region.name for u in verdict.map.usages] == ["FLASH", "RAM", "CCM"]


def test_zephyr_37658_the_default_region_is_none(tmp_path: Path) -> None:
    lost = GNU.replace(".rodata         0x08000120", ".rodata         0x60000000", 1)
    verdict = judge(written(tmp_path, lost))
    assert "*default*" not in used(verdict)
    assert [(r.name, r.bytes) for r in verdict.map.outside] == [(".rodata", 0x20)]
    assert verdict.exit_code == 1


def test_zephyr_75227_a_failed_link(tmp_path: Path, capsys: Any) -> None:
    """The over-full region comes first, the exit code is 1."""
    tight = GNU.replace("0x20000000         0x00020000", "0x20000000         0x00000180")
    tight = "\n".join(line for line in tight.splitlines() if "__stack" not in line)
    path = written(tmp_path, tight)
    verdict = judge(path)
    assert (usage(verdict, "RAM").overflow, usage(verdict, "RAM").used) == (0x90, 0x210)
    assert main(["size", str(path)]) == 1
    out = capsys.readouterr().out
    assert 0 < out.index("RAM") < out.index("FLASH")
    assert "RAM overflows by 144 B (last: .bss); it has 384 B" in out
    assert "does not fit: firmware.map (regions of the linker script)" in out


def test_zephyr_87343_a_map_on_a_board(tmp_path: Path) -> None:
    """zephyr#87343: the linker's regions are held against the board's."""
    path = written(tmp_path, GNU)
    verdict = judge(path, board(region("CCM", 0x1000_0000, 0x1000)))
    assert used(verdict) == {"FLASH": 0x150, "SRAM": 0x1210, "CCM": 0}
    assert "linker-region" not in codes(verdict)
    verdict = judge(path, board(flash_size=0x8000))
    assert "0x8000000..0x8010000, on test-board FLASH has 0x8000000..0x8008000" in said(
        verdict, "linker-region"
    )
    assert "CCM: the linker script gives it 0x10000000..0x10001000, on test-board no region" in (
        said(verdict, "linker-region")
    )


def test_lld_map_alone(tmp_path: Path) -> None:
    verdict = judge(written(tmp_path, LLD), board())
    assert used(verdict) == {"FLASH": 0x110, "SRAM": 0x210}
    assert {(s.name, s.library): s.total for s in verdict.attribution.objects} == {
        ("main.o", ""): 0x80 + 0x200,
        ("gpio.o", "lib/libhal.a"): 0x70 + 2 * 0x10,
        ("(fill)", ""): 0x10,
    }
    assert verdict.exit_code == 0


def test_openamp_26_a_section_that_no_rule_names(tmp_path: Path) -> None:
    orphan = GNU.replace(" *(.a_section*)\n", "")
    verdict = judge(written(tmp_path, orphan))
    assert "forty_characters" in said(verdict, "orphan")
    assert "orphan" not in codes(judge(written(tmp_path, GNU)))


def test_heap_of_moves_alone_has_no_bytes(tmp_path: Path) -> None:
    heap = GNU.replace(
        "OUTPUT(",
        ".heap           0x20000210      0x400\n"
        "                0x20000610                . = (. + 0x400)\n"
        " *fill*         0x20000210      0x400 \n\nOUTPUT(",
    )
    verdict = judge(written(tmp_path, heap))
    assert used(verdict) == {"FLASH": 0x150, "RAM": 0x610 + 0x1000, "CCM": 0}


def test_data_of_the_script_is_the_linkers(tmp_path: Path) -> None:
    with_data = GNU.replace(
        ".rodata         0x08000120       0x20",
        ".rodata         0x08000120       0x24\n"
        "                0x08000140        0x4 LONG 0x12345678",
    ).replace("load address 0x08000140", "load address 0x08000144")
    verdict = judge(written(tmp_path, with_data))
    assert used(verdict)["FLASH"] == 0x154
    assert {s.name: s.total for s in verdict.attribution.objects}["(linker)"] == 4


def test_bare_metal_31_forbidden_functions_of_a_map(tmp_path: Path) -> None:
    heap = GNU.replace("                gpio_set", "                malloc")
    assert "malloc (heap) is linked in" in said(
        judge(written(tmp_path, heap), board(region("CCM", 0x1000_0000, 0x1000))), "forbidden"
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("Memory Configuration\n\nName\n", "has no line 'Linker script and memory map'"),
        ("Linker script and memory map\n\nLOAD a.o\n", "lists no section"),
        (LLD.splitlines()[0], "lists no section"),
        ("Speicherkonfiguration\n", "not an ELF file"),
    ],
)
def test_maps_that_say_nothing(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(SizeError, match=says):
        judge(written(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("main.o", ("main.o", "")),
        ("lib/libc.a(printf.o)", ("printf.o", "lib/libc.a")),
        ("/my dir (copy)/lib.a(a b.o)", ("a b.o", "/my dir (copy)/lib.a")),
        ("/my dir (copy)/main.o", ("/my dir (copy)/main.o", "")),
        ("größe/häl.a(ü.o)", ("ü.o", "größe/häl.a")),
        ("linker stubs", ("linker stubs", "")),
        ("(x)", ("(x)", "")),
    ],
)
def test_esp_idf_size_paths_with_blanks_and_letters(text: str, expected: tuple[str, str]) -> None:
    assert object_and_library(text) == expected


# -- a map beside its ELF -------------------------------------------------------------------------


def test_objects_and_libraries(both: Verdict) -> None:
    rows = {(s.name, s.library): s.bytes for s in both.attribution.objects}
    assert rows == {
        ("main.o", ""): {"FLASH": 0x80 + 0x20 + 0x1E, "RAM": 0x1F0},
        ("gpio.o", "lib/libhal.a"): {"FLASH": 0x70 + 0x10, "RAM": 0x10 + 0x10},
        ("(fill)", ""): {"FLASH": 0x12},
    }
    libraries = {s.name: s.bytes for s in both.attribution.libraries}
    assert libraries["lib/libhal.a"] == {"FLASH": 0x80, "RAM": 0x20}
    owner = {s.name: (s.object, s.library) for s in both.symbols}
    assert owner["gpio_set"] == ("gpio.o", "lib/libhal.a")
    assert owner["main"] == ("main.o", "")


@pytest.mark.parametrize("table", ["objects", "libraries", "groups"])
def test_zephyr_15968_every_table_adds_up_to_what_is_used(tmp_path: Path, table: str) -> None:
    lost = GNU.replace(" .bss           0x20000010      0x1f0 main.o\n", "")
    elf = firmware_of_map()
    del elf.symbols[3]  # `buffer`: 0x1f0 bytes that neither a symbol nor the map owns
    path = elf.write(tmp_path / "f.elf")
    verdict = judge(path, link_map=written(tmp_path, lost), groups={"hal": ["*libhal.a"]})
    rows = getattr(verdict.attribution, table)
    for name in ("FLASH", "RAM"):
        own = 0x1000 if name == "RAM" else 0  # the stack
        assert sum(s.bytes.get(name, 0) for s in rows) == usage(verdict, name).used - own
    assert {s.name: s.bytes for s in rows}["(unattributed)"] == {"RAM": 0x1F0}


def test_the_linkers_regions_judge_an_elf(both: Verdict) -> None:
    assert used(both) == {"FLASH": 0x150, "RAM": 0x1210, "CCM": 0}
    assert (both.verdict, both.exit_code, both.map.inexact) == ("fits", 0, False)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"bss": 0x204}, r"\.bss of f\.elf \(516 B at 0x20000010\) has 512 B in the map"),
        ({"gpio": FLASH + 0x82}, r"gpio_set is at 0x8000080 in the map and at 0x8000082 in f\.elf"),
    ],
)
def test_esp_idf_size_a_map_of_another_build(
    tmp_path: Path, change: dict[str, int], says: str
) -> None:
    path = firmware_of_map(**change).write(tmp_path / "f.elf")
    with pytest.raises(SizeError, match=says):
        judge(path, link_map=written(tmp_path, GNU))


def test_esp_idf_size_a_section_that_the_map_does_not_have(tmp_path: Path) -> None:
    elf = firmware_of_map()
    elf.load([elf.section(".late", FLASH + 0x800, CODE, flags=AX)])
    with pytest.raises(SizeError, match=r"\.late of f\.elf \(2 B at 0x8000800\) is not in the map"):
        judge(elf.write(tmp_path / "f.elf"), link_map=written(tmp_path, GNU))


def test_a_map_needs_its_elf(tmp_path: Path) -> None:
    path = written(tmp_path, GNU)
    with pytest.raises(SizeError, match="no linked ELF"):
        judge(path, link_map=path)
    with pytest.raises(SizeError, match="does not exist"):
        judge(firmware_of_map().write(tmp_path / "f.elf"), link_map=tmp_path / "none.map")
    with pytest.raises(SizeError, match="give the complete map"):
        judge(tmp_path / "f.elf", link_map=tmp_path / "f.elf")


def test_maps_are_baselines(tmp_path: Path) -> None:
    path = written(tmp_path, GNU)
    more = written(
        tmp_path,
        GNU.replace("0x1f0 main.o", "0x5f0 main.o").replace(
            ".bss            0x20000010      0x200", ".bss            0x20000010      0x600"
        ),
        "more.map",
    )
    result = compare(judge(more), path, None)
    assert {d.name: d.delta for d in result.regions} == {"FLASH": 0, "RAM": 0x400, "CCM": 0}


@pytest.mark.parametrize(
    "name",
    [
        "/tmp/cc1.ltrans0.ltrans.o",
        "/tmp/cc1.ltrans12.ltrans.o",
        "firmware.elf.lto.o",
        "lto.tmp",
        "ld-temp.o",
    ],
)
def test_tinyusb_1136_no_object_is_blamed_after_lto(tmp_path: Path, name: str) -> None:
    verdict = judge(written(tmp_path, GNU.replace(" main.o", f" {name}")))
    assert "attribution to objects and libraries is impossible" in said(verdict, "lto")
    assert verdict.attribution.objects == verdict.attribution.libraries == []


# -- real linkers ---------------------------------------------------------------------------------

MAIN = """
static const unsigned char key[300] = {1, 2, 3};
unsigned table[40] = {4, 5, 6};
unsigned char buffer[512];
extern int library(int);
void start(void)
{
    for (unsigned i = 0; i < 40; i++) table[i] += (unsigned)library((int)i) + key[i];
    buffer[table[3] % 512] = 1;
    for (;;) { }
}
"""
LIBRARY = """
int counter __attribute__((section(".data.a_section_with_a_very_long_name"))) = 3;
int unused(int x) { return x * 3; }
int library(int x) { return x + counter++; }
"""
SCRIPT = """
MEMORY { FLASH (rx) : ORIGIN = 0x08000000, LENGTH = %s
         RAM (rwx) : ORIGIN = 0x20000000, LENGTH = 128K
         CCM (rw) : ORIGIN = 0x10000000, LENGTH = 4K }
ENTRY(start)
SECTIONS {
  .text : { *(.text*) . = ALIGN(16); } > FLASH
  .rodata : ALIGN(16) { *(.rodata*) *(.srodata*) . = ALIGN(64); } > FLASH
  .data : ALIGN(16) { *(.data*) *(.sdata*) . = ALIGN(16); } > RAM AT> FLASH
  .bss (NOLOAD) : ALIGN(16) { *(.bss*) *(.sbss*) *(COMMON) . = ALIGN(16); } > RAM
  /DISCARD/ : { *(.comment) *(.note*) *(.eh_frame*) *(.ARM.*) *(.riscv.*) }
}
"""
TARGETS = {
    "arm": ("arm-none-eabi-", ["-mcpu=cortex-m33", "-mthumb"]),
    "riscv": ("riscv64-unknown-elf-", ["-march=rv64gc", "-mabi=lp64d", "-mcmodel=medany"]),
    "aarch64": ("aarch64-linux-gnu-", []),
}
FLAGS = (
    "-Os -ffreestanding -ffunction-sections -fdata-sections -fno-pic "
    "-fno-asynchronous-unwind-tables"
)
LIBRARY_PATH = "sp ace/libé.a"


def objects(folder: Path, target: str, *more: str) -> tuple[str, list[str]]:
    """Compile main.o and an archive in a folder with a blank; the compiler and the link's flags."""
    prefix, flags = TARGETS[target]
    need(f"{prefix}gcc", f"{prefix}ar")
    (folder / "sp ace").mkdir()
    for name, text in (("main.c", MAIN), ("lib.c", LIBRARY)):
        (folder / name).write_text(text)
        command = [f"{prefix}gcc", *flags, *FLAGS.split(), *more, "-c", name]
        subprocess.run(command, cwd=folder, check=True)
    subprocess.run([f"{prefix}gcc-ar", "rcs", LIBRARY_PATH, "lib.o"], cwd=folder, check=True)
    return prefix, [*flags, "-Os", *more, "-nostdlib", "-static", "-no-pie"]


def link(folder: Path, target: str, flash: str = "64K", more: tuple[str, ...] = ()) -> Any:
    prefix, flags = objects(folder, target, *more)
    (folder / "a.ld").write_text(SCRIPT % flash)
    files = ["main.o", LIBRARY_PATH, "-o", "a.elf", "-T", "a.ld"]
    words = "-Wl,-Map=a.map,--gc-sections,--print-memory-usage,--build-id=none"
    return subprocess.run(
        [f"{prefix}gcc", *flags, *files, words],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "LC_ALL": "C"},
    )


def memory_usage(text: str) -> dict[str, int]:
    """Used bytes as ld --print-memory-usage prints them, to the unit that it rounds to."""
    units = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}
    rows = [line.split() for line in text.splitlines() if line.rstrip().endswith("%")]
    return {name.rstrip(":"): int(size) * units[unit] for name, size, unit, *_ in rows}


@pytest.mark.parametrize("target", TARGETS)
def test_gnu_ld(tmp_path: Path, target: str) -> None:
    """The regions are those of --print-memory-usage; tables add up; the map alone agrees."""
    done = link(tmp_path, target)
    assert done.returncode == 0, done.stderr
    whole = judge(tmp_path / "a.elf", link_map=tmp_path / "a.map")
    assert used(whole) == memory_usage(done.stdout)
    assert used(judge(tmp_path / "a.map")) == used(whole)
    rows = {(s.name, s.library): s.bytes for s in whole.attribution.objects}
    assert rows["lib.o", LIBRARY_PATH]["RAM"] == 4
    assert rows["main.o", ""]["RAM"] == 160 + 512
    owner = {s.name: (s.object, s.library) for s in whole.symbols}
    assert owner["library"] == owner["counter"] == ("lib.o", LIBRARY_PATH)
    assert owner["key"] == owner["buffer"] == ("main.o", "")
    assert "unused" not in owner
    for name in ("FLASH", "RAM"):
        total = sum(s.bytes.get(name, 0) for s in whole.attribution.objects)
        assert total == usage(whole, name).used
    assert "orphan" not in codes(whole)


@pytest.mark.parametrize("target", TARGETS)
def test_zephyr_75227_gnu_ld_that_failed(tmp_path: Path, target: str) -> None:
    done = link(tmp_path, target, flash="512")
    assert done.returncode != 0
    assert not (tmp_path / "a.elf").exists()
    lost = int(done.stderr.split("overflowed by ")[1].split()[0])
    verdict = judge(tmp_path / "a.map")
    assert usage(verdict, "FLASH").overflow == lost
    assert (verdict.verdict, verdict.exit_code) == ("over", 1)


def test_tinyusb_1136_gnu_ld_with_lto(tmp_path: Path) -> None:
    """Objects are not blamed; the line table tells what was inlined from which source."""
    done = link(tmp_path, "arm", more=("-flto", "-g"))
    assert done.returncode == 0, done.stderr
    verdict = judge(tmp_path / "a.elf", link_map=tmp_path / "a.map")
    assert used(verdict) == memory_usage(done.stdout)
    assert "impossible" in said(verdict, "lto")
    assert verdict.attribution.objects == []
    sources = {Path(s.name).name: s.bytes["FLASH"] for s in verdict.attribution.sources}
    assert sources["lib.c"] > 0  # inlined into `start`
    assert sources["main.c"] > sources["lib.c"]
    start = next(s for s in verdict.symbols if s.name == "start")
    assert Path(start.source).name == "main.c"
    assert "library" not in {s.name for s in verdict.symbols}
    assert str(tmp_path) in {s.name for s in verdict.attribution.directories}


@pytest.mark.parametrize("flash", ["64K", "512"])
def test_lld(tmp_path: Path, flash: str) -> None:
    """zephyr#75227 also: lld writes the map of a link that runs over."""
    need("module:ziglang")
    objects(tmp_path, "arm")
    (tmp_path / "a.ld").write_text(SCRIPT % flash)
    words = ["--gc-sections", "-T", "a.ld", "main.o", LIBRARY_PATH, "-o", "a.elf", "-Map=a.map"]
    lld = [sys.executable, "-m", "ziglang", "ld.lld"]
    done = subprocess.run([*lld, *words], cwd=tmp_path, capture_output=True, text=True)
    on = board(flash_size=0x200 if flash == "512" else 0x10000)
    if flash == "512":
        lost = int(done.stderr.split("overflowed by ")[-1].split()[0])
        assert usage(judge(tmp_path / "a.map", on), "FLASH").overflow == lost
        return
    whole = judge(tmp_path / "a.elf", on, link_map=tmp_path / "a.map")
    assert used(judge(tmp_path / "a.map", on)) == used(whole)
    owner = {s.name: (s.object, s.library) for s in whole.symbols}
    assert owner["library"] == ("lib.o", LIBRARY_PATH)
    assert owner["buffer"] == ("main.o", "")


def test_json_of_a_map(tmp_path: Path, capsys: Any) -> None:
    elf = firmware_of_map().write(tmp_path / "f.elf")
    path = written(tmp_path, GNU)
    assert main(["size", str(elf), "--map", str(path), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["objects_total"] == 3
    assert result["objects"][0] == {
        "name": "main.o",
        "library": "",
        "bytes": 0xBE + 0x1F0,
        "by_region": {"RAM": 0x1F0, "FLASH": 0xBE},
    }
    assert result["symbols"][0]["object"] == "main.o"
