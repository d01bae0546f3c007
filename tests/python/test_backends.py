# SPDX-License-Identifier: Apache-2.0
"""Experts bound to another backend: the same bits, memory, failures, and time beside the CPU."""

from __future__ import annotations

import itertools
import json
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import checkpoints as ck
from colibri import DoesNotFitError, Engine, EngineError, Image, ImageError, _core, plan
from colibri.accelerator import FakeNpu, bound_experts, image_experts
from colibri.boards import Accelerator, Figure, check_board_file, load_board
from colibri.errors import EmulateError
from colibri.generate import Request, generate
from colibri.image_format import Order
from colibri.pack import pack
from colibri.sampling import Sampling
from colibri_emulator.clock import EXPERT, MATMUL, Clock, Placement
from colibri_emulator.device_time import (
    BACKEND_COPY,
    BACKEND_START,
    BACKEND_WAIT,
    DeviceSpeed,
    device_time,
)
from colibri_emulator.image_needs import image_needs
from colibri_emulator.twin import run_twin
from native import SANITIZERS, program
from needs import need

ROOT = Path(__file__).resolve().parents[2]
FAMILIES = sorted(path.parent.name for path in ck.GOLDEN.glob("*/config.json"))
ROOM = 1 << 24
Images = Callable[..., Image]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Images:
    """A golden checkpoint packed with a type, or with a recipe; once each."""
    folder, made = tmp_path_factory.mktemp("backends"), {}

    def image(family: str, quant: str = "q4", recipe: str = "", order: Order = Order.ROWS) -> Image:
        key = (family, quant, recipe, order)
        if key not in made:
            path = folder / f"{len(made)}.colibri"
            file = path.with_suffix(".toml")
            file.write_text(recipe)
            pack(
                ck.GOLDEN / family, path, quant=quant, recipe=file if recipe else None, order=order
            )
            made[key] = Image(path)
        return made[key]

    return image


def tokens_of(family: str) -> list[int]:
    ids = np.load(ck.GOLDEN / family / "reference.npz")["input_ids"]
    return [int(token) for token in ids[0]]


def crc(engine: Engine, tokens: list[int]) -> int:
    rows = engine.infer(tokens, all_logits=True)
    return zlib.crc32(np.ascontiguousarray(rows, "<f4").tobytes())


def run(image: Image, tokens: list[int], experts: str | None, **options: Any) -> int:
    """CRC over all logits with these experts bound; None: nothing is."""
    threaded = options.pop("threaded", False)
    npu = FakeNpu(bound_experts(image, experts), ROOM, threaded) if experts is not None else None
    return crc(Engine(image, context=32, accelerator=npu, **options), tokens)


# --- bits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_no_bit_depends_on_who_computes_an_expert(images: Images, family: str) -> None:
    image, tokens = images(family), tokens_of(family)
    expected = run(image, tokens, None, kernels="ref", batch=1)
    assert run(image, tokens, "all", batch=24, workers=2, threaded=True) == expected
    assert run(image, tokens, "0,2", batch=7) == expected


def test_the_families_have_every_part_of_the_operation(images: Images) -> None:
    """Biases, weights on the input, shared experts, other activations, identities, two blocks."""
    opened = [images(family) for family in FAMILIES]
    names = {tensor.name for image in opened for tensor in image.tensors}
    assert {"expert_gate_bias", "expert_down_bias", "shared_gate", "expert_query"} <= names
    assert {image.config["activation"] for image in opened} >= {1, 2, 4}
    assert any(image.config["router_flags"] & 32 for image in opened)
    assert any(image.config["identities"] for image in opened)
    assert any(layer[1] == 3 for image in opened for layer in image.core.layers())


@pytest.mark.parametrize("quant", ["f32", "f16", "bf16", "q8", "q4"])
@pytest.mark.parametrize("family", ["qwen2_moe", "gpt_oss"])
def test_every_type_any_workers_and_batches(images: Images, family: str, quant: str) -> None:
    image, tokens = images(family, quant), tokens_of(family)
    expected = run(image, tokens, None, kernels="ref", batch=1)
    for experts, workers, batch, threaded in itertools.product(
        (None, "0", "0-1@1", "1-3", "all"), (1, 3), (1, 5, 32), (False, True)
    ):
        options = {"workers": workers, "batch": batch, "threaded": threaded}
        assert run(image, tokens, experts, **options) == expected, (experts, options)


