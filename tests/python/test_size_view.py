# SPDX-License-Identifier: Apache-2.0
"""Which rows are shown (`--top`, `--filter`, `--depth`, `--csv`), and the reserved stack's name."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from colibri.cli import main
from colibri.errors import SizeError
from colibri.fit import judge
from colibri.fit.attribution import NO_SOURCE, Share
from colibri.fit.compare import compare
from colibri.fit.format import as_json
from colibri.fit.pictures import trees
from colibri.fit.view import CSV_COLUMNS, View, folders, write_csv
from dwarf_writer import add_dwarf
from elf_writer import AX, FUNC, OBJECT, WA, ElfWriter
from size_support import FLASH, RAM, board, firmware, usage, used


def many(count: int = 1200) -> ElfWriter:
    """Functions f0, f1, ... of 16 bytes each; a variable of 32."""
    elf = ElfWriter()
    text = elf.section(".text", FLASH, b"\x01\xbf" * 8 * count, flags=AX)
    zero = elf.section(".bss", RAM, 32, flags=WA)
    elf.load([text])
    elf.load([zero])
    for index in range(count):
        elf.symbol(f"f{index}", FLASH + 16 * index | 1, 16, FUNC, section=text)
    elf.symbol("state", RAM, 32, OBJECT, section=zero)
    return elf


def shown(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["size", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def object_of(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    return json.loads(shown(capsys, *arguments, "--json"))


def test_top(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = many().write(tmp_path / "a.elf")
    usual = shown(capsys, path)
    assert "1,189 more" in usual  # 12 of 1,201 are shown
    assert "1,198 more" in shown(capsys, path, "--top", 3)
    everything = shown(capsys, path, "--top", 0)
    assert "more" not in everything.split("Counted")[0]
    assert everything.count("\nf") >= 1200
    assert len(object_of(capsys, path)["symbols"]) == 1000
    assert len(object_of(capsys, path, "--top", 3)["symbols"]) == 3
    fields = object_of(capsys, path, "--top", 0)
    assert len(fields["symbols"]) == fields["symbols_total"] == 1201


@pytest.mark.parametrize(
    ("patterns", "count", "size"),
    [
        (("f1?",), 10, 160),
        (("symbol:state",), 1, 32),
        (("section:.bss", "f0"), 2, 48),
        (("nothing",), 0, 0),
        (("*",), 1201, 19232),
    ],
)
def test_filter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], patterns: tuple[str, ...], count: int,
    size: int,
) -> None:  # fmt: skip
    path = many().write(tmp_path / "a.elf")
    options = [part for pattern in patterns for part in ("--filter", pattern)]
    text = shown(capsys, path, *options)
    assert f"{count:,} / 1,201 symbols" in text
    assert f"{size:,} / 19,232" in text
    fields = object_of(capsys, path, *options)
    assert fields["filter"] == {
        "patterns": list(patterns), "symbols": count, "bytes": size, "all_symbols": 1201,
        "all_bytes": 19232,
    }  # fmt: skip
    assert fields["symbols_total"] == 1201
    assert len(fields["symbols"]) == min(count, 1000)


def test_a_filter_that_is_wrong_and_one_that_hides_nothing_else(tmp_path: Path) -> None:
    path = many(3).write(tmp_path / "a.elf")
    with pytest.raises(SizeError, match="nothing that a pattern can be held against"):
        View(filters=("name:f0",)).symbols(judge(path))
    assert main(["size", str(path), "--filter", "name:f0"]) == 2
    assert len(View(filters=("region:SRAM",)).symbols(judge(path, board()))) == 1
    plain, filtered = (as_json(judge(path, board()), None, v) for v in (View(), View(None, ("x",))))
    for key in ("regions", "totals", "findings", "verdict", "unattributed"):
        assert plain[key] == filtered[key]


def test_a_filtered_result_as_baseline_says_no_wrong_change(tmp_path: Path) -> None:
    path = many(30).write(tmp_path / "a.elf")
    stored = tmp_path / "a.json"
    view = View(filters=("f1*",))
    stored.write_text(json.dumps({"schema": 1, **as_json(judge(path, board()), None, view)}))
    comparison = compare(judge(path, board()), stored, board())
    assert all(not delta.delta for delta in comparison.regions)
    gained = [d for d in comparison.tables["symbols"] or () if d.delta]
    assert gained == []


# -- folders --------------------------------------------------------------------------------------


def share(name: str, flash: int, ram: int = 0) -> Share:
    return Share(name, "", {"FLASH": flash} | ({"SRAM": ram} if ram else {}))


TREE = [
    share("/src/fw/src/drivers/uart", 100, 8),
    share("/src/fw/src/drivers", 40),
    share("/src/fw/src/app", 90),
    share("/src/fw/lib/dsp/fast", 500),
    share(NO_SOURCE, 7),
]


@pytest.mark.parametrize(
    ("depth", "expected"),
    [
        (0, [("/src/fw", 0, 738), (NO_SOURCE, 0, 7)]),
        (1, [("/src/fw", 0, 738), ("/src/fw/lib", 1, 500), ("/src/fw/src", 1, 238),
             (NO_SOURCE, 0, 7)]),
        (2, [("/src/fw", 0, 738), ("/src/fw/lib", 1, 500), ("/src/fw/lib/dsp", 2, 500),
             ("/src/fw/src", 1, 238), ("/src/fw/src/drivers", 2, 148),
             ("/src/fw/src/app", 2, 90), (NO_SOURCE, 0, 7)]),
    ],
)  # fmt: skip
def test_folders(depth: int, expected: list[tuple[str, int, int]]) -> None:
    made = folders(TREE, depth)
    assert [(f.path, f.level, f.total) for f in made] == expected
    assert sum(f.total for f in made if f.level == 0) == sum(s.total for s in TREE)
    assert made[0].bytes == {"FLASH": 730, "SRAM": 8}


@pytest.mark.parametrize(
    ("names", "top"),
    [
        (["src", "src/a"], "src"),
        (["/a", "/b"], "/"),
        (["a", "b"], "."),
        (["../x/a", "../x/b"], "../x"),
        (["/only/one"], "/only/one"),
        (["C:/fw/a", "C:/fw/b"], "C:/fw"),
    ],
)
def test_what_folders_share(names: list[str], top: str) -> None:
    made = folders([share(name, 10) for name in names], 5)
    assert (made[0].path, made[0].level, made[0].total) == (top, 0, 10 * len(names))
    assert folders([], 3) == []


def test_depth_on_screen_and_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    elf = many(4)
    units = [(f"{name}.c", f"/fw/{name}", FLASH + 16 * i, 16) for i, name in enumerate("abc")]
    add_dwarf(elf, units)
    path = elf.write(tmp_path / "a.elf")
    text = shown(capsys, path, "--depth", 1)
    assert "sums of each level" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["/fw", "48", "0", "48"] in [line[:1] + line[1:] for line in lines]
    assert any(line.startswith("  a ") for line in text.splitlines())
    fields = object_of(capsys, path, "--depth", 0)
    assert [(f["path"], f["level"], f["bytes"]) for f in fields["folders"]] == [
        ("/fw", 0, 48), (NO_SOURCE, 0, 48),
    ]  # fmt: skip
    assert "folders" not in object_of(capsys, path)


# -- CSV ------------------------------------------------------------------------------------------


def test_b32_csv_of_names_with_commas_quotes_and_lines(tmp_path: Path) -> None:
    names = ['a,"b"', "two\nlines", "semi;colon", "tab\tand space", "é\u202e", "plain"]
    elf = ElfWriter()
    text = elf.section(".text", FLASH, b"\x01\xbf" * 48, flags=AX)
    elf.load([text])
    for index, name in enumerate(names):
        elf.symbol(name, FLASH + 16 * index | 1, 16 - index, FUNC, section=text)
    elf.symbol("other name", FLASH + 16 * 5 | 1, 11, FUNC, section=text, bind=0)
    verdict = judge(elf.write(tmp_path / "a.elf"), board())
    file = tmp_path / "symbols.csv"
    write_csv(file, verdict, verdict.symbols)
    with file.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert tuple(rows[0]) == CSV_COLUMNS
    assert [row["name"] for row in rows] == names
    assert [int(row["bytes"]) for row in rows] == [16, 15, 14, 13, 12, 11]
    assert (rows[5]["aliases"], rows[5]["region"], rows[5]["section"]) == (
        "other name", "FLASH", ".text",
    )  # fmt: skip
    assert int(rows[1]["address"]) == FLASH + 16


def test_csv_has_what_the_filter_leaves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, file = many().write(tmp_path / "a.elf"), tmp_path / "s.csv"
    shown(capsys, path, "--csv", file, "--top", 3)
    assert len(file.read_text().splitlines()) == 1202
    shown(capsys, path, "--csv", file, "--filter", "f1?")
    assert len(file.read_text().splitlines()) == 11
    assert main(["size", str(path), "--csv", str(tmp_path / "no" / "s.csv")]) == 2


# -- the reserved stack ---------------------------------------------------------------------------


def with_stack(section: str, symbols: bool, own: int = 0) -> ElfWriter:
    """The firmware, and 0x800 bytes of stack in a NOBITS section."""
    elf = firmware()
    stack = elf.section(section, RAM + 0x1000, 0x800, flags=WA)
    elf.load([stack])
    if symbols:
        elf.symbol("__stack_bottom", RAM + 0x1000)
        elf.symbol("__stack_top", RAM + 0x1800)
    if own:
        elf.symbol("guard", RAM + 0x1000, own, OBJECT, section=stack)
    return elf


@pytest.mark.parametrize(
    ("section", "symbols", "own"),
    [(".stack", False, 0), (".stack", True, 0), (".reserved", True, 0), (".stack", True, 32)],
)
def test_the_stack_has_a_name(tmp_path: Path, section: str, symbols: bool, own: int) -> None:
    verdict = judge(with_stack(section, symbols, own).write(tmp_path / "a.elf"), board())
    rows = {s.name: (s.size, s.region, s.charged) for s in verdict.symbols}
    size = 0x800 - own
    assert rows["(stack)"] == (size, "SRAM", {"SRAM": size})
    assert usage(verdict, "SRAM").unattributed == 0
    assert used(verdict)["SRAM"] == 0x100 + 0x200 + 0x800
    tree = next(tree for tree in trees(verdict) if tree.name == "SRAM")
    leaf = next(child for child in tree.children if child.name == "(stack)")
    assert (leaf.bytes, leaf.role) == (size, "stack")
    assert tree.bytes == used(verdict)["SRAM"]


def test_a_stack_inside_a_section_with_other_things(tmp_path: Path) -> None:
    elf = firmware(bss=0x200)
    elf.sections[3].size = 0xA00  # the stack behind `buffer`, 0x200 bytes of nobody after it
    elf.symbol("__stack_bottom", RAM + 0x300)
    elf.symbol("__stack_top", RAM + 0x900)
    verdict = judge(elf.write(tmp_path / "a.elf"), board())
    assert next(s.size for s in verdict.symbols if s.name == "(stack)") == 0x600
    assert usage(verdict, "SRAM").unattributed == 0x200


@pytest.mark.parametrize("name", [".stack_sizes", ".stack2", "stack", ".heap"])
def test_other_names_are_no_stack(tmp_path: Path, name: str) -> None:
    verdict = judge(with_stack(name, False).write(tmp_path / "a.elf"), board())
    assert "(stack)" not in {s.name for s in verdict.symbols}
    assert usage(verdict, "SRAM").unattributed == 0x800


def test_a_stack_that_nothing_covers_is_a_row_as_before(tmp_path: Path) -> None:
    elf = firmware()
    elf.symbol("__stack_bottom", RAM + 0x1000)
    elf.symbol("__stack_top", RAM + 0x1800)
    verdict = judge(elf.write(tmp_path / "a.elf"), board())
    assert "(stack)" not in {s.name for s in verdict.symbols}
    assert verdict.map.stack_bytes == 0x800
