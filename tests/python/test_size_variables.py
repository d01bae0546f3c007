# SPDX-License-Identifier: Apache-2.0
"""Sources of global variables by DWARF: entries known by hand, real compilers, damaged ones."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from colibri.fit import Verdict, debug_info, judge
from elf_writer import ElfWriter
from needs import need
from size_support import RAM, board, codes, firmware, said

_END = bytes(2)
#: 1 unit, 2 variable, 3 namespace, 4 function that says where it ends, 5 one that does not,
#: 6 a declaration, 7 a variable whose location is a plain number, 8 a structure of fixed size
ABBREV = (
    b"".join(
        bytes([code, tag, children, *forms]) + _END
        for code, tag, children, forms in (
            (1, 0x11, 1, (0x03, 0x08, 0x1B, 0x08, 0x73, 0x17)),  # name, folder, addr_base
            (2, 0x34, 0, (0x03, 0x08, 0x02, 0x18)),  # name, location: expression
            (3, 0x39, 1, (0x03, 0x08)),
            (4, 0x2E, 1, (0x01, 0x13, 0x03, 0x08)),  # sibling: ref4
            (5, 0x2E, 1, (0x03, 0x08)),
            (6, 0x34, 0, (0x03, 0x08, 0x3C, 0x19)),
            (7, 0x34, 0, (0x02, 0x06)),
            (8, 0x13, 1, (0x0B, 0x0B)),
            (9, 0x34, 0, (0x02, 0x0A)),  # location: block1, before DWARF 4
        )
    )
    + b"\0"
)


class Unit:
    """Entries of one compilation unit, in the order of calls."""

    def __init__(self, elf: ElfWriter, name: str, version: int = 4) -> None:
        self.order = "<" if elf.little else ">"
        self.word = "I" if elf.bits == 32 else "Q"
        size = elf.bits // 8
        wide = struct.pack(f"{self.order}HBBI", version, 1, size, 0)
        narrow = struct.pack(f"{self.order}HIB", version, 0, size)
        self.head = wide if version >= 5 else narrow
        self.body = bytearray(b"\x01" + name.encode() + b"\0/src\0" + self.pack("I", 8))

    def pack(self, form: str, *values: int) -> bytes:
        return struct.pack(self.order + form, *values)

    def variable(self, address: int) -> Unit:
        return self.located(b"\x03" + self.pack(self.word, address))

    def located(self, expression: bytes) -> Unit:
        self.body += b"\x02v\0" + bytes([len(expression)]) + expression
        return self

    def raw(self, data: bytes) -> Unit:
        self.body += data
        return self

    def function(self, inner: bytes, sibling: int | None = None) -> Unit:
        """A function with entries in it; with where the next entry is, unless another is given."""
        at = 4 + len(self.head) + len(self.body)
        end = at + 1 + 4 + 2 + len(inner) + 1
        self.body += b"\x04" + self.pack("I", end if sibling is None else sibling) + b"f\0"
        self.body += inner + b"\0"
        return self

    def build(self) -> bytes:
        data = self.head + bytes(self.body) + b"\0"
        return self.pack("I", len(data)) + data


def with_units(
    elf: ElfWriter, *units: Unit, abbrev: bytes = ABBREV, addr: bytes = b""
) -> ElfWriter:
    elf.section(".debug_info", 0, b"".join(unit.build() for unit in units), flags=0)
    elf.section(".debug_abbrev", 0, ABBREV, flags=0)
    if addr:
        elf.section(".debug_addr", 0, addr, flags=0)
    return elf


def sources(folder: Path, elf: ElfWriter) -> dict[str, str]:
    return source_of(judge(elf.write(folder / "a.elf"), board()))


def source_of(verdict: Verdict) -> dict[str, str]:
    return {symbol.name: symbol.source for symbol in verdict.symbols}


@pytest.mark.parametrize("version", [2, 3, 4, 5])
@pytest.mark.parametrize(("bits", "little"), [(32, True), (64, True), (32, False), (64, False)])
def test_variables_of_two_units(tmp_path: Path, version: int, bits: int, little: bool) -> None:
    elf = firmware(bits=bits, little=little)
    one, two = Unit(elf, "a.c", version), Unit(elf, "b.c", version)
    if version < 4:
        place = b"\x03" + one.pack(one.word, RAM)
        one.raw(bytes([9, len(place)]) + place)
    else:
        one.variable(RAM)
    two.variable(RAM + 0x100)
    found = sources(tmp_path, with_units(elf, one, two))
    assert found == {"main": "", "table": "/src/a.c", "buffer": "/src/b.c"}


def test_what_lies_between(tmp_path: Path) -> None:
    """Functions, types and namespaces before it; variables inside of functions are not global."""
    elf = firmware()
    local = b"\x02v\0\x05\x03" + struct.pack("<I", RAM + 0x100)
    unit = Unit(elf, "a.c")
    unit.function(local).function(b"\x08\x10\x00" + local)
    unit.raw(b"\x05g\0" + local + b"\x08\x04" + b"\0" + b"\0")
    unit.raw(b"\x06decl\0" + b"\x07" + bytes(4))
    unit.raw(b"\x03ns\0\x03in\0").variable(RAM).raw(b"\0\0")
    found = sources(tmp_path, with_units(elf, unit))
    assert (found["table"], found["buffer"]) == ("/src/a.c", "")


def test_addresses_by_number(tmp_path: Path) -> None:
    elf = firmware()
    unit = Unit(elf, "a.c", 5).located(b"\xa1\x01").located(b"\xa1\x09").located(b"\xfb\x00")
    table = struct.pack("<IHBBII", 12, 5, 4, 0, RAM + 0x100, RAM)
    found = sources(tmp_path, with_units(elf, unit, addr=table))
    assert (found["table"], found["buffer"]) == ("/src/a.c", "/src/a.c")


@pytest.mark.parametrize(
    "expression", [b"", b"\x03", b"\x03\0\0", b"\x91\x00", b"\x9f", b"\xa1", b"\x03\0\0\0\x20\x9f"]
)
def test_other_locations_are_none(tmp_path: Path, expression: bytes) -> None:
    elf = firmware()
    unit = Unit(elf, "a.c").located(expression).variable(RAM + 0x100)
    verdict = judge(with_units(elf, unit).write(tmp_path / "a.elf"), board())
    assert source_of(verdict) == {"main": "", "table": "", "buffer": "/src/a.c"}
    assert "debug-info" not in codes(verdict)


@pytest.mark.parametrize(
    "damage",
    [
        lambda u: u.function(b"", sibling=0),
        lambda u: u.function(b"", sibling=0x7FFFFFFF),
        lambda u: u.raw(b"\x02v\0\xff\xff\xff\x7f\x03"),
        lambda u: u.raw(b"\x30"),
        lambda u: u.raw(b"\xff" * 400),
        lambda u: u.raw(b"\x02" + b"v" * 50),
    ],
    ids=["sibling before", "sibling behind", "block", "no such kind", "long number", "no end"],
)
def test_a_damaged_unit_is_a_warning_and_others_are_read(tmp_path: Path, damage: Any) -> None:
    elf = firmware()
    bad, good = Unit(elf, "bad.c"), Unit(elf, "b.c").variable(RAM + 0x100)
    damage(bad)
    verdict = judge(with_units(elf, bad, good).write(tmp_path / "a.elf"), board())
    assert source_of(verdict)["buffer"] == "/src/b.c"
    assert "1 units cannot be parsed" in said(verdict, "debug-info")
    assert verdict.verdict == "fits"


def test_entries_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elf = firmware()
    unit = Unit(elf, "a.c").variable(RAM)
    for _ in range(100):
        unit.function(b"")
    unit.variable(RAM + 0x100)
    path = with_units(elf, unit).write(tmp_path / "a.elf")
    assert source_of(judge(path, board()))["buffer"] == "/src/a.c"
    monkeypatch.setattr(debug_info, "MAX_STEPS", 50)
    verdict = judge(path, board())
    assert source_of(verdict) == {"main": "", "table": "/src/a.c", "buffer": ""}
    assert "sources of variables are told by the first part" in said(verdict, "debug-info")


def test_mutated_entries_never_crash(tmp_path: Path) -> None:
    elf = firmware()
    unit = Unit(elf, "a.c").variable(RAM).function(b"\x08\x10\x00").raw(b"\x03n\0")
    unit.variable(RAM + 0x100).raw(b"\0")
    whole, chance = unit.build(), random.Random(7)
    for _ in range(250):
        info, abbrev = bytearray(whole), bytearray(ABBREV)
        for data in (info, abbrev):
            for _ in range(chance.randrange(3)):
                data[chance.randrange(len(data))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, 2, 0x16))
        again = firmware()
        again.section(".debug_info", 0, bytes(info[: chance.choice((None, 9, 30))]), flags=0)
        again.section(".debug_abbrev", 0, bytes(abbrev), flags=0)
        assert judge(again.write(tmp_path / "a.elf"), board()).verdict == "fits"


# -- real compilers -------------------------------------------------------------------------------

HEADER = "static int shared_table[64] = {1};\n"
MAIN = """\
#include "inner/table.h"
namespace board { int counter = 3; namespace { int hidden[4] = {1}; }
struct S { static int shared; }; int S::shared = 7; }
int zero[100]; extern int other[8];
extern "C" int *_start(int i) { static int inner = 9;
  return i ? &board::hidden[i] : &shared_table[inner++ + zero[i] + board::counter + other[i]]; }
