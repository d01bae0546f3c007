# SPDX-License-Identifier: Apache-2.0
"""Drawing a token from logits: the C library's sampler, seeded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from colibri import _core
from colibri.errors import EngineError

SEED_MAX = 2**64 - 1


@dataclass(frozen=True)
class Sampling:
    """How to draw: temperature 0 is greedy, top_k 0 and top_p 1 keep everything."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise EngineError(
                f"{self.temperature} is out of range",
                field="temperature",
                hint="use 0 (greedy) or more",
            )
        if not 0 <= self.top_k < 2**32:
            raise EngineError(
                f"{self.top_k} is out of range", field="top_k", hint="use 0 (all) or more"
            )
        if not 0 <= self.top_p <= 1:
            raise EngineError(f"{self.top_p} is out of range", field="top_p", hint="use 0 .. 1")
        if not 0 <= self.seed <= SEED_MAX:
            raise EngineError(f"{self.seed} is out of range", field="seed", hint="use 0 .. 2^64-1")


class Sampler:
    """A `Sampling` with the state of its random numbers."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self.state = sampling.seed

    def __call__(self, logits: ArrayLike) -> int:
        """The next token."""
        s = self.sampling
        row = np.ascontiguousarray(logits, dtype=np.float32)
        if row.ndim != 1:
            raise EngineError(f"logits have shape {row.shape}", hint="give one row")
        token, self.state = _core.sample(row, s.temperature, s.top_k, s.top_p, self.state)
        return token


def sample(
    logits: ArrayLike,
    *,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
) -> int:
    """One token from one row of logits."""
    return Sampler(Sampling(temperature, top_k, top_p, seed))(logits)
