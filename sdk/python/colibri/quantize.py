# SPDX-License-Identifier: Apache-2.0
"""Float32 rows to the bytes of an image: f32, f16, bf16, q8, q4.

A group of columns shares an f16 scale; an element is scale * code (docs/quantisation.md).  All
functions work on a few rows at a time and depend on nothing else, so that any cut of a tensor
into rows, and any number of jobs, gives the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colibri.compensate import Doubles, Factor, round_column
from colibri.image_format import GROUPS, TILE_ROWS, Order, Type, align

Floats = NDArray[np.float32]
#: What an error costs by column: everywhere the same, a weight each, or with compensation.
Importance = Doubles | Factor | None

F16_MAX = 65504.0
_BLOCK = 512  # groups searched at once: the working set stays in a core's cache
_CELLS = 1 << 15  # weights compensated at once, for the same reason


class RangeError(ValueError):
    """A value that the type cannot hold.  `row` and `column` say where."""

    def __init__(self, what: str, row: int, column: int) -> None:
        super().__init__(what)
        self.row, self.column = row, column


@dataclass(frozen=True)
class Encoded:
    """Rows in the image's form: elements or codes, and the scales of quantised ones."""

    codes: bytes
    scales: bytes = b""


def encode(
    rows: Floats, kind: Type, group: int, order: Order = Order.ROWS, importance: Importance = None
) -> Encoded:
    """Rows of a matrix in an element type.

    Parameters
    ----------
    rows : float32 array, 2-D
        Finite values.
    group : int
        Columns that share a scale (q8, q4); the last group of a row is padded with zeros.
    order : Order
        Of the codes and scales.  TILES: the first row must be a multiple of 16 in the tensor.
    importance : float64 array (columns,) or Factor, optional
        Of the columns' errors, for q8 and q4 (see `quantize`).

    Raises
    ------
    RangeError
        When a value overflows f16 or bf16, or a scale overflows f16.
    """
    match kind:
        case Type.F32:
            return Encoded(rows.astype("<f4").tobytes())
        case Type.F16:
            return Encoded(_checked(rows, to_f16(rows)).astype("<f2").tobytes())
        case Type.BF16:
            bits = to_bf16(rows)
            _checked(rows, from_bf16(bits))
            return Encoded(bits.astype("<u2").tobytes())
    return store(*quantize(rows, kind, group, importance), kind, order)


def store(
    codes: NDArray[np.int8], scales: NDArray[np.float16], kind: Type, order: Order
) -> Encoded:
    """Codes (rows x groups x group) and scales (rows x groups) as they lie in an image."""
    whole = len(codes) // TILE_ROWS * TILE_ROWS if order is Order.TILES else 0
    bits = scales.astype("<f2")
    return Encoded(
        pack_tiles(codes[:whole], kind).tobytes() + _pack_rows(codes[whole:], kind).tobytes(),
        bits[:whole].reshape(-1, TILE_ROWS, bits.shape[1]).swapaxes(1, 2).tobytes()
        + bits[whole:].tobytes(),
    )


def _pack_rows(codes: NDArray[np.int8], kind: Type) -> NDArray[Any]:
    return codes if kind is Type.Q8 else pack_nibbles(codes)


