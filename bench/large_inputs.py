# SPDX-License-Identifier: Apache-2.0
"""Very large inputs for `colibri size`, made by real toolchains where there is one to make them."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests/python"))

from archive import write_archive  # noqa: E402
from elf_writer import AX, FUNC, LOCAL, OBJECT, WA, X86_64, ElfWriter  # noqa: E402

Make = Callable[[Path], Path]
FLASH, RAM, FUNCTIONS = 0x0800_0000, 0x2000_0000, 300
ZIG = (sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-linux-musl", "-fno-sanitize=all")


def large_source(functions: int = FUNCTIONS) -> str:
    """Structures, inline functions, and as many functions that call them."""
    lines = []
    for i in range(functions):
        lines.append(
            f"struct s{i} {{ int a{i}; struct s{max(0, i - 1)} *p; union {{ float f; "
            f"int x[{i + 1}]; }} u; enum {{ E{i}A, E{i}B }} e; }};"
        )
        lines.append(
            f"static inline int in{i}(struct s{i} *v, int k) {{ int r = 0; for (int i = 0; i < k; "
            f"i++) {{ r += v->u.x[i % {i + 1}] * k; if (r > {i}) r ^= i; }} return r; }}"
        )
        lines.append(
            f"int fn{i}(struct s{i} *v, int a, int b) {{ int t = in{i}(v, a); "
            f"return t + in{max(0, i - 1)}(v->p, b) * {i}; }}"
        )
    return "\n".join(lines)


def run(folder: Path, *words: object) -> None:
    """A tool in a folder; it has to succeed."""
    subprocess.run([str(w) for w in words], cwd=folder, check=True, capture_output=True)


def link_copies(
    folder: Path, compiler: tuple[str, ...], prefix: str, copies: int, emulation: str = ""
) -> Path:
    """An ELF of `copies` copies of one object whose symbols differ by a prefix."""
    folder.mkdir(exist_ok=True)
    (folder / "one.c").write_text(large_source())
    run(folder, *compiler, "-ffunction-sections", "-c", "one.c", "-o", "one.o")
    objects = [f"c{i}.o" for i in range(copies)]
    for i, name in enumerate(objects):
        run(folder, f"{prefix}objcopy", f"--prefix-symbols=m{i}_", "one.o", name)
    names = [f"m{i}_fn{j}" for i in range(copies) for j in range(FUNCTIONS)]
    calls = "".join(f"int {name}(void *, int, int); r += {name}(p, a, b);\n" for name in names)
    head = "int whole(void *p, int a, int b) { int r = 0;"
    (folder / "main.c").write_text(f"{head}\n{calls}return r; }}\n")
    run(folder, *compiler, "-O0", "-g0", "-c", "main.c", "-o", "main.o")
    (folder / "objects").write_text("\n".join([*objects, "main.o"]))
    elf, chosen = folder / "large.elf", ("-m", emulation) if emulation else ()
    run(folder, f"{prefix}ld", *chosen, "-Ttext=0x8000000", "-e", "whole", "-o", elf, "@objects")
    for name in objects:
        (folder / name).unlink()
    return elf


def debug_information(version: int, compiler: tuple[str, ...], copies: int) -> Make:
    """Real DWARF: 300 functions and structures in each of `copies` units."""
    words = (*compiler, "-g3", f"-gdwarf-{version}", "-O2")
    return lambda folder: link_copies(folder, words, "", copies)


def machine_code(prefix: str, flags: tuple[str, ...], copies: int, emulation: str = "") -> Make:
    """Code for `--stack`, without debug information."""
    words = (f"{prefix}gcc", "-O2", *flags)
    return lambda folder: link_copies(folder, words, prefix, copies, emulation)


def sections(folder: Path) -> Path:
    """66,000 sections and a symbol in each: extended numbering."""
    elf = ElfWriter()
    code = b"\x00\xbf"
    homes = [elf.section(f".text.f{i}", FLASH + 2 * i, code, flags=AX) for i in range(66_000)]
    elf.load(homes)
    for i, home in enumerate(homes):
        elf.symbol(f"f{i}", FLASH + 2 * i | 1, 2, FUNC, section=home)
    return elf.write(folder / "sections.elf")


def symbols(count: int, name: Callable[[int], str]) -> Make:
    """One section of code and one of data with `count` symbols, a third of them local."""

    def make(folder: Path) -> Path:
        elf = ElfWriter(bits=64, machine=X86_64)
        half = count // 2
        text = elf.section(".text", FLASH, bytes(16 * half), flags=AX)
        data = elf.section(".bss", RAM, 8 * half, flags=WA)
        elf.load([text])
        elf.load([data])
        for i in range(half):
            bind = {"bind": LOCAL} if i % 3 == 0 else {}
            elf.symbol(name(i), FLASH + 16 * i, 12, FUNC, section=text, **bind)
            elf.symbol(f"v{name(i)}", RAM + 8 * i, 8, OBJECT, section=data, **bind)
        return elf.write(folder / "symbols.elf")

    return make


def cxx_name(i: int) -> str:
    """A mangled name of some 900 characters, as templates of templates have."""
    word = "15LongClassNameNoI"
    return f"_ZN{word * 45}{i}E" + "St6vectorIiSaIiEE" * 5


def debug_strings(folder: Path) -> Path:
    """20,000 units whose names lie in 300 MB of .debug_str."""
    elf, units, step = ElfWriter(bits=64, machine=X86_64), 20_000, 15_000
    text = elf.section(".text", FLASH, bytes(16 * units), flags=AX)
    elf.load([text])
    texts, info = bytearray(), bytearray()
    for i in range(units):
        at = len(texts)
        texts += f"file{i}.c".encode() + b"\0/src\0"
        texts += b"a_name_of_a_function\0" * ((step - len(texts) + at) // 21)
        folder_at = at + len(f"file{i}.c") + 1
        body = b"\x01" + struct.pack("<IIQI", at, folder_at, FLASH + 16 * i, 16)
        head = struct.pack("<HIB", 4, 0, 8)
        info += struct.pack("<I", len(head) + len(body)) + head + body
        elf.symbol(f"f{i}", FLASH + 16 * i, 16, FUNC, section=text)
    abbrev = bytes([1, 0x11, 0, 0x03, 0x0E, 0x1B, 0x0E, 0x11, 0x01, 0x12, 0x06, 0, 0, 0])
    elf.section(".debug_info", 0, bytes(info), flags=0)
    elf.section(".debug_abbrev", 0, abbrev, flags=0)
    elf.section(".debug_str", 0, bytes(texts), flags=0)
    return elf.write(folder / "strings.elf")


def library(folder: Path) -> Path:
    """A static library of 5,000 members, 200 MB."""
    (folder / "one.c").write_text(large_source(10))
    run(folder, "gcc", "-g3", "-O2", "-ffunction-sections", "-c", "one.c", "-o", "one.o")
    data = (folder / "one.o").read_bytes()
    data += bytes(max(0, 40_000 - len(data)))
    return write_archive(folder / "lib.a", {f"member_{i}.o": data for i in range(5_000)})


MAP_HEAD = """
Memory Configuration

