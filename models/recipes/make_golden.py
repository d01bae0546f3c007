# SPDX-License-Identifier: Apache-2.0
"""Tiny random checkpoints of MoE architectures, with reference outputs.

For each architecture a config small enough for a few hundred kilobytes is instantiated in
transformers, filled with seeded random weights (large enough that routing and attention are far
from degenerate), saved in the standard layout, loaded again from the saved files in float32, and run.

    <arch>/config.json, model.safetensors (or shards and an index)
    <arch>/reference.npz
        input_ids            (2, 24) int32
        logits               (2, 24, vocab) float32
        hidden_states        (layers + 1, 2, 24, hidden) float32: the embedding output (after any
                             multiplier), the output of each layer but the last, and the last
                             layer's output after the final norm
        greedy               (2, 12) int32: greedy continuation, the prefix being run anew each token
        greedy_margin        (2, 12) float32: logit of the choice less that of the runner-up
        experts/<module>     (2, 24, top_k) int32: selected experts, heaviest weight first
        weights/<module>     (2, 24, top_k) float32: what multiplies each expert's output
    <arch>/notes.json        what is particular about this checkpoint

Usage:  make_golden.py --out DIR [--only NAME ...] [--variant FILE]
"""
import argparse
import contextlib
import json
import pathlib
import re
import runpy
import shutil
import zlib

import numpy as np
import torch
from safetensors.torch import load_file, save_file

import deepseek_v1

LENGTH, NEW = 24, 12
SEED = 1000
COMMON = dict(vocab_size=320, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
              max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=None)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64, beta_fast=32.0, beta_slow=1.0)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=32)


def rope(theta=10000.0, **scaling):
    return {"rope_type": "default", **scaling, "rope_theta": theta}


LLAMA4 = "the sigmoid of the router logit multiplies the expert's input, not its output"
MLA_A = dict(q_lora_rank=48, kv_lora_rank=32, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32,
             num_attention_heads=4, num_key_value_heads=4)
MLA_LITE = dict(MLA_A, q_lora_rank=None, kv_lora_rank=64, qk_nope_head_dim=16, qk_rope_head_dim=32, v_head_dim=32)

