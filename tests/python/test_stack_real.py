# SPDX-License-Identifier: Apache-2.0
"""Worst-case stack on real code: GCC's own figures, firmware, painted stacks of emulated CPUs."""

from __future__ import annotations

import ctypes
import subprocess
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from colibri.boards import load_board
from colibri.fit import judge, read_elf
from colibri.fit.stack import StackOptions, StackReport, analyse
from colibri.fit.stack.code_graph import decoder_for
from colibri.fit.stack.declared import declared_for
from colibri.fit.stack.program import Program
from colibri.fit.stack.walk import walk
from colibri_emulator.build_firmware import Firmware, build_firmware
from colibri_emulator.faults import NO_FAULTS
from colibri_emulator.machine import pick_machine
from colibri_emulator.mailbox import STACK_PAINT, Mailbox, Request
from colibri_emulator.toolchain import COMMON
from needs import need

Packed = Callable[[str], Path]

TARGETS = {
    "cortex-m33": ("arm-none-eabi-", ["-mcpu=cortex-m33", "-mthumb"]),
    "cortex-m0": ("arm-none-eabi-", ["-mcpu=cortex-m0", "-mthumb"]),
    "a32": ("arm-none-eabi-", ["-mcpu=cortex-a9", "-marm", "-mfpu=neon", "-mfloat-abi=hard"]),
    "aarch64": ("aarch64-linux-gnu-", ["-mno-outline-atomics"]),
    "rv64": ("riscv64-unknown-elf-", ["-march=rv64gc", "-misa-spec=2.2", "-mabi=lp64d"]),
    "rv32": ("riscv64-unknown-elf-", ["-march=rv32imac", "-misa-spec=2.2", "-mabi=ilp32"]),
    "rv32-save": (
        "riscv64-unknown-elf-",
        ["-march=rv32imac", "-misa-spec=2.2", "-mabi=ilp32", "-msave-restore"],
    ),
}
FREESTANDING = (
    "-ffreestanding", "-fno-tree-loop-distribute-patterns", "-fno-pic", "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables", "-fstack-usage",
)  # fmt: skip
LINK = ("-nostdlib", "-static", "-Wl,-e,0", "-Wl,--no-gc-sections", "-Wl,--build-id=none")
MOST_PERCENT = 25
KIB2 = 2048
API = (
    "colibri_image_open", "colibri_plan", "colibri_init", "colibri_infer", "colibri_sample",
    "colibri_selftest",
)  # fmt: skip

SOURCE = """
#define KEEP static __attribute__((noinline))
extern int sink(int *p);
int use(const char *p, int n);
KEEP int leaf(int a) { return a * 3 + 1; }
KEEP int big(int a) { int x[1500]; x[a & 7] = a; return sink(x) + x[1]; }
KEEP int many(int a, int b, int c, int d, int e, int f, int g, int h,
                                          int i, int j) {
    int x[4] = {a + e, b + f, c + g, d + h}; return sink(x) + i * j;
}
KEEP int pick(int a) {
    switch (a) {
    case 0: return leaf(a) + 1; case 1: return big(a); case 2: return leaf(2) + leaf(a);
    case 3: return leaf(7) * big(1); case 4: return -leaf(a);
    case 5: return many(a, 1, 2, 3, 4, 5, 6, 7, 8, 9);
    case 6: return leaf(8); case 7: return big(9) + leaf(a); default: return 0;
    }
}
KEEP int early(int a) { if (a < 0) return 0; int x[20]; x[a] = 1; return sink(x); }
KEEP int last(int a) { int x[9]; sink(x); return a > 3 ? leaf(x[0]) : early(a); }
KEEP double sum(double a, double b, float c) {
    int x[2]; sink(x); return a * b + c + x[0];
}
int sink(int *p) { return use((const char *)p, 3) + p[0]; }
int use(const char *p, int n) { return p[n & 1]; }
int start(int a, double b) { return pick(a) + last(a) + early(a + 1) + (int)sum(b, 2.0, 3.0f); }
"""
DYNAMIC = """
int use(char *p) { return p[1]; }
int start(int n) { char *p = __builtin_alloca(n); return use(p); }
"""