Name             Origin             Length             Attributes
FLASH            0x08000000         0x10000000         xr
*default*        0x00000000         0xffffffff

Linker script and memory map


"""


def gnu_map(megabytes: int) -> Make:
    """A map of GNU ld with a section for each function, and a symbol in each."""

    def make(folder: Path) -> Path:
        one = _part(0)
        parts = megabytes * 1_000_000 // len(one)
        path = folder / "big.map"
        with path.open("w") as out:
            out.write(MAP_HEAD)
            out.write(f".text           0x08000000   {parts * 32:#10x}\n *(.text .text.*)\n")
            for i in range(parts):
                out.write(_part(i))
        return path

    return make


def _part(i: int) -> str:
    at = FLASH + 32 * i
    return (
        f" .text.function_number_{i}\n                0x{at:08x}       0x20 "
        f"build/libs/lib{i % 300}/liblib{i % 300}.a(object_{i // 20}.o)\n"
        f"                0x{at:08x}                function_number_{i}\n"
    )


def lld_map(folder: Path) -> Path:
    """The same from lld, 30 MB."""
    path, parts = folder / "lld.map", 160_000
    with path.open("w") as out:
        out.write("     VMA      LMA     Size Align Out     In      Symbol\n")
        out.write(f" 8000000  8000000 {parts * 32:8x}    16 .text\n")
        for i in range(parts):
            at = FLASH + 32 * i
            file = f"build/libs/lib{i % 300}/liblib{i % 300}.a(object_{i // 20}.o)"
            name, where = f"function_number_{i}", f"{at:8x} {at:8x}       20"
            out.write(f"{where}    16         {file}:(.text.{name})\n")
            out.write(f"{where}     1                 {name}\n")
    return path


def _hex_lines(start: int, records: Iterator[bytes]) -> Iterator[str]:
    upper = -1
    for i, data in enumerate(records):
        at = start + len(data) * i
        if at >> 16 != upper:
            upper = at >> 16
            yield _record(0, 4, upper.to_bytes(2, "big"))
        yield _record(at & 0xFFFF, 0, data)
    yield ":00000001FF\n"


def _record(offset: int, kind: int, data: bytes) -> str:
    raw = bytes([len(data), offset >> 8, offset & 0xFF, kind]) + data
    return f":{(raw + bytes([-sum(raw) & 0xFF])).hex().upper()}\n"


def intel_hex(folder: Path) -> Path:
    """100 MB of records of 16 bytes."""
    rng, count, path = random.Random(1), 100_000_000 // 44, folder / "big.hex"
    with path.open("w") as out:
        out.writelines(_hex_lines(FLASH, (rng.randbytes(16) for _ in range(count))))
    return path


def s_records(folder: Path) -> Path:
    """100 MB of S3 records of 16 bytes."""
    rng, count, path = random.Random(1), 100_000_000 // 47, folder / "big.s37"
    with path.open("w") as out:
        for i in range(count):
            raw = bytes([21]) + (FLASH + 16 * i).to_bytes(4, "big") + rng.randbytes(16)
            out.write(f"S3{(raw + bytes([~sum(raw) & 0xFF])).hex().upper()}\n")
        out.write("S70500000000FA\n")
    return path


#: What to make, by name, and the words that `colibri size` gets beside it.
INPUTS: dict[str, tuple[Make, tuple[str, ...]]] = {
    "dwarf-4": (debug_information(4, ("gcc",), 640), ()),
    "dwarf-5": (debug_information(5, ("gcc",), 640), ()),
    "dwarf-4-clang": (debug_information(4, ZIG, 700), ()),
    "dwarf-5-clang": (debug_information(5, ZIG, 700), ()),
    "sections": (sections, ()),
    "symbols": (symbols(1_000_000, lambda i: f"function_name_{i}"), ()),
    "long-names": (symbols(200_000, cxx_name), ()),
    "debug-strings": (debug_strings, ()),
    "archive": (library, ()),
    "map-30": (gnu_map(27), ()),
    "map-200": (gnu_map(180), ()),
    "map-lld": (lld_map, ()),
    "intel-hex": (intel_hex, ()),
    "s-records": (s_records, ()),
    "stack-arm": (machine_code("arm-none-eabi-", ("-mcpu=cortex-m33",), 60), ("--stack",)),
    "stack-aarch64": (machine_code("aarch64-linux-gnu-", (), 48), ("--stack",)),
    "stack-riscv": (
        machine_code("riscv64-unknown-elf-", ("-march=rv32imc", "-mabi=ilp32"), 60, "elf32lriscv"),
        ("--stack",),
    ),
}
