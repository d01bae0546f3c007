# SPDX-License-Identifier: Apache-2.0
"""`colibri bench`: speed on this machine, against what the machine can do at best."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from colibri.bench.machine import busy
from colibri.bench.measure import Bench, measure
from colibri.bench.synthetic import Routing, Synthetic, make_synthetic
from colibri.bench.trace import Feed
from colibri.cli.common import (
    VERBATIM,
    ContextOption,
    JsonOption,
    KvOption,
    command,
    console,
    emit_json,
    note,
    progress,
    table,
)
from colibri.cli.pack import Quant
from colibri.cli.requests import SEED_MAX, KernelsOption
from colibri.units import format_bytes, parse_size
from colibri.weight_order import HOST, order_of_target

app = command("Measure speed on this machine, against what the machine can do at best.")


@app.command()
def bench(
    image: Annotated[
        Path | None, typer.Argument(metavar="IMAGE", help="A packed image; or give --config.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="A config.json: random weights are made."),
    ] = None,
    quant: Annotated[
        Quant | None, typer.Option("--quant", help="Type of the random weights. Default: q4.")
    ] = None,
    group: Annotated[
        int | None, typer.Option("--group", help="Columns that share a scale: 32, 64 or 128.")
    ] = None,
    routing: Annotated[
        Routing | None,
        typer.Option("--routing", help="How random weights choose experts. Default: uniform."),
    ] = None,
    layers: Annotated[
        int | None, typer.Option("--layers", min=1, help="Only the first layers of the config.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--target", metavar="BOARD", help="Whose order of weights. Default: host."),
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option("--keep", metavar="IMAGE", help="Keep the random image, or use it again."),
    ] = None,
    prompt: Annotated[
        int, typer.Option("--prompt", min=1, max=4096, help="Tokens of the prefill.")
    ] = 128,
    new: Annotated[int, typer.Option("--new", min=1, help="Tokens generated after it.")] = 32,
    threads: Annotated[
        str | None,
        typer.Option("--threads", metavar="1,2", help="Thread counts. Default: 1 and all cores."),
    ] = None,
    rounds: Annotated[
        int, typer.Option("--rounds", min=1, help="Measurements of each figure.")
    ] = 5,
    context: ContextOption = None,
    batch: Annotated[
        int | None, typer.Option("--batch", min=1, help="Tokens a step. Default: the whole prompt.")
    ] = None,
    kv: KvOption = "f32",
    kernels: KernelsOption = "auto",
    seed: Annotated[
        int, typer.Option("--seed", min=0, max=SEED_MAX, help="Of all that is random.")
    ] = 0,
    probe: Annotated[
        str | None,
        typer.Option(
            "--probe",
            metavar="SIZE",
            help="Memory that the bandwidth probe reads. "
            "Default: 4 times the last-level cache, 512 MiB or more.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure speed on this machine, against what the machine can do at best.

    Decode is held against the read bandwidth, prefill against the int8 peak, both measured in
    the same rounds. Bytes and multiply-adds are the runtime's own trace.
    """
    made_only = {"--quant": quant, "--group": group, "--routing": routing, "--layers": layers,
                 "--target": target, "--keep": keep}  # fmt: skip
    _check_source(image, config, made_only)
    what = Bench(prompt, new, context, kv, batch, kernels, _threads(threads), rounds, seed,
                 parse_size(probe) if probe else None)  # fmt: skip
    feed: Feed = "greedy" if image else "random"
    wish = None
    if config is not None:
        order = order_of_target(target or HOST)
        wish = Synthetic(config, quant, group, routing or "uniform", layers, seed, order)
    with _image(image, wish, keep) as file, progress("measuring") as bar:
        fields = measure(file, what, feed, bar(what.steps))
    if wish is not None and keep is None:
        fields["image"]["file"] = None  # it is gone
    fields["image"]["config"] = str(config) if config else None
    if as_json:
        emit_json(fields)
    else:
        _show(fields)


def _check_source(image: Path | None, config: Path | None, made_only: dict[str, Any]) -> None:
    if (image is None) == (config is None):
        raise typer.BadParameter("give exactly one of the two", param_hint="IMAGE / --config")
    for option, value in made_only.items():
        if image is not None and value is not None:
            raise typer.BadParameter("is for random weights; it needs --config", param_hint=option)


def _threads(text: str | None) -> tuple[int, ...]:
    if text is None:
        return Bench.default_threads()
    words = [word.strip() for word in text.split(",")]
    if not all(re.fullmatch(r"[0-9]{1,4}", word, re.ASCII) and int(word) for word in words):
        raise typer.BadParameter("write thread counts from 1, as in 1,2", param_hint="--threads")
    return tuple(dict.fromkeys(map(int, words)))


