# SPDX-License-Identifier: Apache-2.0
"""Counts what firmware's code takes on each target: emulator/colibri_emulator/code_sizes.json.

    python tests/python/code_sizes.py [TARGET...]

Builds firmware of each target with the least that runs and with all there is, with both compilers;
on Cortex-M33, which stands for the others there, also with each part alone.  Without targets: all,
about 75 builds.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any, get_args

from colibri.boards import Board, load_board
from colibri.boards.model import Feature
from colibri.pack import pack
from colibri_emulator.build_firmware import build_firmware
from colibri_emulator.code_size import PARTS_TARGET, Bounds, counted_sizes
from colibri_emulator.image_needs import image_needs
from colibri_emulator.toolchain import find_toolchain

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "emulator" / "colibri_emulator" / "code_sizes.json"
CODE = 256 << 10  # more than any takes
#: A board for each target; its cores get all features, for the largest kernel table.
BOARDS = {
    "cortex-m4": "pimoroni-pico-plus-2",
    "cortex-m7": "pimoroni-pico-plus-2",
    "cortex-m33": "pimoroni-pico-plus-2",
    "cortex-m55": "arm-mps3-an547",
    "aarch64": "qemu-virt-aarch64-2gb",
    "riscv64": "qemu-virt-riscv64v",
}
COMPILERS = ("gcc", "zig")
#: What the runner of firmware never has (`image_needs`).
NEVER = {"backends", "prefetch", "preference"}


def board_for(target: str) -> Board:
    """A board of a target that can also stream."""
    board = load_board(BOARDS[target])
    core = board.cores[0].model_copy(update={"features": list(get_args(Feature))})
    changes: dict[str, Any] = {
        "firmware": board.firmware.model_copy(update={"target": target}),
        "cores": [core, *board.cores[1:]],
        "storage": load_board("raspberry-pi-zero-2w").storage,
    }
    return board.model_copy(update=changes)


def count(board: Board, image: Path, compiler: str, parts: Collection[str]) -> int:
    """Bytes of code, constants and initial data with these parts."""
    with tempfile.TemporaryDirectory() as folder:
        made = build_firmware(
            board, image, Path(folder) / "b", toolchain=compiler, copy_model=False, code=CODE,  # type: ignore[arg-type]
            parts=parts, weights="streamed" if "streaming" in parts else "mapped",
        )  # fmt: skip
    return made.bytes["code"] + made.bytes["data"]


def bounds(target: str, image: Path, compiler: str) -> Bounds:
    """Of one target and compiler."""
    board, names = board_for(target), image_needs(image, ()).parts.keys()
    return {
        "least": count(board, image, compiler, set()),
        "all": count(board, image, compiler, names - NEVER),
    }


def parts(image: Path, compiler: str) -> dict[str, int]:
    """What each part alone adds to the least."""
    board, names = board_for(PARTS_TARGET), sorted(image_needs(image, ()).parts)
    least = count(board, image, compiler, set())
    return {
        name: 0 if name in NEVER else max(0, count(board, image, compiler, {name}) - least)
        for name in names
    }


def identity(compiler: str) -> str:
    """Name and version, without the target."""
    found = find_toolchain(PARTS_TARGET, compiler).identity()  # type: ignore[arg-type]
    return " ".join(found.split()[:2]).split("-")[-1]


def main(targets: list[str]) -> None:
    """Counts again and writes the table, target by target."""
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder) / "image"
        pack(ROOT / "models" / "demo-moe", image, quant="q4")
        if not targets:
            write({"parts": {name: parts(image, name) for name in COMPILERS}})
        for target in targets or BOARDS:
            found = {name: bounds(target, image, name) for name in COMPILERS}
            write({"targets": {**counted_sizes()["targets"], target: found}})
            print(target, found, flush=True)


def write(changes: dict[str, Any]) -> None:
    """The table with what was counted."""
    names = {name: identity(name) for name in COMPILERS}
    table = {**counted_sizes(), "compilers": names, **changes}
    temporary = TABLE.with_suffix(".new")
    temporary.write_text(json.dumps(table, indent=1) + "\n", "utf-8")
    temporary.replace(TABLE)
    counted_sizes.cache_clear()


if __name__ == "__main__":
    main(sys.argv[1:])
