# SPDX-License-Identifier: Apache-2.0
"""`colibri size` on whole firmware: ours for each board, OpenSBI's, and a very large one.

The totals are those of GNU size, objcopy and the linker's own table; where the counting rule makes
a difference, the difference is computed here from the same tools.
"""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from colibri.boards import load_board
from colibri.fit import Verdict, judge
from colibri_emulator.build_firmware import build_firmware
from colibri_emulator.toolchain import TARGETS
from large_inputs import FUNCTIONS, debug_information
from needs import need
from size_support import usage, used
from test_firmware import BARE, Packed

OPENSBI = Path("/usr/lib/riscv64-linux-gnu/opensbi/generic")
RISCV = "riscv64-unknown-elf-"
NO_VECTORS = ("qemu-virt-riscv64v", "gcc")  # the compiler of the distribution has none
BUILDS = [pair for pair in product(BARE, ("gcc", "zig")) if pair != NO_VECTORS]


def gnu_size(tool: str, elf: Path) -> tuple[int, int, int]:
    """text, data, bss."""
    done = subprocess.run([tool, elf], check=True, capture_output=True, text=True)
    text, data, bss = done.stdout.splitlines()[1].split()[:3]
    return int(text), int(data), int(bss)


def check_totals(verdict: Verdict, tool: str, elf: Path) -> tuple[int, int, int]:
    """GNU size calls a section text when it is not writable, NOBITS (a stack) or not."""
    totals, gnu = verdict.map.totals, gnu_size(tool, elf)
    kept = [s for s in verdict.elf.sections if s.takes_memory and not s.in_file and not s.writable]
    odd = sum(s.size for s in kept)
    text, bss = totals["text"] + totals["rodata"] + odd, totals["bss"] - odd
    assert (text, totals["data"], bss) == gnu
    return gnu


@pytest.mark.parametrize("name", ["fw_jump.elf", "fw_dynamic.elf"])
def test_opensbi(tmp_path: Path, name: str) -> None:
    """What GNU size does not count is what the script's page alignment stores between sections."""
    elf = OPENSBI / name
    need(f"file:{elf}", f"{RISCV}size", f"{RISCV}objcopy")
    verdict = judge(elf, load_board("qemu-virt-riscv64"))
    sizes = check_totals(verdict, f"{RISCV}size", elf)
    ram = usage(verdict, "RAM")
    between = sum(row.bytes for row in ram.rows if row.kind == "segment")
    assert ram.used == sum(sizes) + between
    assert 0 < between < 3 * 4096
    flat = tmp_path / "flat.bin"
    subprocess.run([f"{RISCV}objcopy", "-O", "binary", elf, flat], check=True)
    assert ram.load_span == flat.stat().st_size
    assert ram.load_bytes + ram.padding == ram.load_span
    assert verdict.exit_code == 0
    raw = judge(flat, load_board("qemu-virt-riscv64"), base=0x8000_0000)
    assert usage(raw, "RAM").used == ram.load_span


@pytest.mark.long
@pytest.mark.parametrize(("name", "toolchain"), BUILDS)
def test_our_firmware(demo_image: Packed, tmp_path: Path, name: str, toolchain: str) -> None:
    board = load_board(name)
    prefix = TARGETS[board.firmware.target].gcc_prefix
    need(f"{prefix}gcc", f"{prefix}size", f"{prefix}objcopy")
    if toolchain == "zig":
        need("module:ziglang")
    made = build_firmware(board, demo_image("q4"), tmp_path / "out", toolchain=toolchain)  # type: ignore[arg-type]
    alone = judge(made.elf, board)
    verdict = judge(made.elf, board, link_map=made.map)
    assert used(verdict) == used(alone)
    sizes = check_totals(verdict, f"{prefix}size", made.elf)
    rows = [row for u in verdict.map.usages for row in u.rows]
    sections = sum(r.bytes for r in rows if r.kind == "section")
    stored_twice = sum(r.bytes for r in rows if r.kind == "section" and r.role == "load")
    assert sections - stored_twice == sum(sizes)
    flat = tmp_path / "flat.bin"
    subprocess.run([f"{prefix}objcopy", "-O", "binary", made.elf, flat], check=True)
    stored = [u for u in verdict.map.usages if u.load_bytes]
    if len(stored) == 1:
        assert stored[0].load_span == flat.stat().st_size
    for u in verdict.map.usages:
        own = sum(r.bytes for r in u.rows if r.kind in ("image", "stack"))
        owners = sum(s.bytes.get(u.region.name, 0) for s in verdict.attribution.objects)
        assert owners == u.used - own
    check_owners(verdict, made.library)
    assert verdict.exit_code == 0, [f.what for f in verdict.findings]


