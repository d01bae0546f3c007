# SPDX-License-Identifier: Apache-2.0
"""An image of random weights from a bare config.json.

Codes are drawn in the form in which they lie in the file: no tensor is ever there as floats, and
memory stays at a few MiB whatever the model.  A matrix of K columns has scales of gain / sqrt(K)
by the deviation of its codes, so that it keeps the size of what it is given; norms are 1.

Left alone, random weights drift: the mean of the 16 codes of q4 is not 0, so one direction grows
from layer to layer in every token, and all tokens choose the same experts. So codes have mean 0
here, and what blocks add to the residual stream is small beside the embedding. A token's
experts then depend on its embedding alone, which makes two kinds of routing:

uniform  every row of the embedding is drawn by itself.
sticky   rows have 15 of 16 codes in common, so consecutive tokens choose mostly the same experts.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from colibri.checked_json import read_json
from colibri.checkpoint import Checkpoint
from colibri.errors import ImageError, PackError
from colibri.families import Model, Wanted, describe
from colibri.image import Image
from colibri.image_format import TILE_ROWS, Order, Type, align
from colibri.image_layout import Layout, Record, Slot, TensorSpec
from colibri.pack import (
    DISTRIBUTION,
    Progress,
    image_target,
    runtime_selftest,
    tensor_specs,
    write_image,
)
from colibri.placement import MONOLITHIC, Placement
from colibri.quantize import Encoded, encode, store
from colibri.recipe import Recipe, make_recipe
from colibri.sources import text_part

Routing = Literal["uniform", "sticky"]
SELFTEST_TOKENS = 2
SPARE_BYTES = 64 << 20  # what a disk shall have left
_CHUNK = 1 << 22  # weights made at once
_POOL = (1 << 20) + 7  # normal numbers that float tensors are cut from
_BRANCH = 0.02  # what a block adds, as a share of the embedding
_OWN = 1 / 16  # of a row of a sticky embedding
# Bytes as drawn -> codes with a mean of 0: without -128 (q8) and -8 (q4).
_Q8 = bytes(b if b != 0x80 else 0 for b in range(256))
_Q4 = bytes(8 * (b & 15 == 0) | 128 * (b >> 4 == 0) | b for b in range(256))
_DEVIATION = {Type.Q8: math.sqrt(sum(c * c for c in range(-127, 128)) / 256),
              Type.Q4: math.sqrt(sum(c * c for c in range(-7, 8)) / 16)}  # fmt: skip
# Roles whose output is added to the residual stream.
_TO_RESIDUAL = ("attention_out", "conv_out", "dense_down", "shared_down", "expert_down",
                "expert_attention_out", "linear_out")  # fmt: skip
_POST_NORMS = ("attention_post_norm", "ffn_post_norm", "experts_post_norm", "dense_post_norm")
_ONES = ("layer_scale", "router_weight", "linear_skip", "attention_residual", "ffn_residual")


@dataclass(frozen=True)
class Synthetic:
    """What an image of random weights is made by; equal ones give equal bytes."""

    config: Path
    quant: str | None = None
    group: int | None = None
    routing: Routing = "uniform"
    layers: int | None = None
    seed: int = 0
    order: Order = Order.ROWS
    placement: Placement = MONOLITHIC


def make_synthetic(
    wish: Synthetic, target: Path, progress: Callable[[int], Progress] | None = None
) -> Image:
    """Writes the image, or opens it when `target` already is this very model.

    Parameters
    ----------
    progress : callable, optional
        Gets the number of weights, returns what is called with each number of weights done.

    Raises
    ------
    CheckpointError, PackError
        For a config or recipe that cannot be used, too little room, or another model in the way.
    """
    target = image_target(target)
    config = _config(wish.config)
    model = describe(config, wish.config, layers=wish.layers)
    recipe = make_recipe(wish.quant, wish.group)
    layout = _layout(wish, config, model, recipe)
    if target.exists():
        return _existing(target, layout)
    _check_room(target, layout.file_bytes)
    maker = _Maker(model, wish)
    sizes = (slot.spec.rows * slot.spec.columns for slot in layout.slots)
    advance = progress(sum(sizes)) if progress else (lambda _: None)
    tensors = ((slot, maker.tensor(slot, advance)) for slot in layout.slots)
    # the bits do not depend on kernels and workers, and the reference would take minutes
    write_image(layout, tensors, target,
                partial(runtime_selftest, kernels="auto", workers=os.cpu_count() or 1))  # fmt: skip
    return Image(target)


def _config(file: Path) -> dict[str, object]:
    """config.json, of a checkpoint of more than text its language model."""
    return text_part(Checkpoint(file, read_json(file), {}, None, {}, {}, [])).config


def _layout(wish: Synthetic, config: dict[str, object], model: Model, recipe: Recipe) -> Layout:
    columns = [(w, w.columns(model.settings_of(w.layer))) for w in _needed(model)]
    count = min(SELFTEST_TOKENS, model.settings.context)
    vocabulary = model.settings.vocabulary
    return Layout.of(
        model.settings, model.layers, tensor_specs(model, columns, recipe, wish.order),
        stop=(), tokens=[(2 * i + 1) * vocabulary // (2 * count) for i in range(count)],
        notes=_notes(wish, config, model, recipe), tokenizer_bytes=0,
        placement=wish.placement,
    )  # fmt: skip


def _needed(model: Model) -> Iterator[Wanted]:
    return (w for w in model.tensors if not (model.settings.tied and w.role.name == "output"))


def _notes(wish: Synthetic, config: dict[str, object], model: Model, recipe: Recipe) -> bytes:
    content = {
        "tool": f"{DISTRIBUTION} {version(DISTRIBUTION)}",
        "architecture": model.architecture,
        "model_type": str(config.get("model_type", "")),
        "family": model.family.name,
        "recipe": {"name": recipe.name, "group": recipe.group},
        "synthetic": {"routing": wish.routing, "seed": wish.seed,
                      "order": wish.order.name.lower(), "layers": model.settings.layers},
        "notes": [*model.notes, "random weights: for measurements only"],
    }  # fmt: skip
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def _existing(target: Path, layout: Layout) -> Image:
    """The image that is there already, if it is the one that would be made."""
    try:
        image = Image(target)
        same = (
            image.bytes == layout.file_bytes and image.section_bytes("notes") == layout.model.notes
        )
        same = same and image.meta_bytes == layout.meta_bytes
        places = [Record(expert.file, expert.offset, expert.bytes) for expert in image.experts]
        same = same and places == list(layout.records)
    except ImageError as error:
        hint = "give another file, or remove this one"
        raise PackError("is there, and no image", file=target, hint=hint) from error
    if not same:
        raise PackError("is there, and another model", file=target,
                        hint="give another file, or remove this one")  # fmt: skip
    return image


def _check_room(target: Path, needed: int) -> None:
    free = shutil.disk_usage(target.parent).free
    if free < needed + SPARE_BYTES:
        raise PackError(
            f"the image takes {needed:,} bytes, and {target.parent} has {free:,}", file=target,
            hint="give a file on another disk (--keep), or fewer --layers",
        )  # fmt: skip


class _Maker:
    """Draws the bytes of one tensor after the other."""

    def __init__(self, model: Model, wish: Synthetic) -> None:
        self._sticky = wish.routing == "sticky"
        self._common: NDArray[Any] | None = None
        self._random = np.random.default_rng(wish.seed)
        self._pool = self._random.standard_normal(_POOL, np.float32)
        self._model = model
        self._given = {(w.layer, w.role.name): w.places[0].values for w in model.tensors}
        settings = model.settings
        self._embedding = 1 / math.sqrt(settings.hidden)
        stream = self._embedding * abs(settings.embedding_scale)
        self._branch = _BRANCH * stream / (abs(settings.residual_scale) or 1)

    def tensor(self, slot: Slot, advance: Progress) -> Iterator[Encoded]:
        """The rows of a tensor, a few at a time."""
        spec = slot.spec
        if spec.role.vector:
            advance(spec.columns)
            yield encode(self._vector(spec)[None], spec.kind, spec.group)
            return
        step = align(max(1, _CHUNK // spec.columns), TILE_ROWS)
        for start in range(0, spec.rows, step):
            rows = min(step, spec.rows - start)
            yield self._coded(spec, rows) if spec.group else self._floats(spec, rows)
            advance(rows * spec.columns)

    def _gain(self, spec: TensorSpec) -> float:
        """Deviation of the weights."""
        if spec.role.name == "embedding":
            return self._embedding
        gain = self._branch if spec.role.name in _TO_RESIDUAL else 1.0
        return gain / math.sqrt(spec.columns)

    def _coded(self, spec: TensorSpec, rows: int) -> Encoded:
        padded = align(spec.columns, spec.group)
        if spec.kind is Type.Q8:
            codes = self._random.bytes(rows * padded).translate(_Q8)
        else:
            codes = self._random.bytes(rows * padded // 2).translate(_Q4)
        scale = np.array(self._gain(spec) / _DEVIATION[spec.kind], "<f2")
        alike = self._sticky and spec.role.name == "embedding"
        if not alike and padded == spec.columns:  # as random in any order
            return Encoded(codes, scale.tobytes() * (rows * padded // spec.group))
        table = np.frombuffer(codes, np.uint8).reshape(rows, -1)
        if alike:
            table = self._alike(table)
        coded = _codes(table, spec)
        coded[:, spec.columns :] = 0
        groups = padded // spec.group
        return store(coded.reshape(rows, groups, spec.group), np.full((rows, groups), scale),
                     spec.kind, spec.order)  # fmt: skip

    def _floats(self, spec: TensorSpec, rows: int) -> Encoded:
        count = rows * spec.columns
        start = int(self._random.integers(_POOL))
        drawn = self._pool.take(np.arange(start, start + count), mode="wrap")
        table = (drawn * np.float32(self._gain(spec))).reshape(rows, spec.columns)
        if self._sticky and spec.role.name == "embedding":
            table = self._alike(table)
        return encode(table, spec.kind, 0)

    def _alike(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Rows that share most of their elements with the very first one."""
        if self._common is None:
            self._common = rows[0].copy()
        own = self._random.random(rows.shape, np.float32) < _OWN
        return np.where(own, rows, self._common)

    def _vector(self, spec: TensorSpec) -> NDArray[np.float32]:
        name = spec.role.name
        if name in self._model.ropes:
            return self._model.ropes[name]
        if given := self._given.get((spec.layer, name)):
            return np.array(given, np.float32)
        if name in _POST_NORMS:
            return np.full(spec.columns, self._branch, np.float32)
        one = name in _ONES or name.endswith("_norm")
        return np.full(spec.columns, 1.0 if one else 0.0, np.float32)


def _codes(table: NDArray[np.uint8], spec: TensorSpec) -> NDArray[np.int8]:
    """Codes, rows x padded columns, that random bytes stand for."""
    if spec.kind is Type.Q8:
        return table.view(np.int8).copy()
    pairs = np.stack([table & 15, table >> 4], axis=-1).reshape(len(table), -1)
    return pairs.astype(np.int8) - np.int8(8)
