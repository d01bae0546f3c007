# SPDX-License-Identifier: Apache-2.0
"""Room for the rest of the user's program, and for code: plans, twin, firmware, verdict."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest

import colibri
import colibri_emulator.cpu
from colibri.application import NOT_GIVEN, ROW
from colibri.boards import Board, load_board
from colibri.boards.budgets import SizeBudget
from colibri.boards.model import Target
from colibri.cli import main
from colibri.errors import BuildError, ColibriError, PlanError, SizeError, UnitError
from colibri.fit import judge
from colibri.generate import Request
from colibri.image import Image
from colibri.joint_plan import JointPlan
from colibri.pack import pack
from colibri.planner import Plan, plan_or_stream
from colibri.sampling import Sampling
from colibri_emulator.build_firmware import Firmware, build_firmware
from colibri_emulator.code_size import code_reserve, counted_sizes
from colibri_emulator.cpu import run_cpu
from colibri_emulator.image_needs import image_needs
from colibri_emulator.machine import Result, run_on_cpu
from colibri_emulator.twin import run_twin
from needs import need
from size_support import board as size_board
from test_firmware import BARE

PICO, LINUX, RAM = "pimoroni-pico-plus-2", "raspberry-pi-zero-2w", "SDRAM"
KIB = 1 << 10
DECLARED = {"SRAM": 70_000, "FLASH": 100_000}
GOLDEN = Path(__file__).resolve().parents[1] / "golden"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """A model of two layers."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.colibri"
    pack(GOLDEN / "mixtral", path, quant="q4")
    return Image(path)


@pytest.fixture
def small_flash() -> Board:
    """64 KiB of flash for the code, and the image in a memory beside it."""
    pico = load_board(PICO)
    flash = pico.region("FLASH")
    regions = [
        *(r.model_copy(update={"size": 64 * KIB}) if r is flash else r for r in pico.regions),
        flash.model_copy(update={"name": "NOR", "base": 0x6000_0000, "size": 1024 * KIB}),
    ]
    firmware = pico.firmware.model_copy(update={"model_region": "NOR"})
    return pico.model_copy(update={"regions": regions, "firmware": firmware})


def declared_rows(made: Plan | JointPlan) -> dict[str, tuple[int, int]]:
    """(offset, bytes) of the application by region."""
    return {
        region.name: (row.offset, row.bytes)
        for region in made.regions
        for row in region.buffers
        if row.name == ROW
    }


def free(made: Plan) -> dict[str, int]:
    return {region.name: region.size for region in made.memory.regions}


# Plans


@pytest.mark.parametrize("name", BARE)
def test_a_plan_leaves_the_room_in_every_region(tiny: Image, name: str) -> None:
    board = load_board(name)
    declared = {r.name: 8 * KIB + 1 for r in board.regions if r.usable}
    without = colibri.plan(tiny, board, 32)
    made = colibri.plan(tiny, board, 32, application=declared).require()
    assert declared_rows(made).keys() == declared.keys()
    for region in made.regions:
        assert region.used == sum(row.bytes for row in region.buffers) <= region.size
        for row, after in pairwise(region.buffers):
            assert row.offset + row.bytes <= after.offset
    for region, size in free(without).items():
        end = board.region(region).longest_piece[1]
        lost = end - declared_rows(made)[region][0]
        assert 8 * KIB + 1 <= lost < 8 * KIB + 1 + 64
        assert free(made).get(region, 0) == max(size - lost, 0)
    assert made.total_bytes == without.total_bytes
    assert made.max_context <= without.max_context


def test_it_lies_before_reserved_bytes(tiny: Image) -> None:
    pico = load_board(PICO)
    sram = pico.region("SRAM")
    part = {"offset": 500 * KIB, "size": 4 * KIB, "reason": "trace", "source": None}
    cut = type(sram).model_validate({**sram.model_dump(exclude={"usable"}), "reserved": [part]})
    regions = [cut if r is sram else r for r in pico.regions]
    board = pico.model_copy(update={"regions": regions})
    made = colibri.plan(tiny, board, 32, application={"SRAM": 64 * KIB}).require()
    assert declared_rows(made) == {"SRAM": (436 * KIB, 64 * KIB)}
    assert free(made)["SRAM"] == (436 - 32) * KIB
    refused = colibri.plan(tiny, board, 32, application={"SRAM": 501 * KIB})
    assert refused.lack is not None
    assert (refused.lack.have, refused.lack.need) == (500 * KIB, 501 * KIB)


