# SPDX-License-Identifier: Apache-2.0
"""What the runtime does with a checkpoint: logits, and every router's choices."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

import checkpoints as ck
from colibri import Engine, _core
from colibri.checkpoint import Checkpoint
from colibri.pack import pack

Choices = dict[int, dict[int, float]]  # token -> expert -> weight


def distance(a: ArrayLike, b: ArrayLike) -> float:
    """max |a - b| / max |b|"""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return float(np.abs(a - b).max() / np.abs(b).max())


def packed(source: Path, quant: str = "f32") -> Path:
    """The image of a checkpoint, beside its folder."""
    image = source.with_suffix(".colibri")
    pack(source, image, quant=quant)
    return image


def run(image: Path, ids: ArrayLike, **limits: Any) -> tuple[NDArray[np.float32], list[Choices]]:
    """Logits of every token; each router's choices, in the trace's order."""
    ids = np.asarray(ids)
    engine = Engine(image, context=len(ids) + 1, trace=True, **limits)
    logits = engine.infer(ids, all_logits=True)
    found: dict[tuple[int, int], Choices] = defaultdict(lambda: defaultdict(dict))
    done: dict[tuple[int, int, int], int] = defaultdict(int)
    first = count = 0  # token of the step, tokens in it
    for event in engine.take_trace():
        if event["kind"] == _core.EVENTS["step"]:
            first, count = first + count, int(event["count"])
        elif event["kind"] == _core.EVENTS["route"]:
            layer, rank = int(event["layer"]), int(event["count"]) >> 16
            token = first + (int(event["count"]) & 0xFFFF)
            router = done[layer, token, rank]  # of the layer's
            done[layer, token, rank] += 1
            weight = float(np.uint32(event["bytes"]).view(np.float32))
            found[layer, router][token][int(event["index"])] = weight
    return logits, [found[key] for key in sorted(found)]


def greedy(image: Path, ids: ArrayLike, count: int) -> list[int]:
    engine = Engine(image, context=len(np.asarray(ids)) + count)
    logits, out = engine.infer(ids), []
    for _ in range(count):
        out.append(int(logits.argmax()))
        logits = engine.infer(out[-1:])
    return out


def tensors_of(folder: Path) -> ck.Tensors:
    """All tensors of a checkpoint as float32, to be changed and written again."""
    found = Checkpoint.open(folder).tensors
    return {n: np.concatenate([*t.rows(1 << 20)]).reshape(t.shape) for n, t in found.items()}
