# SPDX-License-Identifier: Apache-2.0
"""Inverse frequencies of rotary positions, in float32 as transformers computes them
(modeling_rope_utils.py), and what scaling does to cosines, sines and the context.

A device holds one set of frequencies, so a kind that switches sets by length (longrope) is fixed to
the short set, and the context is cut to where the reference would switch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import numpy as np
from numpy.typing import NDArray

from colibri.descriptors import in_range
from colibri.errors import CheckpointError

Floats = NDArray[np.float32]


class Rope(NamedTuple):
    """Frequencies; `scale` multiplies cosines and sines."""

    frequencies: Floats
    scale: float
    context: int
    notes: tuple[str, ...] = ()


def _is_number(value: Any) -> TypeGuard[float]:
    """Whether a value of a JSON file is a number that float32 holds."""
    return isinstance(value, int | float) and not isinstance(value, bool) and in_range(value)


class _Table:
    """The scaling's own keys, read with checks."""

    def __init__(self, table: dict[str, Any], file: Path) -> None:
        self.table, self.file = table, file

    def number(self, key: str, default: float | None = None, above: float = 0.0) -> float:
        value = self.table.get(key)
        if value is None and default is not None:
            return default
        if not _is_number(value) or not value > above:
            raise CheckpointError("is missing" if value is None else f"is {value!r}",
                                  file=self.file, field=f"rope_scaling.{key}",
                                  hint=f"valid is a number above {above:g}")  # fmt: skip
        return float(value)

    def numbers(self, key: str, count: int) -> Floats:
        value = self.table.get(key)
        if (
            not isinstance(value, list)
            or len(value) != count
            or not all(_is_number(v) and v > 0 for v in value)
        ):
            raise CheckpointError("is missing or has the wrong length", file=self.file,
                                  field=f"rope_scaling.{key}",
                                  hint=f"valid is a list of {count} positive numbers")  # fmt: skip
        return np.asarray(value, np.float32)


def make_rope(
    kind: str, theta: float, size: int, context: int, scaling: dict[str, Any], file: Path
) -> Rope:
    """The frequencies of `size` rotated elements.

    Raises
    ------
    CheckpointError
        For an unknown kind, and for keys of the scaling that are missing or unusable.
    """
    if kind not in _KINDS:
        raise CheckpointError(f'is "{kind}"', file=file, field="rope_type",
                              hint=f"valid is {', '.join(sorted(_KINDS))}")  # fmt: skip
    table = _Table(scaling if isinstance(scaling, dict) else {}, file)
    try:
        with np.errstate(all="ignore"):  # what comes of it is refused below
            rope = _KINDS[kind](float(theta), size, context, table)
    except (ArithmeticError, ValueError) as error:
        raise CheckpointError(f"cannot be computed with rope_theta {theta:g} ({error})", file=file,
                              field=f"rope_scaling of type {kind}") from error  # fmt: skip
    if not (in_range(rope.scale) and rope.scale > 0 and rope.context > 0):
        raise CheckpointError(f"gives scale {rope.scale:g} and context {rope.context}", file=file,
                              field=f"rope_scaling of type {kind}",
                              hint="valid is what makes both positive")  # fmt: skip
    frequencies = np.asarray(rope.frequencies, np.float32)
    if not (np.isfinite(frequencies).all() and frequencies.max(initial=0) <= 1):
        raise CheckpointError(f"is {theta:g}", file=file, field="rope_theta",
                              hint="valid is a number from 1 up")  # fmt: skip
    return rope._replace(frequencies=frequencies)


def _powers(theta: float, size: int) -> Floats:
    """theta ** (2i / size). Rounded once, from float64: correctly but for ties no theta meets."""
    exponents = np.arange(0, size, 2).astype(np.float32) / np.float32(max(size, 1))
    return np.asarray(np.float64(np.float32(theta)) ** exponents.astype(np.float64), np.float32)


