# SPDX-License-Identifier: Apache-2.0
"""Chains and rules on what real toolchains link: newlib, tables of functions, C++, LTO, ours."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from colibri.boards import load_board
from colibri.fit import Verdict, judge
from colibri.fit.findings import Chain
from colibri.fit.symbol_rules import LIBRARY_RULES, SymbolRules
from needs import need
from size_support import board, codes, region, said
from test_size_real import COMMON, PREFIXES, SCRIPT
from test_size_references import chain_of

CROSS = [target for target in PREFIXES if target != "host"]
STDIO = Path("/usr/lib/arm-none-eabi/include/stdio.h")
BARE = "pimoroni-pico-plus-2"
NOINLINE = "#define KEEP __attribute__((noinline, noclone))\n"


def link(
    folder: Path, target: str, sources: dict[str, str], *more: str, compiler: str = "gcc"
) -> Path:
    """An ELF of the sources, each an object of its own; its map beside it."""
    prefix, flags = PREFIXES[target]
    need(f"{prefix}{compiler}")
    (folder / "a.ld").write_text(SCRIPT)
    objects = []
    for name, text in sources.items():
        (folder / name).write_text(NOINLINE + text)
        objects.append(f"{name}.o")
        command = [f"{prefix}{compiler}", *flags, *COMMON, *more, "-c", name, "-o", objects[-1]]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    command = [f"{prefix}{compiler}", *flags, *COMMON, *more, "-T", "a.ld", *objects]
    command += ["-o", "a.elf", "-Wl,-Map=a.map,--cref"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder / "a.elf"


HEAP = """
static char pool[64]; static unsigned used;
KEEP void *malloc(unsigned long n) { used += n; return pool + used; }
"""
CHAIN = {
    "heap.c": HEAP,
    "log.c": """
void *malloc(unsigned long); char *volatile line;
KEEP static void format(int x) { line = malloc(x); line[0] = 1; }
KEEP void log_line(int x) { format(x + 1); line[1] = 2; }
""",
    "main.c": """
