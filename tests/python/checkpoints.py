# SPDX-License-Identifier: Apache-2.0
"""Small checkpoints for the packer's tests, written byte by byte so that they can also be wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "models" / "demo-moe"
GOLDEN = ROOT / "tests" / "golden"
Array = NDArray[Any]
Tensors = dict[str, Array]
SELFTEST = (0x11111111, 0x22222222, 0x33333333)
# u2: bits of bf16, V1: codes of e4m3
_DTYPES = {"f4": "F32", "f2": "F16", "u2": "BF16", "f8": "F64", "i8": "I64", "u1": "U8",
           "V1": "F8_E4M3"}  # fmt: skip

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "vocab_size": 40,
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "hidden_act": "silu", "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False, "num_experts": 4,
    "num_experts_per_tok": 2, "norm_topk_prob": True, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 64, "eos_token_id": 3,
}  # fmt: skip


def no_selftest(_: Path, tokens: tuple[int, ...]) -> tuple[int, int, int]:
    """Stands in for the runtime where a test is not about it."""
    assert tokens
    return SELFTEST


def shapes(c: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a Qwen2-MoE checkpoint, written down by hand."""
    h, heads = c["hidden_size"], c["num_attention_heads"]
    size = c.get("head_dim") or h // heads
    q, kv = heads * size, c["num_key_value_heads"] * size
    out: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (c["vocab_size"], h), "model.norm.weight": (h,),
        "lm_head.weight": (c["vocab_size"], h),
    }  # fmt: skip

    def mlp(prefix: str, width: int) -> None:
        out.update({f"{prefix}.{name}_proj.weight": (width, h) for name in ("gate", "up")})
        out[f"{prefix}.down_proj.weight"] = (h, width)

    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        out |= {p + "input_layernorm.weight": (h,), p + "post_attention_layernorm.weight": (h,)}
        for name, rows in (("q", q), ("k", kv), ("v", kv)):
            out |= {
                p + f"self_attn.{name}_proj.weight": (rows, h),
                p + f"self_attn.{name}_proj.bias": (rows,),
            }
        out[p + "self_attn.o_proj.weight"] = (h, q)
        if i in c.get("mlp_only_layers", []) or (i + 1) % c.get("decoder_sparse_step", 1):
            mlp(p + "mlp", c["intermediate_size"])
            continue
        out[p + "mlp.gate.weight"] = (c["num_experts"], h)
        out[p + "mlp.shared_expert_gate.weight"] = (1, h)
        mlp(p + "mlp.shared_expert", c["shared_expert_intermediate_size"])
        for e in range(c["num_experts"]):
            mlp(p + f"mlp.experts.{e}", c["moe_intermediate_size"])
    return out


def random_tensors(config: dict[str, Any], seed: int = 1) -> Tensors:
    rng = np.random.default_rng(seed)
    return {n: rng.normal(0, 0.1, s).astype(np.float32) for n, s in shapes(config).items()}


def safetensors_bytes(tensors: Tensors, header: dict[str, Any] | None = None) -> bytes:
    """A file's content; `header` replaces the right one."""
    made: dict[str, Any] = {}
    data = b""
    for name, array in tensors.items():
        raw = array.tobytes()
        made[name] = {"dtype": _DTYPES[array.dtype.str[1:]], "shape": list(array.shape),
                      "data_offsets": [len(data), len(data) + len(raw)]}  # fmt: skip
        data += raw
    text = json.dumps(made if header is None else header).encode()
    return len(text).to_bytes(8, "little") + text + data


def write(
    folder: Path,
    config: dict[str, Any] | None = None,
    tensors: Tensors | None = None,
    **changes: Any,
) -> Path:
    """A checkpoint folder; `changes` are keys of the config, None takes one out."""
    config = {**(CONFIG if config is None else config), **changes}
    config = {k: v for k, v in config.items() if v is not None}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = random_tensors(config) if tensors is None else tensors
    (folder / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    return folder


def write_sharded(folder: Path, tensors: Tensors, shards: list[list[str]]) -> dict[str, str]:
    """Replaces the single file by shards with an index; returns the weight map."""
    (folder / "model.safetensors").unlink(missing_ok=True)
    weight_map: dict[str, str] = {}
    for i, names in enumerate(shards):
        shard = f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
        (folder / shard).write_bytes(safetensors_bytes({n: tensors[n] for n in names}))
        weight_map |= dict.fromkeys(names, shard)
    write_index(folder, weight_map)
    return weight_map


def write_index(folder: Path, weight_map: dict[str, Any]) -> None:
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def copy_golden(name: str, folder: Path) -> Path:
    """A golden checkpoint that a test may change."""
    target = folder / name
    shutil.copytree(GOLDEN / name, target)
    return target


def change_config(folder: Path, **changes: Any) -> Path:
    """Sets keys of config.json; None stays None (null), `...` takes a key out."""
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not ...}))
    return folder
