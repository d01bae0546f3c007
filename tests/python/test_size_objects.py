# SPDX-License-Identifier: Apache-2.0
"""`colibri size` on objects and archives: an upper bound, COMDAT groups once, members named."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import elf_writer as ew
from archive import write_archive
from colibri.errors import SizeError
from colibri.fit import judge
from colibri.fit.archive import read_members
from elf_writer import AX, FUNC, OBJECT, WA, A, ElfWriter
from needs import need
from size_support import CODE, board, codes, firmware, said

LONG = "a_name_that_is_longer_than_fifteen_characters.o"


def an_object(code: int = 8, data: int = 4, name: str = "f", **how: Any) -> ElfWriter:
    elf = ElfWriter(kind=ew.REL, **how)
    text = elf.section(f".text.{name}", 0, CODE * (code // 2), flags=AX)
    store = elf.section(".data", 0, b"\x07" * data, flags=WA)
    elf.symbol(name, 0, code, FUNC, section=text)
    elf.symbol(f"{name}_data", 0, data, OBJECT, section=store)
    return elf


def with_comdat(name: str, size: int = 16) -> ElfWriter:
    """An object of its own code and one inline function that others have too."""
    elf = an_object(8, 4, name)
    shared = elf.section(".text.shared", 0, CODE * (size // 2), flags=AX | 0x200)
    elf.symbol("shared", 0, size, FUNC, section=shared, bind=ew.WEAK)
    elf.comdat("shared", [shared])
    return elf


@pytest.mark.parametrize("style", ["gnu", "bsd", "thin"])
def test_members_of_every_kind_of_archive(tmp_path: Path, style: str) -> None:
    content = {
        "one.o": an_object(8, 5, "one").build(),
        LONG: an_object(12, 3, "two").build(),
        "sp ace.o": an_object(4, 1, "three").build(),
        "ünï.o": an_object(2, 2, "four").build(),
    }
    for name, data in content.items():
        (tmp_path / name).write_bytes(data)
    path = write_archive(tmp_path / "lib.a", content, style)
    assert {m.name: m.data for m in read_members(path)} == content
    verdict = judge(path)
    assert verdict.map.totals == {"text": 26, "rodata": 0, "data": 11, "bss": 0}
    assert (verdict.verdict, verdict.exit_code, verdict.elf.format) == ("unknown", 0, "archive")
    assert "sum of 4 objects: an upper bound" in said(verdict, "upper-bound")
    assert {(s.name, s.library, s.total) for s in verdict.attribution.objects} == {
        ("one.o", "lib.a", 13),
        (LONG, "lib.a", 15),
        ("sp ace.o", "lib.a", 5),
        ("ünï.o", "lib.a", 4),
    }
    assert {s.name: s.object for s in verdict.symbols}["two"] == LONG


def test_archive_with_a_board_has_no_verdict(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "lib.a", {"one.o": an_object().build()})
    verdict = judge(path, board())
    assert (verdict.verdict, verdict.exit_code) == ("unknown", 2)
    assert "upper bound" in verdict.map.rule


def test_comdat_groups_are_counted_once(tmp_path: Path) -> None:
    content = {f"{n}.o": with_comdat(n).build() for n in ("a", "b", "c")}
    verdict = judge(write_archive(tmp_path / "lib.a", content))
    assert verdict.map.totals["text"] == 3 * 8 + 16
    assert [s.name for s in verdict.symbols].count("shared") == 1
    assert "1 COMDAT groups are in several objects" in said(verdict, "comdat")
    assert "32 B left out" in said(verdict, "comdat")


def test_comdat_groups_that_are_not_comdat_are_all_counted(tmp_path: Path) -> None:
    content = {}
    for name in ("a", "b"):
        elf = an_object(8, 4, name)
        elf.comdat(name, [elf.section(".text.own", 0, CODE * 8, flags=AX)], flags=0)
        content[f"{name}.o"] = elf.build()
    verdict = judge(write_archive(tmp_path / "lib.a", content))
    assert verdict.map.totals["text"] == 2 * (8 + 16)
    assert "comdat" not in codes(verdict)


def test_comdat_linkonce_sections_are_counted_once(tmp_path: Path) -> None:
    content = {}
    for name in ("a", "b"):
        elf = an_object(8, 4, name)
        elf.section(".gnu.linkonce.t.shared", 0, CODE * 4, flags=AX)
        content[f"{name}.o"] = elf.build()
    assert judge(write_archive(tmp_path / "lib.a", content)).map.totals["text"] == 24


def test_several_objects_and_archives_add_up(tmp_path: Path) -> None:
    single = an_object(8, 4, "main").write(tmp_path / "main.o")
    library = write_archive(tmp_path / "lib.a", {"x.o": an_object(16, 2, "x").build()})
    verdict = judge([single, library])
    assert verdict.map.totals == {"text": 24, "rodata": 0, "data": 6, "bss": 0}
    assert verdict.elf.format == "objects"
    assert {(s.name, s.library) for s in verdict.attribution.objects} == {
        ("main.o", ""),
        ("x.o", "lib.a"),
    }
    libraries = {s.name: s.bytes for s in verdict.attribution.libraries}
    assert libraries == {"lib.a": {"text": 16, "data": 2}, "(objects)": {"text": 8, "data": 4}}


def test_what_symbols_do_not_own_belongs_to_the_member(tmp_path: Path) -> None:
    elf = an_object(8, 4, "f")
    elf.section(".rodata.str", 0, b"text\0", flags=A)
    (share,) = judge(elf.write(tmp_path / "f.o")).attribution.objects
    assert share.bytes == {"text": 8, "data": 4, "rodata": 5}


def test_members_without_machine_code(tmp_path: Path) -> None:
    slim = ElfWriter(kind=ew.REL)
    slim.section(".gnu.lto_f", 0, b"\x01" * 40, flags=0)
    slim.symbol("__gnu_lto_slim", 1, 1, OBJECT, section=ew.COMMON)
    content = {
        "code.o": an_object().build(),
        "slim.o": slim.build(),
        "bitcode.o": b"BC\xc0\xde" + bytes(40),
        "readme.txt": b"hello",
    }
    verdict = judge(write_archive(tmp_path / "lib.a", content))
    assert verdict.map.totals["text"] == 8
    assert "2 objects hold no machine code" in said(verdict, "lto-objects")
    assert "lib.a(slim.o), lib.a(bitcode.o)" in said(verdict, "lto-objects")
    assert "readme.txt" in said(verdict, "not-elf")


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ({}, "holds no ELF object"),
        ({"a.txt": b"hello"}, "holds no ELF object"),
        ({"a.o": b"\x7fELF" + bytes(8)}, r"lib\.a\(a\.o\)"),
    ],
)
def test_archives_without_objects(tmp_path: Path, members: dict[str, bytes], says: str) -> None:
    with pytest.raises(SizeError, match=says):
        judge(write_archive(tmp_path / "lib.a", members))


def test_objects_that_do_not_go_together(tmp_path: Path) -> None:
    arm = an_object().write(tmp_path / "arm.o")
    riscv = an_object(machine=ew.RISCV).write(tmp_path / "riscv.o")
    linked = firmware().write(tmp_path / "linked.elf")
    text = tmp_path / "a.hex"
    text.write_text(":0400000001020304F2\n:00000001FF\n")
    with pytest.raises(SizeError, match=r"riscv\.o: is for RISCV, 32 bits"):
        judge([arm, riscv])
    with pytest.raises(SizeError, match=r"linked\.elf: is executable"):
        judge([arm, linked])
    with pytest.raises(SizeError, match=r"arm\.o \(elf\), a\.hex \(intel-hex\) do not add up"):
        judge([arm, text])
    with pytest.raises(SizeError, match="no file"):
        judge([])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d[:-3], "ends at byte"),
        (lambda d: d[:40], "does not end with 60 0a"),
        (lambda d: d.replace(b"`\n", b"``", 1), "does not end with 60 0a"),
        (lambda d: d[:56] + b"x" + d[57:], "not a number"),
        (lambda d: d.replace(b"/0  ", b"/9x ", 1), "where a number belongs"),
        (lambda d: d.replace(b"/0  ", b"/999", 1), "names entry 999"),
    ],
)
def test_damaged_archives(tmp_path: Path, change: Any, says: str) -> None:
    path = write_archive(tmp_path / "lib.a", {LONG: an_object().build()})
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(SizeError, match=says):
        judge(path)


def test_thin_archive_whose_member_is_gone_or_changed(tmp_path: Path) -> None:
    (tmp_path / "one.o").write_bytes(an_object().build())
    path = write_archive(tmp_path / "lib.a", {"one.o": an_object().build()}, "thin")
    judge(path)
    (tmp_path / "one.o").write_bytes(an_object().build() + b"more")
    with pytest.raises(SizeError, match="it has others"):
        judge(path)
    (tmp_path / "one.o").unlink()
    with pytest.raises(SizeError, match=r"one\.o is not a regular file"):
        judge(path)


SOURCES = {
    "first_object_with_a_long_name.c": "int first(int x) { return x * 3 + 1; }\n"
    'const char *text(void) { return "some text"; }\n',
    "b.c": "int second(int x) { return x * 5 - 2; }\nint kept[10] = {1};\nint zero[20];\n",
}
TOOLS = {
    "arm": ("arm-none-eabi-", ["-mcpu=cortex-m33", "-mthumb"]),
    "riscv": ("riscv64-unknown-elf-", ["-march=rv64gc", "-mabi=lp64d"]),
    "host": ("", []),
}


@pytest.mark.parametrize("kind", ["rcs", "rcsT"])
@pytest.mark.parametrize("target", TOOLS)
def test_archives_of_real_tools(tmp_path: Path, target: str, kind: str) -> None:
    """The totals are those of GNU size over all members."""
    prefix, flags = TOOLS[target]
    need(f"{prefix}gcc", f"{prefix}ar", f"{prefix}size")
    for name, text in SOURCES.items():
        (tmp_path / name).write_text(text)
        subprocess.run([f"{prefix}gcc", *flags, "-Os", "-c", name], cwd=tmp_path, check=True)
    objects = [name.replace(".c", ".o") for name in SOURCES]
    subprocess.run([f"{prefix}ar", kind, "lib.a", *objects], cwd=tmp_path, check=True)
    sizes = subprocess.run(
        [f"{prefix}size", *objects], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    rows = [[int(word) for word in line.split()[:3]] for line in sizes.stdout.splitlines()[1:]]
    text, data, bss = (sum(column) for column in zip(*rows, strict=True))
    verdict = judge(tmp_path / "lib.a")
    totals = verdict.map.totals
    assert (totals["text"] + totals["rodata"], totals["data"], totals["bss"]) == (text, data, bss)
    assert {s.name: s.object for s in verdict.symbols}["first"] == objects[0]


def test_thin_archive_of_an_archive(tmp_path: Path) -> None:
    need("ar", "gcc")
    (tmp_path / "b.c").write_text(SOURCES["b.c"])
    subprocess.run(["gcc", "-c", "b.c"], cwd=tmp_path, check=True)
    shutil.copy(tmp_path / "b.o", tmp_path / "c.o")
    subprocess.run(["ar", "rcs", "inner.a", "b.o"], cwd=tmp_path, check=True)
    subprocess.run(["ar", "rcsT", "outer.a", "inner.a", "c.o"], cwd=tmp_path, check=True)
    members = list(read_members(tmp_path / "outer.a"))
    assert [m.data for m in members] == [(tmp_path / "b.o").read_bytes()] * 2


def test_comdat_of_a_real_compiler(tmp_path: Path) -> None:
    need("g++", "ar")
    (tmp_path / "h.h").write_text("inline int shared(int x) { return x * x + 17; }\n")
    for name in ("a", "b"):
        source = f'#include "h.h"\nint {name}(int x) {{ return shared(x) + 1; }}\n'
        (tmp_path / f"{name}.cpp").write_text(source)
        subprocess.run(["g++", "-O0", "-c", f"{name}.cpp"], cwd=tmp_path, check=True)
    subprocess.run(["ar", "rcs", "lib.a", "a.o", "b.o"], cwd=tmp_path, check=True)
    verdict = judge(tmp_path / "lib.a")
    one = judge(tmp_path / "a.o")
    assert [s.name for s in verdict.symbols].count("_Z6sharedi") == 1
    shared = next(s.size for s in one.symbols if s.name == "_Z6sharedi")
    assert verdict.map.totals["text"] == 2 * one.map.totals["text"] - shared
