# SPDX-License-Identifier: Apache-2.0
"""Measures what tests/limits.json records: code, stack and arena bytes; code of each family.

    python tests/python/runtime_sizes.py [--reason WHY]    (make sizes)

measures again, writes tests/limits.json and docs/sizes.md, and asks for a reason when a figure
moved by more than its tolerance.  `test_limits.py` compares.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from archive import members
from colibri.boards import load_board
from colibri.planner import plan
from colibri_emulator.build_firmware import Firmware, build_firmware
from colibri_emulator.image_needs import image_needs
from colibri_emulator.machine import pick_machine
from colibri_emulator.mailbox import Request
from colibri_emulator.toolchain import find_toolchain

ROOT = Path(__file__).resolve().parents[2]
LIMITS, PAGE = ROOT / "tests" / "limits.json", ROOT / "docs" / "sizes.md"
GOLDEN = ROOT / "tests" / "golden"
BOARD, KV, CONTEXT = "pimoroni-pico-plus-2", "f16", 128
TYPES = {"f32", "f16", "bf16", "q8", "q4", "kv_f16", "kv_q8"}  # parts that no family decides
PROMPT = (48, 2858, 1135, 7)
Json = dict[str, Any]


# Code


def _symbols(elf: ELFFile) -> Iterable[tuple[str, Any]]:
    """(source file for a local symbol, else "", symbol), in the table's order."""
    table = elf.get_section_by_name(".symtab")
    assert isinstance(table, SymbolTableSection)
    file = ""
    for symbol in table.iter_symbols():
        info = symbol["st_info"]
        if info["type"] == "STT_FILE":
            file = symbol.name
        else:
            yield file if info["bind"] == "STB_LOCAL" else "", symbol


def _library(path: Path) -> tuple[set[str], dict[str, str]]:
    """The runtime's source files, and which of them defines each global symbol."""
    files: set[str] = set()
    home: dict[str, str] = {}
    for elf in members(path):
        symbols = list(_symbols(elf))
        (file,) = {file for file, _ in symbols if file} or {""}
        files.add(file)
        for local, symbol in symbols:
            if not local and symbol["st_shndx"] != "SHN_UNDEF":
                home[symbol.name] = file
    return files, home


def code_bytes(made: Firmware) -> tuple[Counter[str], int]:
    """Code and constants of the linked runtime by source file, and bytes that nobody owns.

    A byte counts for the first symbol that covers it.  What no symbol covers (padding, string
    constants) is the second number, and contains the same of the start-up code.
    """
    files, home = _library(made.library)
    spans: list[tuple[int, int, str]] = []
    with made.elf.open("rb") as stream:
        elf = ELFFile(stream)
        sections = [s for s in elf.iter_sections() if s.name in (".text", ".rodata")]
        ranges = [(s["sh_addr"], s["sh_addr"] + s["sh_size"]) for s in sections]
        for local, symbol in _symbols(elf):
            start, size = symbol["st_value"], symbol["st_size"]
            if symbol["st_info"]["type"] == "STT_FUNC":
                start &= ~1  # Thumb
            if size and any(low <= start < high for low, high in ranges):
                owner = local if local in files else home.get(symbol.name, "")
                spans.append((start, start + size, owner))
    found: Counter[str] = Counter()
    at = 0
    for start, end, owner in sorted(spans):
        found[owner] += max(0, end - max(start, at))
        at = max(at, end)
    unowned = sum(high - low for low, high in ranges) - found.total()
    del found[""]
    return found, unowned


def build(image: Path, folder: Path, toolchain: str, **more: Any) -> Firmware:
    """The firmware of the small board with one KV type."""
    board = load_board(BOARD)
    more = {"toolchain": toolchain, "kv": (KV,), "copy_model": False, "kernels": "ref", **more}
    return build_firmware(board, image, folder, **more)


def compiler(toolchain: str) -> str:
    """Name and version."""
    found = find_toolchain(load_board(BOARD).firmware.target, toolchain)  # type: ignore[arg-type]
    return " ".join(found.identity().split()[:2])


