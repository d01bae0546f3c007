# SPDX-License-Identifier: Apache-2.0
"""`colibri size` on ELFs of real toolchains, against GNU size and objcopy, and on damaged ones."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from colibri.cli import main
from colibri.errors import SizeError
from colibri.fit import judge, read_elf
from colibri.fit.compare import compare
from colibri.fit.format import as_json
from elf_writer import AX, FUNC, OBJECT, WA, ElfWriter
from needs import need
from size_support import FLASH, RAM, board, codes, firmware, usage, used

SOURCE = """
static const unsigned char key[300] = {1, 2, 3};
unsigned table[40] = {4, 5, 6};
unsigned char buffer[BYTES];
static __attribute__((noinline)) unsigned twice(unsigned x) { return x * 2u + key[x % 300u]; }
void start(void)
{
    for (unsigned i = 0; i < 40; i++) table[i] += twice(i);
    buffer[table[3] % BYTES] = 1;
    for (;;) { }
}
"""
SCRIPT = """
MEMORY { FLASH (rx) : ORIGIN = 0x08000000, LENGTH = 64K
         RAM (rwx) : ORIGIN = 0x20000000, LENGTH = 128K }
ENTRY(start)
SECTIONS {
  .text : { *(.text*) . = ALIGN(16); } > FLASH
  .rodata : ALIGN(16) { *(.rodata*) *(.srodata*) . = ALIGN(16); } > FLASH
  .data : ALIGN(16) { *(.data*) *(.sdata*) . = ALIGN(16); } > RAM AT> FLASH
  .bss (NOLOAD) : ALIGN(16) { *(.bss*) *(.sbss*) *(COMMON) . = ALIGN(16); } > RAM
  __stack_top = ORIGIN(RAM) + LENGTH(RAM);
  __stack_bottom = __stack_top - 0x1000;
  /DISCARD/ : { *(.comment) *(.note*) *(.eh_frame*) *(.ARM.*) *(.riscv.*) }
}
"""
PREFIXES = {
    "cortex-m33": ("arm-none-eabi-", ["-mcpu=cortex-m33", "-mthumb"]),
    "riscv64": ("riscv64-unknown-elf-", ["-march=rv64gc", "-mabi=lp64d", "-mcmodel=medany"]),
    "aarch64": ("aarch64-linux-gnu-", []),
    "host": ("", []),
}
COMMON = [
    "-Os",
    "-ffreestanding",
    "-nostdlib",
    "-static",
    "-fno-pic",
    "-fno-pie",
    "-fno-asynchronous-unwind-tables",
    "-fno-stack-protector",
    "-Wl,--build-id=none",
]


def build(folder: Path, target: str, size: int = 512, more: tuple[str, ...] = ()) -> Path:
    prefix, flags = PREFIXES[target]
    compiler = f"{prefix}gcc"
    need(compiler, f"{prefix}objcopy")
    source, script, elf = folder / "a.c", folder / "a.ld", folder / f"{target}-{size}.elf"
    source.write_text(SOURCE)
    script.write_text(SCRIPT)
    subprocess.run(
        [compiler, *flags, *COMMON, f"-DBYTES={size}", "-T", script, source, "-o", elf, *more],
        check=True,
        capture_output=True,
    )
    return elf


def gnu_sizes(prefix: str, elf: Path) -> dict[str, tuple[int, int]]:
    """Size and address of each section as GNU size prints them."""
    out = subprocess.run([f"{prefix}size", "-A", elf], check=True, capture_output=True, text=True)
    rows = [line.split() for line in out.stdout.splitlines() if line.startswith(".")]
    return {name: (int(size), int(address)) for name, size, address in rows}


@pytest.mark.parametrize("target", PREFIXES)
def test_totals_are_those_of_gnu_size_and_objcopy(tmp_path: Path, target: str) -> None:
    elf = build(tmp_path, target)
    verdict = judge(elf, board())
    gnu = gnu_sizes(PREFIXES[target][0], elf)
    in_flash = sum(size for size, address in gnu.values() if FLASH <= address < RAM)
    in_ram = sum(size for size, address in gnu.values() if address >= RAM)
    assert gnu[".data"][0] >= 160
    assert gnu[".bss"][0] >= 512
    assert used(verdict) == {"FLASH": in_flash + gnu[".data"][0], "SRAM": in_ram + 0x1000}
    flat = tmp_path / "flat.bin"
    subprocess.run([f"{PREFIXES[target][0]}objcopy", "-O", "binary", elf, flat], check=True)
    assert usage(verdict, "FLASH").load_span == flat.stat().st_size
    assert verdict.verdict == "fits"
    assert set(codes(verdict)) <= {"machine"}  # the test board is a Cortex-M
    assert {"buffer", "table", "start"} <= {s.name for s in verdict.symbols}


@pytest.mark.parametrize("target", PREFIXES)
def test_nrf_softsim_194_canary(tmp_path: Path, target: str) -> None:
    before, after = build(tmp_path, target), build(tmp_path, target, size=512 + 1024)
    result = compare(judge(after, board()), before, board())
    assert {d.name: d.delta for d in result.regions}["SRAM"] == 1024
    assert [d.delta for d in result.symbols or () if d.name == "buffer"] == [1024]
    for area in result.regions:
        assert sum(cause.delta for cause in area.causes) == area.delta
    (sram,) = (area for area in result.regions if area.name == "SRAM")
    assert [(c.kind, c.name, c.delta) for c in sram.causes] == [("symbol", "buffer", 1024)]


@pytest.mark.parametrize("target", PREFIXES)
def test_bloaty_9_stripped_real_elf(tmp_path: Path, target: str) -> None:
    elf = build(tmp_path, target)
    whole = used(judge(elf, board()))
    subprocess.run([f"{PREFIXES[target][0]}strip", elf], check=True)
    stripped = used(judge(elf, board()))
    assert stripped == {**whole, "SRAM": whole["SRAM"] - 0x1000}  # the stack is two symbols


@pytest.mark.parametrize("target", PREFIXES)
def test_object_file_groups_like_gnu_size(tmp_path: Path, target: str) -> None:
    prefix, flags = PREFIXES[target]
    need(f"{prefix}gcc")
    (tmp_path / "a.c").write_text(SOURCE)
    subprocess.run(
        [f"{prefix}gcc", *flags, *COMMON[:2], "-DBYTES=512", "-c", "a.c"], cwd=tmp_path, check=True
    )
    totals = judge(tmp_path / "a.o").map.totals
    out = (
        subprocess.run(
            [f"{prefix}size", "a.o"], cwd=tmp_path, check=True, capture_output=True, text=True
        )
        .stdout.splitlines()[1]
        .split()
    )
    text, data, bss = (int(word) for word in out[:3])
    assert (totals["text"] + totals["rodata"], totals["data"], totals["bss"]) == (text, data, bss)


CORNERS = """
#include <stdint.h>
__thread int per_thread = 3, zero_thread[64];
int value = 7;
uint8_t buffer[100];
__attribute__((noinline)) int twin_a(int x) { return x * 77 + 5; }
__attribute__((noinline)) int twin_b(int x) { return x * 77 + 5; }
__attribute__((weak)) void handler(void) { value++; }
void alias_of(void) __attribute__((alias("handler")));
void start(void)
{
    for (;;) {
        handler();
        buffer[twin_a(value) % 100] = (uint8_t)twin_b(per_thread + zero_thread[1]);
    }
}
"""
CORNER_SCRIPT = """
MEMORY { FLASH (rx) : ORIGIN = 0x08000000, LENGTH = 64K
         RAM (rwx) : ORIGIN = 0x20000000, LENGTH = 128K }