def check_owners(verdict: Verdict, library: Path) -> None:
    """The runtime is its library; all but fill and what the linker merges has an object."""
    libraries = {s.name: s.total for s in verdict.attribution.libraries}
    assert set(libraries) - {"libgcc.a"} <= {"libcolibri.a", "(objects)", "(fill)", "(linker)"}
    assert libraries["(fill)"] + libraries.get("(linker)", 0) < 512
    done = subprocess.run(["ar", "t", library], check=True, capture_output=True, text=True)
    objects = {s.name: s.library for s in verdict.attribution.objects}
    assert {name for name, owner in objects.items() if owner == "libcolibri.a"} <= set(
        done.stdout.split()
    )
    assert objects["engine.o"] == objects["ref-ref.o"] == "libcolibri.a"
    assert objects["runner.o"] == objects["mem.o"] == objects["board.o"] == ""
    rooms = {s.name: s.object for s in verdict.symbols if s.name in ("stack", "logits")}
    assert rooms == {"stack": "board.o", "logits": "board.o"}


@pytest.mark.parametrize("toolchain", ["gcc", "zig"])
def test_the_runtime_is_a_group(demo_image: Packed, tmp_path: Path, toolchain: str) -> None:
    need("ar", "arm-none-eabi-gcc" if toolchain == "gcc" else "module:ziglang")
    board = load_board("pimoroni-pico-plus-2")
    made = build_firmware(board, demo_image("q4"), tmp_path / "out", toolchain=toolchain)  # type: ignore[arg-type]
    groups = {"kernels": ["libcolibri.a(*-*.o)"], "runtime": ["libcolibri.a"], "rest": ["*.o"]}
    verdict = judge(made.elf, board, link_map=made.map, groups=groups)
    check_owners(verdict, made.library)
    found = {s.name: s.bytes for s in verdict.attribution.groups}
    libraries = {s.name: s.total for s in verdict.attribution.libraries}
    kernels, runtime = found["kernels"], found["runtime"]
    assert kernels.keys() == runtime.keys() == {"FLASH"}
    assert kernels["FLASH"] + runtime["FLASH"] == libraries["libcolibri.a"]
    assert kernels["FLASH"] > 2048
    assert runtime["FLASH"] > 8192
    assert sum(found["rest"].values()) == libraries["(objects)"]


def test_linux_executables_have_the_same_owners(demo_image: Packed, tmp_path: Path) -> None:
    need("module:ziglang")
    board = load_board("ti-sk-am62")
    made = build_firmware(board, demo_image("q4"), tmp_path / "out")
    verdict = judge(made.elf, board, link_map=made.map)
    libraries = {s.name for s in verdict.attribution.libraries}
    assert {"libcolibri.a", "libc.a", "libcompiler_rt.a"} <= libraries
    assert "(unattributed)" not in libraries
    objects = {s.name: s.library for s in verdict.attribution.objects}
    assert objects["linux_main.o"] == ""
    assert objects["neon-vector.o"] == "libcolibri.a"


# -- a very large file ----------------------------------------------------------------------------

COPIES = 600
MEASURE = """
import json, resource, sys, time
from colibri.fit import judge
started = time.process_time()
verdict = judge(sys.argv[1])
seconds = time.process_time() - started
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
folders = {s.name: s.total for s in verdict.attribution.directories}
totals = verdict.map.totals
print(json.dumps([seconds, peak, len(verdict.symbols), folders, totals]))
"""


@pytest.mark.long
def test_200_mb_with_debug_information(tmp_path: Path) -> None:
    """180,000 functions in 600 units: below 1 GB of memory; the totals are GNU size's."""
    need("gcc", "objcopy", "ld", "size")
    folder = tmp_path / "made"
    elf = debug_information(5, ("gcc",), COPIES)(folder)
    assert elf.stat().st_size > 190_000_000
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, elf], check=True, capture_output=True, text=True
    )
    seconds, peak, symbols, folders, totals = json.loads(done.stdout)
    print(f"{elf.stat().st_size:,} B: {seconds:.1f} s of CPU, {peak:,} B of memory")
    assert symbols == FUNCTIONS * COPIES + 1  # and the one that calls them all
    assert peak < 1 << 30
    assert folders[str(folder)] > 0
    assert totals["text"] + totals["rodata"] == gnu_size("size", elf)[0]
