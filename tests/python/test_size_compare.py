# SPDX-License-Identifier: Apache-2.0
"""`colibri size A --baseline B`: differences and what they add up from, on ELFs known by hand.

`tests/baselines` has stored results as they should not be: other schemas, other types, damaged.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colibri.cli import main
from colibri.cli.common import console
from colibri.errors import SizeError
from colibri.fit import Verdict, judge
from colibri.fit.baseline import snapshot
from colibri.fit.compare import Comparison, compare, differences
from colibri.fit.format import as_json, show
from colibri.fit.growth import Cause, shortened
from colibri.fit.pairing import Item, Pair, pair_owners, pair_symbols, plain_name, stable_name
from colibri.fit.stack import StackOptions
from colibri.fit.stored import from_json
from elf_writer import ARM, AX, FUNC, LOCAL, OBJECT, REL, WA, A, ElfWriter
from needs import need
from size_support import CODE, FLASH, RAM, board, firmware, region

BASELINES = Path(__file__).parents[1] / "baselines"
Changes = dict[str, int | None]


def changes(rows: Any) -> Changes:
    return {row.name: row.delta for row in rows}


def causes(result: Comparison, name: str) -> list[tuple[str, str, int]]:
    (area,) = (area for area in [*result.regions, *result.totals] if area.name == name)
    assert sum(cause.delta for cause in area.causes) == (area.delta or 0)
    return [(cause.kind, cause.name, cause.delta) for cause in area.causes]


def laid_out(*sections: tuple[str, int, Any, list[tuple[str, int]]], kind: int = 2) -> ElfWriter:
    """An ELF of (section, address, bytes or size, symbols with sizes in order)."""
    elf = ElfWriter(kind=kind)
    for name, address, data, symbols in sections:
        flags = WA if isinstance(data, int) else AX if name.startswith(".text") else A
        index = elf.section(name, address, data, flags=flags)
        if kind != REL:
            elf.load([index])
        for symbol, size in symbols:
            what = FUNC if flags == AX else OBJECT
            elf.symbol(symbol, address | (what == FUNC), size, what, section=index, bind=LOCAL)
            address += size
    return elf


def compared(folder: Path, before: ElfWriter, after: ElfWriter, on: Any = "default") -> Comparison:
    place = board() if on == "default" else on
    old = before.write(folder / "before.elf")
    return compare(judge(after.write(folder / "after.elf"), place), old, place)


def stored(folder: Path, verdict: Verdict, **change: Any) -> Path:
    path = folder / "stored.json"
    path.write_text(json.dumps({"schema": 1, **as_json(verdict), **change}))
    return path


# -- regions and what they add up from ------------------------------------------------------------


def test_px4_28789_bss_is_ram_and_no_flash(tmp_path: Path) -> None:
    result = compared(tmp_path, firmware(), firmware(bss=0x200 + 4096))
    assert changes(result.regions) == {"FLASH": 0, "SRAM": 4096}
    assert causes(result, "SRAM") == [("symbol", "buffer", 4096)]
    assert causes(result, "FLASH") == []
    moved = {name: delta for name, delta in changes(result.totals).items() if delta}
    assert moved == {"bss": 4096}
    assert [(s.name, s.before, s.after) for s in result.sections or ()] == [(".bss", 512, 4608)]


def test_data_costs_flash_and_ram(tmp_path: Path) -> None:
    before, after = firmware(), firmware()
    after.sections[2].data, after.sections[2].size = b"\7" * 0x180, 0x180
    after.sections[3].address += 0x80
    after.symbols = [(n, v + 0x80 * (n == "buffer"), *rest) for n, v, *rest in after.symbols]
    result = compared(tmp_path, before, after)
    assert changes(result.regions) == {"FLASH": 0x80, "SRAM": 0x80}
    for name in ("FLASH", "SRAM"):  # nobody has named the new bytes
        assert causes(result, name) == [("section", ".data", 0x80)]
    assert result.symbols == []


def test_growth_is_the_sum_of_its_causes(tmp_path: Path) -> None:
    result = compared(
        tmp_path,
        laid_out(
            (".text", FLASH, CODE * 0x100, [("main", 0x80), ("old", 0x40)]),
            (".bss", RAM, 0x100, [("a", 0x80)]),
        ),
        laid_out(
            (".text", FLASH, CODE * 0x180, [("main", 0x100), ("new", 0x20)]),
            (".rodata", FLASH + 0x300, b"text" * 8, []),
            (".bss", RAM, 0x100, [("a", 0x60), ("b", 0x20)]),
        ),
    )
    assert result.regions[0].delta == 0x120
    assert causes(result, "FLASH") == [
        ("section", ".text", 0xA0),
        ("symbol", "main", 0x80),
        ("symbol", "old", -0x40),
        ("section", ".rodata", 0x20),
        ("symbol", "new", 0x20),
    ]
    assert causes(result, "SRAM") == [("symbol", "a", -0x20), ("symbol", "b", 0x20)]
    assert changes(result.symbols) == {"main": 0x80, "old": -0x40, "new": 0x20, "a": -0x20, "b": 32}


def test_a_long_list_of_causes_keeps_its_sum() -> None:
    many = [Cause("symbol", f"s{n}", 100 - n) for n in range(50)]
    short = shortened(many, 8)
    assert len(short) == 9
    assert short[-1] == Cause("rest", "42 more", sum(c.delta for c in many[8:]))
    assert shortened(many, 50) == many


def test_image_and_stack_are_causes(tmp_path: Path) -> None:
    def linked(model: int, stack: int) -> ElfWriter:
        elf = firmware()
        elf.symbol("colibri_model_base", FLASH + 0x1000)
        elf.symbol("colibri_model_size", model)
        elf.symbol("__stack_bottom", RAM + 0x1000)
        elf.symbol("__stack_top", RAM + 0x1000 + stack)
        return elf

    result = compared(tmp_path, linked(0x1000, 0x400), linked(0x1800, 0x600))
    assert causes(result, "FLASH") == [("image", "image", 0x800)]
    assert causes(result, "SRAM") == [("stack", "stack", 0x200)]
    assert {n: d for n, d in changes(result.totals).items() if d} == {"image": 0x800, "stack": 512}


def test_padding_and_load_span(tmp_path: Path) -> None:
    def gap(at: int) -> ElfWriter:
        return laid_out((".text", FLASH, CODE, []), (".late", FLASH + at, CODE, []))

    result = compared(tmp_path, gap(0x10), gap(0x100))
    flash = result.regions[0]
    assert flash.delta == 0
    assert changes(flash.figures) == {
        "padding": 0xF0, "load_span": 0xF0, "load_bytes": 0, "unattributed": 0, "overflow": 0,
    }  # fmt: skip
    assert result.changed


def test_objects_are_compared_by_totals(tmp_path: Path) -> None:
    def made(size: int) -> ElfWriter:
        return laid_out((".text.f", 0, CODE * size, [("f", size * 2)]), kind=REL)

    result = compared(tmp_path, made(8), made(10), None)
    assert result.regions == []
    assert changes(result.totals)["text"] == 4
    assert causes(result, "text") == [("symbol", "f", 4)]


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_any_two_builds_add_up(data: Any) -> None:
    """Regions change by their causes, symbols by their rows, JSON says what the verdict does."""
    names = st.sampled_from(["f", "f.isra.0", "f.part.1", "g", "buf", "buf.0", "buf.1", "h.llvm.9"])
    rows = st.lists(st.tuples(names, st.integers(1, 40)), max_size=6)

    def made() -> ElfWriter:
        def section(name: str, address: int, code: bool) -> Any:
            symbols = data.draw(rows)
            size = sum(size for _, size in symbols) + data.draw(st.integers(1, 20))
            return name, address, b"\1" * size if code else size, symbols

        return laid_out(
            section(".text", FLASH, True), section(".rodata", FLASH + 0x400, True),
            section(".bss", RAM, False), section(".noinit", RAM + 0x400, False),
        )  # fmt: skip

    with tempfile.TemporaryDirectory() as folder:
        place = data.draw(st.sampled_from([board(), None]))
        old = judge(made().write(Path(folder) / "a.elf"), place)
        new = judge(made().write(Path(folder) / "b.elf"), place)
    then, now = snapshot(old), snapshot(new)
    again = from_json(json.loads(json.dumps({"schema": 1, **as_json(old)})), then.source)
    assert again == then
    result = differences(then, now)
    assert differences(again, now) == result
    for area in result.regions:
        assert sum(cause.delta for cause in area.causes) == area.delta
        assert all(cause.kind != "rest" for cause in area.causes)
    if result.symbols is not None:  # a build without any symbol is a stripped one
        total = sum(s.size for s in new.symbols) - sum(s.size for s in old.symbols)
        assert sum(row.delta or 0 for row in result.symbols) == total


# -- which is which -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "stable", "plain"),
    [
        ("main", "main", "main"),
        ("buf.12", "buf", "buf"),
        ("parse.constprop.0", "parse.constprop", "parse"),
        ("parse.isra.0.constprop.1", "parse.isra.constprop", "parse"),
        ("parse.part.0.cold", "parse.part.cold", "parse"),
        ("go.llvm.4711", "go", "go"),
        ("go.__uniq.123.llvm.4", "go", "go"),
        ("_ZN3app4main17h0123456789abcdefE", "_ZN3app4mainE", "_ZN3app4mainE"),
        (".str.3", ".str", ".str"),
        ("part", "part", "part"),
        (".isra", ".isra", ""),
        ("", "", ""),
        ("x.²", "x.²", "x.²"),
    ],
)
def test_names(name: str, stable: str, plain: str) -> None:
    assert (stable_name(name), plain_name(name)) == (stable, plain)


def test_names_of_a_megabyte() -> None:
    name = "f" + ".part" * 200_000 + "x"
    assert plain_name(name) == name
    assert plain_name(name[:-1]) == "f"


def paired(before: list[Item], after: list[Item], **how: bool) -> set[tuple[Any, Any]]:
    def short(item: Item | None) -> Any:
        return item and (item.name, item.size)

    return {(short(p.before), short(p.after)) for p in pair_symbols(before, after, **how)}


def test_compiler_suffixes_are_renames(tmp_path: Path) -> None:
    result = compared(
        tmp_path,
        laid_out((".text", FLASH, CODE * 0x80, [("parse.constprop.0", 0x40), ("go.llvm.1", 32)])),
        laid_out((".text", FLASH, CODE * 0x80, [("parse.isra.0", 0x50), ("go.llvm.2", 32)])),
    )
    (row,) = result.symbols or ()
    assert (row.name, row.was, row.delta) == ("parse.isra.0", "parse.constprop.0", 0x10)
    assert ("symbol", "parse.isra.0", 0x10) in causes(result, "FLASH")


def test_numbered_names_are_paired_by_size() -> None:
    """GCC counts function-local statics: one less in front renumbers all after it."""
    before = [Item("buf.0", 100), Item("buf.1", 20), Item("buf.2", 64)]
    after = [Item("buf.0", 20), Item("buf.1", 64)]
    assert paired(before, after) == {
        (("buf.1", 20), ("buf.0", 20)),
        (("buf.2", 64), ("buf.1", 64)),
        (("buf.0", 100), None),
    }


def test_static_symbols_of_one_name_stay_in_their_files() -> None:
    before = [Item("buf", 100, source="src/a.c"), Item("buf", 50, source="src/b.c")]
    after = [Item("buf", 50, source="src/a.c"), Item("buf", 100, source="src/b.c")]
    crossed = {(("buf", 100), ("buf", 50)), (("buf", 50), ("buf", 100))}
    assert paired(before, after) == crossed
    other = [replace(item, source=f"/ci/{item.source}") for item in after]
    assert paired(before, other) == crossed
    unknown = [replace(item, source="") for item in after]  # then equal sizes go together
    assert paired(before, unknown) == {(("buf", 100),) * 2, (("buf", 50),) * 2}


def test_clones_take_the_nearest() -> None:
    before = [Item("f", 300)]
    after = [Item("f.part.0", 50), Item("f.constprop.0", 250)]
    assert paired(before, after) == {
        (("f", 300), ("f.constprop.0", 250)),
        (None, ("f.part.0", 50)),
    }
    assert (None, ("f.constprop.0", 250)) in paired(before, after, exact=True)


def test_objects_of_another_build_folder() -> None:
    before = [Item("build-1/main.o", 5), Item("m.o", 7, library="/a/libm.a"), Item("x/main.o", 1)]
    after = [Item("build-2/main.o", 6), Item("m.o", 7, library="/b/libm.a"), Item("x/main.o", 1)]
    found = pair_owners(before, after)
    assert Pair(before[0], after[0]) in found
    assert Pair(before[1], after[1]) in found
    assert Pair(before[2], after[2]) in found


def test_moved_to_another_region_and_section(tmp_path: Path) -> None:
    place = board(region("PSRAM", 0x1100_0000, 0x10000))
    before = laid_out((".bss", RAM, 0x100, [("kv", 0x80), ("log", 0x40)]))
    after = laid_out(
        (".bss", RAM, 0x40, []),
        (".noinit", RAM + 0x40, 0x40, [("log", 0x40)]),
        (".psram", 0x1100_0000, 0x80, [("kv", 0x80)]),
    )
    result = compared(tmp_path, before, after, place)
    moved = {s.name: (s.moved, s.delta) for s in result.symbols or ()}
    assert moved == {
        "kv": (("SRAM .bss", "PSRAM .psram"), 0),
        "log": (("SRAM .bss", "SRAM .noinit"), 0),
    }
    assert [s.name for s in result.symbols or ()] == ["kv", "log"]  # by the bytes that moved
    assert causes(result, "PSRAM") == [("symbol", "kv", 0x80)]
    assert causes(result, "SRAM") == [("symbol", "kv", -0x80)]
    assert result.changed


def test_a_section_that_moved(tmp_path: Path) -> None:
    place = board(region("PSRAM", 0x1100_0000, 0x10000))
    before, after = (laid_out((".pool", at, 0x100, [])) for at in (RAM, 0x1100_0000))
    result = compared(tmp_path, before, after, place)
    assert [(s.name, s.moved, s.delta) for s in result.sections or ()] == [
        (".pool", ("SRAM", "PSRAM"), 0)
    ]


def test_without_a_board_addresses_are_no_places(tmp_path: Path) -> None:
    """Regions are named after their first address there: other numbers are no move."""
    before, after = (laid_out((".bss", RAM + at, 0x100, [("kv", 0x80)])) for at in (0, 0x1000))
    result = compared(tmp_path, before, after, None)
    assert result.symbols == []
    assert result.sections == []


# -- stored results -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "regions", "symbols", "note"),
    [
        ("earlier", {"FLASH": 0, "SRAM": 0}, {}, ""),
        ("schema_0", {"FLASH": None, "SRAM": None}, None, "has schema 0"),
        ("schema_2", {"FLASH": None, "SRAM": 0x100}, None, "has schema 2"),
        ("schema_text", {"FLASH": None, "SRAM": 0x100}, None, "has schema 'x'"),
        ("no_regions", {"FLASH": None, "SRAM": None}, {"buffer": 12}, "has no regions"),
        ("other_types", {"FLASH": None, "SRAM": None}, {"*": None}, "has schema True"),
        ("huge_numbers", {"FLASH": 0x500 - 2**63, "SRAM": None}, {"*": None}, "out of range"),
        ("nan", {"FLASH": None, "SRAM": None}, {"*": None}, "has schema nan"),
        ("negative", {"FLASH": 0, "SRAM": None}, {"*": None}, "lists 1 of its symbols"),
        ("twice", {"FLASH": None, "SRAM": None}, {"buffer": -12}, "has region SRAM twice"),
        ("failed_run", {"FLASH": None, "SRAM": None}, None, "a run that failed"),
        ("names", {"FLASH": None, "SRAM": -0x200}, None, "is of board"),
    ],
)
def test_stored_results_of_other_kinds(
    tmp_path: Path, name: str, regions: Changes, symbols: Changes | None, note: str
) -> None:
    now = judge(firmware().write(tmp_path / "f.elf"), board())
    result = compare(now, BASELINES / f"{name}.json", board())
    assert {r.name: r.delta for r in result.regions if r.name in ("FLASH", "SRAM")} == regions
    assert any(note in said for said in result.notes) or not note
    if name == "names":
        assert changes(result.symbols)["buffer"] == 0x200
    elif symbols is None:
        assert result.symbols is None
    elif "*" not in symbols:
        assert {s.name: s.delta for s in result.symbols or () if s.delta} == symbols
    else:  # a list with a row that says nothing: what is not in it is not 0
        rows = changes(result.symbols)
        assert rows["buffer"] is None
        assert rows["table"] is None
    for area in result.regions:
        assert area.delta is None or sum(c.delta for c in area.causes) == area.delta
    text = json.dumps(as_json(now, result), allow_nan=False)
    assert json.loads(text)["baseline"]["source"].endswith(f"{name}.json")
    with console().capture() as shown:
        show(console(), now, result)
    assert "\x1b" not in shown.get()


def test_a_list_is_no_result(tmp_path: Path) -> None:
    now = judge(firmware().write(tmp_path / "f.elf"), board())
    with pytest.raises(SizeError, match="neither an ELF nor a JSON object"):
        compare(now, BASELINES / "list.json", board())


def test_lists_that_were_cut_off_are_not_zero(tmp_path: Path) -> None:
    elf = laid_out((".bss", RAM, 1500 * 16, [(f"s{n}", 16) for n in range(1500)]))
    elf.symbol("late", RAM + 1500 * 16 - 8, 4, OBJECT, section=1)
    before = judge(elf.write(tmp_path / "a.elf"), board())
    path = stored(tmp_path, before)
    assert len(json.loads(path.read_text())["symbols"]) == 1000
    elf.symbol("one_more", RAM + 1500 * 16 - 4, 4, OBJECT, section=1)
    result = compare(judge(elf.write(tmp_path / "b.elf"), board()), path, board())
    assert {s.delta for s in result.symbols or ()} == {None}
    assert len(result.symbols or ()) == 502  # nothing is new, nothing is 0
    assert "the baseline lists 1,000 of its symbols: what is not among them is n/a" in result.notes
    assert not any(area.changed for area in result.regions)
    elf.symbols = [("s1.part.0" if row[0] == "s1" else row[0], *row[1:]) for row in elf.symbols]
    result = compare(judge(elf.write(tmp_path / "d.elf"), board()), path, board())
    rows = changes(result.symbols)
    assert rows["s1.part.0"] is None  # no rename: another s1 could be in the part that is missing
    assert rows["s1"] == -16
    grown = laid_out((".bss", RAM, 1500 * 16 + 64, [(f"s{n}", 16) for n in range(1500)]))
    result = compare(judge(grown.write(tmp_path / "c.elf"), board()), path, board())
    assert causes(result, "SRAM") == [("section", ".bss", 64)]


def test_a_hundred_thousand_symbols(tmp_path: Path) -> None:
    rows = [{"name": f"s{n // 2}", "size": n % 97, "section": ".text"} for n in range(100_000)]
    path = tmp_path / "many.json"
    regions = [{"name": "SRAM", "used": 0x300}]
    path.write_text(json.dumps({"schema": 1, "regions": regions, "symbols": rows}))
    now = judge(firmware().write(tmp_path / "f.elf"), board())
    result = compare(now, path, board())
    assert len(result.symbols or ()) == 100_003 - sum(n % 97 == 0 for n in range(100_000))
    assert changes(result.symbols)["buffer"] is None  # no total says that the list is all
    fields = as_json(now, result)["baseline"]
    assert (len(fields["symbols"]), fields["symbols_total"]) == (1000, len(result.symbols or ()))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: Any) -> Verdict:
    return judge(firmware().write(tmp_path_factory.mktemp("built") / "f.elf"), board())


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_any_damage_is_not_available(built: Verdict, data: Any) -> None:
    """Any part replaced by anything: no crash, and no number that is not in the file."""
    fields: Any = json.loads(json.dumps({"schema": 1, **as_json(built)}))
    for _ in range(data.draw(st.integers(1, 4))):
        at = fields
        while True:
            keys = list(at) if isinstance(at, dict) else list(range(len(at)))
            if not keys:
                break
            key = data.draw(st.sampled_from(keys))
            inner = isinstance(at[key], dict | list) and at[key]
            if inner and data.draw(st.booleans()):
                at = at[key]
                continue
            at[key] = data.draw(JSON)
            break
    result = differences(from_json(fields, "damaged.json"), snapshot(built))
    json.dumps(as_json(built, result), allow_nan=False)
    for area in result.regions:
        assert area.delta is None or sum(c.delta for c in area.causes) == area.delta


def test_other_boards_and_kinds_are_said(tmp_path: Path) -> None:
    now = judge(firmware().write(tmp_path / "f.elf"))
    path = stored(tmp_path, judge(tmp_path / "f.elf", board()))
    result = compare(now, path, None)
    assert {area.delta for area in result.regions} == {None}  # other names: none of them is 0
    assert "the baseline is of board test-board, this of no board" in result.notes
    stripped = firmware().write(tmp_path / "s.elf", symbols=False)
    result = compare(now, stripped, None)
    assert result.symbols is None
    assert "the baseline has no symbols: n/a" in result.notes
    assert changes(result.regions) == {"0x08000000": 0, "0x20000000": 0}


# -- owners, stack, other inputs ------------------------------------------------------------------


MAP = """
Linker script and memory map

