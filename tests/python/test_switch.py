# SPDX-License-Identifier: Apache-2.0
"""Several images in one memory: one after the other, and side by side."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import checkpoints as ck
from colibri import (
    Arena,
    DoesNotFitError,
    Engine,
    EngineError,
    Image,
    MemoryRegion,
    PlanError,
    _core,
    plan,
    plan_together,
)
from colibri.pack import pack
from native import SANITIZERS, program

BOARD = "pimoroni-pico-plus-2"
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]
FAMILIES = ("qwen2_moe", "jamba", "deepseek_v3")  # KV cache, states, latent attention
MAPPED, LOADED, STREAMED, STREAMED_MAPPED = (
    _core.WEIGHTS[name] for name in ("mapped", "loaded", "streamed", "streamed-mapped")
)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[Image]:
    folder = tmp_path_factory.mktemp("switch")
    for family, quant in zip(FAMILIES, ("q4", "q8", "f16"), strict=True):
        pack(ck.GOLDEN / family, folder / f"{family}.colibri", quant=quant)
    return [Image(folder / f"{family}.colibri") for family in FAMILIES]


def alone(image: Image, **options: Any) -> np.ndarray:
    return Engine(image, context=24, **options).infer(TOKENS, all_logits=True)


# In C: exact bytes, painted memory, no allocation (tests/c/switch.c)


@pytest.mark.parametrize(
    ("weights", "slots"), [(MAPPED, 0), (LOADED, 0), (STREAMED, 0), (STREAMED, 5)]
)
def test_two_images_in_c(images: list[Image], weights: int, slots: int) -> None:
    paths = [image.path for image in images[:2]]
    out = program("switch", *paths, weights, slots).split()
    assert out.count("shared") >= 2  # a pair in the better order, and one image twice
    assert program("switch", *paths, weights, slots, sanitize=SANITIZERS).split() == out


# One after the other


@pytest.mark.parametrize("weights", ["mapped", "loaded", "streamed", "streamed-mapped"])
def test_images_take_turns(images: list[Image], weights: str) -> None:
    """A, B, C, A ...: tokens and bits of fresh engines, in one memory, without a copy of A."""
    slots = 5 if weights.startswith("streamed") else None
    options: dict[str, Any] = {"weights": weights, "expert_slots": slots}
    fresh = [alone(image, **options) for image in images]
    sizes = [Engine(i, context=24, **options).high_water() for i in images]
    arena = Arena(max(sizes))
    for turn in range(5):
        arena.clear()
        engine = Engine(images[turn % 3], context=24, memory=arena, **options)
        assert engine.core.regions[0][1] == arena.regions[0].address
        assert np.array_equal(engine.infer(TOKENS, all_logits=True), fresh[turn % 3])
        assert arena.used == engine.high_water() == sizes[turn % 3]


def test_an_engine_whose_memory_is_gone_says_so(images: list[Image]) -> None:
    arena = Arena(1 << 22)
    gone = Engine(images[0], context=24, memory=arena)
    gone.infer(TOKENS)
    arena.clear()
    for call in (lambda: gone.infer([1]), gone.reset, gone.selftest, lambda: gone.experts):
        with pytest.raises(EngineError, match="memory has been given to another"):
            call()
    assert gone.length() == 0


def test_an_older_handle_in_the_same_region_is_refused(images: list[Image]) -> None:
    """The runtime's own check: nobody has told the older engine."""
    memory = np.zeros((1 << 22) + 64, np.uint8)
    region = MemoryRegion("m", memory.ctypes.data + -memory.ctypes.data % 64, 1 << 22)
    older = Engine(images[0], context=24, memory=[region])
    newer = Engine(images[1], context=24, memory=[region])
    with pytest.raises(EngineError, match="memory has been given to another"):
        older.infer([1])
    with pytest.raises(DoesNotFitError):
        Engine(images[0], context=24, memory=[region._replace(size=64)])
    assert np.array_equal(newer.infer(TOKENS, all_logits=True), alone(images[1]))


# Side by side