def test_more_than_a_region_has(tiny: Image) -> None:
    made = colibri.plan(tiny, PICO, 32, application={"SRAM": 520 * KIB + 1})
    assert not made.fits
    assert made.max_context == 0
    assert made.lack is not None
    assert (made.lack.region, made.lack.have, made.lack.need) == (
        "SRAM", 520 * KIB, 520 * KIB + 1,
    )  # fmt: skip
    assert "(1 more)" in made.advice[0]
    assert made.region("SRAM").used > made.region("SRAM").size


def test_what_is_left_is_too_little_for_another_part(tiny: Image) -> None:
    """Each advice that names a figure is tried."""
    flash = 16 << 20
    made = colibri.plan(tiny, PICO, 32, application={"FLASH": flash - 64 * KIB})
    assert not made.fits
    assert "beside the application" in made.advice[0]
    assert "the image" in made.advice[0]
    most = int(made.advice[1].split("application ")[1].split()[0].replace(",", ""))
    assert colibri.plan(tiny, PICO, 32, application={"FLASH": most}).fits
    assert not colibri.plan(tiny, PICO, 32, application={"FLASH": most + 4096}).fits
    stack = colibri.plan(tiny, PICO, 32, application={"SRAM": 500 * KIB})
    assert not stack.fits
    assert "data needs 32 KiB, region SRAM has 20 KiB left beside" in stack.advice[0]


def test_the_longest_context_respects_it(tiny: Image) -> None:
    declared = {"SRAM": 400 * KIB, "PSRAM": 8 << 20}
    made = colibri.plan(tiny, PICO, 256, application=declared)
    assert not made.fits
    assert "for the engine beside the application's 409,600" in made.advice[0]
    longest = made.max_context
    assert 0 < longest < 256
    assert colibri.plan(tiny, PICO, longest, application=declared).fits
    assert not colibri.plan(tiny, PICO, longest + 1, application=declared).fits


def test_linux_boards(tiny: Image) -> None:
    board = load_board(LINUX)
    without = colibri.plan(tiny, board, 32)
    assert without.to_json()["application"] is None
    made = colibri.plan(tiny, board, 32, application={RAM: "100 MiB"}).require()
    end = board.region(RAM).longest_piece[1]
    assert declared_rows(made) == {RAM: (end - (100 << 20), 100 << 20)}
    assert free(without)[RAM] - free(made)[RAM] == 100 << 20
    assert made.region(RAM).used == without.region(RAM).used + (100 << 20)
    refused = colibri.plan(tiny, board, 32, application={RAM: 1 << 30})
    assert not refused.fits
    assert "the application needs" in refused.advice[0]
    refused = colibri.plan(tiny, board, 32, application={RAM: board.region(RAM).size - 4096})
    assert not refused.fits
    assert "for the os" in refused.advice[0]


@pytest.mark.parametrize("board", [PICO, LINUX])
def test_several_images(tiny: Image, board: str) -> None:
    region = "SRAM" if board == PICO else RAM
    without = colibri.plan_together([tiny, tiny], board, 32)
    made = colibri.plan_together([tiny, tiny], board, 32, application={region: 64 * KIB}).require()
    assert declared_rows(made)[region][1] == 64 * KIB
    assert made.total_bytes == without.total_bytes
    used = {r.name: r.used for r in made.regions}
    assert used == {r.name: r.used + 64 * KIB * (r.name == region) for r in without.regions}
    size = load_board(board).region(region).size
    refused = colibri.plan_together([tiny, tiny], board, 32, application={region: size + 1})
    assert not refused.fits
    assert refused.to_json()["application"] == {region: size + 1}


