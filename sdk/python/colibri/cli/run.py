# SPDX-License-Identifier: Apache-2.0
"""`colibri run`: run an image on this machine."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from colibri.cli.common import (
    BatchOption,
    ContextOption,
    ImageArgument,
    JsonOption,
    KvOption,
    PagesOption,
    WorkersOption,
    command,
    emit_json,
    note,
    printable,
)
from colibri.cli.requests import (
    IgnoreEosOption,
    KernelsOption,
    MaxNewOption,
    PromptOption,
    SeedOption,
    TemperatureOption,
    TokensOption,
    TopKOption,
    TopPOption,
    build_request,
)
from colibri.cli.streaming import (
    BalanceOption,
    DirectOption,
    MemoryOption,
    PinOption,
    PolicyOption,
    PreferOption,
    PrefetchOption,
    SlotsOption,
    memory_bytes,
    pins_for,
    wants_prefetch,
    wants_streaming,
)
from colibri.generate import DEFAULT_NEW_TOKENS, Generation, generate

if TYPE_CHECKING:
    from colibri.engine import Engine
    from colibri.image import Pages
    from colibri.tokenizer import Tokenizer

app = command("Run an image on this machine and print what it says.")

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@app.command()
def run(
    image: ImageArgument,
    prompt: PromptOption = None,
    tokens: TokensOption = None,
    max_new_tokens: MaxNewOption = DEFAULT_NEW_TOKENS,
    ignore_eos: IgnoreEosOption = False,
    temperature: TemperatureOption = 0.0,
    top_k: TopKOption = 0,
    top_p: TopPOption = 1.0,
    seed: SeedOption = 0,
    workers: WorkersOption = 1,
    kernels: KernelsOption = "auto",
    verify: Annotated[bool, typer.Option("--verify", help="Check every weight first.")] = False,
    context: ContextOption = None,
    batch: BatchOption = None,
    kv: KvOption = "f32",
    pages: PagesOption = "4k",
    memory: MemoryOption = None,
    expert_slots: SlotsOption = None,
    policy: PolicyOption = "auto",
    pin: PinOption = None,
    prefetch: PrefetchOption = "auto",
    balance_router: BalanceOption = None,
    prefer_cached: PreferOption = None,
    direct: DirectOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run an image on this machine and print what it says."""
    from colibri.engine import Engine, check_pages
    from colibri.image import Image

    streamed = wants_streaming(memory, expert_slots, policy, prefetch, direct, pin)
    check_pages(pages, streamed)
    opened = Image(image, map=not streamed, pages=pages)
    request = build_request(
        opened,
        prompt=prompt,
        tokens=tokens,
        max_new_tokens=max_new_tokens,
        ignore_eos=ignore_eos,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
    )
    if verify:
        opened.verify()
    if streamed:
        opened.read_ahead(direct=direct)
    pins = pins_for(opened, pin) if streamed else []
    engine = Engine(
        opened,
        context,
        workers,
        batch,
        kv,
        kernels,
        weights="streamed" if streamed else "mapped",
        memory=memory_bytes(memory),
        expert_slots=expert_slots,
        policy=policy,
        pins=pins,
        prefetch=wants_prefetch(prefetch),
        balance=balance_router,
        prefer_cached=prefer_cached,
    )
    tokenizer = opened.tokenizer if opened.has_tokenizer else None
    writer = None if as_json else TextWriter(tokenizer)
    done = generate(engine, request, on_token=writer.token if writer else None)
    if writer:
        writer.close()
        note(_summary(done, engine, workers), style="dim")
        if streamed:
            note(_experts_summary(engine), style="dim")
        if pins and not engine.experts.pinned:
            note("nothing is pinned: a token needs all slots; more --expert-slots leave room")
        if engine.routing:
            note(engine.routing["note"], style="dim")
        if pages == "huge":
            note(f"pages: {opened.pages}", style="dim")
    else:
        emit_json(result_fields(done, tokenizer) | _run_fields(done, engine, workers, streamed))


