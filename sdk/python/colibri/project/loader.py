# SPDX-License-Identifier: Apache-2.0
"""From ``colibri.toml`` to a checked `Project` whose paths and boards are resolved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from colibri.boards import Board, Budgets, load_board
from colibri.boards.checks import closest
from colibri.boards.problems import findings
from colibri.errors import BoardError, Problem, ProjectError
from colibri.project.model import Limits, Project, ProjectBoard, Symbols
from colibri.toml_files import read_toml

PROJECT_FILE = "colibri.toml"
#: What a check writes into its folder, beside a folder for each board.
REPORT_FILES = ("check.json", "summary.md", "junit.xml", "report.html")


@dataclass(frozen=True)
class Target:
    """A board of a project with all that holds for it.

    Attributes
    ----------
    name : str
        The key in the project file.
    board : Board
        Its budgets are those of the board file with the project's laid over them.
    own_budgets : Budgets
        Those of the board file.
    """

    name: str
    board: Board
    own_budgets: Budgets
    options: ProjectBoard
    limits: Limits
    application: dict[str, int]
    symbols: Symbols


@dataclass(frozen=True)
class LoadedProject:
    """A project file, where it stands, and its boards."""

    file: Path
    project: Project
    targets: tuple[Target, ...]

    def path(self, path: Path) -> Path:
        """A path of the file, which is relative to its folder."""
        return self.file.parent / path


def project_path(given: str | Path) -> Path:
    """The project file itself, of its path or its folder's."""
    file = Path(given)
    return file / PROJECT_FILE if file.is_dir() else file


def load_project(file: str | Path = PROJECT_FILE) -> LoadedProject:
    """Read a project file.

    Parameters
    ----------
    file : path
        The file, or the folder that holds ``colibri.toml``.

    Raises
    ------
    ProjectError
        With every problem: the place in the file, what is wrong, and what would work.
    """
    file = project_path(file)
    raw, reason = read_toml(file, "project files")
    if raw is None:
        hint = "colibri check --init writes one" if not file.exists() else None
        raise ProjectError(reason, file=file, hint=hint)
    try:
        project = Project.model_validate(raw)
    except ValidationError as error:
        found = findings(error, Project, _dotted)
        raise ProjectError.from_problems([Problem(str(file), *one) for one in found]) from error
    loaded = LoadedProject(file, project, tuple(_targets(file, project)))
    problems = [Problem(str(file), *one) for one in _problems(loaded)]
    if problems:
        raise ProjectError.from_problems(problems)
    return loaded


def _dotted(loc: tuple[int | str, ...]) -> str:
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _targets(file: Path, project: Project) -> Iterator[Target]:
    for name, options in project.boards.items():
        board = _board(file, name, options)
        budgets = overlaid(board.budgets, project.budgets, options.budgets)
        application = options.application
        yield Target(
            name,
            board.model_copy(update={"budgets": budgets}),
            board.budgets,
            options,
            options.limits or project.limits,
            _there(board, project.application) if application is None else dict(application),
            options.symbols or project.symbols,
        )


def _there(board: Board, application: dict[str, int]) -> dict[str, int]:
    """What the project declares for all boards holds for those that have the region."""
    names = {region.name for region in board.regions}
    return {name: size for name, size in application.items() if name in names}


def _board(file: Path, name: str, options: ProjectBoard) -> Board:
    """By id, or from a file beside the project's."""
    given = options.board or name
    beside = file.parent / given
    try:
        return load_board(beside if given.endswith(".toml") else given)
    except BoardError as error:
        where = f"boards.{name}" + (".board" if options.board else "")
        what, hint = (str(error), None) if error.problems else (error.what, error.hint)
        raise ProjectError(what, file=file, field=where, hint=hint) from error


def overlaid(*budgets: Budgets) -> Budgets:
    """Budgets with later ones over earlier ones, mark by mark."""
    merged: dict[str, Any] = {}
    for each in budgets:
        _lay(merged, _given(each))
    return Budgets.model_validate(merged)


def _given(table: BaseModel) -> dict[str, Any]:
    """What was set, with marks as they are and tables as dictionaries."""
    values = {name: getattr(table, name) for name in table.model_fields_set}
    return {
        name: {key: _given(each) for key, each in value.items()} if isinstance(value, dict)
        else value if not isinstance(value, BaseModel) or name in ("warn", "limit")
        else _given(value)
        for name, value in values.items()
    }  # fmt: skip


