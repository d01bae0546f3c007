# SPDX-License-Identifier: Apache-2.0
"""The runtime computes the model: against the reference implementation and against float64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

import checkpoints as ck
from colibri import Engine, _core
from colibri.checkpoint import Checkpoint
from colibri.pack import pack
from oracle64 import Model

Arrays = dict[str, NDArray[Any]]
FAR = 1e-5  # of the largest logit; the promise is 1e-4


def distance(a: ArrayLike, b: ArrayLike) -> float:
    """max |a - b| / max |b|"""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return float(np.abs(a - b).max() / np.abs(b).max())


def take_routes(engine: Engine, tokens: int) -> dict[int, tuple[NDArray[Any], NDArray[Any]]]:
    """Expert ids and weights by layer, (tokens, rank), from the trace of one call."""
    events = engine.take_trace()
    steps = np.cumsum(np.where(events["kind"] == _core.EVENTS["step"], events["count"], 0))
    sizes = events["count"][events["kind"] == _core.EVENTS["step"]]
    top_k = int(engine.image.config["top_k"])
    routes: dict[int, tuple[NDArray[Any], NDArray[Any]]] = {}
    for event, done in zip(events, steps, strict=True):
        if event["kind"] != _core.EVENTS["route"]:
            continue
        empty = np.full((tokens, top_k), -1), np.zeros((tokens, top_k), np.float32)
        ids, weights = routes.setdefault(int(event["layer"]), empty)
        rank, token = event["count"] >> 16, event["count"] & 0xFFFF
        step = sizes[np.searchsorted(np.cumsum(sizes), done)]
        at = done - step + token, rank
        assert ids[at] == -1, "routed twice"
        ids[at] = event["index"]
        weights[at] = np.uint32(event["bytes"]).view(np.float32)
    assert all((ids >= 0).all() for ids, _ in routes.values())
    return routes


def greedy(engine: Engine, ids: ArrayLike, count: int) -> list[int]:
    engine.reset()
    logits, out = engine.infer(ids), []
    for _ in range(count):
        out.append(int(logits.argmax()))
        logits = engine.infer(out[-1:])
    return out


def npz(path: Path) -> Arrays:
    with np.load(path) as file:
        return {name: file[name] for name in file}


# The demo model


@pytest.fixture(scope="module")
def demo_reference() -> Arrays:
    return npz(ck.DEMO / "reference" / "prompts.npz")


@pytest.mark.parametrize("prompt", range(8))
@pytest.mark.parametrize("kernels", _core.kernels())
def test_demo_prompts(
    demo_image: Callable[[str], Path], demo_reference: Arrays, prompt: int, kernels: str
) -> None:
    r = {k.removesuffix(f"_{prompt}"): v for k, v in demo_reference.items()
         if k.endswith(f"_{prompt}")}  # fmt: skip
    engine = Engine(demo_image("f32"), context=96, kernels=kernels, trace=True)
    logits = engine.infer(r["ids"], all_logits=True)
    scale = np.abs(r["top_logits"]).max()
    top = np.take_along_axis(logits, r["top_ids"].astype(np.int64), 1)
    assert np.abs(top - r["top_logits"]).max() < FAR * scale
    assert np.abs(logits[-1] - r["last_logits"]).max() < FAR * scale
    wide = logits.astype(np.float64)
    sums = np.log(np.exp(wide - wide.max(1, keepdims=True)).sum(1)) + wide.max(1)
    assert np.abs(sums - r["logsumexp"]).max() < FAR * scale
    routes = take_routes(engine, len(r["ids"]))
    assert sorted(routes) == list(range(6))
    for layer, (ids, weights) in routes.items():
        assert np.array_equal(ids, r["experts"][layer])
        assert np.allclose(weights, r["weights"][layer], rtol=1e-4, atol=0)
    assert greedy(engine, r["ids"], len(r["greedy"])) == r["greedy"].tolist()


# The families' small models


@pytest.fixture(scope="module", params=["qwen2_moe", "mixtral"])
def golden(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    name = request.param
    image = tmp_path_factory.mktemp(name) / "golden.colibri"
    pack(ck.GOLDEN / name, image, quant="f32")
    return image, npz(ck.GOLDEN / name / "reference.npz"), name


def test_golden_logits_routes_and_greedy(golden: tuple[Path, Arrays, str]) -> None:
    image, r, _ = golden
    modules = sorted(k.removeprefix("experts/") for k in r if k.startswith("experts/"))
    for row, ids in enumerate(r["input_ids"]):
        engine = Engine(image, context=64, trace=True)
        assert distance(engine.infer(ids, all_logits=True), r["logits"][row]) < FAR
        routes = take_routes(engine, len(ids))
        assert len(routes) == len(modules)
        for layer, module in enumerate(modules):
            assert np.array_equal(routes[layer][0], r[f"experts/{module}"][row])
            assert np.allclose(routes[layer][1], r[f"weights/{module}"][row], rtol=1e-4, atol=0)
        assert greedy(engine, ids, r["greedy"].shape[1]) == r["greedy"][row].tolist()


def test_float64_oracle_agrees_with_the_reference(golden: tuple[Path, Arrays, str]) -> None:
    """The oracle of the tests below, held to the same outputs."""
    _, r, name = golden
    source = ck.GOLDEN / name
    if name == "qwen2_moe":  # NumPy has no bfloat16
        opened = Checkpoint.open(source)
        tensors = {n: np.concatenate([*t.rows(1 << 20)]).reshape(t.shape)
                   for n, t in opened.tensors.items()}  # fmt: skip
        model = Model(opened.config, tensors)
    else:
        model = Model.open(source)
    for row, ids in enumerate(r["input_ids"]):
        assert distance(model.logits(ids), r["logits"][row]) < FAR


# Other sizes of the families

QWEN: dict[str, dict[str, Any]] = {
    "as it is": {},
    "tied": {"tie_word_embeddings": True},
    "not renormalised": {"norm_topk_prob": False},
    "one expert a token": {"num_experts_per_tok": 1},
    "every expert a token": {"num_experts_per_tok": 4},
    "one expert": {"num_experts": 1, "num_experts_per_tok": 1},
    "33 wide, 3 heads of 11 made 10": {"hidden_size": 33, "num_attention_heads": 3,
                                       "num_key_value_heads": 1, "head_dim": 10},
    "one head": {"num_attention_heads": 1, "num_key_value_heads": 1},
    "every head its own keys": {"num_key_value_heads": 4},
    "heads of 2": {"head_dim": 2},
    "heads of 6": {"head_dim": 6},
    "heads of 24, wider than the model": {"head_dim": 24},
    "heads of 16": {"head_dim": 16, "num_attention_heads": 2},
    "odd sizes": {"hidden_size": 20, "num_attention_heads": 2, "moe_intermediate_size": 37,
                  "shared_expert_intermediate_size": 41, "intermediate_size": 43, "vocab_size": 97},
    "sizes of one": {"moe_intermediate_size": 1, "shared_expert_intermediate_size": 1},
    "dense layers by list": {"mlp_only_layers": [0, 2], "num_hidden_layers": 4},
    "dense layers by step": {"decoder_sparse_step": 2, "num_hidden_layers": 5},
    "dense layers only": {"decoder_sparse_step": 9, "num_hidden_layers": 2},
    "dense is the widest": {"mlp_only_layers": [1], "intermediate_size": 301,
                            "num_hidden_layers": 3},
    "shared is the widest": {"shared_expert_intermediate_size": 301},
    "no biases": {"qkv_bias": False},
    "many experts": {"num_experts": 67, "num_experts_per_tok": 8, "num_hidden_layers": 1},
    "64 experts a token": {"num_experts": 70, "num_experts_per_tok": 64, "num_hidden_layers": 1},
    "vocabulary of one": {"vocab_size": 1, "eos_token_id": None},
    "large epsilon, small theta": {"rms_norm_eps": 0.5, "rope_theta": 10.0},
}  # fmt: skip


def qwen_checkpoint(folder: Path, changes: dict[str, Any]) -> Path:
    config = {**ck.CONFIG, **changes}
    tensors = ck.random_tensors(config, seed=11)
    for name, tensor in tensors.items():  # norms around 1; weights large enough to matter
        tensor += 1 if name.endswith("norm.weight") else 0
    if not config.get("qkv_bias", True):
        tensors = {n: t for n, t in tensors.items() if not n.endswith("proj.bias")}
    if config["tie_word_embeddings"]:
        del tensors["lm_head.weight"]
    return ck.write(folder, config, tensors)


def mixtral_checkpoint(folder: Path, **changes: Any) -> Path:
    c: dict[str, Any] = {
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "vocab_size": 50,
        "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_act": "silu",
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 1e6,
        "tie_word_embeddings": False, "num_local_experts": 5, "num_experts_per_tok": 2, **changes,
    }  # fmt: skip
    h, size = c["hidden_size"], c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    q, kv = c["num_attention_heads"] * size, c["num_key_value_heads"] * size
    n = c["intermediate_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (c["vocab_size"], h), "model.norm.weight": (h,),
        "lm_head.weight": (c["vocab_size"], h),
    }  # fmt: skip
    for i in range(c["num_hidden_layers"]):
        p, a = f"model.layers.{i}.", f"model.layers.{i}.self_attn."
        shapes |= {p + "input_layernorm.weight": (h,), p + "post_attention_layernorm.weight": (h,),
                   a + "q_proj.weight": (q, h), a + "k_proj.weight": (kv, h),
                   a + "v_proj.weight": (kv, h), a + "o_proj.weight": (h, q),
                   p + "block_sparse_moe.gate.weight": (c["num_local_experts"], h)}  # fmt: skip
        for e in range(c["num_local_experts"]):
            w = f"{p}block_sparse_moe.experts.{e}."
            shapes |= {w + "w1.weight": (n, h), w + "w3.weight": (n, h), w + "w2.weight": (h, n)}
    rng = np.random.default_rng(3)
    tensors = {name: (rng.normal(0, 0.2, shape) + name.endswith("norm.weight")).astype(np.float32)
               for name, shape in shapes.items()}  # fmt: skip
    return ck.write(folder, c, tensors)


def compare_with_float64(source: Path, tmp_path: Path) -> None:
    image = tmp_path / "made.colibri"
    pack(source, image, quant="f32")
    model = Model.open(source)
    vocabulary = model.c["vocab_size"]
    ids = np.arange(41) * 7919 % vocabulary
    expected = model.logits(ids)
    engine = Engine(image, batch=7, trace=True)
    assert distance(engine.infer(ids, all_logits=True), expected) < FAR
    routes = take_routes(engine, len(ids)) if model.routes else {}
    assert sorted(routes) == sorted(model.routes)
    for layer, (chosen, weights, margin) in model.routes.items():
        assert np.allclose(routes[layer][1], weights, rtol=1e-3, atol=1e-7)
        if margin > 1e-6:  # otherwise float32 may rank two equals the other way round
            assert np.array_equal(routes[layer][0], chosen)
    engine.selftest()


@pytest.mark.parametrize("name", QWEN)
def test_other_sizes_of_qwen2_moe(tmp_path: Path, name: str) -> None:
    compare_with_float64(qwen_checkpoint(tmp_path / "in", QWEN[name]), tmp_path)


@pytest.mark.parametrize(
    "changes",
    [{}, {"head_dim": 10}, {"num_experts_per_tok": 1}, {"num_experts_per_tok": 5},
     {"tie_word_embeddings": True}, {"hidden_size": 35, "num_attention_heads": 5, "head_dim": 4,
                                     "num_key_value_heads": 1, "intermediate_size": 33}],
)  # fmt: skip
def test_other_sizes_of_mixtral(tmp_path: Path, changes: dict[str, Any]) -> None:
    source = mixtral_checkpoint(tmp_path / "in", **changes)
    compare_with_float64(source, tmp_path)
