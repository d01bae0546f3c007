# SPDX-License-Identifier: Apache-2.0
"""By how much each region grew, and what its growth adds up from."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from colibri.fit.baseline import FIGURES, SECTIONS, Area, Snapshot
from colibri.fit.pairing import Item, Pair


@dataclass(frozen=True, slots=True)
class Delta:
    """One number then and now; ``delta`` is None when either is not known.

    ``was`` is the earlier name where it differs, ``moved`` the places (then, now) where these
    do, ``origin`` the file that it is from. ``least``: whether the number then, and now, is a
    lower bound; of a bound and a number there is no difference.
    """

    name: str
    before: int | None
    after: int | None
    was: str = ""
    moved: tuple[str, str] | None = None
    origin: str = ""
    least: tuple[bool, bool] = (False, False)

    @property
    def delta(self) -> int | None:
        if self.before is None or self.after is None or self.least[0] != self.least[1]:
            return None
        return self.after - self.before

    @property
    def changed(self) -> bool:
        return bool(self.delta) or self.moved is not None


@dataclass(frozen=True, slots=True)
class Cause:
    """What a part of a region's change comes from.

    ``kind``: symbol; section or segment (bytes in it that no symbol tells); image; stack; rest.
    """

    kind: str
    name: str
    delta: int
    section: str = ""
    origin: str = ""


@dataclass(frozen=True, slots=True)
class AreaDelta(Delta):
    """A region, or a group of an object's totals.

    ``causes`` add up to ``delta``, largest first; there are none when that is not known.
    ``figures`` are the other numbers of the region, padding and load span among them.
    """

    figures: tuple[Delta, ...] = ()
    causes: tuple[Cause, ...] = ()


def region_deltas(then: Snapshot, now: Snapshot) -> list[AreaDelta]:
    """Every region of either, those of `now` first; one that only one side has is n/a."""
    old, new = then.regions or {}, now.regions or {}
    absent = Area(dict.fromkeys(FIGURES, 0), {})
    unused = absent if then.asks_no_board and now.asks_no_board else Area({})
    found = []
    for name in dict.fromkeys([*new, *old]):
        before, after = old.get(name, unused), new.get(name, unused)
        used, *figures = (
            Delta(figure, before.figures.get(figure), after.figures.get(figure))
            for figure in FIGURES
        )
        found.append(AreaDelta(name, used.before, used.after, figures=tuple(figures)))
    return found


def explainer(
    then: Snapshot, now: Snapshot, symbols: Iterable[Pair]
) -> Callable[[AreaDelta], tuple[Cause, ...]]:
    """A function that explains an area; symbols whose bytes then are not known explain nothing."""
    by_symbol: dict[str, list[Cause]] = defaultdict(list)
    told: Counter[tuple[str, str]] = Counter()  # bytes now less bytes then, by region and section
    complete = then.symbols is not None and then.symbols.complete
    for pair in symbols:
        if not _charged(pair) or (pair.before is None and not complete):
            continue
        parts: Counter[str] = Counter()
        for item, sign in ((pair.before, -1), (pair.after, 1)):
            for region, size in (item.by_region or {}).items() if item is not None else ():
                parts[region] += sign * size
                told[region, item.section if item is not None else ""] += sign * size
        item = pair.after or pair.before
        assert item is not None
        for region, size in parts.items():
            if size:
                cause = Cause("symbol", item.name, size, item.section, origin_of(item))
                by_symbol[region].append(cause)

    def explain(area: AreaDelta) -> tuple[Cause, ...]:
        if area.delta is None:
            return ()
        causes = [*by_symbol[area.name]]
        old, new = ((s.regions or {}).get(area.name, Area({}, {})).rows for s in (then, now))
        if old is not None and new is not None:
            for kind, name in dict.fromkeys([*new, *old]):
                size = new.get((kind, name), 0) - old.get((kind, name), 0)
                if kind in SECTIONS:
                    size -= told[area.name, name]
                if size:
                    causes.append(Cause(kind, name, size))
        rest = area.delta - sum(cause.delta for cause in causes)
        causes.sort(key=lambda c: (-abs(c.delta), c.name, c.section))
        return (*causes, Cause("rest", "not explained", rest)) if rest else tuple(causes)

    return explain


def _charged(pair: Pair) -> bool:
    """Whether the regions of a pair's bytes are known."""
    return all(i is None or i.by_region is not None for i in (pair.before, pair.after))


def shortened(causes: Sequence[Cause], most: int) -> list[Cause]:
    """The largest causes and one for all others: the sum stays."""
    if len(causes) <= most:
        return list(causes)
    left = causes[most:]
    rest = Cause("rest", f"{len(left):,} more", sum(cause.delta for cause in left))
    return [*causes[:most], rest]


def origin_of(item: Item) -> str:
    """The file that a row is from, as closely as it is known."""
    member = f"{item.library}({item.object})" if item.library and item.object else ""
    return item.source or member or item.library or item.object
