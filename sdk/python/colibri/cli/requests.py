# SPDX-License-Identifier: Apache-2.0
"""The options of `run` and `emulate` that say what to generate, and how they become a request."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from colibri.errors import TokenizerError
from colibri.generate import Request

if TYPE_CHECKING:
    from colibri.image import Image

SEED_MAX = 2**64 - 1

PromptOption = Annotated[
    str | None, typer.Option("--prompt", metavar="TEXT", help="Text to continue.")
]
TokensOption = Annotated[
    str | None, typer.Option("--tokens", metavar="1,2,3", help="Token ids to continue.")
]
MaxNewOption = Annotated[
    int, typer.Option("--max-new-tokens", min=0, max=2**31 - 1, help="Tokens to generate at most.")
]
IgnoreEosOption = Annotated[
    bool, typer.Option("--ignore-eos", help="Go on after the image's stop tokens.")
]
TemperatureOption = Annotated[
    float, typer.Option("--temperature", help="0: always the best token. Higher: more variety.")
]
TopKOption = Annotated[
    int, typer.Option("--top-k", min=0, max=2**32 - 1, help="Draw among the K best. 0: all.")
]
TopPOption = Annotated[
    float,
    typer.Option("--top-p", help="Draw among the smallest set with this probability. 1: all."),
]
SeedOption = Annotated[
    int, typer.Option("--seed", min=0, max=SEED_MAX, help="Start of the random numbers.")
]
KernelsOption = Annotated[
    str, typer.Option("--kernels", metavar="NAME", help="Kernel table: auto, ref, avx2, ...")
]

_ID = re.compile(r"[0-9]{1,10}", re.ASCII)


def parse_tokens(text: str) -> list[int]:
    """Token ids from ``1,2,3``; spaces are allowed."""
    words = [word.strip() for word in text.split(",")]
    if words == [""]:
        raise typer.BadParameter("is empty; write ids as in 1,2,3", param_hint="--tokens")
    for position, word in enumerate(words):
        if not _ID.fullmatch(word):
            raise typer.BadParameter(
                f"{word[:40]!r} at position {position} is not a token id; "
                "write whole numbers from 0, as in 1,2,3",
                param_hint="--tokens",
            )
    return [int(word) for word in words]


def build_request(
    image: Image,
    *,
    prompt: str | None,
    tokens: str | None,
    max_new_tokens: int,
    ignore_eos: bool,
    temperature: float,
    top_k: int,
    top_p: float,
    seed: int,
) -> Request:
    """The request of a command line.  `Sampling` refuses NaN and values out of range."""
    from colibri.sampling import Sampling

    return Request(
        prompt=_prompt_ids(image, prompt, tokens),
        sampling=Sampling(temperature, top_k, top_p, seed),
        max_new_tokens=max_new_tokens,
        ignore_eos=ignore_eos,
    )


def _prompt_ids(image: Image, prompt: str | None, tokens: str | None) -> list[int]:
    if (prompt is None) == (tokens is None):
        raise typer.BadParameter(
            "give exactly one of the two: text, or ids as in 1,2,3",
            param_hint="--prompt / --tokens",
        )
    if tokens is not None:
        return parse_tokens(tokens)
    assert prompt is not None
    if not image.has_tokenizer:
        raise TokenizerError(
            "the image has no tokenizer, so --prompt cannot be read",
            file=image.name,
            hint="use --tokens with token ids, as in --tokens 1,2,3",
        )
    return image.tokenizer.encode(prompt)
