# SPDX-License-Identifier: Apache-2.0
"""A verdict as bars, as trees, and as a section of a page. All its figures are counted.

A tree has the levels that something is known of: with a map library and object, with debug
information source folder and source, else the section; then the symbol. What nobody owns, the
fill, the model image and the reserved stack are nodes of their own, so a region's children add up
to what it uses.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence

from colibri.fit.attribution import (
    FILL_NAME,
    LINKER,
    NO_LIBRARY,
    NO_SOURCE,
    UNATTRIBUTED,
    Owned,
    Share,
)
from colibri.fit.budgets import Figure
from colibri.fit.compare import Comparison
from colibri.fit.elf import IMAGE_FORMATS
from colibri.fit.format_compare import remark
from colibri.fit.growth import AreaDelta, Delta, shortened
from colibri.fit.memory_map import OWN, Row, Usage, group_of
from colibri.fit.stack.analysis import StackReport
from colibri.fit.symbol_names import chain_text, readable
from colibri.fit.symbols import STACK_NAME
from colibri.fit.verdict import Verdict
from colibri.fit.why import SCREEN_USERS, Why
from colibri.report.bars import Bar, Piece
from colibri.report.page import Cell, Change, Section, Table, VerdictRow
from colibri.report.palette import RoleName
from colibri.report.treemap import Grower, Node

_ROLES: dict[str, RoleName] = {"text": "code", "rodata": "constants", "data": "data", "bss": "bss"}
_KINDS: dict[str, RoleName] = {
    "segment": "unattributed",
    "image": "weights",
    "stack": "stack",
    "application": "application",
}
#: Causes of one region's change that are listed.
_CAUSES = 200
_PLACES = {"both": "run and load", "run": "run", "load": "load", "loose": "beside the ELF"}
_SUMMARIES = {
    "fits": "Everything has a place and keeps its budget.",
    "over": "Something has no place, or more than its budget: see the findings.",
    "unknown": "Sizes without a verdict: see the findings.",
}
_OWNERS = {
    "groups": "group",
    "libraries": "library",
    "objects": "object",
    "directories": "source folder",
    "sources": "source",
}
_Path = tuple[tuple[str, str], ...]


# -- bars -----------------------------------------------------------------------------------------


def bars(verdict: Verdict) -> list[Bar]:
    """A bar for each region, in the board's order; none for an object, which has no addresses."""
    roles = _Roles(verdict)
    figures = {figure.name: figure for figure in verdict.figures}
    return [
        _bar(usage, roles, figures.get(f"region.{usage.region.name}"))
        for usage in verdict.map.usages
    ]


def _bar(usage: Usage, roles: _Roles, figure: Figure | None) -> Bar:
    region = usage.region
    pieces = [_piece(row, roles) for row in usage.rows if row.bytes]
    pieces += [
        Piece(part.reason or "reserved", "reserved", part.size, region.base + part.offset)
        for part in region.reserved
    ]
    marks = (figure.warn, figure.limit) if figure is not None else (None, None)
    warn, limit = (None if mark is None else int(mark) for mark in marks)
    return Bar(
        region.name,
        region.base,
        region.size,
        tuple(pieces),
        warn,
        limit,
        f"{usage.padding:,} B of padding between stored bytes, not counted" * bool(usage.padding),
        beyond=usage.overflow,
    )


def _piece(row: Row, roles: _Roles) -> Piece:
    name = f"{row.name} (load image)" if row.role == "load" else row.name
    start = None if row.role == "loose" else row.address
    return Piece(name, roles.row(row), row.bytes, start)


class _Roles:
    """What bytes are for: of a section by its flags; the reserved stack by its address."""

    def __init__(self, verdict: Verdict) -> None:
        self.elf = verdict.elf
        self.stacks = [p for p in verdict.map.places if p.kind == "stack"]

    def row(self, row: Row) -> RoleName:
        if row.section is None or row.kind != "section":
            return _KINDS.get(row.kind, "unattributed")
        return self.section(row.section)

    def section(self, index: int) -> RoleName:
        if self.elf.format in IMAGE_FORMATS:
            return "unattributed"  # bytes at addresses: nothing tells what they are for
        section = self.elf.sections[index]
        for stack in self.stacks:  # whatever section it lies in
            inside = section.address + section.size <= stack.address + stack.size
            if inside and stack.address <= section.address:
                return "stack"
        return _ROLES[group_of(section)]


