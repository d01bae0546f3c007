# SPDX-License-Identifier: Apache-2.0
"""Qwen2-MoE and Mixtral in NumPy float64, straight from a checkpoint's config and tensor names.

Independent of the packer, the image and the C code.  Only RoPE's inverse frequencies and angles
are float32, as the reference implementation computes them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

Doubles = NDArray[np.float64]


def softmax(x: Doubles) -> Doubles:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def sigmoid(x: Doubles) -> Doubles:
    return np.asarray(1 / (1 + np.exp(-x)))


class Model:
    """`routes` holds, by layer with experts, the chosen ids and weights of the last call and by
    how much the last chosen expert won."""

    def __init__(self, config: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> None:
        self.c = config
        self.w = {name: np.asarray(t, np.float64) for name, t in tensors.items()}
        self.mixtral = config["model_type"] == "mixtral"
        self.routes: dict[int, tuple[NDArray[np.int64], Doubles, float]] = {}
        self.size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]

    @classmethod
    def open(cls, folder: Path) -> Model:
        config = json.loads((folder / "config.json").read_text())
        return cls(config, load_file(folder / "model.safetensors"))

    def logits(self, tokens: NDArray[Any]) -> Doubles:
        x = self.w["model.embed_tokens.weight"][tokens]
        for layer in range(self.c["num_hidden_layers"]):
            p = f"model.layers.{layer}."
            x = x + self._attention(p, self._norm(x, p + "input_layernorm"))
            h = self._norm(x, p + "post_attention_layernorm")
            x = x + self._feed_forward(layer, p, h)
        head = "model.embed_tokens" if self.c.get("tie_word_embeddings") else "lm_head"
        return self._norm(x, "model.norm") @ self.w[head + ".weight"].T

    def _norm(self, x: Doubles, name: str) -> Doubles:
        mean = (x * x).mean(-1, keepdims=True)
        return np.asarray(x / np.sqrt(mean + self.c["rms_norm_eps"]) * self.w[name + ".weight"])

    def _linear(self, name: str, x: Doubles) -> Doubles:
        y = x @ self.w[name + ".weight"].T
        return np.asarray(y + self.w.get(name + ".bias", 0.0))

    def _rotate(self, x: Doubles) -> Doubles:
        half = self.size // 2
        power = np.arange(0, self.size, 2, dtype=np.float32) / np.float32(self.size)
        frequency = np.float32(1) / np.float32(self.c["rope_theta"]) ** power
        angle = np.arange(len(x), dtype=np.float32)[:, None, None] * frequency
        cos, sin = np.cos(angle.astype(np.float64)), np.sin(angle.astype(np.float64))
        a, b = x[..., :half], x[..., half:]
        return np.concatenate((a * cos - b * sin, b * cos + a * sin), -1)

    def _attention(self, p: str, x: Doubles) -> Doubles:
        heads, kv = self.c["num_attention_heads"], self.c["num_key_value_heads"]
        n = len(x)
        q, k, v = (
            self._linear(f"{p}self_attn.{name}_proj", x).reshape(n, -1, self.size) for name in "qkv"
        )
        q, k = self._rotate(q), np.repeat(self._rotate(k), heads // kv, 1)
        scores = np.einsum("qhd,khd->hqk", q, k) * self.size**-0.5
        scores[:, np.triu(np.ones((n, n), bool), 1)] = -np.inf
        out = np.einsum("hqk,khd->qhd", softmax(scores), np.repeat(v, heads // kv, 1))
        return self._linear(p + "self_attn.o_proj", out.reshape(n, -1))

    def _gated(self, gate: str, up: str, down: str, x: Doubles) -> Doubles:
        g = self._linear(gate, x)
        return self._linear(down, g * sigmoid(g) * self._linear(up, x))

    def _mlp(self, p: str, x: Doubles) -> Doubles:
        return self._gated(p + "gate_proj", p + "up_proj", p + "down_proj", x)

    def _feed_forward(self, layer: int, p: str, x: Doubles) -> Doubles:
        if self.mixtral:
            moe = p + "block_sparse_moe."
            return self._experts(layer, moe, x, True)
        c, mlp = self.c, p + "mlp."
        if layer in c.get("mlp_only_layers", []) or (layer + 1) % c.get("decoder_sparse_step", 1):
            return self._mlp(mlp, x)
        gate = sigmoid(self._linear(mlp + "shared_expert_gate", x))
        shared = gate * self._mlp(mlp + "shared_expert.", x)
        return self._experts(layer, mlp, x, c.get("norm_topk_prob", False)) + shared

    def _experts(self, layer: int, p: str, x: Doubles, renormalise: bool) -> Doubles:
        scores = softmax(self._linear(p + "gate", x))
        order = np.argsort(-scores, -1, kind="stable")
        k = self.c["num_experts_per_tok"]
        chosen = order[:, :k]
        weights = np.take_along_axis(scores, chosen, -1)
        ranked = np.take_along_axis(scores, order, -1)[:, : k + 1]
        margin = float((ranked[:, :-1] - ranked[:, 1:]).min(initial=1.0))
        if renormalise:
            weights = weights / weights.sum(-1, keepdims=True)
        self.routes[layer] = chosen, weights, margin
        out = np.zeros_like(x)
        for t, rank in np.ndindex(*chosen.shape):
            e = f"{p}experts.{chosen[t, rank]}."
            names = ("w1", "w3", "w2") if self.mixtral else ("gate_proj", "up_proj", "down_proj")
            gate, up, down = (e + name for name in names)
            out[t] += weights[t, rank] * self._gated(gate, up, down, x[t : t + 1])[0]
        return out
