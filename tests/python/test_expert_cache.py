# SPDX-License-Identifier: Apache-2.0
"""The runtime's expert cache and its replay, against oracles that look at everything."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache_policies import ORACLES, Frequency, Lru
from colibri import Engine, Image, _core, load_board
from colibri.errors import EmulateError, TraceError
from colibri.experts.policies import Belady, hottest_first
from colibri.experts.study import AUTOMATIC, ONLINE, POLICIES, SHARINGS, Outcome, Study
from colibri.experts.trace import ExpertTrace, Text, image_id, record
from colibri_emulator.miss_time import MissTime
from native import SANITIZERS, program

Steps = list[list[int]]


class Cache(Protocol):
    def touch(self, experts: Sequence[int], /) -> list[int]: ...


def misses(cache: Cache, steps: Steps) -> list[list[int]]:
    return [cache.touch(step) for step in steps]


def total(missed: list[list[int]]) -> int:
    return sum(map(len, missed))


def through(cache: Any, trace: ExpertTrace) -> list[list[int]]:
    """What a cache reads at each step of a trace."""
    out = []
    for at, step in enumerate(trace.steps):
        if at % len(trace.layers) == 0:
            cache.begin_token()
        out.append(cache.touch(step))
    return out


def runtime(trace: ExpertTrace, slots: int, policy: str, shared: bool,
            pins: Sequence[int] = ()) -> _core.ExpertCache:  # fmt: skip
    return _core.ExpertCache(len(trace.layers), trace.experts, slots, _core.POLICIES[policy],
                             shared, trace.top_k, pins)  # fmt: skip


def fewest_misses(slots: int, steps: Steps) -> int:
    """By trying every content that the cache could have after each step."""
    states: dict[frozenset[int], int] = {frozenset(): 0}
    for step in steps:
        needed, after = frozenset(step), {}
        for held, cost in states.items():
            missing = len(needed - held)
            rest = held - needed
            keep = min(len(rest), slots - len(needed))
            for kept in combinations(sorted(rest), keep):
                state = needed | frozenset(kept)
                after[state] = min(after.get(state, 1 << 30), cost + missing)
        states = after
    return min(states.values())


# --- traces ---------------------------------------------------------------------------------------


@st.composite
def one_layer(draw: st.DrawFn) -> tuple[int, Steps]:
    """Slots, and steps of top_k different experts of one layer."""
    experts = draw(st.integers(2, 7))
    top_k = draw(st.integers(1, min(3, experts)))
    step = st.lists(st.integers(0, experts - 1), min_size=top_k, max_size=top_k, unique=True)
    return draw(st.integers(top_k, experts)), draw(st.lists(step, min_size=1, max_size=40))


def trace_of(choices: Any, experts: int, *, identities: int = 0) -> ExpertTrace:
    """A trace with these choices: tokens x layers x top_k."""
    array = np.array(choices, np.uint16)
    tokens, layers, top_k = array.shape
    text = Text(tuple(range(tokens)), "ids", hashlib.sha256(b"").hexdigest())
    numbers, sizes = range(1, layers + 1), range(1000, 1000 * layers + 1, 1000)
    return ExpertTrace("0" * 32, None, text, experts, identities, top_k, tuple(numbers),
                       tuple(sizes), 512, array, {})  # fmt: skip


def random_trace(tokens: int, layers: int, experts: int, top_k: int, seed: int) -> ExpertTrace:
    rng = np.random.default_rng(seed)
    scores = rng.random((tokens, layers, experts)) + np.linspace(0, 0.7, experts)
    return trace_of(np.argsort(-scores, axis=2)[:, :, :top_k], experts)


# --- policies -------------------------------------------------------------------------------------


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_the_runtime_does_what_its_policies_say(data: st.DataObject) -> None:
    """Which experts are read at each step: shared slots and slots of a layer, with pins."""
    layers, experts = data.draw(st.integers(1, 4)), data.draw(st.integers(2, 9))
    top_k = data.draw(st.integers(1, min(3, experts)))
    trace = random_trace(60, layers, experts, top_k, data.draw(st.integers(0, 10**6)))
    shared = data.draw(st.booleans())
    slots = data.draw(st.integers(top_k if shared else top_k * layers, layers * experts))
    size = slots if shared else slots // layers  # what surely may be pinned of a set
    room = max(0, min(size // 2, size - top_k))
    order = data.draw(st.permutations(range(experts)))[: data.draw(st.integers(0, room))]
    pins = [m * experts + x for m in range(1 if shared else layers) for x in order]
    for policy, oracle in ORACLES.items():
        cache = runtime(trace, slots, policy, shared, pins)
        assert cache.pinned == len(pins)
        expected = through(oracle(layers, experts, slots, shared, pins), trace)
        assert through(cache, trace) == expected, policy
        assert cache.misses == total(expected)
        assert cache.hits == sum(map(len, trace.steps)) - total(expected)


def test_pins_are_the_first_that_have_room() -> None:
    """Half of a set, and what a token needs beside it."""
    trace = random_trace(1, 2, 8, 3, 0)
    every = range(16)
    for slots, least, pinned in (
        (8, 1, 4),
        (8, 3, 2),
        (9, 1, 4),
        (10, 3, 4),
        (6, 3, 0),
        (16, 3, 8),
    ):
        cache = _core.ExpertCache(2, 8, slots, 1, False, least, every)
        assert cache.pinned == pinned, (slots, least)
        shared = _core.ExpertCache(2, 8, slots, 1, True, least, every)
        assert shared.pinned == min(slots // 2, slots - least)
    cache = runtime(trace, 8, "lru", True, [5, 5, 7])
    assert cache.pinned == 2


@pytest.mark.parametrize("seed", [1, 2])
def test_invariants_under_random_operations(seed: int) -> None:
    """tests/c/expert_cache.c: arrivals in any order, reads that fail, caps, who may leave."""
    assert program("expert_cache", 200, seed, sanitize=SANITIZERS).startswith("120 caches")


def test_an_expert_twice_in_a_step_is_refused() -> None:
    cache = _core.ExpertCache(1, 8, 4, 1, True)
    with pytest.raises(ValueError, match="an expert twice"):
        cache.touch([3, 3])
    with pytest.raises(ValueError, match="no such expert"):
        cache.touch([8])
    with pytest.raises(ValueError, match="shape"):
        _core.ExpertCache(4, 8, 3, 1, False)


@settings(max_examples=60, deadline=None)
@given(one_layer())
def test_belady_misses_as_little_as_can_be(given_: tuple[int, Steps]) -> None:
    slots, steps = given_
    steps = steps[:12]
    assert total(misses(Belady(slots, steps), steps)) == fewest_misses(slots, steps)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(2, 6))
def test_nobody_beats_belady(seed: int, top_k: int, slots: int) -> None:
    trace = random_trace(30, 3, 6, top_k, seed)
    study = Study(trace, random_trace(30, 3, 6, top_k, seed + 1))
    for sharing in SHARINGS:
        best = study.replay("belady", sharing, max(slots, top_k))
        for policy in ONLINE:
            outcome = study.replay(policy, sharing, max(slots, top_k))
            assert outcome.hits <= best.hits
            assert study.points_from_belady(outcome) >= 0


def one_set(slots: int, policy: str, pins: Sequence[int] = (), experts: int = 4) -> Any:
    return _core.ExpertCache(1, experts, slots, _core.POLICIES[policy], False, 1, pins)


def test_by_hand() -> None:
    """Three slots, two experts a step."""
    steps = [[0, 1], [2, 0], [3, 1], [0, 1], [2, 3], [0, 1]]
    # [3, 1]: 1 is the oldest but in use; 0, which was there before 2 was read, leaves.
    assert misses(one_set(3, "lru"), steps) == [[0, 1], [2], [3], [0], [2], [1]]
    # [3, 1]: 0 is needed before 2, which leaves.
    assert misses(Belady(3, steps), steps) == [[0, 1], [2], [3], [], [2], [0]]
    # 0 is pinned, and two slots are for the rest: at [2, 3] it is 1 that leaves.
    assert misses(one_set(3, "lru", [0]), steps) == [[0, 1], [2], [3], [], [2], [1]]


def test_frequency_keeps_what_was_used_often_and_forgets() -> None:
    def leaves(quiet: int) -> int:
        """0 is used often, then 1 a little, `quiet` steps apart; does 0 or 1 leave for 3?"""
        cache = one_set(3, "frequency")
        for step in [[0]] * 5 + [[2]] * quiet + [[1]] * 2 + [[3]]:
            cache.touch(step)
        return 1 if cache.touch([0]) == [] else 0

    assert leaves(3) == 1  # though 0 is older
    assert leaves(3 * 8 * 4) == 0  # the uses of 0 are halved away


def test_least_stale_keeps_what_the_next_layer_needs() -> None:
    """Each layer asks for the same expert again: LRU with a slot too few misses every time.

    Keeping what comes next, three first misses are followed by a hit and a miss in turn.
    """
    trace = trace_of([[[0]] * 3] * 6, 4)
    lru, stale = (through(runtime(trace, 2, p, True), trace) for p in ("lru", "least-stale"))
    assert total(lru) == 18
    assert total(stale) == fewest_misses(2, trace.steps) == 10


def test_hottest_are_the_most_used_then_the_lowest() -> None:
    assert hottest_first([[1, 0, 7], [7, 8, 0]]) == [4, 2, 3, 0]


# --- replay ---------------------------------------------------------------------------------------


def test_replay_of_a_hand_made_trace() -> None:
    trace = trace_of([[[0, 1], [3, 2]], [[1, 0], [3, 0]], [[2, 0], [2, 3]]], 4)
    study = Study(trace)
    full = study.replay("lru", "per-layer", 4)
    assert (full.uses, full.hits, full.misses) == (12, 6, (3, 3))
    assert full.bytes_read == 3 * 1000 + 3 * 2000
    assert full.misses_per_token == 2.0
    two = study.replay("lru", "per-layer", 2)
    # layer 1: 01 | 10 | 2, 0 stays; layer 2: 32 | 0, 3 stays | 2, 3 stays
    assert (two.hits, two.misses) == (5, (3, 4))
    assert two.hit_rate == pytest.approx(5 / 12)
    shared = study.replay("lru", "shared", 2)  # four slots: 0 1 7 6 | hits | 7, 4 ...
    assert shared.uses == 12
    assert shared.bytes_read == shared.misses[0] * 1000 + shared.misses[1] * 2000


def test_identities_take_no_slot() -> None:
    trace = trace_of([[[0, 3]], [[4, 3]], [[1, 0]]], 3, identities=2)
    assert trace.heat == [[2, 1, 0]]
    assert trace.steps == [[0], [], [0, 1]]
    for policy in POLICIES:
        outcome = Study(trace).replay(policy, "shared", 2)
        assert (outcome.uses, outcome.hits, outcome.misses) == (3, 1, (2,)), policy


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("sharing", SHARINGS)
def test_with_a_slot_for_every_expert_only_first_uses_miss(policy: str, sharing: Any) -> None:
    trace = random_trace(50, 3, 8, 2, 1)
    outcome = Study(trace).replay(policy, sharing, 8)
    used = sum(count > 0 for layer in trace.heat for count in layer)
    assert sum(outcome.misses) == outcome.uses - outcome.hits == used


def test_shared_and_per_layer_are_the_same_with_one_layer() -> None:
    study = Study(random_trace(80, 1, 8, 2, 3))
    for policy in POLICIES:
        one, all_ = (study.replay(policy, sharing, 4) for sharing in SHARINGS)
        assert one.misses == all_.misses, policy


def test_pinned_by_its_own_heat_is_never_called_best() -> None:
    hot = [[[0, 1 + i % 7]] for i in range(70)]  # only pinning helps
    alone, known = Study(trace_of(hot, 8)), Study(trace_of(hot, 8), trace_of(hot[:7], 8))
    assert alone.best(SHARINGS, 3).policy != "pinned"
    for study in (alone, known):
        every = [study.replay(p, "shared", 3) for p in ONLINE]
        assert study.best(["shared"], 3).bytes_read >= min(each.bytes_read for each in every)
    assert known.best(["shared"], 3).bytes_read == min(each.bytes_read for each in every)


def test_slots_as_counts_and_shares() -> None:
    study = Study(random_trace(4, 2, 16, 2, 0))
    assert study.slots_of("50%, 4,25 %,12") == [4, 8, 12]
    assert study.default_slots == [4, 8, 12]
    for words, hint in (("1", "valid is 2 to 16"), ("17", "valid is 2 to 16"), ("5%", "valid is 2"),
                        ("x", "4,8"), ("", "4,8"), ("-4", "4,8"), ("4,,8", "4,8")):  # fmt: skip
        with pytest.raises(TraceError) as caught:
            study.slots_of(words)
        assert caught.value.field == "slots"
        assert hint in (caught.value.hint or ""), words


def test_pin_of_another_model_is_refused() -> None:
    with pytest.raises(TraceError, match="2 layers of 8 experts"):
        Study(random_trace(4, 2, 16, 2, 0), random_trace(4, 2, 8, 2, 0))


# --- time -----------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def traced(demo_image: Any) -> tuple[Image, ExpertTrace]:
    image = Image(demo_image("q4"))
    return image, record(image, Text.of_ids(range(40, 60)))


def test_predicted_reading_by_hand(traced: tuple[Image, ExpertTrace]) -> None:
    """A misses' share of reads at the speed of the curve for one record."""
    image, trace = traced
    board = load_board("raspberry-pi-5-2gb")
    timing = MissTime(board, image, trace, storage="NVMe")
    outcome = Outcome("lru", "shared", 4, 100, 70, (5, 5, 5, 5, 5, 5), 0, 20)
    size = trace.record_bytes[0]
    (point,) = (s.points[0] for s in board.storage if s.name == "NVMe")
    # Below the first point of a curve a read costs as much as one of the point's size.
    seconds = 30 / 20 * point.block_bytes / point.read_Bps
    assert size < point.block_bytes
    assert timing.reading(outcome).mid == pytest.approx(seconds)
    assert timing.per_token(outcome).mid == pytest.approx(seconds + timing.compute.mid)
    assert timing.per_token(outcome).low < timing.per_token(outcome).mid
    large = replace(trace, record_bytes=(4 << 20,) * 6)
    more = MissTime(board, image, large, storage="NVMe").reading(outcome).mid
    assert more == pytest.approx(30 / 20 * (4 << 20) / point.read_Bps)  # one read, at full speed
    slower = MissTime(board, image, trace)  # its first storage is an SD card
    assert slower.medium.name == "SD"
    # A declared point is in the curve: real speed is taken as 0.8 of the stated one.
    curve = slower.medium.bandwidth(size)
    assert 6_144_000 < curve < 85_000_000  # between the points of 4 KiB and 1 MiB
    assert slower.reading(outcome).mid == pytest.approx(30 / 20 * size / (curve * 0.8))
    larger = MissTime(board, image, replace(trace, record_bytes=(1 << 20,) * 6))
    assert larger.reading(outcome).mid == pytest.approx(30 / 20 * (1 << 20) / (85e6 * 0.8))
    assert slower.compute == timing.compute


