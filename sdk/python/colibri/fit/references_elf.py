# SPDX-License-Identifier: Apache-2.0
"""Who refers to whom in a linked ELF: by kept relocations, by machine code, by words in data.

Nodes are the addresses where functions and objects begin.  Machine code tells direct calls and the
constants that registers hold (:mod:`colibri.fit.stack.walk`); of data, each word that is exactly
a function's address, with its Thumb bit, is a reference to it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator
from importlib.util import find_spec

import numpy as np

from colibri.fit.elf import Elf, Section, Symbol
from colibri.fit.references import ENTRY_NAMES, Graph, Node, Source
from colibri.fit.relocations import is_unwinding, references, tables
from colibri.fit.stack.code_graph import decoder_for
from colibri.fit.stack.program import MACHINES, Program
from colibri.fit.stack.vectors import vector_table
from colibri.fit.stack.walk import walk
from colibri.fit.symbols import hidden

#: Code that is followed; it takes some 15 seconds.
MOST_CODE = 1 << 20
#: Addresses below are too often plain numbers.
SMALL = 1 << 16
_CODE = ("FUNC", "GNU_IFUNC", "LOOS")
#: Tables that start-up code runs, and those that the CPU reads.
_RUN_AT_START = (".init_array", ".preinit_array", ".fini_array", ".ctors", ".dtors")
_VECTORS = ("vector", "isr", "intvec")
_LOOK_BACK = 8


def elf_sources(elf: Elf) -> Iterator[Source]:
    """Graphs of a linked ELF with sections, the most exact first."""
    places = Places(elf)
    exact = Graph()
    exact.roots = set(places.roots())
    name = ""
    if any(tables(elf)):
        name = "relocations"
        _add_relocations(exact, places)
        yield Source(name, exact, places.node)
    readable = elf.machine in MACHINES and find_spec("capstone") is not None
    if readable and code_bytes(elf) <= MOST_CODE:
        exact = exact.merged(_of_code(places))
        name = f"{name} and machine code" if name else "machine code"
        yield Source(name, exact, places.node)
    words = _of_words(places)
    name = f"{name} and words in data" if name else "words in data"
    yield Source(name, exact.merged(words), places.node)


def code_bytes(elf: Elf) -> int:
    """Bytes of the sections that are executed."""
    return sum(s.size for s in elf.sections if s.executable and s.allocated and s.in_file)


class Places:
    """Addresses as nodes: the function or object that covers each, and how it is called."""

    def __init__(self, elf: Elf) -> None:
        self.elf = elf
        self.symbols: dict[int, list[Symbol]] = defaultdict(list)
        for symbol in elf.symbols:
            if _begins(symbol, elf):
                self.symbols[symbol.address].append(symbol)
        self.starts = sorted(self.symbols)
        self.sections = sorted(
            (s for s in elf.sections if s.takes_memory), key=lambda s: (s.address, s.size)
        )
        self._section_starts = [s.address for s in self.sections]
        self._ends = {at: self._end(at) for at in self.starts}

    def _end(self, start: int) -> int:
        """Behind the largest symbol that begins there; one without a size ends at the next."""
        size = max(symbol.size for symbol in self.symbols[start])
        if size:
            return start + size
        index = bisect_right(self.starts, start)
        section = self.section(start)
        end = section.address + section.size if section is not None else start + 1
        return min(end, self.starts[index]) if index < len(self.starts) else end

    def section(self, address: int) -> Section | None:
        index = bisect_right(self._section_starts, address) - 1
        if index < 0:
            return None
        section = self.sections[index]
        return section if address < section.address + section.size else None

    def at(self, address: int) -> Node:
        """The node of an address: a start, a section that is read as a whole, or a place."""
        index = bisect_right(self.starts, address) - 1
        for start in self.starts[max(0, index - _LOOK_BACK + 1) : index + 1][::-1]:
            if address < self._ends[start]:
                return start
        section = self.section(address)
        if section is None:
            return ("nowhere", address)
        if is_unwinding(section) or section.name.startswith(_RUN_AT_START):
            return section.name
        return (section.name, address - section.address)

    def label(self, node: Node) -> str:
        if isinstance(node, int):
            return min(self.symbols[node], key=_preference).name
        if isinstance(node, tuple):
            return f"{node[0]}+{node[1]:#x}"
        return f"{node} (unwinding)" if str(node).startswith(".ARM") else str(node)

    def node(self, symbol: Symbol) -> Node | None:
        """Where a symbol is; the name of one that is not defined."""
        if symbol.place == "UNDEF":
            return ("undefined", symbol.name)
        return self.at(symbol.address) if symbol.section is not None else None

    def roots(self) -> Iterator[Node]:
        """What is called from outside: by the CPU, by start-up code, by name."""
        elf = self.elf
        for section in self.sections:
            if is_unwinding(section) or section.name.startswith(_RUN_AT_START):
                yield section.name
        for start in self.starts:
            if any(symbol.name in ENTRY_NAMES for symbol in self.symbols[start]):
                yield start
        yield from filter(self._is_vectors, self.starts)
        if elf.entry:
            yield self.at(elf.entry & ~1 if elf.machine == "ARM" else elf.entry)

    def _is_vectors(self, start: int) -> bool:
        if any(symbol.kind in _CODE for symbol in self.symbols[start]):
            return False
        section = self.section(start)
        names = [symbol.name for symbol in self.symbols[start] if symbol.size]
        names += [section.name] if section is not None else []
        return any(part in name.lower() for name in names for part in _VECTORS)

    def functions(self) -> Iterator[tuple[int, int]]:
        """Address of each function and the value of pointers to it."""
        for start in self.starts:
            group = [symbol for symbol in self.symbols[start] if symbol.kind in _CODE]
            if group:
                yield start, start | any(symbol.thumb for symbol in group)


def _begins(symbol: Symbol, elf: Elf) -> bool:
    """Whether a symbol begins a function or an object; labels within others do not."""
    if symbol.section is None or symbol.kind not in (*_CODE, "OBJECT", "NOTYPE"):
        return False
    section = elf.sections[symbol.section]
    if not section.takes_memory or hidden(symbol, elf.machine):
        return False
    label = symbol.kind == "NOTYPE" and not symbol.size
    return not label or (section.executable and symbol.binding != "LOCAL")


def _preference(symbol: Symbol) -> tuple[bool, bool, int, str]:
    """The name to show: a function's, a global one, the shortest (printf, not iprintf)."""
    return (symbol.kind == "NOTYPE", symbol.binding == "LOCAL", len(symbol.name), symbol.name)