# name -> (model_type, options common to every set, those of this set).
# Options with a leading underscore are this script's: _dtype, _shard, _legacy (write rope_theta and
# rope_scaling as older public configs do), _mxfp4 (experts as 4-bit blocks and scales), _note.
SPECS = {
    "mixtral": ("mixtral", dict(intermediate_size=64),
        dict(num_local_experts=8, num_experts_per_tok=2, num_hidden_layers=2, rope_parameters=rope(1e6), _legacy=True,
             _dtype="float32")),
    "qwen2_moe": ("qwen2_moe", dict(intermediate_size=128),
        dict(num_experts=12, num_experts_per_tok=4, moe_intermediate_size=32, shared_expert_intermediate_size=96,
             norm_topk_prob=False, mlp_only_layers=[], _legacy=True)),
    "qwen3_moe": ("qwen3_moe", dict(intermediate_size=128, num_hidden_layers=3),
        dict(num_experts=16, num_experts_per_tok=4, moe_intermediate_size=32, norm_topk_prob=True, head_dim=32,
             rope_parameters=rope(1e6, **YARN), _shard="200KB")),
    "olmoe": ("olmoe", dict(),
        dict(num_experts=16, num_experts_per_tok=4, intermediate_size=32, num_key_value_heads=4, norm_topk_prob=False,
             _legacy=True)),
    "deepseek_v2": ("deepseek_v2", dict(intermediate_size=96, moe_intermediate_size=32, first_k_dense_replace=1,
             **MLA_A),
        dict(n_routed_experts=16, n_shared_experts=2, num_experts_per_tok=4, topk_method="group_limited_greedy",
             n_group=4, topk_group=2, routed_scaling_factor=4.0, _legacy=True, rope_parameters=rope(1e4, **YARN,
             mscale=0.707, mscale_all_dim=0.707))),
    "deepseek_v2_lite": ("deepseek_v2", dict(intermediate_size=96, moe_intermediate_size=32, first_k_dense_replace=1,
             **MLA_LITE),
        dict(n_routed_experts=16, n_shared_experts=2, num_experts_per_tok=6, topk_method="greedy",
             routed_scaling_factor=1.0, n_group=1, topk_group=1, _legacy=True, _note="no query compression")),
    "deepseek_v3": ("deepseek_v3", dict(intermediate_size=96, moe_intermediate_size=32, num_nextn_predict_layers=0,
             **MLA_A),
        dict(n_routed_experts=16, n_shared_experts=1, num_experts_per_tok=4, n_group=4, topk_group=2,
             first_k_dense_replace=1, routed_scaling_factor=2.5, norm_topk_prob=True, _legacy=True,
             rope_parameters=rope(1e4, **YARN, mscale=1.0, mscale_all_dim=1.0))),
    "phimoe": ("phimoe", dict(attention_bias=True, lm_head_bias=True, intermediate_size=64),
        dict(num_local_experts=8, num_experts_per_tok=2, router_jitter_noise=0.05, _legacy=True)),
    "gpt_oss": ("gpt_oss", dict(num_hidden_layers=3, head_dim=32, sliding_window=8),
        dict(num_local_experts=8, num_experts_per_tok=4, intermediate_size=64, swiglu_limit=1.5,
             rope_parameters=rope(150000.0, **dict(YARN, factor=32.0), truncate=False), _legacy=True)),
    "gpt_oss_mxfp4": ("gpt_oss", dict(num_hidden_layers=2, head_dim=32, sliding_window=8),
        dict(num_local_experts=8, num_experts_per_tok=2, intermediate_size=64, _mxfp4=True, _legacy=True,
             rope_parameters=rope(150000.0, **dict(YARN, factor=32.0), truncate=False))),
    "granitemoe": ("granitemoe", dict(intermediate_size=64, embedding_multiplier=3.0, logits_scaling=2.0,
             residual_multiplier=0.6, attention_multiplier=0.2),
        dict(num_local_experts=8, num_experts_per_tok=3, tie_word_embeddings=True, _legacy=True)),
    "granitemoeshared": ("granitemoeshared", dict(intermediate_size=64, embedding_multiplier=3.0, logits_scaling=2.0,
             residual_multiplier=0.6, attention_multiplier=0.2),
        dict(num_local_experts=8, num_experts_per_tok=3, shared_intermediate_size=96, tie_word_embeddings=True,
             _legacy=True)),
    "glm4_moe": ("glm4_moe", dict(intermediate_size=96, num_nextn_predict_layers=0, head_dim=32),
        dict(n_routed_experts=12, n_shared_experts=1, num_experts_per_tok=4, moe_intermediate_size=32, n_group=1,
             topk_group=1, first_k_dense_replace=1, norm_topk_prob=True, use_qk_norm=True, attention_bias=True,
             rope_parameters=rope(1e6, partial_rotary_factor=0.5), _legacy=True)),
    "ernie4_5_moe": ("ernie4_5_moe", dict(intermediate_size=128, moe_layer_start_index=1),
        dict(moe_num_experts=12, moe_k=4, moe_num_shared_experts=2, moe_intermediate_size=32,
             tie_word_embeddings=True, _legacy=True)),
    "lfm2_moe": ("lfm2_moe", dict(intermediate_size=96, num_hidden_layers=4),
        dict(num_experts=12, num_experts_per_tok=4, moe_intermediate_size=32, num_dense_layers=1, conv_L_cache=3,
             layer_types=["conv", "full_attention", "conv", "full_attention"], use_expert_bias=True,
             norm_topk_prob=True, _legacy=True)),
    "dots1": ("dots1", dict(intermediate_size=96),
        dict(n_routed_experts=12, n_shared_experts=2, num_experts_per_tok=4, moe_intermediate_size=32, n_group=1,
             topk_group=1, first_k_dense_replace=1, norm_topk_prob=True, routed_scaling_factor=2.5, head_dim=32,
             _legacy=True)),
    "hunyuan_v1_moe": ("hunyuan_v1_moe", dict(intermediate_size=64, head_dim=32),
        dict(num_experts=8, moe_topk=2, tie_word_embeddings=True, _legacy=True)),
    "qwen3_next": ("qwen3_next", dict(intermediate_size=96, num_hidden_layers=4, head_dim=32),
        dict(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=32,
             linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16,
             linear_conv_kernel_dim=4, rope_parameters=rope(1e7, partial_rotary_factor=0.25))),
    "minimax": ("minimax", dict(intermediate_size=64, head_dim=32),
        dict(num_local_experts=8, num_experts_per_tok=2, block_size=16, layer_types=["linear_attention",
             "full_attention", "linear_attention"], full_attn_alpha_factor=1.5, full_attn_beta_factor=0.8,
             linear_attn_alpha_factor=1.2, linear_attn_beta_factor=0.9, mlp_alpha_factor=1.3, mlp_beta_factor=0.7)),
    "jetmoe": ("jetmoe", dict(intermediate_size=64, kv_channels=32, num_attention_heads=None),
        dict(num_local_experts=8, num_experts_per_tok=2, tie_word_embeddings=True, _legacy=True)),
    "dbrx": ("dbrx", dict(d_model=64, n_heads=4, n_layers=3, max_seq_len=256),
        dict(rope_parameters=rope(500000.0), attn_config=dict(kv_n_heads=2, clip_qkv=3.0, rope_theta=500000.0),
             ffn_config=dict(ffn_hidden_size=64, moe_num_experts=8, moe_top_k=4, moe_normalize_expert_weights=1.0,
             ffn_act_fn={"name": "silu"}))),
    "llama4_text": ("llama4_text", dict(num_hidden_layers=4, head_dim=32, intermediate_size=64,
             intermediate_size_mlp=96),
        dict(num_local_experts=8, num_experts_per_tok=1, interleave_moe_layer_step=1, _note=LLAMA4,
             attention_chunk_size=16, floor_scale=8, use_qk_norm=True, rope_parameters=rope(5e5, **LLAMA3))),
    "gemma4_text": ("gemma4_text", dict(num_hidden_layers=4, head_dim=32, global_head_dim=32, intermediate_size=64,
             enable_moe_block=True, moe_intermediate_size=32, hidden_size_per_layer_input=0, sliding_window=8,
             final_logit_softcapping=30.0, num_kv_shared_layers=0),
        dict(num_experts=8, top_k_experts=2, layer_types=["sliding_attention", "full_attention"] * 2)),
    "switch_transformers": ("switch_transformers", dict(vocab_size=320, d_model=64, d_kv=16, d_ff=96, num_layers=2,
             num_decoder_layers=2, num_heads=4, num_sparse_encoder_layers=1, num_sparse_decoder_layers=1,
             dropout_rate=0.0, decoder_start_token_id=0),
        dict(num_experts=8, expert_capacity=64)),
    "flex_olmo": ("flex_olmo", dict(pad_token_id=0),
        dict(num_experts=8, num_experts_per_tok=4, intermediate_size=32, norm_topk_prob=False)),
    "minimax_m2": ("minimax_m2", dict(intermediate_size=32, head_dim=32),
        dict(num_local_experts=8, num_experts_per_tok=4, rotary_dim=16, rope_parameters=rope(5e6,
             partial_rotary_factor=0.5))),
    "granitemoehybrid": ("granitemoehybrid", dict(intermediate_size=32, shared_intermediate_size=64,
             embedding_multiplier=3.0, logits_scaling=2.0, residual_multiplier=0.6, attention_multiplier=0.2,
             mamba_n_heads=8, mamba_d_head=16, mamba_d_state=16, mamba_expand=2, mamba_chunk_size=16,
             mamba_n_groups=1, mamba_d_conv=4),
        dict(num_local_experts=8, num_experts_per_tok=2, _legacy=True, layer_types=["mamba", "attention", "mamba"],
             position_embedding_type="rope", tie_word_embeddings=True)),
    "glm4_moe_lite": ("glm4_moe_lite", dict(intermediate_size=96, moe_intermediate_size=32,
             num_nextn_predict_layers=0, **MLA_A),
        dict(n_routed_experts=12, n_shared_experts=1, num_experts_per_tok=4, n_group=1, topk_group=1,
             mlp_layer_types=["dense", "sparse", "sparse"])),
    "exaone_moe": ("exaone_moe", dict(intermediate_size=96, moe_intermediate_size=32, sliding_window=8),
        dict(num_experts=12, num_experts_per_tok=4, num_shared_experts=1, num_hidden_layers=4,
             sliding_window_pattern=4, mlp_layer_types=["dense", "sparse", "sparse", "sparse"],
             rope_parameters=rope(1e6))),
    "solar_open": ("solar_open", dict(moe_intermediate_size=32, head_dim=32),
        dict(n_routed_experts=12, n_shared_experts=1, num_experts_per_tok=4)),
    "afmoe": ("afmoe", dict(intermediate_size=96, moe_intermediate_size=32, head_dim=32, sliding_window=8),
        dict(num_experts=12, num_experts_per_tok=4, num_shared_experts=2, num_dense_layers=1, num_hidden_layers=4,
             route_scale=1.5, global_attn_every_n_layers=2, mup_enabled=True)),
    "longcat_flash": ("longcat_flash", dict(num_layers=2, num_hidden_layers=4, head_dim=16, ffn_hidden_size=96,
             expert_ffn_hidden_size=32, **MLA_A),
        dict(n_routed_experts=12, zero_expert_num=4, moe_topk=4, routed_scaling_factor=2.0,
             _note="experts n_routed_experts and above are identities: they add weight * input")),
    "qwen3_5_moe_text": ("qwen3_5_moe_text", dict(num_hidden_layers=4, head_dim=32, moe_intermediate_size=32),
        dict(num_experts=8, num_experts_per_tok=2, shared_expert_intermediate_size=32, linear_num_key_heads=2,
             linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16)),
    "jamba": ("jamba", dict(intermediate_size=64, mamba_d_state=8, mamba_dt_rank=8, pad_token_id=0),
        dict(num_experts=8, num_experts_per_tok=2, num_hidden_layers=4, expert_layer_period=2, expert_layer_offset=1,
             attn_layer_period=4, attn_layer_offset=2)),
}
HYPER_V1 = dict(architectures=["DeepseekForCausalLM"], model_type="deepseek", vocab_size=320, hidden_size=64, num_attention_heads=4,
                num_key_value_heads=4, num_hidden_layers=3, hidden_act="silu", max_position_embeddings=256, rms_norm_eps=1e-6,
                rope_theta=10000.0, rope_scaling=None, attention_bias=False, attention_dropout=0.0, bos_token_id=1, eos_token_id=2,
                first_k_dense_replace=1, moe_layer_freq=1, scoring_func="softmax", aux_loss_alpha=0.001, seq_aux=True,
                initializer_range=0.02, pretraining_tp=1, use_cache=True, tie_word_embeddings=False, torch_dtype="bfloat16")
