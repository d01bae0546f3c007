# SPDX-License-Identifier: Apache-2.0
"""Show who owns the bytes: tables by object, library, source folder and group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from colibri.cli.common import table
from colibri.fit.attribution import Attribution, Share
from colibri.fit.view import Folder, View, folders

TABLES = ("groups", "libraries", "objects", "directories", "sources")
#: Rows of one table in JSON; ``NAME_total`` tells how many there are.
JSON_ROWS = 1000
_SCREEN_ROWS = 12


def owners_json(owners: Attribution, view: View) -> dict[str, Any]:
    """Every table, largest rows first; an empty one means that nothing is known.

    ``folders`` is there when the view has a depth: a tree, in its order.
    """
    fields: dict[str, Any] = {}
    for name in TABLES:
        rows: Sequence[Share] = getattr(owners, name)
        fields[name] = [
            {"name": s.name, "library": s.library, "bytes": s.total, "by_region": s.bytes}
            for s in rows[: view.rows(JSON_ROWS)]
        ]
        fields[f"{name}_total"] = len(rows)
    if view.depth is not None:
        fields["folders"] = [
            {"path": f.path, "level": f.level, "bytes": f.total, "by_region": f.bytes}
            for f in folders(owners.directories, view.depth)
        ]
    return fields


def show_owners(console: Console, owners: Attribution, view: View) -> None:
    """Print the tables that have rows, with a column for each region that is used."""
    for name in TABLES:
        rows: Sequence[Share] = getattr(owners, name)
        if not rows or name == "sources":  # the folders of the sources are enough on a screen
            continue
        if name == "directories" and view.depth is not None:
            _show_folders(console, folders(rows, view.depth))
        else:
            _show(console, name, rows, view.rows(_SCREEN_ROWS))


def _show_folders(console: Console, rows: Sequence[Folder]) -> None:
    regions = list(dict.fromkeys(region for row in rows for region in row.bytes))
    shown = table("by source folder, sums of each level", "source folder",
                  *(f">{region}" for region in regions), ">all")  # fmt: skip
    for row in rows:
        name = row.path if row.level == 0 else row.path.rsplit("/", 1)[-1]
        sizes = (*(row.bytes.get(region, 0) for region in regions), row.total)
        shown.add_row(_plain("  " * row.level + name), *(f"{size:,}" for size in sizes))
    console.print(shown)


def _show(console: Console, name: str, rows: Sequence[Share], most: int | None) -> None:
    regions = list(dict.fromkeys(region for row in rows for region in row.bytes))
    shown = table(f"by {_ONE[name]}", _ONE[name], *(f">{region}" for region in regions))
    for row in rows[:most]:
        full = f"{row.library}({row.name})" if row.library else row.name
        shown.add_row(_plain(full), *(f"{row.bytes.get(region, 0):,}" for region in regions))
    rest = rows[most:] if most is not None else ()
    if rest:
        sums = [sum(row.bytes.get(region, 0) for row in rest) for region in regions]
        shown.add_row(f"{len(rest):,} more", *(f"{value:,}" for value in sums))
    console.print(shown)


_ONE = {
    "groups": "group",
    "libraries": "library",
    "objects": "object",
    "directories": "source folder",
    "sources": "source",
}


def _plain(text: str) -> Text:
    """Text of a file as it may stand on a terminal: no control characters, no markup."""
    return Text("".join(c if c.isprintable() else "?" for c in text))
