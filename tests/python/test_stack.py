# SPDX-License-Identifier: Apache-2.0
"""Worst-case stack: hand-made code with known answers, graphs, declared calls, GCC's files."""

from __future__ import annotations

import json
import random
import re
import struct
import tomllib
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from colibri.boards import RegionBudget
from colibri.cli import main
from colibri.errors import SizeError
from colibri.fit import judge
from colibri.fit.stack import Bounds, Edge, Node, StackOptions, StackReport, walk
from colibri.fit.stack.declared import read_table
from colibri.fit.stack.usage_files import read_usage
from elf_writer import ARM, AX, FUNC, WA, X86, ElfWriter
from needs import need
from size_support import FLASH, RAM, board
from stack_cases import BASE, CASES, Case

NAMED = {case.name: case for case in CASES}


@pytest.fixture(autouse=True)
def _capstone() -> None:
    need("module:capstone")


def stack_of(
    path: Path, *entries: str, calls: str = "", usage: tuple[Path, ...] = ()
) -> StackReport:
    """The report of an ELF with a declared table."""
    files = ()
    if calls:
        table = path.with_suffix(".toml")
        table.write_text(calls)
        files = (table,)
    verdict = judge(path, stack=StackOptions(entries, usage, files))
    assert verdict.stack is not None
    return verdict.stack


def bound_of(folder: Path, case: Case, calls: str = "", **how: bool) -> tuple[int, bool, str]:
    """Bytes of ``f``, whether they are the worst, and what is unknown."""
    path = case.elf(**how).write(folder / "f.elf")
    (entry,) = stack_of(path, "f", calls=calls).entries
    assert sum(link.bytes for link in entry.bound.chain) == entry.bound.bytes
    said = "; ".join(f"{u.function}: {u.what}" for u in entry.bound.unknown)
    return entry.bound.bytes, entry.bound.complete, said


# Code


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_known_answers(tmp_path: Path, case: Case) -> None:
    found, complete, unknown = bound_of(tmp_path, case)
    assert case.unknown in unknown
    assert complete == (not case.unknown)
    if case.bytes is not None:
        assert found == case.bytes


@pytest.mark.parametrize("be8", [False, True])
def test_big_endian_arm(tmp_path: Path, be8: bool) -> None:
    """Instructions are big-endian too, but for BE8, where only data is."""
    case = NAMED["pointer"]
    code = bytearray.fromhex(case.code)
    at = 8  # the literal
    code[at : at + 4] = code[at : at + 4][::-1]
    if not be8:
        for start in [*range(0, at, 2), *range(at + 4, len(code), 2)]:
            code[start : start + 2] = code[start : start + 2][::-1]
    elf = bytearray(case.elf(little=False, code=bytes(code)).build())
    if be8:
        elf[36:40] = struct.pack(">I", 0x0080_0000)
    path = tmp_path / "big.elf"
    path.write_bytes(elf)
    (entry,) = stack_of(path, "f").entries
    assert (entry.bound.bytes, entry.bound.complete) == (case.bytes, True)


def test_chain_names_functions_and_their_bytes(tmp_path: Path) -> None:
    path = NAMED["tail_popped"].elf().write(tmp_path / "f.elf")
    (entry,) = stack_of(path, "f").entries
    assert [(link.name, link.bytes) for link in entry.bound.chain] == [("f", 0), ("g", 100)]


@pytest.mark.parametrize(
    ("name", "calls", "expected"),
    [
        ("indirect", '[stack.calls]\n"f" = ["g"]', 64),
        ("indirect", '[stack.calls]\n"[a-f]" = ["group:x"]\n[stack.groups]\nx = ["g*"]', 64),
        ("indirect", '[stack.calls]\n"f" = []', 8),
        ("rv32_indirect", '[stack.calls]\n"f" = ["g"]', 48),
        ("a64_tail_pointer", '[stack.calls]\n"f" = ["g"]', 32),
        ("recursive", '[stack.recursion]\n"f" = 10', 80),
        ("alloca", '[stack.frames]\n"f" = 100', 120),
        ("a32_frame", '[stack.frames]\n"f" = 64', 64),
    ],
)
def test_declared(tmp_path: Path, name: str, calls: str, expected: int) -> None:
    assert bound_of(tmp_path, NAMED[name], calls)[:2] == (expected, True)


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        ('"f" = ["nobody"]', "none of nobody"),
        ('"f" = ["group:x"]', "the group x"),
        ('"g" = []', "indirect"),
    ],
)
def test_what_declares_nothing_leaves_it_unknown(tmp_path: Path, calls: str, said: str) -> None:
    _, complete, unknown = bound_of(tmp_path, NAMED["indirect"], f"[stack.calls]\n{calls}")
    assert not complete
    assert said in unknown


