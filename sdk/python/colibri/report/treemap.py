# SPDX-License-Identifier: Apache-2.0
"""Who owns the bytes of a region: a tree whose sums are right by construction, and its picture.

A node with children has the sum of their bytes.  The picture is a treemap of plotly, bounded in
size: of many small things the largest are drawn and the others are one node, with their sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from colibri.report.palette import ROLES, RoleName, text_on
from colibri.units import format_bytes

#: Nodes of one picture; children of one node, tried in this order until they are few enough.
MOST_NODES = 2500
_MOST_CHILDREN = (60, 30, 15, 8, 4, 2)
#: Characters of a name in a picture, and in what appears on hovering.
LABEL, HOVER, _LINE = 48, 240, 80
#: Neutral colours of the levels above the leaves, the outermost first; good on black and white.
_LEVELS = ("#343a44", "#434a56", "#525a67", "#5f6774")


@dataclass(slots=True)
class Node:
    """Bytes with a name.

    ``kind`` is what it is, for people: region, library, object, symbol; a leaf has a role and
    bytes of its own.  ``start`` marks the node that a picture begins with.
    """

    name: str
    kind: str
    role: RoleName | None = None
    own: int = 0
    children: list[Node] = field(default_factory=list)
    start: bool = False

    @property
    def bytes(self) -> int:
        """Of a leaf its own, of others the sum of its children."""
        return sum(child.bytes for child in self.children) if self.children else self.own

    def walk(self) -> Iterator[Node]:
        """The node and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()


class Grower:
    """Adds leaves to a tree, each at a path of (name, kind) from the root; paths are made."""

    def __init__(self, root: Node) -> None:
        self.root = root
        self._inner: dict[tuple[tuple[str, str], ...], Node] = {(): root}
        self._leaves: dict[tuple[int, str, str, RoleName], Node] = {}

    def add(
        self, path: tuple[tuple[str, str], ...], name: str, kind: str, role: RoleName, size: int
    ) -> None:
        """A leaf; one that is there already grows. Nothing comes of 0 bytes."""
        if size <= 0:
            return
        above = self.at(path)
        key = (id(above), name, kind, role)
        if key in self._leaves:
            self._leaves[key].own += size
            return
        self._leaves[key] = Node(name, kind, role, size)
        above.children.append(self._leaves[key])

    def at(self, path: tuple[tuple[str, str], ...]) -> Node:
        """The inner node at a path."""
        if path not in self._inner:
            made = Node(*path[-1])
            self.at(path[:-1]).children.append(made)
            self._inner[path] = made
        return self._inner[path]


def folded(root: Node, most: int = MOST_NODES) -> Node:
    """A copy of at most about `most` nodes: the sums stay, what is small becomes one node."""
    sizes: dict[int, int] = {}
    _measure(root, sizes)
    for children in _MOST_CHILDREN:
        smaller = _fold(root, children, sizes)
        if sum(1 for _ in smaller.walk()) <= most:
            break
    return smaller


def _measure(node: Node, sizes: dict[int, int]) -> int:
    """Bytes of every node, each counted once."""
    size = sum(_measure(child, sizes) for child in node.children) if node.children else node.own
    sizes[id(node)] = size
    return size


def _fold(node: Node, most: int, sizes: dict[int, int]) -> Node:
    ordered = sorted(node.children, key=lambda child: -sizes[id(child)])
    ordered = [child for child in ordered if sizes[id(child)]]
    if len(ordered) == most + 1:  # one more is drawn as itself
        most += 1
    kept = [_fold(child, most, sizes) for child in ordered[:most]]
    rest = ordered[most:]
    if rest:
        kept.append(_together(rest))
    return Node(node.name, node.kind, node.role, node.own, kept, node.start)


