# SPDX-License-Identifier: Apache-2.0
"""Pictures of memory: palette, bars, trees, and pages that are one file and harmless."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from importlib import util
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colibri import cli, plan
from colibri.boards.budgets import RegionBudget
from colibri.errors import ColibriError
from colibri.fit import Verdict, judge
from colibri.fit.compare import compare
from colibri.fit.findings import Finding
from colibri.fit.pictures import bars, size_rows, size_section, trees
from colibri.joint_plan import plan_together
from colibri.plan_pictures import bars_of
from colibri.report.bars import Bar, Piece, allocate, legend, strip, terminal_bar
from colibri.report.html import MOST_ROWS, Page, Section, Table, VerdictRow, render, write_page
from colibri.report.palette import COMPUTED, ROLES, contrast, text_on
from colibri.report.treemap import MOST_NODES, Grower, Node, figure, folded
from elf_writer import AX, FUNC, OBJECT, WA, A, ElfWriter
from needs import need
from size_support import CODE, FLASH, RAM, board, firmware
from test_size_maps import GNU, LLD, firmware_of_map
from test_size_owners import UNITS, with_dwarf

PICO = "pimoroni-pico-plus-2"
HOSTILE = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"'&amp;<b>",
    "a\x1b[31m\x00\x07b",
    "{{ 7*7 }}{% raw %}",
    "größe_\u4f60\u597d\u202e",
    "std::vector<std::pair<int, " * 60 + ">" * 60,
    "]]>--><!--",
    "</script ><!--<script a",
    "%{value} $x$",
)
used_roles = st.sampled_from([role for role in ROLES if role not in COMPUTED])
sizes = st.integers(0, 2**40) | st.integers(0, 300)
pieces = st.lists(st.builds(Piece, st.just("p"), used_roles, sizes, st.none()), max_size=14)


# --- palette -------------------------------------------------------------------------------------


def test_text_on_every_colour_is_readable() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)  # the known ends of the scale
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)  # WCAG's own example
    for name, role in ROLES.items():
        for colour in (role.light, role.dark):
            assert contrast(text_on(colour), colour) >= 4.5, name


#: Severe protanopia, deuteranopia, tritanopia: Machado, Oliveira, Fernandes 2009, linear RGB.
BLIND = {
    "all cones": np.eye(3),
    "no red": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
         [-0.003882, -0.048116, 1.051998]]),
    "no green": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
         [-0.011820, 0.042940, 0.968881]]),
    "no blue": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
         [0.004733, 0.691367, 0.303900]]),
}  # fmt: skip


def lab(colour: str, seen: np.ndarray) -> np.ndarray:
    """CIE L*a*b* (D65) of a colour as somebody sees it."""
    code = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(code <= 0.04045, code / 12.92, ((code + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750],
                       [0.0193339, 0.1191920, 0.9503041]])  # fmt: skip
    xyz = to_xyz @ np.clip(seen @ linear, 0, 1) / to_xyz.sum(axis=1)
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("eyes", BLIND)
def test_colours_differ_for_everybody(eyes: str) -> None:
    """Hatched roles are told by their hatch; of the others no two are nearer than 11."""
    for background in ("light", "dark"):
        plain = [(n, getattr(r, background)) for n, r in ROLES.items() if not r.hatched]
        for (one, a), (other, b) in combinations(plain, 2):
            distance = np.linalg.norm(lab(a, BLIND[eyes]) - lab(b, BLIND[eyes]))
            assert distance >= 11, f"{one}, {other}: {distance:.1f}"


def test_a_role_looks_the_same_everywhere() -> None:
    assert len({role.letter for role in ROLES.values()}) == len(ROLES)
    for name, role in ROLES.items():
        assert role.style == role.dark
        if name not in ("free", "padding"):
            assert role.light == role.dark


# --- bars ----------------------------------------------------------------------------------------


@given(pieces, st.none() | sizes, st.integers(1, 120), st.none() | sizes, st.none() | sizes)
def test_terminal_bar_has_exactly_its_width(
    given_pieces: list[Piece], capacity: int | None, width: int, warn: int | None, limit: int | None
) -> None:
    bar = Bar("r", None, capacity, tuple(given_pieces), warn, limit)
    line = terminal_bar(bar, width)
    assert line.cell_len == len(line.plain) == width
    parts = [part for part in bar.parts() if part.weight > 0]
    letters = {ROLES[part.role].letter for part in parts if part.role != "free"}
    if 0 < len(parts) <= width // 2:  # marks may stand in cells, but not in place of a letter
        assert letters <= set(line.plain)
    if bar.overflow and len(parts) <= width:
        assert "!" in line.plain


@given(pieces, sizes)
def test_pieces_and_what_is_free_add_up(given_pieces: list[Piece], capacity: int) -> None:
    bar = Bar("r", 0, capacity, tuple(given_pieces))
    assert bar.used + bar.taken == sum(piece.bytes for piece in given_pieces)
    assert bar.free is not None
    assert bar.used + bar.taken + bar.free - bar.overflow == capacity
    assert not (bar.free and bar.overflow)
    drawn = {part.role: part.bytes for part in bar.parts()}
    assert drawn == bar.by_role() | {
        role: size for role, size in (("free", bar.free), ("overflow", bar.overflow)) if size
    }
    if not bar.taken > capacity:
        assert bar.scale == pytest.approx(capacity + bar.overflow)


@given(st.lists(st.floats(0, 1e15), max_size=20), st.integers(1, 60))
def test_cells_are_shared_out_exactly(weights: list[float], width: int) -> None:
    cells = allocate(weights, width)
    present = [i for i, weight in enumerate(weights) if weight > 0]
    assert sum(cells) == (width if present else 0)
    assert all(cells[i] == 0 for i in range(len(weights)) if i not in present)
    if len(present) <= width:
        assert all(cells[i] >= 1 for i in present)


def test_a_bar_by_hand() -> None:
    """24 cells of 1,000 bytes; free at the right, then what is reserved."""
    held = (Piece("a", "code", 6000), Piece("b", "stack", 10), Piece("r", "reserved", 4000))
    bar = Bar("r", 0, 24_000, held, warn=12_000, limit=18_000)
    assert terminal_bar(bar, 24).plain == "C█████S░░░░░╎░░░░░│░R███"
    assert (bar.used, bar.taken, bar.free, bar.overflow) == (6010, 4000, 13_990, 0)
    assert legend([bar]).plain == "C code  S stack  R reserved  ╎ warning mark  │ limit"
    over = Bar("r", 0, 1000, (Piece("a", "code", 3000),))
    assert terminal_bar(over, 12).plain == "C███!!!!!!!!"  # 1,000 that fit, 2,000 that do not
    assert terminal_bar(Bar("r", 0, 0, ()), 14).plain == "no capacity   "
    beyond = Bar("r", 0, 1000, (Piece("a", "code", 500),), beyond=500)  # by address
    assert (beyond.free, beyond.overflow) == (500, 500)
    assert terminal_bar(beyond, 12).plain == "C███!!!!░░░░"


def test_a_strip_shows_where_things_are() -> None:
    held = (Piece("a", "code", 500, 0x1000), Piece("b", "data", 1, 0x1000 + 900))
    assert strip(Bar("r", 0x1000, 1000, held), 10) == [
        ("code", 5), ("free", 4), ("data", 1)
    ]  # fmt: skip
    assert strip(Bar("r", 0x1000, 1000, (Piece("a", "code", 5, None),))) == []
    assert strip(Bar("r", None, 1000, held)) == []


def test_a_wrong_piece_is_refused() -> None:
    with pytest.raises(ValueError, match="-1 bytes"):
        Piece("a", "code", -1)
    with pytest.raises(ValueError, match="'free'"):
        Piece("a", "free", 1)
    with pytest.raises(ValueError, match="-5 bytes"):
        Bar("r", 0, -5, ())


# --- a verdict as bars and trees -----------------------------------------------------------------


def sums_hold(node: Node) -> bool:
    return all(
        not n.children or n.bytes == sum(child.bytes for child in n.children) for n in node.walk()
    )


def leaves(node: Node) -> dict[str, int]:
    return {n.name: n.bytes for n in node.walk() if not n.children}


def check(verdict: Verdict) -> dict[str, Node]:
    """What must hold of every verdict; its trees by region."""
    grown = {tree.name: tree for tree in trees(verdict)}
    for each, bar in zip(verdict.map.usages, bars(verdict), strict=True):
        assert bar.used == each.used
        assert bar.free == each.free
        assert bar.overflow == each.overflow
        assert (grown[bar.title].bytes if each.used else 0) == each.used
    assert all(sums_hold(tree) for tree in grown.values())
    return grown


def test_a_known_firmware(tmp_path: Path) -> None:
    elf = firmware()
    elf.symbol("__stack_bottom", RAM + 0x1000)
    elf.symbol("__stack_top", RAM + 0x1800)
    verdict = judge(elf.write(tmp_path / "f.elf"), board())
    grown = check(verdict)
    flash, ram = bars(verdict)
    assert flash.by_role() == {"code": 0x400, "data": 0x100}
    assert ram.by_role() == {"data": 0x100, "bss": 0x200, "stack": 0x800}
    assert (flash.base, flash.capacity, flash.free) == (FLASH, 0x10000, 0x10000 - 0x500)
    assert leaves(grown["FLASH"]) == {"main": 0x300, "no symbol": 0x100, "table": 0x100}
    assert leaves(grown["SRAM"]) == {"table": 0x100, "buffer": 0x200, "stack": 0x800}
    assert [child.name for child in grown["FLASH"].children] == [".text", ".data"]


def test_the_reserved_stack_is_a_stack_in_whatever_section(tmp_path: Path) -> None:
    elf = firmware()
    own = elf.section(".noinit", RAM + 0x1000, 0x800, flags=WA)
    elf.load([own])
    elf.symbol("__stack_bottom", RAM + 0x1000)
    elf.symbol("__stack_top", RAM + 0x1800)
    _, ram = bars(judge(elf.write(tmp_path / "f.elf"), board()))
    assert ram.by_role() == {"data": 0x100, "bss": 0x200, "stack": 0x800}


def test_an_image_is_beside_the_firmware(tmp_path: Path) -> None:
    image = tmp_path / "model.bin"
    image.write_bytes(bytes(0x2000))
    verdict = judge(firmware().write(tmp_path / "f.elf"), board(), image)
    flash = check(verdict)["FLASH"]
    names = {child.name: child for child in flash.children}
    assert names["image"].role == "weights"
    assert names["image"].bytes == 0x2000
    rest = names["all but the model image"]
    assert rest.start
    assert rest.bytes == 0x500


def test_overflow_and_reserved(tmp_path: Path) -> None:
    from colibri.fit.regions import Reserved

    kept = [Reserved(0x1F000, 0x1000, "boot loader")]
    flash, ram = bars(judge(firmware().write(tmp_path / "f.elf"), board(ram_reserved=kept)))
    assert ram.taken == 0x1000
    assert ram.usable == 0x1F000
    verdict = judge(firmware().write(tmp_path / "f.elf"), board(flash_size=0x480))
    flash, _ = bars(verdict)
    assert flash.overflow == 0x80
    assert "!" in terminal_bar(flash).plain
    assert verdict.verdict == "over"


def test_overlays_have_the_bytes_of_their_largest(tmp_path: Path) -> None:
    """Two sections share a run address; symbols of both are charged what the other has not."""
    elf = firmware()
    one = elf.section(".one", RAM + 0x1000, CODE * 0x80, flags=AX)
    two = elf.section(".two", RAM + 0x1000, CODE * 0xC0, flags=AX)
    elf.load([one], paddr=FLASH + 0x800)
    elf.load([two], paddr=FLASH + 0xA00)
    elf.symbol("first", RAM + 0x1000 | 1, 0x40, FUNC, section=one)
    elf.symbol("second", RAM + 0x1000 | 1, 0x180, FUNC, section=two)
    grown = check(judge(elf.write(tmp_path / "f.elf"), board()))
    assert grown["SRAM"].bytes == 0x300 + 0x180
    assert grown["FLASH"].bytes == 0x500 + 0x100 + 0x180


def test_outside_and_stripped(tmp_path: Path) -> None:
    elf = firmware()
    far = elf.section(".far", 0x9000_0000, bytes(64), flags=A)
    elf.load([far])
    grown = check(judge(elf.write(tmp_path / "f.elf"), board()))
    assert leaves(grown["outside every region"]) == {".far": 64}
    bare = check(judge(elf.write(tmp_path / "f.elf", symbols=False), board()))
    assert leaves(bare["FLASH"]) == {".text": 0x400, ".data": 0x100}
    none = check(judge(elf.write(tmp_path / "f.elf", headers=False), board()))
    assert none["FLASH"].bytes == 0x500


def paths(node: Node, above: str = "") -> Iterator[tuple[str, int]]:
    """Each leaf's way from below the root, and its bytes."""
    for child in node.children:
        here = f"{above}/{child.kind}:{child.name}"
        if child.children:
            yield from paths(child, here)
        else:
            yield here, child.bytes


