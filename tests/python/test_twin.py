# SPDX-License-Identifier: Apache-2.0
"""The twin: exact memory, virtual time, and the whole of it on real boards."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from colibri import Engine, Image, plan
from colibri.boards import Board, list_boards, load_board
from colibri.generate import Request, generate
from colibri.sampling import Sampling
from colibri_emulator.clock import ATTEND, EXPERT, MATMUL, VECTOR, Clock, Placement, predict
from colibri_emulator.memory import PAGE, PAINT_MARGIN, GuardedRegion, Side
from colibri_emulator.report import RegionUse
from colibri_emulator.storage import Medium
from colibri_emulator.storage_time import READ, READ_WAIT
from colibri_emulator.twin import _guarded_regions, _memory_fault, arena_used, run_twin

SIDES: tuple[Side, ...] = ("end", "start")
EVENT = np.dtype(
    [("kind", "<u4"), ("layer", "<u4"), ("index", "<u4"), ("count", "<u4"),
     ("bytes", "<u8"), ("work", "<u8")]
)  # fmt: skip


def bytes_of(region: GuardedRegion) -> ctypes.Array[ctypes.c_ubyte]:
    return (ctypes.c_ubyte * region.size).from_address(region.base)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("size", [1, 64, PAGE - 1, PAGE, PAGE + 1, 100 * 1024 + 1, 520 * 1024])
def test_high_water_is_the_last_written_byte(size: int, side: Side) -> None:
    region = GuardedRegion("R", size, alignment=64, planned=size // 2, side=side)
    memory = bytes_of(region)
    assert region.base % 64 == 0
    assert region.high_water() == 0
    for offset in sorted({0, size // 3, size - 1}):
        memory[offset] ^= 0xFF
        assert region.high_water() == offset + 1
    assert region.overrun() is None


def test_a_2_gib_region_is_exact_and_stays_untouched() -> None:
    size = (2 << 30) - 64
    region = GuardedRegion("RAM", size, alignment=64, planned=1000, side="end")
    memory = bytes_of(region)
    for offset in (PAINT_MARGIN + 1000 - 1, PAINT_MARGIN + 1000, 1 << 30, size - 1):
        memory[offset] ^= 0xFF
        assert region.high_water() == offset + 1


@pytest.mark.parametrize("side", SIDES)
def test_canaries_tell_a_write_at_the_open_edge(side: Side) -> None:
    region = GuardedRegion("R", 100, alignment=64, planned=100, side=side)
    open_edge = region.base - 1 if side == "end" else region.base + region.size
    ctypes.c_ubyte.from_address(open_edge).value ^= 1
    found = region.overrun()
    assert found is not None
    assert found.first == found.last == open_edge - region.base


@pytest.mark.parametrize(("side", "offset"), [("end", PAGE), ("start", -1)])
def test_the_guard_page_stops_the_process(side: str, offset: int) -> None:
    """One byte past the guarded edge, in a process of its own."""
    code = f"""
        import ctypes
        from colibri_emulator.memory import GuardedRegion
        region = GuardedRegion("R", {PAGE}, alignment=64, planned=0, side={side!r})
        inside = {PAGE - 1 if offset > 0 else 0}
        ctypes.c_ubyte.from_address(region.base + inside).value = 1
        print("inside is fine", flush=True)
        ctypes.c_ubyte.from_address(region.base + {offset}).value = 1
        print("past the edge is not", flush=True)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False
    )
    assert done.stdout == "inside is fine\n"
    assert done.returncode == -11


# --- storage and clock --------------------------------------------------------------------------


def card() -> Medium:
    return Medium(load_board("raspberry-pi-5-2gb").storage[0])


