# SPDX-License-Identifier: Apache-2.0
"""Expert use on a text: what `colibri trace` records.

>>> trace = record(Image("demo.colibri"), Text.of_prompt("lantern, lamp"))  # doctest: +SKIP
>>> trace.choices.shape                                                    # doctest: +SKIP
(7, 6, 2)

Choices do not depend on how tokens are split into steps (docs/numerics.md), so the text goes
through in batches and the choices are put in the order of decoding: token by token, layer by
layer, the best expert first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from colibri import _core
from colibri.bench.trace import ATTENTION, choices_of, routing_of
from colibri.engine import Engine, as_tokens
from colibri.errors import EngineError, TraceError
from colibri.image import Image

WINDOW = 512  # tokens that the model sees at a time
_BATCH = 64
_KEPT = [_core.EVENTS[name] for name in ("step", "route")]


@dataclass(frozen=True)
class Text:
    """What a model reads: token ids, and the SHA-256 of what they come from.

    `source` is ``"text"`` (a file or a prompt) or ``"ids"`` (as little-endian u32).
    """

    ids: tuple[int, ...]
    source: Literal["text", "ids"]
    sha256: str

    @classmethod
    def of_ids(cls, ids: Sequence[int]) -> Text:
        """Token ids as they are."""
        data = as_tokens(list(ids)).astype("<u4").tobytes()
        return cls(tuple(ids), "ids", hashlib.sha256(data).hexdigest())

    @classmethod
    def of_text(cls, text: str, image: Image) -> Text:
        """Tokens of a text by the image's own tokenizer."""
        ids = tuple(image.tokenizer.encode(text))
        return cls(ids, "text", hashlib.sha256(text.encode("utf-8")).hexdigest())

    def first(self, tokens: int | None) -> Text:
        """The same source with no more than `tokens` of its tokens."""
        return Text(self.ids[:tokens], self.source, self.sha256)


@dataclass(frozen=True)
class ExpertTrace:
    """Which experts each token used in each layer, and what replaying that needs.

    Attributes
    ----------
    image : str
        The image's id: hex of 16 bytes of its header.
    tokenizer : str or None
        SHA-256 of the image's tokenizer.
    experts, identities, top_k : int
        Experts of a layer that have weights; those after them that have none; choices of a token.
    layers : tuple of int
        The model's layers that have experts.
    record_bytes : tuple of int
        Of one expert, by layer: what a miss reads.
    window : int
        Tokens that the model saw at a time; a longer text starts anew.
    choices : array, uint16, (tokens, layers, top_k)
        Best first; `experts` and above are identities.
    routing : dict
        Statistics of `colibri.bench.trace.Routing`.
    balance_router : int, optional
        `Engine`'s `balance`; None: the choices are the model's own.
    """

    image: str
    tokenizer: str | None
    text: Text
    experts: int
    identities: int
    top_k: int
    layers: tuple[int, ...]
    record_bytes: tuple[int, ...]
    window: int
    choices: NDArray[np.uint16]
    routing: dict[str, Any]
    balance_router: int | None = None

    @property
    def tokens(self) -> int:
        return len(self.text.ids)

    @cached_property
    def heat(self) -> list[list[int]]:
        """How often each expert was used, by layer."""
        return heat_of(self.choices, self.experts)

    @cached_property
    def steps(self) -> list[list[int]]:
        """Experts that are needed at once, in the order of decoding: token by layer.

        Expert e of the m-th layer is ``m * experts + e``, the number of its record; identities
        are left out. By number, as the runtime goes through them.
        """
        keys = self.choices.astype(np.int64)
        places = np.arange(len(self.layers))[None, :, None] * self.experts
        keys = np.where(keys < self.experts, keys + places, -1).reshape(-1, self.top_k)
        keys.sort(axis=1)
        if self.identities:
            return [[key for key in step if key >= 0] for step in keys.tolist()]
        steps: list[list[int]] = keys.tolist()
        return steps


def heat_of(choices: NDArray[np.uint16], experts: int) -> list[list[int]]:
    """Uses of each expert that has weights, by layer."""
    return [
        np.bincount(choices[:, place].ravel(), minlength=experts)[:experts].tolist()
        for place in range(choices.shape[1])
    ]