SPEC_V1 = dict(HYPER_V1, intermediate_size=160, moe_intermediate_size=32, n_routed_experts=16, n_shared_experts=2,
               num_experts_per_tok=6, norm_topk_prob=False)

# The buffers that are weights; all others are derived from the config, and are left alone.
BUFFERS = ("e_score_correction_bias", "expert_bias", "layer_scalar")
FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def is_router(name):
    return bool(re.search(r"(mlp|feed_forward|block_sparse_moe|moe|self_attention\.experts|ffn)\.(gate|router)\.(weight|layer\.weight|"
                          r"classifier\.weight|wg\.weight)$|router\.(weight|proj\.weight|gate\.weight|layer\.weight|classifier\.weight)$", name))


def fill(name, tensor, generator):
    """Random values that keep activations near unit size and router logits some units apart."""
    noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float32)
    if name.endswith(("A_log", "dt_bias", ".D")):
        return tensor.float() + 0.1 * noise
    if "e_score_correction_bias" in name or name.endswith("expert_bias"):
        return 0.1 * noise
    if tensor.dim() <= 1:
        value = tensor.float().mean().item() if tensor.numel() else 0.0
        center = value if value in (0.0, 1.0) else 0.0
        return center + (0.5 if "sinks" in name else 0.2) * noise
    if name.endswith("bias"):
        return 0.2 * noise
    if name.endswith("router.proj.weight"):          # Gemma divides the router's input by sqrt(hidden)
        return 2.0 * noise
    if is_router(name):
        return 2.0 * tensor.shape[-1] ** -0.5 * noise
    if "embed_tokens" in name or name.endswith(("shared.weight", "wte.weight")):
        return noise
    fan_in = tensor.shape[-1] if tensor.dim() == 2 or "experts" not in name else min(tensor.shape[-2:])
    return noise * fan_in ** -0.5


