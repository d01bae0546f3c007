# SPDX-License-Identifier: Apache-2.0
"""`colibri demo`: the whole way of the shipped model, from checkpoint to firmware, in one table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from colibri.cli.common import (
    VERBATIM,
    JsonOption,
    command,
    console,
    emit_json,
    note,
    progress,
    table,
)
from colibri.errors import EXIT_DOES_NOT_FIT

if TYPE_CHECKING:
    from colibri.cli.demo_steps import Demo, Step

app = command("Pack, plan, run, emulate, build and size the shipped model, step by step.")

_BYTES = (
    "bytes: of the image (pack, inspect, run), of the engine's memory (plan, emulate),\n"
    "of code and constants (build), of the whole firmware with its image (size)"
)
_MARKS = {True: Text("✓", style="bold green"), False: Text("✗", style="bold red")}


@app.command()
def demo(
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="Folder for images and firmware.")
    ] = Path("demo"),
    as_json: JsonOption = False,
) -> None:
    """Pack, plan, run, emulate, build and size the shipped model, step by step.

    Exit code 0: everything fits and every machine gave the same tokens, 1: not so, 2: something
    is missing.
    """
    from colibri.cli.demo_steps import Demo, check_extras

    check_extras()
    run = Demo(output)
    with progress("demo") as begin:
        done = begin(len(run.plan_of_steps))
        for step in run.steps():
            _say(step)
            done(1)
    if as_json:
        emit_json(_fields(run))
    else:
        _show(run)
    if not run.ok:
        raise typer.Exit(EXIT_DOES_NOT_FIT)


def _say(step: Step) -> None:
    note(f"  {step.what:<9} {step.seconds:5.1f} s  {step.where}", style="dim", markup=VERBATIM)


def _fields(run: Demo) -> dict[str, Any]:
    return {
        "ok": run.ok,
        "folder": str(run.folder),
        "prompt": run.prompt,
        "tokens": run.reference.tokens,
        "text": run.text,
        "logits_crc32": run.reference.logits_crc32,
        "steps": [step.to_json() for step in run.done],
    }


def _show(run: Demo) -> None:
    out = console()
    text = Text.assemble((run.prompt, "bold"), run.text)
    out.print(Panel(text, title="what it says", title_align="left", border_style="dim"), "")
    out.print(_table(run), "")
    crc = run.reference.logits_crc32
    verdict = (
        Text("Everything fits, and every machine gave the same tokens", style="bold green")
        if run.ok
        else Text("Not everything is well: see the rows with ✗", style="bold red")
    )
    out.print(Text.assemble(verdict, (f" (logits {crc}).", "dim")))
    out.print(Text(f"Images and firmware are in {run.folder}.", style="dim"))


def _table(run: Demo) -> Table:
    rows = table(
        "From checkpoint to board",
        "step",
        "where",
        "result",
        ">bytes",
        "same tokens",
        caption=_BYTES,
    )
    for step in run.done:
        same = Text("sets them" if step.what == "run" else "", style="dim")
        if step.same_tokens is not None:
            same = _MARKS[step.same_tokens]
        mark = Text("") if step.ok else Text("✗ ", style="bold red")
        size = "" if step.bytes is None else f"{step.bytes:,}"
        rows.add_row(step.what, step.where, mark + Text(step.result), size, same)
    return rows
