# SPDX-License-Identifier: Apache-2.0
"""What an image needs of the runtime: only that is compiled into its firmware."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from colibri.image import Image
from colibri.image_format import ROLES, Order
from colibri.weight_order import order_of_image

_TYPES = ("f32", "f16", "bf16", "q8", "q4")
_EXTRAS = ("query_norm", "key_norm", "sinks", "output_gate")
_RESIDUALS = ("attention_residual", "ffn_residual")
_LATENT, _CONV, _EXPERT_ATTENTION, _DELTA, _MAMBA = 2, 3, 4, 5, 8  # mixers
_DENSE, _BOTH = 1, 3  # feed-forwards
_SIGMOID, _SPARSEMIXER, _TOPK = 3, 4, (2, 5)  # routers


@dataclass(frozen=True)
class ImageNeeds:
    """Size, vocabulary, and the parts of the runtime that the image makes use of.

    Parts are the names of sdk/c/src/options.h, in lower case and without COLIBRI_WITH_.
    """

    bytes: int
    vocabulary: int
    parts: dict[str, bool]

    def defines(self) -> Iterator[str]:
        """``-DCOLIBRI_WITH_*=0`` for every part that can be left out."""
        for name, needed in self.parts.items():
            if not needed:
                yield f"-DCOLIBRI_WITH_{name.upper()}=0"


def image_needs(
    image: str | Path | Image, kv: Sequence[str], *, streaming: bool = False
) -> ImageNeeds:
    """Reads the needs off an image's tables; `kv` and `streaming` are what is asked for."""
    opened = image if isinstance(image, Image) else Image(image)
    parts = _types(opened) | {f"kv_{name}": name in kv for name in ("f16", "q8")}
    # the runner binds no expert to a device, routes as the model says, reads nothing on a guess,
    # and takes images in several files only to stream them
    files = streaming and len(opened.files) > 1
    parts |= dict.fromkeys(("backends", "prefetch", "preference"), False)
    parts |= {"streaming": streaming, "companions": files}
    return ImageNeeds(opened.bytes, opened.vocabulary, parts | _blocks(opened) | _router(opened))


def _types(image: Image) -> dict[str, bool]:
    # Vectors and routers are always f32 and need no part of their own.
    used = {t.type_name for t in image.tensors if ROLES[t.name].part}
    tiles = order_of_image(image) is Order.TILES
    return {name: name in used for name in _TYPES} | {"tiles": tiles}


def _blocks(image: Image) -> dict[str, bool]:
    config, names = image.config, {tensor.name for tensor in image.tensors}
    mixers, ffns, _, flags, _, _ = (
        set(column) for column in zip(*image.core.layers(), strict=True)
    )
    return {
        "dense": bool(ffns & {_DENSE, _BOTH}),
        "beside": _BOTH in ffns,
        "latent": _LATENT in mixers,
        "conv": _CONV in mixers,
        "expert_attention": _EXPERT_ATTENTION in mixers,
        "linear": not mixers.isdisjoint(range(_DELTA, _MAMBA)),
        "mamba": _MAMBA in mixers,
        "normed_residual": not names.isdisjoint(_RESIDUALS),
        "attention_extras": any(flags) or config["clip"] > 0 or not names.isdisjoint(_EXTRAS),
        "layer_norm": config["norm"] == 1,
        "activations": config["activation"] != 1,
    }


def _router(image: Image) -> dict[str, bool]:
    router = image.config["router"]
    return {
        "router_sigmoid": router == _SIGMOID,
        "router_topk": router in _TOPK,
        "router_groups": image.config["router_groups"] > 0,
        "router_sparsemixer": router == _SPARSEMIXER,
    }