@contextlib.contextmanager
def _image(image: Path | None, wish: Synthetic | None, keep: Path | None) -> Iterator[Path]:
    """The image to measure; one of random weights is removed afterwards unless it is kept."""
    if wish is None:
        assert image is not None
        yield image
        return
    with contextlib.ExitStack() as stack:
        if keep is None:
            folder = tempfile.TemporaryDirectory(
                prefix="colibri-bench-", ignore_cleanup_errors=True
            )
            keep = Path(stack.enter_context(folder)) / "random.colibri"
        with progress("making random weights") as bar:
            make_synthetic(wish, keep, bar)
        yield keep


def _show(fields: dict[str, Any]) -> None:
    out = console()
    image, machine, settings = fields["image"], fields["machine"], fields["settings"]
    family = image["family"] or "unknown family"
    name = image["config"] or image["file"]
    out.print(f"{name}: {format_bytes(image['bytes'])}, {family}", markup=VERBATIM,
              soft_wrap=True)  # fmt: skip
    out.print(
        f"{machine['cpu']}, {machine['cores']} cores; kernels {settings['kernels']}, "
        f"KV {settings['kv']}, context {settings['context']}\n"
    )
    out.print(_speed_table(fields), "")
    out.print(_machine_table(machine), "")
    out.print(_facts(fields), soft_wrap=True)
    if said := busy(machine):
        note(said, style="yellow")
    if image["bytes"] <= machine["last_level_cache_bytes"]:
        note("note: the weights fit the last-level cache, so the share of the read bandwidth "
             "says little", style="yellow")  # fmt: skip


def _speed_table(fields: dict[str, Any]) -> Any:
    settings = fields["settings"]
    rows = table(
        "Speed, measured", ">threads", "what", ">tokens/s", ">least", ">most", ">rate",
        ">of the machine's",
        caption=f"medians of {settings['rounds']} rounds; prefill of {settings['prompt']} tokens, "
        f"{settings['new']} after it",
    )  # fmt: skip
    for count, each in fields["threads"].items():
        decode, prefill = each["decode"], each["prefill"]
        rows.add_row(count, "decode", *_rates(decode), f"{decode['gb_s']:.2f} GB/s",
                     f"{100 * decode['share_of_read_bandwidth']:.1f} % reading")  # fmt: skip
        rows.add_row(count, "prefill", *_rates(prefill), f"{prefill['gmac_s']:.1f} GMAC/s",
                     f"{100 * prefill['share_of_int8_peak']:.1f} % int8")  # fmt: skip
    return rows


def _rates(speed: dict[str, float]) -> list[str]:
    return [f"{speed[name]:.2f}" for name in ("tok_s", "tok_s_least", "tok_s_most")]


def _machine_table(machine: dict[str, Any]) -> Any:
    probe = machine["read_probe"]
    rows = table(
        "The machine, measured in the same rounds", ">threads", ">read GB/s", ">best", "pages",
        ">int8 GMAC/s", ">best",
        caption=f"{probe['loads']} loads of {format_bytes(probe['bytes'])}; "
        f"{machine['int8_instruction']}",
    )  # fmt: skip
    for count, read in machine["read_bandwidth"].items():
        peak = machine["int8_peak"][count]
        rows.add_row(count, f"{read['gb_s']:.2f}", f"{read['gb_s_most']:.2f}", read["pages"],
                     f"{peak['gmac_s']:.1f}", f"{peak['gmac_s_most']:.1f}")  # fmt: skip
    return rows


def _facts(fields: dict[str, Any]) -> str:
    traced, start, routing = fields["traced"], fields["start"], fields["routing"]
    huge = fields["machine"]["weights_in_huge_pages_bytes"]
    lines = [
        f"a token of decode (traced): {traced['decode_bytes_per_token']:,} bytes, "
        f"{traced['decode_macs_per_token']:,} multiply-adds",
        f"from open to the first token (measured): {1e3 * start['open_to_first_token_s']:.1f} ms; "
        f"mapping and touching the file: {1e3 * start['map_and_touch_s']:.1f} ms",
        f"weights in huge pages: {format_bytes(huge)}",
        "routing: none, the model is dense" if routing is None else _routing_line(routing),
    ]
    return "\n".join(lines)


def _routing_line(routing: dict[str, Any]) -> str:
    same, chance = 100 * routing["same_as_previous"], 100 * routing["same_by_chance"]
    return (
        f"routing (traced): {routing['kind']}; {same:.1f} % of a token's experts are the previous "
        f"token's ({chance:.1f} % by chance), entropy {routing['entropy_bits']:.2f} of "
        f"{routing['entropy_most_bits']:.2f} bits"
    )
