# SPDX-License-Identifier: Apache-2.0
"""`colibri trace`: record which experts a model uses on a text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from colibri.cli.common import (
    ContextOption,
    ImageArgument,
    JsonOption,
    WorkersOption,
    command,
    console,
    emit_json,
    progress,
    table,
)
from colibri.cli.requests import KernelsOption, PromptOption, TokensOption, parse_tokens
from colibri.cli.streaming import BalanceOption
from colibri.errors import TokenizerError, TraceError

if TYPE_CHECKING:
    from colibri.experts.trace import ExpertTrace, Text
    from colibri.image import Image

app = command("Record which experts a model uses on a text.")

TEXT_BYTES_MAX = 1 << 26
_HOTTEST = 4


@app.command()
def trace(
    image: ImageArgument,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="TRACE", help="The trace to write, as JSON.")
    ],
    text: Annotated[
        Path | None,
        typer.Option(
            "--text", metavar="FILE", help="A UTF-8 text, or a .json file with a list of token ids."
        ),
    ] = None,
    prompt: PromptOption = None,
    tokens: TokensOption = None,
    first: Annotated[
        int | None, typer.Option("--first", min=1, help="No more than so many tokens of it.")
    ] = None,
    context: ContextOption = None,
    workers: WorkersOption = 1,
    kernels: KernelsOption = "auto",
    balance_router: BalanceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Record which experts a model uses on a text.

    The model reads the text in windows of --context tokens (default: 512, or the model's own).
    `colibri cache-study` replays the trace.
    """
    from colibri.experts.trace import record
    from colibri.experts.trace_file import write_trace
    from colibri.image import Image

    opened = Image(image)
    read = _text(opened, text, prompt, tokens).first(first)
    with progress("tracing") as begin:
        made = record(opened, read, context=context, workers=workers, kernels=kernels,
                      balance_router=balance_router, advance=begin(len(read.ids)))  # fmt: skip
    write_trace(made, output)
    if as_json:
        emit_json(_fields(made, output))
    else:
        _show(made, output)


def _text(image: Image, file: Path | None, prompt: str | None, tokens: str | None) -> Text:
    from colibri.experts.trace import Text

    if sum(given is not None for given in (file, prompt, tokens)) != 1:
        raise typer.BadParameter(
            "give exactly one of the three", param_hint="--text / --prompt / --tokens"
        )
    if tokens is not None:
        return Text.of_ids(parse_tokens(tokens))
    if file is not None and file.suffix == ".json":
        return Text.of_ids(_listed(file))
    if not image.has_tokenizer:
        raise TokenizerError(
            "the image has no tokenizer, so a text cannot be read",
            file=image.name,
            hint="use --tokens with token ids, or --text with a .json list of them",
        )
    return Text.of_text(prompt if file is None else _decoded(file), image)  # type: ignore[arg-type]


def _decoded(file: Path) -> str:
    try:
        return _content(file).decode("utf-8")
    except UnicodeDecodeError as error:
        raise TraceError(f"is not UTF-8 at byte {error.start}", file=file,
                         hint="give a text in UTF-8") from error  # fmt: skip


def _listed(file: Path) -> list[int]:
    try:
        ids = json.loads(_content(file))
    except (ValueError, RecursionError) as error:
        raise TraceError(f"is not JSON: {error}", file=file, hint="write [1, 2, 3]") from error
    if not isinstance(ids, list) or any(type(each) is not int for each in ids):
        raise TraceError("is not a list of token ids", file=file, hint="write [1, 2, 3]")
    return ids


def _content(file: Path) -> bytes:
    if not file.is_file():
        what = "does not exist" if not file.exists() else "is a folder or a device"
        raise TraceError(what, file=file, hint="give a UTF-8 text, or a .json list of token ids")
    try:
        if file.stat().st_size > TEXT_BYTES_MAX:
            raise TraceError("is too long", file=file, hint=f"valid are {TEXT_BYTES_MAX:,} bytes")
        return file.read_bytes()
    except OSError as error:
        raise TraceError(error.strerror or "cannot be read", file=file) from error


def _fields(made: ExpertTrace, file: Path) -> dict[str, Any]:
    return {
        "kind": "counted",
        "trace": str(file),
        "image": made.image,
        "text": {"source": made.text.source, "sha256": made.text.sha256},
        "tokens": made.tokens,
        "window": made.window,
        "layers": list(made.layers),
        "experts": made.experts,
        "top_k": made.top_k,
        "uses": sum(map(sum, made.heat)),
        "record_bytes": list(made.record_bytes),
        "routing": made.routing,
        "balance_router": made.balance_router,
        "heat": {"layers": made.heat},
    }


def _show(made: ExpertTrace, file: Path) -> None:
    out = console()
    rows = table(
        "Expert use, counted", ">layer", ">experts used", f"the {_HOTTEST} hottest (share)",
        caption=f"{made.tokens:,} tokens, {made.top_k} of {made.experts} experts each, "
        f"windows of {made.window}",
    )  # fmt: skip
    for layer, counts in zip(made.layers, made.heat, strict=True):
        total = sum(counts) or 1
        order = sorted(range(len(counts)), key=lambda x: -counts[x])[:_HOTTEST]
        hot = ", ".join(f"{x} ({100 * counts[x] / total:.1f} %)" for x in order)
        rows.add_row(str(layer), f"{sum(map(bool, counts))} of {made.experts}", hot)
    out.print(rows, "")
    routing = made.routing
    same, chance = 100 * routing["same_as_previous"], 100 * routing["same_by_chance"]
    out.print(
        f"routing: {routing['kind']}; {same:.1f} % of a token's experts are the previous token's "
        f"({chance:.1f} % by chance), entropy {routing['entropy_bits']:.2f} of "
        f"{routing['entropy_most_bits']:.2f} bits",
        soft_wrap=True,
    )
    if made.balance_router is not None:
        out.print(f"router: load-balancing, from {made.balance_router} choices in a row on; not "
                  "the model's own", soft_wrap=True)  # fmt: skip
    out.print(f"written: {file}; next: colibri cache-study {file}", markup=False, soft_wrap=True)
