# SPDX-License-Identifier: Apache-2.0
"""Code, stack and arena stay under their limits, and near what tests/limits.json records.

A figure that moves fails here until ``make sizes`` records it with a reason.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from colibri.boards import load_board
from colibri_emulator.toolchain import TARGETS
from needs import need
from runtime_sizes import (
    BOARD,
    PAGE,
    ROOT,
    Json,
    build,
    code_bytes,
    compiler,
    goldens,
    load,
    measure_arena,
    measure_code,
    measure_family,
    measure_stack,
    moved,
    page,
)

Packed = Callable[[str], Path]
LIMITS = load()
CODE, STACK, FAMILIES = LIMITS["code"], LIMITS["stack"], LIMITS["families"]
USUAL = ("qwen2_moe", "deepseek_v3", "granitemoehybrid", "gpt_oss")  # others take minutes
LONG = pytest.mark.long
OTHER_COMPILER_PERCENT = 15  # for a compiler that limits.json has no figures of


def need_compiler(toolchain: str) -> None:
    prefix = TARGETS[load_board(BOARD).firmware.target].gcc_prefix
    need("module:ziglang" if toolchain == "zig" else f"{prefix}gcc")


def hold(name: str, entry: Json, measured: int, limit: int, percent: float) -> None:
    """The two checks of every figure."""
    assert measured <= limit, f"{name}: {measured:,} bytes, limit {limit:,}"
    assert not moved(entry["bytes"], measured, percent), (
        f"{name}: {measured:,} bytes, recorded {entry['bytes']:,} ({entry['compiler']}, "
        f"{entry['date']}); record it with: make sizes REASON='...'"
    )


@pytest.mark.parametrize("toolchain", list(CODE["compilers"]))
def test_code_of_the_runtime(toolchain: str, demo_image: Packed) -> None:
    need_compiler(toolchain)
    entry = CODE["compilers"][toolchain]
    found = measure_code(demo_image("q4"), toolchain, CODE["groups"])
    same = compiler(toolchain) == entry["compiler"]
    percent = CODE["tolerance_percent"] if same else OTHER_COMPILER_PERCENT
    hold(f"{toolchain} code", entry, found["bytes"], CODE["limit"], percent)
    assert found["groups"].keys() == entry["groups"].keys()


@pytest.mark.parametrize("toolchain", list(CODE["compilers"]))
def test_code_is_counted_to_the_byte(toolchain: str, demo_image: Packed, tmp_path: Path) -> None:
    """Less optimisation is seen as more bytes; next to nothing is without an owner."""
    need_compiler(toolchain)
    small, small_unowned = code_bytes(
        build(demo_image("q4"), tmp_path / "a", toolchain, optimise="-Os")
    )
    fast, _ = code_bytes(build(demo_image("q4"), tmp_path / "b", toolchain, optimise="-O2"))
    assert small["matmul.c"] < fast["matmul.c"]
    assert small.total() < fast.total()
    assert small_unowned < small.total() // 100
    assert "runner.c" not in small
    assert "mem.c" not in small


def test_every_source_file_is_in_one_group() -> None:
    grouped = [file for files in CODE["groups"].values() for file in files.split()]
    runtime = ROOT / "sdk" / "c"
    sources = [
        path.stem for part in ("src", "kernels/ref") for path in (runtime / part).glob("*.c")
    ]
    assert sorted(grouped) == sorted(sources)


@pytest.mark.parametrize(
    "name", [name if name in USUAL else pytest.param(name, marks=LONG) for name in goldens()]
)
def test_code_of_a_family(name: str) -> None:
    """Firmware for a family carries its parts, and what they cost is recorded."""
    need_compiler("gcc")
    entry = FAMILIES["measured"][name]
    found = measure_family(name, CODE["groups"])
    same = compiler("gcc") == FAMILIES["compiler"]
    percent = FAMILIES["tolerance_percent"] if same else OTHER_COMPILER_PERCENT
    hold(name, {**FAMILIES, **entry}, found["bytes"], FAMILIES["limit"], percent)
    assert found["parts"] == entry["parts"]


def test_stack(demo_image: Packed) -> None:
    need("module:unicorn", "module:ziglang")
    found = measure_stack(demo_image("q4"))
    hold("stack", STACK, found["bytes"], STACK["limit"], STACK["tolerance_percent"])


@pytest.mark.parametrize(
    "row", LIMITS["arena"],
    ids=lambda row: "-".join(str(row[key]) for key in ("board", "image", "context", "kv")),
)  # fmt: skip
def test_arena(row: dict[str, Any], demo_image: Packed) -> None:
    """Exactly: a plan has no noise."""
    assert measure_arena(demo_image(row["image"]), row) == row["bytes"]


def test_page_shows_what_is_recorded() -> None:
    assert PAGE.read_text("utf-8") == page(LIMITS), "run: make sizes"
    assert sorted(FAMILIES["measured"]) == goldens()
    for entry in (*CODE["compilers"].values(), FAMILIES, STACK, *LIMITS["arena"]):
        assert entry["reason"]
        assert entry["date"]
    for entry in CODE["compilers"].values():
        assert entry["bytes"] == sum(entry["groups"].values()) <= CODE["limit"]
