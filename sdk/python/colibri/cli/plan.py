# SPDX-License-Identifier: Apache-2.0
"""`colibri plan`: the memory map of an image, or of several, or what would have to change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from colibri.cli.common import (
    BatchOption,
    BoardOption,
    ContextOption,
    HtmlOption,
    JsonOption,
    KvOption,
    PagesOption,
    WorkersOption,
    check_html,
    command,
    console,
    emit_json,
    percent,
    table,
    write_html,
)
from colibri.cli.reserves import (
    ApplicationOption,
    CodeOption,
    parse_application,
    parse_code,
)
from colibri.cli.streaming import (
    BalanceOption,
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
from colibri.errors import EXIT_DOES_NOT_FIT, PlanError
from colibri.units import format_bytes

if TYPE_CHECKING:
    from colibri.joint_plan import ImageBuffer, JointPlan, JointRegion
    from colibri.limits import LimitOptions
    from colibri.planner import Plan, PlanRegion

app = command("Show where every buffer lies in a board's memory, and what fits.")


@app.command()
def plan(
    images: Annotated[
        list[Path],
        typer.Argument(metavar="IMAGE...", help="A packed image, or several side by side."),
    ],
    board: BoardOption,
    context: ContextOption = None,
    batch: BatchOption = None,
    workers: WorkersOption = 1,
    kv: KvOption = "f32",
    pages: PagesOption = "4k",
    memory: MemoryOption = None,
    expert_slots: SlotsOption = None,
    policy: PolicyOption = "auto",
    pin: PinOption = None,
    prefetch: PrefetchOption = "auto",
    balance_router: BalanceOption = None,
    prefer_cached: PreferOption = None,
    application: ApplicationOption = None,
    code: CodeOption = None,
    html: HtmlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show where every buffer lies in a board's memory, and what fits.

    Several images are in memory at once, each with its own cache; what they use during a call they
    share.

    Exit code 0: it fits, 1: it does not, 2: that could not be told.
    """
    from colibri.image import Image
    from colibri.joint_plan import JointPlan, plan_together
    from colibri.planner import plan as plan_one

    check_html(html)
    made: Plan | JointPlan
    streamed = wants_streaming(memory, expert_slots, policy, prefetch, pin=pin)
    limits: LimitOptions = {
        "batch": batch,
        "workers": workers,
        "kv": kv,
        "pages": pages,
        "streamed": streamed,
        "memory": memory_bytes(memory),
        "expert_slots": expert_slots,
        "policy": policy,
        "prefetch": wants_prefetch(prefetch),
        "balance": balance_router,
        "prefer_cached": prefer_cached,
        "application": parse_application(application),
        "code": parse_code(code),
    }
    if len(images) == 1:
        opened = Image(images[0])
        limits["pins"] = pins_for(opened, pin) if streamed else ()
        made = plan_one(opened, board, context, **limits)
    elif pin is not None:
        raise PlanError("--pin is for one image", hint="pack each with --pin TRACE instead")
    else:
        made = plan_together(images, board, context, **limits)
    if html is not None:
        from colibri.plan_pictures import plan_section
        from colibri.report.page import Page

        section = plan_section(made, board, [path.name for path in images])
        write_html(html, Page.of(section))
    if as_json:
        emit_json(made.to_json())
    elif isinstance(made, JointPlan):
        _show_joint(made)
    else:
        _show(made)
    if not made.fits:
        raise typer.Exit(EXIT_DOES_NOT_FIT)


def _show(made: Plan) -> None:
    out = console()
    if made.fits:
        out.print(_map_table(made), "")
    else:
        out.print(_unplaced_table(made), "")
    _show_regions(out, made)
    limits = ", ".join(f"{name} {value}" for name, value in made.limits.items())
    out.print(Text(f"limits: {limits}", style="dim"))
    _show_reserves(made)
    if made.experts:
        out.print(Text(f"experts: {made.experts['why']}", style="dim"))
    if made.routing:
        out.print(Text(made.routing["note"], style="dim"))
    if made.fits:
        longest = f"longest context that fits: {made.max_context:,} tokens"
        tables = f" and {made.table_bytes:,} for the image's tables" if made.experts else ""
        size = f"{made.total_bytes:,} bytes for the engine{tables}"
        out.print(f"[bold green]fits[/]: {size}; {longest}")
        return
    out.print(Text("does not fit", style="bold red") + Text(f": {made.advice[0]}"))
    for line in made.advice[1:]:
        out.print(Text(f"  {line}"))


