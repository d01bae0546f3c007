# SPDX-License-Identifier: Apache-2.0
"""Routers that go by more than the scores: how reports name them (docs/expert-cache.md)."""

from __future__ import annotations

from typing import Any

from colibri import _core


def routing_options(limits: _core.Limits) -> dict[str, Any] | None:
    """What changes the choice of experts, with a sentence on it; None for the model's own router.

    Returns
    -------
    dict, optional
        ``balance_router`` (choices in a row) and ``prefer_cached`` (part of the range of scores),
        each None when it is off, and ``note``.
    """
    balance, cached = limits.balance or None, limits.prefer_cached / 1000 or None
    notes = []
    if balance is not None:
        notes.append(
            f"load-balancing router: an expert chosen more than {balance} times in a row loses "
            "half of its probability with each choice more"
        )
    if cached is not None:
        notes.append(
            f"cache-preferring router: experts in memory gain {cached:g} of the range of scores, "
            "so tokens depend on slots, policy, batch and what ran before"
        )
    if not notes:
        return None
    return {"balance_router": balance, "prefer_cached": cached, "note": "; ".join(notes)}
