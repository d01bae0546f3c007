# SPDX-License-Identifier: Apache-2.0
"""A request and its outcome: the one loop of `colibri run`, the twin and the demo.

The firmware's runner (emulator/firmware/runner.c) walks the same steps, so that both give the same
tokens and the same checksum.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from colibri.errors import EngineError

if TYPE_CHECKING:
    from colibri.engine import Engine
    from colibri.sampling import Sampling

StopReason = Literal["stop", "length", "context"]
DEFAULT_NEW_TOKENS = 64


@dataclass(frozen=True)
class Request:
    """What to generate, and how to draw.

    Parameters
    ----------
    prompt : sequence of int
        Token ids, at least one.
    sampling : Sampling
        How a token is drawn.
    max_new_tokens : int
        Tokens to generate at most; 0 runs nothing.
    ignore_eos : bool
        Go on after the image's stop ids.
    """

    prompt: Sequence[int]
    sampling: Sampling
    max_new_tokens: int = DEFAULT_NEW_TOKENS
    ignore_eos: bool = False

    def checked(self, *, vocabulary: int, context: int, longest: int) -> Request:
        """The request, with no more new tokens than the context has room for.

        Parameters
        ----------
        vocabulary, longest : int
            Of the model: ids, and the longest context that it was made for.
        context : int
            Tokens that the engine holds.

        Raises
        ------
        EngineError
            For an id outside the vocabulary, an empty prompt, a prompt longer than the context.
        """
        if type(self.max_new_tokens) is not int or self.max_new_tokens < 0:
            raise EngineError(f"is {self.max_new_tokens!r}", field="max_new_tokens",
                              hint="use a whole number from 0")  # fmt: skip
        if not self.prompt:
            raise EngineError("the prompt has no tokens", field="prompt", hint="give at least one")
        for position, token in enumerate(self.prompt):
            if not 0 <= token < vocabulary:
                raise EngineError(
                    f"token id {token} at position {position} is outside the vocabulary",
                    field="tokens",
                    hint=f"ids of this image are 0 to {vocabulary - 1}",
                )
        fits_model = len(self.prompt) <= longest
        if len(self.prompt) > context:
            raise EngineError(
                f"the prompt has {len(self.prompt)} tokens, the context holds {context}",
                field="prompt",
                hint=f"shorten it to {context} tokens"
                + (f", or give a --context of {len(self.prompt)}" if fits_model else ""),
            )
        # The last token of all is drawn and not fed back: it needs no place in the context.
        room = context - len(self.prompt) + 1
        return replace(self, max_new_tokens=min(self.max_new_tokens, room))


@dataclass
class Generation:
    """What came out.  Seconds are measured on this machine."""

    prompt_tokens: int
    tokens: list[int] = field(default_factory=list)  # the stop token included
    stop_reason: StopReason = "length"
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    crc: int = 0

    @property
    def logits_crc32(self) -> str:
        """CRC-32 over the float32 row that each token was chosen from, in order."""
        return f"{self.crc:08x}"

    @property
    def decode_steps(self) -> int:
        """Tokens that were fed back: all but the last."""
        return max(len(self.tokens) - 1, 0)

    def _add(self, token: int, row: bytes, seconds: float) -> None:
        if self.tokens:
            self.decode_seconds += seconds
        else:
            self.prefill_seconds += seconds
        self.tokens.append(token)
        self.crc = zlib.crc32(row, self.crc)


def generate(
    engine: Engine, request: Request, *, on_token: Callable[[int], None] | None = None
) -> Generation:
    """Runs a request on an engine whose sequence 0 is empty.

    Parameters
    ----------
    engine : Engine
        Its context bounds the run.
    request : Request
        Checked against the engine's vocabulary and context here.
    on_token : callable, optional
        Gets each token as it is drawn.
    """
    image = engine.image
    checked = request.checked(
        vocabulary=image.vocabulary, context=engine.context, longest=image.context
    )
    stop_ids = () if request.ignore_eos else image.stop_ids
    out = Generation(len(checked.prompt))
    if checked.max_new_tokens < request.max_new_tokens:
        out.stop_reason = "context"
    if not checked.max_new_tokens:
        return out
    began = time.perf_counter()
    for token, row in engine.stream(checked.prompt, checked.sampling):
        out._add(token, row.astype("<f4", copy=False).tobytes(), time.perf_counter() - began)
        if on_token:
            on_token(token)
        if token in stop_ids:
            out.stop_reason = "stop"
            break
        if len(out.tokens) == checked.max_new_tokens:
            break
        began = time.perf_counter()
    return out
