# SPDX-License-Identifier: Apache-2.0
"""`colibri size`: judge an ELF against a board's memory and budgets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from colibri.boards import load_board
from colibri.cli.common import (
    VERBATIM,
    HtmlOption,
    JsonOption,
    check_html,
    command,
    console,
    emit_json,
    note,
    write_html,
)
from colibri.errors import SizeError
from colibri.fit.compare import compare
from colibri.fit.format import as_json, show
from colibri.fit.pictures import size_rows, size_section
from colibri.fit.stack import StackOptions
from colibri.fit.symbol_rules import SymbolRules
from colibri.fit.verdict import judge
from colibri.fit.view import View, write_csv
from colibri.report.page import Page

app = command("Judge an ELF against a board's memory and budgets.")


@app.command()
def size(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="A firmware ELF of any toolchain, a linker's map, a raw binary; or objects and "
            "archives; or Intel HEX and S-record files.",
        ),
    ],
    board: Annotated[
        str | None,
        typer.Option("--board", metavar="ID", help="Board id, or path of a board file."),
    ] = None,
    map_file: Annotated[
        Path | None,
        typer.Option("--map", metavar="FILE", help="The map written with the ELF (GNU ld, lld)."),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option("--base", metavar="ADDRESS", help="Where a raw binary begins."),
    ] = None,
    baseline: Annotated[
        list[Path] | None,
        typer.Option(
            "--baseline",
            metavar="FILE",
            help="What to compare with: any input, or the stored JSON of a run. Repeats for "
            "several objects or HEX files.",
        ),
    ] = None,
    baseline_map: Annotated[
        Path | None,
        typer.Option("--baseline-map", metavar="FILE", help="The map of the baseline."),
    ] = None,
    image: Annotated[
        Path | None,
        typer.Option("--image", metavar="FILE", help="A model image flashed beside the ELF."),
    ] = None,
    stack: Annotated[
        bool, typer.Option("--stack", help="Bound the stack: the deepest chain of each entry.")
    ] = False,
    entry: Annotated[
        list[str] | None,
        typer.Option("--entry", metavar="NAME", help="An entry instead of those found; repeats."),
    ] = None,
    su: Annotated[
        list[Path] | None,
        typer.Option("--su", metavar="PATH", help="Files or folders of gcc's .su and .ci files."),
    ] = None,
    calls: Annotated[
        list[Path] | None,
        typer.Option("--calls", metavar="FILE", help="A TOML file with a table [stack]."),
    ] = None,
    forbid: Annotated[
        list[str] | None,
        typer.Option(
            "--forbid", metavar="PATTERN", help="Symbols that must not be there; repeats."
        ),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option("--allow", metavar="PATTERN", help="Symbols that may be there after all."),
    ] = None,
    require: Annotated[
        list[str] | None,
        typer.Option(
            "--require", metavar="NAME[@REGION]", help="A symbol that must be there, in a region."
        ),
    ] = None,
    no_writable: Annotated[
        list[str] | None,
        typer.Option(
            "--no-writable",
            metavar="PATTERN",
            help="Objects, libraries or symbol:NAME that may have no variables (.data, .bss).",
        ),
    ] = None,
    may_need: Annotated[
        list[str] | None,
        typer.Option(
            "--may-need", metavar="PATTERN", help="The only symbols that a library may need."
        ),
    ] = None,
    why: Annotated[
        list[str] | None,
        typer.Option(
            "--why",
            metavar="PATTERN",
            help="Why a symbol, object or library is linked: chain to an entry, users; repeats.",
        ),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(
            "--top", metavar="N", min=0, help="Rows of tables, 0: all. Default: 12; JSON 1,000."
        ),
    ] = None,
    filter: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="PATTERN",
            help="Show these symbols only: by name, object, library or source; symbol:, section:, "
            "region: and others narrow it. Repeats.",
        ),
    ] = None,
    depth: Annotated[
        int | None,
        typer.Option(
            "--depth", metavar="N", min=0, help="Source folders as a tree of so many levels."
        ),
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option("--csv", metavar="FILE", help="Also write the shown symbols, all of them."),
    ] = None,
    html: HtmlOption = None,
    as_object: JsonOption = False,
) -> None:
    """Judge an ELF against a board's memory and budgets.

    Exit code 0: it fits, 1: it does not, 2: that could not be told. --entry, --su and --calls
    imply --stack.
    """
    check_html(html)
    loaded = load_board(board) if board is not None else None
    asked = StackOptions(tuple(entry or ()), tuple(su or ()), tuple(calls or ()))
    wanted = asked if stack or asked != StackOptions() else None
    rules = SymbolRules(
        tuple(forbid or ()),
        tuple(allow or ()),
        dict(map(_required, require or ())),
        tuple(no_writable or ()),
        tuple(may_need) if may_need else None,
    )
    view = View(top, tuple(filter or ()), depth)
    at = _address(base)
    verdict = judge(
        files, loaded, image, wanted, link_map=map_file, base=at, rules=rules, why=why or ()
    )
    symbols = view.symbols(verdict)
    comparison = None
    if baseline:
        comparison = compare(
            verdict, baseline, loaded,
            link_map=baseline_map, base=at, image=image, stack=wanted,
        )  # fmt: skip
    elif baseline_map is not None:
        raise SizeError(
            "there is no baseline that it could be the map of",
            file=baseline_map,
            field="--baseline-map",
            hint="give --baseline too",
        )
    if html is not None:
        page = Page.of(size_section(verdict, comparison), rows=size_rows(verdict))
        write_html(html, page)
    if csv is not None:
        write_csv(csv, verdict, symbols)
        note(f"wrote {csv}", markup=VERBATIM)
    if as_object:
        emit_json(as_json(verdict, comparison, view))
    else:
        show(console(), verdict, comparison, view)
    raise typer.Exit(verdict.exit_code)


def _required(text: str) -> tuple[str, str]:
    """``NAME@REGION`` or ``NAME``."""
    name, at, region = text.rpartition("@")
    if not (name if at else region) or (at and not region):
        raise SizeError(
            f"{text!r} is no name with a region", field="--require", hint="write NAME@REGION"
        )
    return (name, region) if at else (text, "")


def _address(text: str | None) -> int | None:
    """An address as C writes it: 0x08000000, or decimal."""
    if text is None:
        return None
    try:
        return int(text, 0)
    except ValueError:
        raise SizeError(
            f"{text!r} is no address", field="--base", hint="write it as in --base 0x08000000"
        ) from None
