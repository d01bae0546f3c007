# SPDX-License-Identifier: Apache-2.0
"""Size tools that are Python programs: puncover, esp-idf-size, Zephyr's report, memap, PlatformIO.

They live in an interpreter of their own, `python`, or are scripts of a checkout.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from size_builds import ARM, Built, Firmware, run
from size_parsers import (
    Answer,
    esp_layout,
    memap_module,
    platformio_symbols,
    puncover_stack,
    zephyr_leaves,
)
from size_readers import FAULT_NAMES, Ask, Tool

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


def esp_idf_size(python: str | None) -> Tool:
    def layout(built: Built) -> dict[str, int]:
        done = run(str(python), "-m", "esp_idf_size", "--format", "json2", built.map)
        return esp_layout(json.loads(done.stdout)) if done.returncode == 0 else {}

    def of_arm(firmware: Firmware) -> Answer:
        return layout(firmware.base)["image"]  # it has no kinds of memory for such a chip

    install = "pip install esp-idf-size"
    version = _package(python, "esp-idf-size")
    return Tool("esp-idf-size", version, install, {"flash": of_arm}, layout)


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
    version = run(str(python), "-W", "ignore", str(script), "--version").stdout if ready else ""
    return Tool("memap", version.strip() or None, install, asks)


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


def _package(python: str | None, name: str) -> str | None:
    """The version of a package that an interpreter has."""
    if python is None or shutil.which(python) is None:
        return None
    done = run(python, "-c", f"import importlib.metadata as m; print(m.version({name!r}))")
    return done.stdout.strip() if done.returncode == 0 else None