.text           0x08000000      0x400
 .text          0x08000000      {0:#x} main.o
 .text          {1:#x}      {2:#x} libhal.a(uart.o)

.data           0x20000000      0x100 load address 0x08000400
 .data          0x20000000      0x100 main.o

.bss            0x20000100      0x200
 .bss           0x20000100      0x200 main.o
"""


def test_owners_with_a_map_each(tmp_path: Path, capsys: Any) -> None:
    elf = firmware().write(tmp_path / "f.elf")
    maps = []
    for part in (0x300, 0x3F0):
        maps.append(tmp_path / f"{part}.map")
        maps[-1].write_text(MAP.format(part, FLASH + part, 0x400 - part))
    now = judge(elf, board(), link_map=maps[1])
    result = compare(now, elf, board(), link_map=maps[0])
    assert changes(result.owners["objects"]) == {"main.o": 0xF0, "uart.o": -0xF0}
    assert changes(result.owners["libraries"]) == {"(objects)": 0xF0, "libhal.a": -0xF0}
    assert result.owners["groups"] is None
    assert result.notes == []
    result = compare(now, maps[0], board())  # a map alone: no symbols of an ELF, but the objects
    assert result.symbols is None
    assert "the baseline tells parts, this symbols: symbols are n/a" in result.notes
    assert changes(result.owners["objects"]) == {"main.o": 0xF0, "uart.o": -0xF0}
    path = stored(tmp_path, judge(elf, board(), link_map=maps[0]))
    again = compare(now, path, board())
    assert changes(again.owners["objects"]) == {"main.o": 0xF0, "uart.o": -0xF0}
    result = compare(now, elf, board())
    assert result.owners["objects"] is None
    assert "the baseline has no objects: n/a" in result.notes
    with pytest.raises(SizeError, match="which has no map"):
        compare(now, path, board(), link_map=maps[0])
    words = ["size", str(elf), "--map", str(maps[1]), "--json"]
    assert main([*words, "--baseline", str(elf), "--baseline-map", str(maps[0])]) == 0
    fields = json.loads(capsys.readouterr().out)["baseline"]
    assert [(r["name"], r["origin"], r["delta"]) for r in fields["objects"]] == [
        ("main.o", None, 0xF0),
        ("uart.o", "libhal.a", -0xF0),
    ]
    assert main([*words, "--baseline-map", str(maps[0])]) == 2
    assert "no baseline" in capsys.readouterr().out


def deep(frame: int, call: str = "00f002f8") -> ElfWriter:
    """f: push {r4-r7,lr}; sub sp; bl g; add sp; pop; g: push {r3,lr}; pop."""
    code = f"f0b5{0x80 + frame // 4:02x}b0{call}{frame // 4:02x}b0f0bd08b508bd"
    elf = ElfWriter(machine=ARM)
    text = elf.section(".text", FLASH, bytes.fromhex(code), flags=AX, align=4)
    elf.load([text])
    elf.symbol("f", FLASH | 1, 12, FUNC, section=text)
    elf.symbol("g", FLASH + 12 | 1, 4, FUNC, section=text)
    return elf


def test_stack(tmp_path: Path) -> None:
    need("module:capstone")
    options = StackOptions(("f",))
    old, new = deep(20).write(tmp_path / "a.elf"), deep(60).write(tmp_path / "b.elf")
    now = judge(new, stack=options)
    result = compare(now, old, None, stack=options)
    rows = {row.name: (row.before, row.after, row.delta) for row in result.stack or ()}
    assert rows == {
        "together": (48, 88, 40),
        "threads": (48, 88, 40),
        "interrupts": (0, 0, 0),
        "f": (48, 88, 40),
    }
    path = stored(tmp_path, judge(old, stack=options))
    assert compare(now, path, None).stack == result.stack
    path = stored(tmp_path, judge(old))
    result = compare(now, path, None)
    assert result.stack is None
    assert "the baseline has no stack: n/a" in result.notes
    result = compare(now, old, None, stack=replace(options, entries=("f", "nobody")))
    assert result.stack is None
    assert any(note.startswith("the baseline's stack is n/a: ") for note in result.notes)


def test_a_lower_bound_has_no_difference_to_a_bound(tmp_path: Path) -> None:
    need("module:capstone")
    options = StackOptions(("f",))
    old = deep(20).write(tmp_path / "a.elf")
    new = deep(60, "98470000").write(tmp_path / "b.elf")  # blx r3: whom, is not known
    now = judge(new, stack=options)
    assert now.stack is not None
    assert not now.stack.complete
    for baseline in (old, stored(tmp_path, judge(old, stack=options))):
        result = compare(now, baseline, None, stack=options)
        assert {row.name: row.delta for row in result.stack or ()}["together"] is None
    result = compare(now, new, None, stack=options)
    assert {row.delta for row in result.stack or ()} == {0}  # of two bounds there is one


def test_raw_hex_and_several_objects(tmp_path: Path) -> None:
    raw = tmp_path / "now.bin", tmp_path / "then.bin"
    raw[0].write_bytes(b"\1" * 300)
    raw[1].write_bytes(b"\2" * 200)
    now = judge(raw[0], board(), base=FLASH)
    assert changes(compare(now, raw[1], board(), base=FLASH).regions) == {"FLASH": 100, "SRAM": 0}
    path = stored(tmp_path, now)
    assert changes(compare(now, path, board(), base=FLASH).regions) == {"FLASH": 0, "SRAM": 0}
    parts = []
    for number in (1, 2):
        code = (f".text.f{number}", 0, CODE * 8, [(f"f{number}", 16)])
        parts.append(laid_out(code, kind=REL).write(tmp_path / f"{number}.o"))
    result = compare(judge(parts), parts[:1], None)
    assert changes(result.totals)["text"] == 16
    assert changes(result.owners["objects"]) == {"2.o": 16}
    assert compare(judge(parts), parts, None).symbols == []


def test_an_image_is_counted_in_both(tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.write_bytes(bytes(0x800))
    elf = firmware().write(tmp_path / "f.elf")
    now = judge(elf, board(), image)
    result = compare(now, elf, board(), image=image)
    assert changes(result.regions) == {"FLASH": 0, "SRAM": 0}
    assert any("counted in both" in note for note in result.notes)
    assert changes(compare(now, stored(tmp_path, judge(elf, board())), board()).regions) == {
        "FLASH": 0x800,
        "SRAM": 0,
    }


# -- shown ----------------------------------------------------------------------------------------


@pytest.fixture
def said(tmp_path: Path, capsys: Any) -> Callable[..., str]:
    """What the command says of one build against another."""

    def run(before: ElfWriter, after: ElfWriter, *words: str) -> str:
        old, new = before.write(tmp_path / "old.elf"), after.write(tmp_path / "new.elf")
        assert main(["size", str(new), "--baseline", str(old), *words]) == 0
        text: str = capsys.readouterr().out
        return text[text.index("against ") :] if "against " in text else text

    return run


def test_no_change_is_one_line(said: Any) -> None:
    text = said(firmware(), firmware())
    assert text.splitlines()[0].endswith("old.elf")
    assert "changed by" not in text
    fields = json.loads(said(firmware(), firmware(), "--json"))["baseline"]
    assert fields["changed"] is False
    assert fields["symbols"] == fields["sections"] == []


def test_changed_rows_only_and_largest_first(said: Any) -> None:
    more = [(f"s{n:02}", 4 * n) for n in range(1, 31)]
    text = said(
        laid_out((".text", FLASH, CODE * 32, [("main", 64)]), (".bss", RAM, 64, [("same", 64)])),
        laid_out(
            (".text", FLASH, CODE * 32, [("main", 64)]),
            (".bss", RAM, 64 + sum(n for _, n in more), [("same", 64), *more]),
        ),
    )
    lines = [line.split() for line in text.splitlines()]
    assert "same" not in text
    assert "main" not in text
    start = next(i for i, words in enumerate(lines) if words[:1] == ["0x20000000"])
    assert lines[start] == ["0x20000000", "64", "1,924", "+1,860"]
    rows = lines[start + 1 : start + 10]
    assert [words[0] for words in rows[:8]] == [f"s{n}" for n in range(30, 22, -1)]
    assert rows[8][:3] == ["22", "more", "+1,012"]
    assert sum(int(w[1].replace(",", "")) for w in rows[:8]) + 1012 == 1860


def test_json_has_causes(said: Any) -> None:
    fields = json.loads(said(firmware(), firmware(bss=0x200 + 1024), "--json"))["baseline"]
    (row,) = (r for r in fields["regions"] if r["delta"])
    assert row["causes"] == [
        {"kind": "symbol", "name": "buffer", "section": ".bss", "origin": None, "delta": 1024}
    ]
    assert row["padding"] == {"before": 0, "after": 0, "delta": 0}
    assert Counter(r["delta"] for r in fields["symbols"]) == {1024: 1}
    assert fields["objects"] is None
    assert fields["stack"] is None