def test_with_a_map_there_are_libraries_and_objects(tmp_path: Path) -> None:
    (tmp_path / "f.map").write_text(GNU)
    elf = firmware_of_map().write(tmp_path / "f.elf")
    grown = check(judge(elf, link_map=tmp_path / "f.map"))
    main = "/library:(objects)/object:main.o/"
    gpio = "/library:lib/libhal.a/object:gpio.o/"
    assert dict(paths(grown["FLASH"])) == {
        f"{main}symbol:main": 0x80,
        f"{main}rest:.a_section_with_a_name_of_forty_characters, no symbol": 0x20,
        f"{main}rest:.rodata, no symbol": 0x1E,
        f"{gpio}symbol:gpio_set": 0x70,
        f"{gpio}symbol:table": 0x10,
        "/fill:(fill) .text": 0x10,
        "/fill:(fill) .rodata": 2,
    }
    assert dict(paths(grown["RAM"])) == {
        f"{main}symbol:buffer": 0x1F0,
        f"{gpio}symbol:table": 0x10,
        f"{gpio}rest:.bss, no symbol": 0x10,
        "/stack:stack": 0x1000,
    }


def test_with_debug_information_there_are_sources(tmp_path: Path) -> None:
    verdict = judge(with_dwarf(UNITS).write(tmp_path / "f.elf"), board())
    app, unknown = "/folder:/project/app/src/source:/project/app/src/main.c/", "(source not known)"
    assert dict(paths(check(verdict)["FLASH"])) == {
        f"{app}symbol:main": 0x300,
        "/folder:/project/lib/source:/project/lib/util.c/symbol:util": 0x80,
        f"/folder:{unknown}/section:.data/symbol:table": 0x100,
        "/rest:(unattributed)": 0x80,
    }


