# SPDX-License-Identifier: Apache-2.0
"""Experts that stay in memory once they have been read: which, and how many have room.

All come hottest first, and the runtime pins as many as leave room (`colibri_platform` in
sdk/c/include/colibri/platform.h): half of a layer's slots, or of all when layers share them, and
what a token uses must fit beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from colibri import _core
from colibri.errors import TraceError
from colibri.experts.policies import hottest_first
from colibri.experts.trace import image_id
from colibri.experts.trace_file import read_trace
from colibri.image import Image

#: (layer of the model, expert)
Pin = tuple[int, int]


def pins_of_trace(image: Image, file: Path) -> list[Pin]:
    """The experts that a trace of this image used, hottest first; TraceError for another image."""
    trace = read_trace(file)
    own = image_id(image)
    if trace.image != own:
        raise TraceError(
            f"is a trace of image {trace.image}, not of {image.name}, which is {own}",
            file=file, field="image", hint=f"record one: colibri trace {image.name} -o TRACE",
        )  # fmt: skip
    shape = _each(image), image.expert_layers
    if (trace.experts, trace.layers) != shape:
        raise TraceError(
            f"has {len(trace.layers)} layers of {trace.experts} experts",
            file=file, field="experts",
            hint=f"{image.name} has {len(shape[1])} of {shape[0]}: record it again",
        )  # fmt: skip
    return _pins(image, hottest_first(trace.heat))


def pins_of_image(image: Image) -> list[Pin]:
    """What ``pack --pin`` left: records lie hottest first and the notes say that they are pins."""
    if not image.notes.get("pins"):
        return []
    places = [(record.file, record.offset) for record in image.experts]
    return _pins(image, sorted(range(len(places)), key=places.__getitem__))


def pinned(image: Image, limits: _core.Limits, slots_per_layer: int, pins: Sequence[Pin]) -> int:
    """How many of them have room, by limits in effect; 0 slots per layer: shared by all layers."""
    each = _each(image)
    places = {layer: place for place, layer in enumerate(image.expert_layers)}
    return _core.ExpertCache(
        len(places), each, limits.expert_slots, limits.policy, not slots_per_layer,
        min(int(image.config["top_k"]), each),
        [places[layer] * each + expert for layer, expert in pins],
    ).pinned  # fmt: skip


def _each(image: Image) -> int:
    """Experts of a layer that have weights."""
    return int(image.config["experts"] - image.config["identities"])


def _pins(image: Image, numbers: Sequence[int]) -> list[Pin]:
    each = _each(image)
    return [(image.expert_layers[number // each], number % each) for number in numbers]
