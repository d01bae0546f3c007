# SPDX-License-Identifier: Apache-2.0
"""Reads begun before they are asked for: early routers, and guesses. No bit depends on them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import test_smallthinker as small
from colibri import Engine, Image, PlanError, _core, plan
from colibri.engine import EVENT
from colibri.pack import pack
from native import SANITIZERS, program

GOLDEN = Path(__file__).parents[1] / "golden"
FAMILIES = (
    "mixtral",
    "longcat_flash",
    "llama4_text",
    "gemma4_text",
    "phimoe",
    "jetmoe",
    "lfm2_moe",
)
EVENTS = _core.EVENTS
READ, WAIT, EXPERT, ATTEND = (EVENTS[n] for n in ("read", "read_wait", "expert", "attend"))


def packed(folder: Path, family: str) -> Image:
    path = folder / f"{family}.colibri"
    if family == "smallthinker":
        config, tensors = small.weights_of("as_21b", 1)
        return Image(small.packed(folder, config, tensors))
    pack(GOLDEN / family, path, quant="q4")
    return Image(path)


def run(engine: Engine, tokens: NDArray[np.int64], prompt: int = 5) -> NDArray[np.float32]:
    rows = [engine.infer(tokens[:prompt], all_logits=True)]
    return np.concatenate([*rows, *(engine.infer([token])[None] for token in tokens[prompt:])])


def least(image: Image) -> int:
    config = image.config
    return int(min(config["top_k"], config["experts"] - config["identities"]))


@pytest.mark.parametrize("family", [*FAMILIES, "smallthinker"])
def test_no_bit_depends_on_guesses(tmp_path: Path, family: str) -> None:
    image = packed(tmp_path, family)
    tokens = np.arange(20) * 7919 % image.vocabulary
    expected = run(Engine(image, context=24), tokens)
    fewest, all_of_them = least(image), len(image.experts)
    guesses = 0
    for slots, policy in product(
        {fewest, fewest + 1, (fewest + all_of_them) // 2, all_of_them},
        ("lru", "frequency", "least-stale"),
    ):
        engine = Engine(
            image, 24, weights="streamed", expert_slots=slots, policy=policy, prefetch=True
        )
        assert np.array_equal(run(engine, tokens), expected), (slots, policy)
        guesses += engine.experts.prefetched
        assert (
            engine.high_water()
            > Engine(image, 24, weights="streamed", expert_slots=slots, policy=policy).high_water()
        )
    for batch, workers, prompt in ((1, 3, 20), (7, 1, 1)):
        engine = Engine(
            image, 24, workers, batch, weights="streamed", expert_slots=fewest, prefetch=True
        )
        assert np.array_equal(run(engine, tokens, prompt), expected), (batch, workers)
    assert guesses


@pytest.mark.parametrize("slots", [2, 9, 24, 48])
def test_what_is_counted_is_what_was_read(demo_image: Callable[[str], Path], slots: int) -> None:
    image = Image(demo_image("q4"))
    engine = Engine(image, 200, weights="streamed", expert_slots=slots, prefetch=True, trace=True)
    engine.take_trace()
    run(engine, np.array(image.tokenizer.encode("def main(): return the lantern " * 20)[:50]))
    trace, stats = engine.take_trace(), engine.experts
    reads, size = trace[trace["kind"] == READ], image.experts[0].bytes
    guesses = reads["count"] == 0
    assert stats.prefetched == guesses.sum() > 0
    assert stats.misses == (reads["count"] == 1).sum() == (~guesses).sum()
    assert stats.hits + stats.misses == (trace["kind"] == EXPERT).sum()
    assert stats.bytes_read == len(reads) * size
    assert stats.prefetched_wasted_bytes == (stats.prefetched - stats.prefetched_used) * size
    assert (trace["kind"] == WAIT).sum() == len(reads)
    # used: the guessed layer ran the expert next
    used = 0
    for at in np.flatnonzero((trace["kind"] == READ) & (trace["count"] == 0)):
        layer, later = trace["layer"][at], trace[at:]
        ran = later[(later["kind"] == EXPERT) | (later["kind"] == EVENTS["step"])]
        ran = ran[
            : int(np.flatnonzero(np.append(ran["kind"], EVENTS["step"]) == EVENTS["step"])[0])
        ]
        used += int(((ran["layer"] == layer) & (ran["index"] == trace["index"][at])).any())
    assert used == stats.prefetched_used
    # one of 16 experts by chance; the hidden state knows better
    assert used > 0.4 * stats.prefetched


def test_guesses_begin_behind_the_last_read_of_a_layer(demo_image: Callable[[str], Path]) -> None:
    image = Image(demo_image("q4"))
    engine = Engine(image, 200, weights="streamed", expert_slots=12, prefetch=True, trace=True)
    engine.take_trace()
    run(engine, np.arange(60) * 7919 % image.vocabulary)
    under_way: list[tuple[int, int]] = []
    guessing = layer = -1
    for event in engine.take_trace():
        key = (int(event["layer"]), int(event["index"]))
        if event["kind"] == EVENTS["layer"]:
            layer = key[0]
        elif event["kind"] == READ and event["count"] == 0:
            assert len(under_way) <= 1 or guessing == layer
            assert key[0] == layer + 1
            guessing = layer
            under_way.append(key)
        elif event["kind"] == READ:
            under_way.append(key)
        elif event["kind"] == WAIT:
            assert under_way.pop(0) == key  # in the order of the starts
        elif event["kind"] == EVENTS["step"]:
            assert not under_way
    assert not under_way


@pytest.mark.parametrize("tokens", [1, 9])
def test_an_early_router_reads_while_attention_runs(tmp_path: Path, tokens: int) -> None:
    """All reads of a layer are begun before its attention, and waited for after it."""
    image = packed(tmp_path, "smallthinker")
    engine = Engine(image, 32, weights="streamed", expert_slots=20, trace=True)
    engine.take_trace()
    for start in range(0, 18, tokens):
        engine.infer(np.arange(start, start + tokens))
    trace = engine.take_trace()
    reads = 0
    for step in np.split(trace, np.flatnonzero(trace["kind"] == EVENTS["layer"]))[1:]:
        attend = int(np.flatnonzero(step["kind"] == ATTEND)[0])
        first = step["kind"] == READ
        if first.sum() <= 16:
            assert not first[attend:].any()
        assert not (step["kind"][:attend] == WAIT).any()
        reads += int(first[:attend].sum())
    assert reads > 20


@pytest.mark.parametrize(
    ("family", "slots", "policy", "tokens", "balance"),
    [("mixtral", 2, 1, 12, 0), ("mixtral", 6, 2, 12, 1), ("granitemoe", 5, 3, 8, 0)],
)
def test_guesses_meet_every_fault(
    tmp_path: Path, family: str, slots: int, policy: int, tokens: int, balance: int
) -> None:
    path = packed(tmp_path, family).path
    out = program("guesses", path, slots, policy, tokens, balance, sanitize=SANITIZERS)
    assert "calls failed and were repeated" in out


def test_guesses_without_streaming_are_refused(demo_image: Callable[[str], Path]) -> None:
    image = Image(demo_image("q4"))
    with pytest.raises(PlanError, match=r"'prefetch' is 1; leave it out, or stream .*slots"):
        Engine(image, 8, prefetch=True)
    made: Any = plan(image, "raspberry-pi-zero-2w", 64, streamed=True, prefetch=True).experts
    assert made["prefetch"] is True
    assert plan(image, "raspberry-pi-zero-2w", 64, streamed=True).experts["prefetch"] is False


def test_predicted_time_is_what_a_hand_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """bench/prefetch.py: reads follow each other beside the work, a wait ends with one."""
    monkeypatch.syspath_prepend(str(GOLDEN.parents[1] / "bench"))
    import prefetch

    trace = np.zeros(7, EVENT)
    names = ("vector", "read", "read", "expert", "read_wait", "matmul", "read_wait")
    trace["kind"] = [EVENTS[name] for name in names]
    trace["index"] = [0, 1, 2, 0, 1, 0, 2]
    trace["bytes"] = [10, 4, 6, 30, 4, 100, 6]
    # at a tenth of the speed the reads end at 10 + 40 and 110; the work takes 10, 30 and 100
    assert prefetch.time_of(trace, 0.1) == pytest.approx((150, 100))
    assert prefetch.time_of(trace, 0.01) == pytest.approx((1010, 1000))
    assert prefetch.time_of(trace, 1.0) == pytest.approx((140, 10))