def measure_code(image: Path, toolchain: str, groups: Mapping[str, str]) -> Json:
    """Bytes of the runtime, everything at -Os, in all and by group of source files."""
    with tempfile.TemporaryDirectory() as folder:
        files, unowned = code_bytes(build(image, Path(folder) / "b", toolchain, optimise="-Os"))
    parts = {
        name: sum(files.pop(f"{file}.c", 0) for file in group.split())
        for name, group in groups.items()
    }
    assert not files, f"in no group of limits.json: {sorted(files)}"
    parts["padding and strings"] = unowned
    return {"bytes": sum(parts.values()), "groups": parts}


def measure_family(golden: str, groups: Mapping[str, str]) -> Json:
    """Bytes of the runtime for one golden checkpoint, and the parts that it asks for."""
    from colibri.pack import pack

    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder) / "image"
        pack(GOLDEN / golden, image, quant="q4")
        needs = image_needs(image, (KV,)).parts
        found = measure_code(image, "gcc", groups)
    parts = [name for name, used in needs.items() if used and name not in TYPES]
    return {"bytes": found["bytes"], "parts": " ".join(parts)}


def goldens() -> list[str]:
    """Every golden checkpoint."""
    return sorted(path.parent.name for path in GOLDEN.glob("*/config.json"))


# Stack and arena


