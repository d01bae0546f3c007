# SPDX-License-Identifier: Apache-2.0
"""`colibri boards`: list, show, check board files, print their JSON Schema.

With ``--json`` each command prints one object, "schema" first, whatever its exit code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from colibri.boards import (
    Accelerator,
    Board,
    Figure,
    Region,
    check_board_file,
    list_boards,
    load_board,
)
from colibri.boards.schema import board_schema, schema_text
from colibri.cli.common import VERBATIM, JsonOption, command, console, emit_json, note, table
from colibri.errors import EXIT_BAD_INPUT, BoardError, Problem
from colibri.text_files import write_text
from colibri.units import format_bytes

app = command("List, show and check board files.")


@app.callback(invoke_without_command=True)
def boards(context: typer.Context, as_json: JsonOption = False) -> None:
    """List the boards when no command is given."""
    if context.invoked_subcommand is None:
        list_command(as_json)


@app.command("list")
def list_command(as_json: JsonOption = False) -> None:
    """List the boards that come with the package."""
    found = [load_board(board) for board in list_boards()]
    if as_json:
        emit_json({"boards": [_summary(board) for board in found]})
        return
    listing = table("Boards", "id", "name", "os", "cores", ">RAM", "target")
    for board in found:
        ram = format_bytes(_ram(board))
        cores = ", ".join(f"{core.count} x {core.cpu}" for core in board.cores)
        listing.add_row(*_cells(board.id, board.name, board.os, cores, ram, board.firmware.target))
    console().print(listing)


@app.command("show")
def show_command(
    board: Annotated[str, typer.Argument(help="Board id, or path of a board file.")],
    as_json: JsonOption = False,
) -> None:
    """Show one board, and where each of its numbers comes from."""
    loaded = load_board(board)
    if as_json:
        emit_json({"board": loaded.model_dump(), "warnings": list(loaded.warnings)})
        return
    for part in (_head(loaded), _region_table(loaded), _source_table(loaded)):
        console().print(part, "")
    _note_warnings(loaded.warnings)


@app.command("check")
def check_command(
    file: Annotated[Path, typer.Argument(help="A board file (TOML).")],
    as_json: JsonOption = False,
) -> None:
    """Check a board file and print every problem. Exit code 0: sound, 2: not."""
    board, problems = check_board_file(file)
    warnings = board.warnings if board else ()
    if as_json:
        rows = [{"file": p.file, "where": p.where, "message": p.message} for p in problems]
        fields = {"file": str(file), "ok": not problems, "problems": rows}
        emit_json({**fields, "warnings": list(warnings)})
    else:
        _print_check(file, problems, warnings)
    if problems:
        raise typer.Exit(EXIT_BAD_INPUT)


@app.command("schema")
def schema_command(
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write to a file.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the JSON Schema of board files."""
    if output is not None:
        write_text(output, schema_text(), BoardError)
    if as_json:
        emit_json({"json_schema": board_schema()})
    elif output is None:
        typer.echo(schema_text(), nl=False)


def _print_check(file: Path, problems: list[Problem], warnings: Iterable[str]) -> None:
    for problem in problems:
        note(f"error: {problem}", style="bold red", markup=VERBATIM)
    _note_warnings(warnings)
    count = f"{len(problems)} problem{'s' * (len(problems) > 1)}" if problems else "ok"
    typer.echo(f"{file}: {count}")


def _note_warnings(warnings: Iterable[str]) -> None:
    for warning in warnings:
        note(f"warning: {warning}", style="yellow", markup=VERBATIM)


def _ram(board: Board) -> int:
    return sum(region.usable for region in board.regions if region.writable)


def _summary(board: Board) -> dict[str, Any]:
    return {
        "id": board.id,
        "name": board.name,
        "vendor": board.vendor,
        "os": board.os,
        "soc": board.soc,
        "cores": sum(core.count for core in board.cores),
        "ram_bytes": _ram(board),
        "target": board.firmware.target,
    }


def _cells(*values: object) -> list[Text]:
    """Cells as plain text: what a board file says is never read as markup."""
    return [Text(str(value)) for value in values]