@pytest.fixture(autouse=True)
def _capstone() -> None:
    need("module:capstone")


def compile_gcc(folder: Path, target: str, sources: list[Path], *flags: str) -> Path:
    """An ELF of everything in the sources, with .su files beside it."""
    prefix, own = TARGETS[target]
    need(f"{prefix}gcc")
    objects = []
    for source in sources:
        output = folder / f"{source.parent.name}-{source.stem}.o"
        command = [f"{prefix}gcc", *own, *FREESTANDING, *flags, "-c", source, "-o", output]
        subprocess.run(command, check=True, capture_output=True)
        objects.append(output)
    elf = folder / "all.elf"
    command = [f"{prefix}gcc", *own, *LINK, *objects, "-lgcc", "-o", elf]
    subprocess.run(command, check=True, capture_output=True)
    return elf


def frames_of_gcc(folder: Path) -> dict[str, set[int]]:
    """By function; read here, not by the code under test."""
    frames: dict[str, set[int]] = defaultdict(set)
    for file in folder.glob("*.su"):
        for line in file.read_text().splitlines():
            where, size, kind = line.split("\t")
            assert kind == "static", line
            frames[where.rsplit(":", 1)[1]].add(int(size))
    return frames


def compare_with_gcc(folder: Path, elf: Path, exact: bool = True) -> int:
    """Every function that GCC names has exactly GCC's frame; returns how many there are.

    Not with -msave-restore: the helpers take up to 32 bytes more for a moment, of which GCC does
    not know, and calls of them that it takes out late still count in its figure.
    """
    frames, program = frames_of_gcc(folder), Program(read_elf(elf))
    decoder, compared = decoder_for(program), 0
    for function in program.functions():
        name = next((name for name in function.names if name in frames), None)
        if name is not None:
            body = walk(program, decoder, function)
            assert body.problems == [], name
            if exact:
                assert body.frame in frames[name], (name, body.frame, frames[name])
            compared += 1
    return compared


@pytest.mark.parametrize("level", ["-O0", "-Os", "-O2"])
@pytest.mark.parametrize("target", TARGETS)
def test_frames_are_those_of_gcc(tmp_path: Path, target: str, level: str) -> None:
    source = tmp_path / "small.c"
    source.write_text(SOURCE)
    elf = compile_gcc(tmp_path, target, [source], level)
    assert compare_with_gcc(tmp_path, elf, target != "rv32-save") >= 8
    report = analyse(read_elf(elf), StackOptions(("start",)))
    assert report.complete
    assert report.bytes > 6000  # big
    with_files = analyse(read_elf(elf), StackOptions(("start",), (tmp_path,)))
    assert (with_files.bytes, with_files.complete) == (report.bytes, True)


@pytest.mark.parametrize("target", TARGETS)
def test_alloca_of_gcc_is_unknown(tmp_path: Path, target: str) -> None:
    source = tmp_path / "dynamic.c"
    source.write_text(DYNAMIC)
    report = analyse(
        read_elf(compile_gcc(tmp_path, target, [source], "-Os")), StackOptions(("start",))
    )
    assert not report.complete
    assert "unknown amount" in report.entries[0].bound.unknown[0].what


