# SPDX-License-Identifier: Apache-2.0
"""The firmware on emulated CPUs: the host's tokens, bits and plan; faults; counts."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from colibri.boards import Board, load_board
from colibri.engine import Engine
from colibri.errors import EmulateError
from colibri.generate import Generation, generate
from colibri.generate import Request as HostRequest
from colibri.image import Image
from colibri.image_format import Order
from colibri.pack import pack
from colibri.planner import plan
from colibri.sampling import Sampling
from colibri_emulator import machine as machines
from colibri_emulator.build_firmware import Firmware, build_firmware
from colibri_emulator.machine import Machine, Result, pick_machine
from colibri_emulator.mailbox import TOKENS, Request
from colibri_emulator.toolchain import TARGETS
from needs import need

Packed = Callable[[str], Path]

PICO, N6, AN547 = "pimoroni-pico-plus-2", "st-stm32n6570-dk", "arm-mps3-an547"
A53, RV64, RVV = "qemu-virt-aarch64-2gb", "qemu-virt-riscv64", "qemu-virt-riscv64v"
LINUX, A76 = "ti-sk-am62", "raspberry-pi-5-2gb"
CONTEXT, KV, NEW = 128, "f16", 4
PROGRAM = {AN547: "qemu-system-arm", A53: "qemu-system-aarch64", RV64: "qemu-system-riscv64",
           RVV: "qemu-system-riscv64", LINUX: "qemu-aarch64", A76: "qemu-aarch64"}  # fmt: skip
RUNS = [
    (board, engine, toolchain)
    for board, engine in ((PICO, "unicorn"), (N6, "unicorn"), (AN547, "qemu"), (A53, "unicorn"),
                          (A53, "qemu"), (RV64, "unicorn"), (RV64, "qemu"), (RVV, "qemu"))
    for toolchain in ("zig", "gcc")
] + [(LINUX, "qemu", "zig"), (A76, "qemu", "zig")]  # fmt: skip


@pytest.fixture(scope="session")
def prompt(prompts: list[dict[str, list[int]]]) -> tuple[int, ...]:
    """A real prompt, long enough for more than one token per step."""
    return tuple(prompts[0]["ids"][:12])


@pytest.fixture(scope="session")
def host(demo_image: Packed, prompt: tuple[int, ...]) -> Generation:
    """The same request on this machine."""
    engine = Engine(Image(demo_image("q4")), context=CONTEXT, kv=KV)
    return generate(engine, HostRequest(prompt, Sampling(), NEW, ignore_eos=True))


@pytest.fixture(scope="session")
def firmware(
    demo_image: Packed, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str, str], Firmware]:
    """A build by board, target and toolchain, made once."""

    @cache
    def build(board: str, target: str, toolchain: str) -> Firmware:
        return build_firmware(
            load_board(board), demo_image("q4"), tmp_path_factory.mktemp("fw") / "b",
            toolchain=toolchain,  # type: ignore[arg-type]
            target=target, kv=(KV,), copy_model=False,
        )  # fmt: skip

    return build


Build = Callable[[str, str, str], Firmware]


def machine_for(board: str, engine: str, toolchain: str) -> Machine:
    """The machine, if its tools are here."""
    loaded = load_board(board)
    need("module:unicorn" if engine == "unicorn" else PROGRAM[board])
    machine = pick_machine(loaded, engine)  # type: ignore[arg-type]
    need("module:ziglang" if toolchain == "zig" else TARGETS[machine.target].gcc_prefix + "gcc")
    return machine


def request(prompt: tuple[int, ...], **changes: object) -> Request:
    settings: dict[str, object] = {
        "max_new_tokens": NEW, "ignore_eos": True, "context": CONTEXT, "kv": KV, **changes,
    }  # fmt: skip
    return Request(prompt=prompt, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(("board", "engine", "toolchain"), RUNS)
def test_tokens_bits_and_plan_are_the_hosts(
    board: str, engine: str, toolchain: str, demo_image: Packed, firmware: Build,
    prompt: tuple[int, ...], host: Generation,
) -> None:  # fmt: skip
    machine = machine_for(board, engine, toolchain)
    made = firmware(board, machine.target, toolchain)
    result = machine.run(made, request(prompt))
    assert result.ok, result
    assert list(result.tokens) == host.tokens
    assert result.logits_crc32 == host.logits_crc32

    planned = plan(demo_image("q4"), load_board(board), context=CONTEXT, kv=KV).require()
    assert result.total_bytes == planned.total_bytes
    assert result.high_water == result.used
    assert (
        buffers_of(result, made, board)
        == {
            (region.name, row.offset, row.bytes)
            for region in planned.regions
            for row in region.buffers
            if row.name not in ("firmware", "logits", "image", "reserved", "os")
        }
        or made.layout is None
    )
    if made.layout is not None:
        assert 0 < result.stack_high_water < result.stack_bytes // 2
        assert result.stack_bytes == load_board(board).firmware.stack_bytes
    assert result.instructions is not None
    assert result.instructions > 1_000_000


def buffers_of(result: Result, made: Firmware, board: str) -> set[tuple[str, int, int]]:
    """The firmware's buffers as offsets in the board's regions."""
    if made.layout is None:
        return set()
    origin = {r.name: r.base - load_board(board).region(r.name).base for r in made.layout.regions}
    return {(b.region, b.offset + origin[b.region], b.bytes) for b in result.buffers}


@pytest.mark.parametrize("board", [A53, RV64])
def test_engines_count_the_same_instructions(
    board: str, firmware: Build, prompt: tuple[int, ...]
) -> None:
    results = []
    for engine in ("unicorn", "qemu"):
        machine = machine_for(board, engine, "zig")
        results.append(machine.run(firmware(board, machine.target, "zig"), request(prompt[:3])))
    assert results[0].instructions == results[1].instructions
    assert results[0].stack_high_water == results[1].stack_high_water


def test_thumb_is_counted_like_qemu_counts_it(
    demo_image: Packed, prompt: tuple[int, ...], tmp_path: Path
) -> None:
    """The M55 machine of QEMU runs M33 code, on a memory map that Unicorn can have too."""
    board = load_board(AN547)
    fw = board.firmware.model_copy(update={"target": "cortex-m33", "unicorn_cpu": "cortex-m33"})
    board = board.model_copy(update={"firmware": fw})
    need("module:unicorn", "qemu-system-arm", "module:ziglang")
    made = build_firmware(board, demo_image("q4"), tmp_path / "b", toolchain="zig", kv=(KV,))
    one, two = (
        pick_machine(board, engine).run(made, request(prompt[:2], max_new_tokens=1))
        for engine in ("unicorn", "qemu")
    )
    assert one.instructions == two.instructions
    assert (one.tokens, one.logits_crc32) == (two.tokens, two.logits_crc32)


@pytest.mark.parametrize(
    "options", ["virtualization=on", "secure=on", "secure=on,virtualization=on"]
)
def test_aarch64_starts_from_every_exception_level(
    options: str, firmware: Build, prompt: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = machine_for(A53, "qemu", "zig")
    made = firmware(A53, machine.target, "zig")
    plain = machine.run(made, request(prompt[:2], max_new_tokens=1))
    machine = smp_machine(monkeypatch, "zig", (), f"virt,{options}")
    other = machine.run(made, request(prompt[:2], max_new_tokens=1))
    assert other.ok
    assert other.logits_crc32 == plain.logits_crc32


def test_linux_board_with_threads_gives_the_same_bits(
    firmware: Build, prompt: tuple[int, ...], host: Generation
) -> None:
    machine = machine_for(LINUX, "qemu", "zig")
    result = machine.run(firmware(LINUX, machine.target, "zig"), request(prompt, workers=3))
    assert (list(result.tokens), result.logits_crc32) == (host.tokens, host.logits_crc32)
    assert result.instructions is None  # not exact over threads, so not given


@pytest.fixture(scope="session")
def tiles(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model with its weights in tiles, as wide vectors read them."""
    path = tmp_path_factory.mktemp("tiles") / "q4.colibri"
    pack(demo, path, quant="q4", order=Order.TILES, jobs=os.cpu_count() or 1)
    return path