def test_functions_of_a_constant_table(tmp_path: Path) -> None:
    case = NAMED["indirect"]
    elf = case.elf()
    table = elf.section(".rodata", 0x9000, struct.pack("<3I", 7, 0, BASE + 8 | 1))
    elf.symbol("operations", 0x9000, 12, 1, section=table)
    path = elf.write(tmp_path / "f.elf")
    for which, expected in (("", 64), ("[0]", 64)):
        report = stack_of(path, "f", calls=f'[stack.calls]\n"f" = ["table:oper*{which}"]')
        assert (report.bytes, report.complete) == (expected, True)
    assert not stack_of(path, "f", calls='[stack.calls]\n"f" = ["table:oper*[1]"]').complete


def entry_at(elf: bytes, address: int) -> bytes:
    """With e_entry."""
    return elf[:24] + struct.pack("<I", address) + elf[28:]


def test_stripped(tmp_path: Path) -> None:
    """Functions are where calls lead; the bound is the same."""
    path = tmp_path / "stripped.elf"
    path.write_bytes(entry_at(NAMED["push_sub"].elf().build(symbols=False), BASE | 1))
    report = stack_of(path)
    assert (report.bytes, report.complete) == (48, True)
    assert "sub_0000800c" in [link.name for link in report.entries[0].bound.chain]
    assert "no symbols" in report.notes[0]
    bare = tmp_path / "bare.elf"
    bare.write_bytes(
        entry_at(NAMED["push_sub"].elf().build(headers=False, symbols=False), BASE | 1)
    )
    assert stack_of(bare).bytes == 48


SYSTICK = '[stack.entries]\n"SysTick*" = { priority = 2 }\n'


def vectors(folder: Path, section: str = ".text", entry: int = FLASH + 0x41) -> Path:
    """A Cortex-M image: reset 48 bytes deep, SysTick 8, everything else f's own handler."""
    case = NAMED["push_sub"]
    elf = ElfWriter(machine=ARM)
    code = bytes.fromhex(case.code)
    handler = FLASH + 0x40 + len(code)
    table = [RAM + 0x1000, FLASH + 0x41, *[handler | 1] * 3, *[0] * 10, handler | 1]
    data = struct.pack(f"<{len(table)}I", *table) + code + bytes.fromhex("08b508bd")
    text = elf.section(section, FLASH, data, flags=AX, align=4)
    ram = elf.section(".bss", RAM, 0x100, flags=WA)
    elf.load([text])
    elf.load([ram])
    elf.symbol("Reset_Handler", FLASH + 0x41, 12, FUNC, section=text)
    elf.symbol("g", FLASH + 0x4D, 4, FUNC, section=text)
    elf.symbol("SysTick_Handler", handler | 1, 4, FUNC, section=text)
    elf.symbol("__stack_bottom", RAM + 0xF00)
    elf.symbol("__stack_top", RAM + 0x1000)
    path = folder / "vectors.elf"
    path.write_bytes(entry_at(elf.build(), entry))
    return path


@pytest.mark.parametrize(
    ("section", "roles"),
    [
        (".isr_vector", {"g": "thread", "Reset_Handler": "thread", "SysTick_Handler": "exception"}),
        (".text", {"g": "thread"}),
    ],
)
def test_a_loader_enters_elsewhere(tmp_path: Path, section: str, roles: dict[str, str]) -> None:
    """The entry of the ELF is not the table's reset: a section named after vectors is believed."""
    report = stack_of(vectors(tmp_path, section, FLASH + 0x4D))
    assert {entry.name: entry.role for entry in report.entries} == roles


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("", 48),
        ('[stack.entries]\n"SysTick*" = { priority = 2 }', 48 + 8 + 104 + 4),
        ('[stack]\nfpu = false\n[stack.entries]\n"SysTick*" = { priority = 2 }', 48 + 8 + 32 + 4),
        (
            '[stack]\ninterrupt_frame = 64\n[stack.entries]\n"SysTick*" = { priority = 2 }',
            48 + 8 + 64,
        ),
    ],
)
def test_interrupts_nest_when_declared(tmp_path: Path, table: str, expected: int) -> None:
    report = stack_of(vectors(tmp_path), calls=table or "[stack]")
    assert report.bytes == expected
    roles = {entry.name: entry.role for entry in report.entries}
    assert roles == {
        "Reset_Handler": "thread",
        "SysTick_Handler": "interrupt" if "priority" in table else "exception",
    }