@pytest.mark.parametrize(
    "roles",
    ['expert_up = "f32"', 'expert_gate = "f16"', 'expert_down = "bf16"', 'shared = "f32"',
     'expert_up = "q8"\nexpert_down = "f16"\nshared_up = "q4"'],
)  # fmt: skip
def test_types_of_one_layer_may_differ(images: Images, roles: str) -> None:
    """What is lent to the device stays as it was while the CPU quantises for its own matrices."""
    image = images("qwen2_moe", "q4", f"[roles]\n{roles}\n")
    tokens = tokens_of("qwen2_moe")
    expected = run(image, tokens, None, kernels="ref", batch=1)
    for experts in ("0-2", "all"):
        assert run(image, tokens, experts, batch=9, threaded=True) == expected


@pytest.mark.parametrize("family", ["qwen2_moe", "gpt_oss"])
def test_weights_in_tiles(images: Images, family: str) -> None:
    image, tokens = images(family, "q4", order=Order.TILES), tokens_of(family)
    assert any(tensor.order for tensor in image.tensors if tensor.is_expert)
    expected = run(images(family), tokens, None)
    assert run(image, tokens, "0-2", batch=7, workers=2, threaded=True) == expected


def test_sequences_and_kv_types(images: Images) -> None:
    image, tokens = images("gpt_oss"), tokens_of("gpt_oss")
    for kv in ("f16", "q8"):
        assert run(image, tokens, "0,3", kv=kv, batch=4) == run(image, tokens, None, kv=kv)
    npu = FakeNpu(bound_experts(image, "1-2"), ROOM)
    engines = [Engine(image, context=32, sequences=2, accelerator=a) for a in (None, npu)]
    mixed = [token for token in tokens for _ in range(2)]
    rows = [e.infer_batch(mixed, [0, 1] * len(tokens), [1] * len(mixed)) for e in engines]
    assert np.array_equal(*rows)


@pytest.mark.parametrize("sanitize", ["", SANITIZERS])
def test_the_device_gives_what_the_operation_is_defined_to_give(sanitize: str) -> None:
    assert program("expert_ffn", sanitize=sanitize) == "ok\n"


# --- protocol and failures -----------------------------------------------------------------------


@pytest.mark.parametrize("family", ["qwen2_moe", "gpt_oss", "lfm2_moe", "longcat_flash"])
def test_order_of_starts_and_waits_whatever_fails(images: Images, family: str) -> None:
    """Also: inputs do not change in between, wrong bindings and refusals are named."""
    sanitize = SANITIZERS if family == "qwen2_moe" else ""
    image = images(family)
    for slots in (0, image.config["top_k"]):  # mapped, streamed
        found = program("backend", "protocol", image.path, slots, sanitize=sanitize)
        assert found == "ok\n", slots


@pytest.mark.parametrize("family", ["qwen2_moe", "gpt_oss"])
def test_no_data_race_between_device_pool_and_caller(images: Images, family: str) -> None:
    out = program("backend", "threads", images(family).path, sanitize="thread")
    assert out.endswith("ok\n")


@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize("family", ["qwen2_moe", "gpt_oss"])
def test_a_device_that_fails_at_any_call(images: Images, family: str, threaded: bool) -> None:
    image, tokens = images(family), tokens_of(family)[:5]
    experts = bound_experts(image, "0-2")
    expected = crc(Engine(image, context=32), tokens)
    engine = Engine(image, context=32, accelerator=FakeNpu(experts, ROOM, threaded))
    assert crc(engine, tokens) == expected
    state = engine.core.npu_state()
    assert state is not None
    assert state["commands"] > 3
    for k, start in itertools.product(range(1, state["commands"] + 1), (False, True)):
        engine.reset()
        engine.core.npu_fail(0 if start else k, k if start else 0)
        with pytest.raises(EngineError, match=r"layer \d, expert \d: the backend .* failed") as e:
            engine.infer(tokens, all_logits=True)
        assert e.value.status is not None
        where = e.value.status.where
        assert (where >> 16, where & 0xFFFF) in experts
        assert engine.length() == 0
        engine.core.npu_fail(0, 0)
        assert crc(engine, tokens) == expected


