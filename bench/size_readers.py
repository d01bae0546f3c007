# SPDX-License-Identifier: Apache-2.0
"""What this project, binutils, the linker and bloaty say about the firmware of `size_builds`.

A tool is a table of questions it can be asked, in the keys of `size_builds.KNOWN`.
"""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from colibri import __version__
from colibri.cli import main
from size_builds import ARM, SOURCES, Built, Firmware, run
from size_parsers import (
    Answer,
    bloaty_rows,
    gnu_member,
    gnu_totals,
    linker_overflow,
    linker_used,
    nm_bytes,
)

Ask = Callable[[Firmware], Answer]
FAULT_NAMES = ("fault", "hard_fault", "nmi")
STORED = (".vectors", ".text", ".rodata", ".data", ".fast", ".fast_data", ".mode_a", ".mode_b")


@dataclass(frozen=True)
class Tool:
    """A tool that is there (`version`) or not; `install` says how to get it."""

    name: str
    version: str | None
    install: str
    asks: dict[str, Ask]
    esp: Callable[[Built], dict[str, int]] | None = None  # of the ESP32-C3 layout, by memory


# -- this project ---------------------------------------------------------------------------------


@cache
def _colibri(*words: str | Path) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON of the command."""
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(io.StringIO()):
        code = main(["size", *map(str, words), "--json"])
    return code, json.loads(printed.getvalue())


def _on_board(*words: str | Path) -> tuple[int, dict[str, Any]]:
    return _colibri(*words, "--board", SOURCES / "board.toml")


def _judged(built: Built, *words: str | Path) -> dict[str, Any]:
    return _on_board(built.elf, "--map", built.map, *words)[1]


def _region(report: dict[str, Any], name: str, key: str = "used") -> int:
    return int(next(row[key] for row in report["regions"] if row["name"] == name))


def _symbol(report: dict[str, Any], *names: str) -> int:
    return sum(row["size"] for row in report["symbols"] if row["name"] in names)


def _overflow(firmware: Firmware) -> Answer:
    return _region(_on_board(firmware.failed.map)[1], "SRAM", "overflow")


def _our_archive(firmware: Firmware) -> Answer:
    report = _colibri(firmware.base.archive)[1]
    member = next(row for row in report["objects"] if row["name"] == "unused.o")
    return int(member["bytes"])


def _our_canary(firmware: Firmware) -> Answer:
    report = _judged(firmware.canary, "--baseline", firmware.base.elf)
    rows = report["baseline"]["symbols"]
    return sum(int(row["delta"]) for row in rows if row["name"] == "canary")


def _our_uart(firmware: Firmware) -> Answer:
    report = _judged(firmware.base)
    row = next(r for r in report["objects"] if r["name"] == "uart.o")
    return int(row["by_region"]["SRAM"])


def _our_stack(firmware: Firmware) -> Answer:
    report = _judged(firmware.base, "--stack", "--calls", SOURCES / "stack.toml")
    entry = next(row for row in report["stack"]["entries"] if row["name"] == "reset")
    return int(entry["bytes"]) if entry["complete"] else "incomplete"


def _our_hex(firmware: Firmware) -> Answer:
    return _region(_on_board(firmware.hex)[1], "FLASH")


def colibri() -> Tool:
    """`colibri size`, through its command."""

    def base(key: Callable[[dict[str, Any]], int]) -> Ask:
        return lambda firmware: key(_judged(firmware.base))

    def flash(path: Callable[[Firmware], Path]) -> Ask:
        return lambda f: _region(_on_board(path(f))[1], "FLASH")

    asks: dict[str, Ask] = {
        "flash": base(lambda r: _region(r, "FLASH")),
        "sram": base(lambda r: _region(r, "SRAM")),
        "tcm": base(lambda r: _region(r, "TCM")),
        "all ram": base(lambda r: _region(r, "SRAM") + _region(r, "TCM")),
        "mode_b": base(lambda r: _symbol(r, "mode_b")),
        "fault": base(lambda r: _symbol(r, *FAULT_NAMES)),
        "unnamed": base(lambda r: _region(r, "FLASH", "unattributed")),
        "uart.o in ram": _our_uart,
        "stack": _our_stack,
        "canary": _our_canary,
        "failed link": _overflow,
        "too large": lambda f: f"exit {_on_board(f.failed.map)[0]}",
        "malloc": lambda f: f"exit {_on_board(f.malloc.elf)[0]}",
        "big-endian": flash(lambda f: f.big.elf),
        "stripped": flash(lambda f: f.stripped),
        "hex": _our_hex,
        "archive": _our_archive,
    }
    return Tool("colibri size", __version__, "", asks, _our_esp)


def _our_esp(built: Built) -> dict[str, int]:
    report = _colibri(built.elf, "--map", built.map)[1]
    used = {row["name"]: row["used"] for row in report["regions"]}
    names = {"DRAM": "dram0_0_seg", "IRAM": "iram0_0_seg",
             "Flash Code": "iram0_2_seg", "Flash Data": "drom0_0_seg"}  # fmt: skip
    image = sum(report["totals"][kind] for kind in ("text", "rodata", "data"))
    return {name: used[region] for name, region in names.items()} | {"image": image}


# -- binutils -------------------------------------------------------------------------------------


def binutils(name: str, size: str, nm: str, install: str) -> Tool:
    """`size` and `nm`, of GNU or of LLVM."""
    path = shutil.which(size)

    def totals(file: Path) -> tuple[int, int, int]:
        return gnu_totals(run(size, file).stdout)

    def stored(file: Path) -> int:
        return sum(totals(file)[:2])

    def symbols(firmware: Firmware, *names: str) -> int:
        return nm_bytes(run(nm, "-S", firmware.base.elf).stdout, names)

    def hexed(firmware: Firmware) -> Answer:
        done = run(size, firmware.hex)
        return sum(gnu_totals(done.stdout)[:2]) if done.returncode == 0 else "error"

    asks: dict[str, Ask] = {
        "flash": lambda f: stored(f.base.elf),
        "all ram": lambda f: sum(totals(f.base.elf)[1:]),
        "mode_b": lambda f: symbols(f, "mode_b"),
        "fault": lambda f: symbols(f, *FAULT_NAMES),
        "canary": lambda f: totals(f.canary.elf)[2] - totals(f.base.elf)[2],
        "big-endian": lambda f: stored(f.big.elf),
        "stripped": lambda f: stored(f.stripped),
        "hex": hexed,
        "archive": lambda f: gnu_member(run(size, f.base.archive).stdout, "unused.o"),
    }
    return Tool(name, _first(path, "--version", r"(\d+\.\d+(\.\d+)?)"), install, asks)


def linker() -> Tool:
    """`ld --print-memory-usage`, as the build printed it."""

    def used(name: str) -> Ask:
        return lambda firmware: linker_used(firmware.base.said)[name]

    asks: dict[str, Ask] = {
        "flash": used("FLASH"),
        "sram": used("SRAM"),
        "tcm": used("TCM"),
        "canary": lambda f: linker_used(f.canary.said)["SRAM"] - linker_used(f.base.said)["SRAM"],
        "failed link": lambda f: linker_overflow(f.failed.said),
        "too large": lambda f: "exit 1" if not f.failed.elf.exists() else "exit 0",
        "big-endian": lambda f: linker_used(f.big.said)["FLASH"],
    }
    path = shutil.which(f"{ARM}ld")
    install = "apt-get install gcc-arm-none-eabi"
    return Tool("GNU ld", _first(path, "--version", r"(\d+\.\d+(\.\d+)?)"), install, asks)


def _first(program: str | None, option: str, pattern: str) -> str | None:
    """The version in a program's own words; None when there is no such program."""
    if program is None:
        return None
    done = run(program, option)
    found = re.search(pattern, done.stdout + done.stderr)
    return found[1] if found else "unknown"


