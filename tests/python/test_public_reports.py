# SPDX-License-Identifier: Apache-2.0
"""Faults that users of other engines reported; each test is named after its public report."""

from __future__ import annotations

import ctypes
import json
import mmap
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import checkpoints as ck
from colibri import Engine, Image, _core, plan
from colibri.bench.synthetic import Synthetic, make_synthetic
from colibri.boards import load_board
from colibri.descriptors import families
from colibri.engine import MemoryRegion
from colibri.errors import CheckpointError, DoesNotFitError, EngineError, ImageError, PlanError
from colibri.image_format import Order
from colibri.pack import pack
from colibri.placement import Placement
from family_runs import Choices, distance, packed, run, tensors_of
from native import program

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


# Memory

PAGE, PROT_NONE = mmap.PAGESIZE, 0


@contextmanager
def guarded(size: int) -> Iterator[tuple[int, Callable[[], bool]]]:
    """Memory that ends at a page nobody may touch; whether what lies before it is untouched."""
    whole = -(-size // PAGE) * PAGE
    with mmap.mmap(-1, whole + PAGE) as memory:
        base = ctypes.addressof(anchor := ctypes.c_char.from_buffer(memory))
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mprotect(ctypes.c_void_p(base + whole), PAGE, PROT_NONE) == 0
        memory[: whole - size] = b"\xa5" * (whole - size)
        yield base + whole - size, lambda: memory[: whole - size].count(0xA5) == whole - size
        del anchor


@pytest.mark.parametrize("weights", ["mapped", "loaded", "streamed"])
def test_justvugg_colibri_766_nothing_outside_the_planned_bytes(
    tmp_path: Path, weights: str
) -> None:
    """The plan's own minimum, ending at a guard page: enough, and all of it used."""
    image = Image(packed(ck.copy_golden("olmoe", tmp_path), "q4"))
    slots = image.config["top_k"] if weights == "streamed" else None
    own = Engine(image, 16, weights=weights, expert_slots=slots)
    need = own.high_water()
    with guarded(need) as (address, untouched):
        region = MemoryRegion("memory", address, need)
        engine = Engine(image, 16, weights=weights, expert_slots=slots, memory=[region])
        assert np.array_equal(engine.infer(IDS), own.infer(IDS))
        assert engine.high_water() == need
        assert untouched()
        del engine


def test_justvugg_colibri_766_the_size_asked_for_is_kept(tmp_path: Path) -> None:
    image = packed(ck.copy_golden("olmoe", tmp_path), "q4")
    least = Engine(image, 16, weights="streamed", expert_slots=Image(image).config["top_k"])
    tables = least.image.meta_bytes
    fewest = least.high_water() + tables
    for size in range(fewest, fewest + 40_000, 3_333):
        engine = Engine(image, 16, weights="streamed", memory=size)
        assert engine.high_water() + tables <= size


def test_justvugg_colibri_1034_slots_do_not_grow(tmp_path: Path) -> None:
    """Over 210 tokens never more than two experts are in memory: what is read is what a replay
    with two slots has to read."""
    image = packed(ck.copy_golden("mixtral", tmp_path), "q4")
    engine = Engine(
        image, 32, batch=1, weights="streamed", expert_slots=2, policy="lru", trace=True
    )
    for _ in range(7):
        engine.reset()
        engine.infer(np.arange(30))
    trace, stats = engine.take_trace(), engine.experts
    used = trace[trace["kind"] == _core.EVENTS["expert"]]
    held: list[tuple[int, int]] = []  # the last used comes last
    missed = 0
    for step in np.split(used, range(2, len(used), 2)):  # of a layer, a token uses two
        wanted = [(int(e["layer"]), int(e["index"])) for e in step]
        missed += len(set(wanted) - set(held))
        held = wanted
    reads = (trace["kind"] == _core.EVENTS["read"]).sum() - 1  # without the dense part
    assert (stats.slots, stats.misses, stats.hits) == (2, missed, len(used) - missed)
    assert reads == missed > 300


@pytest.mark.parametrize("fused", [False, True])
def test_justvugg_colibri_885_the_plan_prices_what_the_file_has(
    tmp_path: Path, fused: bool
) -> None:
    """Rows of several types, experts under other names: the sums are the file's to the byte."""
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('quant = "q4"\n[roles]\nattention = "q8"\nexpert_down = "q8"\n')

    def change(tensors: ck.Tensors) -> None:
        if fused:
            first = 0 if "model.layers.0.mlp.experts.0.gate_proj.weight" in tensors else 1
            fuse(tensors, range(first, 3), 16, turned=False)

    source = changed("qwen3_moe", tmp_path / "in", change)
    path = pack(source, tmp_path / "m.colibri", recipe=recipe).image
    image = Image(path)
    assert {t.type_name for t in image.tensors if t.is_expert} == {"q4", "q8"}
    assert len(image.experts) == 16 * len(image.expert_layers) >= 32
    size = path.stat().st_size
    dense = next(s for s in image.sections if s.name == "weights")
    records = sum(-(-record.bytes // 64) * 64 for record in image.experts)
    assert dense.offset + -(-dense.bytes // 64) * 64 + records == -(-size // 64) * 64
    mapped = Engine(image, 16).high_water()
    assert Engine(image, 16, weights="loaded").high_water() - mapped == -(-size // 64) * 64
    planned = {
        row[0]: row[3]
        for row in _core.plan(
            image.core,
            _core.Limits(context=16, weights=_core.WEIGHTS["streamed"], expert_slots=16),
            [("memory", 0, 2**40, 0)],
        )["buffers"]
    }
    names = {_core.buffer_name(kind): bytes for kind, bytes in planned.items()}
    assert names["weights"] == -(-dense.bytes // 64) * 64
    assert names["expert_slots"] == 16 * -(-max(r.bytes for r in image.experts) // 64) * 64


@pytest.mark.parametrize("weights", ["mapped", "loaded", "streamed"])
def test_justvugg_colibri_305_a_byte_short_is_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], weights: str
) -> None:
    image = Image(packed(ck.copy_golden("olmoe", tmp_path), "q4"))
    slots = image.config["top_k"] if weights == "streamed" else None
    need = Engine(image, 16, weights=weights, expert_slots=slots).high_water()
    need += image.meta_bytes if weights == "streamed" else 0  # the image's tables are in memory too
    wanted = rf"m?.*: memory region 0 has {need - 1:,} bytes; give it {need:,} bytes$"
    with pytest.raises(DoesNotFitError, match=wanted) as caught:
        Engine(image, 16, weights=weights, expert_slots=slots, memory=need - 1)
    assert (caught.value.exit_code, capfd.readouterr()) == (1, ("", ""))
    assert Engine(image, 16, weights=weights, expert_slots=slots, memory=need).infer(IDS).size


@pytest.mark.parametrize(("family", "slots"), [("llama4_text", 1), ("mixtral", 2)])
def test_justvugg_colibri_316_what_is_being_read_is_not_evicted(
    tmp_path: Path, family: str, slots: int
) -> None:
    """As many slots as a token of one layer uses, reads that come out of order and fail."""
    path = packed(ck.copy_golden(family, tmp_path), "q4")
    assert program("stream", path, slots, 1, 13, 1, 9, 1).count("runs") == 3


@pytest.mark.parametrize("batch", [4, 16, 30])
def test_justvugg_colibri_1442_a_prompt_may_use_more_experts_than_slots(
    tmp_path: Path, batch: int
) -> None:
    """Twice the batch and more, with the slots of one token."""
    image = packed(ck.copy_golden("olmoe", tmp_path), "q4")
    fewest = Image(image).config["top_k"]
    prompt = np.arange(64) * 7919 % Image(image).vocabulary
    streamed = Engine(image, 64, batch=batch, weights="streamed", expert_slots=fewest, trace=True)
    logits = streamed.infer(prompt, all_logits=True)
    assert np.array_equal(logits, Engine(image, 64, batch=batch).infer(prompt, all_logits=True))
    trace = streamed.take_trace()
    step = trace[np.flatnonzero(trace["kind"] == _core.EVENTS["step"])[1] :]
    used = step[(step["kind"] == _core.EVENTS["expert"]) & (step["layer"] == 0)]
    assert len(np.unique(used["index"])) > fewest


def private_bytes() -> int:
    """Memory of this process that belongs to no file."""
    found = re.search(r"^RssAnon:\s*(\d+) kB", Path("/proc/self/status").read_text(), re.M)
    assert found
    return int(found[1]) * 1024


def random_olmoe(folder: Path, order: Order = Order.ROWS, **config: Any) -> Image:
    """Wider than the golden one."""
    given = json.loads((ck.GOLDEN / "olmoe" / "config.json").read_text())
    source = folder / "config.json"
    source.write_text(json.dumps(given | {"hidden_size": 512, "num_hidden_layers": 4} | config))
    return make_synthetic(Synthetic(source, "q8", order=order), folder / "m.colibri")


@pytest.mark.parametrize("order", [Order.ROWS, Order.TILES])
def test_llama_cpp_19578_weights_are_not_copied(tmp_path: Path, order: Order) -> None:
    """Mapped weights in the kernels' order: beside the plan nothing of their size is taken."""
    image = random_olmoe(tmp_path, order, intermediate_size=512)
    assert image.bytes > 50 << 20
    before = private_bytes()
    engine = Engine(image, 16)
    engine.infer(IDS)
    assert private_bytes() - before < engine.high_water() + (4 << 20)
    assert engine.high_water() < image.bytes // 10


def test_llama_cpp_522_scratch_follows_the_context(tmp_path: Path) -> None:
    image = packed(changed("olmoe", tmp_path, max_position_embeddings=4097), "q4")
    engine = Engine(image, 8)
    engine.infer(IDS[:8])
    with pytest.raises(EngineError, match="context of 8 tokens; make the engine with context 9 or"):
        engine.infer(IDS[:1])
    tokens = np.arange(4097) * 7919 % 320
    engines = [Engine(image, n, batch=64) for n in (4096, 4097)]
    assert engines[0].high_water() < engines[1].high_water()
    with guarded(engines[1].high_water()) as (address, untouched):
        region = MemoryRegion("memory", address, engines[1].high_water())
        exact = Engine(image, 4097, batch=64, memory=[region])
        assert exact.infer(tokens).size
        assert untouched()
        del exact
    with pytest.raises(EngineError, match="context of 4096 tokens"):
        engines[0].infer(tokens)
    with pytest.raises(PlanError, match="limit 'context' is 4098; at most 4097"):
        Engine(image, 4098)


@pytest.mark.parametrize("mib", [256, 512])
def test_distributed_llama_59_a_board_too_small_is_refused_before_the_load(
    tmp_path: Path, mib: int
) -> None:
    """With the context, or the slots, that would fit; these do."""
    board = load_board("raspberry-pi-zero-2w")
    (ram,) = (region for region in board.regions if region.writable)
    board = board.model_copy(
        update={"regions": [ram.model_copy(update={"size": mib << 20, "reserved": []})]}
    )
    image = random_olmoe(tmp_path, max_position_embeddings=1 << 17)
    refused = plan(image, board)
    assert not refused.fits
    with pytest.raises(DoesNotFitError, match=r"--context \d+ fits"):
        refused.require()
    fits = re.fullmatch(r"--context (\d+) fits", refused.advice[1])
    assert fits
    longest = int(fits[1])
    assert plan(image, board, context=longest).fits
    assert not plan(image, board, context=longest + 1).fits
    options: dict[str, Any] = {"context": 16, "streamed": True, "memory": 6 << 20}
    refused = plan(image, board, **options, expert_slots=60)
    (slots,) = (int(a.split()[1]) for a in refused.advice if a.startswith("--expert-slots"))
    for asked, expected in ((slots, True), (slots + 1, False)):
        assert plan(image, board, **options, expert_slots=asked).fits == expected


# Files that are streamed


def test_sparkinfer_25_every_shorter_shard_is_refused(tmp_path: Path) -> None:
    """JustVugg/colibri, 1bit-MONSTER#1606: cut by a byte, by half, in the header."""
    where = Placement.of("sharded", shard_bytes=1 << 17)
    path = pack(ck.GOLDEN / "mixtral", tmp_path / "m.colibri", quant="q4", placement=where).image
    for shard in Image(path).paths[1:]:
        whole = shard.read_bytes()
        for length in (len(whole) - 1, len(whole) // 2, 63, 0):
            shard.write_bytes(whole[:length])
            said = rf"{shard.name}: companion file \d+ is .*; put the file of {len(whole):,} bytes"
            for mapped in (True, False):
                with pytest.raises(ImageError, match=said):
                    Image(path, map=mapped)
        shard.write_bytes(whole)
    assert Engine(path, 16, weights="streamed", expert_slots=2).infer(IDS).size
