# SPDX-License-Identifier: Apache-2.0
"""Write a page as one HTML file that needs no network, no other file and hardly a script.

Bars and tables are HTML and CSS; scripts sort tables and draw treemaps.  Each script that may run
is named by its hash in the page's content security policy, so that nothing in a name can.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from colibri.errors import ColibriError
from colibri.report.bars import STRIP_CELLS, Bar, strip
from colibri.report.page import WORDS, Address, Cell, Change, Page, Section, Table, VerdictRow
from colibri.report.palette import ROLES, text_on
from colibri.report.treemap import Node, figure, shortened
from colibri.text_files import write_text
from colibri.units import format_bytes

__all__ = ["Page", "Section", "Table", "VerdictRow", "render", "require_html", "require_new",
           "write_page"]  # fmt: skip

#: Bounds of a page: rows of a table, pieces listed of a bar, characters of a cell, treemaps.
MOST_ROWS, MOST_PIECES, MOST_TEXT, MOST_TREES = 1000, 100, 400, 12
#: Bytes of embedded JSON of one section; what is larger is left to ``--json``.
MOST_DATA = 4 << 20
_TONES = {
    "fits": "good", "ok": "good", "over": "bad", "fault": "bad", "warning": "warn",
    "unknown": "warn",
}  # fmt: skip
_SIGNS = {"good": "✓", "bad": "✗", "warn": "!", "plain": ""}


def require_html() -> None:
    """Asks for the packages that write a page.

    Raises
    ------
    ColibriError
        One is not installed.
    """
    missing = [name for name in ("jinja2", "plotly") if find_spec(name) is None]
    if missing:
        raise ColibriError(
            f"an HTML page needs the package {' and '.join(missing)}",
            field="--html",
            hint='pip install "colibri-sdk[html]"',
        )


def require_new(file: Path) -> None:
    """Raises when `file` is there and no HTML page: an input, an image, a device.

    A page of an earlier run is replaced, and so is an empty file.
    """
    try:
        if not os.path.lexists(file):
            return
        if file.is_file():
            with file.open("rb") as there:
                head = there.read(64).lstrip().lower()
            if not head or head.startswith((b"<!doctype html", b"<html")):
                return
    except OSError as error:
        raise ColibriError(f"cannot be written: {error.strerror}", file=file) from error
    raise ColibriError("is there already and no HTML page", file=file, hint="name a new file")


def write_page(file: Path, page: Page) -> None:
    """Writes `page` to `file`, whole or not at all.

    Raises
    ------
    ColibriError
        A package is missing, the file is there and no page, or it cannot be written.
    """
    require_html()
    require_new(file)
    write_text(file, render(page))


def render(page: Page) -> str:
    """The text of the file."""
    style = files("colibri.report").joinpath("page.css").read_text("utf-8")
    scripts = _scripts(page)
    text: str = _template().render(
        page=page, style=_palette_css() + style, scripts=scripts, policy=_policy(scripts),
        pictures=_pictures, roles=ROLES, strip_cells=STRIP_CELLS, most_rows=MOST_ROWS,
        most_pieces=MOST_PIECES, most_trees=MOST_TREES, column=_column,
    )  # fmt: skip
    return text


@cache
def _template() -> Any:
    """Compiled once: it takes longer than a page."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("colibri", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "cell": _cell, "sort_key": _sort_key, "word": lambda word: WORDS.get(word, word),
        "tone": tone, "sign": lambda word: _SIGNS[tone(word)], "strip": strip,
        "size": format_bytes, "share": _share, "clean": _clean, "aria": _aria, "data": embedded,
        "kept": data_of,
    }  # fmt: skip
    return environment.get_template("page.html.j2")


def tone(word: str) -> str:
    """good, bad, warn or plain: how a status is shown, beside its word."""
    return _TONES.get(word, "plain")


# -- parts of the page ----------------------------------------------------------------------------


class _Picture(NamedTuple):
    title: str
    figure: str


def _pictures(trees: Sequence[Node]) -> list[_Picture]:
    """Treemaps of the fullest regions; one leaf is no picture."""
    drawn = [tree for tree in trees if len(tree.children) > 1 or _branches(tree)]
    drawn = sorted(drawn, key=lambda tree: -tree.bytes)[:MOST_TREES]
    return [_Picture(_caption(tree), embedded(figure(tree).to_plotly_json())) for tree in drawn]


def _caption(tree: Node) -> str:
    shown = next((node for node in tree.walk() if node.start), None)
    if shown is None:
        return f"{tree.name}: {tree.bytes:,} B"
    return f"{tree.name}: {shown.name}, {shown.bytes:,} B of {tree.bytes:,} B"


def _branches(tree: Node) -> bool:
    return any(child.children for child in tree.children)


def embedded(value: Any) -> str:
    """JSON that may stand in a script element: nothing in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)  # ASCII
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _scripts(page: Page) -> list[str]:
    own = files("colibri.report").joinpath("page.js").read_text("utf-8")
    if not any(section.trees for section in page.sections):
        return [own]
    from plotly.offline import get_plotlyjs

    return [get_plotlyjs(), own]


def _policy(scripts: Sequence[str]) -> str:
    """Nothing is loaded, and only these scripts run."""
    hashes = (hashlib.sha256(script.encode()).digest() for script in scripts)
    allowed = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _palette_css() -> str:
    """The palette as rules: ``.r-code`` and so on, for both backgrounds."""
    light = "".join(_role_css(name, role.light) for name, role in ROLES.items())
    dark = "".join(
        _role_css(name, role.dark) for name, role in ROLES.items() if role.dark != role.light
    )
    return f"{light}@media screen and (prefers-color-scheme: dark) {{\n{dark}}}\n"


def _role_css(name: str, colour: str) -> str:
    return f".r-{name} {{ background-color: {colour}; color: {text_on(colour)}; }}\n"


# -- text -----------------------------------------------------------------------------------------


def _column(name: str) -> tuple[str, bool]:
    """A column's heading, and whether it holds numbers."""
    return name.removeprefix(">"), name.startswith(">")


def _cell(value: Cell) -> str:
    match value:
        case None:
            return "n/a"
        case Address():
            return f"{value:#x}"
        case Change():
            return f"{value:+,}" if value else "0"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.0f}" if value == int(value) or value >= 1000 else f"{value:.4g}"
    return _clean(value)


def _sort_key(value: Cell) -> str | None:
    """What a number is sorted by; None: by its text."""
    return str(value) if isinstance(value, (int, float)) else None


def _clean(text: str, most: int = MOST_TEXT) -> str:
    return shortened(text, most)


def _share(part: float, whole: float | None) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "–"


def _aria(bar: Bar) -> str:
    """The bar in words, for who cannot see it."""
    held = ", ".join(f"{ROLES[part.role].name} {part.bytes:,} bytes" for part in bar.parts())
    return f"{_clean(bar.title)}, {bar.kind}: {held or 'empty'}"


def data_of(section: Section) -> Mapping[str, Any] | None:
    """The section's JSON unless it is too much for a page."""
    if section.data is None or len(json.dumps(section.data)) > MOST_DATA:
        return None
    return section.data