# --- streamed experts ----------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["qwen2_moe", "gpt_oss", "longcat_flash", "lfm2_moe"])
def test_streamed_experts_go_to_the_device_out_of_their_slots(images: Images, family: str) -> None:
    image, tokens = images(family), tokens_of(family)
    expected = run(image, tokens, None, kernels="ref", batch=1)
    fewest = min(image.config["top_k"], image.config["experts"] - image.config["identities"])
    cases = itertools.product(
        ("0", "1-3", "all"), (fewest, fewest + 3, len(image.experts)), (1, 7), (False, True)
    )
    for experts, slots, batch, threaded in cases:
        options = {"weights": "streamed", "expert_slots": slots, "batch": batch}
        found = run(image, tokens, experts, threaded=threaded, **options)
        assert found == expected, (experts, options, threaded)


@pytest.mark.parametrize("threaded", [False, True])
def test_a_device_that_fails_while_experts_are_streamed(images: Images, threaded: bool) -> None:
    """Slots come back and no read stays under way: the call can be repeated."""
    image, tokens = images("qwen2_moe"), tokens_of("qwen2_moe")[:6]
    expected = crc(Engine(image, context=32), tokens)
    for slots, batch in ((4, 1), (9, 6)):
        npu = FakeNpu(bound_experts(image, "0-2"), ROOM, threaded)
        engine = Engine(
            image, context=32, batch=batch, weights="streamed", expert_slots=slots, accelerator=npu
        )
        assert engine.experts.bytes_read  # what bind was shown
        assert crc(engine, tokens) == expected
        state = engine.core.npu_state()
        assert state is not None
        for k, start in itertools.product(range(1, state["commands"] + 1), (False, True)):
            engine.reset()
            engine.core.npu_fail(0 if start else k, k if start else 0)
            with pytest.raises(EngineError, match=r"expert \d: the backend .* failed"):
                engine.infer(tokens, all_logits=True)
            assert engine.length() == 0
            engine.core.npu_fail(0, 0)
            assert crc(engine, tokens) == expected


def test_a_record_that_cannot_be_shown_to_its_backend(images: Images, tmp_path: Path) -> None:
    image = images("qwen2_moe")
    experts = bound_experts(image, "1")
    assert image.path is not None
    data = bytearray(image.path.read_bytes())
    data[image.experts[1].offset + 5] ^= 1
    (tmp_path / "bad.colibri").write_bytes(data)
    options: dict[str, Any] = {"weights": "streamed", "expert_slots": 4, "context": 8}
    with pytest.raises(ImageError, match=r"layer 0, expert 1: .* do not match their checksum"):
        Engine(tmp_path / "bad.colibri", accelerator=FakeNpu(experts, ROOM), **options)