void log_line(int); volatile int count;
void start(void) { for (;;) { log_line(count); count++; } }
""",
}


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("target", CROSS)
def test_bare_metal_31_chain_of_small_firmware(tmp_path: Path, target: str, kept: bool) -> None:
    """Section by section relocations are complete; else the calls within an object are code."""
    more = ("-ffunction-sections", "-Wl,--emit-relocs") if kept else ()
    if not kept:
        need("module:capstone")
    elf = link(tmp_path, target, CHAIN, *more)
    chain = chain_of(judge(elf, board()))
    source = "relocations" if kept else "machine code"
    assert chain == Chain(("malloc", "format", "log_line", "start"), source, True)


@pytest.mark.parametrize("target", CROSS)
def test_bare_metal_31_chain_by_the_map_alone(tmp_path: Path, target: str) -> None:
    link(tmp_path, target, CHAIN)
    prefix, _ = PREFIXES[target]
    subprocess.run([f"{prefix}ar", "rc", "libheap.a", "heap.c.o"], cwd=tmp_path, check=True)
    subprocess.run([f"{prefix}ar", "rc", "liblog.a", "log.c.o"], cwd=tmp_path, check=True)
    _, flags = PREFIXES[target]
    command = [f"{prefix}gcc", *flags, *COMMON, "-T", "a.ld", "main.c.o", "liblog.a", "libheap.a"]
    for lists in ("-Map=b.map", "-Map=b.map,--cref"):
        subprocess.run([*command, "-o", "b.elf", f"-Wl,{lists}"], cwd=tmp_path, check=True)
        chain = chain_of(judge(tmp_path / "b.map", rules=SymbolRules(forbidden=("malloc",))))
        assert chain is not None
        assert (chain.names, chain.source, chain.complete) == (
            ("malloc", "liblog.a(log.c.o) for malloc", "main.c.o for log_line"),
            "map, by object",
            True,
        )


TABLE = """
void *malloc(unsigned long); void *volatile kept; volatile unsigned input;
KEEP static void store(void) { kept = malloc(8); kept = 0; }
KEEP static void clear(void) { kept = 0; }
static void (*const commands[])(void) = {clear, store, clear, clear};
void start(void) { for (;;) commands[input & 3](); }
"""


@pytest.mark.parametrize("target", CROSS)
def test_a_function_that_only_a_table_names(tmp_path: Path, target: str) -> None:
    need("module:capstone")
    elf = link(tmp_path, target, {"heap.c": HEAP, "main.c": TABLE})
    chain = chain_of(judge(elf, board()))
    names = ("malloc", "store", "commands", "start")
    assert chain == Chain(names, "machine code and words in data", True)
    elf = link(tmp_path, target, {"heap.c": HEAP, "main.c": TABLE}, "-Wl,--emit-relocs")
    assert chain_of(judge(elf, board())) in (
        Chain(names, "relocations", True),
        Chain(names, "relocations and machine code", True),
    )


CXX = """
extern "C" {
KEEP void *malloc(unsigned long n);
}
void *operator new[](decltype(sizeof 0) n) { void *volatile p = malloc(n); return p; }
namespace board { struct Uart { static int *volatile buffer; KEEP static void open(int n); }; }
int *volatile board::Uart::buffer;
KEEP void board::Uart::open(int n) { buffer = new int[n]; buffer[0] = 1; }
volatile int count;
extern "C" void start() { for (;;) board::Uart::open(count); }
"""


def test_bare_metal_31_new_of_cxx(tmp_path: Path) -> None:
    need("module:capstone")
    (tmp_path / "heap.c").write_text(HEAP)
    heap = 'extern "C" {' + HEAP + "}"
    more = ("-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics")
    sources = {"heap.cpp": heap, "main.cpp": CXX}
    verdict = judge(link(tmp_path, "cortex-m33", sources, *more, compiler="g++"), board())
    new = next(s.name for s in verdict.elf.symbols if s.name.startswith("_Zna"))
    text = said(verdict, "forbidden")
    assert f" ({new}) (heap) is linked in" in text
    assert re.search(r"needed by board::Uart::open(\(int\))? <- start \(machine code\)", text)
    chain = chain_of(verdict)
    assert chain is not None
    assert chain.names[-2:] == ("_ZN5board4Uart4openEi", "start")


# -- newlib ---------------------------------------------------------------------------------------

PRINTF = """
#include <stdio.h>
KEEP void log_line(int x) { printf("v = %d\\n", x); }
int main(void) { log_line(3); return 0; }
"""


def users_by_object(text: str) -> dict[str, set[str]]:
    """Of the map's cross references: the objects that name each symbol; not the tool's reader."""
    users: dict[str, set[str]] = defaultdict(set)
    name = ""
    for line in text.partition("\nCross Reference Table\n")[2].splitlines()[3:]:
        found = re.fullmatch(r"(\S*) +(\S+)", line)
        if found:
            name = found[1] or name
            users[name].add(found[2])
    return users


def objects_of(text: str) -> tuple[dict[str, str], dict[str, str]]:
    """Of the map: the object that each global symbol lies in, and its address."""
    home, found, addresses = "", {}, {}
    for line in text.splitlines():
        if match := re.fullmatch(r" (?:\.\S+)? *0x[0-9a-f]+ +0x[0-9a-f]+ (\S+)", line):
            home = match[1]
        elif match := re.fullmatch(r" {10,}0x([0-9a-f]+) +(\w+)", line):
            found[match[2]], addresses[match[2]] = home, match[1]
    return found, addresses


@pytest.mark.parametrize("kept", [True, False])
def test_bare_metal_31_printf_of_newlib_pulls_malloc_in(tmp_path: Path, kept: bool) -> None:
    """Each link of each chain is one that the linker's own cross references have."""
    need("arm-none-eabi-gcc", "arm-none-eabi-objcopy", f"file:{STDIO}", "module:capstone")
    (tmp_path / "a.c").write_text(NOINLINE + PRINTF)
    command = "arm-none-eabi-gcc -mcpu=cortex-m33 -mthumb -Os --specs=nano.specs -fno-lto"
    words = [*command.split(), "--specs=nosys.specs", "a.c", "-o", "a.elf"]
    words.append("-Wl,-Map=a.map,--cref,--gc-sections,--emit-relocs")
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)
    if not kept:
        strip = ["arm-none-eabi-objcopy", "--remove-section", ".rel*", "a.elf", "b.elf"]
        subprocess.run(strip, cwd=tmp_path, check=True)
    elf = tmp_path / ("a.elf" if kept else "b.elf")
    verdict = judge(elf, load_board(BARE))
    text = (tmp_path / "a.map").read_text()
    users, (homes, addresses) = users_by_object(text), objects_of(text)
    assert len(users) > 50
    chain = chain_of(verdict, "_malloc_r")
    assert chain is not None
    assert chain.complete
    assert chain.names[0] == "_malloc_r"
    assert chain.names[-3:] == ("printf", "log_line", "main")
    links = 0
    for finding in verdict.findings:
        names = finding.chain.names if finding.chain is not None else ()
        for needed, user in pairwise(names):
            if needed in homes and user in homes and homes[needed] != homes[user]:
                aliases = [a for a in addresses if addresses[a] == addresses[needed]]
                assert any(homes[user] in users[a] for a in aliases), (needed, user)
                links += 1
    assert links >= 10


