# SPDX-License-Identifier: Apache-2.0
"""SmallThinker in NumPy float64, from the published formulas: names and keys of its checkpoints.

For residual streams x, layer by layer (families/smallthinker.toml names the sources):

    s = R x                                     the layer's input, before any norm
    x += O attention(rms(x))                    heads in groups, rotated where rope_layout is 1
    y = rms(x)
    x += sum over the k largest s_e of w_e * D_e (relu(G_e y) * U_e y)
    w = softmax of the chosen s, or sigmoid(s) / sum of the chosen sigmoid(s)

and logits = E rms(x).  Where sliding_window_layout is 1, position t sees t - window + 1 .. t.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]


@dataclass
class Outcome:
    """Logits of every position; expert -> weight for each layer with experts and each position."""

    logits: Doubles
    routes: list[list[dict[int, float]]] = field(default_factory=list)


def softmax(scores: Doubles) -> Doubles:
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def frequencies(config: Mapping[str, Any]) -> Doubles:
    """Radians per position of each pair of a head; linear scaling stretches positions."""
    pairs = np.arange(config["head_dim"] // 2)
    scaling = config.get("rope_scaling") or {"type": "linear", "factor": 1.0}
    if scaling["type"] != "linear":
        raise NotImplementedError(scaling["type"])
    turns = config["rope_theta"] ** (-2.0 * pairs / config["head_dim"])
    return np.asarray(turns / scaling["factor"])


def rotate(heads: Doubles, turns: Doubles) -> Doubles:
    """heads: position x head x element; the pair i is the elements i and i + half."""
    angles = (np.arange(len(heads))[:, None] * turns)[:, None]
    first, second = np.split(heads, 2, axis=-1)
    pairs = (first + 1j * second) * np.exp(1j * angles)
    return np.concatenate([pairs.real, pairs.imag], axis=-1)


class SmallThinker:
    """A checkpoint's config, and its tensors by name."""

    def __init__(self, config: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> None:
        self.config = config
        self.tensors = {name: array.astype(np.float64) for name, array in tensors.items()}

    def __call__(self, ids: NDArray[Any]) -> Outcome:
        embedding = self.tensors["model.embed_tokens.weight"]
        stream, routes = embedding[ids], []
        for layer in range(self.config["num_hidden_layers"]):
            arrived = stream
            inner = self._norm(self._of(layer, "input_layernorm"), stream)
            stream = stream + self._attention(layer, inner)
            inner = self._norm(self._of(layer, "post_attention_layernorm"), stream)
            if self.config.get("moe_layer_layout", [1] * (layer + 1))[layer]:
                chosen = self._route(layer, arrived)
                stream = stream + self._experts(layer, inner, chosen)
                routes.append(chosen)
            else:
                stream = stream + self._reglu(self._of(layer, "block_sparse_moe"), inner)
        output = embedding if self.config["tie_word_embeddings"] else self.tensors["lm_head.weight"]
        return Outcome(self._norm("model.norm", stream) @ output.T, routes)

    def _of(self, layer: int, name: str) -> str:
        return f"model.layers.{layer}.{name}"

    def _times(self, name: str, x: Doubles) -> Doubles:
        return x @ self.tensors[f"{name}.weight"].T

    def _norm(self, name: str, x: Doubles) -> Doubles:
        size = np.sqrt((x * x).mean(-1, keepdims=True) + self.config["rms_norm_eps"])
        return np.asarray(x / size * self.tensors[f"{name}.weight"])

    def _attention(self, layer: int, x: Doubles) -> Doubles:
        size, groups = self.config["head_dim"], self.config["num_key_value_heads"]
        query, key, value = (
            self._times(self._of(layer, f"self_attn.{name}_proj"), x).reshape(len(x), -1, size)
            for name in "qkv"
        )
        if self.config["rope_layout"][layer]:
            turns = frequencies(self.config)
            query, key = rotate(query, turns), rotate(key, turns)
        grouped = query.reshape(len(x), groups, -1, size)
        scores = np.einsum("tgne,sge->gnts", grouped, key) / np.sqrt(size)
        scores = np.where(self._seen(layer, len(x)), scores, -np.inf)
        mixed = np.einsum("gnts,sge->tgne", softmax(scores), value)
        return self._times(self._of(layer, "self_attn.o_proj"), mixed.reshape(len(x), -1))

    def _seen(self, layer: int, count: int) -> NDArray[np.bool_]:
        """Which positions (columns) each position (row) may look at."""
        back = np.arange(count)[:, None] - np.arange(count)
        window = count
        if self.config["sliding_window_layout"][layer]:
            window = self.config["sliding_window_size"]
        return (back >= 0) & (back < window)

    def _route(self, layer: int, arrived: Doubles) -> list[dict[int, float]]:
        scores = self._times(self._of(layer, "block_sparse_moe.primary_router"), arrived)
        return [self._choose(row) for row in scores]

    def _choose(self, scores: Doubles) -> dict[int, float]:
        best = np.argsort(-scores, kind="stable")[: self.config["moe_num_active_primary_experts"]]
        if self.config["moe_primary_router_apply_softmax"]:
            weights = softmax(scores[best])
        else:
            shares = 1 / (1 + np.exp(-scores[best]))
            weights = shares / shares.sum()
        return dict(zip(best.tolist(), weights.tolist(), strict=True))

    def _experts(self, layer: int, x: Doubles, chosen: list[dict[int, float]]) -> Doubles:
        mixed = np.zeros_like(x)
        for position, experts in enumerate(chosen):
            for expert, weight in experts.items():
                name = self._of(layer, f"block_sparse_moe.experts.{expert}")
                mixed[position] += weight * self._reglu(name, x[position])
        return mixed

    def _reglu(self, name: str, x: Doubles) -> Doubles:
        gate = np.maximum(self._times(f"{name}.gate", x), 0)
        return self._times(f"{name}.down", gate * self._times(f"{name}.up", x))