# Bad input


def test_damaged_code_neither_crashes_nor_hangs(tmp_path: Path) -> None:
    draw = random.Random(7)
    for turn in range(160):
        case = CASES[turn % len(CASES)]
        code = bytearray.fromhex(case.code)
        for _ in range(draw.randint(1, 6)):
            code[draw.randrange(len(code))] = draw.randrange(256)
        cut = len(code) - draw.randrange(3)
        path = case.elf(code=bytes(code[:cut])).write(tmp_path / "bad.elf")
        table = '[stack.calls]\n"f" = ["*"]\n' if turn % 2 else ""
        report = stack_of(path, "f", calls=table)
        assert report.bytes >= 0


@pytest.mark.parametrize("cpu", ["thumb", "arm", "a64", "rv32", "rv64"])
def test_noise_as_code(tmp_path: Path, cpu: str) -> None:
    code = random.Random(cpu).randbytes(6000)
    case = Case("noise", cpu, code.hex(), {"f": 0}, None, "")
    assert stack_of(case.elf().write(tmp_path / "noise.elf"), "f").bytes >= 0


def test_work_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "MOST_STEPS", 500)
    case = Case("long", "thumb", "00bf" * 2000 + "7047", {"f": 0}, 0, "")
    _, complete, unknown = bound_of(tmp_path, case)
    assert not complete
    assert "more than 500 steps" in unknown


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[stack", "not TOML"), ("[other]\n", "no table"), ("[stack]\nno = 1", "stack.no"),
        ("[stack.recursion]\nf = 0", "stack.recursion.f"),
        ('[stack]\nlimit = "4 XB"', "stack.limit"),
        ('[stack.entries]\nf = { priority = -1 }', "priority"),
    ],
)  # fmt: skip
def test_bad_tables_are_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "calls.toml"
    path.write_text(text)
    with pytest.raises(SizeError, match=re.escape(said)):
        read_table(path)


def test_refusals(tmp_path: Path) -> None:
    path = NAMED["push_sub"].elf().write(tmp_path / "f.elf")
    with pytest.raises(SizeError, match="no function is called 'nobody'"):
        stack_of(path, "nobody")
    with pytest.raises(SizeError, match="no entry point"):
        stack_of(path)
    for machine, kind in ((X86, 2), (ARM, 1)):
        other = ElfWriter(machine=machine, kind=kind)
        other.section(".text", 0, b"\x90" * 8, flags=AX)
        with pytest.raises(SizeError, match=r"Arm, AArch64 and RISC-V|relocatable"):
            stack_of(other.write(tmp_path / "other.elf"), "f")


# Graphs


def random_graph(draw: random.Random, count: int, back: bool) -> list[Node]:
    nodes = [Node(f"n{i}", draw.randrange(1, 50)) for i in range(count)]
    for index, node in enumerate(nodes):
        for _ in range(draw.randrange(4)):
            target = draw.randrange(count) if back and draw.random() < 0.3 else None
            if target is None and index + 1 < count:
                target = draw.randrange(index + 1, count)
            if target is not None:
                node.edges.append(Edge(target, draw.randrange(node.frame + 1)))
    return nodes


def deepest(nodes: list[Node], index: int, left: dict[int, int]) -> int:
    """By trying every chain, each node as often as it may be active; an oracle for small graphs."""
    if left.get(index, 1) == 0:
        return -1
    left = {**left, index: left.get(index, 1) - 1}
    best = nodes[index].frame
    for edge in nodes[index].edges:
        below = deepest(nodes, edge.target, left)
        if below >= 0:
            best = max(best, edge.depth + below)
    return best


def test_bounds_against_every_chain() -> None:
    draw = random.Random(3)
    for _ in range(60):
        nodes = random_graph(draw, 9, back=False)
        bounds = Bounds(nodes)
        assert bounds.worst == [deepest(nodes, i, {}) for i in range(9)]
        assert all(bounds.bound(i).complete for i in range(9))


def test_circles_with_a_declared_depth_against_every_chain() -> None:
    """One declared function in each circle: the bound is exact."""
    draw = random.Random(5)
    closed = 0
    for _ in range(60):
        nodes = random_graph(draw, 6, back=False)
        nodes[5].edges.append(Edge(draw.randrange(4), 3))
        bounds = Bounds(nodes, {5: 3})
        for index in range(6):
            bound = bounds.bound(index)
            assert bound.complete
            limits = dict.fromkeys(range(5), 9) | {5: 3}
            assert bound.bytes == deepest(nodes, index, limits)
            assert sum(link.bytes for link in bound.chain) == bound.bytes
        closed += bool(bounds.circles)
    assert closed > 20


