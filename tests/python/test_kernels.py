# SPDX-License-Identifier: Apache-2.0
"""Every kernel table against docs/numerics.md, restated in NumPy, bit for bit.

Against each other and frozen checksums: test_conformance.py.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import numerics32 as n32
from colibri import _core

Floats = NDArray[np.float32]
TABLES = _core.kernels()
SCALES = {"plain": 1.0, "1e-38": 1e-38, "subnormal": 1e-42, "small": 2.0**-66, "1e18": 1e18}
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning")


@pytest.fixture(params=TABLES)
def kernels(request: pytest.FixtureRequest) -> _core.Kernels:
    return _core.Kernels(request.param)


def test_checksums_are_zlibs(kernels: _core.Kernels) -> None:
    """Every length around the steps of a table, any start, continued."""
    data = np.random.default_rng(1).bytes(70_000)
    for length in (*range(300), 1000, 4095, 4096, 65_537):
        for start in (0, 3, 64):
            piece = data[start : start + length]
            assert kernels.crc32(0, piece) == zlib.crc32(piece)
            assert kernels.crc32(0x1234ABCD, piece) == zlib.crc32(piece, 0x1234ABCD)


def numbers(shape: Any, scale: float = 1.0, seed: int = 0) -> Floats:
    return n32.floats(np.random.default_rng(seed).standard_normal(shape) * scale)


def same(got: Floats, expected: Floats) -> None:
    """Equal bits; a NaN is a NaN."""
    got, expected = n32.floats(got), n32.floats(expected)
    assert got.shape == expected.shape
    number = ~np.isnan(expected)
    assert np.array_equal(np.isnan(got), ~number)
    assert np.array_equal(n32.bits(got)[number], n32.bits(expected)[number])


# Against the page, restated in NumPy


@pytest.mark.parametrize("group", [2, 10, 16, 24, 32, 64, 128])
@pytest.mark.parametrize("scale", SCALES)
def test_quantize(kernels: _core.Kernels, group: int, scale: str) -> None:
    for n in range(1, 2 * group + 2):
        x = numbers(n, SCALES[scale], n)
        x[n // 3 :: 5] = 0
        codes, scales = kernels.quantize(x, group)
        expected_codes, expected_scales = n32.quantize(x, group)
        assert np.array_equal(codes, expected_codes), n
        same(scales, expected_scales)


TIES = [0.5, 1.5, 2.5, 126.5, 125.5, 63.5]


@pytest.mark.parametrize("special", [
    [0.0], [-0.0], [np.nan], [np.inf], [-np.inf], [np.nan, 1], [np.inf, -1], [-np.inf, np.nan, 3],
    [3.4e38], [3.4e38, -3.4e38, 1], [1e-45], [-1e-45, 1e-45], [1e-42, 3e-43], [2.0**-64, 1e-20],
    [2.0**-64 - 2.0**-88], [127, *TIES], [-127, *(-t for t in TIES)], [127, -127, 126.99999],
])  # fmt: skip
def test_quantize_special_values(kernels: _core.Kernels, special: list[float]) -> None:
    for group in (32, 64, 128, 6):
        for at in (0, 1, group - len(special), group):
            x = np.zeros(2 * group, np.float32)
            at = min(max(at, 0), len(x) - len(special))
            x[at : at + len(special)] = special
            codes, scales = kernels.quantize(x, group)
            expected_codes, expected_scales = n32.quantize(x, group)
            assert np.array_equal(codes, expected_codes)
            same(scales, expected_scales)
            assert np.abs(codes.astype(int)).max() <= 127


def test_quantize_by_hand(kernels: _core.Kernels) -> None:
    """Worked out on paper: amax 127, so codes are the values rounded to even."""
    x = np.zeros(32, np.float32)
    x[:8] = [127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, -127]
    codes, scales = kernels.quantize(x, 32)
    assert codes[:8].tolist() == [127, 0, 2, 2, 0, -2, -2, -127]
    assert scales.tolist() == [1.0]
    assert kernels.quantize(np.zeros(40, np.float32), 32)[1].tolist() == [0.0, 0.0]


def packed(codes: NDArray[np.int8], scales: NDArray[np.float16], kind: str, group: int) -> bytes:
    """A tensor as in docs/spec.md section 4."""
    raw = codes.tobytes()
    if kind == "q4":
        pairs = (codes.reshape(-1, group) + 8).astype(np.uint8)
        raw = (pairs[:, : group // 2] | pairs[:, group // 2 :] << 4).tobytes()
    return raw + bytes(-len(raw) % 64) + scales.tobytes()


def quantized(kind: str, rows: int, columns: int, group: int, seed: int, extreme: bool) -> Any:
    rng = np.random.default_rng(seed)
    low, high = {"q8": (-127, 127), "q4": (-8, 7)}[kind]
    groups = -(-columns // group)
    codes = rng.integers(low, high + 1, (rows, groups * group)).astype(np.int8)
    if extreme:
        codes[:] = np.where(rng.random(codes.shape) < 0.5, low, high)
    codes[:, columns:] = 0
    half = rng.integers(0, 0x7C00, (rows, groups)).astype(np.uint16).view(np.float16)
    half.reshape(-1)[:3] = [6e-8, 65504, 0][: half.size]
    return codes, half if extreme else (half / 65504).astype(np.float16)


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("kind", ["q8", "q4"])
def test_matmul_quantized(kernels: _core.Kernels, kind: str, group: int) -> None:
    for columns in (1, 2, 31, 32, 33, group - 1, group, group + 1, 2 * group, 2 * group + 7, 389):
        for rows, scale, extreme in ((1, 1.0, False), (9, 1e-42, False), (16, 1e18, True),
                                     (23, 1e-38, True)):  # fmt: skip
            codes, scales = quantized(kind, rows, columns, group, columns, extreme)
            x = numbers((3, columns), scale, columns)
            bias = numbers(rows, scale, 1)
            data = packed(codes, scales, kind, group)
            got = kernels.matmul(
                data, _core.TYPES[kind], group, rows, x, bias, None, None, 3, 0, rows
            )
            same(got, n32.matmul_quantized(codes, scales, x, group) + bias)


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e-42, 1e18])
def test_matmul_floats(kernels: _core.Kernels, kind: str, scale: float) -> None:
    for columns in [*range(1, 36), 47, 48, 49, 128, 130]:
        x, wide = numbers((2, columns), scale, 3), numbers((5, columns), 1.0, columns)
        raw: NDArray[Any]
        if kind == "f16":
            raw = wide.astype(np.float16)
            raw[0, 0] = 6e-8
            weights = raw.astype(np.float32)
        elif kind == "bf16":
            raw = (n32.bits(wide) >> 16).astype(np.uint16)
            weights = n32.from_bits(raw.astype(np.uint32) << 16)
        else:
            raw = weights = wide
        got = kernels.matmul(raw.tobytes(), _core.TYPES[kind], 0, 5, x, None, None, None, 2, 0, 5)
        same(got, n32.matmul_floats(weights, x))


def test_matmul_takes_rows_by_list(kernels: _core.Kernels) -> None:
    x, weights = numbers((4, 50)), numbers((11, 50), seed=1)
    into = np.array([3, 0, 5], np.uint16)
    out_of = np.array([2, 2, 0], np.uint16)
    full = n32.matmul_floats(weights, x)
    got = kernels.matmul(weights.tobytes(), 1, 0, 11, x, None, out_of, into, 6, 2, 9)
    expected = np.zeros((6, 11), np.float32)
    expected[into, 2:9] = full[out_of, 2:9]
    same(got, expected)


def test_minus_zero_is_not_lost_to_a_missing_term(kernels: _core.Kernels) -> None:
    """A sum starts at +0, so a lone -0 gives +0; a product of -0 and a number is no exception."""
    for columns in (1, 16, 17, 33):
        x = np.full((1, columns), -0.0, np.float32)
        ones = np.ones(columns, np.float32).tobytes()
        got = kernels.matmul(ones, 1, 0, 1, x, None, None, None, 1, 0, 1)
        assert n32.bits(got).tolist() == [[0]]


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e-42, 1e-20, 1e15, 1e30])
def test_rms_norm(kernels: _core.Kernels, scale: float) -> None:
    for n in [*range(1, 52), 127, 128, 129]:
        x, weight = numbers(n, scale, n), numbers(n, 1.0, n + 1)
        for epsilon in (1e-6, 1e-5, 1e-44):
            same(kernels.rms_norm(x, weight, epsilon), n32.rms_norm(x, weight, epsilon))


def test_silu_gate(kernels: _core.Kernels) -> None:
    grid = np.concatenate((np.linspace(-130, 130, 5001), [0, -0.0, 1e-45, -1e-45, 3e38, -3e38]))
    gate = grid.astype(np.float32)
    for n in [*range(1, 34), len(gate)]:
        up = numbers(n, 10.0, n)
        same(kernels.silu_gate(gate[-n:], up), n32.silu_gate(gate[-n:], up))


def cache(x: Floats, kv: str) -> tuple[NDArray[np.uint8], Floats]:
    """Rows as the cache stores them, and as they read."""
    if kv == "f32":
        return x.view(np.uint8), x
    if kv == "f16":
        half = x.astype(np.float16)
        raw, read = half.view(np.uint8), half.astype(np.float32)
    else:
        made = [n32.quantize(row, len(row)) for row in x]
        raw = np.stack([np.concatenate((s.view(np.uint8), c.view(np.uint8))) for c, s in made])
        read = np.stack([c.astype(np.float32) * s for c, s in made])
    return np.pad(raw, ((0, 0), (0, -raw.shape[1] % 4))), read


@pytest.mark.parametrize("kv", ["f32", "f16", "q8"])
def test_attend(kernels: _core.Kernels, kv: str) -> None:
    for size in (2, 6, 8, 10, 16, 24, 32, 64, 80):
        for positions in (1, 2, 15, 16, 17, 33, 40):
            for spread in (0.0, 1.0, 30.0):  # all scores equal; ordinary; most of them vanish
                query = numbers(size, spread, size)
                keys, read_keys = cache(numbers((positions, size), 1.0, positions), kv)
                values, read_values = cache(numbers((positions, size), 3.0, 7), kv)
                got = kernels.attend(query, keys, values, _core.TYPES[kv], 0.25)
                same(got, n32.attend(query, read_keys, read_values, 0.25))
