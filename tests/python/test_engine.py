# SPDX-License-Identifier: Apache-2.0
"""Calls that fail name the value that works and change nothing; the self-test; switching models."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import checkpoints as ck
from colibri import ColibriError, Engine, EngineError, Image, MemoryRegion, PlanError, _core
from colibri.pack import pack

QUANTS = ("f32", "f16", "bf16", "q8", "q4")
KVS = ("f32", "f16", "q8")
TOKEN, SEQUENCE, CONTEXT, MEMORY, ALIGNMENT, LIMIT = 2, 3, 4, 20, 21, 22
UNSUPPORTED, NONFINITE, SELFTEST = 47, 80, 81


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("engine")
    source = ck.write(folder / "in", mlp_only_layers=[1], num_hidden_layers=3)

    def image(quant: str) -> Path:
        path = folder / f"{quant}.colibri"
        if not path.exists():
            pack(source, path, quant=quant)
        return path

    return image


def fails(code: int, call: Callable[[], object]) -> ColibriError:
    with pytest.raises(ColibriError) as caught:
        call()
    assert caught.value.status is not None
    assert caught.value.status.code == code
    return caught.value


def test_failed_calls_change_nothing(small: Callable[[str], Path]) -> None:
    """After each failure the lengths are what they were, and the next logits too, to the bit."""
    prompt = [1, 2, 3, 4, 5]
    untouched = Engine(small("q4"), context=12, sequences=2, batch=2)
    untouched.infer(prompt)
    expected = untouched.infer([6, 7], all_logits=True)
    engine = Engine(small("q4"), context=12, sequences=2, batch=2)
    engine.infer(prompt)
    engine.infer([9], sequence=1)
    one = [True] * 3
    failures: list[tuple[int, Callable[[], object], int, int]] = [
        (TOKEN, lambda: engine.infer([1, 1, 40]), 2, 40),
        (TOKEN, lambda: engine.infer([2**32 - 1]), 0, 40),
        (SEQUENCE, lambda: engine.infer_batch([1, 1, 1], [0, 1, 2], one), 2, 2),
        (SEQUENCE, lambda: engine.infer_batch([1], [2**32 - 1], [True]), 0, 2),
        (CONTEXT, lambda: engine.infer([1] * 8), 0, 13),
        (CONTEXT, lambda: engine.infer_batch([1] * 13, [0] + [1] * 12, [True] * 13), 1, 13),
    ]
    for code, call, where, need in failures:
        status = fails(code, call).status
        assert status is not None
        assert (status.where, status.need) == (where, need)
        assert (engine.length(0), engine.length(1)) == (5, 1)
    assert np.array_equal(engine.infer([6, 7], all_logits=True), expected)


def test_context_is_filled_to_the_last_token(small: Callable[[str], Path]) -> None:
    engine = Engine(small("f32"), context=10, sequences=2)
    engine.infer(list(range(10)))
    assert engine.length() == 10
    status = fails(CONTEXT, lambda: engine.infer([0])).status
    assert status is not None
    assert (status.have, status.need) == (10, 11)
    assert engine.infer([0], sequence=1).shape == (40,)
    assert fails(CONTEXT, lambda: engine.infer([0] * 2000, sequence=1)).status is not None
    engine.reset(0)
    engine.infer(list(range(10)))


def test_empty_and_odd_input(small: Callable[[str], Path]) -> None:
    engine = Engine(small("f32"), context=8)
    for bad in ([], [[1, 2]], [1.5], [-1], ["a"], 3):
        with pytest.raises(EngineError):
            engine.infer(bad)
    with pytest.raises(EngineError):
        engine.infer_batch([1, 2], [0], [True, True])
    calls: list[Callable[[], object]] = [
        lambda: engine.reset(1), lambda: engine.length(99), lambda: engine.infer([1], sequence=-1),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(EngineError, match=r"sequence .* is unknown; use 0"):
            call()
    assert engine.length() == engine.core.length(99) == 0


def test_nobody_wants_logits(small: Callable[[str], Path]) -> None:
    a, b = Engine(small("q4"), context=8), Engine(small("q4"), context=8)
    assert a.infer_batch([1, 2, 3], [0, 0, 0], [False] * 3).shape == (0, 40)
    b.infer([1, 2, 3])
    assert np.array_equal(a.infer([4]), b.infer([4]))


def test_pool_may_not_be_wider_than_the_limits(small: Callable[[str], Path]) -> None:
    status = fails(LIMIT, lambda: Engine(small("f32"), workers=2, threads=3)).status
    assert status is not None
    assert (status.where, status.have, status.need) == (4, 2, 3)


def test_kernels_are_named(small: Callable[[str], Path]) -> None:
    with pytest.raises(EngineError, match="ref"):
        Engine(small("f32"), kernels="none")
    assert Engine(small("f32"), kernels="ref").kernels == "ref"
    assert Engine(small("f32")).kernels == _core.kernels()[-1]


def test_memory_too_small_or_misaligned(small: Callable[[str], Path]) -> None:
    size = Engine(small("q4"), context=8).high_water()
    memory = np.zeros(size + 128, np.uint8)
    base = memory.ctypes.data + -memory.ctypes.data % 64

    def engine(address: int, bytes: int) -> Engine:
        return Engine(small("q4"), context=8, memory=[MemoryRegion("m", address, bytes)])

    status = fails(MEMORY, lambda: engine(base, size - 1)).status
    assert status is not None
    assert (status.where, status.have, status.need) == (0, size - 1, size)
    for off in (1, 4, 16, 32, 63):
        error = fails(ALIGNMENT, lambda off=off: engine(base + off, size))  # type: ignore[misc]
        assert isinstance(error, PlanError)
        assert "64" in str(error)
    fails(ALIGNMENT, lambda: engine(0, size))
    assert engine(base, size).high_water() == size


def test_weights_that_cannot_be_mapped(small: Callable[[str], Path]) -> None:
    image = Image(small("q4"), map=False)
    status = fails(UNSUPPORTED, lambda: Engine(image, context=8)).status
    assert status is not None
    assert status.need == _core.WEIGHTS["loaded"]
    mapped = Engine(small("q4"), context=8).infer([1, 2])
    assert np.array_equal(Engine(image, context=8, weights="loaded").infer([1, 2]), mapped)


def test_loaded_weights_are_in_the_plan_and_the_trace(small: Callable[[str], Path]) -> None:
    image = Image(small("q4"))
    mapped = Engine(image, context=8)
    loaded = Engine(image, context=8, weights="loaded", trace=True)
    assert loaded.high_water() == mapped.high_water() + -(-image.bytes // 64) * 64
    events = loaded.take_trace()
    read = events[events["kind"] == _core.EVENTS["read"]]
    assert read["bytes"].tolist() == [image.bytes]


@pytest.mark.parametrize("kv", KVS)
@pytest.mark.parametrize("quant", QUANTS)
def test_selftest_passes(small: Callable[[str], Path], quant: str, kv: str) -> None:
    for kernels in _core.kernels():
        engine = Engine(small(quant), kv=kv, kernels=kernels, workers=3, batch=4)
        engine.infer([1, 2, 3])
        engine.selftest()
        assert engine.length() == 0


@pytest.mark.parametrize("quant", QUANTS)
def test_selftest_of_the_demo_model(demo_image: Callable[[str], Path], quant: str) -> None:
    for kv in KVS:
        Engine(demo_image(quant), context=8, kv=kv).selftest()
    fails(CONTEXT, Engine(demo_image(quant), context=7).selftest)


def flipped(image: Path, offset: int, bit: int) -> Image:
    data = bytearray(image.read_bytes())
    data[offset] ^= 1 << bit
    return Image(bytes(data))


@pytest.mark.parametrize("kv", KVS)
@pytest.mark.parametrize("quant", QUANTS)
def test_selftest_sees_one_changed_weight(
    small: Callable[[str], Path], quant: str, kv: str
) -> None:
    """One bit of a norm or of a matrix: open takes it, verify and the self-test do not."""
    whole = Image(small(quant))
    high = {"f32": (3, 5), "f16": (1, 5), "bf16": (1, 5), "q8": (0, 6), "q4": (0, 7)}
    norm = next(t for t in whole.tensors if t.name == "attention_norm")
    query = next(t for t in whole.tensors if t.name == "query")
    for offset, bit in ((norm.offset + 2, 7), (query.offset + high[quant][0], high[quant][1])):
        image = flipped(small(quant), offset, bit)
        with pytest.raises(ColibriError, match="checksum"):
            image.verify()
        error = fails(SELFTEST, Engine(image, kv=kv).selftest)
        assert error.status is not None
        assert error.status.have != error.status.need


def test_selftest_checksum_is_zlib_over_the_rows(small: Callable[[str], Path]) -> None:
    image = Image(small("q8"))
    raw = image.section_bytes("selftest") or b""
    words = np.frombuffer(raw, "<u4")
    for crc, kv in zip(words[:3], KVS, strict=True):
        engine = Engine(image, kv=kv)
        rows = [engine.infer([token]) for token in words[3:]]
        assert zlib.crc32(np.stack(rows).tobytes()) == crc


def test_nan_in_unverified_weights_is_an_error(small: Callable[[str], Path]) -> None:
    whole = Image(small("f32"))
    embedding = next(t for t in whole.tensors if t.name == "embedding")
    router = next(t for t in whole.tensors if t.name == "router")
    output = next(t for t in whole.tensors if t.name == "output")
    data = small("f32").read_bytes()
    for tensor, token in ((embedding, 0), (router, 1), (output, 2)):
        changed = bytearray(data)
        changed[tensor.offset : tensor.offset + 4] = np.float32(np.nan).tobytes()
        engine = Engine(Image(bytes(changed)))
        fails(NONFINITE, lambda e=engine, t=token: e.infer([t]))  # type: ignore[misc]
        assert engine.length() == 0
        if tensor is embedding:  # other tokens are well
            assert np.array_equal(engine.infer([1]), Engine(whole).infer([1]))


def test_two_models_take_turns_in_one_memory(small: Callable[[str], Path]) -> None:
    images = [small("q4"), small("f32")]
    size = max(Engine(i, context=16).high_water() for i in images)
    memory = np.zeros(size + 64, np.uint8)
    region = MemoryRegion("m", memory.ctypes.data + -memory.ctypes.data % 64, size)
    alone = [Engine(i, context=16).infer([1, 2, 3]) for i in images]
    for turn in range(4):
        engine = Engine(images[turn % 2], context=16, memory=[region])
        assert np.array_equal(engine.infer([1, 2, 3]), alone[turn % 2])


def test_trace_counts_what_is_done(small: Callable[[str], Path]) -> None:
    engine = Engine(small("q4"), context=16, batch=4, trace=True)
    engine.infer([1, 2, 3, 4, 5, 6])
    events = engine.take_trace()
    assert len(engine.take_trace()) == 0

    def of(name: str) -> Any:
        return events[events["kind"] == _core.EVENTS[name]]

    assert of("step")["count"].tolist() == [4, 2]
    assert of("layer")["layer"].tolist() == [0, 1, 2] * 2
    assert len(of("route")) == 6 * 2 * 2  # tokens, layers with experts, top_k
    assert of("expert")["count"].sum() == 6 * 2 * 2
    records = {e.bytes for e in engine.image.experts}
    assert set(of("expert")["bytes"].tolist()) <= records
    heads = 2 * 2 * 8 * 4  # key and value, two heads of 8 floats
    assert of("attend")["bytes"].sum() == 3 * sum(range(1, 7)) * heads
    sizes = {(t.layer, t.role): t for t in engine.image.tensors}
    for event in of("matmul"):
        role = int(event["index"])
        layer = _core.GLOBAL_LAYER if role <= 2 else int(event["layer"])
        tensor = sizes[layer, role]
        assert event["bytes"] == tensor.bytes
        assert event["work"] == tensor.rows * tensor.columns * event["count"]
