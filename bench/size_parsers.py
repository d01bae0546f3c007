# SPDX-License-Identifier: Apache-2.0
"""Answers in what size tools print.  Functions of text or JSON, which know no process."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from typing import Any

Answer = int | str  # bytes, or the exit code of a gate, or `error` when a tool gave up


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


def puncover_stack(report: dict[str, Any], entry: str) -> int:
    """Bytes of the deepest chain that puncover's JSON report has for an entry."""
    (tagged,) = report.values()
    return int(tagged["stack_report"][entry]["max_static_stack_size"])


def esp_layout(report: dict[str, Any]) -> dict[str, int]:
    """Bytes by kind of memory, and of the image, in esp-idf-size's JSON."""
    used = {part["name"]: int(part["used"]) for part in report["layout"]}
    return used | {"image": int(report["total_size"])}


def zephyr_leaves(node: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Names and sizes of what has no parts in the tree of Zephyr's size_report."""
    for child in node.get("children", ()):
        yield from zephyr_leaves(child)
    if not node.get("children"):
        yield node["name"], node["size"]


def memap_module(report: list[dict[str, Any]], end: str) -> int:
    """.data and .bss of one module of memap's JSON."""
    sizes = next(row["size"] for row in report if row.get("module", "").endswith(end))
    return int(sizes[".data"] + sizes[".bss"])


def platformio_symbols(memory: dict[str, Any], names: tuple[str, ...]) -> int:
    """Bytes of all rows with these names in PlatformIO's sizedata.json."""
    rows = (symbol for file in memory["files"] for symbol in file["symbols"])
    return sum(int(row["size"]) for row in rows if row["name"] in names)