def test_objects_and_maps_alone_and_images(tmp_path: Path) -> None:
    (tmp_path / "g.map").write_text(GNU)
    (tmp_path / "l.map").write_text(LLD)
    (tmp_path / "raw.bin").write_bytes(bytes(0x300))
    check(judge(tmp_path / "g.map"))
    check(judge(tmp_path / "l.map", board()))
    raw = judge(tmp_path / "raw.bin", board(), base=FLASH)
    check(raw)
    assert bars(raw)[0].by_role() == {"unattributed": 0x300}
    elf = ElfWriter(kind=1)
    text = elf.section(".text", 0, CODE * 8, flags=AX)
    elf.symbol("f", 1, 12, FUNC, section=text)
    verdict = judge(elf.write(tmp_path / "f.o"))
    assert bars(verdict) == []
    assert check(verdict)["text"].bytes == 16


def test_marks_are_the_boards(tmp_path: Path) -> None:
    budget = RegionBudget.model_validate({"warn": "1 KiB", "limit": "50 %"})
    verdict = judge(
        firmware().write(tmp_path / "f.elf"), board(budgets={"regions": {"FLASH": budget}})
    )
    flash, ram = bars(verdict)
    assert (flash.warn, flash.limit) == (1024, 0x8000)
    assert (ram.warn, ram.limit) == (None, None)
    assert [mark[2] for mark in flash.marks()] == [1024, 0x8000]
    (row,) = size_rows(verdict)
    assert (row.value, row.limit, row.status, row.kind) == (0x500, 0x8000, "warning", "counted")


