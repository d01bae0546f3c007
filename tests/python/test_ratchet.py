# SPDX-License-Identifier: Apache-2.0
"""Figures on record: what counts as worse, what needs a reason, and files that are wrong."""

from __future__ import annotations

import datetime
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colibri.check.ratchet import Change, Entry, Figure, Record, Value, compare, record
from colibri.check.ratchet_file import load, save, text_of
from colibri.errors import RatchetError, UnitError

BOARD = "pimoroni-pico-plus-2"
DAY = datetime.date(2026, 11, 29)
RAM, CODE, SPEED = (BOARD, "region.SRAM"), (BOARD, "code"), (BOARD, "tok_s")
STORED = Record({RAM: 312_004, CODE: 21_874, SPEED: 41.5})


def now(**change: Value | None) -> dict[Figure, Value | None]:
    """The figures on record, some of them other."""
    names = {"ram": RAM, "code": CODE, "speed": SPEED}
    return {**STORED.figures, **{names[name]: value for name, value in change.items()}}


def only(changes: list[Change], figure: Figure) -> tuple[str, bool]:
    (change,) = (change for change in changes if change.figure == figure)
    return change.status, change.worse


# -- comparing ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "figure", "status", "worse"),
    [
        ({}, RAM, "same", False),
        ({"ram": 312_005}, RAM, "grown", True),
        ({"ram": 312_003}, RAM, "shrunk", False),
        ({"speed": 41.6}, SPEED, "grown", False),
        ({"speed": 41.4}, SPEED, "shrunk", True),
        ({"ram": None}, RAM, "unknown", False),
        ({"code": 0}, CODE, "shrunk", False),
    ],
)
def test_status(change: Any, figure: Figure, status: str, worse: bool) -> None:
    assert only(compare(now(**change), STORED), figure) == (status, worse)


def test_new_and_gone() -> None:
    figures = now()
    del figures[CODE]
    figures["other", "code"] = 5
    figures["other", "stack"] = None
    assert [(c.figure, c.status, c.worse) for c in compare(figures, STORED)] == [
        (("other", "code"), "new", False),
        (("other", "stack"), "unknown", False),
        (CODE, "gone", True),
        (RAM, "same", False),
        (SPEED, "same", False),
    ]


@pytest.mark.parametrize(
    ("tolerance", "most"),
    [(64, 64), ("64", 64), ("1 KiB", 1024), ("1 %", 3120), ("0.5%", 1560), (0, 0)],
)
def test_tolerance_to_the_byte(tolerance: Any, most: int) -> None:
    for pattern in ("region.SRAM", "region.*", "*"):
        allowed = {pattern: tolerance}
        assert not only(compare(now(ram=312_004 + most), STORED, allowed), RAM)[1]
        assert only(compare(now(ram=312_005 + most), STORED, allowed), RAM)[1]
    assert only(compare(now(ram=312_005), STORED, {"code": tolerance}), RAM)[1]


def test_a_tolerance_is_a_decimal_fraction() -> None:
    """32.3 % of 1000 are 323, and 2 % of 11.2 are 0.224, whatever floats make of them."""
    stored = Record({("b", "code"): 1000, ("b", "tok_s"): 11.2})
    allowed = {"code": "32.3 %", "tok_s": "2 %"}
    for code, speed, worse in ((1323, 10.976, False), (1324, 10.9759, True)):
        changes = compare({("b", "code"): code, ("b", "tok_s"): speed}, stored, allowed)
        assert [change.worse for change in changes] == [worse, worse]


def test_the_first_pattern_holds() -> None:
    allowed: dict[str, str | int] = {"region.*": 10, "*": "50 %"}
    assert only(compare(now(ram=312_015), STORED, allowed), RAM)[1]
    assert not only(compare(now(code=30_000), STORED, allowed), CODE)[1]
    assert not only(compare(now(speed=20.75), STORED, allowed), SPEED)[1]
    assert only(compare(now(speed=20.7), STORED, allowed), SPEED)[1]


def test_a_share_of_nothing_is_nothing() -> None:
    stored = Record({CODE: 0})
    assert only(compare({CODE: 1}, stored, {"*": "100 %"}), CODE)[1]


