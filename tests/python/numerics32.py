# SPDX-License-Identifier: Apache-2.0
"""docs/numerics.md in NumPy float32, operation by operation: the bits that every kernel must give.

Written from the page.  Each array operation is one IEEE single operation per element, in the
order written; Python loops stand where the page fixes an order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

F32 = np.float32
Floats = NDArray[np.float32]
MAGIC = F32(12582912)
_LN2_HIGH, _LN2_LOW = F32(0.693359375), F32(-2.12194440e-4)
_EXP = [F32(c) for c in (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2,
                         1.6666665459e-1, 5.0000001201e-1)]  # fmt: skip
_PI_2 = [F32(c) for c in (1.5625, 0.0081787109375, 0.00011730194091796875, 3.1391647326017846e-7)]


def floats(x: ArrayLike) -> Floats:
    return np.asarray(x, np.float32)


def bits(x: Floats) -> NDArray[np.uint32]:
    return np.ascontiguousarray(x).view(np.uint32)


def from_bits(x: ArrayLike) -> Floats:
    return np.asarray(x, np.uint32).view(np.float32)


def total(terms: Floats) -> Floats:
    """Section 2, over the last axis."""
    part = np.zeros((*terms.shape[:-1], 16), F32)
    for i in range(terms.shape[-1]):
        part[..., i % 16] = part[..., i % 16] + terms[..., i]
    a = part[..., :8] + part[..., 8:]
    b = a[..., :4] + a[..., 4:]
    return np.asarray((b[..., 0] + b[..., 2]) + (b[..., 1] + b[..., 3]))


def quantize(x: Floats, group: int) -> tuple[NDArray[np.int8], Floats]:
    """Section 3, one row."""
    codes = np.zeros(-(-len(x) // group) * group, np.int8)
    scales = np.zeros(-(-len(x) // group), F32)
    for g, at in enumerate(range(0, len(x), group)):
        part = x[at : at + group]
        magnitude = np.abs(part)
        amax = F32(max(magnitude[~np.isnan(magnitude)], default=F32(0)))
        scales[g] = amax / F32(127)
        if amax == 0:
            continue
        raise_ = F32(2.0**64) if amax < F32(2.0**-64) else F32(1)
        scaled = (part * raise_) * (F32(127) / (amax * raise_))
        scaled = np.where(scaled >= F32(-127), np.minimum(scaled, F32(127)), F32(-127))
        codes[at : at + len(part)] = np.rint(scaled).astype(np.int8)
    return codes, scales


def matmul_quantized(
    codes: NDArray[np.int8], scales: NDArray[np.float16], x: Floats, group: int
) -> Floats:
    """Section 4: codes (rows, groups * group), scales (rows, groups), x (tokens, columns)."""
    rows, groups = scales.shape
    out = np.zeros((len(x), rows), F32)
    for t, row in enumerate(x):
        xc, xs = quantize(row, group)
        for g in range(groups):
            at = slice(g * group, (g + 1) * group)
            isum = codes[:, at].astype(np.int32) @ xc[at].astype(np.int32)
            out[t] = out[t] + isum.astype(F32) * (scales[:, g].astype(F32) * xs[g])
    return out


def matmul_floats(weights: Floats, x: Floats) -> Floats:
    return total(x[:, None, :] * weights[None])


def exp(x: Floats) -> Floats:
    x = floats(x)
    y = np.minimum(x, F32(88))
    n = (y * F32(1.44269504) + MAGIC) - MAGIC
    r = (y - n * _LN2_HIGH) - n * _LN2_LOW
    p = np.full_like(r, _EXP[0])
    for c in _EXP[1:]:
        p = p * r + c
    p = (p * (r * r) + r) + F32(1)
    power = from_bits((np.nan_to_num(n).astype(np.int64) + 127 << 23) & 0xFFFFFFFF)
    return np.where(x < F32(-87), F32(0), p * power)


def rsqrt(x: Floats) -> Floats:
    x = floats(x)
    y = from_bits(np.uint32(0x5F375A86) - (bits(x) >> np.uint32(1)))
    for _ in range(4):
        y = y * (F32(1.5) - ((F32(0.5) * x) * y) * y)
    return y


def sincos(x: Floats) -> tuple[Floats, Floats]:
    k = (x * F32(0.63661975) + MAGIC) - MAGIC
    r = x
    for part in _PI_2:
        r = r - k * part
    z = r * r
    s = ((F32(-1.9515295891e-4) * z + F32(8.3321608736e-3)) * z + F32(-1.6666654611e-1)) * z
    s = s * r + r
    c = (F32(2.443315711809948e-5) * z + F32(-1.388731625493765e-3)) * z
    c = (c + F32(4.166664568298827e-2)) * z * z - F32(0.5) * z + F32(1)
    quadrant = k.astype(np.int64) & 3
    sine = np.choose(quadrant, [s, c, -s, -c])
    return sine.astype(F32), np.choose(quadrant, [c, -s, -c, s]).astype(F32)


def rms_norm(x: Floats, weight: Floats, epsilon: float) -> Floats:
    mean = total(x * x) / F32(len(x))
    return np.asarray((x * rsqrt(mean + F32(epsilon))) * weight)


def sigmoid(x: Floats) -> Floats:
    return np.asarray(F32(1) / (F32(1) + exp(-x)))


def silu_gate(gate: Floats, up: Floats) -> Floats:
    return np.asarray((gate / (F32(1) + exp(-gate))) * up)


def attend(query: Floats, keys: Floats, values: Floats, scale: float) -> Floats:
    """Section 6, one head: keys and values (positions, head_size) as they read from the cache."""
    score = total(query * keys) * F32(scale)
    e = exp(score - score.max())
    out = np.zeros_like(query)
    for weight, value in zip(e, values, strict=True):
        out = out + weight * value
    return out * (F32(1) / total(e))


def route(scores: Floats, top_k: int, renormalise: bool) -> tuple[NDArray[np.int64], Floats]:
    e = exp(scores - scores.max())
    p = e / total(e)
    ids = np.argsort(-p, kind="stable")[:top_k]
    weights = p[ids]
    if renormalise:
        added = F32(0)
        for w in weights:
            added = added + w
        weights = weights / added
    return ids, weights