def legacy_config(path):
    """Rewrite rope_parameters as the rope_theta / rope_scaling of older public configs, and the like."""
    config = json.loads(path.read_text())
    parameters = config.pop("rope_parameters", None)
    if parameters:
        config["rope_theta"] = parameters.pop("rope_theta")
        if "partial_rotary_factor" in parameters:
            config["partial_rotary_factor"] = parameters.pop("partial_rotary_factor")
        kind = parameters.pop("rope_type")
        config["rope_scaling"] = None if kind == "default" else {
            "type" if kind in ("yarn", "longrope") else "rope_type": kind, **parameters}
    if config["model_type"] == "granitemoehybrid":
        config["layer_types"] = ["attention" if "full" in kind else "mamba" for kind in config["layer_types"]]
    if "dtype" in config:
        config["torch_dtype"] = config.pop("dtype")
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def to_mxfp4(weight):
    """(..., n) -> blocks (..., n / 32, 16) uint8, scales (..., n / 32) uint8 and the values they stand for.

    Two 4-bit values (sign, 2 exponent bits, 1 mantissa bit) a byte, the earlier in the low nibble;
    a scale byte s stands for 2 ** (s - 127).
    """
    groups = weight.float().unflatten(-1, (-1, 32))
    exponent = (groups.abs().amax(-1).clamp(min=1e-30).log2().floor() - 2).clamp(-127, 127)
    scaled = groups / 2.0 ** exponent[..., None]
    code = (scaled.abs()[..., None] - FP4).abs().argmin(-1)
    value = FP4[code] * scaled.sign() * 2.0 ** exponent[..., None]
    code = (code + 8 * (scaled < 0)).to(torch.uint8)
    blocks = code[..., 0::2] | (code[..., 1::2] << 4)
    return blocks, (exponent + 127).to(torch.uint8), value.flatten(-2)


