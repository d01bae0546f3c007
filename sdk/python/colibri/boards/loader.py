# SPDX-License-Identifier: Apache-2.0
"""From TOML files to a checked `Board`.

A board names its SoC.  The SoC's cores and regions come first; a board entry with the same id
or name replaces single keys of it, any other entry is added.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from colibri._data import data_path
from colibri.boards.checks import (
    Finding,
    board_warnings,
    check_board,
    check_cores,
    check_regions,
    closest,
)
from colibri.boards.model import Board, Core, Region, Soc
from colibri.boards.problems import findings, shown
from colibri.errors import BoardError, Problem
from colibri.toml_files import read_toml

_Entry = TypeVar("_Entry", Core, Region)
_ENTRY_KEYS = {"cores": "id", "regions": "name", "storage": "name"}


def list_boards() -> list[str]:
    """Ids of the boards that come with the package, sorted."""
    return sorted(path.stem for path in data_path("board_configs", "boards").glob("*.toml"))


def load_board(board: str | Path) -> Board:
    """A board by id, or from a TOML file.

    Parameters
    ----------
    board : str or Path
        An id of `list_boards`, or the path of a file.

    Raises
    ------
    BoardError
        For an unknown id, naming the known ones; for a bad file, with every problem in it.
    """
    path = _find(board)
    loaded, problems = check_board_file(path)
    if loaded is None or problems:
        raise BoardError.from_problems(problems)
    return loaded


def check_board_file(path: str | Path) -> tuple[Board | None, list[Problem]]:
    """The board of a file, or None, and every problem found in it."""
    path = Path(path)
    raw, problems = _read(path)
    if raw is None:
        return None, problems
    soc, problems = _read_soc(raw.get("soc"), path)
    merged = _merge(raw, soc)
    board, found = _validate(merged)
    problems += [Problem(str(path), where, message) for where, message in found]
    if board is not None:
        board._warnings = tuple(board_warnings(board))
    return (None if problems else board), problems


def _find(board: str | Path) -> Path:
    """The file of a board given as an id or as a path."""
    known = list_boards()
    if isinstance(board, str) and board in known:
        return data_path("board_configs", "boards", f"{board}.toml")
    text = os.fspath(board)
    looks_like_path = isinstance(board, Path) or text.endswith(".toml") or os.sep in text
    if looks_like_path or _is_file(Path(text)):
        return Path(text)
    raise BoardError(
        f"unknown board {shown(text)}",
        hint=f"{closest(text, known)}known boards: {', '.join(known)}; "
        "or give the path of a board file (.toml)",
    )


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long a name, or a NUL in it
        return False


def _read(path: Path) -> tuple[dict[str, Any] | None, list[Problem]]:
    """The tables of a TOML file, or the reason why there are none."""
    raw, reason = read_toml(path, "board files")
    return raw, [Problem(str(path), "", reason)] if raw is None else []


def _read_soc(name: Any, board_path: Path) -> tuple[Soc | None, list[Problem]]:
    """The SoC that a board names: an id, or a TOML file beside the board file."""
    if not isinstance(name, str):
        return None, []  # absent, or a type that validation reports
    known = sorted(path.stem for path in data_path("board_configs", "socs").glob("*.toml"))
    if name in known:
        path = data_path("board_configs", "socs", f"{name}.toml")
    elif name.endswith(".toml"):
        path = board_path.parent / name
    else:
        message = f"unknown SoC {shown(name)}; {closest(name, known)}known: {', '.join(known)}"
        return None, [Problem(str(board_path), "soc", message)]
    raw, problems = _read(path)
    if raw is None:
        return None, problems
    try:
        return Soc.model_validate(raw), []
    except ValidationError as error:
        found = findings(error, Soc, lambda loc: _where(loc, raw))
        return None, [Problem(str(path), where, message) for where, message in found]


@dataclass
class _Merged:
    """Tables of a board with its SoC's laid under, and the labels of their entries."""

    tables: dict[str, Any]
    labels: dict[str, list[str]] = field(default_factory=dict)
    soc_names: dict[str, list[str]] = field(default_factory=dict)

    def where(self, loc: Sequence[int | str]) -> str:
        """A location as the author of the board file sees it."""
        if len(loc) >= 2 and loc[0] in self.labels and isinstance(loc[1], int):
            return _dotted(self.labels[str(loc[0])][loc[1]], loc[2:])
        return _where(loc, self.tables)