def _show_reserves(made: Plan | JointPlan) -> None:
    """What is kept for the rest of the program, and for code."""
    for line in made.memory.notes():
        console().print(Text(line, style="dim"))


def _show_joint(made: JointPlan) -> None:
    out = console()
    if made.fits:
        out.print(_joint_table(made), "")
        out.print(_images_table(made), "")
    _show_regions(out, made)
    _show_reserves(made)
    if made.routing:
        out.print(Text(made.routing["note"], style="dim"))
    if made.fits:
        out.print(
            f"[bold green]fits[/]: {made.total_bytes:,} bytes for the engines; sharing saves "
            f"{made.saved_bytes:,}"
        )
        return
    out.print(Text("does not fit", style="bold red") + Text(f": {made.advice[0]}"))


def _joint_table(made: JointPlan) -> Table:
    """By address; what an image shares is one row."""
    rows = table(f"Memory map on {made.board}", "region", ">offset", ">bytes", "image", "buffer",
                 "why")  # fmt: skip
    for region in made.regions:
        kept = [row for row in region.buffers if not row.shared]
        shared = sorted((row for row in region.buffers if row.shared), key=lambda row: row.image)
        for image, of_image in groupby(shared, key=lambda row: row.image):
            kept.append(_one_row(image, list(of_image)))
        for index, row in enumerate(sorted(kept, key=lambda row: (row.offset, row.image))):
            name = "" if index else region.name
            rows.add_row(name, f"{row.offset:#x}", f"{row.bytes:,}", row.image, row.name, row.why)
        if region.buffers:
            rows.add_section()
    return rows


def _one_row(image: str, rows: list[ImageBuffer]) -> ImageBuffer:
    why = f"{len(rows)} buffers, used during a call"
    start = min(row.offset for row in rows)
    return replace(rows[0], name="shared", offset=start, bytes=sum(r.bytes for r in rows), why=why)


def _images_table(made: JointPlan) -> Table:
    rows = table("Images", "image", ">own", ">shared", ">engine", "")
    for part in made.images:
        experts = part.experts["why"] if part.experts else ""
        rows.add_row(part.image, f"{part.own_bytes:,}", f"{part.shared_bytes:,}",
                     f"{part.bytes:,}", experts)  # fmt: skip
    return rows


def _map_table(made: Plan) -> Table:
    """Every buffer of every region in use, by address."""
    rows = table(f"Memory map on {made.board}", "region", ">offset", ">bytes", "buffer", "why")
    for region in made.regions:
        for index, row in enumerate(region.buffers):
            name = "" if index else region.name
            rows.add_row(name, f"{row.offset:#x}", f"{row.bytes:,}", row.name, row.why)
        if region.buffers:
            rows.add_section()
    return rows


def _unplaced_table(made: Plan) -> Table:
    rows = table(f"Buffers without a place on {made.board}", ">bytes", "buffer", "why")
    for row in sorted(made.unplaced, key=lambda row: -row.bytes):
        rows.add_row(f"{row.bytes:,}", row.name, row.why)
    return rows


def _show_regions(out: Console, made: Plan | JointPlan) -> None:
    from colibri.plan_pictures import bars_of
    from colibri.report.bars import legend, terminal_bar

    rows = table("Regions", "region", ">size", ">used", ">free", ">", "")
    bars = bars_of(made)
    regions: Sequence[PlanRegion | JointRegion] = made.regions
    for region, bar in zip(regions, bars, strict=True):
        rows.add_row(
            region.name,
            format_bytes(region.size),
            f"{region.used:,} B",
            format_bytes(region.size - region.used),
            percent(region.used, region.size),
            terminal_bar(bar),
        )
    out.print(rows, legend(bars), "", sep="\n")
