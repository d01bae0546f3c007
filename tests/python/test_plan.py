# SPDX-License-Identifier: Apache-2.0
"""`colibri.plan`: whole maps, exact numbers, and what would have to change."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import colibri
from colibri import _core
from colibri.engine import make_limits
from colibri.planner import Plan

PackedAs = Callable[[str], Path]
ARENA = {"kv_cache", "scores", "hidden", "router"}


@pytest.fixture(scope="module")
def image(demo_image: PackedAs) -> colibri.Image:
    return colibri.Image(demo_image("q4"))


def small_board(root: Path, folder: Path, psram: str) -> Path:
    """The Pico Plus 2 with another size of PSRAM."""
    text = (root / "board_configs/boards/pimoroni-pico-plus-2.toml").read_text()
    (folder / "rp2350.toml").write_text((root / "board_configs/socs/rp2350.toml").read_text())
    text = text.replace('size = "8 MiB"', f'size = "{psram}"')
    path = folder / "small.toml"
    path.write_text(text.replace('soc = "rp2350"', 'soc = "rp2350.toml"'))
    return path


def rows(plan: Plan) -> dict[str, str]:
    """Region of each buffer."""
    return {buffer.name: region.name for region in plan.regions for buffer in region.buffers}


@pytest.mark.parametrize("board_id", colibri.list_boards())
@pytest.mark.parametrize("kv", ["f32", "q8"])
def test_every_shipped_board_has_a_whole_map(image: colibri.Image, board_id: str, kv: str) -> None:
    board = colibri.load_board(board_id)
    plan = colibri.plan(image, board=board, context=128, kv=kv)
    assert plan.fits, plan.advice
    assert [region.name for region in plan.regions] == [region.name for region in board.regions]
    assert rows(plan).keys() >= ARENA | {"image"}
    assert ("os" if board.os == "linux" else "firmware") in rows(plan)
    engine_bytes = 0
    for region in plan.regions:
        end = 0
        for buffer in region.buffers:
            assert buffer.offset >= end, f"{buffer.name} overlaps in {region.name}"
            assert buffer.why
            end = buffer.offset + buffer.bytes
            if buffer.name not in ("os", "image", "firmware", "reserved", "logits"):
                engine_bytes += buffer.bytes
                assert (board.region(region.name).base + buffer.offset) % plan.alignment == 0
                assert board.region(region.name).writable
        assert end <= region.size
        assert region.used == sum(buffer.bytes for buffer in region.buffers) <= region.size
    assert engine_bytes == plan.total_bytes
    assert plan.alignment == (16 if board.firmware.profile == "small" else 64)


def test_the_engine_takes_exactly_the_plan(image: colibri.Image) -> None:
    plan = colibri.plan(image, board="ti-sk-am62", context=128, batch=4, workers=2, kv="f16")
    engine = colibri.Engine(image, context=128, batch=4, workers=2, kv="f16")
    assert engine.high_water() == plan.total_bytes


def test_sram_holds_the_f16_cache_of_128_tokens(image: colibri.Image) -> None:
    plan = colibri.plan(image, board="pimoroni-pico-plus-2", context=128, kv="f16")
    where = rows(plan)
    assert where["kv_cache"] == "SRAM"
    assert where["image"] == "FLASH"
    (cache,) = [b for b in plan.region("SRAM").buffers if b.name == "kv_cache"]
    assert cache.bytes == 192 * 1024


def test_the_longest_context_is_the_longest(
    root: Path, image: colibri.Image, tmp_path: Path
) -> None:
    board = small_board(root, tmp_path, "64 KiB")
    plan = colibri.plan(image, board=board, context=1024)
    assert not plan.fits
    assert 0 < plan.max_context < 1024
    longest = colibri.plan(image, board=board, context=plan.max_context)
    assert longest.fits
    assert longest.max_context == plan.max_context
    assert not colibri.plan(image, board=board, context=plan.max_context + 1).fits


def test_advice_is_true(root: Path, image: colibri.Image, tmp_path: Path) -> None:
    """Each line that says something fits is tried."""
    board = small_board(root, tmp_path, "64 KiB")
    plan = colibri.plan(image, board=board, context=260, batch=64)
    assert not plan.fits
    assert re.match(r"SRAM has [\d,]+ bytes for the engine, [\d,]+ would do", plan.advice[0])
    assert {buffer.name for buffer in plan.unplaced} >= ARENA
    tried = 0
    for line in plan.advice[1:]:
        options = dict(re.findall(r"--(\w+) (\w+)", line))
        limits = {"context": 260, "batch": 64, "kv": "f32", **options}
        changed = colibri.plan(
            image, board=board, context=int(limits["context"]), batch=int(limits["batch"]),
            kv=str(limits["kv"]),
        )  # fmt: skip
        assert changed.fits, line
        tried += 1
    assert tried >= 3
    with pytest.raises(colibri.DoesNotFitError, match="--context"):
        plan.require()


def test_missing_bytes_would_do(root: Path, image: colibri.Image, tmp_path: Path) -> None:
    """The region grown to what the plan asks for is enough, and so is what init says."""
    board = colibri.load_board(small_board(root, tmp_path, "64 KiB"))
    plan = colibri.plan(image, board=board, context=512)
    found = re.search(r"([\d,]+) would do", plan.advice[0])
    assert found is not None
    need = int(found[1].replace(",", ""))
    regions = [
        (r.name, r.address, need if r.name == "SRAM" else r.size, r.rank)
        for r in plan.memory.regions
    ]
    limits = make_limits(context=512, profile="small")
    assert _core.plan(image.core, limits, regions)["shortage"] is None
    alone = [("SRAM", 0, plan.total_bytes, 0)]
    assert _core.plan(image.core, limits, alone)["shortage"] is None
    short = _core.plan(image.core, limits, [("SRAM", 0, plan.total_bytes - 8, 0)])["shortage"]
    assert short == (0, plan.total_bytes - 8, plan.total_bytes)


def test_an_image_larger_than_its_region(demo_image: PackedAs) -> None:
    plan = colibri.plan(demo_image("f32"), board="pimoroni-pico-plus-2", context=32)
    assert not plan.fits
    assert plan.max_context == 0
    assert "FLASH" in plan.advice[0]
    assert "--quant q4" in plan.advice[1]
    assert plan.region("FLASH").used > plan.region("FLASH").size


def test_an_image_larger_than_the_dram(root: Path, demo_image: PackedAs, tmp_path: Path) -> None:
    text = (root / "board_configs/boards/raspberry-pi-zero-2w.toml").read_text()
    (tmp_path / "rp3a0.toml").write_text((root / "board_configs/socs/rp3a0.toml").read_text())
    path = tmp_path / "tiny.toml"
    text = text.replace('soc = "rp3a0"', 'soc = "rp3a0.toml"')
    path.write_text(re.sub(r'os_reserve_bytes = "\d+ MiB"', 'os_reserve_bytes = "500 MiB"', text))
    plan = colibri.plan(demo_image("f32"), board=path)
    assert not plan.fits
    assert "image" in plan.advice[0]


def test_json_has_schema_first(image: colibri.Image) -> None:
    made = colibri.plan(image, board="pimoroni-pico-plus-2", context=128).to_json()
    again = json.loads(json.dumps(made))
    assert again == made
    assert list(made)[:5] == ["schema", "fits", "total_bytes", "max_context", "regions"]
    region = made["regions"][0]
    assert list(region)[:4] == ["name", "size", "used", "buffers"]
    assert list(region["buffers"][0])[:3] == ["name", "offset", "bytes"]


def test_bad_limits_and_boards(image: colibri.Image) -> None:
    with pytest.raises(colibri.PlanError, match="at most 1024"):
        colibri.plan(image, board="pimoroni-pico-plus-2", context=2000)
    with pytest.raises(colibri.PlanError, match="f32, f16, q8"):
        colibri.plan(image, board="pimoroni-pico-plus-2", kv="f64")
    with pytest.raises(colibri.BoardError, match="pimoroni-pico-plus-2"):
        colibri.plan(image, board="pimoroni-pico")