# -- trees ----------------------------------------------------------------------------------------


def trees(verdict: Verdict) -> list[Node]:
    """A tree for each region that is used; of objects for each group of their totals."""
    forest = _Forest(verdict)
    made = [forest.region(usage) for usage in verdict.map.usages]
    if verdict.elf.kind == "relocatable":
        made = [forest.group(name, size) for name, size in verdict.map.totals.items()]
    if verdict.map.outside:
        made.append(forest.outside())
    return [tree for tree in made if tree.bytes]


class _Forest:
    """Grows the trees of one verdict."""

    def __init__(self, verdict: Verdict) -> None:
        self.elf = verdict.elf
        self.verdict = verdict
        self.roles = _Roles(verdict)
        owners = verdict.attribution
        self.by = "object" if owners.objects else "source" if owners.sources else "section"
        self.sections: dict[str, RoleName] = {}
        for section in self.elf.sections:
            if section.takes_memory:
                self.sections.setdefault(section.name, self.roles.section(section.index))
        self.owned: dict[str, list[tuple[Owned, int]]] = {}
        for part in owners.owned:
            for name, size in part.charged.items():
                self.owned.setdefault(name, []).append((part, size))

    def region(self, usage: Usage) -> Node:
        """What a region uses. Beside a model image the rest is one node, where pictures begin."""
        root = Node(usage.region.name, "region")
        grower = Grower(root)
        image = any(row.kind == "image" and row.bytes for row in usage.rows)
        base: _Path = (("all but the model image", "firmware"),) if image else ()
        if image:
            grower.at(base).start = True
        for row in usage.rows:
            if row.kind in OWN:
                above = () if row.kind == "image" else base
                grower.add(above, row.name, row.kind, self.roles.row(row), row.bytes)
        rest = [row for row in usage.rows if row.kind not in OWN]
        left = self._add_owned(grower, base, usage.region.name, sum(row.bytes for row in rest))
        if self.by == "section":
            left = self._add_sections(grower, base, usage.region.name, rest, left)
        grower.add(base, UNATTRIBUTED, "rest", "unattributed", left)
        root.children = [child for child in root.children if child.bytes]
        return root

    def group(self, name: str, size: int) -> Node:
        """A group of an object's totals."""
        root = Node(name, "group")
        grower = Grower(root)
        left = self._add_owned(grower, (), name, size)
        grower.add((), UNATTRIBUTED, "rest", "unattributed", left)
        return root

    def outside(self) -> Node:
        root = Node("outside every region", "region")
        grower = Grower(root)
        for row in self.verdict.map.outside:
            grower.add((), row.name, row.kind, self.roles.row(row), row.bytes)
        return root

    def _add_owned(self, grower: Grower, base: _Path, region: str, size: int) -> int:
        """Adds what somebody owns; what is left of `size` is nobody's."""
        for part, taken in self.owned.get(region, ()):
            role = self.sections.get(part.section, "unattributed")
            size -= taken
            if part.object == FILL_NAME and not part.symbol:
                role = "stack" if role == "stack" else "padding"
                grower.add(base, f"{FILL_NAME} {part.section}", "fill", role, taken)
            elif part.symbol == STACK_NAME:
                grower.add(base, STACK_NAME, "stack", "stack", taken)
            elif part.symbol:
                grower.add((*base, *self._path(part)), readable(part.symbol), "symbol", role, taken)
            else:
                name = f"{part.section}, no symbol"
                grower.add((*base, *self._path(part)), name, "rest", role, taken)
        return size

    def _path(self, part: Owned) -> _Path:
        if self.by == "object":
            if part.object in (FILL_NAME, LINKER):
                return ((part.object, "object"),)
            return ((part.library or NO_LIBRARY, "library"), (part.object, "object"))
        if self.by == "source" and part.source:
            folder = posixpath.dirname(part.source) or NO_SOURCE
            return ((folder, "folder"), (part.source, "source"))
        if self.by == "source":
            return ((NO_SOURCE, "folder"), (part.section, "section"))
        return ((part.section, "section"),)

    def _add_sections(
        self, grower: Grower, base: _Path, region: str, rows: Sequence[Row], left: int
    ) -> int:
        """Adds what symbols leave of each section, `left` bytes in all.

        Of sections that overlap a symbol may have bytes that another one's row was charged, so
        no more than what is left is added.
        """
        sizes: dict[tuple[str, str, RoleName], int] = {}
        for row in rows:
            key = (row.name, row.kind, self.roles.row(row))
            sizes[key] = sizes.get(key, 0) + row.bytes
        taken: dict[str, int] = {}
        for part, size in self.owned.get(region, ()):
            taken[part.section] = taken.get(part.section, 0) + size
        for (name, kind, role), size in sizes.items():
            own = min(size, taken.get(name, 0)) if kind == "section" else 0
            rest = min(size - own, left)
            left -= rest
            if kind == "section" and name in taken:
                taken[name] -= own
                grower.add((*base, (name, "section")), "no symbol", "rest", role, rest)
            else:
                grower.add(base, name, kind, role, rest)
        return left


