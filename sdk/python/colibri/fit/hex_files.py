# SPDX-License-Identifier: Apache-2.0
"""Intel HEX and Motorola S-records: text to areas of bytes.

Read here, not by a library, because an error has to name the line and the column and the value
that would be right. Formats: Intel "Hexadecimal Object File Format Specification", revision A;
Motorola "M68000 Family Programmer's Reference", appendix C.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from colibri.errors import SizeError

#: More separate areas than any firmware has; a bound on the work that a hostile file can cause.
MAX_AREAS = 4096
_LINE = 1100  # characters: ':' + 2 * (255 + 5), "Sn" + 2 * 256, with room for blanks
_NOT_HEX = re.compile(rb"[^0-9A-Fa-f]")
_SREC_ADDRESS = {"0": 2, "1": 2, "2": 3, "3": 4, "5": 2, "6": 3, "7": 4, "8": 3, "9": 2}


@dataclass(slots=True)
class Area:
    """Adjacent bytes; ``line`` is where the first of them is written."""

    start: int
    data: bytearray
    line: int = 0

    @property
    def end(self) -> int:
        return self.start + len(self.data)


def read_intel_hex(path: Path) -> list[Area]:
    """Areas of an Intel HEX file, by address."""
    return _Areas(path).collect(_intel_hex(path))


def read_srec(path: Path) -> list[Area]:
    """Areas of a file of S-records (S19, S28, S37), by address."""
    return _Areas(path).collect(_srec(path))


def _bad(path: Path, line: int, column: int, what: str, hint: str) -> SizeError:
    return SizeError(what, file=path, field=f"line {line}, column {column}", hint=hint)


# -- lines ----------------------------------------------------------------------------------------


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Numbered lines that are not empty, without line ends and trailing blanks."""
    number = 0
    with path.open("rb") as stream:
        while line := stream.readline(_LINE):
            number += 1
            if len(line) == _LINE and not line.endswith(b"\n"):
                raise _bad(path, number, _LINE, "is too long for a record", "copy the file again")
            if line := line.rstrip():
                yield number, line


def _digits(path: Path, number: int, line: bytes, skip: int) -> bytes:
    """The bytes that a line writes in hexadecimal after ``skip`` characters."""
    wrong = _NOT_HEX.search(line, skip)
    if wrong is not None:
        what = f"has {wrong.group().decode('latin-1')!r}, not a hexadecimal digit"
        raise _bad(path, number, wrong.start() + 1, what, "copy the file again")
    if (len(line) - skip) % 2:
        what = "has an odd number of hexadecimal digits"
        raise _bad(path, number, len(line), what, "the line is cut, copy the file again")
    return bytes.fromhex(line[skip:].decode("ascii"))


# -- Intel HEX ------------------------------------------------------------------------------------

_Record = tuple[int, int, bytes]  # line, address, data
_LENGTHS = {1: 0, 2: 2, 3: 4, 4: 2, 5: 4}
_END_TYPE, _SEGMENT_TYPE, _LINEAR_TYPE = 1, 2, 4


def _intel_hex(path: Path) -> Iterator[_Record]:
    base, segmented, ended, number = 0, False, False, 0
    for number, line in _lines(path):
        record, offset, kind = _intel_record(path, number, line, ended)
        if kind == 0 and segmented:  # offsets wrap inside a segment of 64 KiB
            first = min(len(record), 0x10000 - offset)
            yield number, base + offset, record[:first]
            yield number, base, record[first:]
        elif kind == 0:
            if base + offset + len(record) > 1 << 32:
                what = f"writes up to {base + offset + len(record):#x}, past 32-bit addresses"
                raise _bad(path, number, 4, what, "give an address that fits")
            yield number, base + offset, record
        elif kind in (_SEGMENT_TYPE, _LINEAR_TYPE):
            segmented = kind == _SEGMENT_TYPE
            base = int.from_bytes(record, "big") << (4 if segmented else 16)
        ended = ended or kind == _END_TYPE
    if not ended:
        raise _bad(path, number + 1, 1, "has no end record", "it is truncated, it ends :00000001FF")