def test_streamed_experts_get_fewer_slots(tiny: Image) -> None:
    board = load_board(PICO)
    declared = {"SRAM": 380 * KIB, "PSRAM": 8 << 20}
    made = plan_or_stream(tiny, board, 16, streamed=True, application=declared)
    whole = colibri.plan(tiny, board, 16, streamed=True)
    assert made.fits
    assert made.experts is not None
    assert whole.experts is not None
    assert made.experts["slots"] < whole.experts["slots"]


@pytest.mark.parametrize(
    ("declared", "error", "says"),
    [
        ({"DTCM": 4}, PlanError, "SRAM, FLASH, PSRAM"),
        ({"": 4}, PlanError, "SRAM, FLASH, PSRAM"),
        ({"sram": 4}, PlanError, "SRAM, FLASH, PSRAM"),
        ({"SD": 4}, PlanError, "SRAM, FLASH, PSRAM"),
        ({"SRAM": -1}, UnitError, "SRAM: size -1 is negative"),
        ({"SRAM": 2**64}, UnitError, "64 bits"),
        ({"SRAM": "64 KB"}, UnitError, "64 KiB"),
        ({"SRAM": 1.5}, UnitError, "not a size"),
        ({"SRAM": True}, UnitError, "not a size"),
    ],
)
def test_what_cannot_be_declared(
    tiny: Image, declared: Any, error: type[ColibriError], says: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=says):
        colibri.plan(tiny, PICO, application=declared)
    with pytest.raises(error, match=says):
        build_firmware(load_board(PICO), tiny.name, tmp_path / "b", application=declared)


def test_the_largest_size_does_not_fit(tiny: Image) -> None:
    made = colibri.plan(tiny, PICO, application={"SRAM": 2**64 - 1})
    assert not made.fits
    assert json.loads(json.dumps(made.to_json()))["application"] == {"SRAM": 2**64 - 1}


def test_a_reserved_region_has_no_room(tiny: Image) -> None:
    made = colibri.plan(tiny, "st-stm32n6570-dk", 32, application={"VENCRAM": 1})
    assert not made.fits
    assert made.lack is not None
    assert made.lack.have == 0
    assert colibri.plan(tiny, "st-stm32n6570-dk", 32, application={"VENCRAM": 0}).fits


# The command line


