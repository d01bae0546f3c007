# SPDX-License-Identifier: Apache-2.0
"""exp, sigmoid, rsqrt, sin, cos and f16 are as exact as float_math.h and docs/numerics.md say."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import numerics32 as n32
from native import build

Floats = NDArray[np.float32]
FARTHEST = 131072


@pytest.fixture(scope="module")
def call() -> Callable[..., list[Any]]:
    library = ctypes.CDLL(str(build() / "libfloat_arrays.so"))

    def run(name: str, x: NDArray[Any], outputs: int = 1, dtype: Any = np.float32) -> list[Any]:
        x = np.ascontiguousarray(x)
        out = [np.empty(x.shape, dtype) for _ in range(outputs)]
        pointers = [ctypes.c_void_p(a.ctypes.data) for a in (x, *out)]
        getattr(library, f"test_{name}")(*pointers, ctypes.c_size_t(x.size))
        return out

    return run


Call = Callable[..., list[Any]]


def ulps(got: Floats, exact: NDArray[np.float64]) -> float:
    """Largest error in units of the last place of the right answer."""
    last_place = np.spacing(np.abs(exact).astype(np.float32))
    return float((np.abs(got.astype(np.float64) - exact) / last_place).max())


def every(low: float, high: float, step: int) -> Floats:
    """Every step-th float between two of one sign."""
    a, b = sorted(int(n32.bits(n32.floats([v]))[0]) for v in (low, high))
    return n32.from_bits(np.arange(a, b + 1, step, dtype=np.uint32))


def beside(x: Floats) -> tuple[Floats, Floats]:
    """The next floats towards and away from zero."""
    return np.nextafter(x, np.float32(0)), np.nextafter(x, np.float32(1e9))


def test_exp_is_within_two_ulp(call: Call) -> None:
    x = np.concatenate((every(1e-8, 88, 97), every(-1e-8, -87, 97),
                        np.linspace(-87, 88, 1_000_001, dtype=np.float32)))  # fmt: skip
    got = call("exp", x)[0]
    assert ulps(got, np.exp(x.astype(np.float64))) < 2
    assert np.array_equal(n32.bits(got), n32.bits(n32.exp(x)))


def test_exp_at_the_ends(call: Call) -> None:
    below = float(np.nextafter(np.float32(-87), np.float32(-88)))
    x = n32.floats([0, -0.0, 1e-45, -1e-45, -87, below, -88, -1e30, -np.inf,
                    88, 88.1, 1e30, np.inf])  # fmt: skip
    got = call("exp", x)[0]
    top = got[9]
    assert got.tolist() == [1, 1, 1, 1, got[4], 0, 0, 0, 0, top, top, top, top]
    assert got[4] > np.finfo(np.float32).tiny
    assert np.isfinite(top)
    assert not np.signbit(got).any()
    assert np.isnan(call("exp", n32.floats([np.nan]))[0]).all()


def test_exp_never_falls(call: Call) -> None:
    x = np.linspace(-90, 90, 2_000_001, dtype=np.float32)
    got = call("exp", x)[0].astype(np.float64)
    assert ((got[1:] - got[:-1]) >= -2 * np.spacing(got[1:].astype(np.float32))).all()


def test_sigmoid(call: Call) -> None:
    x = np.linspace(-87, 88, 1_000_001, dtype=np.float32)
    got = call("sigmoid", x)[0]
    assert ulps(got, 1 / (1 + np.exp(-x.astype(np.float64)))) < 4
    assert np.array_equal(n32.bits(got), n32.bits(n32.sigmoid(x)))
    ends = call("sigmoid", n32.floats([-np.inf, -1e30, 0, 1e30, np.inf]))[0]
    assert ends[0] == ends[1] < 1e-37
    assert ends[2:].tolist() == [0.5, 1, 1]


def test_rsqrt_is_within_two_ulp(call: Call) -> None:
    x = np.concatenate((every(2.0**-125, float(np.finfo(np.float32).max), 1009), every(1, 4, 3)))
    got = call("rsqrt", x)[0]
    assert ulps(got, 1 / np.sqrt(x.astype(np.float64))) < 2
    below = every(2.0**-126, 2.0**-125, 7)  # half of these is subnormal: one bit is lost
    assert ulps(call("rsqrt", below)[0], 1 / np.sqrt(below.astype(np.float64))) < 3
    assert np.array_equal(n32.bits(got), n32.bits(n32.rsqrt(x)))


def test_sin_and_cos_within_2e_7(call: Call) -> None:
    rng = np.random.default_rng(1)
    worst = (np.arange(2 * FARTHEST / np.pi) * np.pi / 2).astype(np.float32)
    near = np.concatenate((worst, *beside(worst)))
    halves = ((np.arange(2 * FARTHEST / np.pi) + 0.5) * np.pi / 2).astype(np.float32)
    x = np.concatenate((near, halves, rng.uniform(0, FARTHEST, 2_000_000).astype(np.float32),
                        rng.uniform(0, 64, 1_000_000).astype(np.float32),
                        np.arange(FARTHEST + 1, dtype=np.float32),
                        every(1e-30, 2, 4001)))  # fmt: skip
    x = x[x <= FARTHEST]
    for signed in (x, -x):
        sine, cosine = call("sincos", signed, 2)
        wide = signed.astype(np.float64)
        assert np.abs(sine - np.sin(wide)).max() < 2e-7
        assert np.abs(cosine - np.cos(wide)).max() < 2e-7
    part = x[::7]
    for got, expected in zip(call("sincos", part, 2), n32.sincos(part), strict=True):
        assert np.array_equal(got, expected)  # -0 and +0 alike


def test_sin_and_cos_of_anything_end(call: Call) -> None:
    x = n32.floats([np.inf, -np.inf, np.nan, 1e38, -1e38, 3e5, 1e-45])
    sine, cosine = call("sincos", x, 2)
    assert np.isnan(sine[:3]).all()
    assert np.isnan(cosine[:3]).all()
    assert (sine[6], cosine[6]) == (x[6], 1)


def test_every_f16_widens_exactly(call: Call) -> None:
    x = np.arange(65536, dtype=np.uint16)
    got, expected = call("from_f16", x)[0], x.view(np.float16).astype(np.float32)
    number = ~np.isnan(expected)
    assert np.array_equal(n32.bits(got)[number], n32.bits(expected)[number])
    assert np.isnan(got[~number]).all()
    back = call("to_f16", got, dtype=np.uint16)[0]
    assert np.array_equal(back[number], x[number])


def test_narrowing_to_f16_rounds_to_nearest_even(call: Call) -> None:
    """Every f16, the midpoint above each, and the floats beside both: ties and both ends."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    above = np.append(halves[1:], np.float32(65536))
    middle = ((halves.astype(np.float64) + above) / 2).astype(np.float32)
    points = np.concatenate((halves, middle))
    x = np.concatenate((points, *beside(points), every(1e-45, 3.4e38, 99991), [np.inf]))
    x = np.concatenate((x, -x)).astype(np.float32)
    with np.errstate(over="ignore", under="ignore"):
        expected = x.astype(np.float16).view(np.uint16)
    assert np.array_equal(call("to_f16", x, dtype=np.uint16)[0], expected)
    nans = n32.from_bits([0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF])
    got = call("to_f16", nans, dtype=np.uint16)[0].view(np.float16)
    assert np.isnan(got).all()