def test_device_memory_to_the_byte(images: Images) -> None:
    image = images("gpt_oss")
    experts = bound_experts(image, "0-1")
    npu = Engine(image, context=8, accelerator=FakeNpu(experts, ROOM)).core.npu_state()
    assert npu is not None
    records = {i: e.bytes for i, e in enumerate(image.experts)}
    per_layer = len(records) // len({layer for layer, _ in image_experts(image)})
    weights = sum(-(-records[layer * per_layer + x] // 64) * 64 for layer, x in experts)
    assert weights < npu["needed"] < weights + 4096  # and the workspace of one command
    assert npu["copied"] == sum(records[layer * per_layer + x] for layer, x in experts)
    exact = FakeNpu(experts, npu["needed"])
    assert crc(Engine(image, context=8, accelerator=exact), [1, 2]) == crc(
        Engine(image, context=8), [1, 2]
    )
    for less in (npu["needed"] - 1, npu["needed"] - 64, weights, 64, 0):
        with pytest.raises(DoesNotFitError, match=f"give it {npu['needed']:,} bytes") as error:
            Engine(image, context=8, accelerator=FakeNpu(experts, less))
        assert error.value.status is not None
        assert error.value.status.where in {layer << 16 | x for layer, x in experts}


def test_what_cannot_be_bound_is_named(images: Images) -> None:
    image = images("qwen2_moe")
    experts, layers = image.config["experts"], image.config["layers"]
    for pair in ((0, experts), (layers, 0), (-1, 0)):
        with pytest.raises(EngineError, match=rf"no expert .* experts 0 \.\. {experts - 1}"):
            Engine(image, accelerator=FakeNpu((pair,), ROOM))
    with pytest.raises(EngineError, match="bound twice"):
        Engine(image, accelerator=FakeNpu(((0, 1), (0, 1)), ROOM))
    for memory in (-1, 2**62):
        with pytest.raises(EngineError, match="accelerator memory"):
            Engine(image, accelerator=FakeNpu((), memory))
    for text in ("", "x", "1-", "-1", "0-99", "3-1", "0@9", "0@", "1,,2", "\u0661"):
        if text == "0@":
            assert len(bound_experts(image, text)) == layers
            continue
        with pytest.raises(EngineError, match=r"does not name experts|is not in the image"):
            bound_experts(image, text)
    assert bound_experts(image, "1, 0@1") == ((1, 0), (1, 1))


def test_a_build_without_backends_refuses_bindings(tmp_path: Path, images: Images) -> None:
    """It must not compute them itself and stay silent."""
    need("gcc")
    (tmp_path / "main.c").write_text("""
#include <stdio.h>
#include <stdlib.h>
#include "support.h"
int main(int argc, char **argv)
{
    struct memory memory;
    colibri_storage storage;
    colibri_image image;
    colibri_engine engine;
    colibri_error e = {0};
    size_t bytes;
    uint8_t *file = load_file(argv[argc - 1], &bytes);
    memory_storage(&storage, &memory, file, bytes, 1, 0);
    colibri_backend backend = {.struct_bytes = sizeof backend};
    colibri_binding binding = {0, 0, &backend};
    colibri_platform platform = {.struct_bytes = sizeof platform};
    platform.bindings = &binding;
    platform.binding_count = 1;
    colibri_limits limits = {.struct_bytes = sizeof limits, .sequences = 1, .context = 4};
    colibri_region region = {.base = exact(1 << 20), .size = 1 << 20};
    if (colibri_image_open(&image, &storage, NULL, 0, &e) != COLIBRI_OK) return 2;
    int status = colibri_init(&engine, &image, &limits, &region, 1, &platform, &e);
    printf("%d %u %u\\n", status, (unsigned)e.where, (unsigned)e.have);
    return 0;
}
""")  # fmt: skip
    sources = [*(ROOT / "sdk/c/src").glob("*.c"), *(ROOT / "sdk/c/kernels/ref").glob("*.c")]
    command = [
        "gcc", "-O1", "-ffp-contract=off", "-DCOLIBRI_WITH_BACKENDS=0", f"-I{ROOT}/sdk/c/include",
        f"-I{ROOT}/sdk/c/src", f"-I{ROOT}/tests/c", "-o", tmp_path / "main", tmp_path / "main.c",
        ROOT / "tests/c/support.c", *sources,
    ]  # fmt: skip
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    path = str(images("qwen2_moe").path)
    out = subprocess.run([tmp_path / "main", path], capture_output=True, text=True, check=True)
    assert out.stdout == "47 8 1\n"
    assert image_needs(path, ("f32",)).parts["backends"] is False


# --- events and time -----------------------------------------------------------------------------


def test_events_of_bound_experts(images: Images) -> None:
    image = images("qwen2_moe")
    experts = bound_experts(image, "0-1")
    engine = Engine(image, context=32, batch=24, trace=True, accelerator=FakeNpu(experts, ROOM))
    copied = engine.take_trace()
    assert copied["kind"].tolist() == [BACKEND_COPY] * len(experts)
    assert [(e["layer"], e["index"]) for e in copied] == list(experts)
    assert set(copied["count"].tolist()) == {0}
    assert copied["bytes"].sum() == sum(  # weights, once
        image.experts[layer * image.config["experts"] + x].bytes for layer, x in experts
    )
    engine.infer(tokens_of("qwen2_moe"))
    events = engine.take_trace()
    kind = events["kind"]
    starts, waits = events[kind == BACKEND_START], events[kind == BACKEND_WAIT]
    assert {x for _, x in experts} >= set(starts["index"].tolist())
    assert not np.isin(events["index"][kind == EXPERT], [x for _, x in experts]).any()
    assert starts[["layer", "index"]].tolist() == waits[["layer", "index"]].tolist()
    hidden, inner = image.config["hidden"], image.config["expert_size"]
    assert (starts["work"] == starts["count"] * hidden * inner * 3).all()
    moved = events["bytes"][kind == BACKEND_COPY]
    groups = -(-hidden // 32)
    assert moved.tolist() == (starts["count"] * (groups * 36 + hidden * 4)).tolist()
    routed = np.count_nonzero(kind == _core.EVENTS["route"])
    assert starts["count"].sum() + events["count"][kind == EXPERT].sum() == routed


def figure(value: float, cls: str = "measured") -> Figure:
    return Figure.model_validate({"value": value, "cls": cls, "source": "test"})


def device(**figures: Any) -> Accelerator:
    """1 G multiply-adds, 100 MB/s of its memory, 10 MB/s of DMA, 3 us a call."""
    return Accelerator(
        name="npu", memory_bytes=ROOM, source="test",
        **{"macs_per_s": figure(1e9), "read_Bps": figure(1e8), "dma_Bps": figure(1e7),
           "start_us": figure(3.0), **figures},
    )  # fmt: skip


EVENT = np.dtype(
    [("kind", "<u4"), ("layer", "<u4"), ("index", "<u4"), ("count", "<u4"),
     ("bytes", "<u8"), ("work", "<u8")]
)  # fmt: skip


def call(expert: int, moved: int, weights: int, work: int) -> list[tuple[int, ...]]:
    return [(BACKEND_COPY, 0, expert, 1, moved, 0), (BACKEND_START, 0, expert, 1, weights, work)]


def wait(expert: int) -> list[tuple[int, ...]]:
    return [(BACKEND_WAIT, 0, expert, 0, 0, 0)]


CPU = [(EXPERT, 0, 9, 1, 0, 0)]
US = 1e-6


@pytest.mark.parametrize(
    ("trace", "cpu", "working", "waited"),
    [
        # 3 us + 100 B at 10 MB/s (10 us) + the larger of 500 B at 100 MB/s (5) and 2,000 MACs (2)
        (call(1, 100, 500, 2000) + wait(1), 0, 18, 18),
        # multiply-adds set the pace: 3 + 10 + 20
        (call(1, 100, 500, 20000) + wait(1), 0, 33, 33),
        # the CPU works 12 us beside it: only the rest is waited for
        (call(1, 100, 500, 2000) + CPU + wait(1), 12, 18, 6),
        # the CPU is the slower one: nothing is waited for
        (call(1, 100, 500, 2000) + CPU + wait(1), 40, 18, 0),
        # one device, two calls: the second begins when the first is done
        (call(1, 100, 500, 2000) + call(2, 0, 0, 7000) + CPU + wait(1) + wait(2), 20, 28, 8),
        # a wait for the first alone leaves the second running beside the CPU
        (call(1, 100, 500, 2000) + call(2, 0, 0, 7000) + wait(1) + CPU + wait(2), 4, 28, 18 + 6),
        # an idle device begins at the start, not at the end of the call before
        (call(1, 0, 0, 2000) + CPU + wait(1) + call(2, 0, 0, 2000) + wait(2), 50, 10, 5),
    ],
)
def test_what_overlaps_costs_nothing(
    trace: list[tuple[int, ...]], cpu: float, working: float, waited: float
) -> None:
    events = np.array(trace, EVENT)
    seconds = np.where(events["kind"] == EXPERT, cpu * US, 0.0)
    speed = DeviceSpeed.of(device(), {"measured": 1.0})
    found = device_time(events, seconds, speed)
    assert found.working == pytest.approx(working * US)
    assert found.waited == pytest.approx(waited * US)


def test_speeds_are_spread_by_their_class() -> None:
    weak = device(dma_Bps=figure(1e7, "theoretical"))
    shares = {"measured": 0.75, "theoretical": 0.15}
    speed = DeviceSpeed.of(weak, shares)
    assert speed.seconds(100, 500, 0) == pytest.approx(
        3 * US / 0.75 + 10 * US / 0.15 + 5 * US / 0.75
    )


def test_the_clock_adds_what_is_waited_for() -> None:
    """CPU alone, device alone and both: by hand, from the figures of the board."""
    board = load_board("pimoroni-pico-plus-2")
    places = Placement("FLASH", "SRAM", "SRAM")
    clock = Clock(board, places, workers=1, medium=None, accelerator=device())
    dispatch = 400 / 150e6
    cpu = [(MATMUL, 0, 50, 1, 0, 6_450_000)]  # 0.1 s at 150 MHz and 0.43 a cycle
    alone = clock.charge(np.array(cpu, EVENT)).seconds["mid"]
    assert alone == pytest.approx(0.1 + dispatch, rel=1e-4)
    for work, total in ((20_000_000, 0.1), (300_000_000, 0.3)):
        trace = np.array(call(1, 0, 0, work) + cpu + wait(1), EVENT)
        both = clock.charge(trace)
        device_s = 3 * US + work / 1e9
        assert both.device == pytest.approx(device_s)
        assert both.waited == pytest.approx(max(0.0, device_s - alone), abs=1e-9)
        assert both.seconds["mid"] == pytest.approx(total + 2 * dispatch, rel=1e-3)
        assert both.traffic["bound"] == 0
    assert both.limit == "waiting for npu"
    assert both.seconds["fast"] < both.seconds["mid"] < both.seconds["slow"]


def test_weights_are_copied_before_the_first_token() -> None:
    board = load_board("pimoroni-pico-plus-2")
    places = Placement("FLASH", "SRAM", "SRAM")
    clock = Clock(board, places, workers=1, medium=None, accelerator=device())
    bind = np.array([(BACKEND_COPY, 0, 1, 0, 1_000_000, 0), (BACKEND_COPY, 1, 1, 0, 1_000_000, 0)],
                    EVENT)  # fmt: skip
    charge = clock.charge_binding(bind)
    assert charge.seconds["mid"] == pytest.approx(0.2)  # DMA is slower than this flash
    assert charge.limit == "copying experts to npu"
    assert clock.charge_binding(np.array(call(1, 10, 0, 0), EVENT)).seconds["mid"] == 0


# --- the twin and the command line ---------------------------------------------------------------


BOARD = "pimoroni-pico-plus-2"
TABLE = """
[accelerator]
name = "npu"
memory_bytes = "{memory}"
macs_per_s = {{ value = 1_000_000_000, cls = "declared", source = "imagined" }}
read_Bps = {{ value = 400_000_000, cls = "declared", source = "imagined" }}
dma_Bps = {{ value = 100_000_000, cls = "declared", source = "imagined" }}
source = "imagined"
"""


@pytest.fixture(scope="module")
def demo(demo_image: Callable[[str], Path]) -> Image:
    return Image(demo_image("q4"))


def board_file(folder: Path, memory: str = "4 MiB") -> Path:
    source = (ROOT / "board_configs/boards" / f"{BOARD}.toml").read_text()
    soc = ROOT / "board_configs/socs/rp2350.toml"
    path = folder / "board.toml"
    text = source.replace('soc = "rp2350"', f'soc = "{soc}"')
    assert text != source
    path.write_text(text + TABLE.format(memory=memory))
    return path


def test_the_twin_with_bound_experts(tmp_path: Path, demo: Image) -> None:
    board = load_board(board_file(tmp_path))
    request = Request([1, 2, 3, 4, 5, 6], Sampling(), 4, ignore_eos=True)
    made = plan(demo, board, context=64)
    host = generate(Engine(demo, 64), request)
    speeds = []
    for text in ("", "0-3", "all"):
        bound = bound_experts(demo, text) if text else ()
        report = run_twin(demo, board, request, made, bound=bound)
        assert report.fault is None
        assert (report.tokens, report.logits_crc32) == (host.tokens, host.logits_crc32)
        assert report.predicted is not None
        assert report.predicted.decode_tok_s is not None
        speeds.append(report.predicted.decode_tok_s.mid)
        if text:
            assert report.accelerator is not None
            assert report.accelerator.experts == len(bound)
            assert report.accelerator.used <= report.accelerator.size == 4 << 20
            assert report.predicted.device is not None
            assert 0 < report.predicted.device.busy_share <= 1
            assert report.predicted.limits["load"] == "copying experts to npu"
            assert {"npu DMA speed", "npu multiply-adds"} <= {
                i.name for i in report.predicted.inputs
            }
        else:
            assert report.accelerator is None
            assert report.predicted.device is None
    assert speeds == sorted(speeds)
    routed = sum(report.predicted.bytes_per_token[kind] for kind in ("routed", "bound"))
    assert report.predicted.bytes_per_token["routed"] == 0
    layers, top_k = demo.config["layers"], demo.config["top_k"]
    assert routed == pytest.approx(layers * top_k * demo.experts[0].bytes, rel=0.01)


@pytest.mark.parametrize(
    ("old", "new", "where", "what"),
    [
        ('memory_bytes = "4 MiB"', 'memory_bytes = "4M"', "accelerator.memory_bytes", "MiB"),
        ('name = "npu"', "", "accelerator", "missing key 'name'"),
        ('name = "npu"', 'name = "a=b"', "accelerator.name", ""),
        ("read_Bps", "read_bps", "accelerator", "did you mean 'read_Bps'?"),
        ("value = 100_000_000", "value = 0", "accelerator.dma_Bps.value", "out of range"),
        ('cls = "declared"', 'cls = "guessed"', "accelerator.macs_per_s.cls", "declared"),
    ],
)
def test_a_wrong_accelerator_table_is_named(
    tmp_path: Path, old: str, new: str, where: str, what: str
) -> None:
    path = board_file(tmp_path)
    head, table, tail = path.read_text().partition("[accelerator]")
    assert old in tail
    path.write_text(head + table + tail.replace(old, new, 1))
    board, problems = check_board_file(path)
    assert board is None
    assert any(where in p.where and what in p.message for p in problems), problems


def test_binding_on_a_board_without_an_accelerator(demo: Image) -> None:
    board = load_board(BOARD)
    with pytest.raises(EmulateError, match=r"no accelerator .* \[accelerator\]"):
        run_twin(demo, board, Request([1], Sampling(), 1, ignore_eos=True),
                 plan(demo, board, context=8), bound=((0, 0),))  # fmt: skip


def test_emulate_bind(tmp_path: Path, demo: Image, capsys: pytest.CaptureFixture[str]) -> None:
    from colibri import cli

    def emulate(*words: str, memory: str = "4 MiB") -> tuple[int, str, str]:
        board = str(board_file(tmp_path, memory))
        common = ("--tokens", "1,2,3", "--max-new-tokens", "2", "--context", "32")
        code = cli.main(["emulate", str(demo.path), "--board", board, *common, *words])
        out, err = capsys.readouterr()
        return code, out, err

    code, out, _ = emulate("--bind", "npu=0-3@0-2", "--bind", "npu=1,7", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["accelerator"]["experts"] == 3 * 4 + 3 + 2 * 3
    plain = json.loads(emulate("--json")[1])
    assert plain["accelerator"] is None
    assert plain["logits_crc32"] == found["logits_crc32"]
    code, out, _ = emulate("--bind", "npu=all")
    assert code == 0
    assert "96 experts bound" in out
    assert "beside the CPU  (predicted)" in out
    code, _, err = emulate("--bind", "npu=all", memory="64 KiB")
    assert code == 1
    assert "no memory left" in err
    assert "give it" in err
    for words, message in (
        (("--bind", "npu"), "NAME=EXPERTS"),
        (("--bind", "fpga=0"), "its accelerator is 'npu'"),
        (("--bind", "npu=0-16"), "is not in the image"),
        (("--bind", "npu=0", "--machine", "cpu"), "--machine native"),
    ):
        code, _, err = emulate(*words)
        assert code == 2
        assert message in " ".join(err.split())