def _default(theta: float, size: int, context: int, _: _Table) -> Rope:
    return Rope(np.float32(1) / _powers(theta, size), 1.0, context)


def _proportional(theta: float, size: int, context: int, table: _Table) -> Rope:
    """The first pairs rotate as in a head of `size`, the others stand still."""
    rotated = int(table.number("partial_rotary_factor", 1.0) * size // 2)
    frequencies = np.float32(1) / _powers(theta, size)
    frequencies[rotated:] = 0
    return Rope(frequencies / np.float32(table.number("factor", 1.0)), 1.0, context)


def _linear(theta: float, size: int, context: int, table: _Table) -> Rope:
    frequencies = np.float32(1) / _powers(theta, size)
    return Rope(frequencies / np.float32(table.number("factor")), 1.0, context)


def _yarn(theta: float, size: int, context: int, table: _Table) -> Rope:
    """YaRN, arXiv 2309.00071."""
    original = table.number("original_max_position_embeddings")
    factor = table.number("factor", context / original)
    scale = _yarn_scale(factor, table)
    bounds = [
        size * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))
        for turns in (table.number("beta_fast", 32.0), table.number("beta_slow", 1.0))
    ]
    if table.table.get("truncate", True):
        bounds = [math.floor(bounds[0]), math.ceil(bounds[1])]
    low, high = max(bounds[0], 0), min(bounds[1], size - 1)
    high += 0.001 if low == high else 0
    ramp = (np.arange(size // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low)
    keep = np.float32(1) - np.clip(ramp, 0, 1).astype(np.float32)
    powers = _powers(theta, size)
    stretched = np.float32(1) / (np.float32(factor) * powers)
    return Rope(stretched * (1 - keep) + keep / powers, scale, context)


def _yarn_scale(factor: float, table: _Table) -> float:
    def magnitude(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0

    if table.table.get("attention_factor") is not None:
        return table.number("attention_factor")
    if table.table.get("mscale") and table.table.get("mscale_all_dim"):
        return magnitude(table.number("mscale")) / magnitude(table.number("mscale_all_dim"))
    return magnitude(1.0)


def _llama3(theta: float, size: int, context: int, table: _Table) -> Rope:
    """Long wavelengths are stretched, short ones kept, those between blended."""
    original, factor = table.number("original_max_position_embeddings"), table.number("factor")
    low, high = table.number("low_freq_factor"), table.number("high_freq_factor")
    frequencies = np.float32(1) / _powers(theta, size)
    waves = np.float32(2 * math.pi) / frequencies
    with np.errstate(divide="ignore", invalid="ignore"):  # low == high: nothing lies between
        blend = (np.float32(original) / waves - np.float32(low)) / np.float32(high - low)
        between = (1 - blend) * (frequencies / np.float32(factor)) + blend * frequencies
    result = np.where(waves > original / low, frequencies / np.float32(factor), frequencies)
    middle = (waves <= original / low) & (waves >= original / high)
    return Rope(np.where(middle, between, result).astype(np.float32), 1.0, context)


def _longrope(theta: float, size: int, context: int, table: _Table) -> Rope:
    """LongRoPE, arXiv 2402.13753: the short set, up to where it holds."""
    original = int(table.number("original_max_position_embeddings"))
    factor = table.number("factor", context / original)
    short = table.numbers("short_factor", size // 2)
    scale = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    scale = table.number("short_mscale", table.number("attention_factor", scale))
    notes = (f"context cut to {original} tokens, where longrope changes its frequencies",)
    return Rope(np.float32(1) / (short * _powers(theta, size)), scale, min(context, original),
                notes if context > original else ())  # fmt: skip


# Up to the model's own context, dynamic scaling changes nothing.
_KINDS: dict[str, Callable[[float, int, int, _Table], Rope]] = {
    "default": _default, "linear": _linear, "dynamic": _default, "yarn": _yarn,
    "llama3": _llama3, "longrope": _longrope, "proportional": _proportional,
}  # fmt: skip
