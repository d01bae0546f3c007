# SPDX-License-Identifier: Apache-2.0
"""The packer: what a config says, and what it may not say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import checkpoints as ck
from colibri.checkpoint import Checkpoint
from colibri.descriptors import families
from colibri.families import describe
from colibri.pack import pack
from image_reader import walk
from packing import make, oracle, refuse
from spec_page import WORDS


def test_settings_and_notes_of_the_demo_model(tmp_path: Path) -> None:
    packed = pack(ck.DEMO, tmp_path / "demo", quant="q4", selftest=ck.no_selftest)
    w = walk(packed.image)
    others = {word.name: float(word.name.endswith("_scale")) for word in WORDS[22:]}
    others |= {"temperature_scale": 0.0, "latent_epsilon": pytest.approx(1e-6)}
    assert w.config == {
        **others, "vocabulary": 4096, "hidden": 128, "layers": 6, "context": 1024, "heads": 4,
        "kv_heads": 2, "head_size": 32, "rope_size": 32, "rope_style": 0, "activation": 1,
        "router": 1, "router_flags": 1, "experts": 16, "top_k": 2, "expert_size": 192,
        "shared_size": 192, "shared_flags": 1, "dense_size": 0, "tied": 1, "rope_scale": 1.0,
        "norm_epsilon": pytest.approx(1e-6), "attention_scale": pytest.approx(32**-0.5),
    }  # fmt: skip
    assert w.stop == [0]
    assert w.tokenizer == (ck.DEMO / "tokenizer.json").read_bytes()
    assert len(w.tokens) == 8
    assert len(set(w.tokens)) == 8
    assert max(w.tokens) > 3000 > 400 > min(w.tokens)
    assert w.notes["checkpoint"] == "demo-moe"
    assert w.notes["architecture"] == "Qwen2MoeForCausalLM"
    assert w.notes["notes"] == []
    assert "/" not in json.dumps(w.notes)
    assert packed.bytes == packed.image.stat().st_size
    assert packed.parameters == 8_355_712
    assert sum(packed.roles.values()) * 8 / packed.parameters == packed.bits_per_weight < 4.81


def test_rope_frequencies_are_the_references(tmp_path: Path) -> None:
    """Theta 10000, 32 dimensions: 10000 ** (-i / 16), within float32 rounding."""
    w = walk(make(ck.DEMO, tmp_path, quant="f32"))
    got = w.tensors[None, "rope"][0]
    exact = np.array([10000.0 ** (-i / 16) for i in range(16)])
    assert got[0] == 1
    assert got[8] == np.float32(0.01)
    assert got[4] == np.float32(0.1)
    assert np.abs(got / exact - 1).max() < 2**-23


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ({"mlp_only_layers": [0]}, [False, True, True]),
        ({"mlp_only_layers": [2, 0]}, [False, True, False]),
        ({"decoder_sparse_step": 2}, [False, True, False]),
        ({"mlp_only_layers": [0, 1, 2]}, [False, False, False]),
    ],
)
def test_dense_layers(tmp_path: Path, changes: dict[str, Any], kinds: list[bool]) -> None:
    source = ck.write(tmp_path / "in", num_hidden_layers=3, **changes)
    w = walk(make(source, tmp_path, quant="q4"))
    assert w.expert_layers == kinds
    assert w.config["dense_size"] == 48
    assert w.config["experts"] == (4 if any(kinds) else 0)
    oracle(w).logits(np.arange(9))


def test_no_bias_and_a_head_size_of_its_own(tmp_path: Path) -> None:
    config = {**ck.CONFIG, "qkv_bias": False, "head_dim": 16}
    tensors = {n: t for n, t in ck.random_tensors(config).items() if not n.endswith("bias")}
    w = walk(make(ck.write(tmp_path / "in", config, tensors), tmp_path, quant="q8"))
    assert w.config["head_size"] == 16
    assert "query_bias" not in w.types
    assert w.tensors[0, "attention_out"].shape == (32, 64)


def test_context_above_the_format_is_cut_and_said(tmp_path: Path) -> None:
    source = ck.write(tmp_path / "in", max_position_embeddings=262144)
    packed = pack(source, tmp_path / "out", quant="f32", selftest=ck.no_selftest)
    assert walk(packed.image).config["context"] == 131072
    assert any("from 262144 to 131072" in note for note in packed.notes)


@pytest.mark.parametrize(
    ("key", "value", "valid"),
    [
        ("hidden_size", "32", "an integer, 1 or more"),
        ("hidden_size", 32.0, "an integer, 1 or more"),
        ("hidden_size", True, "an integer, 1 or more"),
        ("hidden_size", 0, "an integer, 1 or more"),
        ("hidden_size", [32], "an integer, 1 or more"),
        ("hidden_act", "gelu", '"silu"'),
        ("rms_norm_eps", 0, "a number, more than 0"),
        ("rms_norm_eps", "1e-6", "a number, more than 0"),
        ("norm_topk_prob", 1, "true or false"),
        ("mlp_only_layers", [0.5], "a list of integers"),
        ("mlp_only_layers", 1, "a list of integers"),
        ("layer_types", ["chunked_attention"] * 2, 'a list of "full_attention"'),
        ("layer_types", ["full_attention"] * 3, "a list with an entry for each"),
        ("use_sliding_window", 1, "true or false"),
        ("decoder_sparse_step", 0, "an integer, 1 or more"),
        ("partial_rotary_factor", 0.5, "1.0"),
        ("num_experts_per_tok", 5, "1 to the 4 experts"),
        ("num_experts_per_tok", 65, "0 to 64"),
        ("num_key_value_heads", 3, "a divisor of the 4 heads"),
        ("head_dim", 7, "an even number"),
        ("vocab_size", 1 << 25, "1 to 16777216"),
        ("num_hidden_layers", 1025, "1 to 1024"),
        ("num_hidden_layers", 10**15, "1 to 1024"),
        ("rope_theta", 0.5, "a number from 1 up"),
        ("rope_theta", 1e300, "a number, more than 0"),
        ("rope_theta", 10**400, "a number, more than 0"),
        ("rms_norm_eps", 1e300, "a number, more than 0"),
        ("rms_norm_eps", 1e-60, "a positive number that float32 can hold"),
        ("head_dim", 10**400, "an integer, 2 or more"),
    ],
)
def test_wrong_config_keys(tmp_path: Path, key: str, value: Any, valid: str) -> None:
    source = ck.write(tmp_path / "in")
    ck.change_config(source, **{key: ... if value is None else value})
    refuse(tmp_path, source, "config.json: ", key, f"valid is {valid}")


@pytest.mark.parametrize("at", ["rope_parameters", "rope_scaling", "old"])
def test_unknown_rope_types_are_refused_by_name(tmp_path: Path, at: str) -> None:
    place, key = ("rope_scaling", "type") if at == "old" else (at, "rope_type")
    source = ck.write(tmp_path / "in", **{place: {key: "spiral", "factor": 2.0}})
    refuse(tmp_path, source, 'config.json: rope_type: is "spiral"; valid is default, ')


def test_two_places_must_agree(tmp_path: Path) -> None:
    source = ck.write(tmp_path / "in", rope_parameters={"rope_theta": 500.0})
    refuse(tmp_path, source, "rope_theta: is 10000.0, but rope_parameters.rope_theta is 500.0")
    ck.write(source, rope_parameters={"rope_theta": 500.0, "rope_type": "default"}, rope_theta=None)
    w = walk(make(source, tmp_path, quant="f32"))
    assert w.tensors[None, "rope"][0, 1] == pytest.approx(500.0 ** (-1 / 4))


@pytest.mark.parametrize(
    "value",
    [None, [], "Qwen2MoeForCausalLM", ["NewForCausalLM"], [7], ["Qwen2MoeForCausalLM"] * 2],
)
def test_unknown_architectures_list_the_supported_ones(tmp_path: Path, value: Any) -> None:
    source = ck.write(tmp_path / "in", architectures=value)
    refuse(tmp_path, source, "config.json: architectures: ", "MixtralForCausalLM, ", "Qwen2Moe")


@pytest.mark.parametrize("window", [None, 1, 255, 4096])
def test_mixtral_sliding_window(tmp_path: Path, window: int | None) -> None:
    source = ck.change_config(ck.copy_golden("mixtral", tmp_path), sliding_window=window)
    model = describe(Checkpoint.open(source).config, source / "config.json")
    assert [layer.window for layer in model.layers] == [window or 0] * 2


def test_mixtral_always_renormalises(tmp_path: Path) -> None:
    w = walk(make(ck.GOLDEN / "mixtral", tmp_path, quant="f32"))
    assert (w.config["router_flags"], w.config["shared_size"], w.config["shared_flags"]) == (
        1,
        0,
        0,
    )
    w = walk(make(ck.GOLDEN / "qwen2_moe", tmp_path, quant="f32"))
    assert (w.config["router_flags"], w.config["shared_flags"]) == (0, 1)


def test_descriptors_name_roles_completely() -> None:
    for family in families().values():
        assert {"embedding", "output", "output_norm"} <= set(family.tensors)
        experts = {"router", "expert_gate", "expert_up", "expert_down"} <= set(family.tensors)
        assert experts == (family.layer.experts != "False")