def test_newlib_by_the_map(tmp_path: Path) -> None:
    """Of each chain every object is one that the linker says it took for the one before."""
    need("arm-none-eabi-gcc", f"file:{STDIO}")
    (tmp_path / "a.c").write_text(NOINLINE + PRINTF)
    command = "arm-none-eabi-gcc -mcpu=cortex-m33 -mthumb -Os --specs=nosys.specs -c a.c -o a.o"
    subprocess.run(command.split(), cwd=tmp_path, check=True)
    words = command.replace("-c a.c -o a.o", "a.o -o a.elf -Wl,-Map=a.map").split()
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)
    text = (tmp_path / "a.map").read_text()
    verdict = judge(tmp_path / "a.map", load_board(BARE))
    chain = chain_of(verdict, "_malloc_r")
    assert chain is not None
    assert chain.source == "map, by object"
    assert chain.names[-1] == "a.o for printf"
    for before, after in pairwise(chain.names[1:]):
        member = re.escape(before.split(" for ")[0].split("(")[1])
        user, _, symbol = after.partition(" for ")
        assert re.search(
            rf"\({member}\s+\S*{re.escape(user)} \({re.escape(symbol)}\)", text
        ), (before, after)  # fmt: skip


# -- lld ------------------------------------------------------------------------------------------


def test_chains_of_lld(tmp_path: Path) -> None:
    """zig's clang and lld: kept relocations, machine code, and the map with --cref."""
    need("module:ziglang", "module:capstone")
    zig = [sys.executable, "-m", "ziglang"]
    for name, text in CHAIN.items():
        (tmp_path / name).write_text(NOINLINE.replace(", noclone", "") + text)
        words = ["cc", "-target", "thumb-freestanding-eabi", "-mcpu=cortex_m33", "-Os"]
        words += ["-ffunction-sections", "-c", name, "-o", f"{name}.o"]
        subprocess.run([*zig, *words], cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "a.ld").write_text(SCRIPT)
    for name in ("log", "heap"):
        words = ["ar", "rc", f"lib{name}.a", f"{name}.c.o"]
        subprocess.run([*zig, *words], cwd=tmp_path, check=True)
    ld = [*zig, "ld.lld", "-T", "a.ld", "main.c.o", "liblog.a", "libheap.a", "-o", "a.elf"]
    ld += ["-Map=a.map", "--cref"]
    names = ("malloc", "format", "log_line", "start")
    for more, source in ((["--emit-relocs"], "relocations"), ([], "machine code")):
        subprocess.run([*ld, *more], cwd=tmp_path, check=True, capture_output=True)
        assert chain_of(judge(tmp_path / "a.elf", board())) == Chain(names, source, True)
    rules = SymbolRules(forbidden=("malloc",))
    chain = chain_of(judge(tmp_path / "a.map", rules=rules))
    assert chain is not None
    assert chain.names == ("malloc", "liblog.a(log.c.o) for malloc", "main.c.o for log_line")


# -- rules ----------------------------------------------------------------------------------------

