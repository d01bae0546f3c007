# SPDX-License-Identifier: Apache-2.0
"""Which symbol, section or object of one build is which of another.

Names are not enough: compilers number what has no unique name (``buf.0``, ``.str.12``,
``parse.llvm.4711``), and clone functions (``parse.constprop.0``, ``parse.part.1``, ``parse.cold``)
at will. The rule, from exact to loose; each step pairs what the steps before left over:

1. the same name, without numbers, from the same file, of the same size, then of any size;
2. the same name, without numbers, from a file of the same name (a build in another folder);
3. the same name, without numbers, from anywhere;
4. the same name without what compilers append to it.

Where a step leaves several candidates, those of equal section and size go together first, then
largest with largest. What is left is gone, or new. Sizes are never added up, so pairing decides
which rows are shown and not what they sum to. Of a list that was cut off, only equal names are
paired: what looks renamed may be in the part that is missing.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

#: What compilers append to the name of a function that they clone, split or make unique.
CLONES = frozenset(
    ("clone", "cold", "constprop", "isra", "localalias", "lto_priv", "part", "specialized")
)
_HASHED = frozenset(("llvm", "__uniq"))
_RUST_HASH = re.compile(r"17h[0-9a-f]{16}E\Z")


@dataclass(frozen=True, slots=True)
class Item:
    """A row of a table: its bytes, where they are, and the file that they are from.

    ``by_region`` has the bytes charged to each region, None when that is not known; ``region``
    and ``section`` say where it runs (None and empty: not known).
    """

    name: str
    size: int
    by_region: Mapping[str, int] | None = None
    region: str | None = None
    section: str = ""
    library: str = ""
    object: str = ""
    source: str = ""


Key = Callable[[Item], Hashable]


@dataclass(frozen=True, slots=True)
class Pair:
    """A row then and now; None: it was not there then, or is not now."""

    before: Item | None
    after: Item | None

    @property
    def name(self) -> str:
        item = self.after or self.before
        assert item is not None
        return item.name

    @property
    def moved(self) -> tuple[str, str] | None:
        """Place then and now, where both are known and differ."""
        then, now = self.before, self.after
        if then is None or now is None:
            return None
        regions = then.region is not None and now.region is not None
        sections = bool(then.section and now.section) and _home(then) != _home(now)
        if not sections and not (regions and then.region != now.region):
            return None
        return _place(then, sections), _place(now, sections)


def stable_name(name: str) -> str:
    """A name without the numbers and hashes that change from build to build.

    >>> stable_name("buf.12"), stable_name("parse.constprop.0"), stable_name("go.llvm.4711")
    ('buf', 'parse.constprop', 'go')
    """
    head, *rest = _RUST_HASH.sub("E", name).split(".")
    return ".".join([head, *(part for part in rest if not _number(part) and part not in _HASHED)])


def plain_name(name: str) -> str:
    """A name without all that compilers append.

    >>> plain_name("parse.isra.0.constprop.1"), plain_name(".text.hot")
    ('parse', '.text.hot')
    """
    parts = stable_name(name).split(".")
    while len(parts) > 1 and parts[-1] in CLONES:
        parts.pop()
    return ".".join(parts)


def pair_symbols(
    before: Sequence[Item], after: Sequence[Item], *, exact: bool = False
) -> list[Pair]:
    """Symbols by the rule above; ``exact``: `before` was cut off."""
    names = {item.name for items in (before, after) for item in items}
    stable = {name: name if exact else stable_name(name) for name in names}
    plain = {name: name if exact else plain_name(name) for name in names}

    def file(item: Item) -> Hashable:
        return item.source, item.library, item.object

    def file_name(item: Item) -> Hashable:
        return tuple(map(posixpath.basename, (item.source, item.library, item.object)))

    def anywhere(_: Item) -> Hashable:
        return None

    keys: list[Key] = []
    for named, origin in (
        (stable, file),
        (stable, file_name),
        (stable, anywhere),
        (plain, anywhere),
    ):
        keys += _closer(named, origin)
    shared = {plain[item.name] for item in before} & {plain[item.name] for item in after}
    old, new = ([i for i in items if plain[i.name] in shared] for items in (before, after))
    gone = (Pair(item, None) for item in before if plain[item.name] not in shared)
    come = (Pair(None, item) for item in after if plain[item.name] not in shared)
    return [*pair(old, new, keys), *gone, *come]


def _closer(names: Mapping[str, str], origin: Key) -> Iterable[Key]:
    yield lambda i: (names[i.name], origin(i), i.size, i.section, i.name)
    yield lambda i: (names[i.name], origin(i), i.size)
    yield lambda i: (names[i.name], origin(i))


def pair_owners(before: Iterable[Item], after: Iterable[Item]) -> list[Pair]:
    """Objects, libraries and sources by path, what is left by the names of the files."""
    return pair(
        before,
        after,
        (
            lambda i: (i.library, i.name),
            lambda i: (posixpath.basename(i.library), posixpath.basename(i.name)),
        ),
    )


def pair_names(before: Iterable[Item], after: Iterable[Item]) -> list[Pair]:
    """Sections, groups and folders: by name."""
    return pair(before, after, (lambda i: i.name,))


def pair(before: Iterable[Item], after: Iterable[Item], keys: Iterable[Key]) -> list[Pair]:
    """Pair rows whose key is equal, key by key; the rest is gone or new."""
    old, new = _in_order(before), _in_order(after)
    pairs: list[Pair] = []
    for key in keys:
        if not old or not new:
            break
        waiting: dict[Hashable, list[int]] = {key(item): [] for item in new}
        for index in reversed(range(len(old))):
            candidates = waiting.get(key(old[index]))
            if candidates is not None:
                candidates.append(index)
        taken, unpaired = set(), []
        for item in new:
            if candidates := waiting[key(item)]:
                index = candidates.pop()
                taken.add(index)
                pairs.append(Pair(old[index], item))
            else:
                unpaired.append(item)
        old, new = [item for index, item in enumerate(old) if index not in taken], unpaired
    return [*pairs, *(Pair(item, None) for item in old), *(Pair(None, item) for item in new)]


def _in_order(items: Iterable[Item]) -> list[Item]:
    return sorted(items, key=lambda i: (-i.size, i.name, i.library, i.object, i.source, i.section))


def _home(item: Item) -> str:
    """The section; of an object, without the symbol's own name at its end."""
    return item.section.removesuffix(f".{item.name}")


def _place(item: Item, with_section: bool) -> str:
    return " ".join(filter(None, (item.region, item.section if with_section else "")))


def _number(part: str) -> bool:
    return part.isascii() and part.isdecimal()