def write_mxfp4(folder):
    """Replace the experts of a saved GPT-OSS checkpoint by blocks and scales, and return the plain state."""
    weights, plain = load_file(folder / "model.safetensors"), {}
    for name in list(weights):
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            blocks, scales, value = to_mxfp4(weights.pop(name).transpose(1, 2))   # stored (experts, out, in)
            weights[f"{name}_blocks"], weights[f"{name}_scales"] = blocks.contiguous(), scales.contiguous()
            plain[name] = value.transpose(1, 2).contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    return plain


def heaviest_first(index, weight):
    order = weight.argsort(dim=-1, descending=True, stable=True)
    return index.gather(-1, order), weight.gather(-1, order)


def record_routes(model, store):
    """Hooks that put every routing decision into store[module name] = (experts, weights)."""
    handles = []

    def experts_hook(name):
        def hook(module, args, kwargs):
            given = [v for v in list(args) + list(kwargs.values()) if torch.is_tensor(v)][1:]
            index = next((v for v in given if not v.is_floating_point()), None)
            weight = next((v for v in given if v.is_floating_point()), None)
            if index is None or weight is None:
                return
            if index.dim() == 3:                                   # Switch: one-hot, a dropped token all zero
                kept = index.sum(-1)
                index = torch.where(kept > 0, index.argmax(-1), -1)
                weight = weight * kept
            store[name] = (index.detach().clone(), weight.detach().float().clone())
        return hook

    def llama4_hook(name, top_k):
        def hook(module, args, out):
            logits, index = out[1].topk(top_k, dim=-1)
            store[name] = (index.detach(), logits.sigmoid().detach())
        return hook

    def jetmoe_hook(name, module):
        def hook(_, args, out):
            logits, index = out[-1].topk(module.top_k, dim=-1)
            store[name] = (index.detach(), logits.softmax(-1).detach())
        return hook

    for name, module in model.named_modules():
        kind = type(module).__name__
        if kind == "Llama4Router":
            handles.append(module.register_forward_hook(llama4_hook(name, module.top_k)))
        elif kind == "JetMoeTopKGating":
            handles.append(module.register_forward_hook(jetmoe_hook(name, module)))
        elif kind.endswith("Experts"):
            handles.append(module.register_forward_pre_hook(experts_hook(name), with_kwargs=True))
    return handles


