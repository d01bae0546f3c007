# SPDX-License-Identifier: Apache-2.0
"""`--why`: any symbol, object or library, its chain and its users, known by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import elf_writer as ew
from colibri.cli import main
from colibri.fit import Verdict, judge
from colibri.fit.why import JSON_USERS, MOST_MATCHES, SCREEN_USERS, Reason
from elf_writer import AX, FUNC, OBJECT, A, ElfWriter
from size_support import FLASH, board

STEP = 16
MAP = """\
Archive member included to satisfy reference by file (symbol)

lib/libhal.a(uart.o)          obj/main.o (uart_send)
lib/libhal.a(clock.o)         lib/libhal.a(uart.o) (clock_rate)
lib/libc.a(malloc.o)          lib/libhal.a(clock.o) (malloc)

Memory Configuration

Name             Origin             Length             Attributes
FLASH            0x08000000         0x00010000         xr
*default*        0x00000000         0xffffffff

Linker script and memory map

.text           0x08000000       0x50
 .text          0x08000000       0x10 obj/main.o
                0x08000000                main
 .text          0x08000010       0x10 lib/libhal.a(uart.o)
                0x08000010                uart_send
 .text          0x08000020       0x20 lib/libhal.a(clock.o)
                0x08000020                clock_rate
 .text          0x08000040       0x10 lib/libc.a(malloc.o)
                0x08000040                malloc
"""


def linked(calls: dict[str, str], table: str = "") -> ElfWriter:
    """Functions of 16 bytes with relocations for their calls; a table of pointers to one."""
    elf = ElfWriter(machine=ew.X86)
    text = elf.section(".text", FLASH, b"\xcc" * STEP * len(calls), flags=AX)
    data = elf.section(".rodata", FLASH + 0x1000, bytes(8), flags=A)
    elf.load([text])
    elf.load([data])
    entries = []
    for index, (name, callees) in enumerate(calls.items()):
        elf.symbol(name, FLASH + STEP * index, STEP, FUNC, section=text)
        places = enumerate(callees.split())
        entries += [(FLASH + STEP * index + 4 * i, callee, 2, -4) for i, callee in places]
    elf.symbol("handlers", FLASH + 0x1000, 8, OBJECT, section=data)
    elf.relocate(text, *entries)
    if table:
        elf.relocate(data, (FLASH + 0x1000, table, 1, 0))
    return elf


def reasons(verdict: Verdict, answer: int = 0) -> dict[tuple[str, str], Reason]:
    return {(r.kind, r.name): r for r in verdict.why[answer].reasons}


def test_any_symbol_its_chain_and_its_users(tmp_path: Path) -> None:
    calls = {"main": "loop", "loop": "send", "idle": "send", "send": ""}
    path = linked(calls, "send").write(tmp_path / "a.elf")
    verdict = judge(path, board(), why=["send", "main", "idle"])
    send = reasons(verdict)["symbol", "send"]
    assert send.chain is not None
    assert (send.chain.names, send.chain.complete) == (("send", "loop", "main"), True)
    assert send.chain.source == "relocations"
    assert send.users == dict.fromkeys(("loop", "idle", "handlers"), "relocations")
    entry = reasons(verdict, 1)["symbol", "main"]
    assert entry.chain is not None
    assert (entry.chain.names, entry.chain.complete, entry.users) == (("main",), True, {})
    idle = reasons(verdict, 2)["symbol", "idle"]
    assert (idle.chain, idle.users) == (None, {})
    assert "give the map" in verdict.why[2].hint
    assert (verdict.exit_code, verdict.why[0].hint) == (judge(path, board()).exit_code, "")


def test_words_in_data_are_users_beside_other_sources(tmp_path: Path) -> None:
    elf = linked({"main": "send", "send": ""})
    elf.sections[2].data = (FLASH + STEP).to_bytes(4, "little") + bytes(4)
    verdict = judge(elf.write(tmp_path / "a.elf"), board(), why=["send"])
    assert reasons(verdict)["symbol", "send"].users == {
        "main": "relocations",
        "handlers": "relocations and words in data",
    }


def test_objects_and_libraries_by_the_map(tmp_path: Path) -> None:
    path = tmp_path / "a.map"
    path.write_text(MAP)
    verdict = judge(path, why=["libc.a", "library:*hal*", "uart.o", "object:obj/main.o", "clock_*"])
    libc = reasons(verdict)["library", "lib/libc.a"]
    assert libc.chain is not None
    assert libc.chain.names == (
        "lib/libc.a", "libhal.a(clock.o) for malloc", "libhal.a(uart.o) for clock_rate",
        "main.o for uart_send",
    )  # fmt: skip
    assert (libc.chain.complete, libc.bytes) == (True, 16)
    assert list(libc.users) == ["libhal.a(clock.o) for malloc"]
    hal = reasons(verdict, 1)["library", "lib/libhal.a"]
    assert (hal.bytes, list(hal.users)) == (48, ["main.o for uart_send"])  # not its own members
    assert hal.chain is not None
    assert hal.chain.names == ("lib/libhal.a", "main.o for uart_send")
    uart = reasons(verdict, 2)["object", "lib/libhal.a(uart.o)"]
    assert uart.chain is not None
    assert uart.chain.names[1:] == ("main.o for uart_send",)
    own = reasons(verdict, 3)["object", "obj/main.o"]
    assert own.chain is not None
    assert (own.chain.names, own.chain.complete, own.users) == (("obj/main.o",), True, {})
    assert set(reasons(verdict, 4)) == {("symbol", "clock_rate")}


def test_what_is_not_there_and_what_needs_a_map(tmp_path: Path) -> None:
    path = linked({"main": "uart_send", "uart_send": ""}).write(tmp_path / "a.elf")
    verdict = judge(path, board(), why=["uart_sent", "library:libc.a"])
    assert verdict.why[0].near == ("uart_send",)
    assert "give --map" in verdict.why[1].hint
    assert not verdict.why[1].reasons


def test_lists_are_bounded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calls = {"main": "f1 f2"} | {f"f{i}": "target" for i in range(1, 150)} | {"target": ""}
    path = linked(calls).write(tmp_path / "a.elf")
    assert main(["size", str(path), "--why", "f*", "--why", "target"]) == 0
    shown = capsys.readouterr().out
    assert f"{149 - MOST_MATCHES} more that match" in shown
    assert f"and {149 - SCREEN_USERS} more" in shown
    assert max(map(len, shown[: shown.index("Counted")].splitlines())) <= 100
    assert main(["size", str(path), "--why", "target", "--json"]) == 0
    (answer,) = json.loads(capsys.readouterr().out)["why"]
    (match,) = answer["matches"]
    assert (len(match["users"]), match["users_total"]) == (JSON_USERS, 149)
    assert match["users"][0] == {"name": "f1", "source": "relocations"}
    assert match["chain"] == ["target", "f1", "main"]
    assert (match["bytes"], match["section"], match["chain_complete"]) == (STEP, ".text", True)


def test_without_why_there_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = linked({"main": "main"}).write(tmp_path / "a.elf")
    assert main(["size", str(path), "--json"]) == 0
    fields: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert "why" not in fields


@pytest.mark.parametrize("pattern", ["", "[", "*", "object:", "symbol:[!", "\x1b[2J", "a" * 5000])
def test_hostile_patterns_and_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pattern: str
) -> None:
    calls = {"main": "e\x1b[2Jvil", "e\x1b[2Jvil": "[bold]", "[bold]": ""}
    path = linked(calls).write(tmp_path / "a.elf")
    assert main(["size", str(path), "--why", pattern, "--filter", "symbol:*"]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "[bold]" in shown
