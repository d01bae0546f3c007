# SPDX-License-Identifier: Apache-2.0
"""Images in several files: written, read, run and converted, and refused when a file is wrong."""

from __future__ import annotations

import json
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import checkpoints as ck
from colibri import Engine, Image, ImageError, cli
from colibri.boards import load_board
from colibri.convert import convert
from colibri.errors import PackError
from colibri.pack import pack
from colibri.placement import LAYOUTS, Placement
from colibri.planner import plan
from image_reader import walk

FAMILIES = sorted(path.parent.name for path in ck.GOLDEN.glob("*/config.json"))
STRUCTURE, COMPANION, STORAGE = 43, 48, 60
MISSING, SHORT, MAGIC, DAMAGED, NUMBER, ID, BYTES = range(1, 8)
SHARD = 1 << 16  # bytes of a shard of the goldens: some hold several experts


def placement(layout: str, largest: int = 0) -> Placement:
    return Placement.of(layout, shard_bytes=max(SHARD, largest) if layout == "sharded" else None)


def packed(folder: Path, layout: str, source: Path, quant: str = "q4", **options: Any) -> Path:
    folder.mkdir(parents=True)
    if "placement" not in options:
        options["placement"] = placement(layout)
    return pack(source, folder / "m.colibri", quant=quant, **options).image


def content(image: Path) -> dict[str, bytes]:
    """All files of a folder that holds one image."""
    return {path.name: path.read_bytes() for path in image.parent.iterdir()}


# Every family


@pytest.mark.parametrize("family", FAMILIES)
def test_layouts_hold_the_same_model(tmp_path: Path, family: str) -> None:
    """Logits of the three layouts, mapped and loaded; conversion gives what pack writes."""
    source = ck.GOLDEN / family
    one = packed(tmp_path / "monolithic", "monolithic", source)
    if not Image(one).experts:
        with pytest.raises(PackError, match="no experts; use monolithic"):
            packed(tmp_path / "hybrid", "hybrid", source)
        return
    largest = max(record.bytes for record in Image(one).experts) + 4096
    made = {"monolithic": one}
    for layout in ("sharded", "hybrid"):
        made[layout] = packed(tmp_path / layout, layout, source,
                              placement=placement(layout, largest))  # fmt: skip
    walked = {layout: walk(image) for layout, image in made.items()}
    tokens = np.load(source / "reference.npz")["input_ids"].tolist()[0]
    expected = Engine(Image(one), context=32).infer(tokens, all_logits=True)
    for layout, image in made.items():
        opened = Image(image)
        assert opened.layout == layout
        opened.verify()
        assert all(np.array_equal(walked[layout].tensors[key], value)
                   for key, value in walked["monolithic"].tensors.items())  # fmt: skip
        for options in ({}, {"weights": "loaded"}, {"workers": 2, "batch": 3}):
            again = Engine(opened, context=32, **options).infer(tokens, all_logits=True)
            assert np.array_equal(again, expected), (layout, options)
        for other in LAYOUTS:
            target = tmp_path / f"{layout}-{other}" / "m.colibri"
            target.parent.mkdir()
            convert(image, target, placement(other, largest))
            assert content(target) == content(made[other]), (layout, other)


# One small model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("layouts")


@pytest.fixture(scope="module")
def source(folder: Path) -> Path:
    return ck.write(folder / "in")


@pytest.fixture(scope="module")
def sharded(folder: Path, source: Path) -> Path:
    """Eight records of 1,728 bytes in four shards."""
    image = packed(folder / "sharded", "sharded", source,
                   placement=Placement.of("sharded", shard_bytes=10_000))  # fmt: skip
    assert len(Image(image).files) == 5
    return image


@pytest.fixture
def copy(sharded: Path, tmp_path: Path) -> Path:
    shutil.copytree(sharded.parent, tmp_path / "copy")
    return tmp_path / "copy" / sharded.name