@pytest.mark.parametrize("tolerance", ["a lot", "64 KB", "-1 %", "101 %", -1, 1.5, True, None])
def test_tolerances_that_are_none(tolerance: Any) -> None:
    with pytest.raises(UnitError):
        compare(now(), STORED, {"*": tolerance})


@pytest.mark.parametrize(
    "value", [-1, float("nan"), float("inf"), "5", True, 2**64, 10**400, [5], 1e30]
)
def test_values_that_cannot_be_recorded(value: Any) -> None:
    with pytest.raises(RatchetError, match="write a number of 0 or more"):
        compare(now(ram=value), STORED)


@pytest.mark.parametrize("name", ["", " x", "a\nb", "\ud800", "x" * 501, 4])
def test_names_that_cannot_be_recorded(name: Any) -> None:
    with pytest.raises(RatchetError, match="printable characters"):
        compare({(BOARD, name): 1}, Record())
    with pytest.raises(RatchetError, match="printable characters"):
        compare({(name, "code"): 1}, Record())


# -- recording ------------------------------------------------------------------------------------


def test_worse_needs_a_reason() -> None:
    for reason in ("", " \n\t"):
        with pytest.raises(RatchetError, match=r"SRAM \(312,004 → 312,005\) got worse.*say why"):
            record(now(ram=312_005), STORED, reason, DAY)
    new = record(now(ram=312_005), STORED, "  Room for\n two sequences. ", DAY)
    assert new.figures == now(ram=312_005)
    assert new.history == (
        Entry("2026-11-29", "Room for two sequences.", {" ".join(RAM): (312_004, 312_005)}),
    )


def test_gone_needs_a_reason() -> None:
    figures = now()
    del figures[CODE]
    with pytest.raises(RatchetError, match=r"code \(21,874 → gone\)"):
        record(figures, STORED, "", DAY)
    new = record(figures, STORED, "The figure has another name.", DAY)
    assert CODE not in new.figures
    assert new.history[0].changes == {" ".join(CODE): (21_874, None)}


def test_better_and_new_need_none() -> None:
    new = record(now(ram=300_000, speed=50), STORED, date=DAY)
    assert new.figures == {RAM: 300_000, CODE: 21_874, SPEED: 50}
    assert new.history[0].reason == "Improved."
    first = record(now(), Record(), date=DAY)
    assert first.figures == STORED.figures
    assert (first.history[0].reason, len(first.history)) == ("New figures.", 1)
    both = record({**now(code=1), (BOARD, "stack"): 3}, STORED, date=DAY)
    assert both.history[0].reason == "Improved, and new figures."


def test_nothing_changed_is_the_same_record() -> None:
    assert record(now(), STORED, "", DAY) is STORED
    assert record(now(), STORED, "For nothing.", DAY) is STORED


def test_unknown_figures_stay_on_record() -> None:
    assert record(now(ram=None, code=None, speed=None), STORED, "Why.", DAY) is STORED
    new = record(now(ram=None, code=1), STORED, date=DAY)
    assert new.figures == {RAM: 312_004, CODE: 1, SPEED: 41.5}
    assert record({(BOARD, "x"): None}, Record(), date=DAY) == Record()


def test_steps_within_the_tolerance_do_not_add_up() -> None:
    stored = STORED
    for size in (312_050, 312_100):
        assert record(now(ram=size), stored, "", DAY, {"*": 100}) is stored
    with pytest.raises(RatchetError):
        record(now(ram=312_105), stored, "", DAY, {"*": 100})
    better = record(now(ram=312_050, code=1), stored, "", DAY, {"*": 100})
    assert better.figures[RAM] == 312_004
    taken = record(now(ram=312_050), stored, "Taken over.", DAY, {"*": 100})
    assert taken.figures[RAM] == 312_050


def test_a_reason_that_no_terminal_takes() -> None:
    with pytest.raises(RatchetError, match="is no reason"):
        record(now(ram=400_000), STORED, "\x1b[2J", DAY)


# -- the file -------------------------------------------------------------------------------------


TEXT = """\
{
  "schema": 1,
  "figures": {
    "pimoroni-pico-plus-2": {
      "code": 22000,
      "region.SRAM": 312004,
      "tok_s": 41.5
    },
    "zz-board": {
      "code": 4
    }
  },
  "history": [
    {"date": "2026-11-28", "reason": "Zuerst – ohne „Text“.", "changes": {
      "pimoroni-pico-plus-2 code": [null, 21874]
    }},
    {"date": "2026-11-29", "reason": "More.", "changes": {
      "pimoroni-pico-plus-2 code": [21874, 22000],
      "zz-board stack": [5, null]
    }}
  ]
}
"""


