# SPDX-License-Identifier: Apache-2.0
"""Reading checkpoints: exact values, and every way in which the files can be wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import checkpoints as ck
from colibri.checked_json import read_json
from colibri.checkpoint import Checkpoint
from colibri.errors import CheckpointError
from colibri.tensor_file import read_safetensors


def refused(text: str) -> Any:
    return pytest.raises(CheckpointError, match=text)


def all_rows(path: Path, name: str, elements: int = 1 << 20) -> np.ndarray:
    return np.concatenate(list(read_safetensors(path)[name].rows(elements)))


def test_equals_the_safetensors_library() -> None:
    path = ck.GOLDEN / "mixtral" / "model.safetensors"
    ours, theirs = read_safetensors(path), load_file(path)
    assert ours.keys() == theirs.keys()
    for name, array in theirs.items():
        assert ours[name].shape == array.shape
        assert np.array_equal(all_rows(path, name).reshape(array.shape), array)


@pytest.mark.parametrize("elements", [1, 5, 12, 1000])
def test_rows_come_in_order_whatever_the_piece(tmp_path: Path, elements: int) -> None:
    array = np.arange(35, dtype=np.float32).reshape(7, 5)
    path = tmp_path / "a.safetensors"
    path.write_bytes(ck.safetensors_bytes({"x": array, "y": array.astype(np.float16)}))
    for name in "xy":
        parts = list(read_safetensors(path)[name].rows(elements))
        assert all(part.dtype == np.float32 and part.size <= max(5, elements) for part in parts)
        assert np.array_equal(np.concatenate(parts), array)


def test_every_finite_bf16_is_read_exactly(tmp_path: Path) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    bits = bits[(bits & 0x7F80) != 0x7F80]
    path = tmp_path / "a.safetensors"
    path.write_bytes(ck.safetensors_bytes({"x": bits}))
    wide = bits.astype(np.uint64)
    sign = np.where(wide >> 15, -1.0, 1.0)
    exponent, fraction = ((wide >> 7) & 255).astype(int), (wide & 127).astype(float)
    value = np.where(exponent > 0, np.ldexp(1 + fraction / 128, exponent - 127),
                     np.ldexp(fraction / 128, -126))  # fmt: skip
    assert np.array_equal(all_rows(path, "x")[0], (sign * value).astype(np.float32))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_weights_are_named_with_their_index(tmp_path: Path, bad: float) -> None:
    array = np.zeros((6, 4), np.float32)
    array[3, 2] = array[5, 1] = bad
    path = tmp_path / "a.safetensors"
    path.write_bytes(ck.safetensors_bytes({"some.weight": array}))
    with refused(r"a\.safetensors: some\.weight: weight -?(nan|inf) at index \[3, 2\]"):
        list(read_safetensors(path)["some.weight"].rows(8))


def test_index_of_a_non_finite_weight_in_a_vector(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(ck.safetensors_bytes({"v": np.array([1, 2, np.nan], np.float32)}))
    with refused(r"at index \[2\]"):
        list(read_safetensors(path)["v"].rows(8))


def test_types_without_a_conversion_are_refused_when_read(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(ck.safetensors_bytes({"x": np.zeros((2, 2), np.float64)}))
    tensor = read_safetensors(path)["x"]
    with refused("F64.*valid is F32, F16, BF16"):
        next(tensor.rows(8))


def test_every_prefix_is_refused_with_both_sizes(tmp_path: Path) -> None:
    whole = ck.safetensors_bytes({"x": np.ones((3, 4), np.float32), "y": np.ones(2, np.float16)})
    path = tmp_path / "a.safetensors"
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError) as caught:
            read_safetensors(path)
        text = str(caught.value)
        assert str(path) in text
        assert "cut short" in text
        assert f"has {size}" in text
        expected = int(re.findall(r"expected (?:at least )?(\d+) bytes", text)[0])
        assert size < expected <= len(whole)
        if size >= len(whole) - 52:
            assert expected == len(whole)


def test_bytes_after_the_end_are_refused(tmp_path: Path) -> None:
    whole = ck.safetensors_bytes({"x": np.ones(4, np.float32)})
    (tmp_path / "a").write_bytes(whole + b"\0")
    with refused(f"expected {len(whole)} bytes, has {len(whole) + 1}"):
        read_safetensors(tmp_path / "a")


def entry(begin: int = 0, end: int = 16, dtype: Any = "F32", shape: Any = (4,)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape) if isinstance(shape, tuple) else shape,
            "data_offsets": [begin, end]}  # fmt: skip


HEADERS = {
    "overlap": ({"x": entry(), "y": entry(8, 16, shape=(2,))}, "y: overlaps.*expected 16"),
    "hole": ({"x": entry(4, 16, shape=(3,))}, "x: leaves a hole.*expected 0"),
    "span": ({"x": entry(shape=(3,))}, r"x: data_offsets span 16 bytes, F32 \[3\] has 12"),
    "dtype": ({"x": entry(dtype="F33")}, "x: unknown dtype 'F33'; known are"),
    "dtype type": ({"x": entry(dtype=[1])}, "unknown dtype"),
    "negative": ({"x": entry(-16, 0)}, r"x: data_offsets \[-16, 0\]"),
    "backwards": ({"x": entry(16, 0)}, "x: data_offsets span -16"),
    "float size": ({"x": entry(shape=(4.0,))}, "x: shape"),
    "bool size": ({"x": entry(shape=(True, 4))}, "x: shape"),
    "huge size": ({"x": entry(shape=(1 << 62, 1 << 62))}, "x: data_offsets span"),
    "huger size": ({"x": entry(shape=(1 << 63,))}, "x: shape"),
    "many dimensions": ({"x": entry(shape=(1,) * 9)}, "x: shape"),
    "shape type": ({"x": entry(shape=7)}, "x: shape"),
    "keys": ({"x": {"dtype": "F32", "shape": [4]}}, "x: header entry must have"),
    "more keys": ({"x": {**entry(), "z": 1}}, "x: header entry must have"),
    "entry type": ({"x": 5}, "x: header entry must have"),
    "header type": ([entry()], "header: must hold a JSON object"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_wrong_headers_are_refused(tmp_path: Path, case: str) -> None:
    header, text = HEADERS[case]
    path = tmp_path / "a.safetensors"
    path.write_bytes(ck.safetensors_bytes({"x": np.ones(4, np.float32)}, header))
    with refused(text) as caught:
        read_safetensors(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (b'{"x": 1', "header: is not valid JSON"),
        (b"\xff\xfe{}", "header: is not valid JSON"),
        (b"[" * 100_000, "header: is not valid JSON"),
        (b'{"x": {}, "x": {}}', "header: key 'x' is there twice"),
        (b"", "header: is not valid JSON"),
    ],
)
def test_headers_that_are_no_objects(tmp_path: Path, text: bytes, match: str) -> None:
    path = tmp_path / "a"
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    with refused(match):
        read_safetensors(path)


def test_header_length_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\xff" * 8 + b"{}")
    with refused("header length is 18446744073709551615; valid are at most"):
        read_safetensors(tmp_path / "a")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with refused("gone: No such file"):
        read_safetensors(tmp_path / "gone")
    with refused("nowhere: is not a folder"):
        Checkpoint.open(tmp_path / "nowhere")
    with refused(r"config\.json: No such file"):
        Checkpoint.open(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with refused(r"has no weights; it must have .*model\.safetensors or "):
        Checkpoint.open(tmp_path)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("{", "is not valid JSON"),
        ("[]", "must hold a JSON object"),
        ('{"a": 1, "a": 1}', "key 'a' is there twice"),
        ('{"a": {"b": 1, "b": 2}}', "key 'b' is there twice"),
        ('{"a": ' + "9" * 5000 + "}", "is not valid JSON"),
    ],
)
def test_json_files_are_checked(tmp_path: Path, text: str, match: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with refused(match):
        read_json(tmp_path / "config.json")


def test_optional_files_are_noted(tmp_path: Path) -> None:
    notes = Checkpoint.open(ck.write(tmp_path)).notes
    assert [note.split(":")[0] for note in notes] == [
        "no generation_config.json",
        "no tokenizer.json",
    ]


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        (3, None, [3]),
        (None, None, []),
        ([5, 3, 5], None, [3, 5]),
        (3, 7, [3, 7]),
        (3, [7, 3, 0], [0, 3, 7]),
        (None, [9], [9]),
        ([], [], []),
    ],
)
def test_stop_ids_are_the_union(
    tmp_path: Path, config: Any, generation: Any, expected: list[int]
) -> None:
    ck.write(tmp_path, eos_token_id=config)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
    assert Checkpoint.open(tmp_path).stop_ids(40) == expected


@pytest.mark.parametrize("bad", [-1, 40, "3", 3.0, True, [3, 40], [[3]]])
@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_wrong_stop_ids_are_refused(tmp_path: Path, bad: Any, file: str) -> None:
    ck.write(tmp_path)
    (tmp_path / "generation_config.json").write_text("{}")
    path = tmp_path / file
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": bad}))
    with refused(rf"{file}: eos_token_id: is .*valid is an id from 0 to 39"):
        Checkpoint.open(tmp_path).stop_ids(40)


class TestShards:
    names = ("a", "b", "c")

    def tensors(self) -> ck.Tensors:
        return {n: np.full((2, 2), i, np.float32) for i, n in enumerate(self.names)}

    def folder(self, tmp_path: Path) -> tuple[Path, dict[str, str]]:
        ck.write(tmp_path, tensors=self.tensors())
        return tmp_path, ck.write_sharded(tmp_path, self.tensors(), [["a", "b"], ["c"]])

    def test_all_are_found(self, tmp_path: Path) -> None:
        folder, _ = self.folder(tmp_path)
        opened = Checkpoint.open(folder)
        assert sorted(opened.tensors) == ["a", "b", "c"]
        assert not opened.missing
        assert next(opened.tensors["c"].rows(9))[1, 1] == 2

    def test_a_missing_shard_is_remembered(self, tmp_path: Path) -> None:
        folder, weight_map = self.folder(tmp_path)
        (folder / weight_map["c"]).unlink()
        assert Checkpoint.open(folder).missing == {"c": folder / weight_map["c"]}

    def test_a_tensor_that_its_shard_does_not_have(self, tmp_path: Path) -> None:
        folder, weight_map = self.folder(tmp_path)
        ck.write_index(folder, {**weight_map, "d": weight_map["a"]})
        assert Checkpoint.open(folder).missing == {"d": folder / weight_map["a"]}

    def test_the_same_tensor_twice(self, tmp_path: Path) -> None:
        folder, weight_map = self.folder(tmp_path)
        (folder / weight_map["c"]).write_bytes(ck.safetensors_bytes(self.tensors()))
        with refused("a: is in model-00001-of-00002.safetensors and in model-00002"):
            Checkpoint.open(folder)

    @pytest.mark.parametrize("shard", ["../x", "/etc/x", "a/b", "", ".", "..", 5, None])
    def test_shards_lie_in_the_folder(self, tmp_path: Path, shard: Any) -> None:
        folder, weight_map = self.folder(tmp_path)
        ck.write_index(folder, {**weight_map, "a": shard})
        with refused(r"index\.json: weight_map: a: is .*same folder"):
            Checkpoint.open(folder)

    @pytest.mark.parametrize("index", [{}, {"weight_map": []}, {"weight_map": {}}])
    def test_a_weight_map_must_be_there(self, tmp_path: Path, index: Any) -> None:
        folder, _ = self.folder(tmp_path)
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        with refused("weight_map: must be an object"):
            Checkpoint.open(folder)

    def test_a_single_file_wins_and_it_is_noted(self, tmp_path: Path) -> None:
        folder, _ = self.folder(tmp_path)
        (folder / "model.safetensors").write_bytes(
            ck.safetensors_bytes({"z": np.ones(1, np.float32)})
        )
        opened = Checkpoint.open(folder)
        assert list(opened.tensors) == ["z"]
        assert any("index.json is ignored" in note for note in opened.notes)