@pytest.mark.parametrize("weights", ["mapped", "loaded", "streamed"])
def test_sequences_go_on_while_another_image_runs(images: list[Image], weights: str) -> None:
    """Token by token in turn, and what they share is overwritten in between."""
    slots = 5 if weights == "streamed" else None
    options: dict[str, Any] = {"weights": weights, "expert_slots": slots}
    fresh = [alone(image, **options) for image in images]
    arena = Arena(1 << 22)
    engines = [Engine(i, context=24, memory=arena, **options) for i in images]
    taken = arena.used
    for step, token in enumerate(TOKENS):
        for engine, rows in zip(engines, fresh, strict=True):
            assert np.array_equal(engine.infer([token]), rows[step])
    assert [engine.length() for engine in engines] == [len(TOKENS)] * 3
    assert arena.used == taken < sum(engine.high_water(r) for engine in engines for r in range(4))
    again = Engine(images[1], context=24, memory=arena, **options)  # a fourth, of the same image
    assert np.array_equal(again.infer(TOKENS, all_logits=True), fresh[1])


def test_an_arena_of_just_enough_bytes(images: list[Image]) -> None:
    roomy = Arena(1 << 22)
    big, small = (images[1], images[0])  # the calls of the first use more
    for image in (big, small):
        Engine(image, context=24, memory=roomy)
    exact = Arena(roomy.used)
    engines = [Engine(image, context=24, memory=exact) for image in (big, small)]
    assert exact.used == exact.size
    assert np.array_equal(engines[1].infer(TOKENS, all_logits=True), alone(small))
    less = Arena(roomy.used - 1)
    Engine(big, context=24, memory=less)
    with pytest.raises(DoesNotFitError, match=f"make it {roomy.used:,} bytes"):
        Engine(small, context=24, memory=less)
    assert less.left[-1].size == less.size - Engine(big, context=24).high_water()
    with pytest.raises(DoesNotFitError, match="give it"):
        Engine(big, context=24, memory=Arena(100))
    with pytest.raises(PlanError, match="an arena of -1 bytes"):
        Arena(-1)


def test_calls_from_several_threads_take_turns(images: list[Image]) -> None:
    fresh = [alone(image) for image in images]
    arena = Arena(1 << 22)
    engines = [Engine(image, context=24, memory=arena) for image in images]
    wrong: list[int] = []

    def run(index: int) -> None:
        for _ in range(20):
            engines[index].reset()
            if not np.array_equal(engines[index].infer(TOKENS, all_logits=True), fresh[index]):
                wrong.append(index)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_random_regions_side_by_side(images: list[Image]) -> None:
    """In any memories: what is kept never overlaps, sharing is with what is shared alone."""
    rng = np.random.default_rng(8)
    placed = 0
    for _ in range(300):
        limits = _core.Limits(
            context=int(rng.integers(1, 24)), batch=int(rng.integers(1, 12)),
            workers=int(rng.integers(1, 4)), profile=int(rng.integers(1, 3)),
        )  # fmt: skip
        base, regions = 1 << 20, []
        for i in range(int(rng.integers(1, 4))):
            size = int(2 ** rng.uniform(8, 19))
            regions.append((f"r{i}", base, size, int(rng.integers(0, 3)), 0))
            base += 1 << 20
        kept: list[tuple[int, int]] = []
        lent: list[tuple[int, int]] = []
        for image in images:
            result = _core.plan(image.core, limits, regions)
            if result["shortage"] is not None:
                where, have, need = result["shortage"]
                assert regions[where][4] == 0
                assert have == regions[where][2] < need
                name, start, _, rank, use = regions[where]
                larger = [*regions]
                larger[where] = (name, start, need, rank, use)
                assert _core.plan(image.core, limits, larger)["shortage"] is None
                break
            try:
                left = _core.plan_beside(image.core, limits, regions)
            except EngineError as error:
                assert "at most 8" in str(error)  # noqa: PT017
                break
            assert _core.plan_beside(image.core, limits, regions) == left
            now_lent = [(at, at + size) for _, at, size, _, use in left if use]
            for kind, region, offset, size, _ in result["buffers"]:
                start = regions[region][1] + offset
                assert start % result["alignment"] == 0
                assert start + size <= regions[region][1] + regions[region][2]
                work = any(a <= start and start + size <= b for a, b in now_lent)
                assert not any(start < b and a < start + size for a, b in kept)
                assert work != _core.buffer_keeps(kind)
                if not work:
                    assert not any(start < b and a < start + size for a, b in lent + now_lent)
                    kept.append((start, start + size))
            lent, regions = now_lent, left
            placed += 1
    assert 300 < placed < 900


