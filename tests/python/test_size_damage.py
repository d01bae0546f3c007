# SPDX-License-Identifier: Apache-2.0
"""Truncated and mutated inputs of every format: refused or judged, never a crash, never a hang.

The quick checks try a few hundred damaged files of each format with a fixed seed, the long one
tens of thousands.
"""

from __future__ import annotations

import json
import random
import struct
import time
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import pytest
from elftools.common.exceptions import ELFError
from elftools.dwarf.structs import DWARFStructs

from archive import write_archive
from colibri.errors import SizeError
from colibri.fit import judge
from colibri.fit.debug_info import check_line_header
from colibri.fit.format import as_json
from dwarf_writer import add_dwarf
from elf_writer import ElfWriter
from size_support import FLASH, board, firmware
from test_size_images import intel_hex, srec
from test_size_maps import GNU, LLD, firmware_of_map
from test_size_objects import LONG, an_object, with_comdat

Make = Callable[[Path], bytes]


def dwarf_elf(version: int) -> bytes:
    elf = firmware(bits=64 if version == 5 else 32)
    add_dwarf(elf, [("a.c", "/src", FLASH, 0x200), ("b.c", "/src", FLASH + 0x200, 0x100)], version)
    return elf.build()


def an_archive(folder: Path, style: str) -> bytes:
    content = {"a.o": with_comdat("a").build(), LONG: an_object(name="b").build()}
    return write_archive(folder / "seed.a", content, style).read_bytes()


FORMATS: dict[str, Make] = {
    "object with a group": lambda _: with_comdat("a").build(),
    "debug information 4": lambda _: dwarf_elf(4),
    "debug information 5": lambda _: dwarf_elf(5),
    "archive gnu": lambda folder: an_archive(folder, "gnu"),
    "archive bsd": lambda folder: an_archive(folder, "bsd"),
    "archive thin": lambda folder: an_archive(folder, "thin"),
    "intel hex": lambda _: intel_hex({FLASH: bytes(range(64)), FLASH + 0x100: b"x" * 20}).encode(),
    "srec": lambda _: srec({FLASH: bytes(range(64)), FLASH + 0x100: b"x" * 20}).encode(),
    "map gnu": lambda _: GNU.encode(),
    "map lld": lambda _: LLD.encode(),
}
VALUES = [0, 1, 0x0A, 0x20, 0x28, 0x2F, 0x30, 0x39, 0x3A, 0x7F, 0x80, 0xFE, 0xFF]


def damaged(whole: bytes, seed: int, times: int) -> Iterator[bytes]:
    """Cut short, changed bytes, a part left out, a part twice."""
    rng = random.Random(seed)
    for _ in range(times):
        kind, at = rng.randrange(4), rng.randrange(len(whole))
        length = rng.randrange(1, 40)
        if kind == 0:
            yield whole[:at]
        elif kind == 1:
            mutant = bytearray(whole)
            for _ in range(rng.randint(1, 6)):
                mutant[rng.randrange(len(whole))] = rng.choice([*VALUES, rng.randrange(256)])
            yield bytes(mutant)
        elif kind == 2:
            yield whole[:at] + whole[at + length :]
        else:
            yield whole[: at + length] + whole[at:]


def is_judged(path: Path, data: bytes) -> bool:
    """True when the bytes get a result, False when they are refused; anything else fails."""
    path.write_bytes(data)
    started = time.monotonic()
    try:
        json.dumps(as_json(judge(path, board(), groups={"all": ["*a*"]})))
        return True
    except SizeError:
        return False
    finally:
        assert time.monotonic() - started < 60


def attack(folder: Path, name: str, seed: int, times: int) -> None:
    whole = FORMATS[name](folder)
    (folder / "a.o").write_bytes(with_comdat("a").build())
    (folder / LONG).write_bytes(an_object(name="b").build())
    assert is_judged(folder / "whole", whole)
    results = [is_judged(folder / "mutant", data) for data in damaged(whole, seed, times)]
    checksummed = name in ("intel hex", "srec")  # what is changed there is found
    assert (0 if not checksummed else -1) < sum(results) < times


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files(tmp_path: Path, name: str) -> None:
    attack(tmp_path, name, 20, 150)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", FORMATS)
def test_many_damaged_files(tmp_path: Path, name: str, seed: int) -> None:
    attack(tmp_path, name, 1000 + seed, 2500)


@pytest.mark.parametrize("name", ["map gnu", "map lld"])
def test_a_damaged_map_beside_a_good_elf(tmp_path: Path, name: str) -> None:
    elf = firmware_of_map().write(tmp_path / "f.elf")
    results = []
    for data in damaged(FORMATS[name](tmp_path), 7, 150):
        (tmp_path / "f.map").write_bytes(data)
        try:
            json.dumps(as_json(judge(elf, board(), link_map=tmp_path / "f.map")))
            results.append(True)
        except SizeError:
            results.append(False)
    assert any(results) == (name == "map gnu")  # the other map is of another build