def _together(rest: list[Node]) -> Node:
    """One leaf for many nodes, in the colour that most of their bytes have."""
    kinds = {child.kind for child in rest}
    kind = kinds.pop() if len(kinds) == 1 else "part"
    plural = {"library": "libraries"}.get(kind, f"{kind}s")
    sums: dict[RoleName, int] = {}
    for child in rest:
        for node in child.walk():
            if node.role is not None and not node.children:
                sums[node.role] = sums.get(node.role, 0) + node.own
    role = max(sums, key=lambda role: sums[role])
    return Node(f"{len(rest):,} more {plural}", "rest", role, sum(sums.values()))


def figure(root: Node) -> Any:
    """The treemap of one region as a plotly figure."""
    import plotly.graph_objects as go

    columns = _columns(folded(root))
    start = columns.pop("start")
    trace = go.Treemap(
        ids=columns["ids"],
        labels=columns["labels"],
        parents=columns["parents"],
        values=columns["values"],
        text=columns["text"],
        customdata=columns["hover"],
        branchvalues="total",
        level=start[0] if start else None,
        marker={"colors": columns["colours"], "line": {"width": 1, "color": "#ffffff"}, "pad":
                {"t": 22, "l": 3, "r": 3, "b": 3}},
        textfont={"color": columns["inks"]},
        texttemplate="%{label}<br>%{text}",
        hovertemplate="%{customdata}<extra></extra>",
        tiling={"packing": "squarify", "pad": 1},
        pathbar={"visible": True, "thickness": 24},
    )  # fmt: skip
    layout = {
        "template": "none",
        "margin": {"t": 26, "l": 0, "r": 0, "b": 0},
        "height": 440,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 13},
        "uniformtext": {"minsize": 9, "mode": "hide"},
    }
    return go.Figure(trace, layout)


def _columns(root: Node) -> dict[str, list[Any]]:
    """The parallel lists that plotly takes; ids are numbers, so that names may be anything."""
    names = ("ids", "labels", "parents", "values", "text", "hover", "colours", "inks", "start")
    columns: dict[str, list[Any]] = {name: [] for name in names}
    total = root.bytes

    def add(node: Node, parent: str, parent_bytes: int, level: int) -> None:
        size, id_ = node.bytes, f"n{len(columns['ids'])}"
        leaf = node.role is not None and not node.children
        colour = ROLES[node.role].light if leaf and node.role else _LEVELS[min(level, 3)]
        columns["ids"].append(id_)
        columns["parents"].append(parent)
        columns["labels"].append(escaped(shortened(_label(node), LABEL)))
        columns["values"].append(size)
        columns["text"].append(format_bytes(size))
        columns["hover"].append(_hover(node, size, total, parent_bytes))
        columns["colours"].append(colour)
        columns["inks"].append(text_on(colour))
        if node.start:
            columns["start"].append(id_)
        for child in node.children:
            add(child, id_, size, level + 1)

    add(root, "", total, 0)
    return columns


def _label(node: Node) -> str:
    """Of a path the last part: where it lies is said on hovering."""
    paths = ("object", "library", "source")
    return node.name.rsplit("/", 1)[-1] or node.name if node.kind in paths else node.name


def _hover(node: Node, size: int, total: int, parent: int) -> str:
    what = f"{node.kind}, {ROLES[node.role].name}" if node.role else node.kind
    name = shortened(node.name, HOVER)
    lines = [escaped(name[at : at + _LINE]) for at in range(0, len(name), _LINE)]
    shares = f"{_share(size, total)} of the region, {_share(size, parent)} of what it is in"
    return "<br>".join([*lines, what, format_bytes(size, exact=True), shares])


def _share(size: int, whole: int) -> str:
    return f"{100 * size / whole:.1f} %" if whole else "–"


def shortened(text: str, most: int) -> str:
    """At most `most` characters, the middle left out; only characters that show themselves."""
    clean = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    if len(clean) <= most:
        return clean
    tail = most // 3
    return f"{clean[: most - tail - 1]}…{clean[-tail:]}"


def escaped(text: str) -> str:
    """Text for plotly, which takes a few tags for markup."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
