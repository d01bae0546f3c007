# SPDX-License-Identifier: Apache-2.0
"""`colibri plan`: the memory map of an image on a board, or what would have to change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer
from rich.table import Table
from rich.text import Text

from colibri.cli.common import (
    BatchOption,
    BoardOption,
    ContextOption,
    ImageArgument,
    JsonOption,
    KvOption,
    PagesOption,
    WorkersOption,
    bar,
    command,
    console,
    emit_json,
    percent,
    table,
)
from colibri.cli.streaming import (
    BalanceOption,
    MemoryOption,
    PolicyOption,
    PreferOption,
    PrefetchOption,
    SlotsOption,
    memory_bytes,
    wants_prefetch,
    wants_streaming,
)
from colibri.errors import EXIT_DOES_NOT_FIT
from colibri.units import format_bytes

if TYPE_CHECKING:
    from colibri.planner import Plan, PlanRegion

app = command("Show where every buffer lies in a board's memory, and what fits.")


@app.command()
def plan(
    image: ImageArgument,
    board: BoardOption,
    context: ContextOption = None,
    batch: BatchOption = None,
    workers: WorkersOption = 1,
    kv: KvOption = "f32",
    pages: PagesOption = "4k",
    memory: MemoryOption = None,
    expert_slots: SlotsOption = None,
    policy: PolicyOption = "auto",
    prefetch: PrefetchOption = "auto",
    balance_router: BalanceOption = None,
    prefer_cached: PreferOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show where every buffer lies in a board's memory, and what fits.

    Exit code 0: it fits, 1: it does not, 2: that could not be told.
    """
    from colibri.planner import plan as make_plan

    made = make_plan(
        image,
        board,
        context=context,
        batch=batch,
        workers=workers,
        kv=kv,
        pages=pages,
        streamed=wants_streaming(memory, expert_slots, policy, prefetch),
        memory=memory_bytes(memory),
        expert_slots=expert_slots,
        policy=policy,
        prefetch=wants_prefetch(prefetch),
        balance=balance_router,
        prefer_cached=prefer_cached,
    )
    if as_json:
        emit_json(made.to_json())
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
    out.print(_region_table(made), "")
    limits = ", ".join(f"{name} {value}" for name, value in made.limits.items())
    out.print(Text(f"limits: {limits}", style="dim"))
    if made.experts:
        out.print(Text(f"experts: {made.experts['why']}", style="dim"))
    if made.routing:
        out.print(Text(made.routing["note"], style="dim"))
    if made.fits:
        longest = f"longest context that fits: {made.max_context:,} tokens"
        out.print(f"[bold green]fits[/]: {made.total_bytes:,} bytes for the engine; {longest}")
        return
    out.print(Text("does not fit", style="bold red") + Text(f": {made.advice[0]}"))
    for line in made.advice[1:]:
        out.print(Text(f"  {line}"))


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


def _region_table(made: Plan) -> Table:
    rows = table("Regions", "region", ">size", ">used", ">free", ">", "")
    for region in made.regions:
        rows.add_row(*_region_row(region))
    return rows


def _region_row(region: PlanRegion) -> tuple[str | Text, ...]:
    free = region.size - region.used
    return (
        region.name,
        format_bytes(region.size),
        f"{region.used:,} B",
        format_bytes(free),
        percent(region.used, region.size),
        bar(region.used, region.size),
    )
