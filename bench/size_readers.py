# SPDX-License-Identifier: Apache-2.0
"""What each size tool says about the firmware of `size_builds`, read from its output.

A tool is a table of questions it can be asked, in the keys of `size_builds.KNOWN`.  An answer is
bytes, or a text: the exit code of a gate, `error` when the tool gave up.  Parsers take text and
know no process, so that tests hold them against kept output.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from colibri import __version__
from colibri.cli import main
from size_builds import ARM, SOURCES, Built, Firmware, run

Answer = int | str
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
    esp: Ask | None = None  # what it says of the ESP32-C3 layout, by `esp_parts`


# -- parsers --------------------------------------------------------------------------------------


def gnu_totals(text: str) -> tuple[int, int, int]:
    """text, data and bss as the last line of `size` has them."""
    first, second, third = text.splitlines()[-1].split()[:3]
    return int(first), int(second), int(third)


def gnu_member(text: str, member: str) -> int:
    """All bytes of one member of an archive, as `size` prints them."""
    line = next(line for line in text.splitlines() if f"{member} (ex" in line)
    return int(line.split()[3])


def nm_bytes(text: str, names: tuple[str, ...]) -> int:
    """Bytes of the rows with these names in `nm -S`: what somebody gets who adds them up."""
    rows = (line.split() for line in text.splitlines())
    return sum(int(row[1], 16) for row in rows if len(row) == 4 and row[3] in names)


def linker_used(text: str) -> dict[str, int]:
    """Bytes of each region by `ld --print-memory-usage`."""
    units = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}
    found = re.findall(r"^\s*(\w+):\s+(\d+) ([KMG]?B)\s", text, re.MULTILINE)
    return {name: int(size) * units[unit] for name, size, unit in found}


def linker_overflow(text: str) -> Answer:
    found = re.search(r"region `\w+' overflowed by (\d+) bytes", text)
    return int(found[1]) if found else "error"


def bloaty_rows(text: str) -> dict[str, tuple[int, int]]:
    """Bytes in memory and in the file of each row of `bloaty --csv`."""
    rows = list(csv.reader(io.StringIO(text)))[1:]
    return {row[0]: (int(row[1]), int(row[2])) for row in rows}


def memap_module(report: list[dict[str, Any]], end: str) -> int:
    """.data and .bss of one module of memap's JSON."""
    sizes = next(row["size"] for row in report if row.get("module", "").endswith(end))
    return int(sizes[".data"] + sizes[".bss"])