"""
OTHER = "int other[8] = {5};\n"


def compiled(folder: Path, *command: str) -> Verdict:
    (folder / "inner").mkdir()
    (folder / "inner/table.h").write_text(HEADER)
    (folder / "main.cpp").write_text(MAIN)
    (folder / "other.cpp").write_text(OTHER)
    words = [*command, "-nostdlib", "-O1", "main.cpp", "other.cpp", "-o", "a.elf"]
    subprocess.run(words, cwd=folder, check=True, capture_output=True)
    return judge(folder / "a.elf")


EXPECTED = {
    "_ZN5board7counterE": "main.cpp", "_ZN5board1S6sharedE": "main.cpp", "zero": "main.cpp",
    "other": "other.cpp", "_ZL12shared_table": "inner/table.h",
}  # fmt: skip


@pytest.mark.parametrize("version", [2, 3, 4, 5])
def test_gcc(tmp_path: Path, version: int) -> None:
    need("arm-none-eabi-g++")
    flags = ("-mcpu=cortex-m33", "-mthumb", f"-gdwarf-{version}")
    found = source_of(compiled(tmp_path, "arm-none-eabi-g++", *flags))
    assert {name: found[name] for name in EXPECTED} == {
        name: str(tmp_path / file) for name, file in EXPECTED.items()
    }


def test_gcc_after_link_time_optimisation(tmp_path: Path) -> None:
    need("arm-none-eabi-g++")
    flags = ("-mcpu=cortex-m33", "-mthumb", "-g", "-flto")
    found = source_of(compiled(tmp_path, "arm-none-eabi-g++", *flags))
    for name in set(EXPECTED) & set(found):
        assert found[name].endswith((EXPECTED[name], "main.cpp")), name
    assert any(found[name] for name in EXPECTED if name in found)


@pytest.mark.parametrize("version", [4, 5])
def test_clang(tmp_path: Path, version: int) -> None:
    need("module:ziglang")
    target = ("-target", "thumb-freestanding-eabi", "-mcpu=cortex_m33", f"-gdwarf-{version}")
    found = source_of(compiled(tmp_path, sys.executable, "-m", "ziglang", "c++", *target))
    known = {name: file for name, file in EXPECTED.items() if name in found}
    assert len(known) >= 3
    assert {name: found[name] for name in known} == {
        name: str(tmp_path / file) for name, file in known.items()
    }


def test_split_debug_information_tells_nothing_and_fails_nothing(tmp_path: Path) -> None:
    need("arm-none-eabi-g++")
    flags = ("-mcpu=cortex-m33", "-mthumb", "-g", "-gsplit-dwarf")
    verdict = compiled(tmp_path, "arm-none-eabi-g++", *flags)
    assert source_of(verdict)["zero"] == ""
    assert verdict.exit_code == 0
