# SPDX-License-Identifier: Apache-2.0
"""The packer: images that a second reader accepts, and nothing left behind when it refuses."""

from __future__ import annotations

import json
import math
import re
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import checkpoints as ck
import colibri
from colibri import cli
from colibri.checkpoint import Checkpoint
from colibri.descriptors import families
from colibri.errors import CheckpointError, ColibriError, PackError
from colibri.families import describe
from colibri.image_format import ROLES
from colibri.pack import pack
from image_reader import Walked, walk
from oracle import Oracle, perplexity
from spec_page import WORDS

QUANTS = ("f32", "f16", "bf16", "q8", "q4")


def make(source: Path, tmp_path: Path, name: str = "out.colibri", **options: Any) -> Path:
    options.setdefault("selftest", ck.no_selftest)
    return pack(source, tmp_path / name, **options).image


def oracle(w: Walked, *, activations: bool = False) -> Oracle:
    vectors = {"router", "shared_router"}
    tensors = {k: v[0] if len(v) == 1 and k[1] not in vectors else v for k, v in w.tensors.items()}
    return Oracle(w.config, w.expert_layers, tensors, w.groups if activations else None)


def refuse(tmp_path: Path, source: Path, *texts: str, **options: Any) -> ColibriError:
    """Packing must fail with these texts, leave no file and touch no older image."""
    out = tmp_path / "out"
    out.mkdir(exist_ok=True)
    target = out / "model.colibri"
    target.write_bytes(b"older")
    options.setdefault("selftest", ck.no_selftest)
    with pytest.raises((CheckpointError, PackError)) as caught:
        pack(source, target, **options)
    assert caught.value.exit_code == 2
    for text in texts:
        assert text in str(caught.value), str(caught.value)
    assert [p.name for p in out.iterdir()] == ["model.colibri"]
    assert target.read_bytes() == b"older"
    return caught.value


# Good input


@pytest.mark.parametrize("name", ["qwen2_moe", "mixtral"])
def test_golden_checkpoints_compute_what_the_reference_does(tmp_path: Path, name: str) -> None:
    w = walk(make(ck.GOLDEN / name, tmp_path, quant="f32"))
    reference = np.load(ck.GOLDEN / name / "reference.npz")
    modules = sorted(key[8:] for key in reference if key.startswith("experts/"))
    model = oracle(w)
    for row, ids in enumerate(reference["input_ids"]):
        logits, expected = model.logits(ids), reference["logits"][row]
        assert np.abs(logits - expected).max() < 1e-5 * np.abs(expected).max()
        for layer, module in enumerate(modules):
            trace = model.trace
            assert np.array_equal(trace.experts[layer], reference[f"experts/{module}"][row])
            assert np.allclose(trace.weights[layer], reference[f"weights/{module}"][row], rtol=1e-5)
        states = reference["hidden_states"][:, row]
        assert np.allclose(model.trace.states, states, atol=1e-5 * np.abs(states).max())


@pytest.mark.parametrize("quant", QUANTS)
@pytest.mark.parametrize("group", [32, 64, 128])
def test_a_second_reader_accepts_every_type(tmp_path: Path, quant: str, group: int) -> None:
    source = ck.write(tmp_path / "in")
    w = walk(make(source, tmp_path, quant=quant, group=group))
    expected = {"embedding": "q8", "output": "q8"} if quant == "q4" else {}
    free = re.compile("embedding|output|query|key|value|attention_out|.*_(gate|up|down)")
    for role, kind in w.types.items():
        assert kind == (expected.get(role, quant) if free.fullmatch(role) else "f32"), role
    assert {g for g in w.groups.values() if g} == ({group} if quant in ("q8", "q4") else set())
    tensors = ck.random_tensors(ck.CONFIG)
    limit = {"f32": 0, "f16": 3e-4, "bf16": 2e-3, "q8": 3e-3, "q4": 0.05}[quant]
    assert (
        np.abs(
            w.tensors[1, "expert_up", 3] - tensors["model.layers.1.mlp.experts.3.up_proj.weight"]
        ).max()
        <= limit
    )
    assert np.abs(w.tensors[None, "output"] - tensors["lm_head.weight"]).max() <= limit
    assert np.array_equal(w.tensors[0, "router"], tensors["model.layers.0.mlp.gate.weight"])
    assert w.stop == [3]
    assert w.selftest == ck.SELFTEST
    assert w.tokenizer is None


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


