# SPDX-License-Identifier: Apache-2.0
"""How much of a board's memory is kept for firmware's code and constants, before there is firmware.

`code_sizes.json` has what was counted, with either compiler: whole firmware of each target with the
least in it that runs and with every part that an image may need (`image_needs`); and on Cortex-M33
what each part adds by itself.  Between the two bounds of a target, an image's parts count in the
proportions of these.  As code of one part changes with its neighbours, and compilers differ, a
tenth is added.  `build_firmware` holds the link to the reserve; `tests/python/code_sizes.py` counts
again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypedDict

from colibri.boards import Board
from colibri.errors import PlanError
from colibri.image import Image
from colibri.units import format_bytes
from colibri_emulator.image_needs import image_needs

PARTS_TARGET = "cortex-m33"  # where parts are counted one by one
KV_TYPES = ("f32", "f16", "q8")  # all that `colibri build` compiles in
_STEP = 1024


class CodeReserve(NamedTuple):
    """Bytes kept, those counted (None: not by counting), and where the figure is from."""

    bytes: int
    counted: int | None
    why: str


class Bounds(TypedDict):
    """Bytes of a target's firmware with the least and with all parts."""

    least: int
    all: int


class Table(TypedDict):
    """`code_sizes.json`: compilers and their versions, counts by target and compiler, parts."""

    compilers: dict[str, str]
    targets: dict[str, dict[str, Bounds]]
    parts: dict[str, dict[str, int]]


@cache
def counted_sizes() -> Table:
    """What was counted."""
    path = Path(__file__).with_name("code_sizes.json")
    table: Table = json.loads(path.read_text("utf-8"))
    return table


def code_reserve(
    board: Board, images: Sequence[Image], *, streaming: bool, asked: int | None = None
) -> CodeReserve:
    """What firmware of these images may take for code, constants and initial data.

    Parameters
    ----------
    board : Board
        A board with ``os = "none"``.
    images : sequence of Image
        Of one firmware.
    streaming : bool
        Whether it reads experts when they are needed.
    asked : int, optional
        Takes the place of the board's ``budgets.code_bytes`` and of what was counted.
    """
    if asked is not None:
        if asked < 1:
            raise PlanError(f"code is {asked} bytes", hint="use 1 or more, or leave it out")
        return CodeReserve(asked, None, f"{format_bytes(asked)} kept, as asked")
    budget = board.budgets.code_bytes.limit if board.budgets.code_bytes else None
    if budget is not None:
        return CodeReserve(budget, None, f"{format_bytes(budget)} kept (budgets.code_bytes)")
    needed = {
        part
        for image in images
        for part, wanted in image_needs(image, KV_TYPES, streaming=streaming).parts.items()
        if wanted
    }
    target = board.firmware.target
    counted, compiler = max(_sums(target, needed))
    size = -(-(counted + -(-counted // 10)) // _STEP) * _STEP
    why = f"{counted:,} bytes counted for such images ({target}, {compiler}), and a tenth"
    return CodeReserve(size, counted, f"{format_bytes(size)} kept: {why}")


def _sums(target: str, needed: Collection[str]) -> Iterator[tuple[int, str]]:
    """Counted bytes with these parts, and the compiler, of each compiler."""
    table = counted_sizes()
    for name, bounds in table["targets"][target].items():
        parts = table["parts"][name]
        share = sum(parts[part] for part in needed) / sum(parts.values())
        size = bounds["least"] + math.ceil(share * (bounds["all"] - bounds["least"]))
        yield size, table["compilers"][name]