def with_features(board: str, *features: str) -> Board:
    """A board with another core, which QEMU's `max` is."""
    loaded = load_board(board)
    core = loaded.cores[0]
    more = {"features": [*core.features, *features], "cpu": "neoverse-v1" if features else core.cpu}
    return loaded.model_copy(update={"cores": [core.model_copy(update=more)]})


@pytest.mark.parametrize(
    ("board", "features", "kernels"),
    [(A53, (), "neon"), (A76, (), "neon-dot"), (A76, ("i8mm",), "neon-i8mm"), (RVV, (), "rvv")],
)
def test_vector_kernels_read_tiles_with_the_hosts_bits(
    board: str, features: tuple[str, ...], kernels: str, tiles: Path,
    prompt: tuple[int, ...], host: Generation, tmp_path: Path,
) -> None:  # fmt: skip
    need(PROGRAM[board], "module:ziglang")
    loaded = with_features(board, *features)
    machine = pick_machine(loaded, "qemu")
    made = build_firmware(
        loaded, tiles, tmp_path / "b", toolchain="zig", kv=(KV,), copy_model=False
    )
    assert made.kernels == kernels
    result = machine.run(made, request(prompt))
    assert (list(result.tokens), result.logits_crc32) == (host.tokens, host.logits_crc32)
    want = machine.run(made, Request(selftest=True, context=CONTEXT, kv=KV, max_new_tokens=0))
    assert (want.status, want.stage) == (0, "selftest")