def test_bf16_weights_survive_bit_for_bit(tmp_path: Path) -> None:
    source = ck.GOLDEN / "qwen2_moe"
    exact, short = (walk(make(source, tmp_path, q, quant=q)) for q in ("f32", "bf16"))
    assert short.types["expert_up"] == "bf16"
    for key, value in exact.tensors.items():
        assert np.array_equal(value, short.tensors[key]), key


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    tensors = ck.random_tensors(ck.CONFIG)
    source = ck.write(tmp_path / "in", tensors=tensors)
    first = make(source, tmp_path, "a", quant="q4").read_bytes()
    assert make(source, tmp_path, "b", quant="q4", jobs=3).read_bytes() == first
    names = sorted(tensors, key=lambda n: n[::-1])
    ck.write_sharded(source, tensors, [names[:7], names[7:30], names[30:]])
    assert make(source, tmp_path, "c", quant="q4", jobs=2).read_bytes() == first


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


def test_padded_columns_are_said(tmp_path: Path) -> None:
    source = ck.write(tmp_path / "in", moe_intermediate_size=33)
    packed = pack(source, tmp_path / "out", quant="q4", selftest=ck.no_selftest)
    w = walk(packed.image)
    notes = [note for note in packed.notes if "padded" in note]
    bits = 8 * (32 * 64 // 2 + 32 * 2 * 2) / (32 * 33)
    assert notes == [f"expert_down: 33 columns padded to groups of 32, {bits:.3f} bits per weight"]
    assert notes[0] in w.notes["notes"]
    assert w.tensors[0, "expert_down", 0].shape == (32, 33)


def test_context_above_the_format_is_cut_and_said(tmp_path: Path) -> None:
    source = ck.write(tmp_path / "in", max_position_embeddings=262144)
    packed = pack(source, tmp_path / "out", quant="f32", selftest=ck.no_selftest)
    assert walk(packed.image).config["context"] == 131072
    assert any("from 262144 to 131072" in note for note in packed.notes)


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


# Tied embeddings


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


# Config


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


# Tensors


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


# Recipes, targets


def recipe(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    return path


def test_recipes_set_types_by_part_and_role(tmp_path: Path) -> None:
    lines = ['quant = "q8"', "group = 64", "[roles]", 'expert_down = "q8"', 'experts = "q4"']
    text = "\n".join([*lines, 'embedding = "f16"', 'router = "f32"'])
    file = recipe(tmp_path, text)
    source = ck.write(tmp_path / "in")
    w = walk(make(source, tmp_path, recipe=file))
    expected = {
        "expert_down": "q8",
        "expert_up": "q4",
        "embedding": "f16",
        "query": "q8",
        "output": "q8",
    }
    assert expected.items() <= w.types.items()
    assert w.groups[0, "query"] == 64
    assert "recipe.toml" in w.notes["recipe"]["name"]
    w = walk(make(source, tmp_path, recipe=file, quant="bf16", group=32))
    assert w.types["query"] == "bf16"
    assert w.types["expert_up"] == "q4"
    assert w.groups[0, "expert_up", 0] == 32


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "[roles]\nexpert = 'q4'",
            "roles.expert: unknown role; valid are embedding, output, attention",
        ),
        ("[roles]\nexperts = 'q5'", "roles.experts: is 'q5'; valid is f32, f16, bf16, q8, q4"),
        ("[roles]\nexperts = 4", "roles.experts: is 4; valid is f32"),
        ("[roles]\nexperts = ['q4']", "roles.experts: is ['q4']; valid is f32"),
        ("[roles]\nrouter = 'q8'", "roles.router: is q8; this role is always f32"),
        ("quant = 'int4'", "quant: is 'int4'; valid is f32"),
        ("group = 48", "group: is 48; valid is 32, 64, 128"),
        ("group = true", "group: is True; valid is"),
        ("group = '32'", "group: is '32'; valid is"),
        ("groups = 32", "groups: unknown key; valid are quant, group"),
        ("roles = 1", "roles: must be a table"),
        ("[roles", "is not valid TOML"),
    ],
)
def test_wrong_recipes(tmp_path: Path, text: str, expected: str) -> None:
    error = refuse(tmp_path, ck.write(tmp_path / "in"), expected, recipe=recipe(tmp_path, text))
    assert "recipe.toml" in str(error)


