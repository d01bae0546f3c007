# SPDX-License-Identifier: Apache-2.0
"""Images in several files: read, run, streamed, and placed on boards."""

from __future__ import annotations

import zlib
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import checkpoints as ck
from colibri import Engine, Image, ImageError
from colibri.boards import load_board
from colibri.planner import plan
from layouts import companion, copied, four_shards, packed, placement
from needs import have


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return four_shards(tmp_path_factory.mktemp("layouts"))


@pytest.fixture
def copy(sharded: Path, tmp_path: Path) -> Path:
    return copied(sharded, tmp_path)


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
        ways = ["", "cached"] + ["direct"] * have(f"direct:{path}")
        for map, ahead, slots in product((True, False), ways, (fewest, 0)):
            image = Image(path, map=map)
            if ahead:
                image.read_ahead(3, direct=ahead == "direct")
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