def test_open_circles_are_listed() -> None:
    nodes = [
        Node("a", 8, edges=[Edge(1, 8)]),
        Node("b", 16, edges=[Edge(0, 16), Edge(2, 16)]),
        Node("c", 4),
    ]
    bound = Bounds(nodes).bound(0)
    assert not bound.complete
    assert "a, b call each other" in bound.unknown[0].what
    assert Bounds(nodes).bound(2).complete


def test_ten_thousand_functions() -> None:
    """A chain of them, and a graph with circles; neither recursion nor more than linear work."""
    chain = [Node(f"n{i}", 8, edges=[Edge(i + 1, 8)] if i < 9999 else []) for i in range(10_000)]
    assert Bounds(chain).bound(0).bytes == 80_000
    assert len(Bounds(random_graph(random.Random(1), 10_000, back=True)).worst) == 10_000


# Files of GCC

SU = "a.c:3:38:g\t16\tstatic\na.c:4:5:f\t24\tdynamic\na.c:5:5:h\t8\tdynamic,bounded\n"
CI = """graph: { title: "a.c"
node: { title: "a.c:g" label: "g\\na.c:3:38\\n16 bytes (static)\\n0 dynamic objects" }
node: { title: "f" label: "f\\na.c:4:5\\n24 bytes (static)\\n0 dynamic objects" }
node: { title: "use" label: "use\\na.c:2:18" shape : ellipse }
edge: { sourcename: "f" targetname: "use" label: "a.c:4:33" }
edge: { sourcename: "f" targetname: "a.c:g" label: "a.c:4:48" }
node: { title: "__indirect_call" label: "Indirect Call Placeholder" shape : ellipse }
edge: { sourcename: "f" targetname: "__indirect_call" label: "a.c:4:53" }
}
"""


def test_su_and_ci_files(tmp_path: Path) -> None:
    (tmp_path / "a.su").write_text(SU)
    frames = read_usage([tmp_path]).frames
    assert {n: (u[0].bytes, u[0].bounded) for n, u in frames.items()} == {
        "g": (16, True), "f": (24, False), "h": (8, True),
    }  # fmt: skip
    (tmp_path / "a.ci").write_text(CI)
    usage = read_usage([tmp_path])
    assert usage.calls["f"] == {"use", "g", "__indirect_call"}
    (tmp_path / "b.su").write_text("nonsense\n")
    with pytest.raises(SizeError, match="line 1 is no line of stack usage"):
        read_usage([tmp_path])
    with pytest.raises(SizeError, match=r"no \.su or \.ci file"):
        read_usage([_empty(tmp_path)])


def _empty(folder: Path) -> Path:
    (folder / "empty").mkdir()
    return folder / "empty"


def test_frames_of_gcc_beside_the_code(tmp_path: Path) -> None:
    """Equal ones change nothing; a larger one counts at every call; a dynamic one is unknown."""
    path, su = NAMED["push_sub"].elf().write(tmp_path / "f.elf"), tmp_path / "a.su"
    for line, expected in (
        ("40\tstatic", (48, True)),
        ("64\tstatic", (72, True)),
        ("40\tdynamic", (48, False)),
    ):
        su.write_text(f"a.c:1:1:f\t{line}\n")
        report = stack_of(path, "f", usage=(su,))
        assert (report.bytes, report.complete) == expected
    alloca = NAMED["alloca"].elf().write(tmp_path / "alloca.elf")
    su.write_text("a.c:1:1:f\t64\tdynamic,bounded\n")
    assert stack_of(alloca, "f", usage=(su,)).bytes == 64 + 20


def test_other_cpus_by_the_call_graph_of_gcc(tmp_path: Path) -> None:
    elf = ElfWriter(machine=X86)
    elf.load([elf.section(".text", 0x1000, b"\x90" * 8, flags=AX)])
    path, ci = elf.write(tmp_path / "x.elf"), tmp_path / "a.ci"
    ci.write_text(CI)
    report = stack_of(path, "f", usage=(ci,))
    assert (report.method, report.bytes, report.complete) == ("ci", 40, False)
    table = '[stack.calls]\n"f" = ["g"]\n[stack.frames]\n"use" = 100'
    report = stack_of(path, "f", usage=(ci,), calls=table)
    assert (report.bytes, report.complete) == (124, True)


