# SPDX-License-Identifier: Apache-2.0
"""Routing formulas, written down once more in float64 NumPy, against the runtime's router.

Formulas are those of each model's own code; random scores are far enough from ties for float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from colibri import _core

Floats = NDArray[np.float64]
Choice = dict[int, float]
RENORMALISE, CLAMP, LENGTH, GROUP_BEST, GROUP_TWO = 1, 2, 4, 8, 16
SOFTMAX, TOPK_SOFTMAX, SIGMOID, SPARSEMIXER, TOPK_SIGMOID = 1, 2, 3, 4, 5


def softmax(x: Floats) -> Floats:
    e = np.exp(x - x.max())
    return np.asarray(e / e.sum())


def sigmoid(x: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-x)))


def best(x: Floats, k: int) -> list[int]:
    return [int(i) for i in np.argsort(-x, kind="stable")[:k]]


def runtime(scores: Floats, k: int, **settings: Any) -> Choice:
    ids, weights = _core.route_topk(scores.astype(np.float32), k, **settings)
    assert len(set(ids.tolist())) == k
    return dict(zip(ids.tolist(), weights.tolist(), strict=True))


def check(found: Choice, expected: Choice) -> None:
    assert found.keys() == expected.keys()
    for expert, weight in expected.items():
        assert found[expert] == pytest.approx(weight, rel=2e-6)


@pytest.fixture(params=range(8))
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    return np.random.default_rng(request.param)


@pytest.mark.parametrize(("experts", "k"), [(5, 1), (8, 3), (24, 6), (8, 8), (64, 8), (1, 1)])
class TestTopK:
    """Routers that look at no groups."""

    @pytest.mark.parametrize("normed", [False, True])
    def test_softmax(self, rng: np.random.Generator, experts: int, k: int, normed: bool) -> None:
        """qwen2_moe, qwen3_moe, olmoe; mixtral when normed."""
        scores = rng.normal(0, 2, experts)
        p = softmax(scores)
        chosen = best(p, k)
        total = p[chosen].sum() if normed else 1.0
        check(runtime(scores, k, flags=normed), {i: p[i] / total for i in chosen})

    def test_softmax_of_the_chosen(self, rng: np.random.Generator, experts: int, k: int) -> None:
        """granitemoe, jetmoe, gpt_oss."""
        scores = rng.normal(0, 2, experts)
        chosen = best(scores, k)
        weights = softmax(scores[chosen])
        check(runtime(scores, k, router=TOPK_SOFTMAX), dict(zip(chosen, weights, strict=True)))

    def test_sigmoid_of_the_chosen(self, rng: np.random.Generator, experts: int, k: int) -> None:
        """llama4."""
        scores = rng.normal(0, 2, experts)
        expected = {i: sigmoid(scores)[i] for i in best(scores, k)}
        check(runtime(scores, k, router=TOPK_SIGMOID), expected)

    @pytest.mark.parametrize("floor", [1e-12, 0.9])
    def test_softmax_selection_clamp(
        self, rng: np.random.Generator, experts: int, k: int, floor: float
    ) -> None:
        """ernie4_5_moe: chosen with the bias, divided by max(sum, floor) without it."""
        scores, bias = rng.normal(0, 2, experts), rng.normal(0, 0.3, experts)
        p = softmax(scores)
        chosen = best(p + bias, k)
        total = max(p[chosen].sum(), floor)
        found = runtime(scores, k, flags=CLAMP, epsilon=floor, selection=bias.astype(np.float32))
        check(found, {i: p[i] / total for i in chosen})

    @pytest.mark.parametrize(("normed", "epsilon", "scale"),
                             [(True, 1e-20, 2.5), (True, 1e-6, 1.0),
                              (False, 0.0, 1.8)])  # fmt: skip
    def test_sigmoid_selection(
        self, rng: np.random.Generator, experts: int, k: int,
        normed: bool, epsilon: float, scale: float,
    ) -> None:  # fmt: skip
        """afmoe, lfm2_moe, minimax_m2: the bias chooses, and is not in the weight."""
        scores, bias = rng.normal(0, 2, experts), rng.normal(0, 0.3, experts)
        p = sigmoid(scores)
        chosen = best(p + bias, k)
        total = p[chosen].sum() + epsilon if normed else 1.0
        found = runtime(scores, k, router=SIGMOID, flags=normed, epsilon=epsilon, scale=scale,
                        selection=bias.astype(np.float32))  # fmt: skip
        check(found, {i: p[i] / total * scale for i in chosen})

    def test_length(self, rng: np.random.Generator, experts: int, k: int) -> None:
        """dbrx with moe_normalize_expert_weights = 2."""
        scores = rng.normal(0, 2, experts)
        p = softmax(scores)
        chosen = best(p, k)
        length = np.sqrt((p[chosen] ** 2).sum())
        check(runtime(scores, k, flags=LENGTH), {i: p[i] / length for i in chosen})


def keep_groups(rank: Floats, groups: int, kept: int, score: Callable[[Floats], float]) -> Floats:
    by_group = rank.reshape(groups, -1)
    chosen = best(np.asarray([score(group) for group in by_group]), kept)
    masked = np.full_like(by_group, -np.inf)
    masked[chosen] = by_group[chosen]
    return masked.reshape(-1)


@pytest.mark.parametrize(("experts", "groups", "kept", "k"),
                         [(8, 2, 1, 3), (24, 8, 3, 6), (24, 8, 4, 1), (64, 8, 4, 8),
                          (12, 1, 1, 4)])  # fmt: skip
class TestGroups:
    """DeepSeek's group-limited choice."""

    @pytest.mark.parametrize("shift", [0.0, -5.0])
    def test_two_best(
        self, rng: np.random.Generator, experts: int, groups: int, kept: int, k: int, shift: float
    ) -> None:
        """deepseek_v3, glm4_moe, dots1: also when all biased scores are negative
        (vllm-project/vllm#37605: a mask of zeros lets dropped experts win)."""
        scores, bias = rng.normal(0, 2, experts), rng.normal(shift, 0.3, experts)
        p = sigmoid(scores)
        rank = keep_groups(p + bias, groups, kept, lambda g: np.sort(g)[-2:].sum())
        chosen = best(rank, k)
        total = p[chosen].sum() + 1e-20
        found = runtime(scores, k, router=SIGMOID, flags=RENORMALISE | GROUP_TWO, epsilon=1e-20,
                        scale=2.5, groups=groups, groups_kept=kept,
                        selection=bias.astype(np.float32))  # fmt: skip
        check(found, {i: p[i] / total * 2.5 for i in chosen})

    def test_best(
        self, rng: np.random.Generator, experts: int, groups: int, kept: int, k: int
    ) -> None:
        """deepseek_v2, group_limited_greedy."""
        scores = rng.normal(0, 2, experts)
        p = softmax(scores)
        chosen = best(keep_groups(p, groups, kept, lambda g: g.max()), k)
        found = runtime(scores, k, flags=GROUP_BEST, scale=16.0, groups=groups, groups_kept=kept)
        check(found, {i: p[i] * 16.0 for i in chosen})