def test_shards_stay_below_their_limit(sharded: Path) -> None:
    assert Placement.of("sharded").shard_bytes == (4 << 30) - 1  # FAT32
    image = Image(sharded)
    assert all(file.bytes <= 10_000 for file in image.files[1:])
    assert sorted(path.name for path in sharded.parent.iterdir()) == sorted(
        path.name for path in image.paths
    )
    assert all(record.file and record.offset % 4096 == 0 for record in image.experts)
    assert [record.file for record in image.experts] == [1, 1, 2, 2, 3, 3, 4, 4]
    padded = [-(-path.stat().st_size // 64) * 64 for path in image.paths]
    assert image.total_bytes == sum(padded[:-1]) + image.paths[-1].stat().st_size


@pytest.mark.parametrize("block", [64, 128, 4096, 65536])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_records_begin_at_the_block(tmp_path: Path, source: Path, layout: str, block: int) -> None:
    image = packed(tmp_path / "out", layout, source, selftest=ck.no_selftest,
                   placement=Placement.of(layout, block))  # fmt: skip
    assert walk(image).block == block
    assert all(record.offset % block == 0 for record in Image(image).experts)


def test_the_arena_has_room_for_all_files(sharded: Path) -> None:
    one, loaded = Image(sharded), Engine(Image(sharded), context=8, weights="loaded")
    mapped = Engine(one, context=8)
    grown = loaded.high_water() - mapped.high_water()
    assert grown == -(-one.total_bytes // 64) * 64


def test_read_without_a_map(sharded: Path) -> None:
    image = Image(sharded, map=False)
    image.verify()
    expected = Engine(Image(sharded), context=8).infer([1, 2])
    assert np.array_equal(Engine(image, context=8, weights="loaded").infer([1, 2]), expected)
    record = image.experts[5]
    data = image.read(record.offset, record.bytes, record.file)
    assert zlib.crc32(data) == record.crc32
    with pytest.raises(ImageError, match=r"m\.colibri\.1: .*the file has"):
        image.read(0, image.files[1].bytes + 1, 1)
    for file in (-1, 5):
        with pytest.raises(ImageError, match=r"valid is 0 \.\. 4"):
            image.read(0, 1, file)


@pytest.mark.parametrize("family", ["mixtral", "deepseek_v3", "gpt_oss", "longcat_flash"])
@pytest.mark.parametrize("quant", ["f32", "q4"])
def test_experts_stream_out_of_companions(tmp_path: Path, family: str, quant: str) -> None:
    """Bits of the one mapped file, however the records come: read, by threads, past the cache."""
    source = ck.GOLDEN / family
    one = Image(packed(tmp_path / "one", "monolithic", source, quant))
    tokens = np.arange(20) * 7919 % one.vocabulary
    expected = Engine(one, context=32).infer(tokens, all_logits=True)
    third = one.bytes // 3
    for layout in ("sharded", "hybrid"):
        path = packed(tmp_path / layout, layout, source, quant,
                      placement=placement(layout, third))  # fmt: skip
        files = {record.file for record in Image(path).experts}
        assert len(files) > 1 if layout == "sharded" else files == {1}
        fewest = min(one.config["top_k"], one.config["experts"] - one.config["identities"])
        for map, ahead, slots in product((True, False), ("", "cached", "direct"), (fewest, 0)):
            image = Image(path, map=map)
            if ahead:
                try:
                    image.read_ahead(3, direct=ahead == "direct")
                except ImageError:  # the file system has no direct reads
                    assert ahead == "direct"
                    continue
            options: dict[str, Any] = {"batch": 7} | ({"expert_slots": slots} if slots else {})
            engine = Engine(image, context=32, weights="streamed", **options)
            again = engine.infer(tokens, all_logits=True)
            assert np.array_equal(again, expected), (layout, map, ahead, slots)
            assert engine.experts.misses > 0
        mapped = Engine(Image(path), context=32, weights="streamed-mapped", expert_slots=fewest)
        assert np.array_equal(mapped.infer(tokens, all_logits=True), expected), layout


def test_a_streamed_expert_that_is_wrong_is_named(copy: Path) -> None:
    record = Image(copy).experts[5]
    file = companion(copy, record.file)
    data = bytearray(file.read_bytes())
    data[record.offset + 100] ^= 1
    file.write_bytes(data)
    engine = Engine(copy, context=32, weights="streamed")
    with pytest.raises(ImageError, match=f"layer 1, expert 1: .* at offset {record.offset:#x} do"):
        engine.infer(np.arange(30) % Image(copy).vocabulary)


def test_huge_pages_hold_all_files(sharded: Path) -> None:
    image = Image(sharded, pages="huge")
    if image.pages.bytes:
        assert image.pages.bytes >= image.total_bytes
    expected = Engine(Image(sharded), context=8).infer([1, 2])
    assert np.array_equal(Engine(image, context=8).infer([1, 2]), expected)


def test_an_image_is_looked_for_where_it_lies(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(copy.parent)
    assert len(Image("m.colibri").files) == 5
    monkeypatch.chdir("/")
    assert len(Image(copy).files) == 5
    with pytest.raises(ImageError, match="companion file 1 is not there") as caught:
        Image(copy.read_bytes())
    assert "m.colibri.1" in str(caught.value)


# Heat


def heat_file(path: Path, counts: object) -> Path:
    path.write_text(json.dumps({"kind": "a trace", "heat": {"layers": counts}}))
    return path


@pytest.mark.parametrize("layout", LAYOUTS)
def test_hot_experts_lie_first(tmp_path: Path, source: Path, layout: str) -> None:
    heat = heat_file(tmp_path / "heat.json", [[1, 0, 7, 3], [2, 9, 3, 0]])
    plain = packed(tmp_path / "plain", layout, source)
    image = packed(tmp_path / "hot", layout, source, heat=heat)
    records = Image(image).experts
    places = sorted(range(8), key=lambda n: (records[n].file, records[n].offset))
    assert places == [5, 2, 3, 6, 4, 0, 1, 7]  # 9, 7, 3 and 3, 2, 1, 0 and 0
    assert walk(image).tensors.keys() == walk(plain).tensors.keys()
    logits = [Engine(Image(path), context=8).infer([1, 2, 3]) for path in (plain, image)]
    assert np.array_equal(*logits)
    for name, options in (("kept", {}), ("again", {"heat": heat})):
        target = tmp_path / name / "m.colibri"
        target.parent.mkdir()
        convert(image if not options else plain, target, placement(layout), **options)
        assert content(target) == content(image)


def test_a_trace_is_heat(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What `colibri trace` writes, of a model whose first layers have no experts."""
    one = Image(packed(tmp_path / "one", "monolithic", ck.GOLDEN / "deepseek_v3"))
    assert one.path is not None
    assert one.expert_layers[0] > 0
    heat = tmp_path / "heat.json"
    ids = ",".join(map(str, range(1, 20)))
    assert run(capsys, "trace", one.path, "--tokens", ids, "-o", heat)["exit"] == 0
    counts = np.ravel(json.loads(heat.read_text())["heat"]["layers"])
    assert len(counts) == len(one.experts)
    convert(one.path, tmp_path / "hot", placement("hybrid"), heat=heat)
    records = Image(tmp_path / "hot").experts
    order = sorted(range(len(records)), key=lambda n: records[n].offset)
    assert order == sorted(order, key=lambda n: (-counts[n], n)) != list(range(len(order)))


@pytest.mark.parametrize(("counts", "words"), [
    ({"0": [1, 2, 3, 4]}, "heat.layers: has no lists of counts; give a trace"),
    ([[1, 2, 3, 4]], "has 1 lists; give a trace of this model, with 2 layers of experts"),
    ([[1, 2, 3, 4], {}], "layer 1: has no list of counts"),
    ([[1, 2, 3], [1, 2, 3, 4]], "layer 0: has 3 counts; give 4"),
    ([[1, 2, 3, -4], [1, 2, 3, 4]], "layer 0: has -4"),
    ([[1, 2, 3, "x"], [1, 2, 3, 4]], "layer 0: has 'x'"),
    ([[1, 2, 3, float("nan")], [1, 2, 3, 4]], "layer 0: has nan"),
])  # fmt: skip
def test_wrong_heat_is_refused(tmp_path: Path, source: Path, counts: Any, words: str) -> None:
    heat = heat_file(tmp_path / "heat.json", counts)
    with pytest.raises(PackError, match=words):
        packed(tmp_path / "out", "hybrid", source, heat=heat)
    assert not any((tmp_path / "out").iterdir())


# Files that are wrong


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


def companion(image: Path, number: int) -> Path:
    return image.with_name(f"{image.name}.{number}")


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


# Writing


def test_names_and_limits_that_cannot_be(tmp_path: Path, source: Path) -> None:
    def wrong(words: str, name: str = "m.colibri", **options: Any) -> None:
        with pytest.raises(PackError, match=words):
            pack(source, tmp_path / name, placement=Placement.of(**options))
        assert [path.name for path in tmp_path.iterdir()] == ["m.colibri.1"]

    (tmp_path / "m.colibri.1").mkdir()
    wrong(r"m\.colibri\.1: is a folder", layout="hybrid")
    wrong("cannot name companion files; use at most 60 bytes", "x" * 62, layout="hybrid")
    wrong("cannot name companion files", "a:b", layout="hybrid")
    wrong("shard size: is 5000, less than one expert takes", layout="sharded", shard_bytes=5000)
    wrong("is for sharded images, not hybrid ones", layout="hybrid", shard_bytes=1 << 20)
    for block in (0, 32, 96, 131072):
        wrong(f"block: is {block}; valid is a power of two", layout="hybrid", block=block)


def test_too_many_shards_say_what_would_do(tmp_path: Path) -> None:
    source = ck.write(tmp_path / "in", num_experts=24)
    with pytest.raises(PackError, match=r"makes 48 shards; (\d+) or more makes 22") as caught:
        pack(source, tmp_path / "m", placement=Placement.of("sharded", shard_bytes=6000))
    enough = int(str(caught.value.hint).split()[0])
    pack(source, tmp_path / "m", placement=Placement.of("sharded", shard_bytes=enough))
    image = Image(tmp_path / "m")
    image.verify()
    assert 2 < len(image.files) <= 23


def test_companions_of_the_image_before_do_not_stay(tmp_path: Path) -> None:
    """By its tables and its name: not what only looks like them, nor a copy's, nor an input."""
    source = ck.GOLDEN / "qwen2_moe"
    image = packed(tmp_path / "a", "sharded", source)
    shards = len(Image(image).paths) - 1
    assert shards > 2
    foreign = image.with_name(f"m.colibri.{shards + 1}")
    foreign.write_bytes(b"mine")
    copy = image.with_name("copy.colibri")  # of the core: its companions keep the other's name
    shutil.copy(image, copy)
    pack(source, image, quant="q4", placement=placement("hybrid"))
    assert sorted(path.name for path in image.parent.iterdir()) == [
        "copy.colibri", "m.colibri", "m.colibri.1", foreign.name
    ]  # fmt: skip
    Image(image).verify()
    pack(source, image, quant="q4")
    assert sorted(path.name for path in image.parent.iterdir()) == [
        "copy.colibri", "m.colibri", foreign.name
    ]  # fmt: skip

    other = packed(tmp_path / "b", "sharded", source)
    copy = other.with_name("copy.colibri")
    shutil.copy(other, copy)
    pack(source, copy, quant="q4")  # its companions are named after the other image
    convert(Image(other), other.with_name("again.colibri"), placement("monolithic"))
    Image(other).verify()
    shutil.copy(other, copy)
    convert(copy, other, placement("monolithic"))  # reads what it would remove
    Image(copy).verify()

    third = packed(tmp_path / "c", "sharded", source)
    third.with_name("m.colibri.2").write_bytes(b"broken")  # no whole image: nothing is known
    pack(source, third, quant="q4")
    assert third.with_name("m.colibri.3").exists()
    assert third.with_name("m.colibri.2").read_bytes() == b"broken"


def test_the_input_is_not_written_over(copy: Path, tmp_path: Path) -> None:
    before = content(copy)
    with pytest.raises(PackError, match="is an input of this conversion"):
        convert(copy, copy, placement("monolithic"))
    link = tmp_path / "link"
    link.mkdir()
    (link / "n.1").hardlink_to(companion(copy, 2))
    with pytest.raises(PackError, match=r"n\.1: is an input"):
        convert(copy, link / "n", placement("hybrid"))
    assert content(copy) == before


def test_nothing_is_left_of_what_fails(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Companions take their names before the image, which is never there without them."""
    moved: list[str] = []
    real = Path.replace

    def replace(self: Path, target: Path) -> Path:
        moved.append(Path(target).name)
        if moved[-1] == "m.colibri":
            raise OSError(28, "No space left on device")
        return real(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(PackError, match="No space left"):
        packed(tmp_path / "out", "hybrid", source)
    assert moved == ["m.colibri.1", "m.colibri"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["m.colibri.1"]


# The command line


def run(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    code = cli.main([*map(str, words), "--json"])
    fields: dict[str, Any] = json.loads(capsys.readouterr().out)
    return {"exit": code, **fields}


def test_commands(tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = tmp_path / "m.colibri"
    done = run(capsys, "pack", source, "-o", image, "--layout", "sharded", "--shard-size",
               "6 KiB", "--block", "64")  # fmt: skip
    assert done["exit"] == 0
    assert [Path(row["file"]).name for row in done["files"]] == [
        "m.colibri", "m.colibri.1", "m.colibri.2", "m.colibri.3",
    ]  # fmt: skip
    assert done["bytes"] == sum(Path(row["file"]).stat().st_size for row in done["files"])
    shown = run(capsys, "inspect", image)
    assert (shown["layout"], shown["verified"]) == ("sharded", True)
    assert [row["name"] for row in shown["files"]] == [
        Path(row["file"]).name for row in done["files"]
    ]
    one = tmp_path / "one.colibri"
    assert (
        run(capsys, "convert", image, "-o", one, "--layout", "monolithic")["layout"] == "monolithic"
    )
    assert run(capsys, "pack", source, "-o", tmp_path / "two")["exit"] == 0
    assert one.read_bytes() == (tmp_path / "two").read_bytes()
    assert cli.main(["inspect", str(image)]) == 0
    assert "m.colibri.3" in capsys.readouterr().out
    assert cli.main(["convert", str(one), "-o", str(tmp_path / "h"), "--layout", "hybrid"]) == 0
    assert "h.1" in capsys.readouterr().out
    failed = run(capsys, "convert", one, "-o", image, "--layout", "sharded", "--shard-size", "4 KB")
    assert failed["exit"] == 2
    assert "4 KiB" in failed["error"]["hint"]


# Boards


def test_firmware_takes_one_file(sharded: Path, tmp_path: Path) -> None:
    from colibri_emulator.build_firmware import build_firmware

    for board in ("pimoroni-pico-plus-2", "raspberry-pi-5-2gb"):
        with pytest.raises(ImageError, match=r"is 5 files.*colibri convert .* --layout monolithic"):
            build_firmware(load_board(board), sharded, tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_a_board_without_files_takes_one_file(sharded: Path) -> None:
    with pytest.raises(ImageError, match="is 5 files, and board pimoroni-pico-plus-2 has no files"):
        plan(sharded, load_board("pimoroni-pico-plus-2"))


def test_a_linux_board_maps_all_files(sharded: Path) -> None:
    made = plan(sharded, load_board("raspberry-pi-5-2gb"), context=8)
    rows = [row for row in made.memory.rows if row.name == "image"]
    assert [row.bytes for row in rows] == [Image(sharded).total_bytes]
