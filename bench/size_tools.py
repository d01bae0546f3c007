# SPDX-License-Identifier: Apache-2.0
"""Size tools side by side on one firmware whose sizes are known by hand.

    python bench/size_tools.py [--venv DIR] [--zephyr size_report] [--memap memap.py]
                               [--json | --markdown] [--keep DIR]

Builds size_firmware/ with arm-none-eabi-gcc (and riscv64-unknown-elf-gcc), asks every tool that is
there, and says how to get the others.  Figures that differ from those by hand have a star; for
some of them the tool counts something else, see docs/size-tools-compared.md.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from colibri.cli.common import console, emit_json, table
from size_builds import ARM, KNOWN_ESP, Firmware, build_all, known
from size_parsers import Answer
from size_python_tools import esp_idf_size, memap, platformio, puncover, zephyr
from size_readers import Tool, binutils, bloaty, colibri, linker

QUESTIONS = {
    "flash": "stored in flash, load images included",
    "sram": "SRAM",
    "tcm": "TCM: code and data copied there, and NOBITS",
    "all ram": "RAM of all regions",
    "mode_b": "symbol that an overlay shares its address with",
    "fault": "one function with three names",
    "unnamed": "of flash: what no symbol has",
    "uart.o in ram": "RAM of libhal.a(uart.o)",
    "stack": "deepest chain from reset, a function pointer in it",
    "canary": "growth of RAM by 1,024 bytes of .bss",
    "failed link": "overflow of SRAM, of a link that failed",
    "too large": "exit code for it",
    "malloc": "exit code for a function malloc",
    "big-endian": "stored in flash, big-endian ELF",
    "stripped": "stored in flash, stripped ELF",
    "hex": "stored in flash, Intel HEX",
    "archive": "libhal.a(unused.o), in an archive",
}


def all_tools(
    venv: Path | None, zephyr_script: Path | None, memap_script: Path | None
) -> list[Tool]:
    """Every tool; those that are missing have no version."""
    folder = venv / "bin" if venv is not None else None
    python = str(folder / "python") if folder is not None else sys.executable
    path = os.pathsep.join([*([str(folder)] if folder is not None else []), os.environ["PATH"]])
    return [
        colibri(),
        binutils(
            "GNU size, nm", f"{ARM}size", f"{ARM}nm", "apt-get install binutils-arm-none-eabi"
        ),
        binutils("llvm-size, llvm-nm", "llvm-size", "llvm-nm", "apt-get install llvm"),
        linker(),
        bloaty(shutil.which("bloaty", path=path)),
        puncover(python),
        esp_idf_size(python),
        zephyr(python, zephyr_script),
        memap(python, memap_script),
        platformio(python),
    ]


def answers(tool: Tool, firmware: Firmware) -> dict[str, Answer]:
    """What a tool says; `error` where its output is none that we can read."""
    found: dict[str, Answer] = {}
    for question, ask in tool.asks.items():
        try:
            found[question] = ask(firmware)
        except (LookupError, ValueError, OSError, StopIteration):
            found[question] = "error"
    return found


def compare(tools: list[Tool], firmware: Firmware) -> dict[str, Any]:
    """The whole result: right answers, then every tool's."""
    there = [tool for tool in tools if tool.version is not None]
    result: dict[str, Any] = {
        "known": known(firmware),
        "questions": QUESTIONS,
        "tools": {t.name: {"version": t.version, "says": answers(t, firmware)} for t in there},
        "missing": {t.name: t.install for t in tools if t.version is None},
    }
    if firmware.esp is not None:
        parts = {t.name: t.esp(firmware.esp) for t in there if t.esp is not None}
        result["esp32c3"] = {"known": KNOWN_ESP, "tools": parts}
    return result


def cell(answer: Answer | None, right: Answer | None) -> str:
    """A figure as it is printed; `-` for a question that the tool does not answer."""
    if answer is None:
        return "-"
    text = f"{answer:,}" if isinstance(answer, int) else answer
    return text if right is None or answer == right else f"{text} *"


def show(result: dict[str, Any]) -> None:
    """Questions down, tools across, a few tools a table so that they fit a terminal."""
    out, right, tools = console(), result["known"], list(result["tools"])
    for name in tools:
        out.print(f"{name} {result['tools'][name]['version']}", highlight=False)
    for start in range(0, len(tools), 4):
        some = tools[start : start + 4]
        lines = table("bytes", "question", ">by hand", *(f">{name}" for name in some))
        for key in QUESTIONS:
            said = (result["tools"][name]["says"].get(key) for name in some)
            lines.add_row(key, cell(right[key], None), *(cell(one, right[key]) for one in said))
        out.print(lines)
    if "esp32c3" in result:
        parts = result["esp32c3"]["tools"]
        lines = table(
            "laid out as for an ESP32-C3", "memory", ">by hand", *(f">{n}" for n in parts)
        )
        for key, size in KNOWN_ESP.items():
            lines.add_row(key, f"{size:,}", *(cell(said.get(key), size) for said in parts.values()))
        out.print(lines)
    for name, install in result["missing"].items():
        out.print(f"not there: {name}: {install}", highlight=False, style="dim", soft_wrap=True)


def markdown(result: dict[str, Any]) -> str:
    """The tables of docs/size-tools-compared.md."""
    right, tools = result["known"], result["tools"]
    rows = [["", "by hand", *tools]]
    for key, meaning in QUESTIONS.items():
        said = (cell(tools[name]["says"].get(key), right[key]) for name in tools)
        rows.append([meaning, cell(right[key], None), *said])
    return "\n".join([_row(rows[0]), _row(["---"] * len(rows[0])), *map(_row, rows[1:])])


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--venv", type=Path, help="virtual environment that has the tools")
    parser.add_argument("--zephyr", type=Path, help="Zephyr's scripts/footprint/size_report")
    parser.add_argument("--memap", type=Path, help="Mbed OS' tools/memap.py")
    parser.add_argument("--keep", type=Path, help="a new folder for what is built")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true")
    form.add_argument("--markdown", action="store_true", help="the table of the page in docs/")
    asked = parser.parse_args()
    if shutil.which(f"{ARM}gcc") is None:
        print(f"needs {ARM}gcc: apt-get install gcc-arm-none-eabi", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        result = compare(all_tools(asked.venv, asked.zephyr, asked.memap), build_all(folder))
    if asked.json:
        emit_json(result)
    elif asked.markdown:
        print(markdown(result))
    else:
        show(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
