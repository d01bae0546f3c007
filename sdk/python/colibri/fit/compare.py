# SPDX-License-Identifier: Apache-2.0
"""Compare a result with a baseline: another ELF, or the stored JSON of an earlier run.

A stored result may come from another version. What it does not have is shown as n/a (None);
nothing is guessed.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from colibri.errors import SizeError
from colibri.fit.inputs import told_apart
from colibri.fit.regions import BoardLike
from colibri.fit.verdict import Verdict, judge

SCHEMA = 1
_JSON_LIMIT = 256 << 20


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The numbers of one run that can be compared; ``complete``: every symbol is in it."""

    source: str
    regions: dict[str, int]
    symbols: dict[str, int]
    has_regions: bool = True
    complete: bool = True
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Delta:
    """One number then and now; ``delta`` is None when either is not known."""

    name: str
    before: int | None
    after: int | None

    @property
    def delta(self) -> int | None:
        known = self.before is not None and self.after is not None
        return (self.after or 0) - (self.before or 0) if known else None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Regions in the board's order, then every symbol that changed, largest change first."""

    source: str
    regions: list[Delta]
    symbols: list[Delta]
    notes: list[str] = field(default_factory=list)


def compare(now: Verdict, baseline: Path, board: BoardLike | None) -> Comparison:
    """Compare with a file that is either an ELF or a stored JSON result."""
    before, after = load_baseline(baseline, board), snapshot(now)
    names = dict.fromkeys([*after.regions, *before.regions])
    regions = [
        Delta(
            name,
            before.regions.get(name, 0 if _derived(now) and before.has_regions else None),
            after.regions.get(name, 0 if _derived(now) else None),
        )
        for name in names
    ]
    symbols = [
        Delta(
            name,
            before.symbols.get(name, 0 if before.complete else None),
            after.symbols.get(name, 0),
        )
        for name in dict.fromkeys([*after.symbols, *before.symbols])
    ]
    changed = [d for d in symbols if d.delta]
    changed.sort(key=lambda d: (-abs(d.delta or 0), d.name))
    return Comparison(before.source, regions, changed, list(before.notes))


def _derived(verdict: Verdict) -> bool:
    """Without a board a region that is not there is one that nothing uses."""
    return verdict.map.board is None


def snapshot(verdict: Verdict) -> Snapshot:
    regions = {usage.region.name: usage.used for usage in verdict.map.usages}
    symbols = _summed((s.name, s.size) for s in verdict.symbols)
    return Snapshot(str(verdict.elf.path), regions, symbols)


def load_baseline(path: Path, board: BoardLike | None) -> Snapshot:
    """Read a baseline.

    Raises
    ------
    SizeError
        The file is neither an ELF nor a JSON object.
    """
    if path.is_file():
        with path.open("rb") as stream:
            first = stream.read(4)
        known = first == b"\x7fELF" or told_apart(path) != "elf"
        if not known and path.stat().st_size <= _JSON_LIMIT:
            return _from_json(path)
    return snapshot(judge(path, board))


def _from_json(path: Path) -> Snapshot:
    try:
        stored: Any = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError):
        stored = None
    if not isinstance(stored, dict):
        raise SizeError(
            "neither an ELF nor a JSON object",
            file=path,
            field="--baseline",
            hint="give an ELF, or the output of 'colibri size ELF --json'",
        )
    notes = []
    if stored.get("schema") != SCHEMA:
        notes.append(
            f"the baseline has schema {_short(stored.get('schema'))}, this version {SCHEMA}: "
            "what it does not have is n/a"
        )
    regions = _numbers(stored.get("regions"), "used")
    symbols = _numbers(stored.get("symbols"), "size")
    total = stored.get("symbols_total")
    if not regions and "regions" not in stored:
        notes.append("the baseline has no regions")
    return Snapshot(
        source=str(path),
        regions=regions,
        symbols=symbols,
        has_regions=isinstance(stored.get("regions"), list),
        complete=isinstance(total, int) and total == len(_entries(stored.get("symbols"))),
        notes=tuple(notes),
    )


def _entries(rows: Any) -> list[Mapping[str, Any]]:
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _numbers(rows: Any, key: str) -> dict[str, int]:
    """Name and one number of each entry; entries without them are left out."""
    return _summed(
        (row["name"], row[key])
        for row in _entries(rows)
        if isinstance(row.get("name"), str)
        and isinstance(row.get(key), int)
        and not isinstance(row[key], bool)
    )


def _summed(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Static symbols of several files may share a name: their sizes add up."""
    sums: dict[str, int] = defaultdict(int)
    for name, size in pairs:
        sums[name] += size
    return dict(sums)


def _short(value: Any) -> str:
    return "none" if value is None else repr(value)[:20]
