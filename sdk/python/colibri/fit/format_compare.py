# SPDX-License-Identifier: Apache-2.0
"""Show a comparison: the field ``baseline`` of the JSON result, or what changed as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from colibri.cli.common import table
from colibri.fit.compare import Comparison
from colibri.fit.growth import Cause, Delta, shortened

#: Rows of one table, and causes of one region, in JSON; ``NAME_total`` tells how many there are.
JSON_ROWS = 1000
SCREEN_ROWS = 12
_SCREEN_CAUSES = 8
_LONGEST = 300
_OTHERS = ("padding", "load_span")
_TITLES = {
    "sections": "section",
    "symbols": "symbol",
    "groups": "group",
    "libraries": "library",
    "objects": "object",
    "directories": "source folder",
}


# -- JSON -----------------------------------------------------------------------------------------


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """The value of ``baseline`` in the result; what is not known is null."""
    fields: dict[str, Any] = {
        "source": comparison.source,
        "changed": comparison.changed,
        "regions": [
            {
                **_plain_json(area),
                **{figure.name: _plain_json(figure, named=False) for figure in area.figures},
                "causes": [_cause_json(c) for c in shortened(area.causes, JSON_ROWS)],
            }
            for area in comparison.regions
        ],
        "totals": [
            {
                **_plain_json(area),
                "causes": [_cause_json(c) for c in shortened(area.causes, JSON_ROWS)],
            }
            for area in comparison.totals
        ],
    }
    for name, rows in comparison.tables.items():
        fields[name] = None if rows is None else [_row_json(row) for row in rows[:JSON_ROWS]]
        fields[f"{name}_total"] = None if rows is None else len(rows)
    stack = comparison.stack
    fields["stack"] = None if stack is None else [_bound_json(row) for row in stack]
    return {**fields, "notes": comparison.notes}


def _plain_json(delta: Delta, *, named: bool = True) -> dict[str, Any]:
    name = {"name": delta.name} if named else {}
    return {**name, "before": delta.before, "after": delta.after, "delta": delta.delta}


def _row_json(delta: Delta) -> dict[str, Any]:
    moved = delta.moved and {"from": delta.moved[0], "to": delta.moved[1]}
    extra = {"was": delta.was or None, "moved": moved, "origin": delta.origin or None}
    return _plain_json(delta) | extra


def _bound_json(delta: Delta) -> dict[str, Any]:
    before, after = (not least for least in delta.least)
    extra = {"was": delta.was or None, "before_complete": before, "after_complete": after}
    return _plain_json(delta) | extra


def _cause_json(cause: Cause) -> dict[str, Any]:
    return {
        "kind": cause.kind,
        "name": cause.name,
        "section": cause.section or None,
        "origin": cause.origin or None,
        "delta": cause.delta,
    }


# -- tables ---------------------------------------------------------------------------------------


def show_comparison(console: Console, comparison: Comparison) -> None:
    """Print what changed, largest first; one line when nothing did."""
    if comparison.changed:
        against = Text(f"against {_plain(comparison.source)}", style="bold")
        console.print(against, soft_wrap=True)
        _show_areas(console, comparison)
        for name, title in _TITLES.items():
            rows = comparison.tables[name]
            if rows is not None:
                _show_table(console, title, rows)
        _show_stack(console, comparison.stack or [])
    else:
        console.print(Text(_unchanged(comparison)), soft_wrap=True)
    for text in comparison.notes:
        console.print(Text(_plain(text), style="dim"), soft_wrap=True)


def _unchanged(comparison: Comparison) -> str:
    open_ = [area.name for area in comparison.regions if area.delta is None]
    of = f" in what both have ({_plain(', '.join(open_))}: n/a)" if open_ else ""
    return f"no change against {_plain(comparison.source)}{of}"


def _show_areas(console: Console, comparison: Comparison) -> None:
    """Regions and what their changes add up from; totals of objects, which have no regions."""
    shown = table("", "what", ">before", ">now", ">change", "")
    areas = sorted(
        (area for area in comparison.regions if area.changed or area.delta is None),
        key=lambda area: -abs(area.delta or 0),
    )
    for area in areas:
        _add(shown, area, "")
        _add_causes(shown, area.causes)
    for area in comparison.regions:
        for figure in area.figures:
            if figure.name in _OTHERS and figure.changed:
                name = f"{area.name} {figure.name.replace('_', ' ')}"
                _add(shown, Delta(name, figure.before, figure.after), "not in used")
    for area in sorted(comparison.totals, key=lambda area: -abs(area.delta or 0)):
        if area.changed or area.delta is None:
            _add(shown, area, "total")
            _add_causes(shown, area.causes)
    if shown.row_count:
        console.print(shown)


def _add_causes(shown: Table, causes: Sequence[Cause]) -> None:
    for cause in shortened(causes, _SCREEN_CAUSES):
        what = {
            "symbol": cause.section,
            "section": "no symbol tells",
            "segment": "no symbol tells",
        }.get(cause.kind, "")
        shown.add_row(_cell(f"  {cause.name}"), "", "", f"{cause.delta:+,}", _cell(what))


def _show_table(console: Console, title: str, rows: Sequence[Delta]) -> None:
    known = [row for row in rows if row.delta is not None]
    if not known:
        return
    shown = table(f"changed by {title}", title, ">before", ">now", ">change", "")
    for row in known[:SCREEN_ROWS]:
        _add(shown, row, remark(row))
    rest = known[SCREEN_ROWS:]
    if rest:
        change = sum(row.delta or 0 for row in rest)
        shown.add_row(f"{len(rest):,} more", "", "", f"{change:+,}", "")
    if len(rows) > len(known):
        shown.add_row(f"{len(rows) - len(known):,} more", "n/a", "", "n/a", "not in the baseline")
    console.print(shown)


def _show_stack(console: Console, rows: Sequence[Delta]) -> None:
    rows = [row for row in rows if row.changed or row.delta is None]
    if not rows:
        return
    shown = table("changed by worst-case stack", "entry", ">before", ">now", ">change", "")
    for row in sorted(rows, key=lambda row: -abs(row.delta or 0))[:SCREEN_ROWS]:
        _add(shown, row, remark(row))
    console.print(shown)


def _add(shown: Table, row: Delta, remark: str) -> None:
    numbers = [
        f"at least {_number(value)}" if least else _number(value)
        for value, least in zip((row.before, row.after), row.least, strict=True)
    ]
    change = "n/a" if row.delta is None else f"{row.delta:+,}"
    shown.add_row(_cell(row.name), *numbers, change, _cell(remark))


def remark(row: Delta) -> str:
    """What there is to say beside the numbers: moved, renamed, gone, new, and its file."""
    parts = []
    if row.moved:
        parts.append(f"moved from {row.moved[0]} to {row.moved[1]}")
    if row.was:
        parts.append(f"was {row.was}")
    if row.before == 0 or row.after == 0:
        parts.append("new" if row.before == 0 else "gone")
    return ", ".join([*parts, row.origin] if row.origin else parts)


def _number(value: int | None) -> str:
    return "n/a" if value is None else f"{value:,}"


def _cell(text: str) -> Text:
    """A table cell that is shown as it is: brackets in names are not markup."""
    return Text(_plain(text))


def _plain(text: str) -> str:
    """Text of a file as it may stand on a terminal: no control characters, and not endless."""
    short = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    return "".join(c if c.isprintable() else "?" for c in short)