def test_predictions_need_the_traced_image_and_a_storage(
    traced: tuple[Image, ExpertTrace], demo_image: Any
) -> None:
    image, trace = traced
    board = load_board("raspberry-pi-5-2gb")
    with pytest.raises(TraceError, match=image_id(image)):
        MissTime(board, Image(demo_image("q8")), trace)
    with pytest.raises(EmulateError, match="it has SD, NVMe"):
        MissTime(board, image, trace, storage="tape")
    with pytest.raises(EmulateError, match="no storage to read"):
        MissTime(board.model_copy(update={"storage": []}), image, trace)


# --- the demo -------------------------------------------------------------------------------------

DOMAINS = ("scripture", "dictionary", "code", "docs")


def _demo_trace(image: Image, demo: Path, name: str, first: int | None = None) -> ExpertTrace:
    text = (demo / "reference" / f"{name}.txt").read_text("utf-8")
    return record(image, Text.of_text(text, image).first(first))


def _beginning(image: Image, demo: Path, domain: str) -> ExpertTrace:
    return _demo_trace(image, demo, f"valid_{domain}", 2000)


@pytest.mark.parametrize("domain", DOMAINS)
def test_the_automatic_policy_is_not_below_lru_on_the_demo(
    domain: str, demo_image: Any, demo: Path
) -> None:
    """At a quarter and at half of the experts; and the study's cache is what the oracles say."""
    image = Image(demo_image("q4"))
    trace = _beginning(image, demo, domain)
    study = Study(trace)
    for slots in (4, 8):
        engine = Engine(image, 8, weights="streamed", expert_slots=6 * slots)
        assert (engine.experts.policy, engine.experts.slots_per_layer) == (AUTOMATIC, slots)
        for sharing in SHARINGS:
            lru, automatic = (study.replay(p, sharing, slots) for p in ("lru", AUTOMATIC))
            assert automatic.hits >= lru.hits, (slots, sharing)
    for shared, (policy, oracle) in product((False, True), ORACLES.items()):
        hot = [16 * m + x for m in range(6) for x in hottest_first(trace.heat[m : m + 1])[:2]]
        for pins in ([], hot):
            expected = through(oracle(6, 16, 27, shared, pins), trace)
            assert through(runtime(trace, 27, policy, shared, pins), trace) == expected, policy