# -- a section of a page --------------------------------------------------------------------------


def size_section(verdict: Verdict, comparison: Comparison | None = None) -> Section:
    """All that `colibri size` knows of a firmware."""
    from colibri.fit.format import as_json

    elf = verdict.elf
    return Section(
        title=elf.path.name,
        status=verdict.verdict,
        summary=_SUMMARIES[verdict.verdict],
        facts=tuple(_facts(verdict, comparison)),
        bars=bars(verdict),
        trees=trees(verdict),
        tables=tuple(_tables(verdict, comparison)),
        findings=verdict.findings,
        rule=verdict.map.rule,
        data=as_json(verdict, comparison),
    )


def size_rows(verdict: Verdict) -> list[VerdictRow]:
    """Every figure that is held to a mark."""
    board = verdict.map.board or "-"
    return [
        VerdictRow(board, "size", f.what, f.value, f.limit if f.limit is not None else f.warn,
                   f.status, f.unit, f.kind)
        for f in verdict.figures
        if f.held
    ]  # fmt: skip


def _facts(verdict: Verdict, comparison: Comparison | None) -> Iterator[tuple[str, str]]:
    elf, placed = verdict.elf, verdict.map
    known = "linker script" if elf.memory else "none given"
    yield "board", placed.board or known
    yield "file", f"{elf.kind}, {elf.format}"
    if elf.machine:
        yield "machine", f"{elf.machine}, {elf.bits} bits, {elf.endian} endian"
    yield "totals", ", ".join(f"{name} {size:,}" for name, size in placed.totals.items())
    if placed.inexact:
        yield "result", "inexact"
    if comparison is not None:
        yield "baseline", comparison.source + (", no change" * (not comparison.changed))


def _tables(verdict: Verdict, comparison: Comparison | None) -> Iterator[Table]:
    if comparison is not None:
        yield from _comparison(comparison)
    usages, elf = verdict.map.usages, verdict.elf
    columns = ("region", ">used", ">of", ">free", ">overflow", ">padding", ">unattributed")
    yield Table("Regions", columns, [
        (u.region.name, u.used, u.region.capacity, u.free, u.overflow, u.padding, u.unattributed)
        for u in usages
    ])  # fmt: skip
    rows = [(u.region.name, row) for u in usages for row in u.rows if row.bytes]
    rows += [("outside", row) for row in verdict.map.outside]
    rows.sort(key=lambda pair: -pair[1].bytes)
    placed = [(name, row.name, row.kind, _PLACES[row.role], row.bytes) for name, row in rows]
    yield Table("Where it goes", ("region", "what", "kind", "place", ">bytes"), placed)
    yield Table("Symbols", ("symbol", "region", "section", "object", "source", ">bytes"), [
        (readable(s.name), " + ".join(r for r in (s.region, s.load_region) if r),
         elf.sections[s.section].name, f"{s.library}({s.object})" if s.library else s.object,
         s.source, s.size)
        for s in verdict.symbols
    ])  # fmt: skip
    for name, word in _OWNERS.items():
        yield _owners(f"By {word}", word, getattr(verdict.attribution, name))
    yield _why(verdict.why)
    if verdict.stack is not None:
        yield from _stack(verdict.stack, verdict.map.stack_bytes)


