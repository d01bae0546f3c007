# SPDX-License-Identifier: Apache-2.0
"""What code does not tell: a TOML file with the targets of indirect calls, depths and contexts.

::

    [stack]
    limit = "4 KiB"                     # of the worst case; `warn` likewise
    fpu = false                         # Cortex-M: exceptions store no floating-point registers

    [stack.calls]                       # whom the indirect calls of a function may call
    "dispatch" = ["on_*"]               # functions by name
    "colibri_linear*" = ["table:colibri_kernels_*"]  # the functions that a constant table names

    [stack.groups]                      # names for several of them, extended by every file
    storage = ["flash_read"]            # then: "load_*" = ["group:storage"]

    [stack.frames]
    "parse" = 512                       # of a function whose own frame is not known

    [stack.recursion]
    "walk_tree" = 12                    # activations at a time

    [stack.entries]
    "main" = {}
    "*_IRQHandler" = { priority = 1 }   # interrupts; those of one priority do not nest

Names are patterns with ``*``, ``?`` and ``[abc]``; what a compiler appends (``.constprop.0``) need
not be given.  Files that ship with the package say with ``when`` of which symbols they are.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
)

from colibri.boards.scalars import SIZE_SCHEMA
from colibri.errors import SizeError, UnitError
from colibri.units import parse_size

T = TypeVar("T")
_MOST_BYTES = 1 << 20
_SUFFIX = re.compile(r"(\.(constprop|isra|part|cold|lto_priv|llvm|specialized)(\.\d+)?)+$")
_GROUP = "group:"
_TABLE = re.compile(r"table:([^\[\]]+)(?:\[(\d+)\])?")


def _size(value: Any) -> Any:
    try:
        return parse_size(value)
    except UnitError as error:
        raise ValueError(str(error)) from error


Bytes = Annotated[int, BeforeValidator(_size), WithJsonSchema(SIZE_SCHEMA)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class EntryRule(_Table):
    """An entry point; with a priority it is an interrupt."""

    priority: int | None = Field(default=None, ge=0, le=255)
    limit: Bytes | None = None


class StackTable(_Table):
    """The table ``[stack]`` of one file."""

    when: list[str] = []
    warn: Bytes | None = None
    limit: Bytes | None = None
    fpu: bool | None = None
    interrupt_frame: Bytes | None = None
    calls: dict[str, list[str]] = {}
    groups: dict[str, list[str]] = {}
    frames: dict[str, Bytes] = {}
    recursion: dict[str, Annotated[int, Field(ge=1, le=10_000)]] = {}
    entries: dict[str, EntryRule] = {}


@dataclass(frozen=True, slots=True)
class Callees:
    """Patterns of functions; the groups that they are from, and groups that no file defines."""

    patterns: tuple[str, ...]
    groups: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Declared:
    """All files together; the user's come last and win."""

    tables: tuple[StackTable, ...] = ()

    def callees(self, names: Sequence[str]) -> Callees | None:
        """What the indirect calls of a function may call; None: nothing is declared of them."""
        found = [
            callee
            for table in self.tables
            for pattern, callees in table.calls.items()
            if matches(pattern, names)
            for callee in callees
        ]
        declared = any(matches(p, names) for table in self.tables for p in table.calls)
        return self._expanded(found) if declared else None

    def _expanded(self, callees: list[str]) -> Callees:
        """Groups replaced by their members; a group that no file has is missing."""
        patterns: dict[str, None] = {}
        groups: dict[str, None] = {}
        missing: dict[str, None] = {}
        for callee in callees:
            if not callee.startswith(_GROUP):
                patterns[callee] = None
                continue
            name = callee.removeprefix(_GROUP)
            members = [table.groups[name] for table in self.tables if name in table.groups]
            (groups if members else missing)[name] = None
            patterns.update(dict.fromkeys(p for part in members for p in part))
        return Callees(tuple(patterns), tuple(groups), tuple(missing))

    def frame(self, names: Sequence[str]) -> int | None:
        return _last(names, (table.frames for table in self.tables))

    def turns(self, names: Sequence[str]) -> int | None:
        return _last(names, (table.recursion for table in self.tables))

    def entry(self, names: Sequence[str]) -> EntryRule | None:
        return _last(names, (table.entries for table in self.tables))

    def setting(self, name: str) -> Any:
        """The last file's value of a field of ``[stack]``."""
        values = (getattr(table, name) for table in reversed(self.tables))
        return next((value for value in values if value is not None), None)


def _last(names: Sequence[str], tables: Iterable[dict[str, T]]) -> T | None:
    """The value of the last pattern that fits."""
    found = (v for table in tables for pattern, v in table.items() if matches(pattern, names))
    return next(reversed([*found]), None)


def matches(pattern: str, names: Iterable[str]) -> bool:
    """Whether a pattern means a function with these names."""
    return any(
        fnmatchcase(name, pattern) or fnmatchcase(_SUFFIX.sub("", name), pattern) for name in names
    )


def table_pattern(callee: str) -> tuple[str, int | None] | None:
    """``table:objects*[2]``: the pattern of the objects and which of their functions."""
    match = _TABLE.fullmatch(callee)
    return None if match is None else (match[1], None if match[2] is None else int(match[2]))


def read_table(path: Path) -> StackTable:
    """The table ``[stack]`` of a TOML file, which may have others.

    Raises
    ------
    SizeError
        The file cannot be read, has no such table, or one with unknown keys or values.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise SizeError(f"has more than {_MOST_BYTES:,} bytes", file=path)
        content = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SizeError(f"cannot be read: {error.strerror}", file=path) from error
    except (ValueError, RecursionError) as error:
        raise SizeError(f"is not TOML: {error}", file=path) from error
    if not isinstance(content.get("stack"), dict):
        raise SizeError("has no table [stack]", file=path, hint="see docs/stack.md")
    try:
        return StackTable.model_validate(content["stack"])
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(["stack", *(str(part) for part in first["loc"])])
        raise SizeError(first["msg"], file=path, field=where, hint="see docs/stack.md") from error


def declared_for(symbols: Iterable[str], files: Sequence[Path]) -> Declared:
    """What ships for the libraries that an ELF contains, then the given files."""
    names = frozenset(symbols)
    shipped = [read_table(path) for path in sorted(Path(__file__).parent.glob("*.toml"))]
    fitting = [table for table in shipped if names.issuperset(table.when)]
    return Declared((*fitting, *(read_table(path) for path in files)))