def test_linux_program_tells_about_huge_pages(
    firmware: Build, prompt: tuple[int, ...], host: Generation
) -> None:
    machine = machine_for(LINUX, "qemu", "zig")
    made = firmware(LINUX, machine.target, "zig")
    words = [str(made.elf), str(made.model), ",".join(map(str, prompt)), "huge=1", "kv=2"]
    settings = [f"max_new={NEW}", f"context={CONTEXT}", "ignore_eos=1", "workers=1"]
    done = subprocess.run(
        [PROGRAM[LINUX], *words, *settings], capture_output=True, text=True, check=True
    )
    out = json.loads(done.stdout)
    assert (out["tokens"], out["logits_crc32"]) == (host.tokens, host.logits_crc32)
    held, huge, reason = out["pages"]
    assert huge <= held
    assert reason or huge == held >= made.model.stat().st_size


SINGLE = ("-accel", "tcg,thread=single")  # QEMU's cores take turns on one thread of the host


@pytest.mark.parametrize("toolchain", ["zig", "gcc"])
@pytest.mark.parametrize(("workers", "more"), [(2, ()), (3, ()), (4, ()), (4, SINGLE)])
def test_cores_that_psci_started_give_the_same_bits(
    workers: int, more: tuple[str, ...], toolchain: str, firmware: Build, demo_image: Packed,
    prompt: tuple[int, ...], host: Generation, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    machine = smp_machine(monkeypatch, toolchain, more)
    result = machine.run(firmware(A53, machine.target, toolchain), request(prompt, workers=workers))
    assert result.ok, result
    assert (list(result.tokens), result.logits_crc32) == (host.tokens, host.logits_crc32)
    assert result.cores == workers
    assert 0 < result.stack_high_water < result.stack_bytes // 2
    assert result.instructions is None  # not exact over cores, so not given
    planned = plan(demo_image("q4"), load_board(A53), context=CONTEXT, kv=KV, workers=workers)
    assert result.high_water == result.used
    assert result.total_bytes == planned.require().total_bytes


def smp_machine(
    monkeypatch: pytest.MonkeyPatch, toolchain: str, more: tuple[str, ...], machine: str = "virt"
) -> Machine:
    """QEMU with several cores and more options."""
    from colibri_emulator.qemu_engine import QemuMachine

    found = machine_for(A53, "qemu", toolchain)
    assert isinstance(found, QemuMachine)
    command = found._command

    def with_options(*arguments: object) -> list[str]:
        words = [machine if word == "virt" else word for word in command(*arguments)]  # type: ignore[arg-type]
        return [*words, *more]

    monkeypatch.setattr(found, "_command", with_options)
    return found


def test_psci_by_smc_from_el2(
    demo_image: Packed, prompt: tuple[int, ...], host: Generation, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """With EL2, QEMU's PSCI is reached by smc, and cores start there."""
    machine = smp_machine(monkeypatch, "zig", (), "virt,virtualization=on")
    board = load_board(A53)
    fw = board.firmware.model_copy(update={"psci": "smc"})
    made = build_firmware(
        board.model_copy(update={"firmware": fw}), demo_image("q4"), tmp_path / "b",
        toolchain="zig", kv=(KV,), copy_model=False,
    )  # fmt: skip
    result = machine.run(made, request(prompt, workers=4))
    assert (list(result.tokens), result.logits_crc32) == (host.tokens, host.logits_crc32)
    assert result.cores == 4


def test_the_self_test_runs_on_all_cores(firmware: Build) -> None:
    machine = machine_for(A53, "qemu", "zig")
    asked = Request(selftest=True, context=CONTEXT, kv=KV, max_new_tokens=0, workers=4)
    result = machine.run(firmware(A53, machine.target, "zig"), asked)
    assert (result.status, result.stage, result.cores) == (0, "selftest", 4)


def test_a_core_that_is_not_there_is_reported(
    firmware: Build, prompt: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three cores are asked for on a machine that has two: PSCI refuses, the firmware says so."""
    machine = smp_machine(monkeypatch, "zig", ("-smp", "2"))
    result = machine.run(firmware(A53, machine.target, "zig"), request(prompt, workers=3))
    assert (result.status, result.stage, result.error) == (22, "cores", (4, 3, 4))


def test_more_workers_than_an_engine_has_cores_are_refused(
    firmware: Build, prompt: tuple[int, ...]
) -> None:
    machine = machine_for(A53, "unicorn", "zig")
    with pytest.raises(EmulateError, match="Unicorn emulates one core, not 2"):
        machine.run(firmware(A53, machine.target, "zig"), request(prompt, workers=2))
    with pytest.raises(EmulateError, match="Unicorn emulates one core, not 2"):
        pick_machine(load_board(A53), "unicorn", workers=2)
    with pytest.raises(EmulateError, match="works on 4 cores, not 5"):
        pick_machine(load_board(A53), workers=5)
    with pytest.raises(EmulateError, match="works on 1 core, not 2: its board file names no psci"):
        pick_machine(load_board(PICO), workers=2)
    need("qemu-system-aarch64")
    assert "qemu" in pick_machine(load_board(A53), workers=2).name


def test_sampling_and_seed_reach_the_firmware(
    demo_image: Packed, firmware: Build, prompt: tuple[int, ...]
) -> None:
    machine = machine_for(PICO, "unicorn", "zig")
    drawn = Sampling(temperature=0.9, top_k=20, top_p=0.95, seed=7)
    engine = Engine(Image(demo_image("q4")), context=CONTEXT, kv=KV)
    want = generate(engine, HostRequest(prompt[:4], drawn, NEW, ignore_eos=True))
    got = machine.run(
        firmware(PICO, machine.target, "zig"),
        request(prompt[:4], temperature=0.9, top_k=20, top_p=0.95, seed=7),
    )
    assert (list(got.tokens), got.logits_crc32) == (want.tokens, want.logits_crc32)


# Self-test


@pytest.mark.parametrize(
    ("board", "engine"), [(PICO, "unicorn"), (A53, "unicorn"), (RV64, "qemu"), (LINUX, "qemu")]
)
def test_selftest_passes_on_the_device(board: str, engine: str, firmware: Build) -> None:
    machine = machine_for(board, engine, "zig")
    result = machine.run(
        firmware(board, machine.target, "zig"),
        Request(selftest=True, context=CONTEXT, kv=KV, max_new_tokens=0),
    )
    assert (result.status, result.stage) == (0, "selftest")


def test_selftest_finds_a_changed_weight(demo_image: Packed, tmp_path: Path) -> None:
    machine = machine_for(PICO, "unicorn", "zig")
    image = Image(demo_image("q4"))
    data = bytearray(demo_image("q4").read_bytes())
    query = next(t for t in image.tensors if t.name == "query")
    data[query.offset : query.offset + 64] = bytes(64)
    changed = tmp_path / "changed.colibri"
    changed.write_bytes(data)
    made = build_firmware(load_board(PICO), changed, tmp_path / "b", toolchain="zig", kv=(KV,))
    result = machine.run(made, Request(selftest=True, context=CONTEXT, kv=KV, max_new_tokens=0))
    assert result.stage == "selftest"
    assert result.status == 81  # COLIBRI_ERR_SELFTEST
    assert result.error[1] != result.error[2]


# Errors and faults


def test_firmware_reports_the_runtimes_errors(firmware: Build, prompt: tuple[int, ...]) -> None:
    machine = machine_for(PICO, "unicorn", "zig")
    made = firmware(PICO, machine.target, "zig")
    outside = machine.run(made, request((1, 99_999)))
    assert (outside.status, outside.stage, outside.error[0]) == (2, "infer", 1)  # TOKEN, at 1
    long = machine.run(made, request(tuple(range(1, 20)), context=16))
    assert (long.status, long.stage, long.error[2]) == (4, "infer", 19)  # CONTEXT, need 19
    assert not long.ok
    missing = machine.run(made, request(prompt, kv="q8"))
    assert (missing.status, missing.stage) == (22, "plan")  # LIMIT: q8 is not compiled in


def without(board: Board, name: str) -> Board:
    return board.model_copy(update={"regions": [r for r in board.regions if r.name != name]})


@pytest.mark.parametrize("board", [PICO, A53, RV64])
def test_memory_that_the_board_lacks_is_a_fault_with_symbol(
    board: str, firmware: Build, prompt: tuple[int, ...]
) -> None:
    """Firmware for the board, on a board whose RAM ends inside the firmware's arena."""
    machine = machine_for(board, "unicorn", "zig")
    made = firmware(board, machine.target, "zig")
    assert made.layout is not None
    whole = load_board(board)
    arena = made.layout.regions[0]
    region = whole.region(arena.name)
    cut = -(-(arena.base - region.base + 4096) // 4096) * 4096
    regions = [
        r.model_copy(update={"size": cut}) if r.name == region.name else r for r in whole.regions
    ]
    from colibri_emulator.unicorn_engine import UnicornMachine

    result = UnicornMachine(whole.model_copy(update={"regions": regions})).run(
        made, request(prompt)
    )
    assert result.fault is not None
    assert "unmapped" in result.fault.kind
    assert result.fault.address >= region.base + cut
    assert "+0x" in result.fault.where
    assert result.stack_high_water > 0


def test_access_rights_are_enforced(firmware: Build) -> None:
    """A board whose SRAM is read-only: the first store to it is named."""
    machine = machine_for(PICO, "unicorn", "zig")
    from colibri_emulator.unicorn_engine import UnicornMachine

    board = load_board(PICO)
    regions = [
        r.model_copy(update={"access": "rx"}) if r.name == "SRAM" else r for r in board.regions
    ]
    result = UnicornMachine(board.model_copy(update={"regions": regions})).run(
        firmware(PICO, machine.target, "zig"), Request(prompt=(1,), kv=KV, context=CONTEXT)
    )
    assert result.fault is not None
    assert result.fault.kind.startswith("write to read-only memory")


@pytest.mark.parametrize("workers", [1, 4])
def test_qemu_faults_are_recorded_by_the_vectors(
    workers: int, demo_image: Packed, tmp_path: Path, prompt: tuple[int, ...]
) -> None:
    """AArch64 firmware with a KV cache behind the end of a smaller machine's RAM."""
    need("qemu-system-aarch64", "module:ziglang")
    board = load_board(A53)
    ram = board.region("RAM")
    made = build_firmware(board, demo_image("q4"), tmp_path / "b", toolchain="zig", kv=(KV,))
    short = ram.model_copy(update={"size": 7 << 20})  # the image fits, the arena does not
    machine = pick_machine(board.model_copy(update={"regions": [short]}), "qemu")
    result = machine.run(made, request(prompt, context=1024, kv=KV, workers=workers))
    assert result.fault is not None
    assert result.fault.address >= ram.base + (7 << 20)
    assert "+0x" in result.fault.where


def test_mailbox_capacity_is_checked_before_the_run() -> None:
    with pytest.raises(EmulateError, match="at most 1023 new tokens"):
        Request(prompt=(1,), max_new_tokens=TOKENS).pack()


# The choice


def test_choice_says_which_engine_and_why() -> None:
    need("module:unicorn")
    assert "cortex-m33" in pick_machine(load_board(PICO)).name
    n6 = pick_machine(load_board(N6))
    assert n6.target == "cortex-m33"
    assert "cortex-m55" in n6.notes[0]
    need("qemu-system-arm")
    assert pick_machine(load_board(AN547)).target == "cortex-m55"


def test_choice_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "find_spec", lambda _name: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(EmulateError, match=r"colibri-sdk\[cpu\]"):
        pick_machine(load_board(PICO))
    with pytest.raises(EmulateError, match=r"colibri-sdk\[cpu\].*apt-get install qemu-system-arm"):
        pick_machine(load_board(A53))
    with pytest.raises(EmulateError, match="apt-get install qemu-system-arm"):
        pick_machine(load_board(AN547))
    with pytest.raises(EmulateError, match="qemu-aarch64 is not installed"):
        pick_machine(load_board(LINUX))


def test_choice_refuses_an_engine_that_the_board_does_not_offer() -> None:
    with pytest.raises(EmulateError, match="offers unicorn_cpu"):
        pick_machine(load_board(PICO), "qemu")


def test_firmware_for_another_target_is_refused(firmware: Build) -> None:
    machine = machine_for(A53, "unicorn", "zig")
    wrong = firmware(RV64, "riscv64", "zig")
    with pytest.raises(EmulateError, match="built for riscv64"):
        machine.run(wrong, Request(prompt=(1,)))