def _owners(title: str, word: str, shares: Sequence[Share]) -> Table:
    regions = list(dict.fromkeys(region for share in shares for region in share.bytes))
    columns = (word, *(f">{region}" for region in regions), ">all")
    rows: list[tuple[Cell, ...]] = [
        (
            f"{share.library}({share.name})" if share.library else share.name,
            *(share.bytes.get(region, 0) for region in regions),
            share.total,
        )
        for share in shares
    ]
    return Table(title, columns, rows)


def _why(answers: Sequence[Why]) -> Table:
    """What was asked for with ``--why``."""
    rows = [
        (readable(reason.name), reason.kind, reason.bytes,
         chain_text(reason.chain).removeprefix(", "), len(reason.users),
         ", ".join(map(readable, list(reason.users)[:SCREEN_USERS])))
        for answer in answers
        for reason in answer.reasons
    ]  # fmt: skip
    columns = ("name", "kind", ">bytes", "chain to an entry", ">users", "the first of them")
    return Table("Why it is linked", columns, rows)


def _stack(report: StackReport, reserved: int) -> Iterator[Table]:
    of = f" of {reserved:,} B reserved" if reserved else ""
    least = "" if report.complete else "at least "
    together = f"Together {least}{report.bytes:,} B{of}: the deepest thread, and one interrupt of "
    columns = ("entry", "role", ">bytes", "complete", "deepest chain (function: its bytes)")
    rows = [
        (
            entry.name,
            entry.role,
            entry.bound.bytes,
            "yes" if entry.bound.complete else "no: a lower bound",
            ", ".join(f"{link.name}: {link.bytes:,}" for link in entry.bound.chain),
        )
        for entry in report.entries
    ]
    yield Table("Worst-case stack", columns, rows, f"{together}each priority on top of it.")
    levels = [(level.priority, level.name, level.bytes) for level in report.levels]
    yield Table("Interrupts by priority", (">priority", "deepest", ">bytes"), levels)
    unknown = dict.fromkeys(u for entry in report.entries for u in entry.bound.unknown)
    rest = [(one.function, one.what) for one in unknown]
    yield Table("Unknown: the stack may be deeper there", ("function", "what"), rest)


def _comparison(comparison: Comparison) -> Iterator[Table]:
    """Regions (of objects: totals) and what their changes add up from; then every table."""
    given = [a for a in comparison.regions or comparison.totals if a.changed or a.delta is None]
    areas = [row for area in given for row in _area(area)]
    columns = ("region", "what", ">before", ">now", ">change", "remark")
    note = "; ".join(comparison.notes)
    yield Table(f"Against {comparison.source}", columns, areas, note)
    for name, deltas in comparison.tables.items():
        rows = [_delta(delta) for delta in deltas or ()]
        word = {"sections": "section", "symbols": "symbol", **_OWNERS}[name]
        yield Table(f"Changed by {word}", (word, *columns[2:]), rows)
    stack = [_delta(delta) for delta in comparison.stack or ()]
    yield Table("Worst-case stack, then and now", ("entry", *columns[2:]), stack)


def _area(area: AreaDelta) -> Iterator[tuple[Cell, ...]]:
    yield area.name, "all", *_delta(area)[1:]
    for figure in area.figures:
        if figure.changed:
            yield area.name, figure.name.replace("_", " "), *_delta(figure)[1:]
    for cause in shortened(area.causes, _CAUSES):
        yield area.name, cause.name, "", "", Change(cause.delta), f"{cause.kind} {cause.section}"


def _delta(delta: Delta) -> tuple[Cell, ...]:
    change = None if delta.delta is None else Change(delta.delta)
    before, after = (
        f"at least {value:,}" if least and value is not None else value
        for value, least in zip((delta.before, delta.after), delta.least, strict=True)
    )
    return delta.name, before, after, change, remark(delta)