@pytest.mark.long
@pytest.mark.parametrize("level", ["-Os", "-O2"])
@pytest.mark.parametrize("target", TARGETS)
def test_frames_of_the_whole_runtime_are_those_of_gcc(
    tmp_path: Path, root: Path, target: str, level: str
) -> None:
    runtime, firmware = root / "sdk" / "c", root / "emulator" / "firmware"
    sources = [*(runtime / "src").glob("*.c"), *(runtime / "kernels" / "ref").glob("*.c")]
    sources.append(firmware / "mem.c")
    includes = (f"-I{runtime / 'include'}", f"-I{runtime / 'src'}", f"-I{firmware / 'include'}")
    flags = [flag for flag in COMMON if not flag.startswith("-W")]
    elf = compile_gcc(tmp_path, target, sorted(sources), level, *flags, *includes)
    assert compare_with_gcc(tmp_path, elf, target != "rv32-save") >= 150
    declared = declared_for(("colibri_image_open",), ())
    program = Program(read_elf(elf))
    decoder = decoder_for(program)
    for function in program.functions():
        if function.name.startswith(
            "__riscv_save_"
        ):  # return by t0: read as part of who calls them
            continue
        if any(call.target is None for call in walk(program, decoder, function).calls):
            assert declared.callees(function.names) is not None, function.name


# Firmware


def firmware(
    board: str, image: Path, folder: Path, toolchain: str, target: str | None = None
) -> Firmware:
    return build_firmware(
        load_board(board),
        image,
        folder,
        toolchain=toolchain,
        target=target,
        copy_model=False,  # type: ignore[arg-type]
    )


def report_of(made: Firmware) -> StackReport:
    """Complete, whatever the compiler has put into what."""
    verdict = judge(made.elf, load_board(made.board), made.model, StackOptions())
    assert verdict.stack is not None
    assert verdict.stack.complete, [entry.bound.unknown for entry in verdict.stack.counted]
    assert verdict.verdict == "fits"
    assert verdict.stack.bytes <= verdict.map.stack_bytes
    return verdict.stack


def bounds_of(report: StackReport) -> dict[str, int]:
    return {entry.name: entry.bound.bytes for entry in report.entries}


@pytest.mark.parametrize("toolchain", ["gcc", "zig"])
def test_entries_of_the_runtime_on_cortex_m(
    tmp_path: Path, demo_image: Packed, toolchain: str
) -> None:
    need("arm-none-eabi-gcc" if toolchain == "gcc" else "module:ziglang")
    made = firmware("pimoroni-pico-plus-2", demo_image("q4"), tmp_path / "b", toolchain)
    bounds = bounds_of(report_of(made))
    assert set(API) <= set(bounds)
    assert {name: size for name, size in bounds.items() if name in API and size > KIB2} == {}


BARE = (
    ("pimoroni-pico-plus-2", "arm-none-eabi-gcc"), ("arm-mps3-an547", "arm-none-eabi-gcc"),
    ("qemu-virt-aarch64-2gb", "aarch64-linux-gnu-gcc"),
    ("qemu-virt-riscv64", "riscv64-unknown-elf-gcc"),
    ("qemu-virt-riscv64v", "riscv64-unknown-elf-gcc"),
)  # fmt: skip
REQUESTS = (
    Request(
        (48, 2858, 1135, 7), 2, True, 128, kv="f16", temperature=0.8, top_k=20, top_p=0.9, seed=1
    ),
    Request(selftest=True, context=128, kv="f16"),
)