def measure_stack(image: Path) -> Json:
    """Painted stack that a prompt of several tokens and a drawn one leave used, runner included."""
    machine = pick_machine(load_board(BOARD), "unicorn")
    request = Request(
        prompt=PROMPT, max_new_tokens=2, ignore_eos=True, context=CONTEXT, kv=KV,
        temperature=0.8, top_k=20, top_p=0.9, seed=1,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        result = machine.run(build(image, Path(folder) / "b", "zig"), request)
    assert result.ok, result
    assert len(result.tokens) == 2, result
    assert 0 < result.stack_high_water < result.stack_bytes, result
    return {"bytes": result.stack_high_water}


def measure_arena(image: Path, row: Mapping[str, Any]) -> int:
    """Bytes that a plan takes for the engine."""
    made = plan(image, row["board"], context=row["context"], kv=row["kv"], batch=row["batch"])
    return made.require().total_bytes


# The record


def load() -> Json:
    """What is recorded."""
    found: Json = json.loads(LIMITS.read_text("utf-8"))
    return found


def moved(recorded: int, measured: int, percent: float) -> bool:
    """Whether a figure left the tolerance around the recorded one."""
    return abs(measured - recorded) * 100 > percent * recorded


def page(limits: Json) -> str:
    """docs/sizes.md."""
    code, stack = limits["code"], limits["stack"]
    names = list(code["compilers"])
    rows = [*code["groups"], "padding and strings"]
    table = [
        "| part | source files | " + " | ".join(names) + " |",
        "|---|---|" + "---:|" * len(names),
    ]
    for name in rows:
        files = code["groups"].get(name, "")
        figures = (f"{code['compilers'][c]['groups'][name]:,}" for c in names)
        table.append(f"| {name} | {files} | " + " | ".join(figures) + " |")
    totals = (f"**{code['compilers'][c]['bytes']:,}**" for c in names)
    table.append("| **runtime** | | " + " | ".join(totals) + " |")
    made = [
        f"* {c}: {r['compiler']}, {r['date']}. {r['reason']}" for c, r in code["compilers"].items()
    ]
    arena = ["| board | image | context | KV | batch | bytes |", "|---|---|---:|---|---:|---:|"]
    for row in limits["arena"]:
        shown = (row["board"], row["image"], f"{row['context']:,}", row["kv"], str(row["batch"]))
        arena.append("| " + " | ".join(shown) + f" | {row['bytes']:,} |")
    families = ["| checkpoint | parts that others leave out | bytes |", "|---|---|---:|"]
    for name, entry in limits["families"]["measured"].items():
        parts = ", ".join(part.replace("_", " ") for part in entry["parts"].split()) or "-"
        families.append(f"| {name} | {parts} | {entry['bytes']:,} |")
    return _PAGE.format(
        families="\n".join(families), family=limits["families"], what=code["what"],
        table="\n".join(table), made="\n".join(made), limit=code["limit"],
        aim=code["aim"], percent=code["tolerance_percent"], stack=stack, arena="\n".join(arena),
    )  # fmt: skip


_PAGE = """\
<!-- Written by `make sizes` from tests/limits.json; tests/python/test_limits.py compares. -->
# Sizes

What the runtime costs on a board, as numbers that the tests hold. `make sizes` measures again and
writes this page; a figure that moves by more than its tolerance needs a reason:
`make sizes REASON="..."`.

## Code and constants

Counted, from the symbols of a linked ELF: {what} Parts that the runner application (open, plan,
init, infer, sample, self-test) does not call are left out by the linker.

{table}

Aim {aim:,} bytes, limit {limit:,}. A change of more than {percent} % fails the test until it is
recorded.

{made}

Start-up code, the runner application and `memcpy`, `memmove`, `memset`, `memcmp` are not in these
figures; padding and strings are those of the whole firmware. `colibri build` compiles the kernels
with -O2, which is larger and faster. The runtime has no `.data` and no `.bss`
(`tests/python/test_firmware.py`).

## Families

The same count for each checkpoint in `tests/golden`: {family[what]} Firmware carries only the parts
(`sdk/c/src/options.h`) that its image asks for. Limit {family[limit]:,}; tolerance
{family[tolerance_percent]} %.

{families}

* gcc: {family[compiler]}, {family[date]}. {family[reason]}

## Stack

**{stack[bytes]:,} bytes**, limit {stack[limit]:,}. Counted: {stack[what]}.

* {stack[compiler]}, {stack[date]}. {stack[reason]}

## Arena

Counted: `colibri plan` computes these before a run, and the engine takes exactly that. Any change
fails the test until it is recorded.

{arena}
"""


def _record(entry: Json, measured: Json, percent: float, reason: str | None, name: str) -> None:
    """Takes measured figures over; date and reason change when a figure left its tolerance."""
    entry |= _dated(entry["bytes"], measured["bytes"], percent, reason, name)
    entry.update(measured)


def _dated(old: int, new: int, percent: float, reason: str | None, name: str) -> Json:
    """Date and reason of a figure, where they change."""
    changed = moved(old, new, percent)
    if changed and not reason:
        sys.exit(f"{name}: {old:,} -> {new:,} bytes; give --reason WHY")
    today = {"date": datetime.datetime.now(datetime.UTC).date().isoformat()} if old != new else {}
    return today | ({"reason": reason} if changed else {})


def update_families(families: Json, groups: Mapping[str, str], reason: str | None) -> None:
    """Measures every golden checkpoint; one date and reason for all of them."""
    recorded, measured = families["measured"], {}
    for name in goldens():
        measured[name] = measure_family(name, groups)
        old = recorded.get(name, {"bytes": 0})["bytes"]
        families |= _dated(
            old, measured[name]["bytes"], families["tolerance_percent"], reason, name
        )
    families |= {"measured": measured, "compiler": compiler("gcc")}


def update(reason: str | None) -> None:
    """Measures everything and writes both files."""
    from colibri.pack import pack

    limits = load()
    code, stack = limits["code"], limits["stack"]
    with tempfile.TemporaryDirectory() as folder:
        images = {quant: Path(folder) / quant for quant in ("q4", "f32")}
        for quant, path in images.items():
            pack(ROOT / "models" / "demo-moe", path, quant=quant)
        for name, entry in code["compilers"].items():
            found = {**measure_code(images["q4"], name, code["groups"]), "compiler": compiler(name)}
            _record(entry, found, code["tolerance_percent"], reason, name)
        update_families(limits["families"], code["groups"], reason)
        found = {**measure_stack(images["q4"]), "compiler": compiler("zig")}
        _record(stack, found, stack["tolerance_percent"], reason, "stack")
        for row in limits["arena"]:
            _record(row, {"bytes": measure_arena(images[row["image"]], row)}, 0, reason, "arena")
    for path, text in ((LIMITS, json.dumps(limits, indent=2) + "\n"), (PAGE, page(limits))):
        temporary = path.with_suffix(".new")
        temporary.write_text(text, "utf-8")
        temporary.replace(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure sizes again.")
    parser.add_argument("--reason", help="why a figure moved")
    update(parser.parse_args().reason)