def finish(folder, ids, run, perturbed, notes, extra=None):
    """Run, check, and write reference.npz and notes.json. run(ids) -> logits, hidden states, routes.

    perturbed() is a context in which every weight is off by about one part in 1e5. A checkpoint whose
    routing or greedy continuation would change in it is refused (False): it would test luck.
    """
    logits, states, routes = run(ids)
    assert torch.isfinite(logits).all(), "logits are not finite"
    arrays = {"input_ids": ids.int().numpy(), "logits": logits.float().numpy(), **(extra or {})}
    if states is not None:
        arrays["hidden_states"] = torch.stack([s.float() for s in states]).numpy()
    spread = {}
    for name, (index, weight) in sorted(routes.items()):
        index, weight = heaviest_first(index, weight)
        index, weight = (v.reshape(len(ids), -1, v.shape[-1]) for v in (index, weight))
        arrays[f"experts/{name}"], arrays[f"weights/{name}"] = index.int().numpy(), weight.float().numpy()
        spread[name] = len(index.unique())
    row, greedy, margin = ids.clone(), [], []
    for _ in range(NEW):
        top = run(row)[0][:, -1].float().topk(2, dim=-1)
        greedy.append(top.indices[:, 0])
        margin.append(top.values[:, 0] - top.values[:, 1])
        row = torch.cat((row, greedy[-1][:, None]), 1)
    arrays["greedy"], arrays["greedy_margin"] = torch.stack(greedy, 1).int().numpy(), torch.stack(margin, 1).numpy()
    full = run(row)[2]
    with perturbed():
        moved, _, again = run(ids)
        again = run(row)[2]
    same = all((full[k][0].sort(-1).values == again[k][0].sort(-1).values).all() for k in full)
    if not same or arrays["greedy_margin"].min() < 0.005:
        return False
    np.savez_compressed(folder / "reference.npz", **arrays)
    for path in folder.iterdir():
        path.chmod(0o644)
    notes.update(logits_std=round(logits.float().std().item(), 3), experts_hit=spread,
                 logits_moved_by_1e_5_weight_noise=float(f"{(moved - logits).abs().max().item():.1e}"))
    (folder / "notes.json").write_text(json.dumps(notes, indent=2) + "\n")
    size = sum(f.stat().st_size for f in folder.iterdir())
    print(f"{folder.name:20s} {size / 1e3:6.0f} kB  seed {notes['seed']}  logits std {logits.float().std():.2f}, moved "
          f"{(moved - logits).abs().max():.0e}  routers {len(spread)}, experts hit >= {min(spread.values())}, "
          f"greedy margin >= {arrays['greedy_margin'].min():.3f}  last state normed: {notes.get('last_state_is_normed')}", flush=True)
    return True


def make(name, root, seed):
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM
    model_type, common, own = SPECS[name]
    options = {**COMMON, **common, **own}
    if model_type in ("switch_transformers", "dbrx"):
        keep = ("vocab_size",) if model_type == "switch_transformers" else ("vocab_size", "bos_token_id", "eos_token_id")
        options = {k: v for k, v in options.items() if k in common or k in own or k in keep}
    special = {k: options.pop(k) for k in list(options) if k.startswith("_")}
    options = {k: v for k, v in options.items() if v is not None or k in ("q_lora_rank", "position_embedding_type")}
    config = AutoConfig.for_model(model_type, **options)
    cls = AutoModelForSeq2SeqLM if model_type == "switch_transformers" else AutoModelForCausalLM
    generator = torch.Generator().manual_seed(seed)
    model = cls.from_config(config, dtype=torch.float32)
    dtype = getattr(torch, special.get("_dtype", "bfloat16"))
    weights = dict(model.named_parameters())
    weights.update((k, v) for k, v in model.named_buffers() if k.endswith(BUFFERS))
    with torch.no_grad():
        for key, tensor in sorted(weights.items()):
            low = tensor.dtype if key.endswith(BUFFERS[:2]) else dtype
            tensor.data = fill(key, tensor.data, generator).to(low)
        if getattr(config, "tie_word_embeddings", False):       # unit size would give logits of size sqrt(hidden)
            table = model.get_input_embeddings().weight
            table.data = (torch.randn(table.shape, generator=generator) * 0.3).to(dtype)
    folder = root / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model.config.dtype = dtype
    model.save_pretrained(folder, **({"max_shard_size": special["_shard"]} if "_shard" in special else {}))
    if special.get("_legacy"):
        legacy_config(folder / "config.json")

    model = cls.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    kept, wanted = (getattr(c, "rope_parameters", None) or {} for c in (model.config, config))
    assert {k: v for k, v in kept.items() if k != "type"} == wanted, f"{kept} is not {wanted}"
    if special.get("_mxfp4"):
        missing = model.load_state_dict(write_mxfp4(folder), strict=False)
        assert not missing.unexpected_keys
    try:
        model.set_experts_implementation("eager")
    except (AttributeError, ValueError):
        pass                                                    # the model has one implementation only
    store = {}
    record_routes(model, store)
    ids = torch.randint(3, options["vocab_size"], (2, LENGTH), generator=generator)
    extra, check = None, {}
    if model_type == "switch_transformers":
        encoder = torch.randint(3, options["vocab_size"], (2, LENGTH), generator=generator)
        ids[:, 0] = config.decoder_start_token_id
        extra = {"encoder_input_ids": encoder.int().numpy()}

    @torch.no_grad()
    def run(row):
        store.clear()
        more = {"input_ids": row} if extra is None else {"input_ids": encoder, "decoder_input_ids": row}
        out = model(**more, use_cache=False, output_hidden_states=True)
        states = out.hidden_states if extra is None else None
        if states is not None and not check:
            logits, scale = model.lm_head(states[-1]), getattr(config, "logits_scaling", 1.0)
            cap = getattr(config, "final_logit_softcapping", None)
            logits = cap * torch.tanh(logits / cap) if cap else logits / scale
            check["normed"] = bool(torch.allclose(logits, out.logits, atol=1e-4))
        return out.logits, states, dict(store)

    @contextlib.contextmanager
    def perturbed():
        saved = [p.data for p in model.parameters()]
        for p in model.parameters():
            p.data = p.data * (1 + 1e-5 * torch.randn(p.shape, generator=generator))
        yield
        for p, data in zip(model.parameters(), saved):
            p.data = data

    run(ids)
    notes = {"architecture": type(model).__name__, "seed": seed, "weights": str(dtype).split(".")[1],
             "rope_keys_in_config": "rope_theta/rope_scaling" if special.get("_legacy") else "rope_parameters",
             "last_state_is_normed": check.get("normed")}
    if special.get("_mxfp4"):
        notes["note"] = "experts in MXFP4: *_blocks (experts, out, in / 32, 16) and *_scales (experts, out, in / 32), uint8"
    if "_note" in special:
        notes["note"] = special["_note"]
    return finish(folder, ids, run, perturbed, notes, extra)


