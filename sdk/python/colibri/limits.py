# SPDX-License-Identifier: Apache-2.0
"""What a plan is asked for, beside image and board: one object, whoever plans.

`colibri.plan` and `colibri.plan_together` take its fields as keywords (`LimitOptions`), with the
context in front; everything below them gets a `Limits`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

from colibri import _core
from colibri.engine import make_limits
from colibri.experts.pins import Pin


@dataclass(frozen=True)
class Limits:
    """Limits of a plan.

    Parameters
    ----------
    context, batch, workers : int, optional
        Default: the model's own context, 16 and 1.
    kv : {"f32", "f16", "q8"}
        How the KV cache stores its numbers.
    pages : {"4k", "huge"}
        How a Linux board holds the weights: a mapped file, whose pages the system may drop, or a
        copy in huge pages, which is RAM that is taken.
    streamed : bool
        Experts are read into slots when a token needs them. From a file, or from a storage that is
        not mapped: then tables and the rest of the weights are in RAM. From mapped flash: then the
        rest is used in place.
    memory : int, optional
        Bytes that the engine may take in all, streamed: with the image's tables. Default: what
        the board has.
    expert_slots, policy, pins, prefetch, balance, prefer_cached : optional
        As `colibri.Engine` takes them. Default: as many slots as fit.
    application : mapping, optional
        What the rest of the program takes: bytes (or ``"64 KiB"``) by the name of a region. The
        plan leaves that room. Default: not given, so nothing is left.
    code : int, optional
        Without an operating system: bytes kept for code and constants. Default: the board's
        ``budgets.code_bytes``, else what firmware of these images was counted to take, with a
        margin (`colibri_emulator.code_size`).
    """

    context: int | None = None
    batch: int | None = None
    workers: int | None = None
    kv: str = "f32"
    pages: str = "4k"
    streamed: bool = False
    memory: int | None = None
    expert_slots: int | None = None
    policy: str = "auto"
    pins: Sequence[Pin] = ()
    prefetch: bool | None = None
    balance: int | None = None
    prefer_cached: float | None = None
    application: Mapping[str, int | str] | None = None
    code: int | None = None

    def core(self, profile: str, weights: str) -> _core.Limits:
        """The C library's limits; PlanError for what cannot be."""
        return make_limits(
            context=self.context, batch=self.batch, workers=self.workers, kv=self.kv,
            profile=profile, weights=weights, expert_slots=self.expert_slots, policy=self.policy,
            prefetch=self.prefetch, balance=self.balance, prefer_cached=self.prefer_cached,
        )  # fmt: skip


class LimitOptions(TypedDict, total=False):
    """The fields of `Limits` but the context, as keywords."""

    batch: int | None
    workers: int | None
    kv: str
    pages: str
    streamed: bool
    memory: int | None
    expert_slots: int | None
    policy: str
    pins: Sequence[Pin]
    prefetch: bool | None
    balance: int | None
    prefer_cached: float | None
    application: Mapping[str, int | str] | None
    code: int | None