# --- treemaps ------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.lists(st.sampled_from("abc"), max_size=3), st.sampled_from(HOSTILE), sizes),
        max_size=60,
    ),
    st.integers(5, 60),
)
def test_folding_keeps_every_sum(adds: list[tuple[list[str], str, int]], most: int) -> None:
    root = Node("r", "region")
    grower = Grower(root)
    for path, name, size in adds:
        grower.add(tuple((part, "object") for part in path), name, "symbol", "code", size)
    total = sum(size for _, _, size in adds)
    assert root.bytes == total
    small = folded(root, most)
    assert small.bytes == total
    assert sums_hold(small)


def test_a_picture_is_bounded_and_its_ids_unique() -> None:
    root = Node("r", "region")
    grower = Grower(root)
    for i in range(100_000):
        grower.add(((f"lib{i % 7}", "library"), (f"o{i % 991}", "object")), f"s{i}", "symbol",
                   "code", i % 97 + 1)  # fmt: skip
    drawn = figure(root).data[0]
    assert len(drawn.ids) == len(set(drawn.ids)) <= MOST_NODES
    values = dict(zip(drawn.ids, drawn.values, strict=True))
    sums: dict[str, int] = {}
    for id_, parent in zip(drawn.ids, drawn.parents, strict=True):
        if parent:
            sums[parent] = sums.get(parent, 0) + values[id_]
    assert all(values[id_] == total for id_, total in sums.items())
    assert values["n0"] == root.bytes == sum(i % 97 + 1 for i in range(100_000))
    assert any("more objects" in label for label in drawn.labels)