def _lay(under: dict[str, Any], over: dict[str, Any]) -> None:
    for name, value in over.items():
        if isinstance(value, dict) and isinstance(under.get(name), dict):
            _lay(under[name], value)
        else:
            under[name] = value


def _problems(loaded: LoadedProject) -> Iterator[tuple[str, str]]:
    """(where, message) of what single tables cannot state."""
    project = loaded.project
    model, run = project.model, project.run
    if model is not None:
        if (model.checkpoint is None) == (model.image is None):
            yield "model", "give exactly one of checkpoint and image"
        elif model.image is not None and model.packing:
            keys = ", ".join(model.packing)
            yield "model", f"{keys}: is for packing, and image is packed; give checkpoint instead"
    if run.prompt is not None and run.tokens is not None:
        yield "run", "give one of prompt and tokens"
    yield from _nowhere(loaded)
    for target in loaded.targets:
        yield from _target_problems(project, target)


def _nowhere(loaded: LoadedProject) -> Iterator[tuple[str, str]]:
    """Regions of project-wide tables that no board has."""
    project = loaded.project
    known = {region.name: None for target in loaded.targets for region in target.board.regions}
    tables: dict[str, Iterable[str]] = {
        "application": project.application,
        "budgets.regions": project.budgets.regions,
        "budgets.spans": project.budgets.spans,
    }
    for where, names in tables.items():
        for name in names:
            if name not in known:
                yield where, f"on every board: {_unknown(name, list(known))}"


def _target_problems(project: Project, target: Target) -> Iterator[tuple[str, str]]:
    where, options, board = f"boards.{target.name}", target.options, target.board
    if project.model is None and options.elf is None:
        yield where, "there is no [model] to build firmware for; give elf"
    if target.name.startswith(".") or set(target.name) & set("/\\"):
        yield where, "is a folder's name too, so it has no '/' and no '.' in front; give board"
    if target.name in REPORT_FILES:
        yield where, "is the name of a report in the same folder; use another, and give board"
    if options.elf is None and not options.build and "cpu" in options.emulate:
        yield f"{where}.emulate", "cpu runs the firmware that colibri builds; leave build out"
    if options.map is not None and options.elf is None:
        yield f"{where}.map", "is the map of an elf, and none is given"
    if options.elf is not None and "cpu" in options.emulate:
        yield (f"{where}.emulate", "cpu runs the firmware that colibri builds; leave elf out, or "
               "write emulate = ['native']")  # fmt: skip
    names = [region.name for region in board.regions]
    own = options.application is not None
    for name, region in target.symbols.required.items():
        if region and region not in names:
            there = f"{where}.symbols" if options.symbols else "symbols"
            hint = (
                "" if options.symbols else f"; rules of this board alone stand in {where}.symbols"
            )
            yield f"{there}.required.{name}", f"{board.id}: {_unknown(region, names)}{hint}"
    for name in target.application:
        if name not in names and own:
            yield f"{where}.application", _unknown(name, names)
    for table in ("regions", "spans"):
        for name in getattr(options.budgets, table):
            if name not in names:
                yield f"{where}.budgets.{table}", _unknown(name, names)
    for name in target.board.budgets.groups:
        if name not in project.groups:
            yield "budgets.groups", f"{_unknown(name, list(project.groups), 'group')}; see [groups]"
    yield from _order_problems(project, target)


def _order_problems(project: Project, target: Target) -> Iterator[tuple[str, str]]:
    """Each `warn` that comes after the limit that holds.

    A limit may be laid below a `warn` from under it, which then says nothing; a `warn` that is laid
    above a limit is a mistake.
    """
    room = {region.name: region.usable for region in target.board.regions}
    under, where = target.own_budgets, f"boards.{target.name}."
    for prefix, budgets in (("", project.budgets), (where, target.options.budgets)):
        under = overlaid(under, budgets)
        given = _given(budgets)
        for place, message in under.problems(room):
            if _is_given(given, place.split(".")[1:]):
                yield f"{prefix}{place}", message


def _is_given(table: Any, place: list[str]) -> bool:
    """Whether a table, with keys that may have dots in them, holds a place."""
    if not place:
        return True
    return isinstance(table, dict) and any(
        _is_given(table[key], place[n:])
        for n in range(1, len(place) + 1)
        if (key := ".".join(place[:n])) in table
    )


def _unknown(name: str, known: list[str], what: str = "region") -> str:
    listed = ", ".join(known) or "none"
    return f"no {what} '{name}'; {closest(name, known)}there are: {listed}"
