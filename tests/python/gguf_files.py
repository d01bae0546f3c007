# SPDX-License-Identifier: Apache-2.0
"""Small GGUF files made from checkpoints, with the conventions of llama.cpp's converters.

The names of tensors come from the tables of the gguf package, which the packer does not use.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gguf import (
    GGML_QUANT_SIZES,
    MODEL_ARCH,
    MODEL_ARCH_NAMES,
    ExpertGatingFuncType,
    GGMLQuantizationType,
    GGUFWriter,
    RopeScalingType,
    get_tensor_name_map,
    quants,
)
from numpy.typing import NDArray

import checkpoints as ck
from colibri.checkpoint import Checkpoint

Array = NDArray[Any]
#: golden -> architecture of the gguf package
ARCHITECTURES = {
    "mixtral": MODEL_ARCH.LLAMA, "qwen2_moe": MODEL_ARCH.QWEN2MOE,
    "qwen3_moe": MODEL_ARCH.QWEN3MOE, "olmoe": MODEL_ARCH.OLMOE,
    "granitemoe": MODEL_ARCH.GRANITE_MOE, "granitemoeshared": MODEL_ARCH.GRANITE_MOE,
    "deepseek_v1": MODEL_ARCH.DEEPSEEK, "deepseek_v2": MODEL_ARCH.DEEPSEEK2,
    "deepseek_v2_lite": MODEL_ARCH.DEEPSEEK2, "deepseek_v3": MODEL_ARCH.DEEPSEEK2,
    "gpt_oss_mxfp4": MODEL_ARCH.GPT_OSS, "lfm2_moe": MODEL_ARCH.LFM2MOE,
    "llama": MODEL_ARCH.LLAMA, "qwen2": MODEL_ARCH.QWEN2, "qwen3": MODEL_ARCH.QWEN3,
}  # fmt: skip
_PERMUTED = (MODEL_ARCH.LLAMA, MODEL_ARCH.GRANITE_MOE, MODEL_ARCH.DEEPSEEK)
#: Always in F32 in real files: vectors, routers, convolutions.
_KEPT = re.compile(r".*(norm|ffn_gate_inp|shortconv\.conv|_shexp_inp)\.weight|.*\.bias")
#: In the tables of the package some architectures are always tied.
_OUTPUT = {"lm_head.weight": "output.weight"}
_MIXTRAL = re.compile(r"model\.(layers\.\d+)\.(block_sparse_moe|feed_forward)")
Quantise = Callable[[str, Array], tuple[Array, GGMLQuantizationType]]


def as_f32(_: str, values: Array) -> tuple[Array, GGMLQuantizationType]:
    return values.astype(np.float32), GGMLQuantizationType.F32


def as_type(kind: GGMLQuantizationType) -> Quantise:
    """Matrices in a type, or F16 where rows are no whole blocks of it; anything else in F32."""

    def quantise(name: str, values: Array) -> tuple[Array, GGMLQuantizationType]:
        if values.ndim < 2 or _KEPT.fullmatch(name):
            return as_f32(name, values)
        whole = values.shape[-1] % GGML_QUANT_SIZES[kind][0] == 0
        found = kind if whole else GGMLQuantizationType.F16
        return quants.quantize(values.astype(np.float32), found), found

    return quantise


def write(
    path: Path, golden: str, source: Path | None = None, *, quantise: Quantise = as_f32,
    split_kv: bool = True, change: Callable[[GGUFWriter, dict[str, Array]], None] | None = None,
) -> dict[str, Array]:  # fmt: skip
    """Writes a checkpoint as a GGUF file; returns the tensors as float32 by their GGUF names."""
    folder = source or ck.GOLDEN / golden
    arch = ARCHITECTURES[golden]
    config = json.loads((folder / "config.json").read_text())
    writer = GGUFWriter(path, MODEL_ARCH_NAMES[arch])
    tensors = dict(_tensors(folder, arch, config, split_kv))
    _metadata(writer, arch, config, split_kv)
    writer.add_array("tokenizer.ggml.tokens", ["<s>", "b", "é"])
    writer.add_eos_token_id(config.get("eos_token_id", 2))
    if change:
        change(writer, tensors)
    for name, values in tensors.items():
        data, kind = quantise(name, np.ascontiguousarray(values))
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def permuted(rows: Array, heads: int) -> Array:
    """Rows of each head from halves to pairs: 0, d/2, 1, d/2 + 1, ..."""
    size = len(rows) // heads
    order = [h * size + half * (size // 2) + i
             for h in range(heads) for i in range(size // 2) for half in (0, 1)]  # fmt: skip
    return rows[order]


def _tensors(
    folder: Path, arch: MODEL_ARCH, config: dict[str, Any], split_kv: bool
) -> Iterator[tuple[str, Array]]:
    table = get_tensor_name_map(arch, config["num_hidden_layers"])
    rope = _rope(config)
    if rope.get("rope_type") == "llama3":
        yield "rope_freqs.weight", llama3_factors(config, rope)
    for name, values in _converted(folder, arch, config, split_kv):
        ready = name.startswith("blk.")
        found = name if ready else _OUTPUT.get(name) or table.get_name(name, (".weight", ".bias"))
        assert found is not None, name
        yield found, values


def llama3_factors(config: dict[str, Any], rope: dict[str, Any]) -> Array:
    """By what each wavelength is multiplied."""
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    waves = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, size, 2) / size)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    turns = rope["original_max_position_embeddings"] / waves
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / rope["factor"] + smooth)).astype(np.float32)


def _rope(config: dict[str, Any]) -> dict[str, Any]:
    return config.get("rope_parameters") or config.get("rope_scaling") or {}


def _converted(
    folder: Path, arch: MODEL_ARCH, config: dict[str, Any], split_kv: bool
) -> Iterator[tuple[str, Array]]:
    """Tensors under names that the gguf package knows, in the shapes that llama.cpp wants."""
    experts: dict[str, dict[int, Array]] = defaultdict(dict)
    for name, values in _values(folder).items():
        layer = int(m[1]) if (m := re.search(r"layers\.(\d+)\.", name)) else -1
        if m := re.fullmatch(r"(.*\.experts)\.(\d+)\.(\w+)\.weight", name):
            experts[f"{m[1]}.{m[3]}.weight"][int(m[2])] = values
        elif arch in _PERMUTED and (m := re.search(r"\.([qk])_proj\.", name)):
            heads = config["num_attention_heads" if m[1] == "q" else "num_key_value_heads"]
            yield name, permuted(values, heads)
        elif name.endswith("input_linear.weight"):
            half = values.shape[-2] // 2
            end = "shexp" if "shared_mlp" in name else "exps"
            yield f"blk.{layer}.ffn_gate_{end}.weight", values[..., :half, :]
            yield f"blk.{layer}.ffn_up_{end}.weight", values[..., half:, :]
        elif "gate_up_proj" in name:  # gpt-oss: gate and up in even and odd rows
            end = "bias" if name.endswith("bias") else "weight"
            yield f"blk.{layer}.ffn_gate_exps.{end}", values[:, ::2]
            yield f"blk.{layer}.ffn_up_exps.{end}", values[:, 1::2]
        elif arch == MODEL_ARCH.GPT_OSS and ".down_proj" in name:
            yield f"blk.{layer}.ffn_down_exps.{'bias' if 'bias' in name else 'weight'}", values
        elif name.endswith("kv_b_proj.weight") and split_kv:
            heads, keys = config["num_attention_heads"], config["qk_nope_head_dim"]
            per_head = values.reshape(heads, -1, values.shape[-1])
            yield f"blk.{layer}.attn_k_b.weight", per_head[:, :keys].transpose(0, 2, 1)
            yield f"blk.{layer}.attn_v_b.weight", per_head[:, keys:]
        elif "conv.conv" in name:
            yield name, values[:, 0]
        elif name.endswith(("expert_bias", "e_score_correction_bias")):
            yield f"blk.{layer}.exp_probs_b.bias", values
        elif name.endswith("sinks"):
            yield f"{name}.weight", values
        else:
            yield name, values
    for name, by_number in experts.items():
        stacked = np.stack([by_number[i] for i in range(len(by_number))])
        yield _MIXTRAL.sub(r"\1.feed_forward", name), stacked


def _values(folder: Path) -> dict[str, Array]:
    """All tensors as float32; MXFP4 as the values that it stands for."""
    found = Checkpoint.open(folder).tensors
    out: dict[str, Array] = {}
    for name, tensor in found.items():
        if name.endswith("_scales"):
            continue
        if name.endswith("_blocks"):
            name = name.removesuffix("_blocks")
            tensor = tensor.with_mxfp4_scales(found[f"{name}_scales"])
        out[name] = np.concatenate([*tensor.rows(1 << 20)]).reshape(tensor.shape)
    return out


def _metadata(writer: GGUFWriter, arch: MODEL_ARCH, c: dict[str, Any], split_kv: bool) -> None:
    """What the converters write, in their order of the keys of config.json."""
    writer.add_block_count(c["num_hidden_layers"])
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(c["hidden_size"])
    writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_head_count(c["num_attention_heads"])
    writer.add_layer_norm_rms_eps(c.get("rms_norm_eps", c.get("norm_eps")))
    writer.add_vocab_size(c["vocab_size"])
    kv = c["num_key_value_heads"]
    if arch == MODEL_ARCH.LFM2MOE:
        kv = [0 if kind == "conv" else kv for kind in c["layer_types"]]
    writer.add_head_count_kv(1 if arch == MODEL_ARCH.DEEPSEEK2 and split_kv else kv)
    rope = _rope(c)
    writer.add_rope_freq_base(rope.get("rope_theta", c.get("rope_theta")))
    if (kind := rope.get("rope_type", rope.get("type", "default"))) in ("yarn", "linear"):
        writer.add_rope_scaling_type(RopeScalingType(kind))
        writer.add_rope_scaling_factor(rope["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(rope.get("beta_fast", 32.0))
        writer.add_rope_scaling_yarn_beta_slow(rope.get("beta_slow", 1.0))
    counts = ("num_local_experts", "num_experts", "n_routed_experts")
    experts = next((c[key] for key in counts if key in c), None)
    if experts is not None:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(c["num_experts_per_tok"])
    if "moe_intermediate_size" in c:
        writer.add_expert_feed_forward_length(c["moe_intermediate_size"])
    if arch == MODEL_ARCH.DEEPSEEK2:
        _latent(writer, c, rope, split_kv)
    else:
        size = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
        writer.add_rope_dimension_count(size)
        if c.get("head_dim"):
            writer.add_key_length(size)
            writer.add_value_length(size)
    _own(writer, arch, c)


def _latent(writer: GGUFWriter, c: dict[str, Any], rope: dict[str, Any], split_kv: bool) -> None:
    sizes = c["qk_nope_head_dim"] + c["qk_rope_head_dim"], c["v_head_dim"]
    if split_kv:
        writer.add_key_length(c["kv_lora_rank"] + c["qk_rope_head_dim"])
        writer.add_value_length(c["kv_lora_rank"])
        writer.add_key_length_mla(sizes[0])
        writer.add_value_length_mla(sizes[1])
    else:
        writer.add_key_length(sizes[0])
        writer.add_value_length(sizes[1])
    writer.add_rope_dimension_count(c["qk_rope_head_dim"])
    writer.add_kv_lora_rank(c["kv_lora_rank"])
    if c["q_lora_rank"] is not None:
        writer.add_q_lora_rank(c["q_lora_rank"])
    writer.add_leading_dense_block_count(c["first_k_dense_replace"])
    writer.add_expert_shared_count(c["n_shared_experts"])
    writer.add_expert_weights_scale(c["routed_scaling_factor"])
    if c["norm_topk_prob"]:
        writer.add_expert_weights_norm(True)
    if c.get("n_group") is not None:
        writer.add_expert_group_count(c["n_group"])
        writer.add_expert_group_used_count(c["topk_group"])
    if c["model_type"] == "deepseek_v3":
        writer.add_expert_gating_func(ExpertGatingFuncType.SIGMOID)
    if "mscale_all_dim" in rope:
        writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])


def _own(writer: GGUFWriter, arch: MODEL_ARCH, c: dict[str, Any]) -> None:
    """What one architecture alone has."""
    if arch == MODEL_ARCH.QWEN2MOE:
        writer.add_expert_shared_feed_forward_length(c["shared_expert_intermediate_size"])
    if arch == MODEL_ARCH.GRANITE_MOE:
        writer.add_attention_scale(c["attention_multiplier"])
        writer.add_embedding_scale(c["embedding_multiplier"])
        writer.add_residual_scale(c["residual_multiplier"])
        writer.add_logit_scale(c["logits_scaling"])
        if shared := c.get("shared_intermediate_size"):
            writer.add_expert_shared_feed_forward_length(shared)
    if arch == MODEL_ARCH.DEEPSEEK:
        writer.add_rope_scaling_type(RopeScalingType.NONE)
        writer.add_leading_dense_block_count(c["first_k_dense_replace"])
        writer.add_expert_weights_scale(1.0)
        writer.add_expert_shared_count(c["n_shared_experts"])
    if arch == MODEL_ARCH.GPT_OSS:
        writer.add_sliding_window(c["sliding_window"])
        writer.add_expert_feed_forward_length(c["intermediate_size"])
    if arch == MODEL_ARCH.LFM2MOE:
        writer.add_leading_dense_block_count(c["num_dense_layers"])
        writer.add_expert_gating_func(ExpertGatingFuncType.SIGMOID)
        writer.add_shortconv_l_cache(c["conv_L_cache"])
