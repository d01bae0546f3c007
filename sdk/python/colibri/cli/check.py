# SPDX-License-Identifier: Apache-2.0
"""`colibri check`: one verdict over a project's boards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from colibri.cli.common import VERBATIM, JsonOption, command, console, emit_json, note, progress
from colibri.errors import ProjectError

app = command("Pack, plan, build, size and emulate a project; one verdict over its boards.")


@app.command()
def check(
    project: Annotated[
        Path, typer.Argument(metavar="[FILE]", help="Project file, or the folder that it is in.")
    ] = Path("colibri.toml"),
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="DIR",
            help="Folder for images, firmware and reports. Default: colibri-check beside FILE.",
        ),
    ] = None,
    board: Annotated[
        list[str] | None,
        typer.Option("--board", metavar="NAME", help="Only this board of the project; repeats."),
    ] = None,
    record: Annotated[
        bool, typer.Option("--record", help="Put today's figures on record (see [ratchet]).")
    ] = False,
    reason: Annotated[
        str | None,
        typer.Option("--reason", metavar="TEXT", help="Why a figure may be worse from now on."),
    ] = None,
    init: Annotated[
        bool, typer.Option("--init", help="Write a project file to start from, and stop.")
    ] = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of project files, and stop.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Pack, plan, build, size and emulate a project; one verdict over its boards.

    Writes check.json, summary.md, junit.xml and report.html into DIR. Exit code 0: everything fits,
    1: something does not, 2: that could not be told.
    """
    from colibri.check import check as run_check
    from colibri.check.on_record import hold
    from colibri.check.reports import fields, remove_reports, write_reports
    from colibri.check.table import tables
    from colibri.project import load_project, project_path
    from colibri.project.start import write_start

    if schema:
        _print_schema(as_json)
        return
    file = project_path(project)
    if init:
        write_start(file)
        note(f"wrote {file}", markup=VERBATIM)
        return
    if reason is not None and not record:
        raise ProjectError("is for --record", field="--reason", hint="give both")
    folder = output or file.parent / "colibri-check"
    _checked_folder(folder, file)
    remove_reports(folder)
    loaded = load_project(file)
    if record and loaded.project.ratchet is None:
        raise ProjectError("is for projects with a table [ratchet]", field="--record")
    with progress("checking") as begin:
        done = begin(0)

        def say(step: str, name: str) -> None:
            note(f"  {step:<9} {name}", style="dim", markup=VERBATIM)
            done(1)

        result = run_check(loaded, folder, board or (), say)
    hold(result, loaded, record, reason or "")
    for text in write_reports(result, folder):
        note(f"note: {text}", markup=VERBATIM)
    if as_json:
        emit_json(fields(result))
    else:
        for part in tables(result):
            console().print(part, "", soft_wrap=not hasattr(part, "columns"))
    raise typer.Exit(result.exit_code)


def _checked_folder(folder: Path, project: Path) -> None:
    """Refuses the project's own folder: reports and firmware would replace files of the user."""
    if folder.resolve() == project.parent.resolve():
        raise ProjectError(
            "is the folder of the project file, whose files are not to be replaced",
            file=folder,
            field="--output",
            hint="name a folder for the output alone, as in -o out",
        )


def _print_schema(as_json: bool) -> None:
    from colibri.project.schema import project_schema, schema_text

    if as_json:
        emit_json({"json_schema": project_schema()})
    else:
        typer.echo(schema_text(), nl=False)
