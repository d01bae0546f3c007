# SPDX-License-Identifier: Apache-2.0
"""Who refers to whom among objects and archives: by the relocations of their sections.

Nodes are sections, as for a linker that drops what nothing needs: what refers to one function of
a section keeps all of it.  Undefined symbols are looked up among all members.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path

from colibri.fit.archive import read_members
from colibri.fit.elf import Elf, Section, Symbol, read_elf_bytes
from colibri.fit.objects import is_archive
from colibri.fit.references import ENTRY_NAMES, Graph, Node, Source
from colibri.fit.relocations import is_unwinding, references
from colibri.fit.symbols import hidden


def objects_source(paths: Sequence[Path]) -> Source:
    """The graph of object files and archives that are given together."""
    members = [_Member(i, *named) for i, named in enumerate(_objects(paths))]
    defined: dict[str, Node] = {}
    for weak in (False, True):
        for member in members:
            for symbol in member.elf.symbols:
                if symbol.section is not None and symbol.binding == ("WEAK", "GLOBAL")[not weak]:
                    defined.setdefault(symbol.name, member.node(symbol.section))
    graph = Graph()
    for member in members:
        member.add_to(graph, defined)
    entries = {defined[name] for name in ENTRY_NAMES if name in defined}
    graph.roots = entries or {node for m in members for node in m.nodes() if not graph.users(node)}

    def find(symbol: Symbol) -> Node | None:
        if symbol.place == "UNDEF" or symbol.binding != "LOCAL":
            return defined.get(symbol.name, ("undefined", symbol.name))
        homes = (m.home(symbol.name) for m in members)
        return next((node for node in homes if node is not None), None)

    return Source("relocations of sections", graph, find)


def _objects(paths: Sequence[Path]) -> Iterator[tuple[str, bytes]]:
    for path in paths:
        with path.open("rb") as stream:
            data = stream.read(8)
            data = b"" if is_archive(data) else data + stream.read()
        if data:
            yield path.name, data
            continue
        for member in read_members(path):
            if member.data.startswith(b"\x7fELF"):
                yield f"{path.name}({member.name})", member.data


class _Member:
    """One object: its sections as nodes, and the functions in them by offset."""

    def __init__(self, number: int, name: str, data: bytes) -> None:
        self.number, self.name, self.data = number, name, data
        self.elf: Elf = read_elf_bytes(data, Path(name))
        self.starts: dict[int, list[tuple[int, str]]] = {}
        for symbol in self.elf.symbols:
            named = not hidden(symbol, self.elf.machine) and symbol.kind != "SECTION"
            if symbol.section is not None and named:
                entry = (symbol.address, symbol.name)
                self.starts.setdefault(symbol.section, []).append(entry)
        for entries in self.starts.values():
            entries.sort()

    def node(self, section: int) -> Node:
        return (self.number, section)

    def nodes(self) -> Iterator[Node]:
        return (self.node(s.index) for s in self.elf.sections if s.allocated)

    def home(self, name: str) -> Node | None:
        """The section of a local symbol."""
        found = (s.section for s in self.elf.symbols if s.name == name and s.section is not None)
        section = next(found, None)
        return None if section is None else self.node(section)

    def add_to(self, graph: Graph, defined: dict[str, Node]) -> None:
        for found in references(self.elf, BytesIO(self.data)):
            symbol, section = found.symbol, self._user(found.section)
            if symbol.binding == "WEAK" and symbol.place == "UNDEF" and symbol.name not in defined:
                continue
            target: Node = ("undefined", symbol.name)
            if symbol.section is not None and symbol.binding == "LOCAL":
                target = self.node(symbol.section)
            elif symbol.name in defined:
                target = defined[symbol.name]
            place = found.place if section is found.section else 0
            graph.add(self.node(section.index), target, self._label(section, place))

    def _user(self, section: Section) -> Section:
        """Unwinding tables are their functions' own."""
        linked = is_unwinding(section) and 0 < section.link < len(self.elf.sections)
        return self.elf.sections[section.link] if linked else section

    def _label(self, section: Section, place: int) -> str:
        """The function or object that begins nearest before a place."""
        entries = self.starts.get(section.index, [])
        index = bisect_right(entries, (place, "\U0010ffff")) - 1
        return entries[index][1] if index >= 0 else f"{section.name} of {self.name}"
