# SPDX-License-Identifier: Apache-2.0
"""How tensors store their elements: as floats, or as small codes with scales beside them.

fp8     codes of one byte (e4m3fn: sign, 4 exponent bits, bias 7, 3 fraction bits, no infinity);
        each block of 128 x 128 of a matrix, the last ones ragged, has a scale that multiplies it.
        Published with DeepSeek-V3 (arXiv 2412.19437)
mxfp4   codes of four bits (e2m1), two in a byte, the low one first; each 32 of a row share a scale
        2 ** (byte - 127). OCP Microscaling Formats 1.0, in the layout of gpt-oss: blocks
        [..., rows, columns / 32, 16] and scales [..., rows, columns / 32]

A coding is a set of arrays which can be cut and turned alike before a few rows are decoded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Array = NDArray[Any]


class Coding(NamedTuple):
    """Arrays that hold a tensor together; `inner[i]` axes of array i lie within a row.

    Of two axes within a row the first counts blocks of `block` values, the second their bytes.
    """

    arrays: tuple[Array, ...]
    inner: tuple[int, ...]
    decode: Callable[..., Floats]
    block: int = 32

    def picked(self, pick: Callable[[Array], Array]) -> Coding:
        """The part of each array that belongs to a part of the tensor."""
        return self._replace(arrays=tuple(pick(array) for array in self.arrays))

    def rows(self, start: int, stop: int) -> Floats:
        """Values of some rows, of all axes but the last counted through."""
        flat = (a.reshape(-1, *a.shape[a.ndim - n :])
                for a, n in zip(self.arrays, self.inner, strict=True))  # fmt: skip
        return self.decode(*(array[start:stop] for array in flat))


def e4m3_values() -> Floats:
    """The value of each e4m3fn code."""
    code = np.arange(256)
    exponent, fraction = code >> 3 & 15, code & 7
    size = np.where(exponent > 0, np.ldexp(1 + fraction / 8, exponent - 7), fraction / 8 * 2.0**-6)
    size[code & 127 == 127] = np.nan
    return np.where(code < 128, size, -size).astype(np.float32)


E4M3 = e4m3_values()
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
NO_SCALE = 255  # of mxfp4: not a number


def floats(stored: Array) -> Coding:
    """Elements that are floats; bfloat16 comes as its bits."""
    return Coding((np.atleast_1d(stored),), (1,), _to_float32)


def _to_float32(values: Array) -> Floats:
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)


def scale_shape(shape: tuple[int, ...], block: tuple[int, int]) -> tuple[int, ...]:
    """Shape of the scales of an fp8 tensor."""
    return tuple(-(-n // size) for n, size in zip(shape, _sizes(shape, block), strict=True))


def _sizes(shape: tuple[int, ...], block: tuple[int, int]) -> tuple[int, ...]:
    """Size of a block along each axis: 1 along those before the last two."""
    return ((1,) * len(shape) + block)[-len(shape) :]


def fp8(codes: Array, scales: Floats, block: tuple[int, int]) -> Coding:
    """Codes, and for each axis the index that each element has in the scales; views, no memory."""
    sizes = zip(codes.shape, _sizes(codes.shape, block), strict=True)
    each = [np.arange(n, dtype=np.int32) // size for n, size in sizes]
    places = np.broadcast_arrays(*np.ix_(*each), codes)[:-1]

    def decode(codes: Array, *places: Array) -> Floats:
        return E4M3[codes] * scales[places]

    return Coding((codes, *places), (1,) * (1 + len(places)), decode)


def mxfp4(blocks: Array, scales: Array) -> Coding:
    """Blocks of 16 bytes and a scale for each."""
    return Coding((blocks, scales), (2, 1), _decode_mxfp4)


def _decode_mxfp4(blocks: Array, scales: Array) -> Floats:
    codes = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*blocks.shape[:-1], 32)
    with np.errstate(over="ignore"):  # infinity is told as such by the reader
        values = np.ldexp(E2M1[codes], scales.astype(np.int32)[..., None] - 127)
    values[scales == NO_SCALE] = np.nan
    return np.asarray(values, np.float32).reshape(len(blocks), -1)