@pytest.mark.parametrize(
    ("slots", "policy", "pin"),
    [(24, AUTOMATIC, False), (48, AUTOMATIC, False), (24, AUTOMATIC, True), (8, AUTOMATIC, False),
     (27, "lru", False), (9, "least-stale", False)],
)  # fmt: skip
def test_a_run_reads_what_the_study_says(
    slots: int, policy: str, pin: bool, demo_image: Any, demo: Path
) -> None:
    """Each token's bytes, to the byte; nothing else is read after the engine was made."""
    image = Image(demo_image("q4"))
    trace = _demo_trace(image, demo, "valid_docs", 600)
    assert trace.window == 512
    hot = hottest_first(trace.heat) if pin else []
    engine = Engine(image, 512, batch=1, weights="streamed", expert_slots=slots, trace=True,
                    policy="auto" if policy == AUTOMATIC else policy,
                    pins=[(x // 16, x % 16) for x in hot])  # fmt: skip
    engine.take_trace()
    cache = runtime(trace, slots, policy, slots < 12, hot)
    assert engine.experts.pinned == cache.pinned == (12 if pin else 0)
    before = 0
    for at, token in enumerate(trace.text.ids):
        if at % trace.window == 0:
            engine.reset()
        engine.infer([token])
        cache.begin_token()
        missed = [x for step in trace.steps[6 * at : 6 * at + 6] for x in cache.touch(step)]
        now = engine.experts.bytes_read
        assert now - before == sum(trace.record_bytes[x // 16] for x in missed), at
        before = now
        reads = [e for e in engine.take_trace() if e["kind"] == _core.EVENTS["read"]]
        assert [16 * int(e["layer"]) + int(e["index"]) for e in reads] == missed
    assert (engine.experts.hits, engine.experts.misses) == (cache.hits, cache.misses)
    if slots % 6 == 0 and not pin:
        outcome = Study(trace).replay(policy, "per-layer", slots // 6)
        assert (outcome.hits, outcome.bytes_read) == (cache.hits, before)


@pytest.fixture(scope="session")
def full(demo_image: Any, demo: Path) -> dict[str, ExpertTrace]:
    """The four texts and the calibration text, whole."""
    image = Image(demo_image("q4"))
    texts = {domain: f"valid_{domain}" for domain in DOMAINS} | {"pin": "calibration"}
    return {name: _demo_trace(image, demo, text) for name, text in texts.items()}


@pytest.fixture(scope="session")
def page(root: Path) -> str:
    text = (root / "docs" / "expert-cache.md").read_text("utf-8")
    return text.replace("\n  ", " ")


@pytest.mark.long
def test_table_of_the_page(full: dict[str, ExpertTrace], page: str) -> None:
    for domain in DOMAINS:
        study = Study(full[domain], full["pin"])
        for slots in (4, 8):
            for sharing in SHARINGS:
                rates = [study.replay(policy, sharing, slots).hit_rate for policy in POLICIES]
                left = 100 * (rates[-1] - rates[1])  # of frequency
                cells = " | ".join(f"{100 * rate:.2f}" for rate in rates)
                row = f"| {slots} | {sharing} | {domain} | {cells} | {left:.2f} |"
                assert row in page, row


def _rate(trace: ExpertTrace, cache: Any) -> float:
    """Hit rate in percent."""
    missed = total(through(cache, trace))
    return 100 * (1 - missed / (trace.tokens * 6 * trace.top_k))


@pytest.mark.long
def test_pinning_of_the_page(full: dict[str, ExpertTrace], page: str) -> None:
    def rate(domain: str, slots: int, count: int) -> str:
        heat = full["pin"].heat
        pins = [16 * m + x for m in range(6) for x in hottest_first(heat[m : m + 1])[:count]]
        cache = runtime(full[domain], 6 * slots, AUTOMATIC, False, pins)
        assert cache.pinned == 6 * count
        return f"{_rate(full[domain], cache):.2f}"

    for slots, counts in ((4, (0, 1, 2)), (8, (0, 2, 4))):
        code, scripture = (", ".join(rate(domain, slots, count) for count in counts)
                           for domain in ("code", "scripture"))  # fmt: skip
        assert code in page
        assert scripture in page


@pytest.mark.long
def test_counting_of_the_page(full: dict[str, ExpertTrace], page: str) -> None:
    def means(make: Callable[[int], Any]) -> str:
        rates = [np.mean([_rate(full[domain], make(6 * slots)) for domain in DOMAINS])
                 for slots in (4, 8)]  # fmt: skip
        return f"{rates[0]:.2f} | {rates[1]:.2f}"

    def rule(most: int, uses: int) -> Callable[[int], Frequency]:
        def make(slots: int) -> Frequency:
            cache = Frequency(6, 16, slots, False)
            cache.most, cache.uses_an_expert = most, uses
            return cache

        return make

    for most, uses in ((31, 8), (31, 2), (31, 16), (15, 4), (10**9, 16), (10**9, 10**9)):
        names = "none" if most > 31 else most, "never" if uses > 99 else uses
        assert f"| {names[0]} | {names[1]} | {means(rule(most, uses))} |" in page
    assert f"| LRU | | {means(lambda slots: Lru(6, 16, slots, False))} |" in page


def synthetic(stays: float, skew: float) -> ExpertTrace:
    """Of 64 experts 8; each stays for the next token with a probability, others are drawn anew.

    Drawn by weights that fall as rank^-skew, in another order in each layer.
    """
    rng = np.random.default_rng(1)
    layers, experts, top_k, tokens = 4, 64, 8, 2000
    weights = [rng.permutation(np.arange(1.0, experts + 1) ** -skew) for _ in range(layers)]
    choices = np.zeros((tokens, layers, top_k), np.int64)
    for token, m in product(range(tokens), range(layers)):
        kept = choices[token - 1, m][rng.random(top_k) < stays] if token else choices[0, 0, :0]
        keys = np.log(weights[m]) + rng.gumbel(size=experts)  # drawing without replacement
        keys[kept] = np.inf
        choices[token, m] = np.argsort(-keys)[:top_k]
    return trace_of(choices, experts)


@pytest.mark.long
@pytest.mark.parametrize("stays", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("skew", [0.0, 0.5, 1.0])
def test_other_kinds_of_routing_of_the_page(stays: float, skew: float, page: str) -> None:
    study = Study(synthetic(stays, skew))
    rates = [f"{100 * study.replay(policy, 'per-layer', slots).hit_rate:.2f}"
             for slots in (16, 32) for policy in ("lru", AUTOMATIC)]  # fmt: skip
    assert f"| {stays:g} | {skew:g} | {' | '.join(rates)} |" in page
