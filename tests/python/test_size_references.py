# SPDX-License-Identifier: Apache-2.0
"""Forbidden symbols with the chain that pulled them in: ELFs, objects and maps known by hand."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

import pytest

import elf_writer as ew
from archive import write_archive
from colibri.cli import main
from colibri.errors import SizeError
from colibri.fit import Verdict, judge
from colibri.fit.cxx_names import plain_name
from colibri.fit.findings import Chain
from colibri.fit.format import as_json
from colibri.fit.symbol_rules import LIBRARY_RULES, SymbolRules
from elf_writer import AX, FUNC, GLOBAL, LOCAL, NOTYPE, OBJECT, WEAK, A, ElfWriter
from needs import need
from size_support import FLASH, RAM, board, codes, said

STEP = 16
HEAP = SymbolRules(forbidden=("group:heap",))


def chain_of(verdict: Verdict, name: str = "malloc") -> Chain | None:
    """The chain of the finding about a symbol."""
    found = [f for f in verdict.findings if f.what.startswith(name) and f.code == "forbidden"]
    assert found, [f.what for f in verdict.findings]
    return found[0].chain


def names_of(verdict: Verdict, name: str = "malloc") -> list[str]:
    chain = chain_of(verdict, name)
    return list(chain.names) if chain is not None else []


# -- relocations of linked ELFs -------------------------------------------------------------------


def linked(calls: dict[str, str], **how: Any) -> ElfWriter:
    """Functions of 16 bytes with a relocation for each call; no code that could be read."""
    how = {"machine": ew.X86, "bits": 32} | how
    elf = ElfWriter(**how)
    text = elf.section(".text", FLASH, b"\xcc" * STEP * len(calls), flags=AX)
    elf.load([text])
    entries = []
    for index, (name, callees) in enumerate(calls.items()):
        elf.symbol(name, FLASH + STEP * index, STEP, FUNC, section=text)
        places = enumerate(callees.split())
        entries += [(FLASH + STEP * index + 4 * i, callee, 2, -4) for i, callee in places]
    elf.relocate(text, *entries)
    return elf


CALLS = {
    "unused": "format",
    "main": "loop log_line",
    "log_line": "format",
    "format": "loop buffered",
    "loop": "format loop again",
    "again": "loop",
    "buffered": "malloc",
    "malloc": "grow",
    "grow": "malloc",
}


@pytest.mark.parametrize(
    ("bits", "little", "machine"),
    [
        (32, True, ew.X86),
        (64, True, ew.X86_64),
        (32, False, ew.XTENSA),
        (64, False, ew.AARCH64),
        (32, True, ew.RISCV),
    ],
)
def test_bare_metal_31_shortest_chain_through_circles(
    tmp_path: Path, bits: int, little: bool, machine: int
) -> None:
    """main, loop, format is as short as main, log_line, format: the first user of format wins."""
    elf = linked(CALLS, bits=bits, little=little, machine=machine)
    path = elf.write(tmp_path / "a.elf")
    verdict = judge(path, board())
    assert chain_of(verdict) == Chain(
        ("malloc", "buffered", "format", "log_line", "main"), "relocations", True
    )
    assert (
        "malloc (heap) is linked in, 16 B, needed by buffered <- format <- log_line <- main "
        "(relocations)"
    ) in said(verdict, "forbidden")
    assert verdict.exit_code == 1
    again = judge(path, board())
    assert names_of(again) == names_of(verdict)


def test_a_circle_without_an_entry_is_said(tmp_path: Path) -> None:
    calls = {"main": "", "one": "two", "two": "one malloc", "malloc": ""}
    verdict = judge(linked(calls).write(tmp_path / "a.elf"), board())
    chain = chain_of(verdict)
    assert chain is not None
    assert (chain.names, chain.complete) == (("malloc", "two", "one"), False)
    assert "<- one, which nothing that is known refers to" in said(verdict, "forbidden")


def test_what_nothing_refers_to_is_said_with_what_to_give(tmp_path: Path) -> None:
    verdict = judge(linked({"main": "main", "malloc": ""}).write(tmp_path / "a.elf"), board())
    assert names_of(verdict) == []
    assert "tells what needs malloc: give the map (--map FILE)" in said(verdict, "no-chain")
    assert "emit-relocs" not in said(verdict, "no-chain")
    elf = linked({"main": "main", "malloc": ""})
    elf.sections.pop()
    verdict = judge(elf.write(tmp_path / "b.elf"), board())
    assert "or link with -Wl,--emit-relocs" in said(verdict, "no-chain")


def test_an_entry_that_is_forbidden_itself(tmp_path: Path) -> None:
    elf = linked({"abort": "abort"})
    elf.symbol("main", FLASH, STEP, FUNC, section=1)
    verdict = judge(elf.write(tmp_path / "a.elf"), board())
    assert "abort (exit) is linked in, 16 B, an entry by itself" in said(verdict, "forbidden")


def test_undefined_symbols_have_a_chain_and_weak_ones_are_none(tmp_path: Path) -> None:
    elf = linked({"main": "start", "start": "malloc free"} | {"end": ""})
    elf.symbol("malloc", 0, 0, NOTYPE, section=0)
    elf.symbol("free", 0, 0, NOTYPE, section=0, bind=WEAK)
    verdict = judge(elf.write(tmp_path / "a.elf"), board())
    assert names_of(verdict) == ["malloc", "start", "main"]
    assert codes(verdict, "error") == ["forbidden"]


def test_section_symbols_and_tables_of_pointers(tmp_path: Path) -> None:
    """Static functions are referred to as .text + offset; the table is a node of its own."""
    elf = linked({"main": "table", "other": "", "work": "malloc", "malloc": ""})
    data = elf.section(".rodata", FLASH + 0x1000, bytes(16), flags=A)
    elf.load([data])
    elf.symbol("table", FLASH + 0x1000, 16, OBJECT, section=data)
    elf.symbol(".text", FLASH, 0, ew.SECTION, section=1, bind=LOCAL)
    elf.relocate(data, (FLASH + 0x1008, ".text", 1, 2 * STEP))
    verdict = judge(elf.write(tmp_path / "a.elf"), board())
    assert names_of(verdict) == ["malloc", "work", "table", "main"]


def test_addends_that_stand_in_the_words_of_a_linked_elf(tmp_path: Path) -> None:
    elf = ElfWriter()
    text = elf.section(".text", FLASH, b"\xcc" * 64, flags=AX)
    data = elf.section(".init_array", FLASH + 0x100, struct.pack("<I", FLASH + 33), flags=A)
    elf.load([text, data])
    elf.symbol("main", FLASH | 1, 32, FUNC, section=text)
    elf.symbol("setup", FLASH + 33, 16, FUNC, section=text, bind=LOCAL)
    elf.symbol("malloc", FLASH + 49, 16, FUNC, section=text)
    elf.symbol(".text", FLASH, 0, ew.SECTION, section=text, bind=LOCAL)
    elf.relocate(data, (FLASH + 0x100, ".text", 2, 0), addends=False)
    elf.relocate(text, (FLASH + 36, "malloc", 10, 0), addends=False)
    verdict = judge(elf.write(tmp_path / "a.elf"), board())
    assert names_of(verdict) == ["malloc", "setup", ".init_array"]


def test_unwinding_tables_need_their_routine_and_not_what_they_describe(tmp_path: Path) -> None:
    elf = linked({"main": "", "lost": "malloc", "__aeabi_unwind_cpp_pr0": "abort", "abort": ""} | {
        "malloc": ""
    })  # fmt: skip
    table = elf.section(".ARM.exidx", FLASH + 0x1000, bytes(16), flags=A)
    elf.load([table])
    entries = [(FLASH + 0x1000, "lost", 42, 0), (FLASH + 0x1008, "__aeabi_unwind_cpp_pr0", 0, 0)]
    elf.relocate(table, *entries)
    verdict = judge(elf.write(tmp_path / "a.elf"), board())
    assert names_of(verdict, "abort") == [
        "abort", "__aeabi_unwind_cpp_pr0", ".ARM.exidx (unwinding)",
    ]  # fmt: skip
    chain = chain_of(verdict)
    assert chain is not None
    assert (chain.names, chain.complete) == (("malloc", "lost"), False)


# -- machine code ---------------------------------------------------------------------------------


def bl(at: int, to: int) -> bytes:
    """Thumb BL (Armv7-M Architecture Reference Manual, A7.7.18, T1) in reach of 4 MiB."""
    offset = to - at - 4
    high, low = offset >> 12 & 0x3FF, offset >> 1 & 0x7FF
    return struct.pack("<HH", 0xF000 | high | (0x400 if offset < 0 else 0), 0xF800 | low)


RETURN, NOP = b"\x70\x47", b"\x00\xbf"  # bx lr


class Thumb:
    """Thumb functions of 16 bytes each, by name: what they call, and a constant they load."""

    def __init__(self, *names: str, base: int = FLASH) -> None:
        self.base = base
        self.at = {name: base + 0x100 + STEP * i for i, name in enumerate(names)}
        self.code = dict.fromkeys(names, RETURN)
        self.elf = ElfWriter(machine=ew.ARM)

    def call(self, user: str, *targets: str) -> None:
        self.code[user] = b"".join(
            bl(self.at[user] + 4 * i, self.at[target]) for i, target in enumerate(targets)
        ) + RETURN  # fmt: skip

    def load(self, user: str, constant: int) -> None:
        """ldr r0, [pc, #4]; bx lr; nop; nop; .word constant"""
        self.code[user] = b"\x01\x48" + RETURN + NOP * 2 + struct.pack("<I", constant)

    def build(self, path: Path, vectors: list[int] | None = None, **how: bool) -> Path:
        elf = self.elf
        code = b"".join((code + NOP * 8)[:STEP] for code in self.code.values())
        text = elf.section(".text", self.base + 0x100, code, flags=AX, align=4)
        places = [text]
        if vectors is not None:
            content = struct.pack(f"<{len(vectors)}I", *vectors)
            places.append(elf.section(".vectors", self.base, content, flags=A, align=4))
        elf.load(places)
        for name, at in self.at.items():
            elf.symbol(name, at | 1, STEP, FUNC, section=text)
        return elf.write(path, **how)


@pytest.fixture
def thumb() -> Thumb:
    need("module:capstone")
    made = Thumb("malloc", "main", "log_line", "helper", "SysTick", "spare")
    made.call("main", "helper", "log_line")
    return made


def test_bare_metal_31_calls_of_machine_code(tmp_path: Path, thumb: Thumb) -> None:
    thumb.call("log_line", "helper", "malloc")
    chain = chain_of(judge(thumb.build(tmp_path / "a.elf"), board()))
    assert chain == Chain(("malloc", "log_line", "main"), "machine code", True)


def test_a_pointer_in_code_is_a_reference(tmp_path: Path, thumb: Thumb) -> None:
    thumb.load("log_line", thumb.at["malloc"] | 1)
    chain = chain_of(judge(thumb.build(tmp_path / "a.elf"), board()))
    assert chain == Chain(("malloc", "log_line", "main"), "machine code", True)


@pytest.mark.parametrize("loaded", [True, False])
def test_low_addresses_are_told_from_numbers(tmp_path: Path, loaded: bool) -> None:
    """With flash at 0 a literal may be an address; what movw puts into a register is a number."""
    need("module:capstone")
    low = Thumb("malloc", "main", base=0)
    number = low.at["malloc"] | 1
    assert number == 0x101
    low.load("main", number)
    if not loaded:
        low.code["main"] = struct.pack("<HH", 0xF240, 0x1000 | number & 0xFF) + RETURN
    chain = chain_of(judge(low.build(tmp_path / "a.elf"), rules=HEAP))
    assert chain == (Chain(("malloc", "main"), "machine code", True) if loaded else None)


@pytest.mark.parametrize("bit", [0, 1])
def test_a_table_of_function_pointers_needs_the_thumb_bit(
    tmp_path: Path, thumb: Thumb, bit: int
) -> None:
    """A number that is the function's address without its bit is no pointer to it."""
    table = FLASH + 0x1000
    content = struct.pack("<3I", 7, thumb.at["helper"] | 1, thumb.at["spare"] | bit)
    data = thumb.elf.section(".rodata", table, content, flags=A, align=4)
    thumb.elf.load([data])
    thumb.elf.symbol("commands", table, 12, OBJECT, section=data)
    thumb.load("log_line", table)
    thumb.call("spare", "malloc")
    chain = chain_of(judge(thumb.build(tmp_path / "a.elf"), board()))
    if bit:
        names = ("malloc", "spare", "commands", "log_line", "main")
        assert chain == Chain(names, "machine code and words in data", True)
    else:
        assert chain == Chain(("malloc", "spare"), "machine code", False)


def test_a_handler_in_the_vector_table_is_an_entry(tmp_path: Path, thumb: Thumb) -> None:
    thumb.call("SysTick", "malloc")
    vectors = [RAM + 0x1000, thumb.at["main"] | 1, *[0] * 13, thumb.at["SysTick"] | 1]
    chain = chain_of(judge(thumb.build(tmp_path / "a.elf", vectors), board()))
    assert chain == Chain(("malloc", "SysTick"), "machine code", True)


def test_tables_of_debug_information_tell_nothing(tmp_path: Path, thumb: Thumb) -> None:
    debug = thumb.elf.section(".debug_info", 0, bytes(16), flags=0)
    thumb.elf.relocate(debug, (4, "malloc", 2, 0))
    thumb.call("log_line", "malloc")
    chain = chain_of(judge(thumb.build(tmp_path / "a.elf"), board()))
    assert chain == Chain(("malloc", "log_line", "main"), "machine code", True)


def test_code_that_is_too_large_is_said(
    tmp_path: Path, thumb: Thumb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("colibri.fit.references_elf.MOST_CODE", 95)
    thumb.call("log_line", "malloc")
    verdict = judge(thumb.build(tmp_path / "a.elf"), board())
    assert names_of(verdict) == []
    text = "code of more than 95 B is not followed: give the map (--map FILE), or link with"
    assert text in said(verdict, "no-chain")


def test_without_capstone_it_is_said_what_would_tell(
    tmp_path: Path, thumb: Thumb, monkeypatch: pytest.MonkeyPatch
) -> None:
    thumb.call("log_line", "malloc")
    path = thumb.build(tmp_path / "a.elf")
    for module in ("references", "references_elf"):
        monkeypatch.setattr(f"colibri.fit.{module}.find_spec", lambda _: None)
    assert 'pip install "colibri-sdk[stack]"' in said(judge(path, board()), "no-chain")


def test_stripped_files_cannot_be_held_against_rules(tmp_path: Path, thumb: Thumb) -> None:
    thumb.call("log_line", "malloc")
    path = thumb.build(tmp_path / "a.elf", symbols=False)
    assert judge(path, board()).exit_code == 0
    for on in (board(), None):
        verdict = judge(path, on, rules=SymbolRules(required={"main": ""}))
        assert (verdict.verdict, verdict.exit_code) == ("unknown", 2)
        assert "no symbol table" in said(verdict, "symbols-unknown")


# -- maps -----------------------------------------------------------------------------------------

GNU = """\
Archive member included to satisfy reference by file (symbol)

/opt/lib/libc.a(printf.o)     main.o (printf)
/opt/lib/libc.a(a-member-with-a-long-name.o)
                              /opt/lib/libc.a(printf.o) (_buffer)
/opt/lib/libc.a(mallocr.o)    /opt/lib/libc.a(a-member-with-a-long-name.o) (malloc)

Linker script and memory map

.text           0x08000000      0x100
 .text          0x08000000       0x40 main.o
                0x08000000                main
 .text          0x08000040       0x40 /opt/lib/libc.a(printf.o)
                0x08000040                printf
 .text          0x08000080       0x40 /opt/lib/libc.a(mallocr.o)
                0x08000080                malloc
 .text          0x080000c0       0x40 /opt/lib/libc.a(a-member-with-a-long-name.o)
                0x080000c0                _buffer
"""
CREF = """
Cross Reference Table

Symbol                                            File
_buffer                                           /opt/lib/libc.a(a-member-with-a-long-name.o)
                                                  /opt/lib/libc.a(printf.o)
malloc                                            /opt/lib/libc.a(mallocr.o)
                                                  task.o
                                                  /opt/lib/libc.a(a-member-with-a-long-name.o)
printf                                            /opt/lib/libc.a(printf.o)
                                                  main.o
"""
LLD = """\
     VMA      LMA     Size Align Out     In      Symbol
 8000000  8000000      100     4 .text
 8000000  8000000       40     4         main.o:(.text)
 8000000  8000000       40     1                 main
 8000040  8000040       40     4         lib/libc.a(printf.o):(.text)
 8000040  8000040       40     1                 printf
 8000080  8000080       80     4         lib/libc.a(mallocr.o):(.text)
 8000080  8000080       80     1                 malloc

Cross Reference Table

Symbol                                            File
malloc                                            lib/libc.a(mallocr.o)
                                                  lib/libc.a(printf.o)
printf                                            lib/libc.a(printf.o)
                                                  main.o
"""
MAPPED = [
    (GNU, [
        "malloc", "libc.a(a-member-with-a-long-name.o) for malloc", "libc.a(printf.o) for _buffer",
        "main.o for printf",
    ]),
    (GNU + CREF, ["malloc", "task.o for malloc"]),
    (LLD, ["malloc", "libc.a(printf.o) for malloc", "main.o for printf"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "names"), MAPPED, ids=["gnu", "gnu --cref", "lld --cref"])
@pytest.mark.parametrize("alone", [True, False])
def test_bare_metal_31_chain_of_objects_by_the_map(
    tmp_path: Path, text: str, names: list[str], alone: bool
) -> None:
    path = tmp_path / "a.map"
    path.write_text(text)
    if alone:
        verdict = judge(path, board())
    else:
        elf = ElfWriter(machine=ew.X86)
        section = elf.section(".text", FLASH, b"\xcc" * 0x100, flags=AX)
        elf.load([section])
        for name, at in (("main", 0), ("printf", 0x40), ("malloc", 0x80)):
            elf.symbol(name, FLASH + at, 0x40, FUNC, section=section)
        verdict = judge(elf.write(tmp_path / "a.elf"), board(), link_map=path)
    assert chain_of(verdict) == Chain(tuple(names), "map, by object", True)


def test_a_function_that_came_along_with_its_object(tmp_path: Path) -> None:
    """Nothing needs free: it lies in the object that was taken for malloc."""
    path = tmp_path / "a.map"
    path.write_text(GNU.replace("                malloc\n", "                free\n"))
    assert names_of(judge(path, board()), "free") == [
        "free", "libc.a(mallocr.o)", "libc.a(a-member-with-a-long-name.o) for malloc",
        "libc.a(printf.o) for _buffer", "main.o for printf",
    ]  # fmt: skip


# -- objects and archives -------------------------------------------------------------------------


def an_object(calls: dict[str, str], bind: int = GLOBAL, **how: Any) -> ElfWriter:
    """A section for each function, a relocation for each call; what is not here is undefined."""
    elf = ElfWriter(kind=ew.REL, **({"machine": ew.X86} | how))
    homes = {name: elf.section(f".text.{name}", 0, b"\xcc" * STEP, flags=AX) for name in calls}
    for name, home in homes.items():
        elf.symbol(name, 0, STEP, FUNC, section=home, bind=bind)
        entries = [(4 * i, callee, 2, -4) for i, callee in enumerate(calls[name].split())]
        if entries:
            elf.relocate(home, *entries)
    needed = {callee for callees in calls.values() for callee in callees.split()}
    for name in sorted(needed - set(calls)):
        elf.symbol(name, 0, 0, NOTYPE, section=0)
    return elf


LIBRARY = {
    "api.o": an_object({"api": "log_line", "other": "api"}),
    "log.o": an_object({"log_line": "format"}),
    "format.o": an_object({"format": "malloc memcpy log_line"}),
}


def library(folder: Path, **more: ElfWriter) -> Path:
    content = {name: elf.build() for name, elf in LIBRARY.items()}
    content |= {f"{name}.o": elf.build() for name, elf in more.items()}
    return write_archive(folder / "lib.a", content)


def test_undefined_symbols_of_an_archive_are_followed_through_its_members(tmp_path: Path) -> None:
    verdict = judge(library(tmp_path), rules=HEAP)
    assert chain_of(verdict) == Chain(
        ("malloc", "format", "log_line", "api", "other"), "relocations of sections", True
    )
    assert (verdict.verdict, verdict.exit_code) == ("over", 1)
    assert "undefined: malloc (heap) is needed but not defined" in said(verdict, "forbidden")
    assert judge(library(tmp_path)).exit_code == 0  # without rules it is a remark


def test_a_program_of_objects_has_its_entry(tmp_path: Path) -> None:
    program = an_object({"main": "api", "unused": "main"}).write(tmp_path / "main.o")
    verdict = judge([program, library(tmp_path)], rules=HEAP)
    assert names_of(verdict) == ["malloc", "format", "log_line", "api", "main"]
    heap = library(tmp_path, heap=an_object({"malloc": "_sbrk"}))
    verdict = judge([program, heap], rules=HEAP)
    assert names_of(verdict) == ["malloc", "format", "log_line", "api", "main"]
    assert "malloc (heap) is in it, 16 B" in said(verdict, "forbidden")
    assert names_of(verdict, "_sbrk") == ["_sbrk", "malloc", *names_of(verdict)[1:]]


def test_functions_of_one_section_are_one_node(tmp_path: Path) -> None:
    """What refers to `first` keeps `second`, which is in the same section."""
    elf = ElfWriter(kind=ew.REL, machine=ew.X86)
    text = elf.section(".text", 0, b"\xcc" * 32, flags=AX)
    elf.symbol("first", 0, 16, FUNC, section=text)
    elf.symbol("second", 16, 16, FUNC, section=text, bind=LOCAL)
    elf.symbol("malloc", 0, 0, NOTYPE, section=0)
    elf.relocate(text, (20, "malloc", 2, -4))
    program = an_object({"main": "first"}).write(tmp_path / "main.o")
    verdict = judge([program, elf.write(tmp_path / "a.o")], rules=HEAP)
    assert names_of(verdict) == ["malloc", "second", "main"]


def test_weak_undefined_symbols_of_objects_are_not_needed(tmp_path: Path) -> None:
    elf = an_object({"main": "hook"})
    elf.symbol("malloc", 0, 0, NOTYPE, section=0, bind=WEAK)
    verdict = judge(elf.write(tmp_path / "a.o"), rules=HEAP)
    assert (codes(verdict, "error"), verdict.exit_code) == ([], 0)
    assert "1 rules about symbols hold" in said(verdict, "rules")


def test_a_weak_reference_does_not_pull_in(tmp_path: Path) -> None:
    """main would take malloc if it were there; work needs it."""
    weak = an_object({"main": "work malloc"})
    weak.symbols = [
        (n, v, s, WEAK << 4 if n == "malloc" else i, h) for n, v, s, i, h in weak.symbols
    ]
    paths = [weak.write(tmp_path / "a.o"), an_object({"work": "malloc"}).write(tmp_path / "b.o")]
    assert names_of(judge(paths, rules=HEAP)) == ["malloc", "work", "main"]


def test_library_rules_on_a_library_of_ours(tmp_path: Path) -> None:
    good = an_object({"colibri_a": "memcpy colibri_b __aeabi_fmul __muldi3", "colibri_b": ""})
    path = write_archive(tmp_path / "good.a", {"a.o": good.build()})
    assert judge(path, rules=LIBRARY_RULES).exit_code == 0
    for name, code in (("malloc", "forbidden"), ("__aeabi_dadd", "needs"), ("sqrtf", "needs"),
                       ("__udivdi3", "needs"), ("pthread_create", "forbidden")):  # fmt: skip
        bad = an_object({"colibri_a": "colibri_b", "colibri_b": name})
        path = write_archive(tmp_path / "bad.a", {"a.o": bad.build()})
        verdict = judge(path, rules=LIBRARY_RULES)
        assert verdict.exit_code == 1, name
        assert codes(verdict, "error") == [code], name
        assert "needed by colibri_b <- colibri_a" in said(verdict, code)


def test_of_many_findings_those_that_are_shown_have_chains(tmp_path: Path) -> None:
    names = [f"debug_{i:03}" for i in range(50)]
    elf = linked({"main": " ".join(names)} | dict.fromkeys(names, ""))
    elf.sections[1].data, elf.sections[1].size = b"\xcc" * 816, 816
    verdict = judge(elf.write(tmp_path / "a.elf"), rules=SymbolRules(forbidden=("debug_*",)))
    found = [f for f in verdict.findings if f.code == "forbidden"]
    assert [f.chain is not None for f in found] == [True] * 20 + [False]
    assert found[-1].what == "30 more findings of this kind"


# -- long and hostile names -----------------------------------------------------------------------


def test_long_chains_are_cut_on_screen_and_bounded_in_json(tmp_path: Path) -> None:
    calls = {"main": "f0"} | {f"f{i}": f"f{i + 1}" for i in range(150)} | {"f150": "malloc"}
    verdict = judge(linked(calls | {"malloc": ""}).write(tmp_path / "a.elf"), board())
    (finding,) = [f for f in as_json(verdict)["findings"] if f["code"] == "forbidden"]
    assert "needed by f150 <- f149 <- f148 <- f147 <- 147 more <- main" in finding["what"]
    assert len(finding["chain"]) == 100
    assert finding["chain"][:3] == ["malloc", "f150", "f149"]
    assert finding["chain"][50] == "(54 more)"
    assert finding["chain"][-2:] == ["f0", "main"]
    assert finding["chain_source"] == "relocations"
    assert finding["chain_complete"] is True


def test_long_cxx_names_and_control_characters_on_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deep = "_ZN" + "".join(f"{len(p)}{p}" for p in ("board", "x" * 70, "send")) + "EPKhj"
    template = "_ZN3foo3barI" + "i" * 800 + "EEvv"
    calls = {"main": deep, deep: template, template: "e\x1b[2Jvil", "e\x1b[2Jvil": "_Znwj"}
    path = linked(calls | {"_Znwj": ""}).write(tmp_path / "a.elf")
    assert main(["size", str(path), "--forbid", "group:heap"]) == 1
    (line,) = [x for x in capsys.readouterr().out.splitlines() if "(_Znwj)" in x]
    assert "\x1b" not in line
    assert "board::xxxxx" in line
    assert len(line) < 400
    assert main(["size", str(path), "--forbid", "group:heap", "--json"]) == 1
    (finding,) = [
        f for f in json.loads(capsys.readouterr().out)["findings"] if f["code"] == "forbidden"
    ]
    assert finding["chain"] == ["_Znwj", "e\x1b[2Jvil", template, deep, "main"]


@pytest.mark.parametrize(
    ("mangled", "plain"),
    [
        ("_Znwj", "operator new"),
        ("_ZdaPv", "operator delete[]"),
        ("_ZN4uart4sendEPKhj", "uart::send"),
        ("_ZNK4uart4Port4sizeEv", "uart::Port::size"),
        ("_ZN4uart4PortC1Ev", "uart::Port::Port"),
        ("_ZN4uart4PortD0Ev", "uart::Port::~Port"),
        ("_ZNSt6thread4joinEv", "std::thread::join"),
        ("_ZSt9terminatev", "std::terminate"),
        ("_ZL6helperi", "helper"),
        ("_ZN3fooIiE3barEv", ""),
        ("_Z3maxIiET_S0_", ""),
        ("_ZTV4Port", ""),
        ("_ZN9999999uart", ""),
        ("_ZN4uart", ""),
        ("_Z", ""),
        ("malloc", ""),
    ],
)
def test_names_of_cxx_symbols(mangled: str, plain: str) -> None:
    assert plain_name(mangled) == plain


def test_damaged_relocations_never_crash(tmp_path: Path) -> None:
    """One byte of eleven, of a linked ELF, an object and an archive."""
    rng, tried = random.Random(62), 0
    sources = {
        "a.elf": linked(CALLS).build(),
        "a.o": an_object({"main": "work", "work": "malloc main"}).build(),
        "a.a": library(tmp_path).read_bytes(),
    }
    for name, whole in sources.items():
        path = tmp_path / name
        for at in range(4, len(whole), 11):
            mutant = bytearray(whole)
            mutant[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            path.write_bytes(mutant)
            try:
                json.dumps(as_json(judge(path, board(), rules=HEAP)))
                tried += 1
            except SizeError:
                pass
    assert tried > 60