def image_id(image: Image) -> str:
    """What names a model's weights and settings, wherever they lie: layouts do not change it.

    The first 16 bytes, in hex, of SHA-256 over the settings, then the type, size and checksum of
    every tensor outside of expert records, then those of the records in the order of their table.
    """
    dense = [
        (t.layer, t.role, t.type, t.order, t.group, t.rows, t.columns, t.crc32)
        for t in image.tensors
        if not t.is_expert
    ]
    records = [(record.bytes, record.crc32) for record in image.experts]
    content = repr((sorted(image.config.items()), sorted(dense), records))
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def record(
    image: Image,
    text: Text,
    *,
    context: int | None = None,
    workers: int = 1,
    kernels: str = "auto",
    balance_router: int | None = None,
    advance: Callable[[int], None] | None = None,
) -> ExpertTrace:
    """Runs a model over a text and records the experts that its routers choose.

    Parameters
    ----------
    context : int, optional
        Tokens of a window. Default: 512, or the model's context when that is shorter.
    balance_router : int, optional
        As `Engine` takes `balance`.
    advance : callable, optional
        Gets the number of tokens that are done each time.

    Raises
    ------
    TraceError
        For a model without experts.
    EngineError
        For a text without tokens, a token that the model does not have, a context too long.
    """
    layers = image.expert_layers
    if not layers:
        raise TraceError("the model has no experts", file=image.name,
                         hint="trace a mixture-of-experts model")  # fmt: skip
    ids = _checked(image, text.ids)
    if context is not None and context > image.context:
        raise EngineError(f"is {context}", field="context",
                          hint=f"the model was made for up to {image.context}")  # fmt: skip
    window = context or min(WINDOW, image.context)
    events = _events(Engine(image, min(window, len(ids)), workers, _BATCH, kernels=kernels,
                            balance=balance_router, trace=True), ids, advance)  # fmt: skip
    config = image.config
    identities = int(config["identities"])
    experts = int(config["experts"]) - identities
    routing = routing_of(events, experts + identities)
    assert routing is not None
    tokenizer = image.section_bytes("tokenizer")
    return ExpertTrace(
        image=image_id(image),
        tokenizer=hashlib.sha256(tokenizer).hexdigest() if tokenizer is not None else None,
        text=text,
        experts=experts,
        identities=identities,
        top_k=int(config["top_k"]),
        layers=layers,
        record_bytes=tuple(image.experts[m * experts].bytes for m in range(len(layers))),
        window=window,
        choices=_arranged(events, len(ids), layers, int(config["top_k"])),
        routing=routing.as_dict(),
        balance_router=balance_router,
    )


def _checked(image: Image, ids: Sequence[int]) -> NDArray[np.uint32]:
    tokens = as_tokens(list(ids))
    outside = np.flatnonzero(tokens >= image.vocabulary)
    if outside.size:
        raise EngineError(
            f"token id {tokens[outside[0]]} at position {outside[0]} is outside the vocabulary",
            field="tokens", hint=f"ids of this image are 0 to {image.vocabulary - 1}",
        )  # fmt: skip
    return tokens


def _events(
    engine: Engine, ids: NDArray[np.uint32], advance: Callable[[int], None] | None
) -> NDArray[np.void]:
    """Steps and choices of all windows; what else the runtime tells would fill the memory."""
    kept = []
    for start in range(0, len(ids), engine.context):
        engine.reset()
        for at in range(start, min(start + engine.context, len(ids)), _BATCH):
            part = ids[at : min(at + _BATCH, start + engine.context)]
            engine.infer(part)
            events = engine.take_trace()
            kept.append(events[np.isin(events["kind"], _KEPT)])
            if advance:
                advance(len(part))
    return np.concatenate(kept)


def _arranged(
    events: NDArray[np.void], tokens: int, layers: tuple[int, ...], top_k: int
) -> NDArray[np.uint16]:
    """Choices by token, layer and rank. Routers of attention experts, which stay, are left out."""
    found = choices_of(events)
    own = found.layer < ATTENTION
    out = np.full((tokens, len(layers), top_k), 0xFFFF, np.uint16)
    place = np.searchsorted(layers, found.layer[own])
    out[found.token[own], place, found.rank[own]] = found.expert[own]
    if int(own.sum()) != out.size or (out == 0xFFFF).any():
        raise TraceError(f"the runtime told {int(own.sum())} choices of {out.size}",
                         hint="please report it")  # fmt: skip
    return out
