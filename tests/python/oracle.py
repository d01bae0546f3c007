# SPDX-License-Identifier: Apache-2.0
"""A plain NumPy float32 forward pass over the roles of an image: the second opinion.

Written from the formulas, not from the C code, and not bit-exact to it: it shows that the
runtime computes the model, and what a type of weights costs.  Weights are given by
(layer, role) or (layer, role, expert); `activations` says which of them meet activations that
are quantised to int8 first (group size by role), as the runtime does for q8 and q4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Key = tuple[Any, ...]


def quantise_activations(x: Floats, group: int) -> Floats:
    """Activations as int8 codes times the group's amax / 127, padded columns apart."""
    columns = x.shape[-1]
    padded = np.zeros((*x.shape[:-1], -(-columns // group) * group), np.float32)
    padded[..., :columns] = x
    groups = padded.reshape(*x.shape[:-1], -1, group)
    step = np.abs(groups).max(-1, keepdims=True) / np.float32(127)
    codes = np.clip(np.rint(groups / np.where(step > 0, step, 1)), -127, 127)
    return (codes * step).astype(np.float32).reshape(padded.shape)[..., :columns]


def _softmax(scores: Floats) -> Floats:
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True), np.float32)


def _sigmoid(x: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-x)), np.float32)


@dataclass
class Trace:
    """What the reference outputs are compared with, by layer."""

    experts: list[NDArray[np.int64]]
    weights: list[Floats]
    states: list[Floats]


class Oracle:
    """config: the settings by name, as in section 2 of docs/spec.md."""

    def __init__(
        self,
        config: Mapping[str, Any],
        expert_layers: list[bool],
        weights: Mapping[Key, Floats],
        groups: Mapping[Key, int] | None = None,
    ) -> None:
        self.c, self.expert_layers, self.w = config, expert_layers, weights
        self.groups = groups or {}
        self.trace = Trace([], [], [])

    def logits(self, tokens: NDArray[Any]) -> Floats:
        """All logits of one sequence, computed at once."""
        self.trace = Trace([], [], [])
        x = self.w[None, "embedding"][tokens]
        for layer in range(self.c["layers"]):
            self.trace.states.append(x)
            x = x + self._attention(layer, self._norm(x, self.w[layer, "attention_norm"]))
            h = self._norm(x, self.w[layer, "ffn_norm"])
            if self.expert_layers[layer]:
                x = x + self._experts(layer, h)
            else:
                x = x + self._mlp(layer, "dense", h)
        x = self._norm(x, self.w[None, "output_norm"])
        self.trace.states.append(x)
        return self._linear((None, "embedding" if self.c["tied"] else "output"), x)

    def _norm(self, x: Floats, weight: Floats) -> Floats:
        mean = (x * x).mean(-1, keepdims=True)
        return np.asarray(x / np.sqrt(mean + np.float32(self.c["norm_epsilon"])) * weight)

    def _linear(self, key: Key, x: Floats) -> Floats:
        group = self.groups.get(key, 0)
        return (quantise_activations(x, group) if group else x) @ self.w[key].T

    def _mlp(self, layer: int, kind: str, x: Floats, *expert: int) -> Floats:
        gate = self._linear((layer, f"{kind}_gate", *expert), x)
        up = self._linear((layer, f"{kind}_up", *expert), x)
        return self._linear((layer, f"{kind}_down", *expert), gate * _sigmoid(gate) * up)

    def _rotate(self, x: Floats) -> Floats:
        """x: tokens x heads x head_size; position = token."""
        size = self.c["rope_size"]
        if not size:
            return x
        angles = np.arange(len(x), dtype=np.float32)[:, None] * self.w[None, "rope"]
        cos, sin = (f(angles)[:, None] * np.float32(self.c["rope_scale"]) for f in (np.cos, np.sin))
        if self.c["rope_style"]:
            a, b = x[..., 0:size:2], x[..., 1:size:2]
        else:
            a, b = x[..., : size // 2], x[..., size // 2 : size]
        turned = (a * cos - b * sin, b * cos + a * sin)
        if self.c["rope_style"]:
            parts: Floats = np.stack(turned, -1).reshape(*x.shape[:-1], size)
        else:
            parts = np.concatenate(turned, -1)
        return np.concatenate((parts, x[..., size:]), -1)

    def _attention(self, layer: int, x: Floats) -> Floats:
        heads, kv, size = self.c["heads"], self.c["kv_heads"], self.c["head_size"]
        count = len(x)

        def project(name: str, of: int) -> Floats:
            y = self._linear((layer, name), x)
            bias = self.w.get((layer, f"{name}_bias"))
            return (y if bias is None else y + bias).reshape(count, of, size)

        q = self._rotate(project("query", heads))
        k = np.repeat(self._rotate(project("key", kv)), heads // kv, 1)
        v = np.repeat(project("value", kv), heads // kv, 1)
        scores = np.einsum("qhd,khd->hqk", q, k, optimize=True)
        scores = scores * np.float32(self.c["attention_scale"])
        scores[:, np.triu(np.ones((count, count), bool), 1)] = -np.inf
        out = np.einsum("hqk,khd->qhd", _softmax(scores), v, optimize=True)
        return self._linear((layer, "attention_out"), out.reshape(count, -1))

    def _experts(self, layer: int, x: Floats) -> Floats:
        scores = _softmax(x @ self.w[layer, "router"].T)
        chosen = np.argsort(-scores, -1, kind="stable")[:, : self.c["top_k"]]
        weights = np.take_along_axis(scores, chosen, -1)
        if self.c["router_flags"] & 1:
            weights = weights / weights.sum(-1, keepdims=True)
        self.trace.experts.append(chosen)
        self.trace.weights.append(weights)
        out = np.zeros_like(x)
        for expert in np.unique(chosen):
            token, rank = np.nonzero(chosen == expert)
            y = self._mlp(layer, "expert", x[token], int(expert))
            out[token] += weights[token, rank][:, None] * y
        if self.c["shared_size"]:
            shared = self._mlp(layer, "shared", x)
            if self.c["shared_flags"] & 1:
                shared = shared * _sigmoid(x @ self.w[layer, "shared_router"].T)
            out += shared
        return out


def negative_log_likelihood(
    logits: Callable[[NDArray[Any]], Floats], ids: NDArray[Any], window: int = 512
) -> tuple[float, int]:
    """Sum and count over windows; in each, tokens 2 and on are predicted."""
    total, count = 0.0, 0
    for at in range(0, len(ids), window):
        part = ids[at : at + window]
        if len(part) < 2:
            break
        row = logits(part)[:-1].astype(np.float64)
        top = row.max(-1, keepdims=True)
        normal = np.log(np.exp(row - top).sum(-1)) + top[:, 0]
        total += float((normal - row[np.arange(len(row)), part[1:]]).sum())
        count += len(part) - 1
    return total, count


def perplexity(logits: Callable[[NDArray[Any]], Floats], texts: list[NDArray[Any]]) -> float:
    """Perplexity of all texts together."""
    sums = [negative_log_likelihood(logits, ids) for ids in texts]
    return math.exp(sum(s for s, _ in sums) / sum(n for _, n in sums))
