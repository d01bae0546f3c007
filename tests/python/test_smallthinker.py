# SPDX-License-Identifier: Apache-2.0
"""SmallThinker, which transformers does not have, against float64 NumPy (`oracle_smallthinker`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import checkpoints as ck
import variants
from colibri.errors import CheckpointError
from colibri.families import describe
from colibri.image_format import LayerKind
from colibri.pack import pack
from oracle_smallthinker import Outcome, SmallThinker
from test_variants import WEIGHT_LIMIT, Run

LIMIT = 1e-5  # of the largest logit
GREEDY = 6
EARLY = 128  # layer flag: the router reads the layer's input

#: As the 4B is built, but tiny: rotated everywhere, no windows, tied, sigmoid.
CONFIG: dict[str, Any] = {
    "architectures": ["SmallThinkerForCausalLM"], "model_type": "smallthinker",
    "vocab_size": 131, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6, "rope_theta": 1.5e6, "rope_scaling": None, "rope_layout": [1, 1, 1],
    "sliding_window_layout": [0, 0, 0], "sliding_window_size": 4096,
    "moe_num_primary_experts": 8, "moe_num_active_primary_experts": 4, "moe_ffn_hidden_size": 24,
    "moe_primary_router_apply_softmax": False, "norm_topk_prob": True,
    "tie_word_embeddings": True,
}  # fmt: skip

#: Shapes: what differs from CONFIG, and the type of the weights.
SHAPES: dict[str, tuple[dict[str, Any], str]] = {
    "as_4b": ({}, "bfloat16"),
    # every fourth layer sees all and is not rotated, the others see a window
    "as_21b": ({
        "num_hidden_layers": 5, "hidden_size": 40, "num_attention_heads": 14,
        "num_key_value_heads": 2, "head_dim": 8, "rope_layout": [0, 1, 1, 1, 0],
        "sliding_window_layout": [0, 1, 1, 1, 0], "sliding_window_size": 7,
        "moe_num_primary_experts": 16, "moe_num_active_primary_experts": 6,
        "moe_primary_router_apply_softmax": True, "tie_word_embeddings": False,
    }, "bfloat16"),
    # rotation and windows do not go together, each head has its own keys
    "crossed": ({
        "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 20, "rms_norm_eps": 1e-3,
        "rope_layout": [1, 0, 1], "sliding_window_layout": [0, 1, 1], "sliding_window_size": 1,
        "moe_num_primary_experts": 3, "moe_num_active_primary_experts": 1,
        "moe_ffn_hidden_size": 70, "rope_theta": 100.0,
    }, "float32"),
    "never_rotated": ({
        "num_attention_heads": 4, "num_key_value_heads": 2, "rope_layout": [0, 0, 0],
        "moe_num_active_primary_experts": 8, "tie_word_embeddings": False,
    }, "float16"),
    "dense_layers": ({
        "num_hidden_layers": 4, "rope_layout": [1, 0, 1, 1], "sliding_window_layout": [0, 0, 1, 0],
        "sliding_window_size": 5, "moe_layer_layout": [0, 1, 1, 0], "dense_ffn_hidden_size": 36,
        "moe_primary_router_apply_softmax": True, "moe_num_primary_experts": 32,
        "moe_num_active_primary_experts": 2,
    }, "float32"),
    "scaled": ({
        "rope_scaling": {"type": "linear", "factor": 4.0}, "rope_theta": 10000.0,
        "num_key_value_heads": 2, "moe_num_active_primary_experts": 2,
    }, "float32"),
}  # fmt: skip
SEEDS = (1, 2)

#: A change of the config that the weights bear: shape -> change. The logits must differ, or the
#: shape does not test what it is there for.
MATTERS: dict[str, dict[str, Any]] = {
    "as_4b": {"moe_primary_router_apply_softmax": True},
    "as_21b": {"rope_layout": [1, 1, 1, 1, 0]},
    "crossed": {"sliding_window_layout": [1, 0, 0]},
    "never_rotated": {"moe_primary_router_apply_softmax": True},
    "dense_layers": {"sliding_window_size": 6},
    "scaled": {"rope_scaling": None},
}


def config_of(shape: str) -> dict[str, Any]:
    return {**CONFIG, **SHAPES[shape][0]}


def entries(config: dict[str, Any]) -> dict[str, variants.Entry]:
    """Tensors by folded name: shape, centre, scale. Scores and gates are of the order of 1."""
    hidden, size = config["hidden_size"], config["head_dim"]
    experts, inner = config["moe_num_primary_experts"], config["moe_ffn_hidden_size"]
    found: dict[str, variants.Entry] = {
        "model.embed_tokens.weight": [[config["vocab_size"], hidden], 0.0, 0.7],
        "model.norm.weight": [[hidden], 1.0, 0.2],
    }
    if not config["tie_word_embeddings"]:
        found["lm_head.weight"] = [[config["vocab_size"], hidden], 0.0, 0.3]

    def matrix(name: str, rows: int, columns: int) -> None:
        found[f"{name}.weight"] = [[rows, columns], 0.0, 1.2 * columns**-0.5]

    def reglu(name: str, width: int) -> None:
        matrix(f"{name}.gate", width, hidden)
        matrix(f"{name}.up", width, hidden)
        matrix(f"{name}.down", hidden, width)

    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            found[f"{prefix}.{norm}.weight"] = [[hidden], 1.0, 0.3]
        queries, keys = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
        for name, rows in {"q": queries, "k": keys, "v": keys}.items():
            matrix(f"{prefix}.self_attn.{name}_proj", rows, hidden)
        matrix(f"{prefix}.self_attn.o_proj", hidden, queries)
        block = f"{prefix}.block_sparse_moe"
        if not config.get("moe_layer_layout", [1] * (layer + 1))[layer]:
            reglu(block, config["dense_ffn_hidden_size"])
            continue
        matrix(f"{block}.primary_router", experts, hidden)
        reglu(f"{block}.experts.{{0..{experts - 1}}}", inner)
    return found


def weights_of(shape: str, seed: int) -> tuple[dict[str, Any], ck.Tensors]:
    config = config_of(shape)
    return config, variants.weights(seed, SHAPES[shape][1], entries(config))


def widened(tensors: ck.Tensors) -> dict[str, NDArray[Any]]:
    """Values instead of bfloat16's bits."""
    return {
        name: (bits.astype(np.uint32) << 16).view(np.float32) if bits.dtype == np.uint16 else bits
        for name, bits in tensors.items()
    }