ENTRY(start)
SECTIONS {
  .text : { *(.text*) } > FLASH
  .rodata : { *(.rodata*) *(.srodata*) } > FLASH
  .tdata : { *(.tdata*) } > FLASH
  .tbss : { *(.tbss*) } > FLASH
  .data : ALIGN(16) { *(.data*) *(.sdata*) } > RAM AT> FLASH
  .bss (NOLOAD) : ALIGN(16) { *(.bss*) *(.sbss*) } > RAM
  /DISCARD/ : { *(.comment) *(.note*) *(.eh_frame*) *(.ARM.*) *(.riscv.*) }
}
"""
CORNER_FLAGS = {
    "arm big endian": ("arm-none-eabi-", ["-mcpu=cortex-r5", "-mbig-endian", "-mthumb"]),
    "aarch64 big endian": ("aarch64-linux-gnu-", ["-mbig-endian"]),
    "riscv32": ("riscv64-unknown-elf-", ["-march=rv32imac", "-mabi=ilp32", "-mno-relax"]),
    "riscv64": ("riscv64-unknown-elf-", ["-march=rv64gc", "-mabi=lp64d", "-mcmodel=medany"]),
    "x86-64": ("", ["-ftls-model=local-exec"]),
    "x86": ("", ["-m32", "-ftls-model=local-exec"]),
}


@pytest.mark.parametrize("target", CORNER_FLAGS)
def test_llvm_80336_perry_10571_bloaty_126_corners_of_real_elfs(
    tmp_path: Path, target: str
) -> None:
    """TLS, aliases, weak functions, both byte orders, labels: totals are those of GNU size."""
    prefix, flags = CORNER_FLAGS[target]
    need(f"{prefix}gcc", f"{prefix}objcopy", f"{prefix}size")
    (tmp_path / "a.c").write_text(CORNERS)
    (tmp_path / "a.ld").write_text(CORNER_SCRIPT)
    more = ["-g", "-mtp=soft"] if target.startswith("arm") else ["-g"]
    command = [f"{prefix}gcc", *flags, *COMMON, *more, "-T", "a.ld", "a.c", "-o", "a.elf"]
    if target.startswith("arm"):
        command.append("-Wl,--defsym=__aeabi_read_tp=0")
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    elf = tmp_path / "a.elf"
    verdict = judge(elf, board())
    gnu = gnu_sizes(prefix, elf)
    in_ram = sum(size for size, address in gnu.values() if address >= RAM)
    flat = tmp_path / "flat.bin"
    subprocess.run([f"{prefix}objcopy", "-O", "binary", elf, flat], check=True)
    flash = usage(verdict, "FLASH")
    assert flash.load_span == flat.stat().st_size
    stored = [n for n in gnu if n not in (".tbss", ".bss") and not n.startswith(".debug")]
    assert flash.used == sum(gnu[name][0] for name in stored)
    assert used(verdict)["SRAM"] == in_ram
    symbols = {s.name: s for s in verdict.symbols}
    assert {"twin_a", "twin_b", "value", "buffer", "start"} <= set(symbols)
    assert ("alias_of" in symbols) != ("handler" in symbols)
    assert "zero_thread" not in symbols  # its template takes nothing
    assert not [name for name in symbols if name.startswith((".L", "$"))]
    assert verdict.elf.endian == ("big" if "big" in target else "little")


def test_eld_1748_overlays_of_gnu_ld(tmp_path: Path) -> None:
    prefix, flags = PREFIXES["cortex-m33"]
    need(f"{prefix}gcc")
    (tmp_path / "a.c").write_text(
        '__attribute__((section(".one"))) int one(int x) { return x * 3 + 1; }\n'
        '__attribute__((section(".two"))) int two(int x) { return x * x * 5 - x / 7; }\n'
        "void start(void) { for (;;) { } }\n"
    )
    (tmp_path / "a.ld").write_text(
        "MEMORY { FLASH (rx) : ORIGIN = 0x08000000, LENGTH = 64K\n"
        "RAM (rwx) : ORIGIN = 0x20000000, LENGTH = 128K }\n"
        "SECTIONS { .text : { *(.text*) } > FLASH\n"
        "OVERLAY : NOCROSSREFS { .ovl_one { *(.one) } .ovl_two { *(.two) } } > RAM AT> FLASH\n"
        "/DISCARD/ : { *(.comment) *(.ARM.*) } }\n"
    )
    command = [f"{prefix}gcc", *flags, *COMMON, "-T", "a.ld", "a.c", "-o", "a.elf"]
    subprocess.run(
        [*command, "-Wl,-Map=a.map,-e,start"], cwd=tmp_path, check=True, capture_output=True
    )
    sizes = {name: size for name, (size, _) in gnu_sizes(prefix, tmp_path / "a.elf").items()}
    one, two = sizes[".ovl_one"], sizes[".ovl_two"]
    assert one != two
    for verdict in (judge(tmp_path / "a.elf", board()), judge(tmp_path / "a.map", board())):
        assert used(verdict)["SRAM"] == max(one, two)
        assert used(verdict)["FLASH"] == sizes[".text"] + one + two
        assert verdict.verdict == "fits"


def test_perry_10571_folded_functions_of_lld(tmp_path: Path) -> None:
    """Identical code folding: one body, both names."""
    prefix, flags = PREFIXES["cortex-m33"]
    need(f"{prefix}gcc", "module:ziglang")
    (tmp_path / "a.c").write_text(CORNERS.replace("__thread", "static"))
    subprocess.run(
        [f"{prefix}gcc", *flags, *COMMON[:2], "-ffunction-sections", "-c", "a.c"],
        cwd=tmp_path,
        check=True,
    )
    (tmp_path / "a.ld").write_text(CORNER_SCRIPT)
    lld = [sys.executable, "-m", "ziglang", "ld.lld", "--icf=all", "-T", "a.ld", "a.o"]
    subprocess.run([*lld, "-o", "a.elf"], cwd=tmp_path, check=True, capture_output=True)
    symbols = {s.name: s for s in judge(tmp_path / "a.elf", board()).symbols}
    assert symbols["twin_a"].aliases == ("twin_b",)
    assert "twin_b" not in symbols


def test_zig(tmp_path: Path) -> None:
    pytest.importorskip("ziglang", reason="ziglang is not installed")
    (tmp_path / "a.c").write_text(SOURCE)
    (tmp_path / "a.ld").write_text(SCRIPT)
    elf = tmp_path / "zig.elf"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "ziglang",
            "cc",
            "-target",
            "thumb-freestanding-eabihf",
            "-mcpu=cortex_m33",
            "-Os",
            "-ffreestanding",
            "-nostdlib",
            "-static",
            "-DBYTES=512",
            "-g",
            "-fno-sanitize=all",
            "-Wl,-e,start",
            "-T",
            "a.ld",
            "a.c",
            "-o",
            elf,
        ],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    verdict = judge(elf, board())
    sections = [s for s in read_elf(elf).sections if s.takes_memory]
    ram = sum(s.size for s in sections if s.address >= RAM)
    stored = sum(s.size for s in sections if s.in_file)
    assert used(verdict) == {"FLASH": stored, "SRAM": ram + 0x1000}
    assert verdict.verdict == "fits"


# -- the command ----------------------------------------------------------------------------------


def run(capsys: Any, *words: str) -> tuple[int, Any, str]:
    code = main(["size", *words])
    captured = capsys.readouterr()
    return code, json.loads(captured.out) if "--json" in words else captured.out, captured.err


def pico(bss: int = 0x200) -> ElfWriter:
    elf = ElfWriter()
    text = elf.section(".text", 0x1000_0000, b"\x01\xbf" * 0x200, flags=AX)
    zero = elf.section(".bss", 0x2000_0000, bss, flags=WA)
    elf.load([text])
    elf.load([zero])
    elf.symbol("main", 0x1000_0001, 0x400, FUNC, section=text)
    elf.symbol("buffer", 0x2000_0000, bss, OBJECT, section=zero)
    return elf


def test_command_on_a_shipped_board(tmp_path: Path, capsys: Any) -> None:
    path = str(pico().write(tmp_path / "pico.elf"))
    code, result, _ = run(capsys, path, "--board", "pimoroni-pico-plus-2", "--json")
    assert code == 0
    assert next(iter(result)) == "schema"
    assert result["schema"] == 1
    assert result["verdict"] == "fits"
    assert result["unattributed"] == 0
    rows = {r["name"]: (r["size"], r["used"], r["free"]) for r in result["regions"]}
    assert rows["SRAM"] == (532_480, 0x200, 532_480 - 0x200)
    assert rows["FLASH"][1] == 0x400
    assert "PSRAM" in rows
    code, text, _ = run(capsys, path, "--board", "pimoroni-pico-plus-2")
    assert code == 0
    assert "fits: pico.elf on pimoroni-pico-plus-2" in text
    assert "Counted:" in text


def test_json_is_printed_whatever_the_exit_code(tmp_path: Path, capsys: Any) -> None:
    over = str(pico(bss=0x82001).write(tmp_path / "over.elf"))
    code, result, _ = run(capsys, over, "--board", "pimoroni-pico-plus-2", "--json")
    assert (code, result["verdict"]) == (1, "over")
    assert {"level", "what", "where", "value", "limit"} <= set(result["findings"][0])
    (tmp_path / "no.bin").write_bytes(b"\x00\x20\x00\x20" * 8)
    code, result, err = run(capsys, str(tmp_path / "no.bin"), "--json")
    assert code == 2
    assert result["schema"] == 1
    message = result["error"]["message"]
    for part in ("no.bin", "00 20 00 20", "firmware.elf"):
        assert part in message
        assert part in err
    code, result, _ = run(capsys, str(tmp_path / "missing"), "--json")
    assert code == 2
    assert "does not exist" in result["error"]["message"]


@pytest.mark.parametrize(
    ("first", "says"),
    [
        (b":10000000", "line 1, column 2"),
        (b"!<arch>\n", "no ELF object"),
        (b"", "empty"),
        (b"UF2\n", "UF2"),
        (b"\x7fEL", "7f 45 4c"),
        (b"MZ\x90", "Windows"),
    ],
)
def test_no_elf(tmp_path: Path, first: bytes, says: str) -> None:
    path = tmp_path / "firmware.bin"
    path.write_bytes(first)
    with pytest.raises(SizeError, match=says):
        judge(path)
    with pytest.raises(SizeError, match="not a regular file"):
        judge(tmp_path)


def test_baseline_option(tmp_path: Path, capsys: Any) -> None:
    one = str(pico().write(tmp_path / "one.elf"))
    two = str(pico(bss=0x600).write(tmp_path / "two.elf"))
    on = ["--board", "pimoroni-pico-plus-2"]
    _, stored, _ = run(capsys, one, *on, "--json")
    (tmp_path / "one.json").write_text(json.dumps(stored))
    for baseline in (one, str(tmp_path / "one.json")):
        _, result, _ = run(capsys, two, *on, "--baseline", baseline, "--json")
        change = {d["name"]: d["delta"] for d in result["baseline"]["regions"]}
        assert change == {"SRAM": 1024, "FLASH": 0, "PSRAM": 0}
        assert [(d["name"], d["delta"]) for d in result["baseline"]["symbols"]] == [
            ("buffer", 1024)
        ]


# -- damaged files --------------------------------------------------------------------------------


def judged(path: Path, data: bytes) -> bool:
    """True when the bytes get a verdict, False when they are refused; anything else fails."""
    path.write_bytes(data)
    try:
        json.dumps(as_json(judge(path, board())))
    except SizeError:
        return False
    return True


@pytest.mark.parametrize("bits", [32, 64])
def test_every_prefix_is_refused_or_judged(tmp_path: Path, bits: int) -> None:
    whole = firmware(bits=bits).build()
    path = tmp_path / "cut.elf"
    assert judged(path, whole)
    step = 7
    assert not any(judged(path, whole[:n]) for n in range(0, len(whole), step))


@pytest.mark.parametrize(("bits", "little"), [(32, True), (64, True), (32, False)])
def test_mutations_never_crash(tmp_path: Path, bits: int, little: bool) -> None:
    elf = ElfWriter(bits=bits, little=little)
    text = elf.section(".text", FLASH, b"\x01\xbf" * 8, flags=AX)
    zero = elf.section(".bss", RAM, 0x40, flags=WA)
    elf.load([text])
    elf.load([zero])
    elf.symbol("main", FLASH | 1, 8, FUNC, section=text)
    elf.symbol("buffer", RAM, 0x40, OBJECT, section=zero)
    whole, rng, path = elf.build(), random.Random(20), tmp_path / "mutant.elf"
    values = [0, 1, 0x7F, 0x80, 0xFE, 0xFF]
    started, accepted = time.monotonic(), 0
    for at in range(4, len(whole)):  # every byte once, then several at a time
        mutant = bytearray(whole)
        mutant[at] = rng.choice(values)
        accepted += judged(path, bytes(mutant))
    for _ in range(300):
        mutant = bytearray(whole)
        for _ in range(rng.randint(2, 6)):
            mutant[rng.randrange(4, len(whole))] = rng.choice([*values, rng.randrange(256)])
        accepted += judged(path, bytes(mutant))
    assert 0 < accepted < len(whole) + 300
    assert time.monotonic() - started < 60


def test_ai_on_the_edge_2324_counts_are_bounded_by_the_file(tmp_path: Path) -> None:
    """A bogus count or length is refused before anything is allocated for it."""
    path = tmp_path / "bogus.elf"
    whole = bytearray(firmware(bits=64).build())
    huge = bytearray(whole)
    huge[60:62] = b"\0\0"  # e_shnum 0: the count is sh_size of section 0
    at = int.from_bytes(whole[40:48], "little") + 32
    huge[at : at + 8] = (1 << 40).to_bytes(8, "little")
    path.write_bytes(huge)
    with pytest.raises(SizeError, match="section header table: needs bytes"):
        read_elf(path)
