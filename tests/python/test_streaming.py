# SPDX-License-Identifier: Apache-2.0
"""Experts streamed from storage: the same bits in any number of slots, exact memory and reads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from colibri import DoesNotFitError, Engine, Image, ImageError, PlanError, _core, cli, plan
from colibri.boards import load_board
from colibri.engine import POLICIES
from colibri.pack import pack
from colibri.placement import LayoutName, Placement
from native import SANITIZERS, program
from needs import need

GOLDEN = Path(__file__).parents[1] / "golden"
FAMILIES = (
    "mixtral",
    "deepseek_v3",
    "gpt_oss",
    "granitemoehybrid",
    "longcat_flash",
    "llama4_text",
    "jetmoe",
)
EXPERT, READ, GLOBAL = _core.EVENTS["expert"], _core.EVENTS["read"], _core.GLOBAL_LAYER
BEST = 9  # no kernel table of tests/c has a higher number
STREAMED, SMALL = _core.WEIGHTS["streamed"], _core.PROFILES["small"]


@pytest.fixture(scope="module")
def demo(demo_image: Callable[[str], Path]) -> Image:
    return Image(demo_image("q4"))


def packed(folder: Path, family: str, quant: str = "q4") -> Image:
    path = folder / f"{family}-{quant}.colibri"
    pack(GOLDEN / family, path, quant=quant)
    return Image(path)


def least(image: Image) -> int:
    """Slots that a token of one layer needs."""
    config = image.config
    return int(min(config["top_k"], config["experts"] - config["identities"]))


def run(engine: Engine, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
    """A prompt of two thirds, then token by token."""
    cut = len(tokens) * 2 // 3
    rows = [engine.infer(tokens[:cut], all_logits=True)]
    return np.concatenate([*rows, *(engine.infer([token])[None] for token in tokens[cut:])])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("quant", ["f32", "q4"])
def test_bits_do_not_depend_on_the_slots(tmp_path: Path, family: str, quant: str) -> None:
    image = packed(tmp_path, family, quant)
    tokens = np.arange(24) * 7919 % image.vocabulary
    expected = run(Engine(image, context=24), tokens)
    fewest, all_of_them = least(image), len(image.experts)
    middle = (fewest + all_of_them) // 2
    for slots, policy in product((fewest, fewest + 1, middle, all_of_them), POLICIES):
        streamed = Engine(image, 24, weights="streamed", expert_slots=slots, policy=policy)
        assert np.array_equal(run(streamed, tokens), expected), (slots, policy)
    for batch, workers, kernels in product((1, 7), (1, 3), ("ref", "auto")):
        streamed = Engine(
            image, 24, workers, batch, kernels=kernels, weights="streamed", expert_slots=fewest
        )
        assert np.array_equal(run(streamed, tokens), expected), (batch, workers, kernels)


def test_dense_parts_may_stay_where_they_are_mapped(demo: Image) -> None:
    tokens = np.arange(30) * 7919 % demo.vocabulary
    expected = run(Engine(demo, context=32), tokens)
    engines = {
        weights: Engine(demo, 32, weights=weights, expert_slots=20)
        for weights in ("streamed", "streamed-mapped")
    }
    for engine in engines.values():
        assert np.array_equal(run(engine, tokens), expected)
    dense = next(s.bytes for s in demo.sections if s.name == "weights")
    mapped, loaded = (engines[w].high_water() for w in ("streamed-mapped", "streamed"))
    assert loaded - mapped == -(-dense // 64) * 64


def test_a_storage_that_cannot_map(demo: Image) -> None:
    """Everything is read, and only what streaming asks for."""
    assert demo.path is not None
    image = Image(demo.path, map=False)
    tokens = np.arange(12)
    streamed = Engine(image, 16, weights="streamed", expert_slots=9)
    assert np.array_equal(streamed.infer(tokens), Engine(demo, 16).infer(tokens))
    with pytest.raises(ImageError, match=r"storage does not map; load them.*'streamed'"):
        Engine(image, 16, weights="streamed-mapped")


# What is read


@pytest.mark.parametrize("slots", [2, 12, 40, 96])
def test_every_read_is_a_miss_and_every_miss_a_record(demo: Image, slots: int) -> None:
    engine = Engine(demo, 64, weights="streamed", expert_slots=slots, trace=True)
    loading = engine.take_trace()
    dense = next(s.bytes for s in demo.sections if s.name == "weights")
    assert [(int(e["layer"]), int(e["bytes"])) for e in loading] == [(GLOBAL, dense)]
    run(engine, np.arange(60) * 7919 % demo.vocabulary)
    trace, stats = engine.take_trace(), engine.experts
    reads = trace[trace["kind"] == READ]
    assert not (reads["layer"] == GLOBAL).any()  # the dense part is never read again
    assert (reads["count"] == 1).all()
    assert stats.misses == len(reads)
    assert stats.hits + stats.misses == (trace["kind"] == EXPERT).sum()
    each = demo.config["experts"]
    sizes = [demo.experts[layer * each + x].bytes for layer, x in reads[["layer", "index"]]]
    assert list(reads["bytes"]) == sizes
    assert stats.bytes_read == sum(sizes)
    assert stats.retries == 0


def test_each_expert_is_read_once_when_all_fit(demo: Image) -> None:
    engine = Engine(demo, 64, weights="streamed", trace=True)
    assert engine.experts.slots == len(demo.experts)
    engine.take_trace()
    run(engine, np.arange(60) * 7919 % demo.vocabulary)
    trace = engine.take_trace()
    reads = trace[trace["kind"] == READ]
    assert len(np.unique(reads[["layer", "index"]])) == len(reads) == engine.experts.misses


def test_shared_slots_keep_what_comes_next(demo: Image) -> None:
    """Fewer slots than one token uses: LRU finds nothing again, least-stale does."""
    hits = {}
    for policy in ("lru", "least-stale"):
        engine = Engine(demo, 200, batch=1, weights="streamed", expert_slots=8, policy=policy)
        engine.infer(np.full(100, 48))
        assert engine.experts.slots_per_layer == 0
        hits[policy] = engine.experts.hits
    assert hits["lru"] == 0
    assert hits["least-stale"] > 100


def test_pinned_experts_are_read_once(demo: Image) -> None:
    pins = [(0, 3), (0, 7), (4, 1)]
    engine = Engine(demo, 200, weights="streamed", expert_slots=24, pins=pins, trace=True)
    tokens = np.arange(150) * 7919 % demo.vocabulary
    assert np.array_equal(engine.infer(tokens), Engine(demo, 200).infer(tokens))
    trace = engine.take_trace()
    reads = [(int(e["layer"]), int(e["index"])) for e in trace if e["kind"] == READ]
    assert [reads.count(pin) for pin in pins] == [1, 1, 1]
    assert max(reads.count(read) for read in reads) > 1


def test_as_many_are_pinned_as_have_room(demo: Image) -> None:
    """Two of a layer's four slots, from the front of the list; the rest are read again."""
    pins = [(2, expert) for expert in range(6)]
    engine = Engine(demo, 32, weights="streamed", expert_slots=24, pins=pins)
    assert engine.experts.pinned == 2
    assert Engine(demo, 32, weights="streamed", expert_slots=12, pins=pins).experts.pinned == 0


