# SPDX-License-Identifier: Apache-2.0
"""Exact memory: one byte less fails with the number that works, and that number works."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import checkpoints as ck
from colibri import DoesNotFitError, Engine, Image, MemoryRegion, _core
from colibri.pack import pack
from native import SANITIZERS, program

F32, F16, Q8 = (_core.TYPES[name] for name in ("f32", "f16", "q8"))
SMALL, WIDE = _core.PROFILES["small"], _core.PROFILES["wide"]
MAPPED, LOADED = _core.WEIGHTS["mapped"], _core.WEIGHTS["loaded"]
STREAMED = _core.WEIGHTS["streamed"]
Regions = list[tuple[str, int, int, int]]


@pytest.fixture(scope="module")
def image(demo_image: Callable[[str], Path]) -> Image:
    return Image(demo_image("q4"))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Image:
    path = tmp_path_factory.mktemp("arena") / "small.colibri"
    source = ck.write(path.parent / "in", mlp_only_layers=[0], num_hidden_layers=3)
    pack(source, path, quant="q4")
    return Image(path)


# Every size below the plan (tests/c/arena.c)


@pytest.mark.parametrize(
    ("context", "batch", "kv", "profile", "weights", "slots"),
    [(128, 16, F32, WIDE, MAPPED, 0), (128, 16, F16, SMALL, MAPPED, 0),
     (40, 1, Q8, SMALL, MAPPED, 0), (16, 7, F32, SMALL, LOADED, 0),
     (1, 1, F32, WIDE, MAPPED, 0), (16, 7, F16, SMALL, STREAMED, 2),
     (24, 16, F32, WIDE, STREAMED, 31)],
)  # fmt: skip
def test_every_size_below_the_plan_is_refused(
    image: Image, context: int, batch: int, kv: int, profile: int, weights: int, slots: int
) -> None:
    out = program("arena", image.path, context, batch, kv, profile, weights, slots).split()
    limits = _core.Limits(
        context=context, batch=batch, kv=kv, profile=profile, weights=weights, expert_slots=slots
    )
    total = _core.plan(image.core, limits, [("m", 0, 2**62, 0)])["total_bytes"]
    assert int(out[3]) == total
    assert int(out[1]) == -(-total // 8)
    assert len(set(out[5:])) == 1
    assert len(out[5:]) == 2 * len(_core.kernels())


@pytest.mark.parametrize("kv", [F32, F16, Q8])
@pytest.mark.parametrize("profile", [SMALL, WIDE])
def test_no_table_leaves_its_buffers(small: Image, kv: int, profile: int) -> None:
    """The same under AddressSanitizer, in a model with dense layers."""
    program("arena", small.path, 0, 5, kv, profile, MAPPED, 0, sanitize=SANITIZERS)
    program("arena", small.path, 0, 5, kv, profile, STREAMED, 3, sanitize=SANITIZERS)


def test_quantised_nothing_needs_no_codes(tmp_path: Path) -> None:
    path = tmp_path / "f32.colibri"
    pack(ck.write(tmp_path / "in"), path, quant="f32")
    plan = _core.plan(Image(path).core, _core.Limits(context=8), [("m", 0, 2**40, 0)])
    names = {_core.buffer_name(row[0]) for row in plan["buffers"]}
    assert "codes" not in names
    program("arena", path, 8, 3, F32, WIDE, MAPPED, 0, sanitize=SANITIZERS)


# Several regions


def random_case(rng: np.random.Generator) -> tuple[_core.Limits, Regions]:
    limits = _core.Limits(
        sequences=int(rng.integers(1, 4)), context=int(rng.integers(1, 64)),
        batch=int(rng.integers(1, 40)), workers=int(rng.integers(1, 9)),
        kv=int(rng.choice([F32, F16, Q8])), profile=int(rng.choice([SMALL, WIDE])),
    )  # fmt: skip
    count = int(rng.integers(1, 9))
    sizes = (2 ** rng.uniform(4, 19, count)).astype(int) + rng.integers(0, 9, count)
    ranks = rng.integers(0, 4, count)
    return limits, [(f"r{i}", 0, int(sizes[i]), int(ranks[i])) for i in range(count)]


def check_placement(plan: Any, regions: Regions) -> None:
    """Aligned, inside, apart, and adding up."""
    ends: dict[int, list[tuple[int, int]]] = {}
    for _, region, offset, size, _ in plan["buffers"]:
        assert offset % plan["alignment"] == size % plan["alignment"] == 0
        assert offset + size <= plan["used"][region] <= regions[region][2]
        ends.setdefault(region, []).append((offset, offset + size))
    for spans in ends.values():
        spans.sort()
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
    for region, used in enumerate(plan["used"]):
        assert used == sum(e - s for s, e in ends.get(region, []))
    assert plan["total_bytes"] == sum(plan["used"])


def test_random_regions(small: Image) -> None:
    """All buffers have a place, or the region that is named works at the size that is named."""
    rng = np.random.default_rng(2)
    short = 0
    for _ in range(1500):
        limits, regions = random_case(rng)
        plan = _core.plan(small.core, limits, regions)
        again = _core.plan(small.core, limits, regions)
        assert {**plan, "limits": 0} == {**again, "limits": 0}
        if plan["shortage"] is not None:
            short += 1
            where, have, need = plan["shortage"]
            assert have == regions[where][2] < need
            assert plan["used"] == [0] * len(regions)
            total = plan["total_bytes"]
            regions[where] = (regions[where][0], 0, need, regions[where][3])
            plan = _core.plan(small.core, limits, regions)
            assert plan["shortage"] is None, (where, have, need)
            assert plan["total_bytes"] == total
        check_placement(plan, regions)
    assert 200 < short < 1400


def test_names_and_addresses_do_not_matter(small: Image) -> None:
    rng = np.random.default_rng(3)
    for _ in range(100):
        limits, regions = random_case(rng)
        other = [(f"other{i}", 64 * i, size, rank) for i, (_, _, size, rank) in enumerate(regions)]
        a, b = (_core.plan(small.core, limits, r) for r in (regions, other))
        assert {**a, "limits": 0} == {**b, "limits": 0}


def test_engines_run_in_several_regions(small: Image) -> None:
    """High water equals the plan in each, bytes after it stay, the bits stay the same."""
    rng = np.random.default_rng(4)
    tokens = np.arange(20) % small.vocabulary
    expected, ran = None, 0
    for _ in range(60):
        count = int(rng.integers(1, 6))
        sizes = [int(s) for s in 2 ** rng.uniform(9, 18, count)]
        ranks = [int(r) for r in rng.integers(0, 3, count)]
        memory = [np.full(size + 128, 0xC5, np.uint8) for size in sizes]
        starts = [-m.ctypes.data % 64 for m in memory]
        bases = [m.ctypes.data + start for m, start in zip(memory, starts, strict=True)]
        regions = list(map(MemoryRegion, "abcdef"[:count], bases, sizes, ranks))
        try:
            engine = Engine(small, context=24, batch=6, workers=2, memory=regions)
        except DoesNotFitError:
            continue
        ran += 1
        plan = _core.plan(small.core, engine.core.limits, regions)
        logits = engine.infer(tokens, all_logits=True)
        expected = logits if expected is None else expected
        assert np.array_equal(logits, expected)
        for i, (m, start) in enumerate(zip(memory, starts, strict=True)):
            used = engine.high_water(i)
            assert used == plan["used"][i]
            assert (m[:start] == 0xC5).all()
            assert (m[start + used :] == 0xC5).all()
        assert engine.high_water(len(regions)) == 0
    assert ran > 20


def test_busy_buffers_lie_in_fast_memory(image: Image) -> None:
    limits = _core.Limits(context=512, kv=F16)
    plan = _core.plan(image.core, limits, [("slow", 0, 2**22, 1), ("fast", 0, 2**17, 0)])
    by_region: dict[int, list[float]] = {0: [], 1: []}
    for _, region, _, size, touched in plan["buffers"]:
        by_region[region].append(touched / size)
    names = {_core.buffer_name(b[0]): b[1] for b in plan["buffers"]}
    assert names["kv_cache"] == 0
    assert names["scores"] == names["hidden"] == 1
    assert max(by_region[0]) <= max(by_region[1])


# The longest context


def test_longest_context_fits_and_one_more_does_not(image: Image, small: Image) -> None:
    rng = np.random.default_rng(5)
    seen = set()
    for _ in range(150):
        which = image if rng.random() < 0.3 else small
        _, regions = random_case(rng)
        limits = _core.Limits(kv=int(rng.choice([F32, F16, Q8])), batch=int(rng.integers(1, 9)))
        longest = _core.plan_max_context(which.core, limits, regions)
        seen.add(longest)
        for context, fits in ((longest, True), (longest + 1, False)):
            if 1 <= context <= which.context:
                tried = _core.Limits(context=context, kv=limits.kv, batch=limits.batch)
                assert (_core.plan(which.core, tried, regions)["shortage"] is None) == fits
    assert {0, small.context} < seen


def test_longest_context_in_one_region_is_exact(small: Image) -> None:
    for context in range(1, small.context):
        plan = _core.plan(small.core, _core.Limits(context=context), [("m", 0, 2**40, 0)])
        size = plan["total_bytes"]
        enough, less = [("m", 0, size, 0)], [("m", 0, size - 1, 0)]
        assert _core.plan_max_context(small.core, _core.Limits(), enough) >= context
        assert _core.plan_max_context(small.core, _core.Limits(), less) < context


def test_kv_types_take_what_they_say(image: Image) -> None:
    sizes = {}
    for name, kv in (("f32", F32), ("f16", F16), ("q8", Q8)):
        plan = _core.plan(image.core, _core.Limits(context=128, kv=kv), [("m", 0, 2**40, 0)])
        sizes[name] = next(b[3] for b in plan["buffers"] if _core.buffer_name(b[0]) == "kv_cache")
    assert sizes == {"f32": 384 * 1024, "f16": 192 * 1024, "q8": 2 * 6 * 2 * 128 * (32 + 4)}
