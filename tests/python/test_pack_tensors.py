# SPDX-License-Identifier: Apache-2.0
"""The packer: tensors that are there, missing, left over, damaged or tied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import checkpoints as ck
from colibri.pack import pack
from image_reader import walk
from packing import make, refuse


@pytest.mark.parametrize(
    "prefix", ["", "language_model.model.", "model.language_model.", "language_model."]
)
def test_prefixes_do_not_matter(tmp_path: Path, prefix: str) -> None:
    tensors = ck.random_tensors(ck.CONFIG)
    source = ck.write(tmp_path / "in", tensors=tensors)
    first = make(source, tmp_path, "a", quant="q8").read_bytes()
    renamed = {prefix + n.removeprefix("model."): t for n, t in tensors.items()}
    ck.write(source, tensors=renamed)
    assert make(source, tmp_path, "b", quant="q8").read_bytes() == first


def test_bf16_weights_survive_bit_for_bit(tmp_path: Path) -> None:
    source = ck.GOLDEN / "qwen2_moe"
    exact, short = (walk(make(source, tmp_path, q, quant=q)) for q in ("f32", "bf16"))
    assert short.types["expert_up"] == "bf16"
    for key, value in exact.tensors.items():
        assert np.array_equal(value, short.tensors[key]), key


def test_padded_columns_are_said(tmp_path: Path) -> None:
    source = ck.write(tmp_path / "in", moe_intermediate_size=33)
    packed = pack(source, tmp_path / "out", quant="q4", selftest=ck.no_selftest)
    w = walk(packed.image)
    notes = [note for note in packed.notes if "padded" in note]
    bits = 8 * (32 * 64 // 2 + 32 * 2 * 2) / (32 * 33)
    assert notes == [f"expert_down: 33 columns padded to groups of 32, {bits:.3f} bits per weight"]
    assert notes[0] in w.notes["notes"]
    assert w.tensors[0, "expert_down", 0].shape == (32, 33)


@pytest.mark.parametrize("head", ["none", "same", "other"])
def test_tied(tmp_path: Path, head: str) -> None:
    tensors = ck.random_tensors(ck.CONFIG)
    embedding = tensors["model.embed_tokens.weight"]
    tensors["lm_head.weight"] = embedding.copy()
    if head == "none":
        del tensors["lm_head.weight"]
    elif head == "other":
        tensors["lm_head.weight"][0, 0] += 1
    source = ck.write(tmp_path / "in", tensors=tensors, tie_word_embeddings=True)
    packed = pack(source, tmp_path / "out", quant="f32", selftest=ck.no_selftest)
    w = walk(packed.image)
    assert w.config["tied"] == 1
    assert (None, "output") not in w.tensors
    assert np.array_equal(w.tensors[None, "embedding"], embedding)
    said = " ".join(n for n in packed.notes if "lm_head" in n)
    assert said.startswith({"none": "", "same": "lm_head.weight ignored", "other": "WARNING"}[head])
    assert bool(said) == (head != "none")


def test_untied_needs_its_output(tmp_path: Path) -> None:
    tensors = ck.random_tensors(ck.CONFIG)
    del tensors["lm_head.weight"]
    source = ck.write(tmp_path / "in", tensors=tensors)
    refuse(tmp_path, source, "tensors are missing: lm_head.weight", "tie_word_embeddings")


def changed(tmp_path: Path, change: Any) -> Path:
    tensors = ck.random_tensors(ck.CONFIG)
    change(tensors)
    return ck.write(tmp_path / "in", tensors=tensors)


def test_missing_tensors_are_named(tmp_path: Path) -> None:
    names = ("model.layers.1.mlp.experts.2.up_proj.weight", "model.layers.0.self_attn.q_proj.bias")
    source = changed(tmp_path, lambda t: [t.pop(n) for n in names])
    refuse(tmp_path, source, *(n.removeprefix("model.") for n in names), "are missing")


def test_unused_tensors_are_named(tmp_path: Path) -> None:
    extra = "model.layers.0.mlp.experts.4.up_proj.weight"
    source = changed(tmp_path, lambda t: t.update({extra: np.zeros((2, 2), np.float32)}))
    refuse(tmp_path, source, f"no use for: {extra}")


def test_many_unused_tensors_are_counted(tmp_path: Path) -> None:
    source = changed(
        tmp_path, lambda t: t.update({f"x{i}": np.ones(1, np.float32) for i in range(20)})
    )
    refuse(tmp_path, source, "x0, x1", "and 12 more")


def test_known_buffers_are_ignored(tmp_path: Path) -> None:
    buffer = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32)}
    source = changed(tmp_path, lambda t: t.update(buffer))
    walk(make(source, tmp_path))


def test_a_name_with_and_without_prefix_is_there_twice(tmp_path: Path) -> None:
    source = changed(tmp_path, lambda t: t.update({"norm.weight": t["model.norm.weight"]}))
    refuse(tmp_path, source, "is the same tensor as", "norm.weight", "keep one")


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("model.embed_tokens.weight", (41, 32), "[40, 32]"),
        ("model.norm.weight", (1, 32), "[32]"),
        ("model.layers.0.self_attn.k_proj.weight", (32, 32), "[16, 32]"),
        ("model.layers.1.mlp.gate.weight", (32, 4), "[4, 32]"),
        ("model.layers.1.mlp.shared_expert_gate.weight", (32,), "[1, 32]"),
        ("model.layers.0.mlp.experts.1.down_proj.weight", (0, 32), "[32, 32]"),
    ],
)
def test_wrong_shapes(tmp_path: Path, name: str, shape: tuple[int, ...], expected: str) -> None:
    source = changed(tmp_path, lambda t: t.update({name: np.zeros(shape, np.float32)}))
    refuse(tmp_path, source, "model.safetensors", name, f"{list(shape)}, expected {expected}")


@pytest.mark.parametrize(
    "name", ["lm_head.weight", "model.layers.1.mlp.experts.3.down_proj.weight"]
)
@pytest.mark.parametrize("jobs", [1, 3])
def test_nan_leaves_nothing(tmp_path: Path, name: str, jobs: int) -> None:
    source = changed(tmp_path, lambda t: t[name].__setitem__((5, 6), np.nan))
    refuse(tmp_path, source, name, "weight nan at index [5, 6]", jobs=jobs)


@pytest.mark.parametrize("cut", ["last byte", "half", "header"])
def test_truncated_files_leave_nothing(tmp_path: Path, cut: str) -> None:
    source = ck.write(tmp_path / "in")
    path = source / "model.safetensors"
    data = path.read_bytes()
    size = {"last byte": len(data) - 1, "half": len(data) // 2, "header": 100}[cut]
    path.write_bytes(data[:size])
    expected = [] if cut == "header" else [f"expected {len(data)} bytes"]
    refuse(tmp_path, source, str(path), "cut short", f"has {size}", *expected)


def test_weights_too_large_for_a_type(tmp_path: Path) -> None:
    name = "model.layers.1.mlp.experts.3.down_proj.weight"
    source = changed(tmp_path, lambda t: t[name].__setitem__((5, 6), 1e7))
    place = "expert_down, layer 1, expert 3: weight 1e+07"
    refuse(tmp_path, source, place, "of q4 at row 5, column 6", quant="q4")
    refuse(tmp_path, source, place, "out of range of f16", quant="f16")
    walk(make(source, tmp_path, quant="bf16"))


class TestMissingShards:
    def sharded(self, tmp_path: Path) -> tuple[Path, dict[str, str]]:
        tensors = ck.random_tensors(ck.CONFIG)
        source = ck.write(tmp_path / "in", tensors=tensors)
        names = sorted(tensors)
        return source, ck.write_sharded(source, tensors, [names[:20], names[20:]])

    def test_needed(self, tmp_path: Path) -> None:
        source, weight_map = self.sharded(tmp_path)
        shard = weight_map["lm_head.weight"]
        (source / shard).unlink()
        refuse(tmp_path, source, f"the index puts it into {shard}, which is missing", "weight")

    def test_a_tensor_not_in_its_shard(self, tmp_path: Path) -> None:
        source, weight_map = self.sharded(tmp_path)
        shard = weight_map["lm_head.weight"]
        tensors = ck.random_tensors(ck.CONFIG)
        kept = {
            n: tensors[n] for n, s in weight_map.items() if s == shard and n != "lm_head.weight"
        }
        (source / shard).write_bytes(ck.safetensors_bytes(kept))
        refuse(
            tmp_path,
            source,
            f"lm_head.weight: the index puts it into {shard}, which does not have it",
        )

    def test_not_needed(self, tmp_path: Path) -> None:
        source, weight_map = self.sharded(tmp_path)
        ck.write_index(source, {**weight_map, "mtp.layers.0.weight": "model-mtp.safetensors"})
        packed = pack(source, tmp_path / "out", selftest=ck.no_selftest)
        assert any("not needed: mtp.layers.0.weight" in note for note in packed.notes)
