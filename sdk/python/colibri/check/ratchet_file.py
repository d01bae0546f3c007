# SPDX-License-Identifier: Apache-2.0
"""The file of figures on record: JSON beside the project file, under version control.

One figure is one line, boards and names are sorted, so that a review shows which figure moved, and
the history below says why::

    {
      "schema": 1,
      "figures": {
        "pimoroni-pico-plus-2": {
          "code": 21874,
          "region.SRAM": 312004,
          "tok_s": 41.5
        }
      },
      "history": [
        {"date": "2026-11-29", "reason": "Sampler with top-p.", "changes": {
          "pimoroni-pico-plus-2 code": [21010, 21874]
        }}
      ]
    }

A change has the values before and after; null: there was none, or is none any more.
"""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, PlainValidator, ValidationError

from colibri.boards.problems import findings, shown
from colibri.check.ratchet import (
    Entry,
    Record,
    Value,
    checked_name,
    checked_reason,
    checked_value,
)
from colibri.checked_json import parse_object
from colibri.errors import Problem, RatchetError
from colibri.text_files import write_text

SCHEMA = 1
_MOST_BYTES = 16 << 20
Pair = tuple[Value | None, Value | None]


def _pair(value: Any) -> Pair:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(f"{shown(value)} is no change; write [21010, 21874], null for no value")
    before, after = (None if one is None else checked_value(one) for one in value)
    return before, after


def _day(text: str) -> str:
    try:
        good = datetime.date.fromisoformat(text).isoformat() == text
    except ValueError:
        good = False
    if not good:
        raise ValueError(f"{shown(text)} is no day; write it as 2026-11-29")
    return text


_Name = Annotated[str, PlainValidator(checked_name)]


class _Entry(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    date: Annotated[str, AfterValidator(_day)]
    reason: Annotated[str, PlainValidator(checked_reason)]
    changes: dict[_Name, Annotated[Pair, PlainValidator(_pair)]]


class _File(BaseModel):
    """All but the schema number."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    figures: dict[_Name, dict[_Name, Annotated[Value, PlainValidator(checked_value)]]]
    history: list[_Entry]


def load(path: Path, *, missing_ok: bool = False) -> Record:
    """Read a record.

    Parameters
    ----------
    path : Path
        The file.
    missing_ok : bool
        A file that is not there is an empty record; for the first time that figures are recorded.

    Raises
    ------
    RatchetError
        The file is missing, no regular file, damaged, or of another schema; with every problem.
    """
    if missing_ok and not os.path.lexists(path):
        return Record()
    stored = parse_object(_content(path), path, error=RatchetError)
    schema = stored.pop("schema", None)
    if not isinstance(schema, int) or isinstance(schema, bool) or schema != SCHEMA:
        said = "is missing" if schema is None else f"is {shown(schema)}"
        hint = f"this version reads and writes schema {SCHEMA}"
        raise RatchetError(said, file=path, field="schema", hint=hint)
    try:
        file = _File.model_validate(stored)
    except ValidationError as error:
        found = findings(error, _File, lambda place: ".".join(map(str, place)))
        raise RatchetError.from_problems([Problem(str(path), *one) for one in found]) from error
    figures = {
        (board, name): value for board, row in file.figures.items() for name, value in row.items()
    }
    return Record(figures, tuple(Entry(e.date, e.reason, e.changes) for e in file.history))


def _content(path: Path) -> bytes:
    try:
        if not path.is_file():
            said = "is no file" if os.path.lexists(path) else "does not exist"
            hint = "record the figures once, or name the file that has them"
            raise RatchetError(said, file=path, hint=hint)
        size = path.stat().st_size
        if size > _MOST_BYTES:
            hint = f"valid are at most {_MOST_BYTES:,}"
            raise RatchetError(f"has {size:,} bytes", file=path, hint=hint)
        return path.read_bytes()
    except OSError as error:
        raise RatchetError(f"cannot be read: {error.strerror}", file=path) from error


def save(path: Path, new: Record, stored: Record) -> bool:
    """Write a record where it differs from `stored`; whether that was so.

    A link stays a link: the file that it leads to is replaced.

    Parameters
    ----------
    stored : Record
        What `load` gave; a file that somebody has changed since is not overwritten.

    Raises
    ------
    RatchetError
        The file cannot be written, or has changed.
    """
    if new == stored:
        return False
    target = Path(os.path.realpath(path))
    there = os.path.lexists(target)
    if there and (target.is_symlink() or not target.is_file()):
        raise RatchetError("is no file", file=path, hint="name a file that can be written")
    if load(target, missing_ok=True) != stored:
        raise RatchetError("has changed meanwhile", file=path, hint="run again")
    if there and not os.access(target, os.W_OK):
        raise RatchetError("is read-only", file=path, hint="make it writable, or name another file")
    write_text(target, text_of(new), RatchetError)
    return True


def text_of(stored: Record) -> str:
    """The file's text: sorted, one figure a line."""
    boards: dict[str, list[str]] = {}
    for board, name in sorted(stored.figures):
        line = f"      {_quoted(name)}: {_json(stored.figures[board, name])}"
        boards.setdefault(board, []).append(line)
    figures = [f"    {_quoted(b)}: {_block('{', lines, '    }')}" for b, lines in boards.items()]
    parts = [
        f'  "schema": {SCHEMA}',
        f'  "figures": {_block("{", figures, "  }")}',
        f'  "history": {_block("[", [_entry_text(e) for e in stored.history], "  ]")}',
    ]
    return _block("{", parts, "}") + "\n"


def _entry_text(entry: Entry) -> str:
    changes = [
        f"      {_quoted(name)}: [{_json(before)}, {_json(after)}]"
        for name, (before, after) in sorted(entry.changes.items())
    ]
    head = f'"date": {_quoted(entry.date)}, "reason": {_quoted(entry.reason)}'
    return f'    {{{head}, "changes": {_block("{", changes, "    }")}}}'


def _block(opening: str, lines: list[str], closing: str) -> str:
    """Lines between brackets, which stand alone; empty brackets without lines."""
    if not lines:
        return opening + closing.strip()
    return opening + "\n" + ",\n".join(lines) + "\n" + closing


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _json(value: Value | None) -> str:
    return json.dumps(value, allow_nan=False)
