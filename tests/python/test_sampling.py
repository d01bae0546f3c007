# SPDX-License-Identifier: Apache-2.0
"""Drawing a token: edge values, the kept set against a sorting oracle, frequencies, determinism."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import numerics32 as n32
from colibri import EngineError, _core, sample
from colibri.sampling import Sampler, Sampling

Floats = NDArray[np.float32]
INF, NAN = float("inf"), float("nan")
ARGUMENT, NONFINITE = 1, 80


def draw(
    logits: Any, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, state: int = 1
) -> tuple[int, int]:
    return _core.sample(np.asarray(logits, np.float32), temperature, top_k, top_p, state)


def status_of(*arguments: Any) -> int:
    with pytest.raises(EngineError) as caught:
        draw(*arguments)
    assert caught.value.status is not None
    return caught.value.status.code


def pcg(state: int) -> tuple[float, int]:
    """docs/numerics.md section 7, in unbounded integers."""
    state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
    mixed = ((state >> 18) ^ state) >> 27 & 0xFFFFFFFF
    turn = state >> 59
    turned = (mixed >> turn | mixed << (-turn & 31)) & 0xFFFFFFFF
    return (turned >> 8) * 2.0**-24, state


def kept(logits: Floats, temperature: float, top_k: int, top_p: float) -> list[int]:
    """Ids that may be drawn, by sorting, in float64.  Ascending."""
    wide = logits.astype(np.float64)
    ranked = sorted(range(len(wide)), key=lambda i: (-wide[i], i))
    ranked = ranked[: top_k or len(ranked)]
    weight = {i: float(np.exp((wide[i] - wide.max()) / temperature)) for i in ranked}
    need, mass, chosen = top_p * sum(weight.values()), 0.0, []
    for i in ranked:
        if top_p < 1 and mass >= need:
            break
        mass += weight[i]
        chosen.append(i)
    return sorted(i for i in chosen if weight[i] > 1e-37)


def drawn_set(logits: Floats, temperature: float, top_k: int, top_p: float) -> set[int]:
    sampler = Sampler(Sampling(temperature, top_k, top_p, seed=3))
    return {sampler(logits) for _ in range(400)}


# Edge values


ROW = n32.floats([1, 3, 2, 3, -1, -INF, 0.5])


@pytest.mark.parametrize("top_p", [0.0, -0.0, 1e-45, 1e-9, 0.1, 1.0, 2.0, INF])
@pytest.mark.parametrize("top_k", [0, 1, 2, 6, 7, 8, 2**32 - 1])
@pytest.mark.parametrize("temperature", [0.0, -0.0, 1e-45, 1e-30, 0.7, 1.0, 1e30, INF])
def test_edge_values_give_a_likely_token(temperature: float, top_k: int, top_p: float) -> None:
    for seed in range(40):
        token, _ = draw(ROW, temperature, top_k, top_p, seed)
        assert token in (0, 1, 2, 3, 4, 6)
        if temperature == 0 or top_k == 1 or top_p < 1e-8:
            assert token == 1
        elif temperature < 1e-20 or top_k == 2:
            assert token in (1, 3)


@pytest.mark.parametrize(
    ("temperature", "top_p"),
    [(-1, 1), (-1e-45, 1), (NAN, 1), (-INF, 1), (1, -1e-45), (1, NAN), (1, -INF)],
)
def test_wrong_settings_are_refused(temperature: float, top_p: float) -> None:
    assert status_of([1, 2], temperature, 0, top_p) == ARGUMENT


def test_python_names_the_setting() -> None:
    for settings in ({"temperature": -1}, {"temperature": NAN}, {"top_k": -1}, {"top_p": 1.5},
                     {"top_p": NAN}, {"seed": -1}, {"seed": 2**64}):  # fmt: skip
        with pytest.raises(EngineError, match=next(iter(settings))):
            sample([1.0, 2.0], **settings)
    with pytest.raises(EngineError, match="shape"):
        sample([[1.0], [2.0]])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("logits", [
    [NAN], [1, NAN], [NAN, 1], [INF], [1, INF, 2], [-INF], [-INF, -INF], [-INF, NAN],
])  # fmt: skip
def test_logits_that_are_no_numbers_are_an_error(logits: list[float], temperature: float) -> None:
    assert status_of(logits, temperature) == NONFINITE


def test_no_logits_are_an_error() -> None:
    assert status_of([]) == ARGUMENT


def test_minus_infinity_is_never_drawn() -> None:
    row = n32.floats([-INF, 0, -INF, 0, -INF])
    for temperature, top_k, top_p in itertools.product((0, 1, 1e30, INF), (0, 1, 4, 5), (0.3, 1)):
        assert {draw(row, temperature, top_k, top_p, s)[0] for s in range(60)} <= {1, 3}


def test_infinite_temperature_keeps_top_p() -> None:
    """All candidates weigh the same, and -infinity nothing: half of them are kept, lowest first."""
    row = n32.floats([5, -INF, 4, 3, 2])
    assert {draw(row, INF, 0, 0.5, s)[0] for s in range(200)} == {0, 2}


def test_greedy_ties_go_to_the_lowest_id() -> None:
    assert draw([0.0, -0.0, 0.0], 0)[0] == 0
    assert draw([-0.0, 0.0], 0)[0] == 0
    assert draw([1, 5, 5, 5], 0)[0] == 1


def test_greedy_leaves_the_seed_alone() -> None:
    assert draw([1, 2], 0, 0, 1, 77)[1] == 77
    assert draw([1, 2], 1, 0, 1, 77)[1] == pcg(77)[1]


# The kept set


ROWS = {
    "gaussian": np.random.default_rng(1).normal(0, 2, 50),
    "ties": np.random.default_rng(2).integers(-2, 3, 40).astype(float),
    "all equal": np.zeros(20),
    "both zeros": np.array([0.0, -0.0] * 6 + [-1.0]),
    "one": np.array([4.0]),
    "far apart": np.array([3e38, -3e38, 0, 3e38]),
    "subnormal": np.array([1e-45, 0, -1e-45, 2e-45, -1e-40]),
    "with infinities": np.array([-INF, 1, -INF, 2, 1, 0]),
}


@pytest.mark.parametrize("top_p", [1.0, 0.97, 0.9, 0.55, 0.31, 0.12, 1e-3])
@pytest.mark.parametrize("top_k", [0, 1, 2, 3, 7, 19])
@pytest.mark.parametrize("temperature", [0.4, 1.3])
@pytest.mark.parametrize("name", ROWS)
def test_kept_set(name: str, temperature: float, top_k: int, top_p: float) -> None:
    row = ROWS[name].astype(np.float32)
    allowed = kept(row, temperature, top_k, top_p)
    drawn = drawn_set(row, temperature, top_k, top_p)
    assert drawn <= set(allowed)
    likely = np.exp((row.astype(np.float64) - row.max()) / temperature)
    total = sum(likely[i] for i in allowed)
    assert {i for i in allowed if likely[i] > 0.03 * total} <= drawn


def test_random_rows_draw_what_the_oracle_draws() -> None:
    """Same generator, same running sums: the very token, but for a sum that rounding decides."""
    rng = np.random.default_rng(9)
    different = 0
    for case in range(500):
        row = rng.normal(0, 3, rng.integers(2, 300)).astype(np.float32)
        temperature = float(np.float32(rng.uniform(0.2, 2)))
        top_k, top_p = int(rng.integers(0, 50)), float(np.float32(rng.uniform(0.05, 1)))
        ids = kept(row, temperature, top_k, top_p)
        weight = np.exp((row.astype(np.float64)[ids] - row.max()) / temperature)
        u, state = pcg(case)
        at = int(np.searchsorted(np.cumsum(weight), u * weight.sum(), "right"))
        expected = ids[min(at, len(ids) - 1)]
        token, after = draw(row, temperature, top_k, top_p, case)
        assert after == (state if top_k != 1 else case)  # one candidate needs no number
        assert token in ids
        different += token != expected
    assert different <= 2


# Every bit


def exact(logits: Floats, temperature: float, top_k: int, top_p: float, state: int) -> int:
    """docs/numerics.md section 7 with sums in float32, every key a threshold that is tried."""
    t, p = np.float32(temperature), np.float32(top_p)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        x = (logits - logits.max()) / t
        weight = np.where(np.isfinite(logits), n32.exp(x.astype(np.float32)), np.float32(0))
    ranked = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    kept = np.sort(ranked[: top_k or len(ranked)])

    def mass(ids: NDArray[Any]) -> np.float32:
        return np.float32(np.add.accumulate(weight[ids])[-1] if len(ids) else 0)

    if p < 1:
        need = p * mass(kept)
        keys = np.unique(logits[kept])[::-1]
        key = next(key for key in keys if mass(kept[logits[kept] >= key]) >= need)
        ties: list[int] = []
        total = mass(kept[logits[kept] > key])
        for i in kept[logits[kept] == key]:
            ties.append(i)
            total = total + weight[i]
            if total >= need:
                break
        kept = np.sort(np.concatenate([kept[logits[kept] > key], ties])).astype(int)
    kept = kept[weight[kept] > 0]
    sums = np.add.accumulate(weight[kept])
    beyond = np.flatnonzero(sums > np.float32(pcg(state)[0]) * sums[-1])
    return int(kept[beyond[0] if len(beyond) else -1])


def hostile(rng: np.random.Generator) -> Floats:
    """Logits with what makes thresholds hard to find, in rows of any length."""
    n = int(rng.integers(2, 200))
    near = np.float32(rng.normal(0, 10))
    row = [
        rng.normal(0, rng.choice([1e-3, 1, 30]), n),
        rng.integers(-3, 3, n).astype(np.float32),
        np.full(n, near),
        near + rng.integers(-2, 3, n) * np.spacing(near),  # neighbours among the floats
        rng.choice([0.0, -0.0, 1e-45, -1e-45, 1e-38, -1e-38], n),
        rng.choice([3e38, -3e38, 1.0, 2.0, -1.0], n),
        -3e38 - rng.integers(0, 3, n) * 1e37,
        np.ldexp(rng.choice([-1.0, 1.0], n), rng.integers(-149, 127, n)),
        np.float32(16) - np.arange(n) * np.float32(2e-6),  # below and above a power of two
    ][int(rng.integers(9))].astype(np.float32)
    if rng.random() < 0.3:
        row[rng.random(n) < 0.3] = -INF
    if not np.isfinite(row).any():
        row[int(rng.integers(n))] = -3e38
    return n32.floats(row)


@pytest.mark.parametrize("seed", range(4))
def test_hostile_rows_draw_the_very_token(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for case in range(150):
        row = hostile(rng)
        temperature = float(np.float32(rng.choice([1e-30, 0.1, 0.7, 1, 5, 1e30])))
        top_k = int(rng.choice([0, 2, 3, 7, 40, len(row), 1000]))
        top_p = float(np.float32(rng.choice([1e-45, 1e-6, 0.1, 0.5, 0.9, 0.999, 1 - 2**-24, 1])))
        expected = exact(row, temperature, top_k, top_p, case)
        assert draw(row, temperature, top_k, top_p, case)[0] == expected, (case, top_k, top_p)


# Frequencies


def test_frequencies_follow_the_softmax() -> None:
    row = n32.floats([2.0, 1.0, 0.0, -1.0, 1.0, -3.0])
    probability = np.exp(row / 1.5) / np.exp(row / 1.5).sum()
    n = 40_000
    sampler = Sampler(Sampling(temperature=1.5, seed=2024))
    seen = Counter(sampler(row) for _ in range(n))
    expected = probability * n
    chi_square = sum((seen[i] - expected[i]) ** 2 / expected[i] for i in range(len(row)))
    assert chi_square < 20.5  # 5 degrees of freedom: exceeded once in a thousand seeds


def test_the_same_seed_draws_the_same() -> None:
    row = np.random.default_rng(4).normal(0, 1, 100).astype(np.float32)
    runs = []
    for seed in (5, 5, 6):
        sampler = Sampler(Sampling(1.0, 20, 0.9, seed))
        runs.append([sampler(row) for _ in range(50)])
    assert runs[0] == runs[1] != runs[2]


def test_frozen_draws() -> None:
    row = np.arange(64, dtype=np.float32) % 7
    state, tokens = 12345, []
    for _ in range(12):
        token, state = draw(row, 1.0, 30, 0.9, state)
        tokens.append(token)
    assert tokens == [27, 26, 27, 41, 62, 34, 47, 34, 34, 55, 26, 61]