def make_v1(root, seed):
    config = SPEC_V1
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in sorted(deepseek_v1.shapes(config).items()):
        blank = torch.ones(shape) if "norm" in name else torch.zeros(shape)
        weights[name] = fill(name, blank, generator).to(torch.bfloat16).contiguous()
    folder = root / "deepseek_v1"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    full = {k: v.float() for k, v in weights.items()}
    ids = torch.randint(3, config["vocab_size"], (2, LENGTH), generator=generator)

    @contextlib.contextmanager
    def perturbed():
        saved = dict(full)
        full.update((k, v * (1 + 1e-5 * torch.randn(v.shape, generator=generator))) for k, v in saved.items())
        yield
        full.update(saved)

    return finish(folder, ids, lambda row: deepseek_v1.forward(full, config, row), perturbed,
                  {"architecture": "DeepseekForCausalLM", "seed": seed, "weights": "bfloat16",
                   "rope_keys_in_config": "rope_theta/rope_scaling", "last_state_is_normed": True,
                   "note": "reference by recipes/deepseek_v1.py, as transformers has no such class"})


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--variant", help="a Python file that makes another set: it sees this module's names, and has "
                    "SEED, OPTIONS (name -> options in place of this set's) and OPTIONS_V1")
    ap.add_argument("--out", required=True)
    ap.add_argument("--only", nargs="*")
    args = ap.parse_args()
    if args.variant:
        global SEED
        variant = runpy.run_path(args.variant, init_globals=dict(globals()))
        SEED = variant["SEED"]
        SPEC_V1.update(variant["OPTIONS_V1"])
        for name, options in variant["OPTIONS"].items():
            SPECS[name] = (*SPECS[name][:2], options)
    torch.set_num_threads(1)
    root = pathlib.Path(args.out)
    root.mkdir(parents=True, exist_ok=True)
    failed = {}
    for name in [*SPECS, "deepseek_v1"]:
        if args.only and name not in args.only:
            continue
        try:
            for attempt in range(30):
                seed = SEED + zlib.crc32(name.encode()) % 1000 + 10_000 * attempt
                if make_v1(root, seed) if name == "deepseek_v1" else make(name, root, seed):
                    break
            else:
                raise RuntimeError("no seed gave a stable checkpoint")
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
            shutil.rmtree(root / name, ignore_errors=True)
            print(f"{name:22s} FAILED {failed[name][:600]}", flush=True)
    if failed:
        raise SystemExit(f"{len(failed)} failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
