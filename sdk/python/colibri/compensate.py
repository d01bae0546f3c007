# SPDX-License-Identifier: Apache-2.0
"""Error-compensated rounding: each column makes up for what those before it lost.

A matrix W meets inputs x with second moments H = E[x x^T]; the codes should make the error of the
outputs, sum over rows of (w - q) H (w - q)^T, small rather than that of the weights.  With
H = M diag(d) M^T, M unit lower triangular, that is

    sum over columns j of  d[j] * (t[j] - q[j])^2
    t[j] = w[j] + sum over i > j of M[i, j] * (w[i] - q[i])

so going from the last column to the first, each code is the one nearest to t[j], and a group's
scale is searched when its first column is reached, with d as weights.  This is the rounding of
GPTQ (Frantar et al. 2022, arXiv 2210.17323) without the inverse of H, in the form of Babai's
nearest plane.  Then `polish` goes over it by coordinate descent: each scale and each code again,
with all others as they are.  Rows do not know of each other.  Only elementwise operations in a
fixed order: the same bytes on every machine, whatever linear algebra NumPy was built with.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
ROUNDS = 2  # of polish


@dataclass(frozen=True)
class Factor:
    """H = lower * diag(weights) * lower^T of the inputs of a matrix.

    Attributes
    ----------
    moments : float64 array (columns, columns)
        H, symmetric and positive definite.
    lower : float64 array (columns, columns)
        Unit lower triangular.
    weights : float64 array (columns,)
        Positive: what an error of a column costs when earlier ones make up for it.
    """

    moments: Doubles
    lower: Doubles
    weights: Doubles

    @classmethod
    def of(cls, moments: Doubles) -> Factor:
        lower, count = moments.copy(), len(moments)
        for j in range(count):
            column = lower[j + 1 :, j] / lower[j, j]
            lower[j + 1 :, j + 1 :] -= column[:, None] * lower[j, j + 1 :]
            lower[j + 1 :, j] = column
        weights = np.diagonal(lower).copy()
        lower[np.triu_indices(count)] = 0
        np.fill_diagonal(lower, 1)
        return cls(moments, lower, weights)

    def padded(self, columns: int) -> Factor:
        """With columns behind that nothing depends on."""
        count = len(self.weights)
        moments, lower, weights = np.eye(columns), np.eye(columns), np.ones(columns)
        moments[:count, :count], lower[:count, :count] = self.moments, self.lower
        weights[:count] = self.weights
        return Factor(moments, lower, weights)


def round_column(target: Doubles, scale: Doubles, least: int, most: int) -> Doubles:
    """Codes nearest to the targets; 0 where the scale is 0."""
    ratio = np.divide(target, scale, out=np.zeros_like(target), where=scale != 0)
    return np.clip(np.rint(ratio), least, most)


def polish(
    weights: Doubles, moments: Doubles, codes: Doubles, scales: Doubles, limits: tuple[int, int]
) -> None:
    """Lowers (w - q) H (w - q)^T of each row, changing codes and scales in place.

    Parameters
    ----------
    weights, codes : float64 array (columns, rows)
    scales : float64 array (groups, rows)
        f16 values, before and after.
    limits : the least and the largest code
    """
    group = len(weights) // len(scales)
    slope = np.zeros_like(weights)  # H (w - q)
    for j, row in enumerate(weights):
        slope += moments[:, j, None] * (row - codes[j] * scales[j // group])
    for _ in range(ROUNDS):
        for number in range(len(scales)):
            part = range(number * group, (number + 1) * group)
            _fit_scale(moments, part, codes, scales[number], slope)
            for j in part:
                step = scales[number]
                code = round_column(codes[j] * step + slope[j] / moments[j, j], step, *limits)
                slope -= moments[:, j, None] * ((code - codes[j]) * step)
                codes[j] = code


def _fit_scale(
    moments: Doubles, part: range, codes: Doubles, scale: Doubles, slope: Doubles
) -> None:
    """The scale of a group that suits its codes best, where rounded to f16 it is better."""
    across, along = np.zeros_like(scale), np.zeros_like(scale)
    curve = np.zeros((len(part), len(scale)))
    for j in part:
        curve += moments[part.start : part.stop, j, None] * codes[j]
    for i, j in enumerate(part):
        across += codes[j] * slope[j]
        along += codes[j] * curve[i]
    wanted = scale + np.divide(across, along, out=np.zeros_like(scale), where=along > 0)
    with np.errstate(over="ignore"):
        change = wanted.astype(np.float16).astype(np.float64) - scale
    change[~np.isfinite(change)] = 0
    change[change * (change * along - 2 * across) >= 0] = 0
    scale += change
    for j in part:
        slope -= moments[:, j, None] * (codes[j] * change)
