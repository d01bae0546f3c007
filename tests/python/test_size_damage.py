# SPDX-License-Identifier: Apache-2.0
"""Truncated and mutated inputs of every format: refused or judged, never a crash, never a hang.

The quick checks try a few hundred damaged files of each format with a fixed seed, the long one
tens of thousands.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable
from functools import partial
from io import BytesIO
from pathlib import Path

import pytest
from elftools.common.exceptions import ELFError
from elftools.dwarf.structs import DWARFStructs

from archive import write_archive
from colibri.boards import load_board
from colibri.errors import ColibriError, SizeError
from colibri.fit import judge
from colibri.fit.debug_info import check_line_header
from colibri.fit.format import as_json
from colibri.fit.stack import StackOptions
from damage import Try, attacked, damaged
from dwarf_writer import add_dwarf
from elf_writer import ElfWriter
from size_support import FLASH, board, firmware
from test_size_images import intel_hex, srec
from test_size_maps import GNU, LLD, firmware_of_map
from test_size_objects import LONG, an_object, with_comdat
from test_stack import CI, NAMED, SU

Make = Callable[[Path], bytes]
BOARD = Path(__file__).parents[2] / "board_configs/boards/pimoroni-pico-plus-2.toml"


def dwarf_elf(version: int) -> bytes:
    elf = firmware(bits=64 if version % 2 else 32, little=version > 2)
    add_dwarf(elf, [("a.c", "/src", FLASH, 0x200), ("b.c", "/src", FLASH + 0x200, 0x100)], version)
    return elf.build()


def an_archive(folder: Path, style: str) -> bytes:
    content = {"a.o": with_comdat("a").build(), LONG: an_object(name="b").build()}
    return write_archive(folder / "seed.a", content, style).read_bytes()


CALLS = """
[stack]
fpu = false
limit = "1 KiB"
[stack.groups]
drivers = ["g", "uart_*"]
[stack.calls]
"f*" = ["group:drivers", "table:vectors"]
[stack.frames]
g = 64
[stack.recursion]
g = 4
[stack.entries]
f = { priority = 3, limit = 512 }
"""
STACK_FILES = {"frames": "a.su", "call graph": "a.ci", "declared calls": "a.toml"}


def machine_code(name: str) -> Make:
    return lambda _: NAMED[name].elf().build()


def linked(bits: int, little: bool) -> Make:
    return lambda _: firmware(bits=bits, little=little).build()


FORMATS: dict[str, Make] = {
    "elf 32 little": linked(32, True),
    "elf 64 little": linked(64, True),
    "elf 32 big": linked(32, False),
    "elf 64 big": linked(64, False),
    "code arm": machine_code("switch"),
    "code aarch64": machine_code("a64_switch"),
    "code riscv": machine_code("rv64_save"),
    "frames": lambda _: SU.encode(),
    "call graph": lambda _: CI.encode(),
    "declared calls": lambda _: CALLS.encode(),
    "board": lambda _: BOARD.read_bytes(),
    "object with a group": lambda _: with_comdat("a").build(),
    "debug information 2": lambda _: dwarf_elf(2),
    "debug information 3": lambda _: dwarf_elf(3),
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


def is_judged(path: Path, data: bytes, stack: StackOptions | None = None) -> bool:
    """True when the bytes get a result, False when they are refused; anything else fails."""
    path.write_bytes(data)
    try:
        json.dumps(as_json(judge(path, board(), stack=stack, groups={"all": ["*a*"]})))
        return True
    except SizeError:
        return False


def is_bounded(folder: Path, table: str, data: bytes) -> bool:
    """The same for files that the stack analysis reads beside an ELF."""
    (folder / table).write_bytes(data)
    given = (folder / table,)
    options = StackOptions(("f",), (), given)
    if not table.endswith(".toml"):
        options = StackOptions(("f",), given)
    return is_judged(folder / "f.elf", NAMED["push_sub"].elf().build(), options)


def is_board(path: Path, data: bytes) -> bool:
    path.write_bytes(data)
    try:
        loaded = load_board(str(path))
        json.dumps(as_json(judge(firmware().write(path.with_suffix(".elf")), loaded)))
        return True
    except ColibriError:
        return False


def attack(folder: Path, name: str, seed: int, times: int) -> None:
    whole = FORMATS[name](folder)
    (folder / "a.o").write_bytes(with_comdat("a").build())
    (folder / LONG).write_bytes(an_object(name="b").build())
    if name in STACK_FILES:
        accepts: Try = partial(is_bounded, folder, STACK_FILES[name])
    elif name.startswith("board"):
        accepts = partial(is_board, folder / "board.toml")
    else:
        stack = StackOptions(("f",)) if name.startswith("code") else None
        accepts = partial(is_judged, folder / "mutant", stack=stack)
    mutants = list(damaged(whole, seed, times))
    assert attacked(accepts, [whole], folder / "kept") == 1
    accepted = attacked(accepts, mutants, folder / "kept")
    checksummed = name in ("intel hex", "srec")  # what is changed there is found
    assert (-1 if checksummed else 0) < accepted < times


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files(tmp_path: Path, name: str) -> None:
    attack(tmp_path, name, 20, 80)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", FORMATS)
def test_many_damaged_files(tmp_path: Path, name: str, seed: int) -> None:
    attack(tmp_path, name, 1000 + seed, 2500)


def test_an_attack_that_hangs_or_fails_is_told(tmp_path: Path) -> None:
    def hangs(_: bytes) -> bool:
        time.sleep(60)
        return True

    def takes(data: bytes) -> bool:
        return bool(bytearray(3 << 30)) and bool(data)

    for accepts, says in ((hangs, "no answer in time"), (takes, "MemoryError")):
        with pytest.raises(pytest.fail.Exception, match=says):
            attacked(accepts, [b"x"], tmp_path / "kept", deadline=2)
        assert (tmp_path / "kept").read_bytes() == b"x"


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


def test_a_section_is_read_a_few_times_over_and_no_more(tmp_path: Path) -> None:
    """60 units with one name of 200,000 letters: all is in order, but the fourteenth is enough."""
    elf = firmware()
    head = struct.pack("<HIB", 4, 0, 4) + b"\x01" + bytes(4)
    elf.section(".debug_info", 0, (struct.pack("<I", len(head)) + head) * 60, flags=0)
    elf.section(".debug_abbrev", 0, bytes([1, 0x11, 0, 3, 0x0E, 0, 0, 0]), flags=0)
    elf.section(".debug_str", 0, b"x" * 200_000 + b"\0", flags=0)
    found = judge(elf.write(tmp_path / "f.elf"), board()).findings
    (said,) = (f.what for f in found if f.code == "debug-info")
    assert "47 units cannot be parsed" in said


def test_declarations_are_passed_over_a_few_times_and_no_more(tmp_path: Path) -> None:
    """Units that each begin somewhere else in one long table, and use its last declaration."""
    elf, one = firmware(), 7
    codes = ((0x80 | i & 0x7F, 0x80 | i >> 7, 1) for i in range(20_000))
    table = b"".join(bytes([*code, 0x11, 0, 0, 0]) for code in codes)
    info = b""
    for i in range(300):
        head = struct.pack("<HIB", 4, one * i, 4) + b"\x01"
        info += struct.pack("<I", len(head)) + head
    elf.section(".debug_info", 0, info, flags=0)
    elf.section(".debug_abbrev", 0, table + bytes([1, 0x11, 0, 0, 0, 0]), flags=0)
    found = judge(elf.write(tmp_path / "f.elf"), board()).findings
    (said,) = (f.what for f in found if f.code == "debug-info")
    assert "293 units cannot be parsed" in said


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
