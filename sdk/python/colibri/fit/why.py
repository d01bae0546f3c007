# SPDX-License-Identifier: Apache-2.0
"""Why is this linked?  For any symbol, object or library: the chain to an entry, and its users.

Nothing here changes a verdict.  Chains and users come from :mod:`colibri.fit.references`; objects
and libraries are what a map calls so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from rich.console import Console
from rich.text import Text

from colibri.fit.demangle import demangled
from colibri.fit.elf import Elf, Symbol
from colibri.fit.findings import Chain
from colibri.fit.link_map import LinkMap, object_and_library
from colibri.fit.references import BY_MAP, Graph, References
from colibri.fit.references_map import map_source, member_of, short_file
from colibri.fit.symbol_names import chain_text, fits, is_defined, is_needed, nearest, short, shown

#: Matches of one pattern that are explained, the largest first.
MOST_MATCHES = 20
#: Users of one match in JSON and on screen; ``users_total`` in JSON tells how many there are.
JSON_USERS, SCREEN_USERS = 100, 8
_KINDS = ("symbol", "object", "library")


@dataclass(frozen=True, slots=True)
class Reason:
    """Why one symbol, object or library is there.

    ``users``: who refers to it directly, each with what told it. ``bytes``: of a symbol its size,
    of an object or library what it has in the map.
    """

    kind: str
    name: str
    bytes: int
    where: str
    chain: Chain | None
    users: dict[str, str]


@dataclass(frozen=True, slots=True)
class Why:
    """The answer to one pattern; ``near`` are names that may have been meant."""

    pattern: str
    reasons: tuple[Reason, ...]
    matches: int
    near: tuple[str, ...] = ()
    hint: str = ""


def explain(elf: Elf, references: References, patterns: Sequence[str]) -> list[Why]:
    """Answer every pattern.

    Parameters
    ----------
    elf : Elf
        Any input with symbols or a map.
    references : References
        Its graphs.
    patterns : sequence of str
        Names with ``*``, ``?``, ``[abc]``: of symbols (mangled or plain), and with a map of
        objects, libraries and ``library(object)``, with folders or without; ``symbol:``,
        ``object:`` and ``library:`` in front narrow it.
    """
    found = elf.link_map
    owners = _Owners(found, map_source(elf, found).graph) if patterns and found else None
    return [_answer(elf, references, owners, pattern) for pattern in patterns]


def _answer(elf: Elf, references: References, owners: _Owners | None, pattern: str) -> Why:
    kind, colon, rest = pattern.partition(":")
    narrowed = kind in _KINDS and bool(colon) and not rest.startswith(":")
    kinds, name = ((kind,), rest) if narrowed else (_KINDS, pattern)
    symbols = _symbols(elf, name) if "symbol" in kinds else []
    files = [(k, f) for k in kinds if owners is not None for f in owners.matching(k, name)]
    reasons = [_of_symbol(elf, references, symbol) for symbol in symbols[:MOST_MATCHES]]
    if owners is not None:
        reasons += [owners.reason(k, f) for k, f in files[: MOST_MATCHES - len(reasons)]]
    near: list[str] = []
    if not reasons and "symbol" in kinds:
        near = nearest(name, {s.name for s in elf.symbols if is_defined(s, elf)})
    blind = any(not r.users and not (r.chain and r.chain.complete) for r in reasons)
    hint = references.hint() if blind else ""
    if narrowed and kind != "symbol" and owners is None:
        hint = "objects and libraries are told by the map: give --map FILE"
    return Why(pattern, tuple(reasons), len(symbols) + len(files), tuple(near), hint)


# -- symbols --------------------------------------------------------------------------------------


def _symbols(elf: Elf, pattern: str) -> list[Symbol]:
    """What a pattern means: each place once, static functions of one name apart; largest first."""
    found: dict[tuple[str, int | None, int], Symbol] = {}
    for symbol in elf.symbols:
        there = is_defined(symbol, elf, labels=True) or is_needed(symbol)
        if there and fits(pattern, symbol.name):
            found.setdefault((symbol.name, symbol.section, symbol.address), symbol)
    return sorted(found.values(), key=lambda s: (-s.size, s.name, s.address))


def _of_symbol(elf: Elf, references: References, symbol: Symbol) -> Reason:
    inside = symbol.section is not None
    where = elf.sections[symbol.section or 0].name if inside else symbol.place
    users = references.users(symbol)
    chain = references.chain(symbol)
    return Reason("symbol", symbol.name, symbol.size, where, chain, users)


# -- objects and libraries ------------------------------------------------------------------------


class _Owners:
    """Objects and libraries of a map: their bytes, and the graph of who needs which."""

    def __init__(self, found: LinkMap, graph: Graph) -> None:
        self.graph = graph
        self.sizes: dict[str, int] = defaultdict(int)
        self.members: dict[str, list[str]] = defaultdict(list)
        for section in found.loaded:
            for part in section.parts:
                if part.object and not part.fill:
                    self.sizes[member_of(part.object, part.library)] += part.size
        for file in found.included:
            self.sizes[file] += 0  # a member of which nothing was kept
        for file in self.sizes:
            library = object_and_library(file)[1]
            if library:
                self.members[library].append(file)

    def matching(self, kind: str, pattern: str) -> list[str]:
        if kind == "symbol":
            return []
        names: Iterable[str] = self.sizes if kind == "object" else self.members
        found = [n for n in names if any(fnmatchcase(form, pattern) for form in _forms(n, kind))]
        return sorted(found, key=lambda name: (-self.size(kind, name), name))

    def size(self, kind: str, name: str) -> int:
        return sum(self.sizes[file] for file in self.files(kind, name))

    def files(self, kind: str, name: str) -> list[str]:
        return self.members[name] if kind == "library" else [name]

    def reason(self, kind: str, name: str) -> Reason:
        files = self.files(kind, name)
        own, users = set(files), dict[str, str]()
        for file in files:
            told = self.graph.users(file).items()
            users |= {label: BY_MAP for user, label in told if user not in own}
        return Reason(kind, name, self.size(kind, name), "", self._chain(name, files), users)

    def _chain(self, name: str, files: Sequence[str]) -> Chain | None:
        labels, complete = self.graph.chain(*files)
        if not labels and not object_and_library(files[0])[1]:
            complete = True  # an object that no library has was given to the linker
        return Chain((name, *labels), BY_MAP, complete) if labels or complete else None


def _forms(name: str, kind: str) -> Iterator[str]:
    """What a pattern may be held against: with folders and without, of a member its own name."""
    plain = name.replace("\\", "/")
    yield plain
    if kind == "library":
        yield plain.rsplit("/", 1)[-1]
        return
    yield short_file(name)
    yield object_and_library(plain)[0].rsplit("/", 1)[-1]


# -- JSON and text --------------------------------------------------------------------------------


def why_json(answers: Sequence[Why]) -> list[dict[str, Any]]:
    return [
        {
            "pattern": answer.pattern,
            "matches": [_reason_json(reason) for reason in answer.reasons],
            "matches_total": answer.matches,
            "nearest": list(answer.near),
            "hint": answer.hint,
        }
        for answer in answers
    ]


def _reason_json(reason: Reason) -> dict[str, Any]:
    chain, users = reason.chain, list(reason.users.items())
    return {
        "kind": reason.kind,
        "name": reason.name,
        "demangled": demangled(reason.name) if reason.kind == "symbol" else "",
        "bytes": reason.bytes,
        "section": reason.where,
        "chain": chain.bounded if chain is not None else [],
        "chain_source": chain.source if chain is not None else "",
        "chain_complete": chain is not None and chain.complete,
        "users": [{"name": name, "source": source} for name, source in users[:JSON_USERS]],
        "users_total": len(users),
    }


def show_why(console: Console, answers: Sequence[Why]) -> None:
    """Print every answer: what it is, its chain, who refers to it."""
    for answer in answers:
        console.print(Text(f"why {_plain(answer.pattern)}", style="bold"))
        for reason in answer.reasons:
            for line in _lines(reason):
                console.print(Text(line))
        more = answer.matches - len(answer.reasons)
        if more:
            console.print(Text(f"  {more:,} more that match", style="dim"))
        if not answer.reasons:
            near = f"; nearest: {', '.join(map(shown, answer.near))}" if answer.near else ""
            console.print(Text(f"  nothing that is known is called so{_plain(near)}"))
        if answer.hint:
            console.print(Text(f"  for more: {answer.hint}", style="dim"))
        console.print()


def _lines(reason: Reason) -> Iterator[str]:
    name = shown(reason.name) if reason.kind == "symbol" else short(short_file(reason.name))
    where = f" in {_plain(short(reason.where))}" if reason.where else ""
    yield f"  {reason.kind} {_plain(name)}, {reason.bytes:,} B{where}"
    chain = chain_text(reason.chain).removeprefix(", ")
    yield f"    {_plain(chain) or 'no chain to an entry is known'}"
    users = list(reason.users)
    if users:
        few = ", ".join(_plain(shown(user)) for user in users[:SCREEN_USERS])
        more = f" and {len(users) - SCREEN_USERS:,} more" if len(users) > SCREEN_USERS else ""
        yield f"    referred to by {few}{more}"


def _plain(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)