# Verdict


@pytest.mark.parametrize(
    ("name", "table", "code"),
    [
        ("push_sub", "[stack]\nlimit = 48", 0),
        ("push_sub", "[stack]\nlimit = 47", 1),
        ("push_sub", "[stack]\nwarn = 47", 0),
        ("push_sub", '[stack.entries]\n"f" = { limit = 47 }', 1),
        ("indirect", "[stack]", 0),
        ("indirect", "[stack]\nlimit = 1000", 2),
        ("indirect", "[stack]\nlimit = 7", 1),
        ("indirect", '[stack]\nlimit = 64\n[stack.calls]\n"f" = ["g"]', 0),
        ("indirect", '[stack]\nlimit = 63\n[stack.calls]\n"f" = ["g"]', 1),
    ],
)
def test_exit_codes(
    tmp_path: Path, name: str, table: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    path, calls = NAMED[name].elf().write(tmp_path / "f.elf"), tmp_path / "calls.toml"
    calls.write_text(table)
    command = ["size", str(path), "--entry", "f", "--calls", str(calls)]
    assert main([*command, "--json"]) == code
    stored = json.loads(capsys.readouterr().out)
    assert stored["schema"] == 1
    (entry,) = stored["stack"]["entries"]
    assert entry["bytes"] == sum(link["bytes"] for link in entry["chain"])
    assert stored["stack"]["complete"] == (not entry["unknown"])
    assert main(command) == code
    shown = capsys.readouterr().out
    assert "worst-case stack" in shown
    assert ("at least" in shown) == (not stored["stack"]["complete"])


@pytest.mark.parametrize(("limit", "verdict"), [("18 %", "over"), ("19 %", "fits"), (40, "over")])
def test_budget_of_a_board(tmp_path: Path, limit: object, verdict: str) -> None:
    """Percentages are of the reserved stack, here 256 bytes."""
    budget = RegionBudget.model_validate({"limit": limit})
    budgeted = board(budgets={"stack_depth": budget})
    assert judge(vectors(tmp_path), budgeted, stack=StackOptions()).verdict == verdict
    assert judge(vectors(tmp_path), budgeted).verdict == "fits"  # nobody asked


def test_a_stack_that_the_linker_made_too_small(tmp_path: Path) -> None:
    table = tmp_path / "deep.toml"
    table.write_text("[stack]\ninterrupt_frame = 400\n" + SYSTICK)
    verdict = judge(vectors(tmp_path), board(), stack=StackOptions(calls=(table,)))
    assert verdict.verdict == "over"
    assert any("does not fit the reserved 256 B" in finding.what for finding in verdict.findings)


# What ships


def test_every_task_of_the_runtime_is_declared(root: Path) -> None:
    shipped = tomllib.loads(
        (root / "sdk/python/colibri/fit/stack/colibri_runtime.toml").read_text("utf-8")
    )
    sources = "".join(path.read_text("utf-8") for path in sorted((root / "sdk/c/src").glob("*.c")))
    tasks = re.findall(r"static void (\w+)\(void \*arg, uint32_t \w+, uint32_t worker\)", sources)
    assert sorted(shipped["stack"]["groups"]["task"]) == sorted(set(tasks))
    assert SimpleNamespace(**shipped["stack"]).when == ["colibri_image_open"]


def test_entries_of_the_runtime_are_public_functions(root: Path) -> None:
    shipped = read_table(root / "sdk/python/colibri/fit/stack/colibri_runtime.toml")
    headers = "".join(p.read_text("utf-8") for p in (root / "sdk/c/include/colibri").glob("*.h"))
    assert all(re.search(rf"\b{name}\(", headers) for name in shipped.entries)
    assert all(a != b for a, b in pairwise(sorted(shipped.entries)))


def test_functions_of_the_posix_port_are_those_that_ship(root: Path) -> None:
    shipped = Path(root / "sdk/python/colibri/fit/stack/colibri_posix.toml").read_text("utf-8")
    groups = tomllib.loads(shipped)["stack"]["groups"]
    ports = (root / "sdk/c/ports/posix").glob("*.[ch]")
    sources = "".join(path.read_text("utf-8") for path in ports)
    set_up = re.findall(r"->storage\.(?:read|map|start|wait) = (\w+);", sources)
    assert sorted(groups["storage"]) == sorted(set_up)
    assert groups["pool"] == re.findall(r"->interface\.run = (\w+);", sources)