def ids_of(config: dict[str, Any], seed: int) -> NDArray[Any]:
    return np.random.default_rng([seed, 7]).integers(0, config["vocab_size"], 41)


def packed(folder: Path, config: dict[str, Any], tensors: ck.Tensors) -> Path:
    image = folder / "smallthinker.colibri"
    pack(variants.write(folder / "checkpoint", config, tensors), image, quant="f32")
    return image


def error_of(logits: NDArray[Any], expected: NDArray[Any]) -> float:
    return float(np.abs(logits - expected).max() / np.abs(expected).max())


def check_routes(found: list[dict[int, dict[int, float]]], expected: Outcome) -> None:
    assert len(found) == len(expected.routes)
    for router, positions in enumerate(expected.routes):
        for position, experts in enumerate(positions):
            chosen = found[router][position]
            assert chosen.keys() == experts.keys(), f"router {router}, token {position}"
            for expert, weight in experts.items():
                assert chosen[expert] == pytest.approx(weight, rel=WEIGHT_LIMIT, abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_the_formulas(tmp_path: Path, shape: str, seed: int) -> None:
    """Logits, every router's experts and weights, and tokens one by one are the oracle's."""
    config, tensors = weights_of(shape, seed)
    oracle, ids = SmallThinker(config, widened(tensors)), ids_of(config, seed)
    run = Run(packed(tmp_path, config, tensors), ids.size + GREEDY)
    logits, expected = run.infer(ids), oracle(ids)
    check_routes(run.routes(), expected)
    assert error_of(logits, expected.logits) < LIMIT
    for _ in range(GREEDY):
        token = int(expected.logits[-1].argmax())
        assert int(logits[-1].argmax()) == token
        ids = np.append(ids, token)
        logits, expected = run.infer(ids[-1:]), oracle(ids)
        assert error_of(logits[-1], expected.logits[-1]) < LIMIT


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_test_something(shape: str) -> None:
    """Were a shape's setting read wrongly, its logits would be far outside the limit."""
    config, tensors = weights_of(shape, SEEDS[0])
    ids, values = ids_of(config, SEEDS[0]), widened(tensors)
    right = SmallThinker(config, values)(ids).logits
    wrong = SmallThinker({**config, **MATTERS[shape]}, values)(ids).logits
    assert error_of(wrong, right) > 100 * LIMIT


def test_ties_go_by_logits(tmp_path: Path) -> None:
    """Large logits whose float32 sigmoids are all 1 still choose the largest, not the first."""
    config, tensors = weights_of("scaled", 3)
    tensors["model.embed_tokens.weight"][:, 0] = 1.0
    for layer in range(config["num_hidden_layers"]):
        router = tensors[f"model.layers.{layer}.block_sparse_moe.primary_router.weight"]
        router[:, 0] = 60.0
        tensors[f"model.layers.{layer}.self_attn.o_proj.weight"][0] = 0.0
        for expert in range(config["moe_num_primary_experts"]):
            down = f"model.layers.{layer}.block_sparse_moe.experts.{expert}.down.weight"
            tensors[down][0] = 0.0
    ids = ids_of(config, 3)
    expected = SmallThinker(config, tensors)(ids)
    run = Run(packed(tmp_path, config, tensors), ids.size)
    assert error_of(run.infer(ids), expected.logits) < LIMIT
    check_routes(run.routes(), expected)
    chosen = [experts for positions in expected.routes for experts in positions]
    assert {round(w, 6) for experts in chosen for w in experts.values()} == {0.5}


def test_layers(tmp_path: Path) -> None:
    """Layouts become rotation and window layer by layer; layers with experts route early."""
    model = describe(config_of("dense_layers"), tmp_path / "config.json")
    assert model.layers == (
        LayerKind(experts=False, rope=1, window=0),
        LayerKind(experts=True, rope=0, window=0, flags=EARLY),
        LayerKind(experts=True, rope=1, window=5, flags=EARLY),
        LayerKind(experts=False, rope=1, window=0),
    )


def test_class_defaults(tmp_path: Path) -> None:
    """A config that says nothing means what configuration_smallthinker.py says: a 4B."""
    model = describe({"architectures": CONFIG["architectures"]}, tmp_path / "config.json")
    s = model.settings
    assert (s.vocabulary, s.hidden, s.layers, s.context) == (151936, 1536, 32, 131072)
    assert (s.heads, s.kv_heads, s.head_size, s.rope_size) == (12, 2, 128, 128)
    assert (s.experts, s.top_k, s.expert_size, s.dense_size) == (32, 4, 768, 0)
    assert (s.activation, s.router, s.router_flags, s.router_epsilon) == (3, 5, 1, 0.0)
    assert (s.tied, s.norm_epsilon) == (1, float(np.float32(1e-6)))
    assert s.attention_scale == float(np.float32(128**-0.5))
    assert model.layers == (LayerKind(experts=True, flags=EARLY),) * 32
    powers = 1e6 ** (-np.arange(0, 128, 2) / 128)
    assert np.allclose(model.ropes["rope"], powers, rtol=1e-6)


def test_weights_sum_to_one_whatever_norm_topk_prob_says(tmp_path: Path) -> None:
    """The class never reads that key."""
    told, untold = ({**CONFIG, "norm_topk_prob": value} for value in (False, True))
    file = tmp_path / "config.json"
    assert describe(told, file).settings == describe(untold, file).settings


@pytest.mark.parametrize(
    ("key", "value", "valid"),
    [
        ("moe_enable_secondary_experts", True, "false"),
        ("moe_enable_early_router", False, "true"),
        ("moe_shared_primary_experts", 2, "0"),
        ("use_qk_norm", True, "false"),
        ("rope_layout", [1, 1], "a list of 0 or 1 for each"),
        ("rope_layout", [1, 1, 2], "a list of 0 or 1"),
        ("sliding_window_layout", [0, 0, 0, 0], "a list of 0 or 1 for each"),
        ("sliding_window_layout", [False, False, True], "a list of 0 or 1"),
        ("moe_layer_layout", [1], "a list of 0 or 1 for each"),
        ("sliding_window_size", 0, "an integer, 1 or more"),
        ("partial_rotary_factor", 0.5, "1.0"),
    ],
)  # fmt: skip
def test_refused(tmp_path: Path, key: str, value: Any, valid: str) -> None:
    """What the runtime cannot compute is refused by name, with the value that would do."""
    config, tensors = weights_of("as_4b", 1)
    source = variants.write(tmp_path / "checkpoint", {**config, key: value}, tensors)
    with pytest.raises(CheckpointError) as caught:
        pack(source, tmp_path / "smallthinker.colibri", quant="f32")
    assert caught.value.field == key
    assert valid in str(caught.value.hint)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_layouts_of_another_depth_are_refused(tmp_path: Path) -> None:
    """The class's own layouts are for 32 layers; another depth must bring its own."""
    config = {key: value for key, value in CONFIG.items() if key != "rope_layout"}
    with pytest.raises(CheckpointError) as caught:
        describe(config, tmp_path / "config.json")
    assert caught.value.field == "rope_layout"


def test_predictor_of_logits_is_ignored(tmp_path: Path) -> None:
    """The sparse output head's two matrices change nothing; other strange tensors are refused."""
    config, tensors = weights_of("as_4b", 1)
    plain = packed(tmp_path / "plain", config, tensors).read_bytes()
    predictor = variants.weights(1, "float32", {"fc1.weight": [[4, 48], 0.0, 1.0],
                                                "fc2.weight": [[131, 4], 0.0, 1.0]})  # fmt: skip
    more = packed(tmp_path / "more", config, tensors | predictor).read_bytes()
    assert more == plain
    secondary = "model.layers.0.block_sparse_moe.experts.0.secondary_gate.weight"
    strange = tensors | variants.weights(1, "float32", {secondary: [[4, 48], 0.0, 1.0]})
    with pytest.raises(CheckpointError, match="secondary_gate"):
        packed(tmp_path / "strange", config, strange)
