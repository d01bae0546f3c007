# SPDX-License-Identifier: Apache-2.0
"""What an image needs of the runtime: only that is compiled into its firmware."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from colibri.image import Image

_TYPES = ("f32", "f16", "bf16", "q8", "q4")
# Norms, biases, the routers and RoPE's frequencies are always f32 and need no part of their own.
_MATRICES = frozenset(
    ("embedding", "output", "query", "key", "value", "attention_out", "dense_gate", "dense_up",
     "dense_down", "shared_gate", "shared_up", "shared_down", "expert_gate", "expert_up",
     "expert_down")
)  # fmt: skip


@dataclass(frozen=True)
class ImageNeeds:
    """Sizes and parts: `types` of weight matrices, `kv` types asked for, dense layers or not."""

    bytes: int
    vocabulary: int
    types: frozenset[str]
    kv: frozenset[str]
    dense: bool

    def defines(self) -> Iterator[str]:
        """``-DCOLIBRI_WITH_*=0`` for every part that can be left out (sdk/c/src/options.h)."""
        for name in _TYPES:
            if name not in self.types:
                yield f"-DCOLIBRI_WITH_{name.upper()}=0"
        for name in ("f16", "q8"):
            if name not in self.kv:
                yield f"-DCOLIBRI_WITH_KV_{name.upper()}=0"
        if not self.dense:
            yield "-DCOLIBRI_WITH_DENSE=0"


def image_needs(image: str | Path | Image, kv: Sequence[str]) -> ImageNeeds:
    """Reads the needs off an image's tables."""
    opened = image if isinstance(image, Image) else Image(image)
    return ImageNeeds(
        bytes=opened.bytes,
        vocabulary=opened.vocabulary,
        types=frozenset(t.type_name for t in opened.tensors if t.name in _MATRICES),
        kv=frozenset(kv),
        dense=any(t.name.startswith("dense_") for t in opened.tensors),
    )
