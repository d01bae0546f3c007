# SPDX-License-Identifier: Apache-2.0
"""Who refers to whom by a map: object by object.

GNU ld lists for each archive member which object made it come in, and for which symbol; with
``--cref`` both linkers list every symbol with the object that defines it and those that use it.
Objects that no list explains were on the linker's command line.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable

from colibri.fit.elf import Elf, Symbol
from colibri.fit.link_map import LinkMap, PartFinder, object_and_library
from colibri.fit.references import BY_MAP, Graph, Node, Source


def map_source(elf: Elf, found: LinkMap) -> Source:
    """The graph of a map's objects; symbols are looked up by their addresses in it."""
    graph = Graph()
    defined: dict[str, list[str]] = defaultdict(list)
    for symbol, (home, *_) in found.uses.items():
        defined[home].append(symbol)
    for member, (user, symbol) in found.included.items():
        graph.add(user, member, _label(user, symbol))
    for home, symbols in defined.items():
        for symbol in symbols:
            for user in found.uses[symbol][1:]:
                graph.add(user, home, _label(user, symbol))
    files = {*found.included, *(user for user, _ in found.included.values())}
    files.update(file for users in found.uses.values() for file in users)
    graph.roots = {f for f in files if f not in found.included and not object_and_library(f)[1]}
    finder = PartFinder(found)

    def find(symbol: Symbol) -> Node | None:
        home = _home(elf, finder, symbol)
        node: Hashable = ("symbol", symbol.name)
        uses = found.uses.get(symbol.name, [])
        for user in (u for u in uses if u != home):
            graph.add(user, node, _label(user, symbol.name))
        if home is None:
            return node if uses else None
        if found.included.get(home, ("", ""))[1] == symbol.name:
            graph.add(found.included[home][0], node, _label(*found.included[home]))
        elif home not in graph.roots:
            graph.add(home, node, short_file(home))
        return node

    return Source(BY_MAP, graph, find)


def _home(elf: Elf, finder: PartFinder, symbol: Symbol) -> str | None:
    """The object that a defined symbol comes from, written as in the map."""
    if symbol.section is None:
        return None
    section = elf.sections[symbol.section]
    part = finder.at(section.name, section.address, symbol.address)
    if part is None or not part.object:
        return None
    return member_of(part.object, part.library)


def member_of(object: str, library: str) -> str:
    """A file as a map writes it."""
    return f"{library}({object})" if library else object


def _label(user: str, symbol: str) -> str:
    return f"{short_file(user)} for {symbol}"


def short_file(file: str) -> str:
    """``lib.a(member.o)`` or ``main.o``, without folders."""
    member, library = object_and_library(file)
    base = member.replace("\\", "/").rsplit("/", 1)[-1]
    return f"{library.replace(chr(92), '/').rsplit('/', 1)[-1]}({base})" if library else base
