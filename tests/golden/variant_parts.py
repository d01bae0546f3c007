# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: C408 - options read best as keywords
"""What the lists of variants are made of; variant_options.py explains them."""

from __future__ import annotations

from typing import Any

Options = dict[str, Any]
COMMON: Options = dict(vocab_size=97, hidden_size=48, num_hidden_layers=2, num_attention_heads=4,
                       num_key_value_heads=2, max_position_embeddings=128, bos_token_id=1,
                       eos_token_id=2, pad_token_id=None)  # fmt: skip


def rope(kind: str = "default", theta: float = 10000.0, **more: Any) -> Options:
    return {"rope_type": kind, "rope_theta": theta, **more}


YARN: Options = dict(factor=4.0, original_max_position_embeddings=32)
LLAMA3: Options = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                       original_max_position_embeddings=32)  # fmt: skip


def longrope(size: int, **more: Any) -> Options:
    """Short and long factors for `size` rotated elements; the long ones are not to be used."""
    half = range(size // 2)
    return dict(short_factor=[1.0 + 0.25 * i for i in half], long_factor=[4.0 + i for i in half],
                original_max_position_embeddings=64, **more)  # fmt: skip


def family(model_type: str, common: Options, **variants: Options) -> dict[str, Options]:
    """Variants of a model type; ... takes an option away."""
    base = {**COMMON, **common, "_type": model_type}
    return {
        name: {k: v for k, v in {**base, **own}.items() if v is not ...}
        for name, own in variants.items()
    }


def spare_layer(layer: int) -> Options:
    """Names that multi-token prediction adds behind the last layer; their shapes do not matter."""
    own = ("eh_proj", "enorm", "hnorm", "embed_tokens", "shared_head.head", "shared_head.norm",
           "input_layernorm", "post_attention_layernorm", "self_attn.o_proj", "self_attn.q_proj",
           "mlp.gate", "mlp.experts.{0..2}.down_proj", "mlp.shared_experts.up_proj")  # fmt: skip
    more = {f"model.layers.{layer}.{name}.weight": [[4, 4], 0.0, 1.0] for name in own}
    more[f"model.layers.{layer}.mlp.gate.e_score_correction_bias"] = [[4], 0.0, 1.0]
    return more


GRANITE: Options = dict(intermediate_size=24, num_local_experts=8, num_experts_per_tok=2,
                        attention_multiplier=0.3)  # fmt: skip