# On a board


def test_plan_together(images: list[Image]) -> None:
    made = plan_together(images, BOARD, context=24).require()
    assert made.images[0].image == "deepseek_v3"  # its calls use most
    each = {Path(image.name).stem: plan(image, BOARD, context=24).total_bytes for image in images}
    assert {part.image: part.bytes for part in made.images} == each
    assert made.total_bytes + made.saved_bytes == sum(each.values())
    assert made.saved_bytes == sum(part.shared_bytes for part in made.images[1:])
    rows = [(region, row) for region in made.regions for row in region.buffers]
    held = [(r.name, row.offset, row.bytes) for r, row in rows if not row.shared]
    for name, start, size in held:
        meets = [h for h in held if h[0] == name and h[1] < start + size and start < h[1] + h[2]]
        assert meets == [(name, start, size)]
    assert {row.image for _, row in rows if row.name == "image"} == set(each)
    for region in made.regions:
        assert region.used <= region.size

    # the engines take what the plan says
    arena = Arena(1 << 20)
    by_name = {Path(image.name).stem: image for image in images}
    for part in made.images:
        Engine(by_name[part.image], context=24, profile="small", memory=arena)
    assert arena.used == made.total_bytes


def test_plan_together_says_what_is_missing(images: list[Image]) -> None:
    fits = plan_together(images[:2], BOARD, context=24)
    cut = plan_together(images[:2], BOARD, context=24, memory=fits.total_bytes - 16)
    assert not cut.fits
    assert cut.advice[0].startswith("SRAM has ")
    assert "left for qwen2_moe" in cut.advice[0]
    assert "(16 more)" in cut.advice[0]
    assert plan_together(images[:2], BOARD, context=24, memory=fits.total_bytes).fits
    with pytest.raises(DoesNotFitError, match="left for qwen2_moe"):
        cut.require()
    linux = "raspberry-pi-zero-2w"
    with pytest.raises(PlanError, match="--expert-slots"):
        plan_together(images[:2], linux, streamed=True)
    slots = plan_together(images[:2], linux, streamed=True, expert_slots=4)
    assert [part.experts and part.experts["slots"] for part in slots.images] == [4, 4]
    with pytest.raises(PlanError, match="no images"):
        plan_together([], BOARD)
    with pytest.raises(PlanError, match="no system"):
        plan_together(images[:2], BOARD, streamed=True)
    huge = plan_together(images[:2], linux, pages="huge")
    held = [row.bytes for region in huge.regions for row in region.buffers if row.name == "image"]
    assert held == [2 << 20, 2 << 20]


def test_the_command(images: list[Image], capsys: pytest.CaptureFixture[str]) -> None:
    from colibri import cli

    words = ["plan", *(str(image.path) for image in images), "--board", BOARD, "--context", "24"]
    assert cli.main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["fits"]
    assert [part["image"] for part in found["images"]] == ["deepseek_v3", "jamba", "qwen2_moe"]
    assert cli.main(words) == 0
    out = capsys.readouterr().out
    assert f"{found['total_bytes']:,} bytes for the engines" in out
    assert out.count("used during a call") >= 3
    code = cli.main(["plan", *words[1:3], *words[4:], "--context", "8", "--memory", "64KiB"])
    assert code == 2  # streamed, on a board without files
    few = ["--memory", "16KiB", "--expert-slots", "4", "--board", "raspberry-pi-zero-2w"]
    assert cli.main(["plan", *words[1:3], *few]) == 1
    assert "does not fit" in capsys.readouterr().out
