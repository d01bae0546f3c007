# SPDX-License-Identifier: Apache-2.0
"""Images of one layout made of another, byte for byte what the packer writes."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import checkpoints as ck
from colibri import Engine, Image, cli
from colibri.convert import convert
from colibri.errors import PackError
from colibri.pack import pack
from colibri.placement import LAYOUTS
from image_reader import walk
from layouts import companion, content, copied, four_shards, packed, placement, run

FAMILIES = sorted(path.parent.name for path in ck.GOLDEN.glob("*/config.json"))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ck.write(tmp_path_factory.mktemp("layouts") / "in")


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return four_shards(tmp_path_factory.mktemp("layouts"))


@pytest.fixture
def copy(sharded: Path, tmp_path: Path) -> Path:
    return copied(sharded, tmp_path)


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
