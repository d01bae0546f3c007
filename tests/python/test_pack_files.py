# SPDX-License-Identifier: Apache-2.0
"""The packer: files read and written, nothing left behind, and the commands."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

import checkpoints as ck
from colibri import cli
from colibri.errors import PackError
from colibri.pack import pack
from image_reader import walk
from packing import make, refuse


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    tensors = ck.random_tensors(ck.CONFIG)
    source = ck.write(tmp_path / "in", tensors=tensors)
    first = make(source, tmp_path, "a", quant="q4").read_bytes()
    assert make(source, tmp_path, "b", quant="q4", jobs=3).read_bytes() == first
    names = sorted(tensors, key=lambda n: n[::-1])
    ck.write_sharded(source, tensors, [names[:7], names[7:30], names[30:]])
    assert make(source, tmp_path, "c", quant="q4", jobs=2).read_bytes() == first


def test_memory_does_not_grow_with_the_model(tmp_path: Path) -> None:
    config = {**ck.CONFIG, "vocab_size": 60_000, "hidden_size": 64}
    source = ck.write(tmp_path / "in", config)
    size = (source / "model.safetensors").stat().st_size
    tracemalloc.start()
    try:
        make(source, tmp_path, quant="f32")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size > 29 << 20
    assert peak < size / 3


def test_progress_counts_every_weight(tmp_path: Path) -> None:
    seen: list[int] = []

    def progress(total: int) -> Any:
        seen.append(-total)
        return seen.append

    packed = pack(
        ck.write(tmp_path / "in"), tmp_path / "out", progress=progress, selftest=ck.no_selftest
    )
    assert seen[0] == -packed.parameters
    assert sum(seen) == 4


def test_a_broken_tokenizer_is_refused(tmp_path: Path) -> None:
    source = ck.write(tmp_path / "in")
    (source / "tokenizer.json").write_text('{"version": "1.0"}')
    refuse(tmp_path, source, "tokenizer.json: is not a tokenizer", "remove the file")
    (source / "tokenizer.json").write_text('{"version": ')
    refuse(tmp_path, source, "tokenizer.json: is not valid JSON")


def test_targets_that_cannot_be_written(tmp_path: Path) -> None:
    source = ck.write(tmp_path / "in")
    for target, text in (
        (tmp_path, "is a folder"),
        (tmp_path / "no" / "x", "folder does not exist"),
    ):
        with pytest.raises(PackError, match=text):
            pack(source, target, selftest=ck.no_selftest)


@pytest.mark.parametrize(
    "error", [PackError("no"), OSError(28, "No space left on device"), KeyboardInterrupt()]
)
def test_a_failure_at_the_end_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    def fail(image: Path, _: tuple[int, ...]) -> tuple[int, int, int]:
        assert image.stat().st_size > 10_000
        assert image.parent.parent == tmp_path / "out"
        walk(image)  # complete but for the checksums of the self-test
        raise error

    source, out = ck.write(tmp_path / "in"), tmp_path / "out"
    out.mkdir()
    with pytest.raises((PackError, KeyboardInterrupt)):
        pack(source, out / "image", selftest=fail)
    assert list(out.iterdir()) == []


def test_pack_and_inspect_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "image"
    arguments = [str(ck.GOLDEN / "mixtral"), "-o", str(out), "--quant", "q4", "--group", "64"]
    assert cli.main(["pack", *arguments, "--jobs", "2", "--json"]) == 0
    packed = json.loads(capsys.readouterr().out)
    assert list(packed)[:3] == ["schema", "image", "bytes"]
    assert packed["schema"] == 1
    assert packed["bytes"] == out.stat().st_size
    assert cli.main(["inspect", str(out), "--json"]) == 0
    seen = json.loads(capsys.readouterr().out)
    assert {r["role"]: r["bytes"] for r in seen["roles"]} == packed["roles"]
    assert seen["bits_per_weight"] == packed["bits_per_weight"]
    assert seen["parameters"] == packed["parameters"]
    assert seen["stop_ids"] == [2]
    assert seen["notes"]["notes"] == packed["notes"]
    assert seen["verified"] is True
    assert cli.main(["inspect", str(out)]) == 0
    text = capsys.readouterr().out
    assert "expert_down" in text
    assert "bits per weight" in text
    assert "stop ids: 2" in text
    assert cli.main(["pack", *arguments]) == 0
    assert "263,488 parameters" in capsys.readouterr().out


@pytest.mark.parametrize("at", [0, 8, 40, 700, -1, -5000])
def test_inspect_refuses_a_changed_image(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], at: int
) -> None:
    path = make(ck.write(tmp_path / "in"), tmp_path)
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    assert cli.main(["inspect", str(path), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["type"] == "ImageError"
    path.write_bytes(data[: len(data) // 2])
    assert cli.main(["inspect", str(path)]) == 2
    assert "error: " in capsys.readouterr().err