def test_one_figure_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    path.write_text(TEXT, "utf-8")
    found = load(path)
    assert found.figures == {RAM: 312_004, CODE: 22_000, SPEED: 41.5, ("zz-board", "code"): 4}
    assert found.history[1].changes["zz-board stack"] == (5, None)
    assert text_of(found) == TEXT
    grown = record({**found.figures, RAM: 400_000}, found, "Larger.", DAY)
    changed = set(text_of(grown).splitlines()) - set(TEXT.splitlines())
    assert '      "region.SRAM": 400000,' in changed
    assert len(changed) == 3  # the figure, and two lines of history


def test_empty_record(tmp_path: Path) -> None:
    assert json.loads(text_of(Record())) == {"schema": 1, "figures": {}, "history": []}
    with pytest.raises(RatchetError, match="does not exist"):
        load(tmp_path / "none.json")
    assert load(tmp_path / "none.json", missing_ok=True) == Record()


NAMES = st.text(
    st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=8
)  # fmt: skip
VALUES = st.integers(0, 2**64 - 1) | st.floats(0, 2.0**63)
FIGURES = st.dictionaries(st.tuples(NAMES, NAMES), VALUES, max_size=6)


@given(FIGURES, FIGURES, st.sampled_from(["", "Why."]))
@settings(max_examples=100, deadline=None)
def test_what_is_written_is_read(before: Any, after: Any, reason: str) -> None:
    """Any figures: the file gives them back, and recording again changes nothing."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "figures.json"
        first = record(before, Record(), date=DAY)
        assert save(path, first, Record()) == bool(before)
        stored = load(path, missing_ok=True)
        assert stored == first
        try:
            second = record(after, stored, reason, DAY)
        except RatchetError:
            assert not reason
            assert any(change.worse for change in compare(after, stored))
            return
        assert save(path, second, stored) == (second is not stored)
        assert load(path, missing_ok=True) == second
        assert not any(change.worse for change in compare(after, second))
        if reason:
            assert second.figures == after
            assert record(after, second, "", DAY) is second


@pytest.mark.parametrize(
    ("change", "where", "says"),
    [
        ({"schema": 2}, "schema", "is 2; this version reads and writes schema 1"),
        ({"schema": "1"}, "schema", "is '1'"),
        ({"schema": True}, "schema", "is true"),
        ({"schema": None}, "schema", "is missing"),
        ({"figures": None}, "figures", "is not a table"),
        ({"figures": {"b": 4}}, "figures.b", "4 is not a table"),
        ({"figures": {"b": {"code": "4"}}}, "figures.b.code", "write a number of 0 or more"),
        ({"figures": {"b": {"code": -4}}}, "figures.b.code", "-4 is no value"),
        ({"figures": {"b": {"code": True}}}, "figures.b.code", "true is no value"),
        ({"figures": {"b": {"code": None}}}, "figures.b.code", "None is no value"),
        ({"figures": {"b": {"code": 10**300}}}, "figures.b.code", "an integer of 997 bits"),
        ({"figures": {"b": {"": 1}}}, "figures.b", "'' is no name"),
        ({"figures": {"\x1b[2J": {}}}, "figures", "is no name"),
        ({"history": {}}, "history", "is not a list"),
        ({"history": [4]}, "history.0", "is not a table"),
        ({"history": [{"date": "29.11.2026", "reason": "x", "changes": {}}]},
         "history.0.date", "is no day; write it as 2026-11-29"),
        ({"history": [{"date": "2026-02-30", "reason": "x", "changes": {}}]},
         "history.0.date", "is no day"),
        ({"history": [{"date": "2026-11-29", "reason": " ", "changes": {}}]},
         "history.0.reason", "write a sentence"),
        ({"history": [{"date": "2026-11-29", "reason": "x"}]},
         "history.0", "missing key 'changes'"),
        ({"history": [{"date": "2026-11-29", "reason": "x", "changes": {"b code": [1]}}]},
         "history.0.changes.b code", "[1] is no change"),
        ({"history": [{"date": "2026-11-29", "reason": "x", "changes": {"b code": [1, "2"]}}]},
         "history.0.changes.b code", "'2' is no value"),
        ({"figure": {}}, "", "valid keys: figures, history"),
    ],
)  # fmt: skip
def test_files_that_are_wrong(tmp_path: Path, change: Any, where: str, says: str) -> None:
    path = tmp_path / "figures.json"
    path.write_text(json.dumps({"schema": 1, "figures": {}, "history": [], **change}))
    with pytest.raises(RatchetError) as caught:
        load(path)
    said = str(caught.value)
    for part in (str(path), where, says):
        assert part in said


def test_every_problem_is_said(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    figures = {"b": {"code": -1, "stack": "x", "image": 5}}
    path.write_text(json.dumps({"schema": 1, "figures": figures, "history": 3}))
    with pytest.raises(RatchetError, match="3 problems") as caught:
        load(path)
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is not valid JSON"),
        (b"[1]", "must hold a JSON object"),
        (b"\xff", "is not valid JSON"),
        (b"[" * 100_000, "is not valid JSON"),
        (b'{"schema": ' + b"9" * 5000 + b"}", "is not valid JSON"),
        (b'{"schema": 1, "schema": 1}', "key 'schema' is there twice"),
        (b'{"schema": 1, "figures": {"b": {"code": 1, "code": 2}}, "history": []}',
         "key 'code' is there twice"),
        (b'{"schema": 1, "figures": {"b": {"code": NaN}}, "history": []}', "nan is no value"),
        (b'{"schema": 1, "figures": {"b": {"code": 1e999}}, "history": []}', "inf is no value"),
        (b"<<<<<<< HEAD\n", "is not valid JSON"),
    ],
)  # fmt: skip
def test_damaged_files(tmp_path: Path, data: bytes, says: str) -> None:
    path = tmp_path / "figures.json"
    path.write_bytes(data)
    with pytest.raises(RatchetError, match=says):
        load(path)
    with pytest.raises(RatchetError, match=says):  # and nothing is written over it
        save(path, STORED, Record())
    assert path.read_bytes() == data


def test_every_cut_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    whole = TEXT.encode()
    for length in range(len(whole) - 2):
        path.write_bytes(whole[:length])
        with pytest.raises(RatchetError):
            load(path)


def test_an_unchanged_record_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    path.write_text(TEXT.replace("\n", "\r\n"), "utf-8", newline="")
    found, before = load(path), path.stat()
    assert not save(path, record(found.figures, found, "", DAY), found)
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == (before.st_mtime_ns, before.st_ino)


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    circle = tmp_path / "circle"
    circle.symlink_to(circle)
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, circle, tmp_path / "pipe"):
        with pytest.raises(RatchetError, match="is no file"):
            load(path, missing_ok=True)
        with pytest.raises(RatchetError, match="is no file"):
            save(path, STORED, Record())
    with pytest.raises(RatchetError, match="cannot be written: No such file"):
        save(tmp_path / "none" / "figures.json", STORED, Record())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["circle", "pipe"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    real, link = tmp_path / "shared" / "real.json", tmp_path / "figures.json"
    link.symlink_to(Path("shared") / "real.json")
    assert save(link, STORED, load(real, missing_ok=True))  # the link leads nowhere yet
    assert link.is_symlink()
    assert load(real) == STORED
    new = record(now(code=5), STORED, date=DAY)
    assert save(link, new, load(link))
    assert link.is_symlink()
    assert load(real) == new
    assert [path.name for path in real.parent.iterdir()] == ["real.json"]


def test_a_read_only_file_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "figures.json"
    save(path, STORED, Record())
    path.chmod(0o444)
    monkeypatch.setattr(os, "access", lambda *_: False)  # as for everyone but root
    with pytest.raises(RatchetError, match="is read-only"):
        save(path, record(now(code=5), STORED, date=DAY), STORED)
    assert load(path) == STORED


def test_a_file_that_changed_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    save(path, STORED, Record())
    mine, others = (record(now(code=code), STORED, date=DAY) for code in (5, 6))
    save(path, others, STORED)
    with pytest.raises(RatchetError, match="has changed meanwhile"):
        save(path, mine, STORED)
    path.unlink()
    with pytest.raises(RatchetError, match="has changed meanwhile"):
        save(path, mine, STORED)
    assert not path.exists()
