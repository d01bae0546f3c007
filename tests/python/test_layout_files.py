# SPDX-License-Identifier: Apache-2.0
"""Images in several files, one of which is wrong: refused with the file and the reason."""

from __future__ import annotations

import shutil
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import checkpoints as ck
from colibri import Image, ImageError
from colibri.convert import convert
from colibri.placement import Placement
from layouts import companion, copied, four_shards, packed, placement

STRUCTURE, COMPANION, STORAGE = 43, 48, 60

MISSING, SHORT, MAGIC, DAMAGED, NUMBER, ID, BYTES = range(1, 8)


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return four_shards(tmp_path_factory.mktemp("layouts"))


@pytest.fixture
def copy(sharded: Path, tmp_path: Path) -> Path:
    return copied(sharded, tmp_path)


def refused(image: Path, number: int, why: int, *words: str) -> None:
    for options in ({}, {"map": False}):
        with pytest.raises(ImageError) as caught:
            Image(image, **options)
        status = caught.value.status
        assert status is not None
        assert (status.code, status.where, status.have) == (COMPANION, number, why)
        assert str(caught.value).startswith(f"{image}.{number}: companion file {number} ")
        for word in words:
            assert word in str(caught.value)


@pytest.mark.parametrize("number", [1, 3, 4])
def test_a_missing_companion_is_named(copy: Path, number: int) -> None:
    file = companion(copy, number)
    size = file.stat().st_size
    file.unlink()
    refused(copy, number, MISSING, "is not there", f"{size:,} bytes")
    file.mkdir()
    refused(copy, number, MISSING)


@pytest.mark.parametrize("cut", [1, 64, 4096])
def test_a_shorter_companion_is_named(copy: Path, cut: int) -> None:
    file = companion(copy, 2)
    data = file.read_bytes()
    file.write_bytes(data[:-cut])
    refused(copy, 2, SHORT, "too short", f"{len(data):,}")
    file.write_bytes(data[: 64 - cut])
    refused(copy, 2, SHORT)
    file.write_bytes(data + bytes(cut))  # as with the image itself: what follows is not read
    Image(copy).verify()


def test_swapped_companions_are_seen(copy: Path) -> None:
    first, second = companion(copy, 1), companion(copy, 2)
    data = first.read_bytes(), second.read_bytes()
    assert len(data[0]) == len(data[1])
    first.write_bytes(data[1])
    refused(copy, 1, NUMBER, "in the place of another")
    first.write_bytes(data[0])
    second.write_bytes(data[0])
    refused(copy, 2, NUMBER)


def test_a_companion_of_another_image_is_seen(copy: Path, tmp_path: Path) -> None:
    checkpoint = ck.write(tmp_path / "in", tensors=ck.random_tensors(ck.CONFIG, seed=2))
    shards = Placement.of("sharded", shard_bytes=10_000)
    other = packed(tmp_path / "other", "sharded", checkpoint, placement=shards)
    shutil.copy(companion(other, 3), companion(copy, 3))
    refused(copy, 3, ID, "of another image")


def test_other_weights_under_the_same_id_are_found_by_verify(copy: Path) -> None:
    record = Image(copy).experts[5]
    file = companion(copy, record.file)
    data = bytearray(file.read_bytes())
    data[record.offset + 100] ^= 1
    file.write_bytes(data)
    for options in ({}, {"map": False}):
        with pytest.raises(ImageError, match="expert 1 of layer 1 has checksum"):
            Image(copy, **options).verify()
    with pytest.raises(ImageError, match="expert 1 of layer 1 has checksum"):
        convert(copy, copy.with_name("out"), placement("monolithic"))
    assert not copy.with_name("out").exists()


def test_a_companion_is_no_image(sharded: Path) -> None:
    with pytest.raises(ImageError, match="a companion file; give the image that it lies beside"):
        Image(companion(sharded, 1))


def with_header(file: Path, at: int, form: str, value: object) -> None:
    """Changes a companion's header; whoever writes one writes its checksum."""
    data = bytearray(file.read_bytes())
    struct.pack_into(f"<{form}", data, at, value)
    struct.pack_into("<I", data, 60, zlib.crc32(data[:60]))
    file.write_bytes(data)


HEADER = [
    (0, "B", 0, MAGIC), (3, "B", 66, MAGIC), (7, "B", 13, MAGIC), (8, "I", 0, MAGIC),
    (8, "I", 2, MAGIC), (12, "I", 0, NUMBER), (12, "I", 1, NUMBER), (12, "I", 3, NUMBER),
    (12, "I", 2**32 - 1, NUMBER), (16, "Q", 0, BYTES), (16, "Q", 9_919, BYTES),
    (16, "Q", 2**63, BYTES), (24, "B", 0, ID), (39, "B", 0, ID), (40, "B", 1, DAMAGED),
    (59, "B", 1, DAMAGED),
]  # fmt: skip


@pytest.mark.parametrize(("at", "form", "value", "why"), HEADER)
def test_every_field_of_a_companion(copy: Path, at: int, form: str, value: int, why: int) -> None:
    file = companion(copy, 2)
    before = file.read_bytes()
    with_header(file, at, form, before[at] ^ 255 if why == ID else value)
    refused(copy, 2, why)


@pytest.mark.parametrize("at", range(64))
def test_every_byte_of_a_header_counts(copy: Path, at: int) -> None:
    file = companion(copy, 4)
    data = bytearray(file.read_bytes())
    data[at] ^= 4
    file.write_bytes(data)
    refused(copy, 4, MAGIC if at < 12 else DAMAGED)