def test_pins_outside_the_model_are_named(demo: Image) -> None:
    for wrong in ((6, 0), (0, 16), (-1, 0), (0, -1), (0, 1 << 16), (1 << 16, 0)):
        hint = r"experts are 0 \.\. 15 of layers 0, 1, 2, 3, 4, 5$"
        with pytest.raises(
            PlanError, match=rf"pin \({wrong[0]}, {wrong[1]}\) is no expert; {hint}"
        ):
            Engine(demo, 32, weights="streamed", expert_slots=24, pins=[wrong])
    with pytest.raises(PlanError, match=r"only streamed experts can be pinned; use .*'streamed'"):
        Engine(demo, 32, pins=[(0, 1)])


# Memory


def test_slots_fill_the_memory_there_is(demo: Image) -> None:
    tables = demo.meta_bytes
    whole = Engine(demo, 64, weights="streamed").high_water() + tables
    slot = -(-max(e.bytes for e in demo.experts) // 64) * 64
    with pytest.raises(DoesNotFitError) as caught:
        Engine(demo, 64, weights="streamed", memory=slot)
    assert caught.value.status is not None
    fewest = caught.value.status.need
    seen = []
    for size in range(fewest, whole + 1, slot // 3):
        engine = Engine(demo, 64, weights="streamed", memory=size)
        assert size - slot - 64 < engine.high_water() + tables <= size
        seen.append(engine.experts.slots)
    assert seen == sorted(seen)
    assert (seen[0], Engine(demo, 64, weights="streamed").experts.slots) == (2, 96)
    with pytest.raises(DoesNotFitError, match=f"give it {fewest:,} bytes"):
        Engine(demo, 64, weights="streamed", memory=fewest - 1)


@pytest.mark.parametrize("slots", [2, 23, 24, 96])
def test_frequency_is_taken_unless_another_is_asked_for(demo: Image, slots: int) -> None:
    assert Engine(demo, 8, weights="streamed", expert_slots=slots).experts.policy == "frequency"
    lru = Engine(demo, 8, weights="streamed", expert_slots=slots, policy="lru")
    assert lru.experts.policy == "lru"


@pytest.mark.parametrize(
    ("slots", "text"),
    [(-1, "leave it out for as many as fit"), (0, "leave it out for as many as fit"),
     (1, "at least 2"), (97, "at most 96"), (2**32 - 1, "at most 96"),
     (2**32, "leave it out for as many as fit")],
)  # fmt: skip
def test_slots_out_of_range_are_named(demo: Image, slots: int, text: str) -> None:
    with pytest.raises(PlanError, match=f"'expert_slots' is {slots}; {text}"):
        Engine(demo, 8, weights="streamed", expert_slots=slots)


def test_memory_that_is_none_is_refused(demo: Image) -> None:
    for size in (-1, 2**64):
        with pytest.raises(PlanError, match=rf"memory is {size:,} bytes; use 0 \.\. "):
            Engine(demo, 8, weights="streamed", memory=size)
    with pytest.raises(PlanError, match="memory has no regions"):
        Engine(demo, 8, weights="streamed", memory=[])
    for size in (0, 1):
        with pytest.raises(DoesNotFitError, match=rf"has {size} bytes; give it [\d,]+ bytes"):
            Engine(demo, 8, weights="streamed", memory=size)
    assert Engine(demo, 8, weights="streamed", memory=2**62).experts.slots == 96


def test_slots_without_streaming_are_refused(demo: Image) -> None:
    with pytest.raises(PlanError, match="'expert_slots' is 8; leave it out, or stream"):
        Engine(demo, 8, expert_slots=8)


def test_random_regions_hold_as_many_slots_as_fit(demo: Image) -> None:
    """Zero slots means the most that can be placed; the shortage names a size that works."""
    rng = np.random.default_rng(8)
    for _ in range(200):
        sizes = [int(s) for s in 2 ** rng.uniform(14, 23, int(rng.integers(1, 5)))]
        regions = [(f"r{i}", 0, size, int(rng.integers(0, 3))) for i, size in enumerate(sizes)]
        wanted = {"context": 40, "batch": 4, "weights": STREAMED, "profile": SMALL}
        plan = _core.plan(demo.core, _core.Limits(**wanted), regions)
        slots = plan["limits"].expert_slots
        if plan["shortage"] is not None:
            where, _, need = plan["shortage"]
            assert slots == 2
            regions[where] = (regions[where][0], 0, need, regions[where][3])
            plan = _core.plan(demo.core, _core.Limits(**wanted), regions)
            assert plan["shortage"] is None
            continue
        again = _core.plan(demo.core, _core.Limits(**wanted, expert_slots=slots), regions)
        assert {**again, "limits": 0} == {**plan, "limits": 0}
        if slots < 96:
            more = _core.plan(demo.core, _core.Limits(**wanted, expert_slots=slots + 1), regions)
            assert more["shortage"] is not None


# Faults (tests/c/stream.c)


def faults(
    path: Path | None, slots: int, policy: int, tokens: int, calls: int, sanitize: str = ""
) -> None:
    """Every read of a run meets every fault; the program stops when one is not survived."""
    out = program(
        "stream", path, slots, policy, tokens, SMALL, BEST, calls, sanitize=sanitize, seconds=900
    )
    lines = [line.split(": ")[1].split() for line in out.splitlines()]
    assert len(lines) == 3
    for reads, _, runs, _, failed, *_ in lines:
        assert int(runs) > 20 * int(reads) > 20 * tokens
        assert int(failed) > 10 * int(reads)


def in_files(folder: Path, family: str, layout: LayoutName) -> Path:
    shard = 1 << 17 if layout == "sharded" else None
    where = Placement.of(layout, shard_bytes=shard)
    return pack(GOLDEN / family, folder / "m.colibri", quant="q4", placement=where).image


@pytest.mark.parametrize(
    ("family", "layout", "slots", "policy", "tokens"),
    [("mixtral", "sharded", 4, 1, 13),
     pytest.param("lfm2_moe", "hybrid", 6, 2, 12, marks=pytest.mark.long)],
)  # fmt: skip
def test_every_read_meets_every_fault(
    tmp_path: Path, family: str, layout: LayoutName, slots: int, policy: int, tokens: int
) -> None:
    faults(in_files(tmp_path, family, layout), slots, policy, tokens, 1, SANITIZERS)


def test_faults_over_64_tokens(tmp_path: Path) -> None:
    faults(in_files(tmp_path, "mixtral", "monolithic"), 2, 0, 64, 1)


@pytest.mark.long
@pytest.mark.parametrize(
    ("family", "layout", "slots", "policy"),
    [("mixtral", "hybrid", 4, 1), ("mixtral", "sharded", 9, 2), ("longcat_flash", "sharded", 4, 3),
     ("lfm2_moe", "monolithic", 6, 1), ("olmoe", "sharded", 9, 0)],
)  # fmt: skip
def test_faults_over_64_tokens_of_every_layout(
    tmp_path: Path, family: str, layout: LayoutName, slots: int, policy: int
) -> None:
    faults(in_files(tmp_path, family, layout), slots, policy, 64, 0 if family == "mixtral" else 4)


@pytest.mark.long
def test_faults_over_64_tokens_of_the_demo_model(demo: Image) -> None:
    faults(demo.path, 40, 0, 64, 1)


# The file's threads, and the command line


@pytest.mark.parametrize("direct", [False, True])
def test_threads_read_what_read_reads(demo: Image, direct: bool) -> None:
    assert demo.path is not None
    if direct:
        need(f"direct:{demo.path}")
    image = Image(demo.path, map=False)
    image.read_ahead(3, direct)
    tokens = np.arange(40) * 7919 % image.vocabulary
    engine = Engine(image, 64, weights="streamed", expert_slots=20)
    assert np.array_equal(run(engine, tokens), run(Engine(demo, 64), tokens))
    assert engine.experts.retries == 0


def test_several_engines_read_one_file(demo: Image) -> None:
    assert demo.path is not None
    image = Image(demo.path, map=False)
    tokens = np.arange(60) * 7919 % image.vocabulary
    expected = run(Engine(demo, 64), tokens)
    engines = [Engine(image, 64, weights="streamed", expert_slots=13) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(lambda engine: run(engine, tokens), engines))
    assert all(np.array_equal(result, expected) for result in results)


def test_readers_out_of_range_are_refused(demo: Image) -> None:
    for threads in (0, 65):
        with pytest.raises(ImageError, match=rf"threads is {threads}; use 1 \.\. 64"):
            demo.read_ahead(threads)


def test_run_within_a_size(demo: Image, invoke: Callable[..., dict[str, Any]]) -> None:
    """The size is kept, the text is the same, and what was read is told."""
    command = (
        "run",
        demo.path,
        "--tokens",
        "48,2858,1135",
        "--max-new-tokens",
        20,
        "--context",
        64,
    )
    plain = invoke(*command)
    streamed = invoke(*command, "--memory", "2MiB")
    assert plain["experts"] is None
    assert streamed["logits_crc32"] == plain["logits_crc32"]
    assert streamed["memory"]["bytes"] <= 2 << 20
    experts = streamed["experts"]
    assert experts["bytes_read"] == experts["misses"] * demo.experts[0].bytes
    one_more = invoke(*command, "--expert-slots", experts["slots"] + 1)
    assert one_more["memory"]["bytes"] > 2 << 20
    stale = invoke(*command, "--policy", "least-stale", "--expert-slots", 5)["experts"]
    assert (stale["slots"], stale["slots_per_layer"], stale["policy"]) == (5, 0, "least-stale")


def test_plan_chooses_the_slots_that_fit(
    demo: Image, invoke: Callable[..., dict[str, Any]]
) -> None:
    command = ("plan", demo.path, "--board", "raspberry-pi-zero-2w", "--context", 64)
    assert invoke(*command)["experts"] is None
    made = invoke(*command, "--memory", "2MiB")
    assert made["fits"]
    took = made["total_bytes"] + demo.meta_bytes
    assert took <= 2 << 20 < took + made["experts"]["slot_bytes"]
    ran = invoke("run", demo.path, "--tokens", "1,2", "--context", 64, "--memory", "2MiB")
    assert ran["memory"]["engine_bytes"] == made["total_bytes"]
    assert ran["experts"]["slots"] == made["experts"]["slots"]
    rows = [row for region in made["regions"] for row in region["buffers"]]
    sizes = {row["name"]: row["bytes"] for row in rows}
    assert sizes["image"] == demo.meta_bytes
    assert sizes["expert_slots"] == made["experts"]["slots"] * made["experts"]["slot_bytes"]


def test_the_size_counts_the_tables(demo: Image, invoke: Callable[..., dict[str, Any]]) -> None:
    """They are in memory beside the engine: `--memory` is for both, and says what would do."""
    tables = demo.meta_bytes
    assert demo.path is not None
    assert tables == int.from_bytes(demo.path.read_bytes()[24:28], "little") > 1000
    fewest = Engine(demo, 64, weights="streamed", expert_slots=2).high_water() + tables
    ran = invoke("run", demo.path, "--tokens", "1", "--context", 64, "--memory", fewest)
    assert ran["memory"] == {
        "engine_bytes": fewest - tables, "table_bytes": tables, "bytes": fewest,
    }  # fmt: skip
    board = ("--board", "raspberry-pi-zero-2w", "--context", 64)
    made = invoke("plan", demo.path, *board, "--memory", fewest)
    assert (made["total_bytes"], made["table_bytes"]) == (fewest - tables, tables)
    assert made["experts"]["slots"] == 2
    short = plan(demo, board[1], 64, streamed=True, memory=fewest - 1)
    assert not short.fits
    assert f"--memory {fewest} does" in short.advice[1]
    assert not plan(demo, board[1], 64, streamed=True, memory=tables).fits


def _read_by_this_process() -> int:
    """Bytes that all threads have got from files."""
    words = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(words["rchar"])


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="no /proc/self/io")
def test_open_to_first_token_reads_only_what_it_needs(demo: Image) -> None:
    """Header and tables, the dense part once, and the records that the token's layers chose."""
    dense = next(s.bytes for s in demo.sections if s.name == "weights")
    Engine(Image(demo.path, map=False), 16, weights="streamed", expert_slots=24).infer([1])
    itself = -_read_by_this_process() + _read_by_this_process()
    before = _read_by_this_process()
    image = Image(demo.path, map=False)
    opened = _read_by_this_process()
    engine = Engine(image, 16, weights="streamed", expert_slots=24)
    made = _read_by_this_process()
    engine.infer([7])
    first = _read_by_this_process()
    engine.infer([7])
    second = _read_by_this_process()
    # the header twice: it tells how much memory the tables take
    assert opened - before - itself == 2 * 64 + image.meta_bytes
    assert made - opened - itself == dense
    assert engine.experts.misses >= 12
    rest = second - first - itself
    assert first - made - itself == 12 * image.experts[0].bytes
    assert rest == engine.experts.bytes_read - 12 * image.experts[0].bytes


def test_huge_pages_are_for_mapped_files(demo: Image, capsys: pytest.CaptureFixture[str]) -> None:
    streamed = ["--pages", "huge", "--expert-slots", "4"]
    board = ["--board", "raspberry-pi-zero-2w"]
    for command in (["run", str(demo.path), "--tokens", "1"], ["plan", str(demo.path), *board]):
        assert cli.main([*command, *streamed]) == 2
        assert "leave pages out" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("slots", "policy", "words"),
    [
        (8, "auto", ["fewer than the 2 a layer", "shared by all", "frequency makes room, which"]),
        (24, "auto", ["each layer has its own", "missed no more than lru"]),
        (24, "lru", ["each layer has its own", "lru makes room, as asked"]),
        (96, "auto", ["all 96 in memory, none makes room"]),
    ],
)
def test_plan_says_why(demo: Image, slots: int, policy: str, words: list[str]) -> None:
    made = plan(demo, "raspberry-pi-zero-2w", 64, streamed=True, expert_slots=slots, policy=policy)
    assert made.experts is not None
    for word in words:
        assert word in made.experts["why"]


def test_firmware_streams_from_its_flash_or_a_storage_beside_it(demo: Image) -> None:
    """Mapped flash that holds the image; else a storage that is not mapped; else a refusal."""
    pico = load_board("pimoroni-pico-plus-2")
    made = plan(demo, pico, streamed=True, context=64)
    assert (made.fits, made.weights) == (True, "streamed-mapped")
    small = [r.model_copy(update={"size": 4 << 20}) if r.name == "FLASH" else r
             for r in pico.regions]  # fmt: skip
    board = pico.model_copy(update={"regions": small})
    with pytest.raises(PlanError, match="no storage that experts could be read from"):
        plan(demo, board, streamed=True)
    card = load_board("raspberry-pi-zero-2w").storage
    made = plan(demo, board.model_copy(update={"storage": card}), streamed=True, context=64)
    assert (made.fits, made.weights) == (True, "streamed")
    sizes = {row.name: row.bytes for region in made.regions for row in region.buffers}
    assert sizes["image"] == demo.meta_bytes
    assert sizes["weights"] == demo.section("weights").bytes  # type: ignore[union-attr]
