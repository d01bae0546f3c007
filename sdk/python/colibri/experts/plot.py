# SPDX-License-Identifier: Apache-2.0
"""Hit rates over slots as a picture: SVG, alone or in a page with the table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from colibri.experts.study import BELADY, POLICIES, Outcome

_WIDTH, _HEIGHT = 460, 320  # of one panel
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 112, 36, 44
_COLOURS = dict(zip(POLICIES, ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#444444"), strict=True))
_FONT = 'font-family="sans-serif" font-size="12"'
_STYLE = (
    "body{font-family:sans-serif;max-width:60em;margin:2em auto}td,th{text-align:right;padding:"
    ".2em .8em}td:nth-child(-n+2),th:nth-child(-n+2){text-align:left}"
)


def svg(outcomes: Iterable[Outcome], experts: int, title: str) -> str:
    """Hit rate over slots per layer: a panel for each way of sharing, a line for each policy."""
    panels: dict[str, dict[str, list[Outcome]]] = {}
    for each in sorted(outcomes, key=lambda outcome: outcome.slots):
        panels.setdefault(each.sharing, {}).setdefault(each.policy, []).append(each)
    width = _WIDTH * len(panels)
    drawn = [
        f'<g transform="translate({_WIDTH * i},0)">{_panel(sharing, lines, experts)}</g>'
        for i, (sharing, lines) in enumerate(panels.items())
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {_HEIGHT}" width="{width}" '
        f'height="{_HEIGHT}" {_FONT}><title>{escape(title)}</title>'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(drawn)}</svg>\n'
    )


def page(
    picture: str,
    title: str,
    notes: Sequence[str],
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
) -> str:
    """An HTML page of its own with the picture, what is to be said, and the table."""
    cells = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n" for row in rows
    )
    said = "".join(f"<p>{escape(note)}</p>\n" for note in notes)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}'
        f"</title><style>{_STYLE}</style></head>\n<body><h1>{escape(title)}</h1>\n{picture}{said}"
        f"<table><tr>{cells}</tr>\n{body}</table></body></html>\n"
    )


def _panel(sharing: str, lines: Mapping[str, Sequence[Outcome]], experts: int) -> str:
    parts = [_text(_LEFT, 20, f"hit rate, slots {sharing}", 'font-weight="bold"'), *_axes(experts)]
    ends: list[tuple[float, str]] = []
    for policy, outcomes in lines.items():
        points = [(_x(each.slots, experts), _y(each.hit_rate)) for each in outcomes]
        dash = ' stroke-dasharray="5 3"' if policy == BELADY else ""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        look = f'fill="none" stroke="{_COLOURS[policy]}" stroke-width="2"{dash}'
        parts.append(f'<polyline points="{path}" {look}/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{_COLOURS[policy]}"/>'
                  for x, y in points]  # fmt: skip
        ends.append((sum(y for _, y in points) / len(points), policy))
    # The legend has the order of the lines, the best on top.
    for i, (_, policy) in enumerate(sorted(ends)):
        y = _TOP + 12 + 18 * i
        parts.append(_text(_WIDTH - _RIGHT + 14, y, policy, f'fill="{_COLOURS[policy]}"'))
    return "".join(parts)


def _axes(experts: int) -> list[str]:
    parts = []
    for percent in range(0, 101, 25):
        y = _y(percent / 100)
        parts.append(_line(_LEFT, y, _WIDTH - _RIGHT, y))
        parts.append(_text(_LEFT - 6, y + 4, f"{percent} %", 'text-anchor="end"'))
    for quarter in range(5):
        slots = experts * quarter / 4
        x = _x(slots, experts)
        parts.append(_line(x, _TOP, x, _HEIGHT - _BOTTOM))
        parts.append(_text(x, _HEIGHT - _BOTTOM + 16, f"{slots:g}", 'text-anchor="middle"'))
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    words = f"slots per layer, of {experts} experts"
    parts.append(_text(middle, _HEIGHT - 8, words, 'text-anchor="middle"'))
    return parts


def _x(slots: float, experts: int) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * slots / experts


def _y(rate: float) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * rate


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="#ddd"/>'


def _text(x: float, y: float, words: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(words)}</text>'