class Painted:
    """Firmware in Unicorn; each entry finds the stack below it painted."""

    def __init__(self, made: Firmware) -> None:
        import unicorn
        from unicorn import arm64_const, arm_const, riscv_const

        from colibri_emulator.unicorn_engine import _CPUS, _Session

        registers = {
            unicorn.UC_ARCH_ARM: (arm_const.UC_ARM_REG_SP, arm_const.UC_ARM_REG_LR),
            unicorn.UC_ARCH_ARM64: (arm64_const.UC_ARM64_REG_SP, arm64_const.UC_ARM64_REG_LR),
            unicorn.UC_ARCH_RISCV: (riscv_const.UC_RISCV_REG_SP, riscv_const.UC_RISCV_REG_RA),
        }
        board = load_board(made.board)
        cpu = _CPUS[board.firmware.unicorn_cpu or ""]
        self.sp, self.link = registers[cpu.arch]
        self.session = _Session(board, cpu, made, NO_FAULTS)
        self.uc: Any = self.session._uc
        self.hook = unicorn.UC_HOOK_CODE
        self.bottom = self.session.program.address("__stack_bottom")
        self.used: dict[str, int] = defaultdict(int)
        self.active: list[tuple[str, int, int]] = []
        self.returns: set[int] = set()
        for name in API:
            at = self.session.program.address(name)
            self.uc.hook_add(self.hook, self.enter, name, at, at)

    def enter(self, uc: Any, _address: int, _size: int, name: str) -> None:
        self.measure()
        top, back = uc.reg_read(self.sp), uc.reg_read(self.link) & ~1
        words = (top - self.bottom) // 4
        self.session.write(self.bottom, STACK_PAINT.to_bytes(4, "little") * words)
        self.active.append((name, top, back))
        if back not in self.returns:
            self.returns.add(back)
            uc.hook_add(self.hook, self.leave, None, back, back)

    def leave(self, uc: Any, address: int, _size: int, _data: object) -> None:
        if self.active and self.active[-1][1:] == (uc.reg_read(self.sp), address):
            self.measure()
            self.active.pop()

    def measure(self) -> None:
        """Of all entries that are active, by the lowest word that is not paint any more."""
        if self.active:
            top = self.active[-1][1]
            words = memoryview(self.session.read(self.bottom, top - self.bottom)).cast("I")
            clean = next((i for i, word in enumerate(words) if word != STACK_PAINT), len(words))
            for name, start, _ in self.active:
                self.used[name] = max(self.used[name], start - self.bottom - 4 * clean)

    def run(self, request: Request) -> None:
        box = self.session.program.address("colibri_mailbox")
        self.session.write(box, request.pack())
        assert self.session.run_until(self.session.program.address("colibri_done")) is None
        data = self.session.read(box, ctypes.sizeof(Mailbox))
        assert Mailbox.from_buffer_copy(data).status == 0


@pytest.mark.long
@pytest.mark.parametrize("toolchain", ["gcc", "zig"])
@pytest.mark.parametrize(
    ("board", "gcc"),
    [row for row in BARE if row[0] not in ("arm-mps3-an547", "qemu-virt-riscv64v")],
)
def test_bounds_hold_and_are_near_painted_stacks(
    tmp_path: Path, demo_image: Packed, board: str, gcc: str, toolchain: str
) -> None:
    """Entry by entry: never below what was written, and at most 25 % above."""
    need("module:unicorn", gcc if toolchain == "gcc" else "module:ziglang")
    made = firmware(board, demo_image("q4"), tmp_path / "b", toolchain)
    bounds, used = bounds_of(report_of(made)), dict.fromkeys(API, 0)
    for request in REQUESTS:
        painted = Painted(made)
        painted.run(request)
        used = {name: max(used[name], painted.used[name]) for name in API}
    for name in API:
        assert used[name] <= bounds[name] <= used[name] * (100 + MOST_PERCENT) / 100, (
            name, used[name], bounds[name],
        )  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("toolchain", ["gcc", "zig"])
@pytest.mark.parametrize(("board", "gcc"), BARE)
def test_bound_of_the_firmware_is_near_its_painted_stack(
    tmp_path: Path, demo_image: Packed, board: str, gcc: str, toolchain: str
) -> None:
    """From reset on, as the firmware measures itself."""
    need(gcc if toolchain == "gcc" else "module:ziglang")
    machine = pick_machine(load_board(board))
    made = firmware(board, demo_image("q4"), tmp_path / "b", toolchain, machine.target)
    used = machine.run(made, REQUESTS[0]).stack_high_water
    assert used <= report_of(made).bytes <= used * (100 + MOST_PERCENT) / 100
