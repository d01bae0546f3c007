# SPDX-License-Identifier: Apache-2.0
"""What of a verdict is shown: how many rows, which symbols, source folders how deep.

No size, finding or exit code depends on it.
"""

from __future__ import annotations

import csv
import io
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from colibri.errors import SizeError
from colibri.fit.attribution import NOT_SOURCES, Share, pattern_rule
from colibri.fit.demangle import demangled
from colibri.fit.symbols import OwnSymbol
from colibri.fit.verdict import Verdict
from colibri.text_files import write_text

#: Columns of ``--csv``; ``aliases`` are parted by spaces, sizes are bytes, the address is decimal.
CSV_COLUMNS = (
    "name", "demangled", "bytes", "region", "load_region", "section", "address", "kind",
    "declared_size", "object", "library", "source", "aliases",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class View:
    """How much of a verdict is shown.

    Attributes
    ----------
    top : int, optional
        Rows of the tables of symbols, of what regions hold, and of owners; 0: all of them. None:
        12 on screen, 1,000 in JSON.
    filters : tuple of str
        Only symbols that one of these patterns means: by name, or as in a group
        (:class:`colibri.fit.attribution.Grouping`).
    depth : int, optional
        Source folders as a tree of so many levels, with the sums of each.
    """

    top: int | None = None
    filters: tuple[str, ...] = ()
    depth: int | None = None

    def rows(self, usual: int) -> int | None:
        """The end of a slice."""
        return usual if self.top is None else self.top or None

    def symbols(self, verdict: Verdict) -> list[OwnSymbol]:
        """The symbols that are shown, largest first.

        Raises
        ------
        SizeError
            A filter with a prefix that is none.
        """
        if not self.filters:
            return verdict.symbols
        rules = [pattern_rule("--filter", pattern) for pattern in self.filters]
        return [
            symbol
            for symbol in verdict.symbols
            if any(_means(what, pattern, symbol, verdict) for what, pattern in rules)
        ]


def _means(what: str, pattern: re.Pattern[str], symbol: OwnSymbol, verdict: Verdict) -> bool:
    owners = (symbol.object, symbol.library, f"{symbol.library}({symbol.object})", symbol.source)
    match what:
        case "symbol" | "":
            names = (symbol.name, *symbol.aliases)
            texts: Iterable[str] = names if what else (*names, *owners)
            if any(pattern.fullmatch(demangled(name)) for name in names):
                return True
        case "section":
            texts = (verdict.elf.sections[symbol.section].name,)
        case "region":
            texts = symbol.charged
        case _:
            texts = (str(getattr(symbol, what)),)
    return any(text and pattern.fullmatch(text) for text in texts)


# -- a tree of source folders ---------------------------------------------------------------------


@dataclass(slots=True)
class Folder:
    """A folder with the bytes of all below it; ``level`` 0 is what all have in common."""

    path: str
    level: int
    bytes: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(self.bytes.values())


def folders(directories: Sequence[Share], depth: int) -> list[Folder]:
    """Source folders in the order of a tree, larger ones first, down to `depth` levels.

    Each has the sum of everything below it, deeper levels included; what has no source follows
    as rows of level 0. Level 1 begins below the folder that all sources share.
    """
    known = [share for share in directories if share.name not in NOT_SOURCES]
    rest = [Folder(s.name, 0, dict(s.bytes)) for s in directories if s not in known]
    if not known:
        return rest
    paths = {share.name: _parts(share.name) for share in known}
    shared = _shared(list(paths.values()))
    found: dict[tuple[str, ...], Folder] = {}
    for share in known:
        parts = paths[share.name]
        for end in range(len(shared), min(len(parts), len(shared) + depth) + 1):
            path = posixpath.join(*parts[:end]) if end else "."
            folder = found.setdefault(parts[:end], Folder(path, end - len(shared)))
            for region, size in share.bytes.items():
                folder.bytes[region] = folder.bytes.get(region, 0) + size
    below: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for parts in found:
        if parts != shared:
            below.setdefault(parts[:-1], []).append(parts)
    return [*_in_order(shared, found, below), *rest]


def _in_order(
    top: tuple[str, ...],
    found: dict[tuple[str, ...], Folder],
    below: dict[tuple[str, ...], list[tuple[str, ...]]],
) -> Iterator[Folder]:
    waiting = [top]
    while waiting:
        parts = waiting.pop()
        yield found[parts]
        inner = below.get(parts, [])
        waiting += sorted(inner, key=lambda p: (-found[p].total, p), reverse=True)


def _parts(path: str) -> tuple[str, ...]:
    parts = [part for part in path.split("/") if part]
    return ("/", *parts) if path.startswith("/") else tuple(parts)


def _shared(paths: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    low, high = min(paths), max(paths)
    count = next((i for i, pair in enumerate(zip(low, high, strict=False)) if pair[0] != pair[1]),
                 min(len(low), len(high)))  # fmt: skip
    return low[:count]


# -- CSV ------------------------------------------------------------------------------------------


def write_csv(file: Path, verdict: Verdict, symbols: Iterable[OwnSymbol]) -> None:
    """Write symbols as RFC 4180 has it: quoted where needed, a line of names first.

    Raises
    ------
    SizeError
        The file cannot be written.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(CSV_COLUMNS)
    for symbol in symbols:
        writer.writerow(
            (
                symbol.name,
                demangled(symbol.name),
                symbol.size,
                symbol.region or "",
                symbol.load_region or "",
                verdict.elf.sections[symbol.section].name,
                symbol.address,
                symbol.kind,
                symbol.declared_size,
                symbol.object,
                symbol.library,
                symbol.source,
                " ".join(symbol.aliases),
            )
        )
    write_text(file, text.getvalue(), SizeError)
