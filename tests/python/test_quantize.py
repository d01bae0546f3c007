# SPDX-License-Identifier: Apache-2.0
"""Types of weights: exact conversions, the scale search against brute force, packing, limits."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from numpy.typing import NDArray

from colibri.image_format import Type, align
from colibri.quantize import (
    RangeError,
    encode,
    from_bf16,
    pack_nibbles,
    quantize,
    to_bf16,
    to_f16,
)

Floats = NDArray[np.float32]
LIMITS = {Type.Q8: (-127, 127), Type.Q4: (-8, 7)}


def gaussian(rows: int, columns: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).normal(0, 0.05, (rows, columns)).astype(np.float32)


def heavy(rows: int, columns: int) -> Floats:
    return np.random.default_rng(5).standard_t(3, (rows, columns)).astype(np.float32)


def values(codes: NDArray[np.int8], scales: NDArray[np.float16], columns: int) -> Floats:
    product = codes.astype(np.float32) * scales.astype(np.float32)[..., None]
    return product.reshape(len(codes), -1)[:, :columns]


def group_errors(x: Floats, y: Floats, group: int) -> NDArray[np.float64]:
    return ((x.astype(np.float64) - y) ** 2).reshape(-1, group).sum(-1)


def nearest(x: Floats, kind: Type, group: int) -> Floats:
    """Round to nearest with the scale that reaches the largest magnitude."""
    low, high = LIMITS[kind]
    groups = x.reshape(-1, group)
    scale = (np.abs(groups).max(-1) / np.float32(high)).astype(np.float16).astype(np.float32)
    codes = np.clip(np.rint(groups / scale[:, None]), low, high)
    return (codes * scale[:, None]).reshape(x.shape)


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("kind", [Type.Q8, Type.Q4])
@pytest.mark.parametrize("make", [gaussian, heavy])
def test_never_worse_than_round_to_nearest(kind: Type, group: int, make: type) -> None:
    x = make(40, 256)
    codes, scales = quantize(x, kind, group)
    assert codes.min() >= LIMITS[kind][0]
    assert codes.max() <= LIMITS[kind][1]
    ours = group_errors(x, values(codes, scales, 256), group)
    theirs = group_errors(x, nearest(x, kind, group), group)
    assert (ours <= theirs * (1 + 1e-5)).all()
    assert ours.sum() < theirs.sum() * (0.999 if kind is Type.Q8 else 0.85)


def test_q4_is_close_to_the_best_there_is() -> None:
    """Against every f16 scale that could matter: all of one binade range, both signs."""
    x = gaussian(6, 32, seed=3)
    codes, scales = quantize(x, Type.Q4, 32)
    ours = group_errors(x, values(codes, scales, 32), 32)
    every = np.arange(1, 0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    for row, error in zip(x, ours, strict=True):
        top = np.abs(row).max()
        tried = every[(every > top / 14) & (every < top / 5)]
        tried = np.concatenate((tried, -tried))[:, None]
        fits = np.clip(np.rint(row / tried), -8, 7) * tried
        best = ((row - fits).astype(np.float64) ** 2).sum(-1).min()
        assert best * (1 - 1e-5) <= error <= best * 1.02


def test_both_signs_of_the_scale_are_used() -> None:
    x = np.zeros((2, 32), np.float32)
    x[:, :8] = np.arange(1, 9)
    x[1] *= -1
    codes, scales = quantize(x, Type.Q4, 32)
    assert scales[0, 0] == -1
    assert scales[1, 0] == 1
    assert np.array_equal(values(codes, scales, 32), x)


@pytest.mark.parametrize("kind", [Type.Q8, Type.Q4])
def test_multiples_of_an_f16_scale_survive_exactly(kind: Type) -> None:
    low, high = LIMITS[kind]
    x = np.tile(np.arange(low, high + 1, dtype=np.float32), 128)[: 128 * 32].reshape(8, -1)
    x[:, ::32] = low  # every group reaches the end of the range
    x *= np.float32(0.0625)
    assert np.array_equal(values(*quantize(x, kind, 32), x.shape[1]), x)


@pytest.mark.parametrize("kind", [Type.Q8, Type.Q4])
def test_the_cut_into_rows_does_not_matter(kind: Type) -> None:
    x = heavy(101, 96)
    whole = quantize(x, kind, 32)
    for step in (1, 7, 50):
        parts = [quantize(x[i : i + step], kind, 32) for i in range(0, len(x), step)]
        for n in (0, 1):
            assert np.array_equal(whole[n], np.concatenate([part[n] for part in parts]))


@pytest.mark.parametrize("kind", [Type.Q8, Type.Q4])
@pytest.mark.parametrize("columns", [1, 31, 33, 65, 127])
def test_padding_is_code_zero(kind: Type, columns: int) -> None:
    x = gaussian(3, columns)
    codes, scales = quantize(x, kind, 32)
    assert codes.shape == (3, align(columns, 32) // 32, 32)
    assert scales.shape == codes.shape[:2]
    assert not codes.reshape(3, -1)[:, columns:].any()
    assert np.abs(values(codes, scales, columns) - x).max() < 0.03


@pytest.mark.parametrize("kind", [Type.Q8, Type.Q4])
def test_zero_groups_have_scale_plus_zero(kind: Type) -> None:
    x = np.zeros((2, 64), np.float32)
    x[0, 40], x[1, 3] = 1, -0.0
    codes, scales = quantize(x, kind, 32)
    bits = scales.view(np.uint16)
    assert bits[0, 0] == bits[1, 0] == bits[1, 1] == 0
    assert not codes[0, 0].any()
    assert not codes[1].any()


@pytest.mark.parametrize("kind", [Type.Q8, Type.Q4])
@pytest.mark.parametrize("size", [1e-3, 1e-5, 1e-6, 3e-8, 1e-12, 1e-40])
def test_tiny_groups_use_subnormal_scales_or_zero(kind: Type, size: float) -> None:
    x = gaussian(4, 32) * np.float32(size / 0.05)
    codes, scales = quantize(x, kind, 32)
    assert np.isfinite(scales).all()
    errors = group_errors(x, values(codes, scales, 32), 32)
    assert (errors <= (x.astype(np.float64) ** 2).sum(-1) * (1 + 1e-6)).all()
    if size < 1e-11:
        assert not scales.any()
        assert not codes.any()


@pytest.mark.parametrize(("kind", "most"), [(Type.Q8, 65504 * 127), (Type.Q4, 65504 * 7)])
def test_scales_must_fit_f16(kind: Type, most: float) -> None:
    x = gaussian(3, 40)
    x[0, 35], x[1, 35] = most, -most
    codes, scales = quantize(x, kind, 32)
    assert np.isfinite(scales).all()
    assert np.allclose(values(codes, scales, 40)[:2, 35], [most, -most], rtol=0.01)
    x[2, 35] = most * 1.01
    with pytest.raises(RangeError, match="needs a scale above f16's range") as caught:
        encode(x, kind, 32)
    assert (caught.value.row, caught.value.column) == (2, 35)


def test_nibbles_lie_as_the_format_says() -> None:
    codes = np.arange(64, dtype=np.int8).reshape(1, 2, 32) % 16 - 8
    packed = pack_nibbles(codes)
    assert packed.shape == (1, 2, 16)
    for group in range(2):
        for j in range(16):
            byte = int(packed[0, group, j])
            assert (byte & 15) - 8 == codes[0, group, j]
            assert (byte >> 4) - 8 == codes[0, group, j + 16]


def test_encoded_bytes_of_each_type() -> None:
    x = gaussian(5, 40)
    sizes = {Type.F32: (800, 0), Type.F16: (400, 0), Type.BF16: (400, 0),
             Type.Q8: (5 * 64, 20), Type.Q4: (5 * 32, 20)}  # fmt: skip
    for kind, (codes, scales) in sizes.items():
        encoded = encode(x, kind, 32)
        assert (len(encoded.codes), len(encoded.scales)) == (codes, scales)
    assert encode(x, Type.F32, 0).codes == x.tobytes()


def test_bf16_rounds_to_nearest_even() -> None:
    rng = np.random.default_rng(2)
    upper = rng.integers(0, 0x7F7F, 20000, dtype=np.uint32)
    lower = rng.choice(np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32), 20000)
    x = ((upper << 16) | lower).view(np.float32)
    got = to_bf16(x)
    low, high = upper.astype(np.int64), upper.astype(np.int64) + 1
    middle = (
        from_bf16(low.astype(np.uint16)).astype(np.float64) + from_bf16(high.astype(np.uint16))
    ) / 2
    want = np.where(x > middle, high, np.where(x < middle, low, low + (low & 1)))
    assert np.array_equal(got, want)
    assert np.array_equal(to_bf16(-x), got | 0x8000)


def test_f16_rounds_as_struct_does() -> None:
    rng = np.random.default_rng(3)
    x = np.concatenate(
        (rng.normal(0, 1, 2000), rng.normal(0, 1e-7, 2000), [1 + 2**-11, 1 + 3 * 2**-11])
    )
    x = x.astype(np.float32)
    want = [struct.unpack("<H", struct.pack("<e", float(v)))[0] for v in x]
    assert np.array_equal(to_f16(x).view(np.uint16), want)


@pytest.mark.parametrize(("kind", "bad"), [(Type.F16, 65520.0), (Type.BF16, 3.4e38)])
def test_overflow_is_refused(kind: Type, bad: float) -> None:
    x = np.ones((2, 3), np.float32)
    x[1, 2] = -bad
    with pytest.raises(RangeError, match="is out of range") as caught:
        encode(x, kind, 0)
    assert (caught.value.row, caught.value.column) == (1, 2)
    x[1, 2] = 65519 if kind is Type.F16 else 3.38e38
    encode(x, kind, 0)
