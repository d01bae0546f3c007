# SPDX-License-Identifier: Apache-2.0
"""Show who owns the bytes: tables by object, library, source folder and group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from colibri.cli.common import table
from colibri.fit.attribution import Attribution, Share

TABLES = ("groups", "libraries", "objects", "directories", "sources")
#: Rows of one table in JSON; ``NAME_total`` tells how many there are.
JSON_ROWS = 1000
_SCREEN_ROWS = 12


def owners_json(owners: Attribution) -> dict[str, Any]:
    """Every table, largest rows first; an empty one means that nothing is known."""
    fields: dict[str, Any] = {}
    for name in TABLES:
        rows: Sequence[Share] = getattr(owners, name)
        fields[name] = [
            {"name": s.name, "library": s.library, "bytes": s.total, "by_region": s.bytes}
            for s in rows[:JSON_ROWS]
        ]
        fields[f"{name}_total"] = len(rows)
    return fields


def show_owners(console: Console, owners: Attribution) -> None:
    """Print the tables that have rows, with a column for each region that is used."""
    for name in TABLES:
        rows: Sequence[Share] = getattr(owners, name)
        if rows and name != "sources":  # the folders of the sources are enough on a screen
            _show(console, name, rows)


def _show(console: Console, name: str, rows: Sequence[Share]) -> None:
    regions = list(dict.fromkeys(region for row in rows for region in row.bytes))
    shown = table(f"by {_ONE[name]}", _ONE[name], *(f">{region}" for region in regions))
    for row in rows[:_SCREEN_ROWS]:
        full = f"{row.library}({row.name})" if row.library else row.name
        shown.add_row(_plain(full), *(f"{row.bytes.get(region, 0):,}" for region in regions))
    rest = rows[_SCREEN_ROWS:]
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
