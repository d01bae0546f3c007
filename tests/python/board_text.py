# SPDX-License-Identifier: Apache-2.0
"""A whole board in one file, for tests that change one thing in it."""

from __future__ import annotations

from pathlib import Path

WHOLE = """
schema_version = 1
id = "bench"
name = "Bench"
vendor = "Us"
os = "none"

[[cores]]
id = "m33"
isa = "armv8-m.main"
cpu = "cortex-m33"
count = 1
freq_hz = 100_000_000
line_bytes = 4
source = "datasheet"

[[regions]]
name = "SRAM"
kind = "sram"
base = 0x20000000
size = "64 KiB"
access = "rwx"
rank = 0
source = "datasheet"

[[regions]]
name = "FLASH"
kind = "nor"
base = 0x08000000
size = "1 MiB"
access = "rx"
aliases = [0x00000000]
reserved = [{ offset = 0, size = "16 KiB", reason = "boot loader" }]
rank = 1
source = "datasheet"

[firmware]
target = "cortex-m33"
code_region = "FLASH"
code_offset = "16 KiB"
data_region = "SRAM"
model_region = "FLASH"
stack_bytes = "4 KiB"
reserve_bytes = "4 KiB"
"""


def write(folder: Path, text: str, name: str = "board.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def changed(old: str, new: str) -> str:
    assert old in WHOLE, f"the test changes text that is not there: {old}"
    return WHOLE.replace(old, new, 1)
