# SPDX-License-Identifier: Apache-2.0
"""Router: ids, order, weights and what is refused, against docs/numerics.md in NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import numerics32 as n32
from colibri import EngineError, _core

RENORMALISE = 1


@pytest.mark.parametrize("flags", [0, RENORMALISE])
@pytest.mark.parametrize("experts", [1, 2, 7, 8, 16, 17, 60, 64, 128, 4096])
def test_against_the_page(experts: int, flags: int) -> None:
    rng = np.random.default_rng(experts)
    for k in sorted({1, 2, min(8, experts), min(64, experts)} & set(range(1, experts + 1))):
        for spread in (0.1, 3.0, 40.0):
            scores = rng.normal(0, spread, experts).astype(np.float32)
            ids, weights = _core.route_topk(scores, k, 1, flags)
            expected_ids, expected = n32.route(scores, k, bool(flags))
            assert np.array_equal(ids, expected_ids)
            assert np.array_equal(n32.bits(weights), n32.bits(n32.floats(expected)))


def test_ties_go_to_the_lowest_id() -> None:
    assert _core.route_topk(np.zeros(9, np.float32), 4)[0].tolist() == [0, 1, 2, 3]
    scores = n32.floats([1, 5, 2, 5, 5, 2])
    assert _core.route_topk(scores, 5)[0].tolist() == [1, 3, 4, 2, 5]
    far = n32.floats([-1e30, 0, -1e30, -1e30])  # the last ones' probability is 0, and 0 ties too
    ids, weights = _core.route_topk(far, 3, 1, RENORMALISE)
    assert ids.tolist() == [1, 0, 2]
    assert weights.tolist() == [1, 0, 0]


def test_all_scores_negative_is_nothing_special() -> None:
    scores = n32.floats([-9, -7, -8, -7.5])
    ids, weights = _core.route_topk(scores, 2)
    assert ids.tolist() == [1, 3]
    assert (weights > 0).all()


def test_no_expert_is_chosen_twice() -> None:
    for k in range(1, 65):
        ids, _ = _core.route_topk(n32.floats([3, *[-200] * 63]), k)
        assert len(set(ids.tolist())) == k


def test_weights_are_probabilities() -> None:
    scores = np.random.default_rng(0).normal(0, 1, 16).astype(np.float32)
    raw = _core.route_topk(scores, 4)[1]
    whole = np.exp(scores.astype(np.float64)) / np.exp(scores.astype(np.float64)).sum()
    assert np.allclose(raw, np.sort(whole)[::-1][:4], rtol=1e-6)
    assert raw.sum() < 0.95
    assert abs(_core.route_topk(scores, 4, 1, RENORMALISE)[1].sum() - 1) < 1e-6
    assert abs(_core.route_topk(scores, 16)[1].sum() - 1) < 1e-6
    assert _core.route_topk(scores, 1, 1, RENORMALISE)[1].tolist() == [1.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 3, 15])
def test_scores_that_are_no_numbers_are_an_error(bad: float, at: int) -> None:
    scores = np.zeros(16, np.float32)
    scores[at] = bad
    with pytest.raises(EngineError) as caught:
        _core.route_topk(scores, 2)
    assert caught.value.status is not None
    assert caught.value.status.code == 80


def test_largest_scores_do_not_overflow() -> None:
    ids, weights = _core.route_topk(n32.floats([3.4e38, -3.4e38, 3.4e38]), 2, 1, RENORMALISE)
    assert ids.tolist() == [0, 2]
    assert weights.tolist() == [0.5, 0.5]
