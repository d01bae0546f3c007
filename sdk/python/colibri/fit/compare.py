# SPDX-License-Identifier: Apache-2.0
"""Compare a result with a baseline: another input, or the stored JSON of an earlier run.

``baseline`` (of JSON: ``stored``) says what of the two can be compared, ``pairing`` which row is
which, ``growth`` what a region's change adds up from. What either does not have is n/a (None).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from colibri.errors import SizeError
from colibri.fit.baseline import TOTALS, Items, Snapshot, snapshot
from colibri.fit.format_owners import TABLES
from colibri.fit.growth import AreaDelta, Delta, explainer, origin_of, region_deltas
from colibri.fit.inputs import told_apart
from colibri.fit.pairing import Item, Pair, pair_names, pair_owners, pair_symbols
from colibri.fit.regions import BoardLike
from colibri.fit.stack.analysis import StackOptions
from colibri.fit.stored import JSON_LIMIT, read_stored
from colibri.fit.verdict import Verdict, judge

_FILES = frozenset(("objects", "libraries", "sources"))


@dataclass(frozen=True, slots=True)
class Comparison:
    """Every region in the board's order, every total; of the tables what changed, largest first.

    A table is None when either side does not have it; rows that only one side can tell come
    last in it, with a ``delta`` of None.
    """

    source: str
    regions: list[AreaDelta]
    totals: list[AreaDelta]
    sections: list[Delta] | None
    symbols: list[Delta] | None
    owners: dict[str, list[Delta] | None]
    stack: list[Delta] | None
    notes: list[str] = field(default_factory=list)

    @property
    def tables(self) -> dict[str, list[Delta] | None]:
        return {"sections": self.sections, "symbols": self.symbols, **self.owners}

    @property
    def changed(self) -> bool:
        """Whether anything that both have differs."""
        rows: list[Delta] = [*self.regions, *self.totals, *(self.stack or ())]
        rows += [figure for region in self.regions for figure in region.figures]
        rows += [row for table in self.tables.values() for row in table or ()]
        return any(row.changed for row in rows)


def compare(
    now: Verdict,
    baseline: Path | Sequence[Path],
    board: BoardLike | None,
    *,
    link_map: Path | None = None,
    base: int | None = None,
    image: Path | None = None,
    stack: StackOptions | None = None,
    groups: Mapping[str, Sequence[str]] | None = None,
) -> Comparison:
    """Compare with what :func:`colibri.fit.judge` takes, or with a stored JSON result.

    Parameters
    ----------
    now : Verdict
        The result to compare.
    baseline : path or sequence of path
        One stored result; or one firmware, as one file or several.
    board, base, image, stack, groups
        As `now` was judged with; a stored result has its own. GCC's files of `stack` belong to
        `now`, so the baseline's stack is told without them.
    link_map : Path, optional
        The baseline's own map file.

    Raises
    ------
    SizeError
        The baseline is nothing that can be judged, and no JSON object.
    """
    paths = [baseline] if isinstance(baseline, Path) else list(baseline)
    if len(paths) == 1 and _stored(paths[0], base):
        if link_map is not None:
            raise SizeError(
                "is a stored result, which has no map",
                file=paths[0],
                field="--baseline-map",
                hint="give --baseline-map with an ELF as baseline",
            )
        return differences(read_stored(paths[0]), snapshot(now))
    raw = base if now.elf.format == "raw" and _unknown(paths) else None
    run = partial(judge, paths, board, link_map=link_map, base=raw, groups=groups)
    notes = []
    if stack is not None and stack.usage:
        notes.append("GCC's files of the stack are of this build: the baseline's stack is n/a")
        stack = None
    try:
        then = run(None, stack)
    except SizeError as error:
        if stack is None:
            raise
        then, stack = run(None, None), None
        notes.append(f"the baseline's stack is n/a: {error}")
    if image is not None and now.map.image_bytes and not then.map.image_bytes:
        then = run(image, stack)
        notes.append("the baseline is linked for no image: this one's is counted in both")
    return differences(replace(snapshot(then), notes=tuple(notes)), snapshot(now))


def _unknown(paths: Sequence[Path]) -> bool:
    """Whether a baseline is one file of no known format."""
    return len(paths) == 1 and paths[0].is_file() and told_apart(paths[0]) == "elf"


def _stored(path: Path, base: int | None) -> bool:
    """Whether a baseline is to be read as JSON: nothing else that is known, and not large."""
    if not path.is_file():
        return False
    try:
        with path.open("rb") as stream:
            head = stream.read(64)
        small = path.stat().st_size <= JSON_LIMIT
        known = head.startswith(b"\x7fELF") or not _unknown([path])
    except OSError as error:
        raise SizeError(f"cannot be read: {error.strerror}", file=path) from error
    looks = head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{")
    return small and not known and (looks or base is None)


def differences(then: Snapshot, now: Snapshot) -> Comparison:
    """The differences of two snapshots."""
    symbols = _symbol_pairs(then, now)
    regions = region_deltas(then, now)
    totals = [
        AreaDelta(name, then.totals.get(name), now.totals.get(name))
        for name in dict.fromkeys([*TOTALS, *now.totals])
    ]
    causes = explainer(then, now, symbols or [])
    explained = [replace(area, causes=causes(area)) for area in regions or totals]
    owners = {name: _owners(then, now, name) for name in TABLES}
    return Comparison(
        source=then.source,
        regions=explained if regions else [],
        totals=totals if regions else explained,
        sections=_table(then.sections, now.sections, pair_names),
        symbols=None if symbols is None else _changes(symbols, then.symbols),
        owners=owners,
        stack=_stack(then, now),
        notes=[*then.notes, *_notes(then, now)],
    )


# -- tables ---------------------------------------------------------------------------------------


def _symbol_pairs(then: Snapshot, now: Snapshot) -> list[Pair] | None:
    if then.symbols is None or now.symbols is None or _other_symbols(then, now):
        return None
    return pair_symbols(then.symbols.rows, now.symbols.rows, exact=not then.symbols.complete)


def _other_symbols(then: Snapshot, now: Snapshot) -> bool:
    """Input sections stand for the symbols of a map: they are no symbols of an ELF."""
    return then.detail is not None and then.detail != now.detail


def _owners(then: Snapshot, now: Snapshot, name: str) -> list[Delta] | None:
    pairing = pair_owners if name in _FILES else pair_names
    return _table(then.owners.get(name), now.owners.get(name), pairing)


def _table(
    then: Items | None,
    now: Items | None,
    pairing: Callable[[Iterable[Item], Iterable[Item]], list[Pair]],
) -> list[Delta] | None:
    if then is None or now is None:
        return None
    return _changes(pairing(then.rows, now.rows), then)


def _changes(pairs: Iterable[Pair], then: Items | None) -> list[Delta]:
    """Rows that changed, and those that the baseline leaves open, largest first."""
    complete = then is not None and then.complete
    rows = []
    for pair in pairs:
        before = pair.before.size if pair.before else 0 if complete else None
        after = pair.after.size if pair.after else 0
        item = pair.after or pair.before
        assert item is not None
        was = _if_other(pair.before.name if pair.before else "", item.name)
        row = Delta(item.name, before, after, was, pair.moved, origin_of(item))
        if row.changed or row.delta is None:
            rows.append(row)
    return sorted(rows, key=lambda r: (r.delta is None, -abs(_weight(r)), r.name, r.origin))


def _if_other(was: str, name: str) -> str:
    return was if was != name else ""


def _weight(row: Delta) -> int:
    """Bytes that a row is about: what moved counts whole."""
    whole = row.moved is not None or row.delta is None
    return max(row.after or 0, row.before or 0) if whole else row.delta or 0


def _stack(then: Snapshot, now: Snapshot) -> list[Delta] | None:
    """The sum, its two parts, then each entry, in the order of this run."""
    old, new = then.stack, now.stack
    if old is None or new is None or old.complete is None or new.complete is None:
        return None
    least = (not old.complete, not new.complete)
    names = {"bytes": "together", "thread_bytes": "threads", "interrupt_bytes": "interrupts"}
    rows = [
        Delta(shown, old.sums.get(name), new.sums.get(name), least=least)
        for name, shown in names.items()
    ]
    for pair in pair_symbols(old.entries.rows, new.entries.rows):
        before = pair.before.size if pair.before else 0 if old.entries.complete else None
        after = pair.after.size if pair.after else 0
        was = pair.before.name if pair.before else ""
        least = (was in old.open, pair.after is not None and pair.name in new.open)
        rows.append(Delta(pair.name, before, after, _if_other(was, pair.name), least=least))
    return rows


# -- notes ----------------------------------------------------------------------------------------


def _notes(then: Snapshot, now: Snapshot) -> Iterable[str]:
    if then.board_known and then.board != now.board:
        yield f"the baseline is of {_board(then)}, this of {_board(now)}"
    if (then.symbols is None) != (now.symbols is None):
        who = "the baseline" if then.symbols is None else "this"
        yield f"{who} has no symbols: n/a"
    elif _other_symbols(then, now):
        yield f"the baseline tells {then.detail}, this {now.detail}: symbols are n/a"
    elif then.symbols is not None and not then.symbols.complete:
        listed = len(then.symbols.rows)
        yield f"the baseline lists {listed:,} of its symbols: what is not among them is n/a"
    for name in TABLES:
        if name in now.owners and name not in then.owners:
            yield f"the baseline has no {name}: n/a"
        elif name in then.owners and name not in now.owners:
            yield f"this has no {name}, the baseline does: n/a"
    if then.stack is None:
        if now.stack is not None and not any("stack" in note for note in then.notes):
            yield "the baseline has no stack: n/a"
    elif now.stack is not None and then.stack.method != now.stack.method:
        yield f"the stack is told from {now.stack.method}, the baseline's in another way"


def _board(side: Snapshot) -> str:
    return f"board {side.board}" if side.board else "no board"