def test_a_missing_recipe(tmp_path: Path) -> None:
    refuse(
        tmp_path,
        ck.write(tmp_path / "in"),
        "gone.toml: No such file",
        recipe=tmp_path / "gone.toml",
    )


def test_a_group_that_is_none(tmp_path: Path) -> None:
    refuse(tmp_path, ck.write(tmp_path / "in"), "group: is 16; valid is 32, 64, 128", group=16)


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


# The runtime, and the commands


def both(path: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Logits of a golden sequence by the runtime, and by this folder's reader and NumPy."""
    image = colibri.Image(path)
    image.verify()
    ids = np.load(ck.GOLDEN / name / "reference.npz")["input_ids"][0]
    ours = colibri.Engine(image, context=64).infer(ids, all_logits=True)
    return ours, oracle(walk(path), activations=True).logits(ids)


@pytest.mark.parametrize("quant", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("name", ["qwen2_moe", "mixtral"])
def test_the_runtime_agrees_with_the_second_opinion(tmp_path: Path, name: str, quant: str) -> None:
    logits, expected = both(make(ck.GOLDEN / name, tmp_path, quant=quant), name)
    assert np.abs(logits - expected).max() < 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("quant", ["q8", "q4"])
@pytest.mark.parametrize(
    "role", [name for name, r in ROLES.items() if r.part and r.part != "dense"]
)
def test_the_runtime_agrees_on_quantised_roles(tmp_path: Path, role: str, quant: str) -> None:
    """One role at a time: float noise may turn an activation's code, and a chain of them routes."""
    file = recipe(tmp_path, f'quant = "f32"\n[roles]\n{role} = "{quant}"\n')
    logits, expected = both(make(ck.GOLDEN / "qwen2_moe", tmp_path, recipe=file), "qwen2_moe")
    errors = np.abs(logits - expected).max(-1) / np.abs(expected).max()
    assert np.median(errors) < 1e-4
    assert errors.max() < 2e-3


@pytest.mark.parametrize("quant", QUANTS)
def test_golden_checksums_are_the_runtimes(tmp_path: Path, quant: str) -> None:
    path = pack(ck.GOLDEN / "qwen2_moe", tmp_path / "image", quant=quant).image
    image, w = colibri.Image(path), walk(path)
    for kv, crc in zip(("f32", "f16", "q8"), w.selftest, strict=True):
        engine = colibri.Engine(image, context=8, kv=kv)
        engine.selftest()
        rows = engine.infer(w.tokens, all_logits=True)
        assert zlib.crc32(rows.astype("<f4").tobytes()) == crc


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


@pytest.mark.long
def test_perplexity_of_quantised_weights(tmp_path: Path) -> None:
    """The promise of docs/quantisation.md, by the second opinion, on the whole held-out text."""
    tokenizer = colibri.Tokenizer((ck.DEMO / "tokenizer.json").read_bytes())
    texts = [
        np.array(tokenizer.encode(file.read_bytes().decode()))
        for file in sorted((ck.DEMO / "reference").glob("valid_*.txt"))
    ]
    found = {}
    for quant in ("f32", "q8", "q4"):
        w = walk(make(ck.DEMO, tmp_path, quant=quant))
        found[quant] = perplexity(oracle(w, activations=True).logits, texts)
    text = ck.DEMO / "reference" / "calibration.txt"
    w = walk(make(ck.DEMO, tmp_path, quant="q4", calibration_text=text))
    found["calibrated"] = perplexity(oracle(w, activations=True).logits, texts)
    reference = json.loads((ck.DEMO / "reference" / "perplexity.json").read_text())["domains"]
    sums = [sum(d[k] for d in reference.values()) for k in ("nll_sum", "predicted_tokens")]
    assert found["f32"] == pytest.approx(math.exp(sums[0] / sums[1]), rel=1e-5)
    assert found["q8"] < found["f32"] * 1.001
    assert found["q4"] < found["f32"] * 1.025
    assert found["calibrated"] < found["f32"] * 1.012
