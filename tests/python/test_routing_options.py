# SPDX-License-Identifier: Apache-2.0
"""Routers that balance or prefer what is in memory, against docs/numerics.md in NumPy."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import numerics32 as n32
from checkpoints import copy_golden
from colibri import Engine, Image, PlanError, _core, cli, plan
from colibri.experts.trace import Text, record
from colibri.experts.trace_file import read_trace, write_trace
from colibri.pack import pack
from native import build

F32 = np.float32
SOFTMAX, TOPK_SOFTMAX, SIGMOID, SPARSEMIXER, TOPK_SIGMOID = 1, 2, 3, 4, 5
ROUTE = _core.EVENTS["route"]
NO_SLOT = 0xFFFF


# The formulas (tests/c/float_arrays.c)


def addends(
    router: int,
    scores: n32.Floats,
    top_k: int,
    *,
    selection: n32.Floats | None = None,
    runs: NDArray[np.uint8] | None = None,
    free: int = 0,
    held: NDArray[np.bool_] | None = None,
    part: np.float32 | float = 0.0,
) -> n32.Floats:
    """Section 6 of the page, "Preferences": what is added to each score for the choice."""
    added = np.zeros(len(scores), F32) if selection is None else selection.copy()
    for i in range(len(scores)):
        more = 0 if runs is None else min(int(runs[i]) - free, 64)
        if more > 0 and router in (SOFTMAX, SIGMOID):
            added[i] = added[i] + (scores[i] * F32(2.0**-more) - scores[i])
        elif more > 0:
            added[i] = added[i] + F32(more) * F32(-0.69314718)
    if held is None:
        return added
    goes_by = scores + added
    gain = F32(part) * (goes_by.max() - goes_by.min())
    exact = np.argsort(-goes_by, kind="stable")[: min(top_k // 2, 2)]
    gains = held.copy()
    gains[exact] = True
    return np.where(gains, added + gain, added)


def probabilities(router: int, scores: n32.Floats) -> n32.Floats:
    if router == SOFTMAX:
        e = n32.exp(scores - scores.max())
        return n32.floats(e / n32.total(e))
    return n32.floats(F32(1) / (F32(1) + n32.exp(-scores))) if router == SIGMOID else scores


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    return ctypes.CDLL(str(build() / "libfloat_arrays.so"))


@pytest.mark.parametrize("router", [SOFTMAX, TOPK_SOFTMAX, SIGMOID, SPARSEMIXER, TOPK_SIGMOID])
@pytest.mark.parametrize("biased", [False, True])
def test_the_choice_is_the_page_s(library: ctypes.CDLL, router: int, biased: bool) -> None:
    """Experts in order; of routers with probabilities also the weights, which are the router's."""
    rng = np.random.default_rng(router)
    changed = 0
    for case in range(300):
        experts = int(rng.integers(2, 40))
        top_k = 2 if router == SPARSEMIXER else int(rng.integers(1, min(experts, 8) + 1))
        scores = rng.normal(0, 2, experts).astype(F32)
        if case % 5 == 0:
            scores = np.round(scores)  # ties
        selection = rng.normal(0, 0.3, experts).astype(F32) if biased else None
        runs = rng.integers(0, 12, experts).astype(np.uint8) if case % 3 else None
        if runs is not None and case % 7 == 0:
            runs[0] = 255
        held = rng.random(experts) < 0.4 if case % 3 != 1 else None
        free, part = int(rng.integers(1, 5)), F32(rng.integers(1, 1000)) / F32(1000)
        goes_by = probabilities(router, scores)
        added = addends(router, goes_by, top_k, selection=selection, runs=runs, free=free,
                        held=held, part=part)  # fmt: skip
        expected = np.argsort(-(goes_by + added), kind="stable")[:top_k]
        plain = goes_by if selection is None else goes_by + selection
        changed += int(set(expected) != set(np.argsort(-plain, kind="stable")[:top_k]))

        places = None if held is None else np.where(held, 3, NO_SLOT).astype(np.uint16)
        numbers = np.array([router, experts, top_k, free, experts], np.uint32)
        work, out = scores.copy(), np.empty(experts, F32)
        ids, weights = np.empty(top_k, np.uint16), np.empty(top_k, F32)

        def pointer(array: NDArray[Any] | None) -> ctypes.c_void_p | None:
            return None if array is None else ctypes.c_void_p(array.ctypes.data)

        status = library.test_route(
            pointer(numbers), pointer(selection), pointer(runs), pointer(places),
            ctypes.c_float(part), pointer(work), pointer(out), pointer(ids), pointer(weights),
        )  # fmt: skip
        assert status == 0
        assert np.array_equal(n32.bits(out), n32.bits(n32.floats(added)))
        assert ids.tolist() == expected.tolist()
        if router in (SOFTMAX, SIGMOID):
            assert np.array_equal(n32.bits(weights), n32.bits(goes_by[expected]))
    assert changed > 50


