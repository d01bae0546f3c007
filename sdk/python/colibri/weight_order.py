# SPDX-License-Identifier: Apache-2.0
"""Which order of weights a CPU reads best (docs/spec.md, section 4).

Every order runs everywhere with the same bits; the right one is faster.  Wide vectors take sixteen
rows at a time from tiles; Cortex-M takes a few rows at a time, each where it lies.
"""

from __future__ import annotations

import platform

from colibri.boards import Board, load_board
from colibri.boards.model import Core
from colibri.image import Image
from colibri.image_format import Order

_WIDE = ("armv8-a", "armv8.2-a", "armv9-a", "rv64gcv", "x86-64")
_WIDE_HOSTS = ("x86_64", "AMD64", "aarch64", "arm64")
HOST = "host"


def order_of_core(core: Core) -> Order:
    """Tiles for cores with vectors of 128 bits and more, but not Helium's."""
    return Order.TILES if core.isa in _WIDE or "rvv" in core.features else Order.ROWS


def order_of_image(image: Image) -> Order:
    """Tiles when any tensor has them."""
    return Order.TILES if any(tensor.order for tensor in image.tensors) else Order.ROWS


def order_of_target(target: str | None) -> Order:
    """Of a board by its name or file, of this machine as ``host``; rows for None.

    Raises
    ------
    BoardError
        For a board that cannot be read.
    """
    if target is None:
        return Order.ROWS
    if target == HOST:
        return Order.TILES if platform.machine() in _WIDE_HOSTS else Order.ROWS
    board: Board = load_board(target)
    return order_of_core(board.cores[0])