def zephyr_leaves(node: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Names and sizes of what has no parts in the tree of Zephyr's size_report."""
    for child in node.get("children", ()):
        yield from zephyr_leaves(child)
    if not node.get("children"):
        yield node["name"], node["size"]


def esp_layout(report: dict[str, Any]) -> dict[str, int]:
    """Bytes by kind of memory, and of the image, in esp-idf-size's JSON."""
    used = {part["name"]: int(part["used"]) for part in report["layout"]}
    return used | {"image": int(report["total_size"])}


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


def esp_parts(parts: dict[str, int]) -> str:
    return json.dumps(parts)


def _our_esp(firmware: Firmware) -> Answer:
    assert firmware.esp is not None
    report = _colibri(firmware.esp.elf, "--map", firmware.esp.map)[1]
    used = {row["name"]: row["used"] for row in report["regions"]}
    names = {"DRAM": "dram0_0_seg", "IRAM": "iram0_0_seg",
             "Flash Code": "iram0_2_seg", "Flash Data": "drom0_0_seg"}  # fmt: skip
    image = sum(report["totals"][kind] for kind in ("text", "rodata", "data"))
    return esp_parts({name: used[region] for name, region in names.items()} | {"image": image})


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


# -- others ---------------------------------------------------------------------------------------


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


# Symbols have no report; the pages are made of this.
_PUNCOVER = """
import json, pathlib, sys
from puncover.collector import Collector
from puncover.gcc_tools import GCCTools
collector = Collector(GCCTools(sys.argv[1]))
collector.parse_elf(pathlib.Path(sys.argv[2]))
symbols = collector.all_symbols()
print(json.dumps([[s["name"], s.get("size", 0), s.get("type")] for s in symbols]))
"""


def puncover(python: str | None) -> Tool:
    prefix = (shutil.which(f"{ARM}gcc") or f"{ARM}gcc")[: -len("gcc")]

    def symbols(elf: Path) -> list[tuple[str, int, str]]:
        done = run(str(python), "-c", _PUNCOVER, prefix, elf)
        return [(n, s, t) for n, s, t in json.loads(done.stdout.splitlines()[-1])]

    def named(firmware: Firmware, *names: str) -> int:
        return sum(size for name, size, _ in symbols(firmware.base.elf) if name in names)

    def stack(firmware: Firmware) -> Answer:
        with tempfile.TemporaryDirectory() as folder:
            run(
                Path(str(python)).with_name("puncover"), "--gcc-tools-base", prefix,
                "--elf", firmware.base.elf, "--build_dir", firmware.base.objects,
                "--non-interactive", "--generate-report", "--report-filename", "report",
                "--report-max-static-stack-usage", "reset", cwd=Path(folder),
            )  # fmt: skip
            report = json.loads((Path(folder) / "report.json").read_text())
        return puncover_stack(report, "reset")

    asks: dict[str, Ask] = {
        "mode_b": lambda f: named(f, "mode_b"),
        "fault": lambda f: named(f, *FAULT_NAMES),
        "stack": stack,
    }
    return Tool("puncover", _package(python, "puncover"), "pip install puncover", asks)


def puncover_stack(report: dict[str, Any], entry: str) -> int:
    """Bytes of the deepest chain that puncover's JSON report has for an entry."""
    (tagged,) = report.values()
    return int(tagged["stack_report"][entry]["max_static_stack_size"])


def esp_idf_size(python: str | None) -> Tool:
    def layout(built: Built | None) -> dict[str, int] | None:
        assert built is not None
        done = run(str(python), "-m", "esp_idf_size", "--format", "json2", built.map)
        return esp_layout(json.loads(done.stdout)) if done.returncode == 0 else None

    def of_arm(firmware: Firmware) -> Answer:
        return "error" if layout(firmware.base) is None else "unexpected"

    def of_esp(firmware: Firmware) -> Answer:
        parts = layout(firmware.esp)
        return "error" if parts is None else esp_parts(parts)

    install = "pip install esp-idf-size"
    version = _package(python, "esp-idf-size")
    return Tool("esp-idf-size", version, install, {"flash": of_arm, "sram": of_arm}, of_esp)


def zephyr(python: str | None, script: Path | None) -> Tool:
    def tree(elf: Path, target: str) -> dict[str, Any] | None:
        with tempfile.TemporaryDirectory() as folder:
            run(str(python), str(script), "-q", "-k", elf, "-z", folder, "-o", folder, target)
            report = Path(folder) / f"{target}.json"
            found: dict[str, Any] = json.loads(report.read_text()) if report.exists() else {}
            return found or None

    def total(elf: Path, target: str) -> Answer:
        found = tree(elf, target)
        return "error" if found is None else int(found["total_size"])

    def symbols(firmware: Firmware, target: str, *names: str) -> int:
        found = tree(firmware.base.elf, target) or {"symbols": {"name": "", "size": 0}}
        return sum(size for name, size in zephyr_leaves(found["symbols"]) if name in names)

    def canary(firmware: Firmware) -> Answer:
        before, after = (total(b.elf, "ram") for b in (firmware.base, firmware.canary))
        return after - before if isinstance(before, int) and isinstance(after, int) else "error"

    asks: dict[str, Ask] = {
        "flash": lambda f: total(f.base.elf, "rom"),
        "all ram": lambda f: total(f.base.elf, "ram"),
        "mode_b": lambda f: symbols(f, "ram", "mode_b"),
        "fault": lambda f: symbols(f, "rom", *FAULT_NAMES),
        "unnamed": lambda f: symbols(f, "rom", "(hidden)"),
        "canary": canary,
        "big-endian": lambda f: total(f.big.elf, "rom"),
        "stripped": lambda f: total(f.stripped, "rom"),
    }
    ready = script is not None and script.is_file() and _package(python, "anytree") is not None
    install = (
        "scripts/footprint/size_report of Zephyr (--zephyr FILE); "
        "pip install pyelftools anytree colorama packaging"
    )
    return Tool("Zephyr size_report", "as given" if ready else None, install, asks)


def memap(python: str | None, script: Path | None) -> Tool:
    def report(built: Built) -> tuple[int, list[dict[str, Any]]]:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "memap.json"
            done = run(
                str(python), "-W", "ignore", str(script), "-t", "GCC_ARM", "-d", "9",
                "-e", "json", "-o", out, built.map,
            )  # fmt: skip
            return done.returncode, list(json.loads(out.read_text()))

    def summary(built: Built, key: str) -> int:
        return int(report(built)[1][-1]["summary"][key])

    def canary(firmware: Firmware) -> Answer:
        before, after = (summary(b, "static_ram") for b in (firmware.base, firmware.canary))
        return after - before

    asks: dict[str, Ask] = {
        "flash": lambda f: summary(f.base, "total_flash"),
        "all ram": lambda f: summary(f.base, "static_ram"),
        "uart.o in ram": lambda f: memap_module(report(f.base)[1], "uart.o"),
        "canary": canary,
        "too large": lambda f: f"exit {report(f.failed)[0]}",
        "big-endian": lambda f: summary(f.big, "total_flash"),
    }
    ready = script is not None and script.is_file() and _package(python, "prettytable") is not None
    install = "tools/memap.py of Mbed OS (--memap FILE); pip install prettytable jinja2 future"
    found = _first(python, "--version", "(.*)") if ready else None
    return Tool("memap", "0.4.0" if found else None, install, asks)


# The two functions of its build that say sizes, with a stand-in for SCons' environment.
_PLATFORMIO = """
import json, os, sys, tempfile
from platformio.builder.tools import piosize

class Env(dict):
    def BoardConfig(self): return {}
    def subst(self, text): return self[text]

for name in ("IsRamSection", "IsFlashSection", "CalculateFirmwareSize", "DetermineSection",
             "IsValidSymbol"):
    name = "pioSize" + name
    setattr(Env, name, getattr(piosize, name))
with tempfile.TemporaryDirectory() as folder:
    env = Env({"$CC": sys.argv[1], "$BUILD_DIR": folder, "$PIOMAINPROG": sys.argv[2],
               "ENV": {"PATH": os.environ["PATH"]}})
    env.Exit = sys.exit
    piosize.DumpSizeData(None, None, None, env)
    with open(os.path.join(folder, "sizedata.json")) as file:
        print(file.read())
"""


def platformio(python: str | None) -> Tool:
    def memory(elf: Path) -> dict[str, Any] | None:
        done = run(str(python), "-c", _PLATFORMIO, f"{ARM}gcc", elf)
        return dict(json.loads(done.stdout)["memory"]) if done.returncode == 0 else None

    def total(elf: Path, key: str) -> Answer:
        found = memory(elf)
        return "error" if found is None else int(found["total"][key])

    def symbols(firmware: Firmware, *names: str) -> Answer:
        found = memory(firmware.base.elf)
        return "error" if found is None else platformio_symbols(found, names)

    def canary(firmware: Firmware) -> Answer:
        before, after = (total(b.elf, "ram_size") for b in (firmware.base, firmware.canary))
        return after - before if isinstance(before, int) and isinstance(after, int) else "error"

    asks: dict[str, Ask] = {
        "flash": lambda f: total(f.base.elf, "flash_size"),
        "all ram": lambda f: total(f.base.elf, "ram_size"),
        "mode_b": lambda f: symbols(f, "mode_b"),
        "fault": lambda f: symbols(f, *FAULT_NAMES),
        "canary": canary,
        "big-endian": lambda f: total(f.big.elf, "flash_size"),
        "stripped": lambda f: total(f.stripped, "flash_size"),
    }
    return Tool("PlatformIO", _package(python, "platformio"), "pip install platformio", asks)


def platformio_symbols(memory: dict[str, Any], names: tuple[str, ...]) -> int:
    """Bytes of all rows with these names in PlatformIO's sizedata.json."""
    rows = (symbol for file in memory["files"] for symbol in file["symbols"])
    return sum(int(row["size"]) for row in rows if row["name"] in names)


def _package(python: str | None, name: str) -> str | None:
    """The version of a package that an interpreter has."""
    if python is None or shutil.which(python) is None:
        return None
    done = run(python, "-c", f"import importlib.metadata as m; print(m.version({name!r}))")
    return done.stdout.strip() if done.returncode == 0 else None


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
