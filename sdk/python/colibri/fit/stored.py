# SPDX-License-Identifier: Apache-2.0
"""Read the JSON of an earlier run (``colibri size --json``) as something to compare with.

It may come from another version, or be damaged. A field that is missing, of another type or out of
range is None, and n/a where it is shown; nothing is guessed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from colibri.errors import SizeError
from colibri.fit.baseline import (
    DERIVED,
    FIGURES,
    STACK_SUMS,
    SYMBOL_DETAIL,
    TOTALS,
    Area,
    Items,
    Snapshot,
    Stack,
    section_items,
    summed,
)
from colibri.fit.format_owners import TABLES
from colibri.fit.memory_map import Row
from colibri.fit.pairing import Item

SCHEMA = 1
JSON_LIMIT = 256 << 20
_LARGEST = 2**64 - 1

Json = Mapping[str, Any]


def read_stored(path: Path) -> Snapshot:
    """Read the JSON of an earlier run.

    Raises
    ------
    SizeError
        The file is no JSON object.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        stored: Any = json.loads(text, object_pairs_hook=_once)
    except OSError as error:
        raise SizeError(f"cannot be read: {error.strerror}", file=path) from error
    except (ValueError, RecursionError):
        stored = None
    if not isinstance(stored, dict):
        raise SizeError(
            "neither an ELF nor a JSON object",
            file=path,
            field="--baseline",
            hint="give an ELF, or the output of 'colibri size ELF --json'",
        )
    return from_json(stored, str(path))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; of a key that is there twice it is not known which value is meant."""
    fields = dict(pairs)
    if len(fields) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                fields[name] = None
            seen.add(name)
    return fields


def from_json(stored: Json, source: str) -> Snapshot:
    """The numbers of a stored result, as far as it has them."""
    notes = _remarks(stored)
    regions, rows = _stored_regions(stored, notes)
    board = stored.get("board")
    return Snapshot(
        source=source,
        detail=_text(stored, "detail"),
        board=board if isinstance(board, str) else None,
        board_known="board" in stored and (board is None or isinstance(board, str)),
        totals=_stored_totals(stored),
        regions=regions,
        sections=Items(section_items(rows)) if rows else None,
        symbols=_stored_symbols(stored),
        owners=_stored_owners(stored),
        stack=_stored_stack(stored.get("stack")),
        notes=tuple(notes),
    )


def _remarks(stored: Json) -> list[str]:
    notes = []
    schema = stored.get("schema")
    if schema != SCHEMA or isinstance(schema, bool):
        notes.append(
            f"the baseline has schema {_short(schema)}, this version {SCHEMA}: "
            "fields of the same name and type are taken, what it does not have is n/a"
        )
    if "error" in stored:
        notes.append("the baseline is the result of a run that failed")
    return notes


def _stored_totals(stored: Json) -> dict[str, int]:
    sizes = stored.get("totals")
    found = {name: _number(sizes, name) for name in TOTALS}
    found["image"] = _number(stored, "image_bytes")
    found["stack"] = _number(stored, "stack_bytes")
    found["unattributed"] = _number(stored, "unattributed")
    outside = stored.get("outside")
    if isinstance(outside, list):
        sizes_outside = [_number(row, "bytes") for row in outside]
        if None not in sizes_outside:
            found["outside"] = sum(size or 0 for size in sizes_outside)
    return {name: value for name, value in found.items() if value is not None}


def _stored_regions(
    stored: Json, notes: list[str]
) -> tuple[dict[str, Area] | None, list[tuple[str | None, str, Row]]]:
    """Regions by name, and the rows of all of them when each row can be read."""
    listed = stored.get("regions")
    if not isinstance(listed, list):
        notes.append("the baseline has no regions")
        return None, []
    areas: dict[str, Area] = {}
    rows: list[tuple[str | None, str, Row]] = []
    whole, twice = True, set()
    for entry in listed:
        name = _text(entry, "name")
        if name is None:
            whole = False
            continue
        if name in areas:
            twice.add(name)
        found = {figure: _number(entry, figure) for figure in FIGURES}
        own = _stored_rows(entry.get("rows"))
        whole = whole and own is not None
        shown = None if entry.get("kind") == DERIVED else name
        rows += [(shown, name, row) for row in own or ()]
        areas[name] = Area(
            {figure: value for figure, value in found.items() if value is not None},
            None if own is None else summed(((row.kind, row.name), row.bytes) for row in own),
        )
    for name in twice:
        areas[name] = Area({})
        notes.append(f"the baseline has region {name} twice: n/a")
    outside = _stored_rows(stored.get("outside"))
    if outside is None or twice or not whole:
        return areas, []
    return areas, [*rows, *((None, "", row) for row in outside)]


def _stored_rows(listed: Any) -> list[Row] | None:
    """Rows of a region; None when one of them cannot be read."""
    if not isinstance(listed, list):
        return None
    rows = []
    for entry in listed:
        name, kind, role = (_text(entry, key) for key in ("name", "kind", "role"))
        size = _number(entry, "bytes")
        if name is None or kind is None or role is None or size is None:
            return None
        rows.append(Row(name, kind, role, 0, size))
    return rows


def _stored_table(stored: Json, name: str, read: Callable[[Any], Item | None]) -> Items | None:
    """A list with its ``NAME_total``; an empty one without a total says nothing."""
    listed, total = stored.get(name), _number(stored, f"{name}_total")
    if not isinstance(listed, list) or not (listed or total == 0):
        return None
    rows = [item for item in map(read, listed) if item is not None]
    return Items(rows, complete=total == len(listed) == len(rows))


def _stored_symbols(stored: Json) -> Items | None:
    if _text(stored, "detail") not in (None, *SYMBOL_DETAIL):
        return None
    return _stored_table(stored, "symbols", _symbol_of(stored))


def _symbol_of(stored: Json) -> Callable[[Any], Item | None]:
    regions = stored.get("regions")
    entries = regions if isinstance(regions, list) else []
    derived = {_text(r, "name") for r in entries if _field(r, "kind") == DERIVED}

    def read(entry: Any) -> Item | None:
        name, size = _text(entry, "name"), _number(entry, "size")
        if name is None or size is None:
            return None
        region = _text(entry, "region")
        return Item(
            name=name,
            size=size,
            by_region=_by_region(entry),
            region=None if region in derived else region,
            section=_text(entry, "section") or "",
            library=_text(entry, "library") or "",
            object=_text(entry, "object") or "",
            source=_text(entry, "source") or "",
        )

    return read


def _stored_owners(stored: Json) -> dict[str, Items]:
    tables = {name: _stored_table(stored, name, _share) for name in TABLES}
    return {name: items for name, items in tables.items() if items is not None and items.rows}


def _share(entry: Any) -> Item | None:
    name, size = _text(entry, "name"), _number(entry, "bytes")
    if name is None or size is None:
        return None
    library = _text(entry, "library") or ""
    return Item(name, size, by_region=_by_region(entry), library=library)


def _by_region(entry: Any) -> dict[str, int] | None:
    parts = _field(entry, "by_region")
    if not isinstance(parts, dict):
        return None
    sizes = {name: _number(parts, name) for name in parts}
    return None if None in sizes.values() else {n: s for n, s in sizes.items() if s is not None}


def _stored_stack(stored: Any) -> Stack | None:
    if not isinstance(stored, dict):
        return None
    sums = {name: _number(stored, name) for name in STACK_SUMS}
    listed = stored.get("entries")
    entries = [_entry(entry) for entry in listed] if isinstance(listed, list) else [None]
    known = [item for item in entries if item is not None]
    open_ = {_text(e, "name") for e in listed or () if _field(e, "complete") is not True}
    complete = stored.get("complete")
    return Stack(
        method=_text(stored, "method"),
        sums={name: value for name, value in sums.items() if value is not None},
        complete=complete if isinstance(complete, bool) else None,
        entries=Items(known, complete=len(known) == len(entries)),
        open=frozenset(name for name in open_ if name is not None),
    )


def _entry(entry: Any) -> Item | None:
    name, size = _text(entry, "name"), _number(entry, "bytes")
    if name is None or size is None or not isinstance(_field(entry, "complete"), bool):
        return None
    return Item(name, size, section=_text(entry, "role") or "")


# -- one field ------------------------------------------------------------------------------------


def _field(row: Any, key: str) -> Any:
    return row.get(key) if isinstance(row, dict) else None


def _number(row: Any, key: str) -> int | None:
    """A size: an integer that 64 bits hold."""
    value = _field(row, key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST:
        return None
    return value


def _text(row: Any, key: str) -> str | None:
    value = _field(row, key)
    return value if isinstance(value, str) else None


def _short(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, int) and value.bit_length() > 64:
        return "out of range"
    return repr(value)[:20]