def result_fields(done: Generation, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """What `run` and `emulate` both print."""
    return {
        "tokens": done.tokens,
        "text": tokenizer.decode(done.tokens) if tokenizer else None,
        "logits_crc32": done.logits_crc32,
        "stop_reason": done.stop_reason,
        "prompt_tokens": done.prompt_tokens,
    }


def _run_fields(done: Generation, engine: Engine, workers: int, streamed: bool) -> dict[str, Any]:
    arena, tables = engine.high_water(), engine.image.meta_bytes if streamed else 0
    return {
        "kernels": engine.kernels,
        "workers": workers,
        "context": engine.context,
        "pages": _pages_fields(engine.image.pages),
        "memory": {"engine_bytes": arena, "table_bytes": tables, "bytes": arena + tables},
        "experts": engine.experts._asdict() if engine.experts.slots else None,
        "routing": engine.routing,
        "measured": {
            "prefill_tok_s": _rate(done.prompt_tokens, done.prefill_seconds),
            "decode_tok_s": _rate(done.decode_steps, done.decode_seconds),
        },
    }


def _pages_fields(pages: Pages) -> dict[str, Any]:
    fields = pages._asdict()
    return fields | {"load_seconds": round(fields["load_seconds"], 6)}


def _rate(count: int, seconds: float) -> float | None:
    return round(count / seconds, 3) if count and seconds > 0 else None


def _summary(done: Generation, engine: Engine, workers: int) -> str:
    prefill = _rate(done.prompt_tokens, done.prefill_seconds)
    decode = _rate(done.decode_steps, done.decode_seconds)
    speeds = [
        f"{what} {rate:,.1f} tok/s"
        for what, rate in (("prompt", prefill), ("generation", decode))
        if rate is not None
    ]
    return (
        f"{done.prompt_tokens} + {len(done.tokens)} tokens, stopped by {done.stop_reason} · "
        f"measured: {', '.join(speeds) or 'nothing'} · {engine.kernels}, "
        f"{workers} worker{'s' * (workers > 1)} · logits {done.logits_crc32}"
    )


def _experts_summary(engine: Engine) -> str:
    experts = engine.experts
    asked = experts.hits + experts.misses
    pinned = f", {experts.pinned} of them for pinned experts" if experts.pinned else ""
    guessed = ""
    if experts.prefetched:
        guessed = (
            f", {experts.prefetched} reads on a guess of which {experts.prefetched_used} were used"
            f" and {experts.prefetched_wasted_bytes:,} bytes wasted"
        )
    return (
        f"experts: {experts.slots} slots{pinned}, {experts.policy} · counted: {experts.hits} hits, "
        f"{experts.misses} misses ({experts.hits / max(asked, 1):.1%} hits), "
        f"{experts.bytes_read:,} bytes read{guessed} · engine {engine.high_water():,} bytes, "
        f"tables of the image {engine.image.meta_bytes:,}"
    )


class TextWriter:
    """Prints tokens as they come: text, or ids where the image has no tokenizer.

    A token may end in the middle of a character, so the text so far is decoded each time and what
    is complete and new is printed.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._printed = 0

    def token(self, token: int) -> None:
        """Prints one token."""
        self._tokens.append(token)
        if self._tokenizer is None:
            self._write(f"{',' * (len(self._tokens) > 1)}{token}")
            return
        text = self._tokenizer.decode(self._tokens)
        complete = text.rstrip(_REPLACEMENT)
        self._write(complete[self._printed :])
        self._printed = max(self._printed, len(complete))

    def close(self) -> None:
        """Prints what is left, and ends the line."""
        if self._tokenizer is not None:
            self._write(self._tokenizer.decode(self._tokens)[self._printed :])
        self._write("\n")

    def _write(self, text: str) -> None:
        sys.stdout.write(printable(text))
        sys.stdout.flush()
