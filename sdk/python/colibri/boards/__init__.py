# SPDX-License-Identifier: Apache-2.0
"""Boards: cores, memory regions, storage and firmware placement, each number with its source.

>>> board = load_board("pimoroni-pico-plus-2")
>>> board.region("SRAM").size
532480

Read in this order: `scalars`, `budgets`, `model` (what a file may say), `loader` (board + SoC →
`Board`), `checks` (what must hold between the parts), `schema` (the published JSON Schema).
"""

from colibri.boards.budgets import Budgets, Limit, RegionBudget
from colibri.boards.loader import check_board_file, list_boards, load_board
from colibri.boards.model import (
    Accelerator,
    Board,
    Core,
    CurvePoint,
    Figure,
    Firmware,
    Perf,
    Region,
    Reserved,
    Soc,
    Storage,
)
from colibri.boards.schema import board_schema
from colibri.errors import BoardError, Problem

__all__ = [
    "Accelerator",
    "Board",
    "BoardError",
    "Budgets",
    "Core",
    "CurvePoint",
    "Figure",
    "Firmware",
    "Limit",
    "Perf",
    "Problem",
    "Region",
    "RegionBudget",
    "Reserved",
    "Soc",
    "Storage",
    "board_schema",
    "check_board_file",
    "list_boards",
    "load_board",
]