def mended(image: Path, changes: dict[int, bytes]) -> bytes:
    """The image with other bytes in its tables, and the right checksum."""
    data = bytearray(image.read_bytes())
    for at, new in changes.items():
        data[at : at + len(new)] = new
    meta = min(int.from_bytes(data[24:28], "little"), len(data))
    data[60:64] = zlib.crc32(data[64:meta], zlib.crc32(data[:60])).to_bytes(4, "little")
    return bytes(data)


def named(text: bytes) -> Callable[[int], dict[int, bytes]]:
    return lambda at: {at + 32: text.ljust(64, b"\0")}


def word(at: int, value: int, size: int = 4) -> Callable[[int], dict[int, bytes]]:
    return lambda table: {table + at: (value % 2 ** (8 * size)).to_bytes(size, "little")}


NAMES = [b"", b".", b"..", b"../m.colibri.1", b"/etc/passwd", b"a/b", b"a\\b", b"C:a", b"a\0b",
         b"a\nb", b"\x1b[2J", b"\x7f", b"\xff", b"\xc0\xae", b"\xed\xa0\x80", b"\xf4\x90\x80\x80",
         b"\xe2\x82", b"x" * 64]  # fmt: skip

ENTRY = [
    *((f"name {name!r}", named(name)) for name in NAMES),
    *((f"bytes {n}", word(0, n, 8)) for n in (0, 63, 4096, 9_919, 2**63, 2**64 - 1)),
    ("id", word(8, 1)), ("id", word(23, 1, 1)), ("zero", word(24, 1)), ("zero", word(31, 1, 1)),
]  # fmt: skip


@pytest.mark.parametrize("entry", [0, 3])
@pytest.mark.parametrize(("what", "change"), ENTRY, ids=[what for what, _ in ENTRY])
def test_every_field_of_the_files_table(
    copy: Path, what: str, change: Callable[[int], dict[int, bytes]], entry: int
) -> None:
    table = Image(copy).section("files")
    assert table is not None
    at = table.offset + 96 * entry
    copy.write_bytes(mended(copy, change(at)))
    with pytest.raises(ImageError) as caught:
        Image(copy)
    assert caught.value.status is not None
    assert (caught.value.status.code, caught.value.status.where) == (STRUCTURE, at), what


def test_names_that_are_allowed(copy: Path) -> None:
    table = Image(copy).section("files")
    assert table is not None
    names = ["...", "a..b", "ünï", "\U0001f426 2", "x" * 63, ".hidden"]
    for name in names:
        copy.write_bytes(mended(copy, named(name.encode())(table.offset)))
        companion(copy, 1).replace(copy.with_name(name))
        assert Image(copy).files[1].name == name
        copy.with_name(name).replace(companion(copy, 1))


def sections(image: Path) -> Iterator[tuple[int, list[int]]]:
    data = image.read_bytes()
    for index in range(int.from_bytes(data[28:32], "little")):
        yield 64 + 32 * index, list(struct.unpack_from("<IIQQII", data, 64 + 32 * index))


def test_every_field_of_the_sections_of_companions(copy: Path) -> None:
    entries = list(sections(copy))
    files = next(at for at, entry in entries if entry[0] == 8)
    cases = [{12: struct.pack("<I", layout)} for layout in (0, 2, 3, 2**31)]
    cases += [{files + 28: struct.pack("<I", n)} for n in (0, 1, 3, 5, 22, 23, 2**32 - 1)]
    cases += [{files + 16: struct.pack("<Q", 96 * n)} for n in (0, 3, 5)]
    cases += [{files: struct.pack("<I", kind)} for kind in (7, 9, 16)]
    for at, (kind, file, offset, size, _, _) in entries:
        if kind != 18:
            cases.append({at + 4: struct.pack("<I", 1)})
            continue
        cases += [{at: struct.pack("<I", k)} for k in (0, 16, 17, 19)]
        cases += [{at + 4: struct.pack("<I", n)} for n in (0, file - 1, file + 1, 23, 2**32 - 1)]
        cases += [{at + 8: struct.pack("<Q", n)} for n in (0, 64, offset + 4096, 2**64 - 64)]
        cases += [{at + 16: struct.pack("<Q", n)} for n in (0, size - 1, size + 64, 2**64 - 4096)]
        cases += [{at + 24: struct.pack("<I", 1)}, {at + 28: struct.pack("<I", 1)}]
    whole = copy.read_bytes()
    for case in cases:
        copy.write_bytes(whole)
        copy.write_bytes(mended(copy, case))
        with pytest.raises(ImageError) as caught:
            Image(copy)
        assert caught.value.status is not None
        assert caught.value.status.code == STRUCTURE, case
    assert len(cases) > 80


def test_records_lie_in_the_file_that_the_table_says(copy: Path) -> None:
    experts = Image(copy).section("experts")
    assert experts is not None
    record = Image(copy).experts[2]
    cases = [struct.pack("<QIIII", record.offset, record.bytes, record.crc32, file, 0)
             for file in (0, 5, 22, 23, 2**32 - 1)]  # fmt: skip
    cases += [struct.pack("<QIIII", offset, record.bytes, record.crc32, record.file, 0)
              for offset in (0, 64, 2048, 1 << 20, 2**64 - 4096)]  # fmt: skip
    whole = copy.read_bytes()
    for case in cases:
        copy.write_bytes(whole)
        copy.write_bytes(mended(copy, {experts.offset + 48: case}))
        with pytest.raises(ImageError) as caught:
            Image(copy)
        assert caught.value.status is not None
        assert caught.value.status.code == STRUCTURE