# -- relocations ----------------------------------------------------------------------------------


def _add_relocations(graph: Graph, places: Places) -> None:
    with places.elf.path.open("rb") as stream:
        for found in references(places.elf, stream):
            target = _target(places, found.symbol, found.addend)
            if target is not None:
                user = places.at(found.place)
                graph.add(user, target, places.label(user))


def _target(places: Places, symbol: Symbol, addend: int | None) -> Node | None:
    if symbol.kind != "SECTION":
        return places.node(symbol) if symbol.kind != "TLS" else None
    if addend is None or symbol.section is None:
        return None
    return places.at(symbol.address + addend)


# -- machine code ---------------------------------------------------------------------------------


def _of_code(places: Places) -> Graph:
    graph, program = Graph(), Program(places.elf)
    decoder = decoder_for(program)
    handlers = vector_table(program)
    named = [pointer for _, pointer in places.functions()]
    entry = [program.pointer(places.elf.entry)] if places.elf.entry else []
    waiting = [p for p in (*named, *entry, *handlers) if program.is_code(program.plain(p))]
    graph.roots = {places.at(program.plain(pointer)) for pointer in handlers}
    seen: set[int] = set()
    while waiting:
        start = program.plain(waiting.pop())
        if start in seen:
            continue
        seen.add(start)
        body = walk(program, decoder, program.function(program.pointer(start)))
        user = places.at(start)
        label = places.label(user)
        calls = [call.target for call in body.calls if call.target is not None]
        for pointer in (p for p in calls if program.is_code(program.plain(p))):
            graph.add(user, places.at(program.plain(pointer)), label)
            waiting.append(pointer)
        for number in sorted(body.constants):
            target = _pointed_at(places, program, number)
            if target is not None:
                graph.add(user, target, label)
    return graph


def _pointed_at(places: Places, program: Program, number: int) -> Node | None:
    """What a constant is the address of: exactly a function, or any place of an object."""
    address = program.plain(number)
    code = program.is_code(address) and program.is_start(address)
    if code and program.pointer(address) == number:
        return places.at(address)
    node = places.at(number)
    if isinstance(node, int):
        is_function = any(symbol.kind in _CODE for symbol in places.symbols[node])
        return None if is_function else node
    return None if isinstance(node, tuple) and node[0] == "nowhere" else node


# -- words in data --------------------------------------------------------------------------------


def _of_words(places: Places) -> Graph:
    """Pointers to functions and objects in data, and in objects that lie among the code."""
    graph, elf = Graph(), places.elf
    pointers = {pointer: start for start, pointer in places.functions() if pointer}
    functions = set(pointers.values())
    pointers |= {at: at for at in places.starts if at >= SMALL and at not in functions}
    thumb = {pointer for pointer, start in pointers.items() if pointer != start}
    wanted = sorted(p for p in pointers if p >= SMALL or p in thumb)
    word = elf.bits // 8
    order = "<" if elf.endian == "little" else ">"
    values = np.array(wanted, dtype=np.uint64)
    for address, data in _data(places):
        lead = -address % word
        words = np.frombuffer(data, f"{order}u{word}", (len(data) - lead) // word, lead)
        for index in np.flatnonzero(np.isin(words, values.astype(words.dtype))).tolist():
            user = places.at(address + lead + word * index)
            graph.add(user, pointers[int(words[index])], places.label(user))
    return graph


def _data(places: Places) -> Iterator[tuple[int, bytes]]:
    with places.elf.path.open("rb") as stream:
        for section in places.sections:
            if not section.in_file or is_unwinding(section):
                continue
            stream.seek(section.offset)
            data = stream.read(section.size)
            if not section.executable:
                yield section.address, data
                continue
            first = bisect_left(places.starts, section.address)
            last = bisect_left(places.starts, section.address + section.size)
            for start in places.starts[first:last]:
                objects = [s.size for s in places.symbols[start] if s.kind == "OBJECT"]
                offset = start - section.address
                if objects:
                    yield start, data[offset : offset + max(objects)]