def bloaty(program: str | None) -> Tool:
    def rows(source: str, *files: str | Path) -> dict[str, tuple[int, int]]:
        assert program is not None
        done = run(program, "--csv", "-n", "0", "-d", source, *files)
        return bloaty_rows(done.stdout)

    def stored(file: Path) -> int:
        return sum(size for name, (_, size) in rows("segments", file).items() if "LOAD" in name)

    def symbols(firmware: Firmware, *names: str) -> int:
        found = rows("symbols", firmware.base.elf)
        return sum(found[name][0] for name in names if name in found)

    def unnamed(firmware: Firmware) -> int:
        found = rows("symbols", firmware.base.elf)
        return sum(found.get(f"[section {name}]", (0, 0))[1] for name in STORED)

    asks: dict[str, Ask] = {
        "flash": lambda f: stored(f.base.elf),
        "mode_b": lambda f: symbols(f, "mode_b"),
        "fault": lambda f: symbols(f, *FAULT_NAMES),
        "unnamed": unnamed,
        "canary": lambda f: rows("symbols", f.canary.elf, "--", f.base.elf)["canary"][0],
        "big-endian": lambda f: stored(f.big.elf),
        "stripped": lambda f: stored(f.stripped),
        "archive": lambda f: rows("armembers", f.base.archive)["unused.o"][0],
    }
    install = "build https://github.com/google/bloaty, or apt-get install bloaty where there is one"
    return Tool("bloaty", _first(program, "--version", r"(\d+\.\d+)"), install, asks)