def pack_tiles(codes: NDArray[np.int8], kind: Type) -> NDArray[Any]:
    """Codes of whole tiles (docs/spec.md section 4): blocks of columns, 16 rows of 4 bytes each."""
    count = codes[0].size if len(codes) else 8
    if kind is Type.Q8:
        return codes.reshape(-1, TILE_ROWS, count // 4, 4).swapaxes(1, 2)
    nibbles = (codes + 8).astype(np.uint8).reshape(-1, TILE_ROWS, count // 8, 2, 4)
    low, high = nibbles[:, :, :, 0], nibbles[:, :, :, 1]
    return np.bitwise_or(low, np.left_shift(high, np.uint8(4))).swapaxes(1, 2)


def to_f16(values: Floats) -> NDArray[np.float16]:
    """Nearest f16, ties to even; infinity above the range."""
    with np.errstate(over="ignore"):
        return values.astype(np.float16)


def to_bf16(values: Floats) -> NDArray[np.uint16]:
    """Bits of the nearest bf16, ties to even; infinity above the range."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits: NDArray[np.uint16]) -> Floats:
    """Values of bf16 bits."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _checked(rows: Floats, converted: NDArray[Any]) -> NDArray[Any]:
    finite = np.isfinite(converted)
    if not finite.all():
        row, column = (int(i) for i in np.argwhere(~finite)[0])
        raise RangeError(f"weight {rows[row, column]:g} is out of range", row, column)
    return converted


def quantize(
    rows: Floats, kind: Type, group: int, importance: Importance = None
) -> tuple[NDArray[np.int8], NDArray[np.float16]]:
    """Codes (rows x groups x group) and scales (rows x groups) of a matrix.

    Without `importance` the squared error of the weights is small; with one weight per column,
    the error times these; with a factor, the error of the products (`colibri.compensate`).
    """
    assert group in GROUPS
    assert kind in (Type.Q8, Type.Q4)
    count, columns = rows.shape
    padded = np.zeros((count, align(columns, group)), np.float32)
    padded[:, :columns] = rows
    _check_scale(rows, kind)
    if isinstance(importance, Factor):
        return _compensated(padded, kind, group, importance.padded(padded.shape[1]))
    groups = padded.reshape(-1, group)
    weights = None if importance is None else _group_weights(importance, padded.shape[1], group)
    codes, scales = np.empty(groups.shape, np.int8), np.empty(len(groups), np.float16)
    for start in range(0, len(groups), _BLOCK):
        part = slice(start, start + _BLOCK)
        x = groups[part].T.copy()
        own = weights
        if weights is not None:  # of the group of columns that each group of weights is in
            own = weights[:, np.arange(start, start + x.shape[1]) % weights.shape[1]]
        found, scales[part] = _search(x, kind, own)
        codes[part] = found.T
    return codes.reshape(count, -1, group), scales.reshape(count, -1)


def _group_weights(importance: Doubles, columns: int, group: int) -> Floats:
    """Weights of columns as group x groups of a row, the largest of them near 1.

    Only ratios matter; so they fit float32 whatever the activations' size.
    """
    padded = np.zeros(columns, np.float32)
    padded[: len(importance)] = importance / max(importance.max(), np.finfo(np.float64).tiny)
    return padded.reshape(-1, group).T.copy()


def _compensated(
    rows: Floats, kind: Type, group: int, factor: Factor
) -> tuple[NDArray[np.int8], NDArray[np.float16]]:
    """Codes and scales from the last column to the first (see `colibri.compensate`)."""
    count, columns = rows.shape
    codes = np.empty((columns, count), np.int8)
    scales = np.empty((columns // group, count), np.float16)
    each = max(1, _CELLS // columns)
    for first in range(0, count, each):
        part = slice(first, first + each)
        _compensate(rows[part].T, kind, factor, codes[:, part], scales[:, part])
    return codes.T.reshape(count, -1, group), scales.T.copy()


def _compensate(
    weights: Floats, kind: Type, factor: Factor,
    codes: NDArray[np.int8], scales: NDArray[np.float16],
) -> None:  # fmt: skip
    """Fills codes (columns x rows) and scales (groups x rows)."""
    target = weights.astype(np.float64)
    group = len(weights) // len(scales)
    for number in reversed(range(len(scales))):
        part = slice(number * group, (number + 1) * group)
        cost = _group_weights(factor.weights[part], group, group)
        scales[number] = _search(target[part].astype(np.float32), kind, cost)[1]
        step = scales[number].astype(np.float64)
        for j in reversed(range(part.start, part.stop)):
            code = round_column(target[j], step, *RANGES[kind])
            codes[j] = code
            target[:j] += factor.lower[j, :j, None] * (weights[j] - code * step)


def pack_nibbles(codes: NDArray[np.int8]) -> NDArray[np.uint8]:
    """q4 bytes: element j of a group low, element j + group / 2 high, each as code + 8."""
    nibbles = (codes + 8).astype(np.uint8)
    half = codes.shape[-1] // 2
    return np.bitwise_or(nibbles[..., :half], np.left_shift(nibbles[..., half:], np.uint8(4)))


def _check_scale(rows: Floats, kind: Type) -> None:
    """Refuses a value that the largest code times the largest f16 does not reach."""
    most = F16_MAX * (127 if kind is Type.Q8 else 7)
    large = np.abs(rows) > most
    if large.any():
        row, column = (int(i) for i in np.argwhere(large)[0])
        raise RangeError(f"weight {rows[row, column]:g} needs a scale above f16's range "
                         f"(at most {most:g})", row, column)  # fmt: skip


# q8: scales from amax / 127 down, which clips the largest element a little.
_Q8_STEPS = (1.0, 0.9975, 0.995, 0.9925)
# q4: amax over these, with both signs: -8 may serve the positive or the negative end.
_Q4_DIVISORS = tuple(6.3 + 0.1 * i for i in range(20))
_REFINEMENTS = 3


RANGES = {Type.Q8: (-127, 127), Type.Q4: (-8, 7)}


def _candidates(x: Floats, kind: Type) -> list[Floats]:
    largest = np.abs(x).max(axis=0)
    if kind is Type.Q8:
        step = largest / np.float32(127)
        return [step * np.float32(factor) for factor in _Q8_STEPS]
    return [largest * np.float32(sign / d) for d in _Q4_DIVISORS for sign in (1, -1)]


def _search(
    x: Floats, kind: Type, weights: Floats | None
) -> tuple[NDArray[np.int8], NDArray[np.float16]]:
    """Codes and scales of least squared error; x is group x groups, weights too or group x 1.

    Every candidate is rounded to f16 before it is judged.  Then the best one's codes get the
    scale that suits them best (least squares) as long as that helps.
    """
    best = _Best(x, *RANGES[kind], weights)
    for candidate in _candidates(x, kind):
        best.offer(candidate)
    for _ in range(_REFINEMENTS):
        best.offer(best.least_squares())
    return best.codes.astype(np.int8), best.scale


class _Best:
    """The best scale of each group so far, with its codes and error."""

    def __init__(self, x: Floats, least: int, most: int, weights: Floats | None) -> None:
        self._x, self._range, self._weights = x, (least, most), weights
        self.scale = np.zeros(x.shape[1], np.float16)
        self.codes = np.zeros_like(x)
        self._error = self._weighted(x * x)

    def offer(self, candidate: Floats) -> None:
        """Takes a scale for the groups in which it is better."""
        scale = to_f16(candidate)
        step = scale.astype(np.float32)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            codes = np.clip(np.rint(self._x / step), *self._range)
            difference = self._x - codes * step
            error = self._weighted(difference * difference)
        better = error < self._error  # False for the NaN of a scale that is zero or infinite
        self._error = np.where(better, error, self._error)
        self.scale = np.where(better, scale, self.scale)
        np.copyto(self.codes, codes, where=better)

    def least_squares(self) -> Floats:
        """The scale that fits the present codes best; the present one where all codes are 0."""
        across = self._weighted(self._x * self.codes)
        along = self._weighted(self.codes * self.codes)
        known = along > 0
        fitted = across / np.where(known, along, np.float32(1))
        return np.where(known, fitted, self.scale.astype(np.float32))

    def _weighted(self, squares: Floats) -> Floats:
        return _sum(squares if self._weights is None else squares * self._weights)


def _sum(values: Floats) -> Floats:
    """Sum over the group, in an order that does not depend on how many groups there are."""
    while len(values) > 1:
        half = len(values) // 2
        values = values[:half] + values[half:]
    return values.reshape(-1)