def test_names_are_no_markup_for_plotly() -> None:
    root = Node("r", "region")
    grower = Grower(root)
    for name in HOSTILE:
        grower.add((), name, "symbol", "code", 5)
    drawn = figure(root).data[0]
    for text in (*drawn.labels, *drawn.customdata):
        assert not re.search(r"<(?!br>)", text)
        assert text.replace("<br>", "").isprintable()
        assert len(text) < 700


# --- pages ---------------------------------------------------------------------------------------

_VOID = {"meta", "br", "hr", "img", "input", "link"}


class Reader(HTMLParser):
    """Every tag closed, in order; what scripts, links and data there are."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: dict[str, int] = {}
        self.addresses: list[str] = []
        self.handlers: list[str] = []
        self.ids: list[str] = []
        self.text: list[str] = []
        self.json: list[Any] = []
        self.policy = ""
        self._data = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.addresses += [v or "" for k, v in attrs if k in ("src", "href", "action", "data")]
        self.handlers += [k for k, _ in attrs if k.startswith("on")]
        self.ids += [v or "" for k, v in attrs if k == "id"]
        if found.get("http-equiv") == "Content-Security-Policy":
            self.policy = found["content"] or ""
        self._data = tag == "script" and found.get("type") == "application/json"
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag
        self._data = False

    def handle_data(self, data: str) -> None:
        if self._data:
            self.json.append(json.loads(data))
        elif not self.open or self.open[-1] not in ("script", "style"):
            self.text.append(data)


def read(page: str) -> Reader:
    """Parses a page and holds it to what every page must be."""
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    assert all(address.startswith("#") for address in reader.addresses)
    assert reader.handlers == []
    assert len(reader.ids) == len(set(reader.ids))
    assert "default-src 'none'" in reader.policy
    assert "unsafe-eval" not in reader.policy
    assert not {"img", "link", "iframe", "object", "form"} & set(reader.tags)
    for block in re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page):
        assert not set("<>&") & set(block)
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    assert style is not None
    assert style[1].count("{") == style[1].count("}")
    assert not re.search(r"url\(|@import", style[1])
    return reader


def said(reader: Reader) -> str:
    return " ".join(" ".join(reader.text).split())


def test_hostile_names_are_text(tmp_path: Path) -> None:
    need("module:jinja2", "module:plotly")
    elf = firmware()
    at = elf.section(".text.more", FLASH + 0x1000, CODE * 0x400, flags=AX)
    elf.load([at])
    for index, name in enumerate(HOSTILE):
        clean = name.replace("\0", "")
        elf.symbol(clean, FLASH + 0x1000 + 32 * index | 1, 32, FUNC, section=at)
    verdict = judge(elf.write(tmp_path / "<b>&'\".elf"), board())
    rows = [VerdictRow(name, name, name, name, None, name) for name in HOSTILE]
    finding = Finding("error", HOSTILE[0], HOSTILE[0], HOSTILE[1])
    bar = Bar(HOSTILE[1], 0, 10, (Piece(HOSTILE[0], "code", 5, 0), Piece(HOSTILE[2], "bss", 1, 6)),
              note=HOSTILE[0])  # fmt: skip
    table = Table(HOSTILE[0], HOSTILE, [HOSTILE], HOSTILE[1])
    other = Section(HOSTILE[0], HOSTILE[1], HOSTILE[2], [(HOSTILE[0], HOSTILE[1])], [bar],
                    tables=[table], findings=[finding], rule=HOSTILE[0],
                    data={HOSTILE[0]: HOSTILE})  # fmt: skip
    page = Page(HOSTILE[0], HOSTILE[1], [size_section(verdict), other], HOSTILE[2], rows)
    text = render(page)
    reader = read(text)
    assert text.count("<script>") == 2  # plotly's, and the page's own
    assert "<b>&amp;" not in text
    for name in (HOSTILE[0], HOSTILE[1], HOSTILE[4]):
        assert name in said(reader)
    assert {HOSTILE[0]: list(HOSTILE)} in reader.json
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_a_size_page(tmp_path: Path) -> None:
    need("module:jinja2", "module:plotly")
    before = firmware().write(tmp_path / "before.elf")
    verdict = judge(firmware(bss=0x600).write(tmp_path / "after.elf"), board())
    comparison = compare(verdict, before, board())
    file = tmp_path / "page.html"
    write_page(file, Page.of(size_section(verdict, comparison), rows=size_rows(verdict)))
    reader = read(file.read_text("utf-8"))
    text = said(reader)
    for expected in ("fits", "1,280 B of 65,536 B (2.0 %), 64,256 B free", "main", "buffer",
                     "Against", "1,024", verdict.map.rule):  # fmt: skip
        assert expected in text, expected
    (result,) = [found for found in reader.json if "verdict" in found]
    assert result["regions"][1]["used"] == 0x700
    assert reader.tags["noscript"] == 1


def test_a_page_of_several_boards_without_pictures() -> None:
    need("module:jinja2")
    sections = [Section(f"board-{i}", status) for i, status in enumerate(("fits", "over"))]
    rows = [
        VerdictRow("board-0", "plan", "SRAM", 10, 20, "ok", "B", "planned"),
        VerdictRow("board-1", "emulate", "speed", 1.25, 2.0, "over", "tok/s", "predicted"),
        VerdictRow("board-1", "size", "FLASH", None, 20, "unknown"),
    ]
    page = render(Page("colibri check", "over", sections, "1 of 2 boards", rows))
    text = said(read(page))
    assert len(page) < 60_000  # no plotly without a treemap
    for expected in ("does not fit", "board-0", "1.25", "predicted", "n/a", "tok/s"):
        assert expected in text


@pytest.mark.parametrize("count", [10_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_a_page_is_bounded(tmp_path: Path, count: int) -> None:
    """Whatever there is: a table of 1,000 symbols, a picture of a few thousand boxes."""
    need("module:jinja2", "module:plotly")
    from plotly.offline import get_plotlyjs

    elf = ElfWriter(bits=64, machine=183)
    text = elf.section(".text", FLASH, bytes(4) * count, flags=AX)
    elf.load([text])
    for index in range(count):
        elf.symbol(f"symbol_{index}", FLASH + 4 * index, 4, OBJECT, section=text)
    verdict = judge(elf.write(tmp_path / "big.elf"), board(flash_size=1 << 20))
    assert check(verdict)["FLASH"].bytes == 4 * count
    page = render(Page.of(size_section(verdict)))
    assert len(page) - len(get_plotlyjs()) < 2_500_000
    assert f"{count - MOST_ROWS:,} more rows" in said(read(page))


def test_without_its_packages_a_page_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = util.find_spec
    monkeypatch.setattr(
        "colibri.report.html.find_spec",
        lambda name: None if name in ("jinja2", "plotly") else real(name),
    )
    with pytest.raises(ColibriError, match=r'pip install "colibri-sdk\[html\]"'):
        write_page(tmp_path / "page.html", Page("t", "fits", []))
    assert not list(tmp_path.iterdir())


# --- plans, emulations, commands -----------------------------------------------------------------


@pytest.fixture(scope="module")
def image(demo_image: Callable[[str], Path]) -> Path:
    return demo_image("q4")


def test_plans_as_bars(image: Path) -> None:
    for made in (
        plan(image, board=PICO, context=128),
        plan(image, board="raspberry-pi-5-2gb"),
        plan_together([image, image], PICO, context=128, kv="f16"),
    ):
        assert made.fits
        for each, bar in zip(made.regions, bars_of(made), strict=True):
            assert bar.used + bar.taken == each.used
            assert bar.kind == "planned"
            assert not bar.overflow
    made = plan(image, board=PICO, batch=1024)
    assert made.lack is not None
    bar = next(bar for bar in bars_of(made) if bar.title == made.lack.region)
    assert bar.overflow == made.lack.need - made.lack.have > 0


def test_commands_write_pages(image: Path, tmp_path: Path) -> None:
    need("module:jinja2", "module:plotly")
    file = tmp_path / "page.html"
    assert cli.main(["plan", str(image), "--board", PICO, "--html", str(file)]) == 0
    assert "planned" in said(read(file.read_text("utf-8")))
    words = ["emulate", str(image), "--board", PICO, "--context", "64", "--tokens", "1,2",
             "--max-new-tokens", "2", "--html", str(file)]  # fmt: skip
    assert cli.main(words) == 0
    text = said(read(file.read_text("utf-8")))
    for expected in ("predicted", "planned", "counted", "no speed here was measured"):
        assert expected in text
    elf = firmware().write(tmp_path / "f.elf")
    assert cli.main(["size", str(elf), "--html", str(file)]) == 0
    assert "no verdict" in said(read(file.read_text("utf-8")))
    assert cli.main(["size", str(elf), "--html", str(tmp_path / "no" / "page.html")]) == 2


def test_pages_replace_pages_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the input, and no folder."""
    need("module:jinja2", "module:plotly")
    monkeypatch.chdir(tmp_path)
    elf = firmware().write(tmp_path / "f.elf")
    before = elf.read_bytes()
    (tmp_path / "link.html").symlink_to(elf)
    for name in ("f.elf", "link.html", ".", "/dev/null"):
        assert cli.main(["size", "f.elf", "--html", name]) == 2
        assert f"{name}: is there already and no HTML page" in capsys.readouterr().err
    assert elf.read_bytes() == before
    (tmp_path / "empty.html").touch()
    assert cli.main(["size", "f.elf", "--html", "empty.html"]) == 0
