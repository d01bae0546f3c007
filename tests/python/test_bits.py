# SPDX-License-Identifier: Apache-2.0
"""The same image and tokens give the same bits, whatever computes them and however they are cut."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import checkpoints as ck
from colibri import Engine, Image, MemoryRegion, _core
from colibri.pack import pack

QUANTS = ("f32", "f16", "bf16", "q8", "q4")
SLOW = [pytest.param(f"demo/{quant}", marks=pytest.mark.long) for quant in QUANTS[:4]]
MODELS = [*(f"small/{quant}" for quant in QUANTS), "demo/q4", *SLOW]
KVS = ("f32", "f16", "q8")
TOKENS = np.arange(37) * 2654435761 % 320  # the small model's vocabulary
OTHER = np.arange(23) * 40503 % 320
KERNELS = _core.kernels()


def crc(logits: NDArray[np.float32]) -> int:
    return zlib.crc32(np.ascontiguousarray(logits, "<f4").tobytes())


def cut(tokens: NDArray[Any], sizes: Sequence[int]) -> Iterator[NDArray[Any]]:
    """Pieces of these sizes, repeated until all is given."""
    at = 0
    for size in itertools.cycle(sizes):
        if at >= len(tokens):
            return
        yield tokens[at : at + size]
        at += size


def run(image: Image | Path, sizes: Sequence[int] = (1000,), **options: Any) -> int:
    """CRC over every row of the tokens, given in pieces."""
    engine = Engine(image, **{"context": 64, **options})
    return crc(np.concatenate([engine.infer(p, all_logits=True) for p in cut(TOKENS, sizes)]))


@pytest.fixture(scope="module")
def images(
    demo_image: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Image]:
    """ "demo/q4", "small/f16", ...: the demo model, and a golden one that is quick."""
    opened: dict[str, Image] = {}
    folder = tmp_path_factory.mktemp("small")

    def one(name: str) -> Image:
        if name not in opened:
            model, quant = name.split("/")
            small = folder / quant
            if model == "small":
                pack(ck.GOLDEN / "qwen2_moe", small, quant=quant)
            opened[name] = Image(demo_image(quant) if model == "demo" else small)
        return opened[name]

    return one


@pytest.fixture(scope="module")
def truth(images: Callable[[str], Image]) -> Callable[[str, str], int]:
    """One token at a time with the reference kernels on one thread."""
    known: dict[tuple[str, str], int] = {}

    def value(model: str, kv: str) -> int:
        if (model, kv) not in known:
            known[model, kv] = run(images(model), (1,), kv=kv, kernels="ref", batch=1)
        return known[model, kv]

    return value


Truth = Callable[[str, str], int]
Images = Callable[[str], Image]


def test_more_than_one_table_is_tested_on_x86() -> None:
    assert KERNELS[0] == "ref"
    flags = Path("/proc/cpuinfo")
    if flags.exists() and " avx2 " in flags.read_text():
        assert "avx2" in KERNELS


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("kv", KVS)
@pytest.mark.parametrize("model", MODELS)
def test_tables_and_batches(
    images: Images, truth: Truth, model: str, kv: str, kernels: str
) -> None:
    for batch, sizes in ((16, (1000,)), (7, (1000,)), (3, (2, 5, 1)), (64, (1000,)), (2, (3,))):
        got = run(images(model), sizes, kv=kv, kernels=kernels, batch=batch)
        assert got == truth(model, kv), (batch, sizes)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("model", MODELS)
def test_workers(images: Images, truth: Truth, model: str, workers: int, kernels: str) -> None:
    for sizes in ((1,), (1000,)):
        got = run(images(model), sizes, kernels=kernels, workers=workers)
        assert got == truth(model, "f32"), sizes
    assert run(images(model), kernels=kernels, workers=8, threads=workers) == truth(model, "f32")


@pytest.mark.parametrize("model", MODELS)
def test_profiles_and_weights_in_memory(images: Images, truth: Truth, model: str) -> None:
    for profile, weights, kv in itertools.product(("small", "wide"), ("mapped", "loaded"), KVS):
        got = run(images(model), profile=profile, weights=weights, kv=kv)
        assert got == truth(model, kv), (profile, weights, kv)
    read = Image(images(model).path or "", map=False)  # nothing is mapped: init reads it all
    assert run(read, weights="loaded") == truth(model, "f32")


@pytest.mark.parametrize("kv", KVS)
@pytest.mark.parametrize("model", ["small/f32", "demo/q4"])
def test_sequences_do_not_see_each_other(images: Images, truth: Truth, model: str, kv: str) -> None:
    """Three sequences mixed within steps: each gives what it gives alone."""
    image = images(model)
    other = crc(Engine(image, context=64, kv=kv).infer(OTHER, all_logits=True))
    streams = {2: TOKENS, 0: OTHER, 1: TOKENS}
    order = np.random.default_rng(5).permutation(
        np.repeat(list(streams), [len(t) for t in streams.values()])
    )
    given = {s: iter(t) for s, t in streams.items()}
    tokens = np.array([next(given[s]) for s in order])
    for batch, workers in ((16, 1), (5, 2), (97, 3)):
        engine = Engine(image, context=64, sequences=3, batch=batch, workers=workers, kv=kv)
        rows = engine.infer_batch(tokens, order, np.ones(len(tokens)))
        assert crc(rows[order == 2]) == crc(rows[order == 1]) == truth(model, kv)
        assert crc(rows[order == 0]) == other


@pytest.mark.parametrize("model", ["small/f32", "demo/q4"])
def test_which_rows_are_wanted_changes_nothing(images: Images, model: str) -> None:
    engine = Engine(images(model), context=64)
    every = engine.infer(TOKENS, all_logits=True)
    rng = np.random.default_rng(6)
    for _ in range(4):
        engine.reset()
        want = rng.random(len(TOKENS)) < 0.3
        rows = engine.infer_batch(TOKENS, np.zeros(len(TOKENS), int), want)
        assert np.array_equal(rows, every[want])
    engine.reset()
    assert np.array_equal(engine.infer(TOKENS), every[-1])


@pytest.mark.parametrize("kv", KVS)
def test_reset_forgets(images: Images, truth: Truth, kv: str) -> None:
    engine = Engine(images("small/q4"), context=64, kv=kv, sequences=2)
    for _ in range(2):
        assert crc(engine.infer(TOKENS, all_logits=True)) == truth("small/q4", kv)
        assert engine.length() == len(TOKENS)
        engine.infer(OTHER, sequence=1)
        engine.reset(0)
        assert (engine.length(0), engine.length(1)) == (0, len(OTHER))
        engine.infer(OTHER)
        engine.reset()


def test_memory_holds_nothing_that_matters(images: Images, truth: Truth) -> None:
    """Whatever lay in the memory before: the bits are the same."""
    size = Engine(images("small/q4"), context=64, workers=2).high_water()
    memory = np.empty(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    for fill in (0x00, 0xFF, 0x7F):
        memory[:] = fill
        region = MemoryRegion("m", memory.ctypes.data + start, size)
        assert run(images("small/q4"), workers=2, memory=[region]) == truth("small/q4", "f32")


ODD: dict[str, dict[str, Any]] = {
    "33 wide": {"hidden_size": 33, "num_attention_heads": 3, "num_key_value_heads": 1,
                "head_dim": 10, "moe_intermediate_size": 37, "shared_expert_intermediate_size": 41,
                "vocab_size": 43},
    "dense between": {"mlp_only_layers": [1], "num_hidden_layers": 3, "intermediate_size": 77},
    "heads of 24": {"head_dim": 24, "hidden_size": 130, "moe_intermediate_size": 129},
    "heads of 16": {"head_dim": 16, "num_attention_heads": 2, "moe_intermediate_size": 200},
}  # fmt: skip


TYPES = [("f32", 32), ("f16", 32), ("bf16", 32), *itertools.product(("q8", "q4"), (32, 64, 128))]


@pytest.mark.parametrize(("quant", "group"), TYPES)
@pytest.mark.parametrize("name", ODD)
def test_odd_shapes(tmp_path: Path, name: str, quant: str, group: int) -> None:
    """Sizes that no vector divides: every table, KV type, worker count and batch."""
    image = tmp_path / "odd.colibri"
    pack(ck.write(tmp_path / "in", **ODD[name]), image, quant=quant, group=group)
    tokens = TOKENS % 40
    for kv in KVS:
        first = None
        for kernels, (workers, batch) in itertools.product(KERNELS, ((1, 1), (3, 5), (2, 16))):
            engine = Engine(image, kernels=kernels, workers=workers, batch=batch, kv=kv)
            got = crc(engine.infer(tokens, all_logits=True))
            first = got if first is None else first
            assert got == first, (kv, kernels, workers, batch)
            engine.selftest()
