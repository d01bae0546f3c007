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
nearest plane.  Rows do not know of each other.  Only elementwise operations in a fixed order: the
same bytes on every machine, whatever linear algebra NumPy was built with.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class Factor:
    """H = lower * diag(weights) * lower^T of the inputs of a matrix.

    Attributes
    ----------
    lower : float64 array (columns, columns)
        Unit lower triangular.
    weights : float64 array (columns,)
        Positive: what an error of a column costs when earlier ones make up for it.
    """

    lower: Doubles
    weights: Doubles

    @classmethod
    def of(cls, moments: Doubles) -> Factor:
        """Factor of a symmetric positive definite matrix."""
        lower, count = moments.copy(), len(moments)
        for j in range(count):
            column = lower[j + 1 :, j] / lower[j, j]
            lower[j + 1 :, j + 1 :] -= column[:, None] * lower[j, j + 1 :]
            lower[j + 1 :, j] = column
        weights = np.diagonal(lower).copy()
        lower[np.triu_indices(count)] = 0
        np.fill_diagonal(lower, 1)
        return cls(lower, weights)

    def padded(self, columns: int) -> Factor:
        """With columns behind that nothing depends on."""
        count = len(self.weights)
        lower, weights = np.eye(columns), np.full(columns, self.weights.min())
        lower[:count, :count], weights[:count] = self.lower, self.weights
        return Factor(lower, weights)


def round_column(target: Doubles, scale: Doubles, least: int, most: int) -> Doubles:
    """Codes nearest to the targets; 0 where the scale is 0."""
    ratio = np.divide(target, scale, out=np.zeros_like(target), where=scale != 0)
    return np.clip(np.rint(ratio), least, most)