def test_plan_says_what_was_declared(tiny: Image, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", tiny.name, "--board", PICO, "--context", "32"]
    assert main(words) == 0
    assert capsys.readouterr().out.count(NOT_GIVEN) == 1
    given = ["--application", "SRAM=64 KiB", "--application", "FLASH=1000"]
    assert main([*words, *given]) == 0
    text = capsys.readouterr().out
    assert f"{ROW}: SRAM 64 KiB, FLASH 1000 B" in text
    assert text.count(ROW) == 3
    assert main([*words, *given, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["application"] == {"SRAM": 64 * KIB, "FLASH": 1000}
    assert made["code"]["counted"] < made["code"]["bytes"]
    assert main(["plan", tiny.name, "--board", LINUX, "--context", "32"]) == 0
    assert "application" not in capsys.readouterr().out
    assert main([*words, "--application", "SRAM=521KiB"]) == 1
    assert main([*words[:2], tiny.name, *words[2:], *given]) == 0


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["SRAM=1", "SRAM=2"], "given twice"),
        (["SRAM"], "write REGION=SIZE"),
        (["=4"], "write REGION=SIZE"),
        (["SRAM="], "not a size"),
        (["SRAM=-4"], "negative"),
        (["SRAM=18446744073709551616"], "64 bits"),
        (["SRAM=64K"], "KiB"),
        (["NVM=4"], "SRAM, FLASH, PSRAM"),
        (["SRAM=\x1b[31m"], "not a size"),
    ],
)
def test_bad_options(
    tiny: Image, given: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [word for pair in given for word in ("--application", pair)]
    for command in (["plan", tiny.name], ["emulate", tiny.name, "--tokens", "1"],
                    ["build", "--image", tiny.name, "-o", "/nowhere"]):  # fmt: skip
        assert main([*command, "--board", PICO, *options]) == 2
        told = " ".join(capsys.readouterr().err.replace("│", " ").split())
        assert says in told
        assert "\x1b[31m" not in told


# Firmware


def test_twin_and_firmware_run_beside_it(tiny: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    need("module:ziglang", "module:unicorn")
    board, request = load_board(PICO), Request([1, 2, 3], Sampling(), 4, ignore_eos=True)
    planned = colibri.plan(tiny, board, 32, application=DECLARED).require()
    native = run_twin(tiny, board, request, planned)
    built: list[Firmware] = []

    def watched(*args: Any, **more: Any) -> tuple[Firmware, Result]:
        firmware, result = run_on_cpu(*args, **more)
        built.append(firmware)
        return firmware, result

    monkeypatch.setattr(colibri_emulator.cpu, "run_on_cpu", watched)
    cpu = run_cpu(tiny, board, request, planned)
    (firmware,) = built
    assert firmware.layout is not None
    assert firmware.application == DECLARED
    assert [(r.name, r.base, r.size) for r in firmware.layout.regions] == [
        (free.name, free.address, free.size) for free in planned.memory.regions
    ]
    code = planned.memory.code
    assert code is not None
    assert firmware.layout.code_limit - firmware.layout.code_start == code.bytes
    assert native.fault is cpu.fault is None
    assert cpu.tokens == native.tokens == run_twin(
        tiny, board, request, colibri.plan(tiny, board, 32)
    ).tokens  # fmt: skip
    assert cpu.logits_crc32 == native.logits_crc32
    assert cpu.total_bytes == native.total_bytes == planned.total_bytes
    shrunk = -(-DECLARED["SRAM"] // 64) * 64
    for report in (native, cpu):
        assert {r.name: r.size for r in report.regions}["SRAM"] == (520 - 32) * KIB - shrunk
        assert any("SRAM 68.4 KiB" in note for note in report.notes)


def test_a_build_leaves_it_out_and_the_verdict_counts_it(tiny: Image, tmp_path: Path) -> None:
    need("module:ziglang")
    board = load_board(PICO)
    without = build_firmware(board, tiny.name, tmp_path / "a", toolchain="zig")
    made = build_firmware(board, tiny.name, tmp_path / "b", toolchain="zig", application=DECLARED)
    assert made.layout is not None
    assert without.layout is not None
    assert (without.application, made.application) == (None, DECLARED)
    record = json.loads((tmp_path / "b" / "build.json").read_text())
    assert record["application"] == DECLARED
    shrunk = {"SRAM": -(-DECLARED["SRAM"] // 64) * 64, "PSRAM": 0}
    for before, after in zip(without.layout.regions, made.layout.regions, strict=True):
        assert (before.name, before.base, before.rank) == (after.name, after.base, after.rank)
        assert before.size - after.size == shrunk[before.name]
    assert made.layout.model_base == without.layout.model_base

    plain, beside = judge(made.elf, board), judge(made.elf, board, application=DECLARED)
    assert beside.verdict == plain.verdict == "fits"
    for before, after in zip(plain.map.usages, beside.map.usages, strict=True):
        name = after.region.name
        assert after.used - before.used == DECLARED.get(name, 0)
        assert after.unattributed == before.unattributed
        rows = [row for row in after.rows if row.kind == "application"]
        assert [(row.name, row.bytes) for row in rows] == (
            [(ROW, DECLARED[name])] if name in DECLARED else []
        )
    assert plain.attribution.objects == beside.attribution.objects
    over = judge(made.elf, board, application={"SRAM": 512 * KIB})
    assert over.verdict == "over"
    assert any(f.code == "overflow" and f.where == "SRAM" for f in over.findings)


def test_a_verdict_needs_a_region_of_the_board(tiny: Image, tmp_path: Path) -> None:
    raw = tmp_path / "raw.bin"
    raw.write_bytes(bytes(64))
    with pytest.raises(SizeError, match="give the board"):
        judge(raw, base=0x0800_0000, application={"SRAM": 4})
    with pytest.raises(PlanError, match="FLASH, SRAM"):
        judge(raw, size_board(), base=0x0800_0000, application={"RAM": 4})
    counted = judge(raw, size_board(), base=0x0800_0000, application={"FLASH": "4 KiB"})
    assert counted.map.usages[0].used == 64 + 4 * KIB
    assert counted.map.rule.endswith("is added.")


# Code


def test_64_kib_of_flash(tiny: Image, small_flash: Board, tmp_path: Path) -> None:
    need("module:ziglang")
    planned = colibri.plan(tiny, small_flash, 32).require()
    (row,) = planned.region("FLASH").buffers
    made = build_firmware(small_flash, tiny.name, tmp_path / "b", toolchain="zig")
    assert made.layout is not None
    assert row.bytes == made.layout.code_limit - made.layout.code_start
    assert made.bytes["code"] <= row.bytes < 64 * KIB
    assert judge(made.elf, small_flash).verdict == "fits"
    beside = colibri.plan(tiny, small_flash, 32, application={"FLASH": 60 * KIB})
    assert "code needs" in beside.advice[0]


def test_where_the_reserve_comes_from(tiny: Image) -> None:
    board = load_board(PICO)
    counted = code_reserve(board, [tiny], streaming=False)
    assert counted.counted is not None
    assert counted.counted * 1.1 <= counted.bytes < counted.counted * 1.1 + KIB
    assert f"{counted.counted:,} bytes counted" in counted.why
    streaming = code_reserve(board, [tiny], streaming=True)
    assert streaming.bytes > counted.bytes
    budget = board.budgets.model_copy(update={"code_bytes": SizeBudget(limit=50 * KIB)})
    budgeted = board.model_copy(update={"budgets": budget})
    made = colibri.plan(tiny, budgeted, 32)
    assert made.to_json()["code"] == {
        "bytes": 50 * KIB, "counted": None, "why": "50 KiB kept (budgets.code_bytes)",
    }  # fmt: skip
    assert colibri.plan(tiny, budgeted, 32, code=40 * KIB).region("FLASH").buffers[0].bytes == (
        40 * KIB
    )
    with pytest.raises(PlanError, match="1 or more"):
        colibri.plan(tiny, board, 32, code=0)
    refused = colibri.plan(tiny, board, 32, code=2**64)
    assert "code needs" in refused.advice[0]


def test_code_beyond_its_reserve_is_told_with_what_works(tiny: Image, tmp_path: Path) -> None:
    need("module:ziglang")
    board = load_board(PICO)
    with pytest.raises(BuildError, match=r"--code \d+") as refused:
        build_firmware(board, tiny.name, tmp_path / "b", toolchain="zig", code=20 * KIB)
    assert not (tmp_path / "b").exists()
    enough = int(str(refused.value).split("--code ")[1].split()[0])
    made = build_firmware(board, tiny.name, tmp_path / "b", toolchain="zig", code=enough)
    assert made.layout is not None
    assert made.layout.code_limit - made.layout.code_start == enough
    with pytest.raises(BuildError, match=f"--code {enough}"):
        build_firmware(board, tiny.name, tmp_path / "c", toolchain="zig", code=enough - 1)


def test_every_part_and_target_is_counted(tiny: Image) -> None:
    table, compilers = counted_sizes(), {"gcc", "zig"}
    assert table["targets"].keys() == {
        name for name in get_args(Target) if not name.endswith("-linux-musl")
    }
    assert table["parts"].keys() == table["compilers"].keys() == compilers
    for parts in table["parts"].values():
        assert parts.keys() == image_needs(tiny, ()).parts.keys(), "count again: code_sizes.py"
        assert min(parts.values()) == 0 < max(parts.values())
    for bounds in table["targets"].values():
        assert bounds.keys() == compilers
        assert all(16 * KIB < each["least"] < each["all"] for each in bounds.values())


def test_one_more_option_has_one_more_place() -> None:
    """`Limits` and the keywords of `plan` are the same."""
    from dataclasses import fields

    from colibri.limits import LimitOptions, Limits

    names = {field.name for field in fields(Limits)}
    assert names == LimitOptions.__annotations__.keys() | {"context"}
    options: Callable[..., Plan] = colibri.plan
    with pytest.raises(TypeError, match="contxt"):
        options("nothing", PICO, contxt=4)