def test_bandwidth_follows_the_curve() -> None:
    points = card().storage.curve
    (small, slow), (large, fast) = points[0], points[-1]
    assert card().bandwidth(small) == slow
    assert card().bandwidth(large) == fast
    assert card().bandwidth(16 * large) == fast
    assert card().bandwidth(small // 4) == slow / 4
    between = [card().bandwidth(1 << shift) for shift in range(12, 21)]
    assert between == sorted(between)
    assert slow < card().bandwidth(64 << 10) < fast


def test_reading_costs_blocks_and_bytes() -> None:
    medium = card()
    assert medium.seconds(0) == 0
    assert medium.seconds(1 << 20, 4096) > 5 * medium.seconds(1 << 20, 1 << 20)
    assert medium.seconds(2 << 20, 1 << 20) == pytest.approx(2 * medium.seconds(1 << 20, 1 << 20))


def events(*rows: tuple[int, int, int, int]) -> np.ndarray:
    """Events from (kind, index, bytes, work)."""
    return np.array([(kind, 0, index, 0, size, work) for kind, index, size, work in rows], EVENT)


def pico_clock(workers: int = 1) -> Clock:
    board = load_board("pimoroni-pico-plus-2")
    return Clock(board, Placement("FLASH", "SRAM", "SRAM"), workers=workers, medium=None)


def test_the_slower_of_moving_and_computing_sets_the_time() -> None:
    clock = pico_clock()
    moving = clock.charge(events((MATMUL, 17, 1_000_000, 1)))
    computing = clock.charge(events((MATMUL, 17, 1, 10_000_000)))
    assert moving.limit == "weights from FLASH"
    assert computing.limit == "compute on cortex-m33"
    # 8 bytes in 160 ns and 8 / 37.5 MB/s: 21.4 MB/s at the bus, four fifths of it likely.
    assert moving.seconds["mid"] == pytest.approx(1_000_000 / (21.43e6 * 0.8), rel=0.01)
    assert moving.seconds["fast"] < moving.seconds["mid"] < moving.seconds["slow"]


def test_more_workers_than_cores_do_not_help() -> None:
    work = events((MATMUL, 17, 1, 10_000_000))
    one, two, nine = (pico_clock(workers).charge(work).seconds["mid"] for workers in (1, 2, 9))
    assert two < one
    assert nine == two


def test_traffic_is_told_apart() -> None:
    charge = pico_clock().charge(
        events((MATMUL, 17, 5, 0), (MATMUL, 50, 7, 0), (EXPERT, 3, 11, 0), (ATTEND, 0, 13, 0),
               (VECTOR, 0, 17, 0))
    )  # fmt: skip
    assert charge.traffic == {"dense": 5, "shared": 7, "routed": 11, "kv": 13}


def test_intervals_widen_with_the_class_of_the_figure() -> None:
    board = load_board("raspberry-pi-5-2gb")
    figure = board.regions[0].perf.read_Bps
    assert figure is not None
    assert figure.cls == "measured"
    work = events((MATMUL, 17, 100_000_000, 1))

    def width(cls: str) -> float:
        perf = board.regions[0].perf.model_copy(
            update={"read_Bps": figure.model_copy(update={"cls": cls})}
        )
        region = board.regions[0].model_copy(update={"perf": perf})
        changed: Board = board.model_copy(update={"regions": [region]})
        name = region.name
        clock = Clock(changed, Placement(name, name, name), workers=1, medium=None)
        seconds = clock.charge(work).seconds
        return seconds["slow"] / seconds["fast"]

    assert width("measured") == pytest.approx(1.25 / 0.75, rel=0.01)
    assert width("measured") < width("declared") < width("theoretical")
    assert width("theoretical") == pytest.approx(1 / 0.15, rel=0.01)


def test_reads_are_charged_to_the_storage() -> None:
    board = load_board("raspberry-pi-5-2gb")
    name = board.regions[0].name
    clock = Clock(board, Placement(name, name, name), workers=1, medium=card())
    charge = clock.charge(events((READ, 0, 85_000_000, 0), (READ_WAIT, 0, 85_000_000, 0)))
    assert charge.limit == "waiting for SD"
    assert charge.seconds["mid"] > 1.0


def test_a_prediction_names_every_figure_it_rests_on() -> None:
    clock = pico_clock()
    prefill = clock.charge(events((MATMUL, 17, 1_000_000, 20_000_000)))
    decode = clock.charge(events((MATMUL, 17, 2_000_000, 1_000_000), (ATTEND, 0, 1000, 1000)))
    load = clock.charge_read(0)
    found = predict(clock, load=load, prefill=prefill, prompt=10, decode=decode, steps=2)
    assert found.decode_tok_s is not None
    for rate in (found.prefill_tok_s, found.decode_tok_s, found.first_token_s):
        assert rate.low < rate.mid < rate.high
    assert found.bytes_per_token == {"dense": 1_000_000, "shared": 0, "routed": 0, "kv": 500}
    assert found.limits == {
        "load": None, "prefill": "compute on cortex-m33", "decode": "weights from FLASH",
    }  # fmt: skip
    assert all(item.source and item.cls for item in found.inputs)
    assert {item.cls for item in found.inputs} >= {"assumed", "theoretical", "declared"}
    assert sum(found.decode_shares.values()) == pytest.approx(1, abs=1e-3)


# --- whole runs ---------------------------------------------------------------------------------

Packed = Callable[[str], Path]


@pytest.fixture(scope="module")
def image(demo_image: Packed) -> Image:
    return Image(demo_image("q4"))


def request_of(tokens: int, new: int) -> Request:
    return Request([(7 * i) % 4096 for i in range(tokens)], Sampling(), new, ignore_eos=True)


@pytest.mark.parametrize("name", list_boards())
def test_every_board_gives_the_same_bits_and_keeps_its_plan(image: Image, name: str) -> None:
    board, request = load_board(name), request_of(20, 4)
    made = plan(image, board, context=64, workers=2)
    host = generate(Engine(image, 64, kernels="ref"), request)
    for side in SIDES:
        report = run_twin(image, board, request, made, side=side)
        assert report.fault is None
        assert (report.tokens, report.logits_crc32) == (host.tokens, host.logits_crc32)
        assert report.high_water == made.total_bytes
        for use in report.regions:
            assert use.written is not None
            assert use.written <= use.high_water == use.used


def test_a_full_context_writes_the_plan_to_the_byte(image: Image) -> None:
    board = load_board("pimoroni-pico-plus-2")
    made = plan(image, board, context=64, kv="f16")
    reports = [run_twin(image, board, request_of(64, 1), made, side=side) for side in SIDES]
    for runs in zip(*(report.regions for report in reports), strict=True):
        # One byte in 256 equals its paint; the two sides are painted differently.
        assert max(use.written or 0 for use in runs) == runs[0].used


def shrunk(board: Board, name: str, size: int) -> Board:
    """The board with one region of another size and no PSRAM."""
    regions = [
        region.model_copy(update={"size": size}) if region.name == name else region
        for region in board.regions
        if region.name != "PSRAM"
    ]
    return board.model_copy(update={"regions": regions})


def test_the_smallest_board_that_fits_runs_and_one_line_less_does_not(image: Image) -> None:
    board, request = load_board("pimoroni-pico-plus-2"), request_of(64, 1)
    made = plan(image, board, context=64)
    fixed = made.region("SRAM").used - arena_used(made, "SRAM")
    enough = fixed + -(-arena_used(made, "SRAM") // 64) * 64  # regions are cut at 64 bytes
    just = shrunk(board, "SRAM", enough)
    report = run_twin(image, just, request, plan(image, just, context=64))
    assert report.fits
    assert report.fault is None
    less = shrunk(board, "SRAM", enough - 64)
    refused = run_twin(image, less, request, plan(image, less, context=64))
    assert not refused.fits
    assert refused.tokens == []
    short = refused.shortfall
    assert short is not None
    assert (short.region, short.buffer) == ("SRAM", "kv_cache")
    assert short.have + short.missing == short.need
    mended = shrunk(board, "SRAM", enough - 64 + -(-short.missing // 64) * 64)
    assert run_twin(image, mended, request, plan(image, mended, context=64)).fits
    assert 0 < short.max_context < 64
    assert plan(image, less, context=short.max_context).fits
    assert not plan(image, less, context=short.max_context + 1).fits


def test_an_image_larger_than_its_flash_says_how_much(image: Image) -> None:
    board = load_board("pimoroni-pico-plus-2")
    small = shrunk(board, "FLASH", 4 << 20)
    report = run_twin(image, small, request_of(1, 1), plan(image, small))
    assert report.shortfall is not None
    assert (report.shortfall.region, report.shortfall.buffer) == ("FLASH", "image")
    exact = shrunk(board, "FLASH", (4 << 20) + report.shortfall.missing)
    assert plan(image, exact, context=64).fits
    less = shrunk(board, "FLASH", (4 << 20) + report.shortfall.missing - 1)
    assert not plan(image, less, context=64).fits


def test_a_write_beyond_the_plan_is_a_fault(image: Image) -> None:
    """As a broken runtime would do it: the twin reads back, it does not believe."""
    board = load_board("pimoroni-pico-plus-2")
    made = plan(image, board, context=64)

    def spoil(offset: int) -> str | None:
        regions = _guarded_regions(made, "start")
        uses = [
            RegionUse(name=r.name, size=r.size, used=arena_used(made, r.name),
                      high_water=arena_used(made, r.name), written=r.high_water())
            for r in regions
        ]  # fmt: skip
        assert _memory_fault(regions, uses) is None
        ctypes.c_ubyte.from_address(regions[0].base + offset).value ^= 0xFF
        uses[0] = uses[0].model_copy(update={"written": regions[0].high_water()})
        return _memory_fault(regions, uses)

    planned = arena_used(made, "SRAM")
    assert spoil(planned - 1) is None
    assert spoil(planned) == f"wrote {planned + 1:,} bytes of SRAM, the plan says {planned:,}"


def test_prediction_of_a_run(image: Image) -> None:
    """Bytes a token are the image's: shared expert, routed experts, the rest, and the cache."""
    board = load_board("pimoroni-pico-plus-2")
    made = plan(image, board, context=64)
    found = run_twin(image, board, request_of(4, 5), made).predicted
    assert found is not None
    size = {
        kind: sum(t.bytes for t in image.tensors if t.name.startswith(kind) and not t.is_expert)
        for kind in ("shared_", "")
    }
    record = image.experts[0].bytes
    layers, chosen = image.config["layers"], image.config["top_k"]
    assert found.bytes_per_token["routed"] == pytest.approx(layers * chosen * record, rel=0.01)
    assert found.bytes_per_token["shared"] == pytest.approx(size["shared_"], rel=0.02)
    assert found.bytes_per_token["dense"] == pytest.approx(size[""] - size["shared_"], rel=0.05)
    assert found.load_s.high == 0  # the image lies in flash
    decode = found.decode_tok_s
    assert decode is not None
    assert decode.low < decode.mid < decode.high


def test_a_board_that_loads_its_image_waits_for_the_storage(image: Image) -> None:
    board = load_board("raspberry-pi-5-2gb")
    made = plan(image, board, context=64)
    found = run_twin(image, board, request_of(4, 2), made).predicted
    assert found is not None
    seconds = Medium(board.storage[0]).seconds(image.bytes)
    assert found.load_s.mid == pytest.approx(seconds / 0.8)  # the curve's weakest figure: declared
    assert found.first_token_s.mid > found.load_s.mid
    assert found.limits["load"] == "reading SD"


def test_a_board_without_storage_says_that_loading_is_left_out(image: Image) -> None:
    board = load_board("raspberry-pi-5-2gb").model_copy(update={"storage": []})
    report = run_twin(image, board, request_of(4, 2), plan(image, board, context=64))
    assert report.predicted is not None
    assert report.predicted.load_s.high == 0
    assert any("no storage" in note for note in report.notes)
