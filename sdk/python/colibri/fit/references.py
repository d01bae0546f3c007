# SPDX-License-Identifier: Apache-2.0
"""Why is a symbol in a firmware?  The chain of references from an entry to it.

There are several sources, each a graph of who refers to whom: relocations and machine code
(``references_elf``), relocations of objects (``references_objects``), a map's lists
(``references_map``).  The best one that leads to an entry is taken, and a chain says which it was.
What no source tells is said, never guessed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from colibri.fit.elf import Elf, Symbol
from colibri.fit.findings import Chain
from colibri.fit.relocations import tables
from colibri.fit.stack.program import MACHINES

Node = Hashable
#: The source whose nodes are files.
BY_MAP = "map, by object"
#: Names of functions that something outside the program calls.
ENTRY_NAMES = frozenset(
    {"main", "_start", "_mainCRTStartup", "Reset_Handler", "reset_handler", "ResetISR"}
)


@dataclass(frozen=True, slots=True)
class Source:
    """One graph, how it is called, and where a symbol is in it (None: it is not)."""

    name: str
    graph: Graph
    find: Callable[[Symbol], Node | None]


class Graph:
    """Who refers to whom.  Nodes are functions, data objects, sections or object files."""

    def __init__(self) -> None:
        self._users: dict[Node, dict[Node, str]] = {}
        self.roots: set[Node] = set()

    def add(self, user: Node, target: Node, label: str) -> None:
        """``user`` refers to ``target``; ``label`` is what to call it as the one that does."""
        if user != target:
            self._users.setdefault(target, {}).setdefault(user, label)

    def users(self, target: Node) -> dict[Node, str]:
        return self._users.get(target, {})

    def merged(self, other: Graph) -> Graph:
        """Both together; of an edge that both have this one's label stays."""
        result = Graph()
        result.roots = self.roots | other.roots
        for graph in (self, other):
            for target, users in graph._users.items():
                for user, label in users.items():
                    result.add(user, target, label)
        return result

    def chain(self, target: Node, *more: Node) -> tuple[list[str], bool]:
        """Labels from the nearest user to a root, and whether one was reached.

        The shortest chain; of several (and of several targets) the one whose edges were added
        first.  Without a root it ends at the nearest node that nothing refers to, or somewhere in
        a circle.
        """
        before: dict[Node, tuple[Node, str] | None] = dict.fromkeys((target, *more))
        waiting, last, loose = deque(before), target, None
        while waiting:
            last = waiting.popleft()
            if last in self.roots:
                return _labels(before, last), True
            users = self.users(last)
            if not users and loose is None:
                loose = last
            for user, label in users.items():
                if user not in before:
                    before[user] = (last, label)
                    waiting.append(user)
        return _labels(before, last if loose is None else loose), False


def _labels(before: dict[Node, tuple[Node, str] | None], end: Node) -> list[str]:
    labels: list[str] = []
    step = before[end]
    while step is not None:
        labels.append(step[1])
        step = before[step[0]]
    return labels[::-1]


class References:
    """Chains of one input; graphs are built when the first chain is asked for.

    Parameters
    ----------
    elf : Elf
        What :func:`colibri.fit.inputs.read_input` made of the files.
    paths : sequence of Path
        These files: objects and archives are read again, with their relocations.
    """

    def __init__(self, elf: Elf, paths: Sequence[Path]) -> None:
        self.elf, self.paths = elf, paths
        self._built: list[Source] = []
        self._rest = self._sources()

    def chain(self, symbol: Symbol) -> Chain | None:
        """From a symbol to an entry; None when no source has anything that refers to it."""
        best: Chain | None = None
        for source in self._each():
            node = source.find(symbol)
            if node is None:
                continue
            labels, complete = source.graph.chain(node)
            if complete or (labels and best is None):
                best = Chain((symbol.name, *labels), source.name, complete)
            if complete:
                return best
        return best

    def users(self, symbol: Symbol) -> dict[str, str]:
        """Who refers to a symbol directly, each with the source that told it first.

        Of a linked ELF functions and objects; what a map tells of files only where nothing else
        does.
        """
        found: dict[str, str] = {}
        for source in self._each():
            if found and source.name == BY_MAP:
                break
            node = source.find(symbol)
            for label in source.graph.users(node).values() if node is not None else ():
                found.setdefault(label, source.name)
        return found

    def hint(self) -> str:
        """What would tell more than was given."""
        from colibri.fit.references_elf import MOST_CODE, code_bytes

        elf, ways = self.elf, list[str]()
        if elf.format not in ("elf", "map") or elf.kind == "relocatable":
            return "the objects that call it may be missing: give them too"
        if elf.link_map is None:
            ways.append("give the map (--map FILE)")
        elif not elf.link_map.uses:
            ways.append("link with -Wl,--cref")
        if elf.format == "elf" and not any(tables(elf)):
            ways.append("link with -Wl,--emit-relocs")
        if elf.machine in MACHINES and find_spec("capstone") is None:
            ways.append('pip install "colibri-sdk[stack]" to read machine code')
        large = elf.machine in MACHINES and code_bytes(elf) > MOST_CODE
        why = f"code of more than {MOST_CODE:,} B is not followed: " if large else ""
        return why + ", or ".join(ways) or "it may be kept by the linker script (KEEP, EXTERN)"

    def _each(self) -> Iterator[Source]:
        yield from self._built
        for source in self._rest:
            self._built.append(source)
            yield source

    def _sources(self) -> Iterator[Source]:
        """From the most exact to the coarsest."""
        from colibri.fit.references_elf import elf_sources
        from colibri.fit.references_map import map_source
        from colibri.fit.references_objects import objects_source

        if self.elf.kind == "relocatable":
            yield objects_source(self.paths)
            return
        if self.elf.format == "elf" and self.elf.sections:
            yield from elf_sources(self.elf)
        if self.elf.link_map is not None:
            yield map_source(self.elf, self.elf.link_map)
