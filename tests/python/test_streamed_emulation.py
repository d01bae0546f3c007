# SPDX-License-Identifier: Apache-2.0
"""Experts streamed inside a board: the twin, its time, faults of the storage, and firmware."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from archive import global_symbols, writable_bytes
from colibri import Engine, Image, cli, plan
from colibri._core import EVENTS
from colibri.bench.synthetic import Synthetic, make_synthetic
from colibri.boards import Board, load_board
from colibri.convert import convert
from colibri.engine import EVENT
from colibri.errors import ColibriError, EmulateError, ImageError
from colibri.generate import Generation, Request, generate
from colibri.placement import Placement as ImagePlacement
from colibri.planner import Plan, plan_or_stream
from colibri.sampling import Sampling
from colibri_emulator.build_firmware import Firmware, build_firmware
from colibri_emulator.clock import Clock, Placement
from colibri_emulator.cpu import cpu_report, mailbox_request
from colibri_emulator.faults import NO_FAULTS, TIME_LIMIT, Faults, parse_faults
from colibri_emulator.image_needs import image_needs
from colibri_emulator.machine import pick_machine
from colibri_emulator.report import EmulationReport
from colibri_emulator.storage import file_medium
from colibri_emulator.toolchain import TARGETS
from colibri_emulator.twin import run_twin
from needs import need

Packed = Callable[[str], Path]
ROOT = Path(__file__).parents[2]
QUARTER = 24  # of the demo model's 96 experts
EXPERT, READ, WAIT = EVENTS["expert"], EVENTS["read"], EVENTS["read_wait"]
CONTEXT = 64
OLMOE = {
    "architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "vocab_size": 256,
    "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 4, "hidden_act": "silu",
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "tie_word_embeddings": False, "num_experts": 32, "num_experts_per_tok": 8,
    "norm_topk_prob": False, "clip_qkv": None, "eos_token_id": 3,
}  # fmt: skip


def documented(folder: Path) -> Board:
    """The board of docs/emulator.md: 1 MiB of RAM beside 2 MiB of flash and a card."""
    page = (ROOT / "docs" / "emulator.md").read_text("utf-8")
    text = re.search(r"```toml\n(.*?)```", page, re.DOTALL)
    assert text is not None
    path = folder / "card.toml"
    path.write_text(text.group(1), "utf-8")
    return load_board(path)


def resized(board: Board, **sizes: int) -> Board:
    """The board with some regions of another size."""
    regions = [r.model_copy(update={"size": sizes.get(r.name, r.size)}) for r in board.regions]
    return board.model_copy(update={"regions": regions})


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Board:
    return documented(tmp_path_factory.mktemp("board"))


@pytest.fixture(scope="module")
def board(small: Board) -> Board:
    """Its flash holds code alone, and it has RAM for the dense weights."""
    return resized(small, FLASH=1 << 20, PSRAM=2 << 20)


@pytest.fixture(scope="module")
def demo(demo_image: Packed) -> Image:
    """The demo model, read and never mapped."""
    return Image(demo_image("q4"), map=False)


@pytest.fixture(scope="module")
def request_(prompts: list[dict[str, list[int]]]) -> Request:
    return Request(prompts[0]["ids"][:12], Sampling(), 6, ignore_eos=True)


@pytest.fixture(scope="module")
def resident(demo_image: Packed, request_: Request) -> Generation:
    """The same request with every weight in memory."""
    return generate(Engine(Image(demo_image("q4")), CONTEXT), request_)


def same(report: EmulationReport, done: Generation) -> bool:
    return (report.tokens, report.logits_crc32) == (done.tokens, done.logits_crc32)


# The twin


@pytest.mark.parametrize("policy", ["auto", "lru", "frequency", "least-stale"])
@pytest.mark.parametrize("slots", [2, 12, QUARTER, 96])
def test_the_twin_has_the_resident_runs_bits_in_any_slots(
    demo: Image, board: Board, request_: Request, resident: Generation, slots: int, policy: str
) -> None:
    if slots == 96:  # all experts: more than the small board has room for
        board = load_board("raspberry-pi-zero-2w")
    made = plan(demo, board, CONTEXT, streamed=True, expert_slots=slots, policy=policy)
    report = run_twin(demo, board, request_, made)
    assert report.fault is None
    assert same(report, resident)
    use = report.experts
    assert use is not None
    assert use["slots"] == slots
    assert use["bytes_read"] == use["misses"] * demo.experts[0].bytes
    assert use["retries"] == 0
    assert report.high_water == made.total_bytes
    if slots == 96:
        assert use["misses"] == len(set(_asked(demo, request_)))


def _asked(demo: Image, request: Request) -> list[tuple[int, int]]:
    """(layer, expert) of every use, from a run of its own."""
    engine = Engine(demo, CONTEXT, weights="streamed", trace=True)
    generate(engine, request)
    trace = engine.take_trace()
    chosen = trace[trace["kind"] == EXPERT]
    return list(zip(chosen["layer"].tolist(), chosen["index"].tolist(), strict=True))


def test_streaming_is_chosen_where_nothing_else_fits(demo: Image, board: Board) -> None:
    made = plan_or_stream(demo, board, context=CONTEXT)
    assert made.fits
    assert made.weights == "streamed"
    assert made.experts is not None
    assert "streamed because with all weights the image needs 5.0 MiB" in made.experts["why"]
    large = load_board("raspberry-pi-zero-2w")
    assert plan_or_stream(demo, large, context=CONTEXT) == plan(demo, large, CONTEXT)
    nothing = plan_or_stream(demo, board.model_copy(update={"storage": []}), context=CONTEXT)
    assert not nothing.fits
    assert nothing.weights == "mapped"


def test_pins_stay_and_change_no_bit(
    demo: Image, board: Board, request_: Request, resident: Generation
) -> None:
    pins = [(layer, expert) for expert in (3, 5) for layer in range(6)]
    made = plan(demo, board, CONTEXT, streamed=True, expert_slots=QUARTER, pins=pins)
    report = run_twin(demo, board, request_, made, pins=pins)
    assert same(report, resident)
    assert made.experts is not None
    assert report.experts is not None
    assert report.experts["pinned"] == made.experts["pinned"] == 12


@pytest.mark.parametrize("name", ["card", "pimoroni-pico-plus-2"])
def test_the_report_splits_time_and_says_what_is_predicted(
    demo_image: Packed, board: Board, request_: Request, resident: Generation, name: str
) -> None:
    """From a card reads go on beside compute; out of mapped flash the CPU copies them."""
    where = board if name == "card" else load_board(name)
    image = Image(demo_image("q4"), map=name != "card")
    made = plan(image, where, CONTEXT, streamed=True, expert_slots=QUARTER)
    assert made.weights == ("streamed" if name == "card" else "streamed-mapped")
    report = run_twin(image, where, request_, made)
    assert same(report, resident)
    found = report.predicted
    assert found is not None
    assert found.storage is not None
    assert found.decode_tok_s is not None
    token = 1 / found.decode_tok_s.mid
    assert found.storage.compute_s.mid + found.storage.waiting_s.mid == pytest.approx(token)
    assert found.storage.waiting_s.mid > 0
    assert found.storage.name == ("SD" if name == "card" else "FLASH")
    assert (found.storage.hidden_share > 0) == (name == "card")
    if name == "card":  # tables and dense weights are read first, by the curve
        medium = file_medium(where)
        assert medium is not None
        assert image.section("weights") is not None
        sizes = image.meta_bytes, image.section("weights").bytes  # type: ignore[union-attr]
        reading = sum(medium.seconds(size) for size in sizes) / 0.8
        checksums = sizes[1] * 12.1 / where.cores[0].freq_hz
        assert found.load_s.mid == pytest.approx(reading + checksums)
    else:
        assert found.load_s.high == 0


def test_reads_overlap_compute_until_they_are_waited_for(board: Board) -> None:
    """Two reads one after the other beside work that hides a part of the first."""
    places = Placement("PSRAM", "SRAM", "SRAM", slots="PSRAM")
    medium = file_medium(board)
    assert medium is not None
    record = 41_472
    alone = medium.seconds(record, record) / 0.8
    clock = Clock(board, places, workers=1, medium=medium)
    rate = 1 / clock.charge(events((EXPERT, 9, 0, 10**6))).seconds["mid"] * 1e6
    work = int(0.6 * alone * rate)
    reads = ((READ, 1, record, 0), (READ, 2, record, 0))
    waits = ((WAIT, 1, record, 0), (WAIT, 2, record, 0))
    charge = clock.charge(events(*reads, (EXPERT, 9, 0, work), *waits))
    told = charge.reads["mid"]
    assert told.working == pytest.approx(2 * alone)
    # The checksum of the first is computed while the second is under way.
    assert told.waited == pytest.approx(0.4 * alone + alone - told.checking / 2, rel=0.01)
    late = Clock(board, places, workers=1, medium=medium, faults=parse_faults("2:late=50ms"))
    more = late.charge(events(*reads, (EXPERT, 9, 0, work), *waits)).reads["mid"]
    assert more.waited == pytest.approx(told.waited + 0.05)


def events(*rows: tuple[int, int, int, int]) -> np.ndarray:
    """Events of layer 0 from (kind, index, bytes, work)."""
    return np.array([(kind, 0, index, 0, size, work) for kind, index, size, work in rows], EVENT)


def test_a_model_larger_than_the_board_needs_the_boards_memory(tmp_path: Path) -> None:
    """OLMoE's structure, narrow: 27 MB of weights on a board with 8 MiB for the engine."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(OLMOE), "utf-8")
    image = make_synthetic(Synthetic(config, "f32"), tmp_path / "olmoe.colibri")
    assert image.total_bytes > 26e6
    code = f"""
        import resource
        from colibri import Image
        from colibri.boards import load_board
        from colibri.generate import Request
        from colibri.planner import plan
        from colibri.sampling import Sampling
        from colibri_emulator.twin import run_twin
        image, board = Image({str(image.path)!r}, map=False), load_board("ti-sk-am62")
        request = Request([1, 2, 3, 4], Sampling(), 4, ignore_eos=True)
        made = plan(image, board, 16, streamed=True, memory=8 << 20)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        image.verify()
        report = run_twin(image, board, request, made)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        print(report.logits_crc32, report.high_water, report.experts['misses'] > 20, grown << 10)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    crc, high_water, many, grown = done.stdout.split()
    request = Request([1, 2, 3, 4], Sampling(), 4, ignore_eos=True)
    assert crc == generate(Engine(image, 16), request).logits_crc32
    assert int(high_water) <= 8 << 20
    assert many == "True"
    assert int(grown) < 14 << 20  # the board's 8 MiB, its margin of paint, threads


# Faults


def test_faults_are_parsed_and_refused() -> None:
    faults = parse_faults("3:eio, 7-9:short,12:late=250ms,13:late=2s,20:never,31:corrupt")
    assert faults.outcomes() == [
        (3, "fail"), (7, "short"), (8, "short"), (9, "short"), (13, "fail"), (20, "fail"),
        (31, "corrupt"),
    ]  # fmt: skip
    durations = [faults.by_read[n].duration(0.25) for n in (3, 12, 13, 20)]
    assert durations == [0.25, 0.5, TIME_LIMIT, TIME_LIMIT]
    for wrong, why in (
        ("", "is not a fault"), ("x:eio", "is not a fault"), ("3:gone", "is not a fault"),
        ("0:eio", "numbered from 1"), ("9-7:eio", "numbered from 1"), ("3:late", "late takes"),
        ("3:eio=1s", "late takes"), ("3:late=1h", "us, ms or s"), ("3:eio,3:eio", "already"),
        ("1-2000000:eio", "more than"),
    ):  # fmt: skip
        with pytest.raises(EmulateError, match=why):
            parse_faults(wrong)


FAULTS = "1:short,2:corrupt,5:eio,9:never,11:late=20ms,14:short,15:corrupt"


def test_what_reading_again_mends_costs_time_and_changes_nothing(
    demo: Image, board: Board, request_: Request, resident: Generation
) -> None:
    made = plan(demo, board, CONTEXT, streamed=True, expert_slots=QUARTER)
    good, bad = (
        run_twin(demo, board, request_, made, faults=faults)
        for faults in (NO_FAULTS, parse_faults(FAULTS))
    )
    assert same(bad, resident)
    assert bad.fault is None
    assert good.experts is not None
    assert bad.experts is not None
    assert bad.experts["retries"] == 4  # the first two are of the dense weights, one is only late
    assert (bad.experts["hits"], bad.experts["misses"]) == (
        good.experts["hits"],
        good.experts["misses"],
    )
    assert good.predicted is not None
    assert bad.predicted is not None
    extra = bad.predicted.first_token_s.mid - good.predicted.first_token_s.mid
    assert TIME_LIMIT < extra < TIME_LIMIT + 1


@pytest.mark.parametrize("kind", ["eio", "short", "corrupt", "never", "late=9s"])
def test_a_read_that_stays_bad_ends_in_an_error_that_names_it(
    demo: Image, board: Board, request_: Request, resident: Generation, kind: str
) -> None:
    made = plan(demo, board, CONTEXT, streamed=True, expert_slots=QUARTER)
    total = run_twin(demo, board, request_, made).experts
    assert total is not None
    last = 1 + total["misses"]  # of the last token, or the one before
    report = run_twin(
        demo, board, request_, made, faults=parse_faults(f"{last}-{last + 99}:{kind}")
    )
    assert report.fault is not None
    assert re.search(r"layer \d+, expert \d+: ", report.fault)
    word = "checksum" if kind == "corrupt" else "reading failed"
    assert word in report.fault
    assert report.stop_reason is None
    assert 1 <= len(report.tokens) < len(resident.tokens)
    assert report.tokens == resident.tokens[: len(report.tokens)]
    assert report.experts is not None
    assert report.experts["retries"] == 2


def test_dense_weights_that_cannot_be_read_are_an_error(
    demo: Image, board: Board, request_: Request
) -> None:
    made = plan(demo, board, CONTEXT, streamed=True, expert_slots=QUARTER)
    with pytest.raises(ImageError, match="reading failed"):
        run_twin(demo, board, request_, made, faults=parse_faults("1-3:eio"))
    with pytest.raises(EmulateError, match="stream experts"):
        run_twin(demo, board, request_, plan(demo, board, CONTEXT), faults=parse_faults("1:eio"))


def test_an_engine_takes_faults_by_number(
    demo: Image, resident: Generation, request_: Request
) -> None:
    with pytest.raises(ColibriError, match="fault 'gone' is unknown"):
        Engine(demo, CONTEXT, weights="streamed", faults=[(1, "gone")])
    engine = Engine(demo, CONTEXT, weights="streamed", faults=[(3, "short"), (4, "corrupt")])
    assert generate(engine, request_).logits_crc32 == resident.logits_crc32
    assert engine.experts.retries == 2


# Firmware


@pytest.fixture(scope="module")
def firmware(
    demo_image: Packed, board: Board, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], Firmware]:
    """Firmware that streams, by board and toolchain, made once."""

    @cache
    def build(where: str, toolchain: str) -> Firmware:
        loaded = board if where == "card" else load_board(where)
        need(
            "module:ziglang" if toolchain == "zig"
            else TARGETS[loaded.firmware.target].gcc_prefix + "gcc"
        )  # fmt: skip
        return build_firmware(
            loaded, demo_image("q4"), tmp_path_factory.mktemp("fw") / "b", kv=("f32",),
            toolchain=toolchain, copy_model=False, weights="streamed",  # type: ignore[arg-type]
        )  # fmt: skip

    return build


Build = Callable[[str, str], Firmware]


def on_cpu(
    image: Image, board: Board, request: Request, made: Plan, firmware: Firmware,
    engine: str = "unicorn", faults: Faults = NO_FAULTS,
) -> EmulationReport:  # fmt: skip
    need("module:unicorn" if engine == "unicorn" else "qemu-system-arm")
    machine = pick_machine(board, engine, faults=faults)  # type: ignore[arg-type]
    result = machine.run(firmware, mailbox_request(image, request, made))
    return cpu_report(image, board, request, made, result)


@pytest.mark.parametrize(("where", "faults", "toolchain"), [
    ("card", "", "gcc"), ("card", FAULTS, "zig"), ("pimoroni-pico-plus-2", "", "gcc"),
])  # fmt: skip
def test_firmware_streams_as_the_twin_does(
    demo_image: Packed, board: Board, request_: Request, resident: Generation, firmware: Build,
    where: str, toolchain: str, faults: str,
) -> None:  # fmt: skip
    """A quarter of the experts in slots: tokens, bits, hits, misses, bytes and retries."""
    loaded = board if where == "card" else load_board(where)
    image = Image(demo_image("q4"), map=where != "card")
    injected = parse_faults(faults) if faults else NO_FAULTS
    made = plan(image, loaded, CONTEXT, streamed=True, expert_slots=QUARTER, policy="frequency")
    twin = run_twin(image, loaded, request_, made, faults=injected)
    built = firmware(where, toolchain)
    assert built.weights == made.weights
    report = on_cpu(image, loaded, request_, made, built, faults=injected)
    assert report.fault is None
    assert same(report, resident)
    assert same(twin, resident)
    assert report.experts == twin.experts
    assert report.experts is not None
    assert (report.experts["slots"], report.experts["policy"]) == (QUARTER, "frequency")
    assert (report.experts["retries"] > 0) == bool(faults)
    assert report.high_water == made.total_bytes


def test_firmware_has_its_core_in_flash_and_experts_on_a_card(
    demo: Image, small: Board, request_: Request, resident: Generation, tmp_path: Path
) -> None:
    """The documented board: 1 MiB of RAM for 4 MB of experts."""
    need("arm-none-eabi-gcc")
    path = tmp_path / "hybrid.colibri"
    assert demo.path is not None
    convert(demo.path, path, ImagePlacement.of("hybrid"))
    image = Image(path)
    made = plan_or_stream(image, small, context=CONTEXT)
    assert made.fits
    assert made.weights == "streamed-mapped"
    assert made.region("PSRAM").used > 0.9 * (1 << 20)
    faults = parse_faults("2:short,5:corrupt")
    twin = run_twin(image, small, request_, made, faults=faults)
    assert twin.predicted is not None
    assert twin.predicted.storage is not None
    assert twin.predicted.storage.name == "SD"
    assert twin.predicted.load_s.high == 0
    built = build_firmware(
        small, path, tmp_path / "b", toolchain="gcc", kv=("f32",), weights="streamed"
    )
    assert (tmp_path / "b" / "hybrid.colibri.1").is_file()
    path.with_name("hybrid.colibri.1").unlink()  # it runs what was built
    report = on_cpu(image, small, request_, made, built, faults=faults)
    assert same(report, resident)
    assert same(twin, resident)
    assert report.experts == twin.experts
    assert report.experts is not None
    assert report.experts["retries"] == 2


def test_firmware_whose_reads_stay_bad_says_which(
    demo: Image, board: Board, request_: Request, firmware: Build
) -> None:
    made = plan(demo, board, CONTEXT, streamed=True, expert_slots=QUARTER)
    faults = parse_faults("30-99:eio")
    twin = run_twin(demo, board, request_, made, faults=faults)
    report = on_cpu(demo, board, request_, made, firmware("card", "gcc"), faults=faults)
    assert twin.fault is not None
    assert report.fault is not None
    assert re.findall(r"layer \d+, expert \d+", report.fault) == re.findall(
        r"layer \d+, expert \d+", twin.fault
    )
    assert report.tokens == twin.tokens
    assert report.experts == twin.experts


def test_streaming_is_compiled_in_only_when_it_is_asked_for(
    demo_image: Packed, firmware: Build
) -> None:
    assert image_needs(demo_image("q4"), ("f32",)).parts["streaming"] is False
    assert image_needs(demo_image("q4"), ("f32",), streaming=True).parts["streaming"] is True
    defined, _ = global_symbols(firmware("card", "gcc").library)
    assert {"colibri_cache_take", "colibri_stream_next"} <= defined
    assert writable_bytes(firmware("card", "gcc").library) == 0


def test_a_cpu_without_a_block_device_is_refused(
    demo: Image, board: Board, request_: Request, firmware: Build
) -> None:
    """QEMU has only the devices that it has."""
    made = plan(demo, board, CONTEXT, streamed=True, expert_slots=QUARTER)
    fw = board.firmware.model_copy(update={"qemu_machine": "mps2-an505"})
    with pytest.raises(EmulateError, match="no block device"):
        on_cpu(demo, board.model_copy(update={"firmware": fw}), request_, made,
               firmware("card", "gcc"), engine="qemu")  # fmt: skip


# The command


def test_the_command_streams_and_reports(
    demo_image: Packed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(demo_image("q4"))
    documented(tmp_path)
    toml = tmp_path / "card.toml"
    toml.write_text(toml.read_text().replace('size = "1 MiB"', 'size = "2 MiB"'))
    base = ["emulate", path, "--board", str(toml), "--tokens", "48,2858,1135", "--context", "64",
            "--max-new-tokens", "3", "--ignore-eos", "--json"]  # fmt: skip

    def told(*more: str) -> tuple[int, dict[str, Any]]:
        code = cli.main([*base, *more])
        return code, json.loads(capsys.readouterr().out)

    code, auto = told()
    assert code == 0
    assert any("streamed because" in note for note in auto["notes"])
    code, few = told("--memory", "1800KiB", "--policy", "lru")
    assert code == 0
    assert few["total_bytes"] <= 1800 << 10
    assert few["logits_crc32"] == auto["logits_crc32"]
    assert few["experts"]["slots"] < auto["experts"]["slots"]
    assert set(few["experts"]) >= {
        "slots", "slots_per_layer", "policy", "hits", "misses", "bytes_read", "retries",
    }  # fmt: skip
    assert set(few["predicted"]["storage"]) == {"name", "compute_s", "waiting_s", "hidden_share"}
    code, bad = told("--faults", "20-90:never")
    assert code == 1
    assert "reading failed" in bad["fault"]
    assert cli.main([*base, "--machine", "cpu", "--pin", "trace.json"]) == 2
    assert "pins no experts" in capsys.readouterr().err
    code = cli.main([*base, "--faults", "nonsense"])
    assert code == 2
