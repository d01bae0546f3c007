# SPDX-License-Identifier: Apache-2.0
"""Experts streamed from storage: the same bits in any number of slots, exact memory and reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from colibri import (
    DoesNotFitError,
    Engine,
    EngineError,
    Image,
    ImageError,
    PlanError,
    _core,
    cli,
    plan,
)
from colibri.accelerator import FakeNpu
from colibri.engine import POLICIES
from colibri.pack import pack
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


def replay(trace: NDArray[Any], sets: list[int], least_recent: bool) -> tuple[int, int]:
    """Hits and misses of one-token steps: LRU, or the least used with LRU among equals."""
    held: dict[int, dict[int, int]] = {}
    uses: dict[tuple[int, int], int] = {}
    hits = misses = clock = 0
    for layer in np.split(trace, np.flatnonzero(np.diff(trace["layer"])) + 1):
        number = int(layer["layer"][0])
        slots, wanted = held.setdefault(number, {}), [int(x) for x in layer["index"]]
        found = [x for x in sorted(wanted) if x in slots]
        for x in found:
            clock += 1
            slots[x] = clock
            uses[number, x] = uses.get((number, x), 0) + 1
        missing = [x for x in sorted(wanted) if x not in slots]
        hits, misses = hits + len(found), misses + len(missing)
        for x in missing:  # all get their slot before the first arrives
            if len([s for s in slots if s not in wanted]) and len(slots) >= sets[number]:
                free = [s for s in slots if s not in wanted]
                age = {s: (0 if least_recent else uses[number, s], slots[s]) for s in free}
                del slots[min(free, key=lambda s: age[s])]
            slots[x] = 0
        for x in missing:
            clock += 1
            slots[x] = clock
            uses[number, x] = uses.get((number, x), 0) + 1
    return hits, misses


@pytest.mark.parametrize("policy", ["lru", "frequency"])
@pytest.mark.parametrize("slots", [12, 27, 48])
def test_policies_do_what_they_say(demo: Image, policy: str, slots: int) -> None:
    """Against a replay of the experts that were used."""
    engine = Engine(
        demo, 200, batch=1, weights="streamed", expert_slots=slots, policy=policy, trace=True
    )
    engine.infer(np.arange(100) * 7919 % demo.vocabulary)
    trace = engine.take_trace()
    part, over = divmod(slots, 6)
    sets = [part + (layer < over) for layer in range(6)]
    used = trace[trace["kind"] == EXPERT]
    assert replay(used, sets, policy == "lru") == (engine.experts.hits, engine.experts.misses)


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


def test_pins_leave_room_for_a_token(demo: Image) -> None:
    pins = [(2, expert) for expert in range(3)]
    with pytest.raises(PlanError, match="'expert_slots' is 24; at least 25"):
        Engine(demo, 32, weights="streamed", expert_slots=24, pins=pins)
    for wrong in ((6, 0), (0, 16)):
        with pytest.raises(EngineError, match="argument 6"):
            Engine(demo, 32, weights="streamed", expert_slots=24, pins=[wrong])


# Memory


def test_slots_fill_the_memory_there_is(demo: Image) -> None:
    whole = Engine(demo, 64, weights="streamed").high_water()
    slot = -(-max(e.bytes for e in demo.experts) // 64) * 64
    with pytest.raises(DoesNotFitError) as caught:
        Engine(demo, 64, weights="streamed", memory=slot)
    assert caught.value.status is not None
    fewest = caught.value.status.need
    seen = []
    for size in range(fewest, whole + 1, slot // 3):
        engine = Engine(demo, 64, weights="streamed", memory=size)
        assert size - slot - 64 < engine.high_water() <= size
        seen.append(engine.experts.slots)
    assert seen == sorted(seen)
    assert (seen[0], Engine(demo, 64, weights="streamed").experts.slots) == (2, 96)
    with pytest.raises(DoesNotFitError, match=f"give it {fewest:,} bytes"):
        Engine(demo, 64, weights="streamed", memory=fewest - 1)


def test_the_policy_follows_the_slots(demo: Image) -> None:
    chosen = {
        s: Engine(demo, 8, weights="streamed", expert_slots=s).experts.policy
        for s in (2, 23, 24, 96)
    }
    assert chosen == {2: "frequency", 23: "frequency", 24: "lru", 96: "lru"}


@pytest.mark.parametrize(("slots", "text"), [(1, "at least 2"), (97, "at most 96")])
def test_slots_out_of_range_are_named(demo: Image, slots: int, text: str) -> None:
    with pytest.raises(PlanError, match=f"'expert_slots' is {slots}; {text}"):
        Engine(demo, 8, weights="streamed", expert_slots=slots)


def test_slots_without_streaming_are_refused(demo: Image) -> None:
    with pytest.raises(PlanError, match="'expert_slots' is 8; leave it out, or stream"):
        Engine(demo, 8, expert_slots=8)


def test_streamed_experts_cannot_be_bound(demo: Image) -> None:
    with pytest.raises(ImageError, match=r"1 experts are bound .* streamed weights .*'loaded'"):
        Engine(demo, 8, weights="streamed", accelerator=FakeNpu([(0, 1)], 1 << 20))


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


@pytest.mark.parametrize(
    ("family", "slots", "policy", "tokens"),
    [("mixtral", 4, 1, 14), ("longcat_flash", 4, 3, 12), ("lfm2_moe", 5, 2, 12)],
)
def test_every_read_meets_every_fault(
    tmp_path: Path, family: str, slots: int, policy: int, tokens: int
) -> None:
    path = packed(tmp_path, family).path
    out = program("stream", path, slots, policy, tokens, SMALL, sanitize=SANITIZERS)
    assert out.count("runs") == 2


@pytest.mark.parametrize("slots", [2, 9])
def test_faults_over_a_longer_run(tmp_path: Path, slots: int) -> None:
    out = program("stream", packed(tmp_path, "mixtral").path, slots, 0, 32, 0)
    reads = int(out.split()[3])  # a refused start is no failure: it is read later
    assert reads > 40
    for failed in (3, 4):
        told = f"{reads * 10} runs, {reads * failed} calls failed and were repeated"
        assert told in out


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


@pytest.fixture
def invoke(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    def run(*words: object) -> dict[str, Any]:
        assert cli.main([*map(str, words), "--json"]) == 0
        return dict(json.loads(capsys.readouterr().out))

    return run


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
    assert streamed["memory"]["engine_bytes"] <= 2 << 20
    experts = streamed["experts"]
    assert experts["bytes_read"] == experts["misses"] * demo.experts[0].bytes
    one_more = invoke(*command, "--expert-slots", experts["slots"] + 1)
    assert one_more["memory"]["engine_bytes"] > 2 << 20
    stale = invoke(*command, "--policy", "least-stale", "--expert-slots", 5)["experts"]
    assert (stale["slots"], stale["slots_per_layer"], stale["policy"]) == (5, 0, "least-stale")


def test_plan_chooses_the_slots_that_fit(
    demo: Image, invoke: Callable[..., dict[str, Any]]
) -> None:
    command = ("plan", demo.path, "--board", "raspberry-pi-zero-2w", "--context", 64)
    assert invoke(*command)["experts"] is None
    made = invoke(*command, "--memory", "2MiB")
    assert made["fits"]
    assert made["total_bytes"] <= 2 << 20 < made["total_bytes"] + made["experts"]["slot_bytes"]
    ran = invoke("run", demo.path, "--tokens", "1,2", "--context", 64, "--memory", "2MiB")
    assert ran["memory"]["engine_bytes"] == made["total_bytes"]
    assert ran["experts"]["slots"] == made["experts"]["slots"]
    rows = [row for region in made["regions"] for row in region["buffers"]]
    sizes = {row["name"]: row["bytes"] for row in rows}
    assert sizes["image"] == demo.meta_bytes
    assert sizes["expert_slots"] == made["experts"]["slots"] * made["experts"]["slot_bytes"]


def test_firmware_does_not_stream(demo: Image) -> None:
    with pytest.raises(PlanError, match='only boards with os = "linux"'):
        plan(demo, "pimoroni-pico-plus-2", streamed=True)