def _head(board: Board) -> Text:
    head = Text(f"{board.name} ({board.id})\n", style="bold")
    lines = [f"{board.vendor}, SoC {board.soc or '-'}, os {board.os}"]
    for core in board.cores:
        features = " ".join(core.features)
        lines.append(
            f"{core.count} x {core.cpu} ({core.isa}) at {core.freq_hz / 1e6:g} MHz  {features}"
        )
    lines.append(_placement(board))
    head.append("\n".join(lines), style="not bold")
    return head


def _placement(board: Board) -> str:
    firmware = board.firmware
    if board.os == "linux":
        return (
            f"builds for {firmware.target}; the system keeps "
            f"{format_bytes(firmware.os_reserve_bytes)}: {firmware.os_reserve_reason}"
        )
    return (
        f"builds for {firmware.target}: code in {firmware.code_region}, data in "
        f"{firmware.data_region}, model in {firmware.model_region}; stack "
        f"{format_bytes(firmware.stack_bytes)}, runner {format_bytes(firmware.reserve_bytes)}"
    )


def _region_table(board: Board) -> Table:
    columns = ("region", "kind", "from", "to", "access", ">size", ">usable", ">rank", "also at")
    regions = table("Regions", *columns)
    for region in board.regions:
        aliases = ", ".join(f"{alias:#x}" for alias in region.aliases)
        regions.add_row(
            *_cells(region.name, region.kind, f"{region.base:#010x}", f"{region.end - 1:#010x}"),
            *_cells(region.access, format_bytes(region.size), format_bytes(region.usable)),
            *_cells(region.rank, aliases or "-"),
        )
    return regions


def _source_table(board: Board) -> Table:
    sources = table("Where the numbers come from", "number", ">value", "class", "source")
    for row in _sources(board):
        sources.add_row(*_cells(*row))
    return sources


def _accelerator_sources(device: Accelerator) -> Iterator[tuple[str, str, str, str]]:
    size = format_bytes(device.memory_bytes)
    yield f"{device.name} memory", size, "declared", device.source
    macs = device.macs_per_s
    yield f"{device.name} multiply-adds", f"{macs.value / 1e9:g} G/s", macs.cls, macs.source
    for what, figure in (("read", device.read_Bps), ("DMA", device.dma_Bps)):
        yield f"{device.name} {what}", _speed(figure.value), figure.cls, figure.source
    if device.start_us:
        yield _figure(f"{device.name} start of a call", device.start_us, "us")


def _sources(board: Board) -> Iterator[tuple[str, str, str, str]]:
    """(number, value, class, source) of everything the board file says."""
    for core in board.cores:
        yield f"core {core.id}", f"{core.freq_hz / 1e6:g} MHz", "declared", core.source
    for region in board.regions:
        yield from _region_sources(region)
    for store in board.storage:
        for point in store.points:
            number = f"{store.name} read, blocks of {format_bytes(point.block_bytes)}"
            yield number, _speed(point.read_Bps), point.cls, point.source
        if store.latency_us:
            yield _figure(f"{store.name} latency", store.latency_us, "us")
    if board.accelerator:
        yield from _accelerator_sources(board.accelerator)
    if board.os == "linux":
        firmware = board.firmware
        kept = format_bytes(firmware.os_reserve_bytes)
        yield "kept by the system", kept, firmware.os_reserve_cls, firmware.os_reserve_source


def _region_sources(region: Region) -> Iterator[tuple[str, str, str, str]]:
    name = region.name
    yield f"{name} base, size", format_bytes(region.size), "declared", region.source
    for part in region.reserved:
        source = f"{part.reason} ({part.source or region.source})"
        yield f"{name} reserved", format_bytes(part.size), "declared", source
    perf = region.perf
    for label, figure in (("read", perf.read_Bps), ("write", perf.write_Bps)):
        if figure:
            yield f"{name} {label}", _speed(figure.value), figure.cls, figure.source
    if perf.latency_ns:
        yield _figure(f"{name} latency", perf.latency_ns, "ns")
    if perf.line_bytes:
        yield _figure(f"{name} line", perf.line_bytes, "B")


def _figure(name: str, figure: Figure, unit: str) -> tuple[str, str, str, str]:
    return name, f"{figure.value:g} {unit}", figure.cls, figure.source


def _speed(bytes_a_second: float) -> str:
    return f"{bytes_a_second / 1e6:,.1f} MB/s"
