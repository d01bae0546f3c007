# SPDX-License-Identifier: Apache-2.0
"""Faults that users of other engines reported; each test is named after its public report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import checkpoints as ck
from colibri import Engine, Image, _core
from colibri.descriptors import families
from colibri.errors import CheckpointError
from colibri.pack import pack
from family_runs import Choices, distance, packed, run, tensors_of

IDS = np.arange(3, 15) * 7919 % 320
Change = Callable[[ck.Tensors], object]


def changed(name: str, folder: Path, change: Change = lambda _: None, **config: Any) -> Path:
    """A golden checkpoint with other weights, written as float32, and other config keys."""
    tensors = tensors_of(ck.GOLDEN / name)
    change(tensors)
    source = ck.write(folder / name, json.loads((ck.GOLDEN / name / "config.json").read_text()),
                      tensors)  # fmt: skip
    return ck.change_config(source, **config)


def table(choices: Choices, experts: int) -> NDArray[np.float64]:
    """(token, expert): the weight, or NaN."""
    found = np.full((len(choices), experts), np.nan)
    for token, chosen in choices.items():
        found[token, list(chosen)] = list(chosen.values())
    return found


# Routing


def test_sglang_37133_selection_bias_stays_float32(tmp_path: Path) -> None:
    """Biases of 5 that differ by 1e-3: bfloat16 has a step of 0.03 there."""
    bias = (5 + 1e-3 * np.array([3, 7, 1, 9, 0, 11, 5, 2, 10, 4, 8, 6])).astype(np.float32)

    def change(tensors: ck.Tensors) -> None:
        for name in tensors:
            if name.endswith("e_score_correction_bias"):
                tensors[name] = bias
            elif name.endswith("mlp.gate.weight"):
                tensors[name] = tensors[name] * np.float32(1e-5)  # scores of a half, all but equal

    image = packed(changed("dots1", tmp_path, change))
    found = next(t for t in Image(image).tensors if t.name == "router_selection")
    assert (found.type_name, found.bytes) == ("f32", 4 * 12)
    _, routes = run(image, IDS)
    for choices in routes:
        assert all(set(chosen) == {5, 8, 3, 10} for chosen in choices.values())


def test_fast_llm_83_olmoe_weights_are_not_normalised(tmp_path: Path) -> None:
    plain, normed = (
        run(packed(changed("olmoe", tmp_path / str(norm), norm_topk_prob=norm)), IDS)[1]
        for norm in (False, True)
    )
    sums = [[sum(chosen.values()) for chosen in c.values()] for c in plain]
    assert np.max(sums) < 0.99
    sums = [[sum(chosen.values()) for chosen in c.values()] for c in normed]
    assert np.allclose(sums, 1, rtol=1e-6)


def test_sglang_35160_without_normalisation_weights_are_probabilities(tmp_path: Path) -> None:
    """The two weights are the two largest of the softmax over all sixteen."""
    every, two = (
        run(packed(changed("olmoe", tmp_path / str(k), num_experts_per_tok=k)), IDS)[1][0]
        for k in (16, 2)
    )
    probabilities = table(every, 16)
    assert np.allclose(probabilities.sum(1), 1, rtol=1e-6)
    assert probabilities.min() > 0
    largest = np.sort(probabilities, 1)[:, :-3:-1]
    for token, chosen in two.items():
        assert sorted(chosen.values(), reverse=True) == pytest.approx(largest[token], rel=1e-6)


def reference_choice(
    scores: NDArray[np.float64], bias: NDArray[np.float64], groups: int, kept: int, scale: float
) -> dict[int, float]:
    """Dots1TopkRouter with four experts a token, written down again."""
    ranked = (scores + bias).reshape(groups, -1)
    group_scores = np.sort(ranked, 1)[:, -2:].sum(1)
    lost = np.argsort(-group_scores, kind="stable")[kept:]
    ranked[lost] = -np.inf
    chosen = np.argsort(-ranked.reshape(-1), kind="stable")[:4]
    return {int(i): scale * scores[i] / scores[chosen].sum() for i in chosen}


def grouped(folder: Path, bias: float, **config: Any) -> Path:
    """dots1 with sixteen experts and biases around `bias`."""

    def change(tensors: ck.Tensors) -> None:
        rng = np.random.default_rng(5)
        for layer in (1, 2):
            p = f"model.layers.{layer}.mlp."
            tensors[p + "gate.weight"] = rng.normal(0, 0.3, (16, 64)).astype(np.float32)
            noise = rng.normal(0, 0.1, 16)
            tensors[p + "gate.e_score_correction_bias"] = (bias + noise).astype(np.float32)
            for e in range(12, 16):
                for name in ("gate", "up", "down"):
                    old = tensors[f"{p}experts.{e - 12}.{name}_proj.weight"]
                    tensors[f"{p}experts.{e}.{name}_proj.weight"] = old

    return changed("dots1", folder, change, n_routed_experts=16, **config)


def scores_of(folder: Path) -> NDArray[np.float64]:
    """Plain sigmoids of the first routed layer, whose input does not depend on routing."""
    source = grouped(folder, 0.0, num_experts_per_tok=16, norm_topk_prob=False,
                     routed_scaling_factor=1.0)  # fmt: skip
    scores = table(run(packed(source), IDS)[1][0], 16)
    assert scores.sum(1).min() > 1.5  # sigmoids, no shares of one
    return scores


def check_groups(folder: Path, bias: float, groups: int, kept: int, scale: float) -> None:
    source = grouped(folder / "grouped", bias, n_group=groups, topk_group=kept,
                     routed_scaling_factor=scale)  # fmt: skip
    choices = run(packed(source), IDS)[1][0]
    biases = tensors_of(source)["model.layers.1.mlp.gate.e_score_correction_bias"]
    for token, scores in enumerate(scores_of(folder / "scores")):
        expected = reference_choice(scores, biases.astype(np.float64), groups, kept, scale)
        assert choices[token] == pytest.approx(expected, rel=1e-5), f"token {token}"


@pytest.mark.parametrize(("groups", "kept"), [(4, 2), (2, 1)])
def test_vllm_37605_all_scores_negative(tmp_path: Path, groups: int, kept: int) -> None:
    """A mask of zero instead of minus infinity would let the dropped groups win."""
    check_groups(tmp_path, -10.0, groups, kept, 1.0)


@pytest.mark.parametrize(
    ("groups", "kept", "scale"), [(8, 4, 2.5), (8, 4, 1.0), (1, 1, 1.8), (4, 4, 2.5), (4, 2, 1.8)]
)
def test_lmdeploy_3491_groups_and_scale(
    tmp_path: Path, groups: int, kept: int, scale: float
) -> None:
    check_groups(tmp_path, 0.0, groups, kept, scale)


def test_jlama_201_expert_outputs_are_weighted(tmp_path: Path) -> None:
    """Experts whose outputs are as 1 to 100, half a weight each, are one expert of 50.5."""
    down = "model.layers.{}.block_sparse_moe.experts.{}.w2.weight"

    def alike(tensors: ck.Tensors, scales: list[float]) -> None:
        for layer in (0, 1):
            for e, scale in enumerate(scales):
                for name in ("w1", "w2", "w3"):
                    at = down.format(layer, e).replace("w2", name)
                    tensors[at] = tensors[at.replace(f"experts.{e}", "experts.0")].copy()
                tensors[down.format(layer, e)] *= np.float32(scale)
            gate = f"model.layers.{layer}.block_sparse_moe.gate.weight"
            tensors[gate] = np.zeros((len(scales), 64), np.float32)
            for e in range(len(scales), 8):
                for name in ("w1", "w2", "w3"):
                    del tensors[down.format(layer, e).replace("w2", name)]

    two = changed("mixtral", tmp_path / "two", lambda t: alike(t, [1.0, 100.0]),
                  num_local_experts=2)  # fmt: skip
    one = changed("mixtral", tmp_path / "one", lambda t: alike(t, [50.5]), num_local_experts=1,
                  num_experts_per_tok=1)  # fmt: skip
    logits, routes = run(packed(two), IDS)
    assert all(c == {0: 0.5, 1: 0.5} for choices in routes for c in choices.values())
    assert distance(logits, run(packed(one), IDS)[0]) < 1e-5


@pytest.mark.parametrize(
    ("name", "bias"),
    [("dots1", "mlp.gate.e_score_correction_bias"),
     ("glm4_moe", "mlp.gate.e_score_correction_bias"),
     ("solar_open", "mlp.gate.e_score_correction_bias"),
     ("exaone_moe", "mlp.e_score_correction_bias"),
     ("minimax_m2", "block_sparse_moe.e_score_correction_bias"),
     ("afmoe", "mlp.expert_bias"),
     ("ernie4_5_moe", "mlp.moe_statics.e_score_correction_bias")],
)  # fmt: skip
def test_sglang_10440_a_missing_selection_bias_is_an_error(
    tmp_path: Path, name: str, bias: str
) -> None:
    lost = f"layers.2.{bias}"
    source = changed(name, tmp_path, lambda t: t.pop(f"model.{lost}"))
    with pytest.raises(CheckpointError, match=f"tensors are missing: {lost}"):
        packed(source)
    assert not source.with_suffix(".colibri").exists()


@pytest.mark.parametrize("kernels", _core.kernels())
def test_llama_cpp_25442_sums_beyond_half_precision(tmp_path: Path, kernels: str) -> None:
    """Sums within experts, and what experts give, far above 65504."""

    def larger(up: int, down: int) -> Change:
        def change(tensors: ck.Tensors) -> None:
            for name in tensors:
                if name.endswith((".w3.weight", ".w2.weight")):
                    power = up if ".w3." in name else down
                    tensors[name] = tensors[name] * np.float32(2.0**power)

        return change

    plain = run(packed(changed("mixtral", tmp_path / "plain")), IDS, kernels=kernels)[0]
    back = packed(changed("mixtral", tmp_path / "back", larger(20, -20)))
    assert distance(run(back, IDS, kernels=kernels)[0], plain) < 1e-5
    for quant in ("f32", "q8", "q4"):
        source = changed("mixtral", tmp_path / quant, larger(18, 0))
        assert np.isfinite(run(packed(source, quant), IDS, kernels=kernels)[0]).all()


# Converter


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("head", ["none", "same", "other"])
def test_llama_cpp_13768_tied_or_not_with_or_without_a_head(
    tmp_path: Path, tied: bool, head: str
) -> None:
    def change(tensors: ck.Tensors) -> None:
        if head == "none":
            del tensors["lm_head.weight"]
        elif head == "same":
            tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]

    source = changed("mixtral", tmp_path, change, tie_word_embeddings=tied)
    if not tied and head == "none":
        with pytest.raises(CheckpointError, match=r"tensors are missing: lm_head\.weight"):
            packed(source)
        return
    result = pack(source, tmp_path / "image", quant="f32")
    assert Image(tmp_path / "image").config["tied"] == tied
    notes = " ".join(result.notes)
    assert ("lm_head.weight ignored" in notes) == (tied and head != "none")
    assert ("WARNING" in notes) == (tied and head == "other")


def fuse(tensors: ck.Tensors, layers: range, experts: int, *, turned: bool) -> None:
    for layer in layers:
        p = f"model.layers.{layer}.mlp.experts."
        one = {n: [tensors.pop(f"{p}{e}.{n}_proj.weight") for e in range(experts)]
               for n in ("gate", "up", "down")}  # fmt: skip
        both = np.concatenate([np.stack(one["gate"]), np.stack(one["up"])], 1)
        down = np.stack(one["down"])
        axes = (0, 2, 1) if turned else (0, 1, 2)
        tensors[p + "gate_up_proj"] = np.ascontiguousarray(both.transpose(axes))
        tensors[p + "down_proj"] = np.ascontiguousarray(down.transpose(axes))


@pytest.mark.parametrize("turned", [False, True])
def test_colibri_238_fused_experts_are_the_same_model(tmp_path: Path, turned: bool) -> None:
    """Twice the expert's size is the model's here, so one fused matrix looks like the other."""
    name = "qwen3_moe"
    one = packed(changed(name, tmp_path / "one")).read_bytes()
    source = changed(name, tmp_path / "fused", lambda t: fuse(t, range(1, 3), 16, turned=turned)
                     if "model.layers.0.mlp.gate_proj.weight" in t
                     else fuse(t, range(3), 16, turned=turned))  # fmt: skip
    assert packed(source).read_bytes() == one


def test_unsloth_6754_an_unconsumed_expert_tensor_is_an_error(tmp_path: Path) -> None:
    extra = "model.layers.1.mlp.experts.gate_up_bias"
    zeros = np.zeros(4, np.float32)
    source = changed("qwen3_moe", tmp_path, lambda t: t.update({extra: zeros}))
    with pytest.raises(CheckpointError, match=f"no use for: {extra}"):
        packed(source)


@pytest.mark.parametrize("name", ["granitemoe", "afmoe", "minimax_m2"])
@pytest.mark.parametrize("prefix", ["", "model.", "language_model.", "model.language_model.model."])
def test_llama_cpp_9211_names_with_any_known_prefix(tmp_path: Path, name: str, prefix: str) -> None:
    def change(tensors: ck.Tensors) -> None:
        for old in [n for n in tensors if n.startswith("model.")]:
            tensors[prefix + old.removeprefix("model.")] = tensors.pop(old)

    expected = packed(changed(name, tmp_path / "as it is"))
    found = packed(changed(name, tmp_path / "prefixed", change))
    assert distance(run(found, IDS)[0], run(expected, IDS)[0]) == 0


def test_colibri_1368_the_class_decides_not_the_model_type(tmp_path: Path) -> None:
    expected = run(packed(changed("qwen3_moe", tmp_path / "a")), IDS)[0]
    source = changed("qwen3_moe", tmp_path / "b", model_type="qwen2_moe")
    assert np.array_equal(run(packed(source), IDS)[0], expected)
    ck.change_config(source, architectures=["Qwen3MoEForCausalLM"], model_type="qwen3_moe")
    with pytest.raises(CheckpointError) as error:
        packed(source)
    assert all(name in str(error.value) for name in families())


def test_llama_cpp_6745_all_stop_ids_count(tmp_path: Path) -> None:
    source = changed("mixtral", tmp_path, eos_token_id=[7, 2])
    (source / "generation_config.json").write_text('{"eos_token_id": [2, 9]}')
    assert list(Image(packed(source)).stop_ids) == [2, 7, 9]


# Attention


@pytest.mark.parametrize("length", [4, 5, 6])
@pytest.mark.parametrize(
    ("name", "keys"),
    [("mixtral", {"sliding_window": 4}),
     ("qwen3_moe", {"sliding_window": 4, "use_sliding_window": True, "mlp_only_layers": []}),
     ("exaone_moe", {"sliding_window": 4, "layer_types": ["sliding_attention"],
                     "mlp_layer_types": ["dense"]}),
     ("afmoe", {"sliding_window": 4, "layer_types": ["sliding_attention"]})],
)  # fmt: skip
def test_vllm_3385_a_window_of_four_sees_four(
    tmp_path: Path, name: str, keys: dict[str, Any], length: int
) -> None:
    """In a model of one layer the last token depends on itself and the three before it."""

    def one_layer(tensors: ck.Tensors) -> None:
        for tensor in [n for n in tensors if ".layers." in n and ".layers.0." not in n]:
            del tensors[tensor]

    image = packed(changed(name, tmp_path, one_layer, num_hidden_layers=1, **keys))
    ids = [5, 9, 2, 14, 3, 8][:length]
    last = Engine(image, context=length).infer(ids)
    seen = []
    for at in range(length - 1):
        other = [*ids[:at], 100, *ids[at + 1 :]]
        seen.append(bool((Engine(image, context=length).infer(other) != last).any()))
    assert seen == [at > length - 1 - 4 for at in range(length - 1)]


# Memory: experts that are streamed


def test_justvugg_colibri_766_the_size_asked_for_is_kept(tmp_path: Path) -> None:
    image = packed(ck.copy_golden("olmoe", tmp_path), "q4")
    least = Engine(image, 16, weights="streamed", expert_slots=Image(image).config["top_k"])
    for size in range(least.high_water(), least.high_water() + 40_000, 3_333):
        engine = Engine(image, 16, weights="streamed", memory=size)
        assert engine.high_water() <= size


def test_justvugg_colibri_1034_slots_do_not_grow(tmp_path: Path) -> None:
    """After 200 tokens as many experts are missing as ever: nothing stays beyond the two."""
    image = packed(ck.copy_golden("mixtral", tmp_path), "q4")
    engine = Engine(image, 32, weights="streamed", expert_slots=2, trace=True)
    misses = []
    for _ in range(7):
        engine.reset()
        before = engine.experts.misses
        engine.infer(np.arange(30))
        misses.append(engine.experts.misses - before)
    stats, trace = engine.experts, engine.take_trace()
    assert stats.slots == 2
    assert min(misses[1:]) > max(misses) // 2
    assert stats.hits < stats.misses == ((trace["kind"] == _core.EVENTS["read"]).sum() - 1)


def test_justvugg_colibri_1442_a_prompt_may_use_more_experts_than_slots(tmp_path: Path) -> None:
    image = packed(ck.copy_golden("olmoe", tmp_path), "q4")
    fewest = Image(image).config["top_k"]
    prompt = np.arange(30) * 7919 % Image(image).vocabulary
    streamed = Engine(image, 32, batch=30, weights="streamed", expert_slots=fewest, trace=True)
    logits = streamed.infer(prompt)
    assert np.array_equal(logits, Engine(image, 32, batch=30).infer(prompt))
    trace = streamed.take_trace()
    used = trace[trace["kind"] == _core.EVENTS["expert"]]
    assert (used["layer"] == 0).sum() > fewest
