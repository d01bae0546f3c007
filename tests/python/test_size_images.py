# SPDX-License-Identifier: Apache-2.0
"""`colibri size` on Intel HEX, S-records and raw binaries: areas placed by their addresses."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from colibri.cli import main
from colibri.errors import SizeError
from colibri.fit import judge
from colibri.fit.hex_files import MAX_AREAS, read_intel_hex, read_srec
from colibri.fit.stack import StackOptions
from needs import need
from size_support import FLASH, RAM, board, codes, firmware, region, said, usage, used

END = ":00000001FF"
Bytes = dict[int, bytes]


def hex_record(kind: int, offset: int, data: bytes) -> str:
    raw = bytes([len(data)]) + offset.to_bytes(2, "big") + bytes([kind]) + data
    return ":" + (raw + bytes([-sum(raw) & 0xFF])).hex().upper()


def s_record(kind: int, address: int, data: bytes = b"") -> str:
    width = {0: 2, 1: 2, 2: 3, 3: 4, 5: 2, 6: 3, 7: 4, 8: 3, 9: 2}[kind]
    raw = bytes([width + len(data) + 1]) + address.to_bytes(width, "big") + data
    return f"S{kind}" + (raw + bytes([~sum(raw) & 0xFF])).hex().upper()


def intel_hex(areas: Bytes) -> str:
    """Areas in records of 16 bytes under linear addresses."""
    lines = []
    for start, data in areas.items():
        for at in range(start, start + len(data), 16):
            lines.append(hex_record(4, 0, (at >> 16).to_bytes(2, "big")))
            lines.append(hex_record(0, at & 0xFFFF, data[at - start :][:16]))
    return "\n".join([*lines, END, ""])


def srec(areas: Bytes, kind: int = 3) -> str:
    lines = [s_record(0, 0, b"name")]
    lines += [
        s_record(kind, at, data[at - start :][:16])
        for start, data in areas.items()
        for at in range(start, start + len(data), 16)
    ]
    return "\r\n".join([*lines, s_record(10 - kind, 0), ""])


def written(folder: Path, text: str, name: str = "a.hex") -> Path:
    path = folder / name
    path.write_text(text, newline="")
    return path


TWO: Bytes = {FLASH: b"\x01" * 0x100, FLASH + 0xF000: b"\x02" * 0x80}


@pytest.mark.parametrize("form", [intel_hex, srec])
def test_openevse_1241_simavr_504_each_area_in_its_own_region(tmp_path: Path, form: Any) -> None:
    """Several areas with non-zero addresses, a gap of 60 KiB, data memory elsewhere."""
    on = board(region("EEPROM", 0x8080000, 0x800, "nor", "r"))
    path = written(tmp_path, form({**TWO, 0x8080000: b"\x03" * 0x21}))
    verdict = judge(path, on)
    assert used(verdict) == {"FLASH": 0x180, "SRAM": 0, "EEPROM": 0x21}
    flash = usage(verdict, "FLASH")
    assert (flash.load_bytes, flash.load_span, flash.padding) == (0x180, 0xF080, 0xEF00)
    assert (verdict.verdict, verdict.exit_code) == ("fits", 0)
    span = 0x8080021 - FLASH
    assert f"hold 417 B; written as one flat file they span {span:,} B" in said(verdict, "gaps")
    assert verdict.elf.detail == "areas"
    assert codes(verdict) == ["gaps", "detail"]


def test_simavr_504_zephyr_37658_an_area_outside_every_region(tmp_path: Path) -> None:
    path = written(tmp_path, intel_hex({FLASH: bytes(16), 0x6000_0000: bytes(32)}))
    verdict = judge(path, board())
    assert [(r.address, r.bytes) for r in verdict.map.outside] == [(0x6000_0000, 32)]
    assert verdict.exit_code == 1


def test_micropython_153_an_image_past_the_end_of_flash(tmp_path: Path) -> None:
    verdict = judge(written(tmp_path, srec({FLASH: bytes(0x10010)})), board())
    assert usage(verdict, "FLASH").overflow == 0x10
    assert verdict.exit_code == 1


def test_without_a_board(tmp_path: Path) -> None:
    verdict = judge(written(tmp_path, intel_hex(TWO)))
    assert used(verdict) == {"0x08000000": 0x100, "0x0800f000": 0x80}
    assert (verdict.verdict, verdict.exit_code) == ("unknown", 0)


HEX: dict[str, tuple[list[str], Bytes]] = {
    "one record": ([hex_record(0, 0x100, b"abc"), END], {0x100: b"abc"}),
    "empty record": ([hex_record(0, 0, b""), hex_record(0, 4, b"x"), END], {4: b"x"}),
    "linear base": (
        [hex_record(4, 0, b"\x08\x00"), hex_record(0, 0xFFFF, b"ab"), END],
        {0x800FFFF: b"ab"},
    ),
    "segment base": (
        [hex_record(2, 0, b"\x10\x00"), hex_record(0, 4, b"ab"), END],
        {0x10004: b"ab"},
    ),
    "wrap in a segment": (
        [hex_record(2, 0, b"\x10\x00"), hex_record(0, 0xFFFF, b"ab"), END],
        {0x10000: b"b", 0x1FFFF: b"a"},
    ),
    "start addresses": (
        [
            hex_record(3, 0, b"\0\0\0\1"),
            hex_record(0, 0, b"a"),
            hex_record(5, 0, b"\0\0\0\1"),
            END,
        ],
        {0: b"a"},
    ),
    "any order": (
        [hex_record(0, 8, b"cd"), hex_record(0, 0, b"ab"), hex_record(0, 2, b"xx"), END],
        {0: b"abxx", 8: b"cd"},
    ),
    "blank lines, lower case": (["", hex_record(0, 0, b"\xab").lower(), "", END], {0: b"\xab"}),
    "last byte": (
        [hex_record(4, 0, b"\xff\xff"), hex_record(0, 0xFFFF, b"z"), END],
        {0xFFFFFFFF: b"z"},
    ),
}


@pytest.mark.parametrize("case", HEX)
def test_intel_hex_records(tmp_path: Path, case: str) -> None:
    lines, expected = HEX[case]
    areas = read_intel_hex(written(tmp_path, "\r\n".join(lines)))
    assert {a.start: bytes(a.data) for a in areas} == expected


SREC: dict[str, tuple[list[str], Bytes]] = {
    "S19": ([s_record(0, 0, b"x"), s_record(1, 0x1234, b"ab"), s_record(9, 0)], {0x1234: b"ab"}),
    "S28": ([s_record(2, 0x123456, b"ab"), s_record(8, 0)], {0x123456: b"ab"}),
    "S37": ([s_record(3, 0x8123456, b"ab"), s_record(7, 0)], {0x8123456: b"ab"}),
    "counted": (
        [s_record(1, 0, b"a"), s_record(1, 1, b"b"), s_record(5, 2), s_record(9, 0)],
        {0: b"ab"},
    ),
    "counted wide": ([s_record(3, 0, b"a"), s_record(6, 1), s_record(7, 0)], {0: b"a"}),
    "mixed widths": (
        [s_record(1, 0, b"a"), s_record(3, 0x8000000, b"b"), s_record(7, 0)],
        {0: b"a", 0x8000000: b"b"},
    ),
}


@pytest.mark.parametrize("case", SREC)
def test_s_records(tmp_path: Path, case: str) -> None:
    lines, expected = SREC[case]
    areas = read_srec(written(tmp_path, "\n".join(lines)))
    assert {a.start: bytes(a.data) for a in areas} == expected


A_RECORD = hex_record(0, 0, b"abcd")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"{A_RECORD}\n", r"line 2, column 1: has no end record"),
        (f"{A_RECORD}\n{END}\n{A_RECORD}\n", r"line 3, column 1: comes after the end record"),
        (f"{A_RECORD}\nx\n{END}", r"line 2, column 1: starts with 'x'"),
        (f"{A_RECORD[:12]}g{A_RECORD[13:]}\n", r"line 1, column 13: has 'g', not a hexadecimal"),
        (f"{A_RECORD[:-1]}\n", r"line 1, column 18: has an odd number"),
        (f"{A_RECORD[:-2]}\n", r"line 1, column 2: says 4 data bytes and has 3"),
        (f"{A_RECORD[:-2]}00\n", r"line 1, column 18: has checksum 00, its bytes give 72"),
        (":0000000AF6\n", r"line 1, column 8: has record type 0A; types are 00 to 05"),
        (":0100000400FB\n", r"line 1, column 2: has 1 data bytes in a record of type 04"),
        (f"{A_RECORD}\n{hex_record(0, 3, b'z')}\n{END}", r"line 2.*writes 1 B from 0x3 on again"),
        (
            "\n".join([hex_record(4, 0, b"\xff\xff"), hex_record(0, 0xFFFF, b"ab"), END]),
            r"line 2, column 4: writes up to 0x100000001",
        ),
        (f"{END}\n", "holds no data"),
        (f":{'00' * 600}\n", "line 1, column 1100: is too long"),
    ],
)
def test_bad_intel_hex_names_line_and_column(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(SizeError, match=says):
        judge(written(tmp_path, text))


S_ONE, S_END = s_record(1, 0, b"abcd"), s_record(9, 0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"{S_ONE}\n", r"line 2, column 1: has no end record"),
        (f"{S_ONE}\n{S_END}\n{S_ONE}\n", r"line 3, column 1: comes after the end record"),
        (f"{S_ONE}\nS4030000FC\n{S_END}", r"line 2, column 1: starts with 'S4'"),
        (f"{S_ONE}\n:00000001FF\n", r"line 2, column 1: starts with ':0'"),
        (f"{S_ONE[:5]}x{S_ONE[6:]}\n", r"line 1, column 6: has 'x'"),
        (f"{S_ONE[:-2]}00\n", r"line 1, column 17: has checksum 00, its bytes give 6E"),
        (f"{S_ONE[:-2]}\n", r"line 1, column 3: says 7 bytes and has 6"),
        (f"{S_ONE}\n{s_record(5, 2)}\n{S_END}", r"line 2, column 5: counts 2 data records"),
        (f"{S_ONE}\n{S_ONE}\n{S_END}", r"line 2.*writes 4 B from 0x0 on again"),
        (f"{S_END}\n", "holds no data"),
    ],
)
def test_bad_s_records_name_line_and_column(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(SizeError, match=says):
        judge(written(tmp_path, text, "a.s19"))


def test_areas_are_bounded(tmp_path: Path) -> None:
    text = "\n".join(hex_record(0, 2 * i, b"a") for i in range(MAX_AREAS + 1))
    with pytest.raises(SizeError, match=f"line {MAX_AREAS + 1}.*separate area number 4,097"):
        judge(written(tmp_path, f"{text}\n{END}"))


def test_raw_binary_needs_its_address(tmp_path: Path) -> None:
    path = tmp_path / "firmware.bin"
    path.write_bytes(b"\x00\x20\x00\x20" * 0x40)
    verdict = judge(path, board(), base=FLASH + 0x1000)
    assert used(verdict) == {"FLASH": 0x100, "SRAM": 0}
    assert verdict.map.usages[0].rows[0].address == FLASH + 0x1000
    with pytest.raises(SizeError, match="not an ELF file"):
        judge(path, board())
    path.write_bytes(b"")
    with pytest.raises(SizeError, match="is empty"):
        judge(path, base=0)
    path.write_bytes(b"abc")
    for base in (-1, (1 << 64) - 2):
        with pytest.raises(SizeError, match="--base"):
            judge(path, base=base)
    judge(path, base=(1 << 64) - 3)


def test_base_is_for_raw_binaries(tmp_path: Path) -> None:
    path = firmware().write(tmp_path / "f.elf")
    with pytest.raises(SizeError, match="its own addresses"):
        judge(path, base=FLASH)


def test_a_raw_binary_may_begin_like_anything(tmp_path: Path) -> None:
    path = tmp_path / "odd.bin"
    for first in (b":", b"S1", b"{", b"MZ"):
        path.write_bytes(first + bytes(14))
        assert used(judge(path, board(), base=RAM)) == {"FLASH": 0, "SRAM": len(first) + 14}


def test_an_image_has_no_code_to_bound_a_stack_of(tmp_path: Path) -> None:
    with pytest.raises(SizeError, match=r"--stack: is no ELF \(intel-hex\)"):
        judge(written(tmp_path, intel_hex(TWO)), None, None, StackOptions())


def test_images_that_are_flashed_together(tmp_path: Path) -> None:
    one = written(tmp_path, intel_hex({FLASH: bytes(0x100)}), "boot.hex")
    two = written(tmp_path, srec({FLASH + 0x1000: bytes(0x200)}), "app.s19")
    verdict = judge([one, two], board())
    assert used(verdict) == {"FLASH": 0x300, "SRAM": 0}
    over = written(tmp_path, intel_hex({FLASH + 0xF0: bytes(0x20)}), "app.hex")
    verdict = judge([one, over], board())
    assert "boot.hex area 0x08000000 and app.hex area 0x080000f0 overlap by 16 B" in said(
        verdict, "load-overlap"
    )
    assert verdict.exit_code == 1


def test_command(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "f.bin"
    path.write_bytes(bytes(64))
    on = ["--board", "pimoroni-pico-plus-2", "--json"]
    assert main(["size", str(path), "--base", "0x10000000", *on]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["format"], result["detail"], result["kind"]) == ("raw", "areas", "image")
    assert {r["name"]: r["used"] for r in result["regions"]}["FLASH"] == 64
    assert main(["size", str(path), "--base", "flash"]) == 2
    assert "0x08000000" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["ihex", "srec"])
@pytest.mark.parametrize("bits", [32, 64])
def test_images_of_objcopy(tmp_path: Path, form: str, bits: int) -> None:
    """The bytes are those of the flat binary that objcopy writes of the same ELF."""
    need("objcopy")
    elf = firmware(bits=bits, machine=62 if bits == 64 else 3).write(tmp_path / "f.elf")
    for kind, name in ((form, "image"), ("binary", "flat")):
        subprocess.run(["objcopy", "-O", kind, elf, tmp_path / name], check=True)
    read = read_intel_hex if form == "ihex" else read_srec
    (area,) = read(tmp_path / "image")
    assert area.start == FLASH
    assert bytes(area.data) == (tmp_path / "flat").read_bytes()
    image, whole = judge(tmp_path / "image", board()), judge(elf, board())
    assert used(image)["FLASH"] == used(whole)["FLASH"] == 0x500