@pytest.mark.parametrize("jitter", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("shift", [0.0, 3.0, -3.0])
@pytest.mark.parametrize("experts", [2, 5, 16])
def test_sparsemixer(rng: np.random.Generator, experts: int, shift: float, jitter: float) -> None:
    """phimoe: two rounds, each a softmax of its own; they do not sum to one."""
    scores = rng.normal(shift, 1, experts)
    rest, expected = scores.copy(), {}
    for _ in range(2):
        top = int(rest.argmax())
        near = (rest[top] - scores) / np.maximum(np.abs(scores), rest[top]) <= 2 * jitter
        expected[top] = softmax(np.where(near, rest, -np.inf))[top]
        rest[top] = -np.inf
    check(runtime(scores, 2, router=SPARSEMIXER, epsilon=jitter), expected)


def test_ties_go_to_the_lowest_id() -> None:
    """One defined answer where scores are equal, with and without groups."""
    scores = np.zeros(12)
    assert sorted(runtime(scores, 3)) == [0, 1, 2]
    groups = {"router": SIGMOID, "flags": GROUP_TWO, "groups": 4, "groups_kept": 2}
    assert sorted(runtime(scores, 4, **groups)) == [0, 1, 2, 3]


def test_selection_bias_keeps_its_precision() -> None:
    """sgl-project/sglang#37133: biases 1e-3 apart around 5 must not collapse."""
    bias = (5.0 + 1e-3 * np.array([3, 7, 1, 5, 0, 6, 2, 4])).astype(np.float32)
    found = runtime(np.zeros(8), 3, router=SIGMOID, flags=RENORMALISE, selection=bias)
    assert sorted(found) == [1, 3, 5]