# The engine: counts of choices in a row


@pytest.fixture(scope="module")
def even(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """A model whose routers find all 8 experts alike: the choice is all balance and ties."""
    folder = tmp_path_factory.mktemp("even")
    checkpoint = copy_golden("mixtral", folder)
    file = checkpoint / "model.safetensors"
    data = bytearray(file.read_bytes())
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    gates = [header[name] for name in header if name.endswith("block_sparse_moe.gate.weight")]
    assert len(gates) == 2
    for gate in gates:
        first, end = (8 + size + at for at in gate["data_offsets"])
        data[first:end] = bytes(end - first)
    file.write_bytes(data)
    pack(checkpoint, folder / "even.colibri", quant="q4")
    return Image(folder / "even.colibri")


def chosen(engine: Engine) -> list[list[int]]:
    """Experts of layer 0 by token, sorted; layer 1 must say the same."""
    events = engine.take_trace()
    events = events[events["kind"] == ROUTE]
    layers = [events[events["layer"] == layer]["index"].reshape(-1, 2) for layer in (0, 1)]
    assert np.array_equal(*layers)
    found: list[list[int]] = np.sort(layers[0], axis=1).tolist()
    return found


def balanced(tokens: int, free: int) -> list[list[int]]:
    runs, scores, out = np.zeros(8, np.uint8), np.full(8, 0.125, F32), []
    for _ in range(tokens):
        goes_by = scores + addends(SOFTMAX, scores, 2, runs=runs, free=free)
        ids = sorted(np.argsort(-goes_by, kind="stable")[:2].tolist())
        runs = np.array([run + 1 if i in ids else 0 for i, run in enumerate(runs)], np.uint8)
        out.append(ids)
    return out


@pytest.mark.parametrize("free", [1, 3, 5])
def test_an_expert_gives_way_after_its_turns(even: Image, free: int) -> None:
    expected = balanced(40, free)
    assert expected[: free + 2] == [[0, 1]] * (free + 1) + [[2, 3]]  # more than `free` in a row
    for batch in (1, 7, 40):
        engine = Engine(even, 64, batch=batch, balance=free, trace=True)
        engine.infer(np.arange(40))
        assert chosen(engine) == expected


def test_sequences_count_for_themselves_and_reset_forgets(even: Image) -> None:
    expected = balanced(30, 2)
    engine = Engine(even, 64, batch=5, sequences=2, balance=2, trace=True)
    engine.infer_batch(np.arange(40), [0, 1] * 20, [0] * 39 + [1])
    rows = chosen(engine)
    assert rows[0::2] == rows[1::2] == expected[:20]
    engine.reset(0)
    engine.infer_batch(np.arange(20), [0, 1] * 10, [0] * 19 + [1])
    rows = chosen(engine)
    assert rows[0::2] == expected[:10]
    assert rows[1::2] == expected[20:30]


def test_a_long_run_is_counted_to_its_end(tmp_path: Path) -> None:
    """All experts are always chosen: counts stop at 255 and nothing changes."""
    folder = copy_golden("mixtral", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_experts_per_tok": 8}))
    pack(folder, tmp_path / "all.colibri", quant="q4")
    image = Image(tmp_path / "all.colibri")
    tokens = np.arange(256)
    engine = Engine(image, 256, balance=1, trace=True)
    engine.infer(tokens)
    events = engine.take_trace()
    events = events[(events["kind"] == ROUTE) & (events["layer"] == 0)]
    choices = events["index"].reshape(-1, 8)
    assert (np.sort(choices, axis=1) == np.arange(8)).all()


def run(engine: Engine, tokens: NDArray[np.int64], prompt: int) -> NDArray[np.float32]:
    rows = [engine.infer(tokens[:prompt], all_logits=True)]
    return np.concatenate([*rows, *(engine.infer([token])[None] for token in tokens[prompt:])])


@pytest.mark.parametrize("balance", [1, 3])
def test_balance_depends_on_nothing_else(demo_image: Callable[[str], Path], balance: int) -> None:
    """Not on batch, workers, kernels, slots, policy or guesses."""
    image = Image(demo_image("q4"))
    tokens = np.array(image.tokenizer.encode("the the the lantern, lamp and light. " * 6)[:60])
    expected = run(Engine(image, 64, batch=1, kernels="ref", balance=balance), tokens, 60)
    assert not np.array_equal(expected, run(Engine(image, 64), tokens, 60))
    for options in (
        {"batch": 64}, {"batch": 7, "workers": 3},
        {"weights": "streamed", "expert_slots": 7, "prefetch": True},
        {"weights": "streamed", "expert_slots": 30, "policy": "frequency"},
    ):  # fmt: skip
        engine = Engine(image, 64, balance=balance, **options)
        assert np.array_equal(run(engine, tokens, 20), expected), options
        engine.selftest()
        assert np.array_equal(run(engine, tokens, 1), expected), options  # and leaves no trace


# Preferring what is in memory


def test_what_is_in_memory_is_read_less(demo_image: Callable[[str], Path]) -> None:
    image = Image(demo_image("q4"))
    tokens = np.arange(150) * 7919 % image.vocabulary
    options = {"weights": "streamed", "expert_slots": 24, "batch": 1}
    exact = Engine(image, 160, **options)
    expected, misses = run(exact, tokens, 1), [exact.experts.misses]
    for part in (0.05, 0.3, 1.0):
        rows = []
        for _ in range(2):
            engine = Engine(image, 160, **options, prefer_cached=part)
            rows.append(run(engine, tokens, 1))
        assert np.array_equal(*rows)  # the same settings, the same tokens
        assert not np.array_equal(rows[0], expected)
        misses.append(engine.experts.misses)
        engine.selftest()
    assert misses == sorted(misses, reverse=True)
    assert misses[-1] < misses[0] / 2


def test_the_best_experts_are_read_all_the_same(demo_image: Callable[[str], Path]) -> None:
    """A token's first choice is what its scores say, in memory or not."""
    image = Image(demo_image("q4"))
    tokens = np.arange(40) * 7919 % image.vocabulary

    def first_choices(**options: Any) -> NDArray[Any]:
        engine = Engine(image, 64, batch=1, trace=True, **options)
        engine.infer(tokens)
        events = engine.take_trace()
        # of layer 0 only: its input does not depend on choices before it
        mine = (events["kind"] == ROUTE) & (events["layer"] == 0) & (events["count"] >> 16 == 0)
        return events["index"][mine]

    cached = first_choices(weights="streamed", expert_slots=12, prefer_cached=1.0)
    assert np.array_equal(first_choices(), cached)


# What is refused, and what reports say


def test_what_makes_no_sense_is_refused(demo_image: Callable[[str], Path]) -> None:
    image = Image(demo_image("q4"))
    with pytest.raises(PlanError, match=r"'prefer_cached' is 0.1; .*--expert-slots"):
        Engine(image, 8, prefer_cached=0.1)
    for part in (0.0, -1.0, 1.5, float("nan")):
        with pytest.raises(PlanError, match=r"use 0.001 \.\. 1"):
            Engine(image, 8, weights="streamed", prefer_cached=part)
    with pytest.raises(PlanError, match="'balance' is 201; at most 200"):
        Engine(image, 8, balance=201)
    with pytest.raises(PlanError, match="'balance' is 0; use 1 or more"):
        Engine(image, 8, balance=0)


def test_memory_is_planned_only_when_it_is_used(demo_image: Callable[[str], Path]) -> None:
    image = Image(demo_image("q4"))

    def bytes_of(**options: Any) -> int:
        return Engine(image, 64, sequences=3, **options).high_water()

    plain, streamed = bytes_of(), bytes_of(weights="streamed", expert_slots=24)
    # a count and a saved one for 16 experts of 6 layers and each sequence; a row of scores
    assert bytes_of(balance=3) - plain == 2 * 16 * 6 * 3 + 16 * 4
    assert bytes_of(weights="streamed", expert_slots=24, prefer_cached=0.1) - streamed == 16 * 4


@pytest.fixture
def invoke(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[dict[str, Any], str]]:
    def run(*words: object) -> tuple[dict[str, Any], str]:
        assert cli.main([*map(str, words), "--json"]) == 0
        made = dict(json.loads(capsys.readouterr().out))
        assert cli.main([*map(str, words)]) == 0
        both = capsys.readouterr()
        return made, " ".join((both.out + both.err).split())

    return run


def test_reports_name_the_router(
    demo_image: Callable[[str], Path], invoke: Callable[..., tuple[dict[str, Any], str]]
) -> None:
    image = demo_image("q4")
    command = ("run", image, "--tokens", "48,2858,1135", "--max-new-tokens", 12, "--context", 64)
    made, text = invoke(*command)
    assert made["routing"] is None
    assert "router" not in text
    made, text = invoke(*command, "--expert-slots", 20, "--balance-router", 3,
                        "--prefer-cached", 0.1, "--prefetch", "on")  # fmt: skip
    assert (made["routing"]["balance_router"], made["routing"]["prefer_cached"]) == (3, 0.1)
    for words in ("load-balancing router", "more than 3 times in a row", "cache-preferring router",
                  "tokens depend on slots", "reads on a guess"):  # fmt: skip
        assert words in text
    assert made["experts"]["prefetched"] > 0
    board = ("plan", image, "--board", "raspberry-pi-zero-2w", "--context", 64)
    made, text = invoke(*board, "--balance-router", 2)
    assert made["routing"] == {**made["routing"], "balance_router": 2, "prefer_cached": None}
    assert made["experts"] is None
    assert "load-balancing router" in text
    assert plan(image, "raspberry-pi-zero-2w", 64).routing is None


def test_a_trace_says_which_router_it_is_of(
    even: Image, tmp_path: Path, invoke: Callable[..., tuple[dict[str, Any], str]]
) -> None:
    ids = list(range(40))
    made = record(even, Text.of_ids(ids), balance_router=3)
    assert made.balance_router == 3
    assert np.sort(made.choices[:, 0], axis=1).tolist() == balanced(40, 3)
    file = tmp_path / "trace.json"
    write_trace(made, file)
    assert read_trace(file).balance_router == 3
    (tmp_path / "old.json").write_text(file.read_text().replace('"balance_router": 3,\n', ""))
    assert read_trace(tmp_path / "old.json").balance_router is None
    told, text = invoke("trace", even.path, "--tokens", "1,2,3,4,5", "--balance-router", 1,
                        "-o", tmp_path / "cli.json")  # fmt: skip
    assert told["balance_router"] == 1
    assert "load-balancing" in text
    told, text = invoke("cache-study", tmp_path / "cli.json", "--slots", "4")
    assert told["trace"]["balance_router"] == 1
    assert "load-balancing router (1 in a row)" in text
