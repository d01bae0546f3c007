# SPDX-License-Identifier: Apache-2.0
"""Policies of the expert cache and their replay, against oracles that keep no structure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colibri import Image, load_board
from colibri.errors import EmulateError, TraceError
from colibri.experts.policies import (
    USES_AN_EXPERT,
    Belady,
    Frequency,
    LeastStale,
    Lru,
    PinnedLru,
    Policy,
    hottest,
)
from colibri.experts.study import ONLINE, POLICIES, SHARINGS, Outcome, Study, run
from colibri.experts.trace import ExpertTrace, Text, image_id, record
from colibri_emulator.miss_time import MissTime

Steps = list[list[int]]


def misses(cache: Policy, steps: Steps) -> list[list[int]]:
    return [cache.touch(step) for step in steps]


def total(missed: list[list[int]]) -> int:
    return sum(map(len, missed))


# --- oracles: everything is worked out anew from the history at each step -----------------------


class Oracle:
    """A cache as a set; `leaves(held, step, history)` says who goes."""

    def __init__(self, slots: int, steps: Steps) -> None:
        self.slots, self.steps = slots, steps
        self.order: Steps = []  # of use: what was there, then what was read

    def run(self) -> list[list[int]]:
        held: set[int] = set()
        out = []
        for now, step in enumerate(self.steps):
            out.append([x for x in step if x not in held])
            self.order.append([x for x in step if x in held] + out[-1])
            self.there = held & set(step)  # who is counted before others leave
            held |= set(step)
            while len(held) > self.slots:
                held.remove(self.leaves(sorted(held - set(step)), now))
        return out

    def uses(self, x: int, now: int) -> list[int]:
        """Steps before `now` with this expert."""
        return [at for at in range(now) if x in self.steps[at]]

    def age(self, x: int, now: int) -> tuple[int, int]:
        """Larger is older; what a step used first is older."""
        last = self.uses(x, now)[-1]
        return now - last, -self.order[last].index(x)

    def leaves(self, free: list[int], now: int) -> int:
        return max(free, key=lambda x: self.age(x, now))


class FrequencyOracle(Oracle):
    period = 16  # uses until all are halved

    def leaves(self, free: list[int], now: int) -> int:
        def count(x: int) -> int:
            flat = [used for order in self.order[:now] for used in order]
            flat += [used for used in self.order[now] if used in self.there]
            uses = 0
            for at, used in enumerate(flat, 1):
                uses += used == x
                uses //= 1 + (at % self.period == 0)
            return uses

        return min(free, key=lambda x: (count(x), *(-a for a in self.age(x, now))))


class LeastStaleOracle(Oracle):
    experts, layers = 4, 3

    def leaves(self, free: list[int], now: int) -> int:
        here = self.steps[now][0] // self.experts

        def key(x: int) -> tuple[int, ...]:
            layer = x // self.experts
            last = self.uses(x, now)[-1]
            ran = sum(s[0] // self.experts == layer for s in self.steps[last + 1 : now + 1])
            ahead = layer - here if layer > here else layer - here + self.layers
            return (ran, ahead, *self.age(x, now))

        return max(free, key=key)


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


@st.composite
def circle(draw: st.DrawFn) -> tuple[int, Steps]:
    """Slots, and steps of three layers of four experts in turn."""
    step = st.lists(st.integers(0, 3), min_size=2, max_size=2, unique=True)
    tokens = draw(st.lists(st.tuples(step, step, step), min_size=1, max_size=12))
    steps = [[4 * m + x for x in one] for token in tokens for m, one in enumerate(token)]
    return draw(st.integers(2, 12)), steps


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


@settings(max_examples=150, deadline=None)
@given(one_layer())
def test_lru_does_what_its_definition_says(given_: tuple[int, Steps]) -> None:
    slots, steps = given_
    assert misses(Lru(slots), steps) == Oracle(slots, steps).run()


@settings(max_examples=150, deadline=None)
@given(one_layer(), st.integers(1, 9))
def test_frequency_does_what_its_definition_says(given_: tuple[int, Steps], uses: int) -> None:
    slots, steps = given_
    cache, oracle = Frequency(slots, 1), FrequencyOracle(slots, steps)
    assert cache.period == oracle.period
    cache.period = oracle.period = uses
    assert misses(cache, steps) == oracle.run()


@settings(max_examples=150, deadline=None)
@given(circle())
def test_least_stale_does_what_its_definition_says(given_: tuple[int, Steps]) -> None:
    slots, steps = given_
    assert misses(LeastStale(slots, 4, 3), steps) == LeastStaleOracle(slots, steps).run()


@settings(max_examples=100, deadline=None)
@given(one_layer())
def test_least_stale_is_lru_in_one_layer(given_: tuple[int, Steps]) -> None:
    slots, steps = given_
    assert misses(LeastStale(slots, 7, 1), steps) == misses(Lru(slots), steps)


@settings(max_examples=150, deadline=None)
@given(one_layer(), st.data())
def test_pinned_stay_and_the_rest_is_lru(given_: tuple[int, Steps], data: st.DataObject) -> None:
    slots, steps = given_
    most = slots - len(steps[0])
    pinned = data.draw(st.sets(st.integers(0, 6), max_size=most))
    found = misses(PinnedLru(slots, pinned), steps)
    rest = [[x for x in step if x not in pinned] for step in steps]
    others = Oracle(slots - len(pinned), rest).run()
    seen: set[int] = set()
    for missed, step, other in zip(found, steps, others, strict=True):
        first = [x for x in step if x in pinned and x not in seen]
        seen |= set(step)
        assert missed == first + other


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


class _Watched(Lru):
    """What an LRU cache holds when it is full."""

    most = 0

    def touch(self, experts: Sequence[int]) -> list[int]:
        missing = super().touch(experts)
        self.most = max(self.most, len(self.held))
        assert set(experts) <= set(self.held)
        return missing


@settings(max_examples=60, deadline=None)
@given(one_layer())
def test_a_cache_never_holds_more_than_its_slots(given_: tuple[int, Steps]) -> None:
    slots, steps = given_
    cache = _Watched(slots)
    misses(cache, steps)
    assert cache.most <= slots
    stale = LeastStale(slots, 7, 1)
    for step in steps:
        stale.touch(step)
        assert stale.count == sum(map(len, stale.held)) <= slots


def test_by_hand() -> None:
    """Three slots, two experts a step."""
    steps = [[0, 1], [2, 0], [3, 1], [0, 1], [2, 3], [0, 1]]
    # [3, 1]: 1 is the oldest but in use; 0, which was there before 2 was read, leaves.
    assert misses(Lru(3), steps) == [[0, 1], [2], [3], [0], [2], [1]]
    # [3, 1]: 0 is needed before 2, which leaves.
    assert misses(Belady(3, steps), steps) == [[0, 1], [2], [3], [], [2], [0]]
    # 0 is pinned, and two slots are for the rest: at [2, 3] it is 1 that leaves.
    assert misses(PinnedLru(3, [0]), steps) == [[0, 1], [2], [3], [], [2], [1]]


def test_frequency_keeps_what_was_used_often_and_forgets() -> None:
    def after(quiet: int) -> list[int]:
        """0 is used often, then 1 a little, `quiet` steps apart; does 0 or 1 leave for 3?"""
        cache = Frequency(3, 4)
        for step in [[0]] * 5 + [[2]] * quiet + [[1]] * 2 + [[3]]:
            cache.touch(step)
        return sorted(cache.held)

    assert after(3) == [0, 2, 3]  # though 0 is older
    assert after(3 * USES_AN_EXPERT * 4) == [1, 2, 3]  # the uses of 0 are halved away


def test_least_stale_keeps_what_the_next_layer_needs() -> None:
    """Each layer asks for the same expert again: LRU with a slot too few misses every time.

    Keeping what comes next, three first misses are followed by a hit and a miss in turn.
    """
    steps = [[4 * m] for _ in range(6) for m in range(3)]
    assert total(misses(Lru(2), steps)) == 18
    assert total(misses(LeastStale(2, 4, 3), steps)) == fewest_misses(2, steps) == 10


def test_hottest_are_the_most_used_then_the_lowest() -> None:
    assert hottest([(5, 1), (3, 7), (4, 7), (9, 8)], 3) == [9, 3, 4]


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


@pytest.mark.parametrize("domain", DOMAINS)
def test_frequency_is_not_below_lru_on_the_demo(domain: str, demo_image: Any, demo: Path) -> None:
    """At a quarter and at half of the experts."""
    study = Study(_demo_trace(Image(demo_image("q4")), demo, f"valid_{domain}", 2000))
    for slots in (4, 8):
        for sharing in SHARINGS:
            lru, frequency = (study.replay(p, sharing, slots) for p in ("lru", "frequency"))
            assert frequency.hits >= lru.hits, (slots, sharing)


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
                left = 100 * (rates[-1] - rates[1])
                cells = " | ".join(f"{100 * rate:.2f}" for rate in rates)
                row = f"| {slots} | {sharing} | {domain} | {cells} | {left:.2f} |"
                assert row in page, row


def _rate(trace: ExpertTrace, make: Callable[[int], Policy]) -> float:
    """Hit rate in percent with a cache for each layer."""
    missed: list[int] = []
    for m in range(6):
        run(make(m), trace.steps[m::6], missed)
    return 100 * (1 - len(missed) / (trace.tokens * 6 * trace.top_k))


@pytest.mark.long
def test_pinning_of_the_page(full: dict[str, ExpertTrace], page: str) -> None:
    def rate(domain: str, slots: int, count: int) -> str:
        def make(m: int) -> Policy:
            return PinnedLru(slots, hottest(enumerate(full["pin"].heat[m], 16 * m), count))

        return f"{_rate(full[domain], make):.2f}"

    for slots, counts in ((4, (0, 1, 2)), (8, (0, 2, 4))):
        code, scripture = (", ".join(rate(domain, slots, count) for count in counts)
                           for domain in ("code", "scripture"))  # fmt: skip
        assert code in page
        assert scripture in page


class _Forgetful(Frequency):
    """Forgets the uses of an expert that leaves."""

    def victim(self) -> int:
        leaves = super().victim()
        self.counts[leaves] = 0
        return leaves


@pytest.mark.long
def test_counting_of_the_page(full: dict[str, ExpertTrace], page: str) -> None:
    def means(make: Callable[[int], Policy], end: str) -> str:
        rates = [
            np.mean([_rate(full[domain], lambda _: make(slots)) for domain in DOMAINS])  # noqa: B023
            for slots in (4, 8)
        ]
        return f"{rates[0]:.2f} and {rates[1]:.2f} %{end}"

    def halved(tokens: int) -> Callable[[int], Policy]:
        def make(slots: int) -> Policy:
            cache = Frequency(slots, 16)
            cache.period = tokens * 2
            return cache

        return make

    for tokens in (16, 64, 128, 256):
        assert means(halved(tokens), "") in page, tokens
    assert f"never {means(halved(10**9), '')}" in page
    assert f"leave, {means(lambda slots: _Forgetful(slots, 16), '.')}" in page
    assert f"LRU has {means(Lru, '.')}" in page
