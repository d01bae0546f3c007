# SPDX-License-Identifier: Apache-2.0
"""A project file to start from."""

from __future__ import annotations

from pathlib import Path

from colibri._data import data_path
from colibri.errors import ProjectError
from colibri.text_files import write_text

_TEXT = """\
# What `colibri check` packs, plans, builds, sizes and emulates, and what it holds it to.
# Every key: docs/check.md
schema_version = 1
name = "my-reader"

[model]
checkpoint = "{checkpoint}"  # a folder from Hugging Face, or a GGUF file
quant = "q4"

[limits]
context = 128
kv = "f16"

[run]
prompt = "hummingbird (noun):"
max_new_tokens = 24
temperature = 0.7
top_p = 0.9
seed = 5

[groups]                        # who owns the bytes: shell patterns (docs/check.md)
runtime = ["*libcolibri.a"]

[budgets]                       # for every board; a value alone is the limit
groups.runtime = "64 KiB"
arena_bytes = {{ warn = "310 KiB", limit = "320 KiB" }}
tok_s = {{ warn = 8, limit = 4 }} # predicted, at least

[boards.pimoroni-pico-plus-2]   # `colibri boards list` has more; board = "mine.toml" takes yours
emulate = ["native", "cpu"]

[boards.pimoroni-pico-plus-2.budgets]
regions.SRAM = {{ warn = "80 %", limit = "90 %" }}
regions.FLASH = "50 %"
"""


def write_start(file: Path) -> None:
    """Write it where nothing is yet.

    Raises
    ------
    ProjectError
        The file is there already, or cannot be written.
    """
    if file.exists():
        raise ProjectError("is there already", file=file, hint="give the name of a new file")
    write_text(file, _TEXT.format(checkpoint=data_path("models", "demo-moe")), ProjectError)