HOT = """
static int state[64];
const int limits[8] = {1, 2, 3};
KEEP int dot(int x) { state[x & 63] += x; return x * limits[x & 7]; }
"""
PLACED = """
MEMORY { FLASH (rx) : ORIGIN = 0x08000000, LENGTH = 64K
         RAM (rwx) : ORIGIN = 0x20000000, LENGTH = 128K
         ITCM (rwx) : ORIGIN = 0x10000, LENGTH = 64K }
ENTRY(start)
SECTIONS {
  .fast : { *hot.c.o(.text*) } > ITCM AT> FLASH
  .text : { *(.text*) *(.rodata*) } > FLASH
  .data : { *(.data*) } > RAM AT> FLASH
  .bss (NOLOAD) : { *(.bss*) *(COMMON) } > RAM
  /DISCARD/ : { *(.comment) *(.note*) *(.ARM.*) }
}
"""
RULES = SymbolRules(required={"dot": "ITCM"}, no_writable=("hot.c.o",))


def placed(folder: Path, *more: str, source: str = HOT) -> Verdict:
    """hot.c placed by its file's name, on a board with that memory."""
    prefix, flags = PREFIXES["cortex-m33"]
    need(f"{prefix}gcc")
    (folder / "a.ld").write_text(PLACED)
    user = "int dot(int); volatile int n; void start(void) { for (;;) n = dot(n); }"
    for name, text in (("hot.c", source), ("main.c", user)):
        (folder / name).write_text(NOINLINE + text)
        words = [f"{prefix}gcc", *flags, *COMMON, *more, "-c", name, "-o", f"{name}.o"]
        subprocess.run(words, cwd=folder, check=True)
    words = [f"{prefix}gcc", *flags, *COMMON, *more, "-T", "a.ld", "hot.c.o", "main.c.o"]
    subprocess.run([*words, "-o", "a.elf", "-Wl,-Map=a.map"], cwd=folder, check=True)
    on = board(region("ITCM", 0x10000, 0x10000))
    return judge(folder / "a.elf", on, link_map=folder / "a.map", rules=RULES)


def test_zephyr_97432_placing_by_file_name_does_nothing_under_lto(tmp_path: Path) -> None:
    without = placed(tmp_path)
    assert codes(without, "error") == ["writable"]
    assert said(without, "writable") == (
        ".bss: state of hot.c.o: 256 B that can be written, and hot.c.o may have none"
    )
    constant = HOT.replace("static int state[64];", "").replace("state[x & 63] += x;", "")
    assert placed(tmp_path, source=constant).exit_code == 0
    lto = placed(tmp_path, "-flto")
    assert lto.exit_code == 1
    assert "ITCM: dot runs in FLASH, the rule wants ITCM" in said(lto, "misplaced")
    assert "hot.c.o: cannot be told" in said(lto, "symbols-unknown")
    inlined = placed(tmp_path, "-flto", source=HOT.replace("KEEP int dot", "int dot"))
    assert "dot is required and not there (dropped, inlined" in said(inlined, "required")


def test_library_rules_on_one_that_breaks_them(tmp_path: Path) -> None:
    """A counter, a heap and double arithmetic; `test_firmware` holds ours against the rules."""
    need("arm-none-eabi-gcc")
    (tmp_path / "bad.c").write_text("""
void *malloc(unsigned); static int calls;
static double half(double x) { return x * 0.5; }
void *colibri_bad(int n) { calls++; return malloc((unsigned)half(n) + calls); }
""")
    command = "arm-none-eabi-gcc -mcpu=cortex-m33 -mthumb -mfloat-abi=soft -Os -c bad.c -o bad.o"
    subprocess.run(command.split(), cwd=tmp_path, check=True)
    verdict = judge(tmp_path / "bad.o", rules=LIBRARY_RULES)
    assert verdict.exit_code == 1
    assert set(codes(verdict, "error")) == {"forbidden", "needs", "writable"}
    assert "malloc (heap) is needed but not defined, needed by colibri_bad" in said(
        verdict, "forbidden"
    )
    assert "__aeabi_dmul is needed and not among what may be" in said(verdict, "needs")
    assert "calls of bad.o: 4 B that can be written" in said(verdict, "writable")
