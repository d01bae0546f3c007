# SPDX-License-Identifier: Apache-2.0
"""Images in several files as the packer writes them: limits, blocks, heat."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import checkpoints as ck
from colibri import Engine, Image
from colibri.convert import convert
from colibri.errors import PackError
from colibri.pack import pack
from colibri.placement import LAYOUTS, Placement
from image_reader import walk
from layouts import content, four_shards, heat_file, packed, placement, run


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ck.write(tmp_path_factory.mktemp("layouts") / "in")


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return four_shards(tmp_path_factory.mktemp("layouts"))


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