@pytest.mark.parametrize(
    "text",
    [
        GNU.replace("main.o", "m" * 100_000),
        GNU.replace(" .text.main ", " " + ".text" * 50_000 + " "),
        GNU.replace("0x08000000", "0x" + "8" * 5000),
        GNU + "\n".join(" .x 0x0 0x1 0x0 0x1 0x0 0x1 a" * 40 for _ in range(500)),
        GNU + "\n" + "\n".join([".aaaaaaaaaaaaaaaaaaaaaaa"] * 20_000),
        GNU + "\n".join("a" + " " * 8000 + "b" for _ in range(500)),
        LLD + "\n".join("0 " * 4000 for _ in range(200)),
        LLD + "\n".join("0 0 1 1         " + "x:(" * 2500 for _ in range(200)),
        GNU.replace("0x200 ", "0xffffffffffffffff "),
    ],
    ids=[
        "long path",
        "long name",
        "long number",
        "many numbers",
        "names alone",
        "blanks",
        "zeros",
        "marks",
        "huge",
    ],
)
def test_hostile_maps_end_in_time(tmp_path: Path, text: str) -> None:
    is_judged(tmp_path / "f.map", text.encode())


def test_thin_archive_that_names_one_file_many_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = an_object().build()
    (tmp_path / "a.o").write_bytes(data)
    path = write_archive(tmp_path / "lib.a", {"a.o": data}, "thin")
    whole = path.read_bytes()
    path.write_bytes(whole + 9 * whole[-60:])
    assert judge(path).map.totals["text"] == 80
    monkeypatch.setattr("colibri.fit.archive.MAX_THIN_BYTES", 9 * len(data))
    with pytest.raises(SizeError, match="brings the members to more than"):
        judge(path)


def hostile_units(form: int, body: bytes, strings: bytes) -> ElfWriter:
    """2,000 units whose one attribute makes each of them read as much as there is."""
    elf = firmware()
    head = struct.pack("<HIB", 4, 0, 4) + b"\x01" + body
    unit = struct.pack("<I", len(head)) + head
    elf.section(".debug_info", 0, unit * 2000 + b"\x01" * 200_000, flags=0)
    elf.section(".debug_abbrev", 0, bytes([1, 0x11, 0, 3, form, 0, 0, 0]), flags=0)
    elf.section(".debug_str", 0, strings, flags=0)
    return elf


@pytest.mark.parametrize(
    ("form", "body", "strings"),
    [
        (0x0E, b"\0\0\0\0", b"x" * 1_000_000),
        (0x08, b"x", b"x"),
        (0x04, b"\xff\xff\x02\0", b"x"),
    ],
    ids=["string without an end", "string in the unit", "block"],
)
def test_units_that_read_everything_again(
    tmp_path: Path, form: int, body: bytes, strings: bytes
) -> None:
    """The work is bounded by the sizes of the sections; the verdict is the same."""
    elf = hostile_units(form, body, strings)
    verdict = judge(elf.write(tmp_path / "f.elf"), board())
    assert verdict.verdict == "fits"
    assert "debug-info" in [f.code for f in verdict.findings]


def test_units_that_share_one_list_of_ranges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elf = firmware()
    head = struct.pack("<HIB", 4, 0, 4) + b"\x01a.c\0" + struct.pack("<I", 0)
    elf.section(".debug_info", 0, (struct.pack("<I", len(head)) + head) * 50, flags=0)
    elf.section(".debug_abbrev", 0, bytes([1, 0x11, 0, 3, 8, 0x55, 0x17, 0, 0, 0]), flags=0)
    ranges = b"".join(struct.pack("<2I", FLASH + i, FLASH + i + 1) for i in range(100))
    elf.section(".debug_ranges", 0, ranges + bytes(8), flags=0)
    path = elf.write(tmp_path / "f.elf")
    assert "debug-info" not in [f.code for f in judge(path, board()).findings]
    monkeypatch.setattr("colibri.fit.debug_info.MAX_RANGES", 1000)
    assert "1,000 ranges: cut there" in " ".join(f.what for f in judge(path, board()).findings)


def test_a_line_table_of_empty_entries(tmp_path: Path) -> None:
    """2^40 files of no bytes, after link-time optimisation."""
    elf = firmware()
    name = b"<artificial>\0"
    head = struct.pack("<HBBI", 5, 1, 4, 0) + b"\x01" + name + bytes(4)
    elf.section(".debug_info", 0, struct.pack("<I", len(head)) + head, flags=0)
    abbrev = bytes([1, 0x11, 0, 0x03, 0x08, 0x10, 0x17, 0, 0, 0])  # name, line table
    elf.section(".debug_abbrev", 0, abbrev, flags=0)
    many = b"\x80\x80\x80\x80\x80\x80\x01"
    table = struct.pack("<HBBI", 5, 4, 0, 40) + bytes([1, 1, 1, 0, 1, 1]) + b"\0\0" + b"\0" + many
    elf.section(".debug_line", 0, struct.pack("<I", len(table)) + table, flags=0)
    verdict = judge(elf.write(tmp_path / "f.elf"), board())
    assert "1 units cannot be parsed" in " ".join(f.what for f in verdict.findings)
    reader = DWARFStructs(little_endian=True, dwarf_format=32, address_size=4)
    line = BytesIO(struct.pack("<I", len(table)) + table)
    with pytest.raises(ELFError, match=r"has 4398046511104 files of 0 bytes"):
        check_line_header(line, 0, reader)


def test_a_file_of_another_kind_is_told(tmp_path: Path) -> None:
    for data in (b"", b"\0" * 100, b"S", b":", b"S1", b"!<arch>", b"!<thin>\n", b"\xef\xbb\xbf"):
        assert not is_judged(tmp_path / "f", data)