def _intel_record(path: Path, number: int, line: bytes, ended: bool) -> tuple[bytes, int, int]:
    """Data, offset and type of a checked line."""
    if line[:1] != b":":
        what = f"starts with {line[:1].decode('latin-1')!r}"
        raise _bad(path, number, 1, what, "each record of Intel HEX starts with ':'")
    raw = _digits(path, number, line, 1)
    if len(raw) < 5 or len(raw) != raw[0] + 5:
        what = f"says {raw[0] if raw else 0} data bytes and has {max(0, len(raw) - 5)}"
        raise _bad(path, number, 2, what, "the line is cut or changed, make the file again")
    right = -sum(raw[:-1]) & 0xFF
    if raw[-1] != right:
        what = f"has checksum {raw[-1]:02X}, its bytes give {right:02X}"
        raise _bad(path, number, len(line) - 1, what, "the line is damaged, make the file again")
    kind, data = raw[3], raw[4:-1]
    if kind > 5:
        raise _bad(path, number, 8, f"has record type {kind:02X}", "types are 00 to 05")
    if len(data) != _LENGTHS.get(kind, len(data)):
        what = f"has {len(data)} data bytes in a record of type {kind:02X}"
        raise _bad(path, number, 2, what, f"that type has {_LENGTHS[kind]}")
    if ended:
        raise _bad(path, number, 1, "comes after the end record", "give one image a file")
    return data, int.from_bytes(raw[1:3], "big"), kind


# -- S-records ------------------------------------------------------------------------------------


def _srec(path: Path) -> Iterator[_Record]:
    records, ended, number = 0, False, 0
    for number, line in _lines(path):
        kind, address, data = _srec_record(path, number, line, ended)
        if kind in "123":
            records += 1
            if address + len(data) > 1 << 32:
                what = f"writes up to {address + len(data):#x}, past 32-bit addresses"
                raise _bad(path, number, 5, what, "give an address that fits")
            yield number, address, data
        elif kind in "56" and address != records:
            what = f"counts {address:,} data records, there are {records:,}"
            raise _bad(path, number, 5, what, "lines are missing, make the file again")
        ended = kind in "789"
    if not ended:
        what = "has no end record"
        raise _bad(path, number + 1, 1, what, "it is truncated, it ends with S7, S8 or S9")


def _srec_record(path: Path, number: int, line: bytes, ended: bool) -> tuple[str, int, bytes]:
    """Type digit, address (or count) and data of a checked line."""
    kind = line[1:2].decode("latin-1")
    if line[:1] != b"S" or kind not in _SREC_ADDRESS:
        what = f"starts with {line[:2].decode('latin-1')!r}"
        raise _bad(path, number, 1, what, "records are S0 to S3 and S5 to S9")
    raw, width = _digits(path, number, line, 2), _SREC_ADDRESS[kind]
    if len(raw) < width + 2 or raw[0] != len(raw) - 1:
        what = f"says {raw[0] if raw else 0} bytes and has {max(0, len(raw) - 1)}"
        raise _bad(path, number, 3, what, "the line is cut or changed, make the file again")
    right = ~sum(raw[:-1]) & 0xFF
    if raw[-1] != right:
        what = f"has checksum {raw[-1]:02X}, its bytes give {right:02X}"
        raise _bad(path, number, len(line) - 1, what, "the line is damaged, make the file again")
    if ended:
        raise _bad(path, number, 1, "comes after the end record", "give one image a file")
    return kind, int.from_bytes(raw[1 : 1 + width], "big"), raw[1 + width : -1]


# -- areas ----------------------------------------------------------------------------------------


class _Areas:
    """Joins records that follow one another; bytes that are written twice are refused."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def collect(self, records: Iterable[_Record]) -> list[Area]:
        areas: list[Area] = []
        try:
            for line, address, data in records:
                if not data:
                    continue
                if areas and areas[-1].end == address:
                    areas[-1].data += data
                    continue
                areas.append(Area(address, bytearray(data), line))
                if len(areas) > MAX_AREAS:
                    what = f"starts separate area number {len(areas):,}"
                    raise _bad(self.path, line, 1, what, f"at most {MAX_AREAS:,} make sense")
        except OSError as error:
            raise SizeError(f"cannot be read: {error.strerror}", file=self.path) from error
        return self.joined(sorted(areas, key=lambda area: area.start))

    def joined(self, areas: list[Area]) -> list[Area]:
        result: list[Area] = []
        for area in areas:
            if result and area.start < result[-1].end:
                one, two = sorted((result[-1], area), key=lambda a: a.line)
                what = (
                    f"writes {min(result[-1].end, area.end) - area.start:,} B from "
                    f"{area.start:#x} on again, that the area of line {one.line} has"
                )
                raise _bad(self.path, two.line, 1, what, "give one image a file")
            if result and area.start == result[-1].end:
                result[-1].data += area.data
            else:
                result.append(area)
        return result