def _merge(raw: dict[str, Any], soc: Soc | None) -> _Merged:
    merged = _Merged(dict(raw))
    for table in ("cores", "regions"):
        mine = raw.get(table, [])
        if not isinstance(mine, list):
            continue  # validation says so
        theirs = [e.model_dump(exclude_unset=True) for e in getattr(soc, table)] if soc else []
        if table in raw or theirs:
            _merge_entries(merged, table, mine, theirs)
    return merged


def _merge_entries(
    merged: _Merged, table: str, mine: list[Any], theirs: list[dict[str, Any]]
) -> None:
    """Override the SoC's entries by key, append the rest; a second use of a key is appended."""
    key = _ENTRY_KEYS[table]
    entries: list[Any] = [_without_computed(entry) for entry in theirs]
    labels = [f"{table[:-1]} '{entry[key]}' of the SoC" for entry in theirs]
    places = {entry[key]: index for index, entry in enumerate(theirs)}
    merged.soc_names[table] = list(places)
    for index, entry in enumerate(mine):
        label = _entry_label(table, index, entry)
        name = entry.get(key) if isinstance(entry, dict) else None
        place = places.pop(name, None) if isinstance(name, str) else None
        if place is None:
            entries.append(entry)
            labels.append(label)
        else:
            entries[place] = _override(entries[place], entry)
            labels[place] = label
    merged.tables[table], merged.labels[table] = entries, labels


def _without_computed(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key != "usable"}


def _override(base: dict[str, Any], entry: dict[str, Any]) -> dict[str, Any]:
    """`entry` over `base`; `perf` figure by figure, and both sources are kept."""
    result = {**base, **entry}
    if isinstance(base.get("perf"), dict) and isinstance(entry.get("perf"), dict):
        result["perf"] = {**base["perf"], **entry["perf"]}
    if isinstance(entry.get("source"), str):
        result["source"] = f"{base['source']}; {entry['source']}"
    return result


def _validate(merged: _Merged) -> tuple[Board | None, list[Finding]]:
    try:
        board = Board.model_validate(merged.tables)
    except ValidationError as error:
        found = list(findings(error, Board, merged.where))
        return None, [_hint_soc(merged, finding) for finding in found] + _partial(merged)
    return board, list(check_board(board))


def _hint_soc(merged: _Merged, finding: Finding) -> Finding:
    """A region that lacks keys may have been meant to override one of the SoC's."""
    where, message = finding
    for table, names in merged.soc_names.items():
        if names and where.startswith(f"{table}[") and message.startswith("missing key"):
            key = _ENTRY_KEYS[table]
            return where, f"{message} (only {', '.join(names)} of the SoC may be partial by {key})"
    return finding


def _partial(merged: _Merged) -> list[Finding]:
    """Problems between those entries that are valid, so that one run shows them all."""
    cores = _valid(Core, merged.tables.get("cores"))
    regions = _valid(Region, merged.tables.get("regions"))
    return [*check_cores(cores), *check_regions(regions)]


def _valid(model: type[_Entry], entries: Any) -> list[_Entry]:
    result: list[_Entry] = []
    for entry in entries if isinstance(entries, list) else []:
        try:
            result.append(model.model_validate(entry))
        except ValidationError:
            continue
    return result


def _entry_label(table: str, index: int, entry: Any) -> str:
    name = entry.get(_ENTRY_KEYS[table]) if isinstance(entry, dict) else None
    return f"{table}[{index}] '{name[:40]}'" if isinstance(name, str) else f"{table}[{index}]"


def _where(loc: Sequence[int | str], raw: dict[str, Any]) -> str:
    if len(loc) >= 2 and loc[0] in _ENTRY_KEYS and isinstance(loc[1], int):
        table = str(loc[0])
        return _dotted(_entry_label(table, loc[1], raw[table][loc[1]]), loc[2:])
    return _dotted("", loc)


def _dotted(head: str, loc: Sequence[int | str]) -> str:
    for part in loc:
        head += f"[{part}]" if isinstance(part, int) else f".{part}" if head else str(part)
    return head
