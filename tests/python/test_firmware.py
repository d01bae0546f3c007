# SPDX-License-Identifier: Apache-2.0
"""`colibri build`: layout, linking, what is compiled in, and what the library may need."""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise, product
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from archive import global_symbols, writable_bytes
from colibri.boards import Board, load_board
from colibri.cli import main
from colibri.errors import BuildError, DoesNotFitError
from colibri.fit import judge
from colibri.fit.symbol_rules import LIBRARY_RULES
from colibri.image import Image
from colibri_emulator.build_firmware import Firmware, build_firmware, load_firmware
from colibri_emulator.image_needs import image_needs
from colibri_emulator.kernel_tables import pick_table
from colibri_emulator.layout import MAX_REGIONS, Layout, board_layout
from colibri_emulator.mailbox import Mailbox
from colibri_emulator.symbols import Program
from colibri_emulator.toolchain import (
    TARGETS,
    Gcc,
    Source,
    compile_all,
    find_toolchain,
    plain_map,
)
from needs import need

Packed = Callable[[str], Path]

BARE = (
    "pimoroni-pico-plus-2", "st-stm32n6570-dk", "arm-mps3-an547", "qemu-virt-aarch64-2gb",
    "qemu-virt-riscv64", "qemu-virt-riscv64v",
)  # fmt: skip
NEEDED = {"memcpy", "memmove", "memset", "memcmp"}
IMAGE_BYTES, VOCABULARY, CODE = 5_289_152, 4096, 40 * 1024


def toolchain_of(name: str, board: Board) -> str:
    """The toolchain, if this machine has it for the board."""
    if name == "zig":
        need("module:ziglang")
    else:
        need(TARGETS[board.firmware.target].gcc_prefix + "gcc")
    return name


def build(
    board: Board, image: Path, folder: Path, toolchain: str = "zig", **more: object
) -> Firmware:
    return build_firmware(board, image, folder, toolchain=toolchain, **more)  # type: ignore[arg-type]


# Layout


def spans(layout: Layout) -> list[tuple[int, int]]:
    """Everything that has its own bytes."""
    taken = [(region.base, region.base + region.size) for region in layout.regions]
    taken.append((layout.model_base, layout.model_base + layout.model_bytes))
    taken.append((layout.logits_base, layout.logits_base + layout.logits_bytes))
    taken.append((layout.data_start, layout.data_limit))
    if layout.code_limit != layout.data_limit:
        taken.append((layout.code_start, layout.code_limit))
    return sorted(taken)


@pytest.mark.parametrize("vocabulary", [1, 4096, 151_936])
@pytest.mark.parametrize("name", BARE)
def test_layout_parts_lie_in_the_board_and_apart(name: str, vocabulary: int) -> None:
    board = load_board(name)
    layout = board_layout(board, IMAGE_BYTES, vocabulary, code_bytes=CODE)
    taken = spans(layout)
    for (_, end), (start, _) in pairwise(taken):
        assert end <= start
    usable = [(r.base, r.end, r.reserved) for r in board.regions]
    for start, end in taken:
        base, _, reserved = next(u for u in usable if u[0] <= start and end <= u[1])
        for part in reserved:
            assert end <= base + part.offset or start >= base + part.offset + part.size
    assert 1 <= len(layout.regions) <= MAX_REGIONS
    assert all(r.base > 0 and r.base % 64 == 0 and r.size > 0 for r in layout.regions)


def test_layout_of_the_pico_to_the_byte() -> None:
    """520 KiB SRAM less 8 KiB stack and 24 KiB reserve; the image behind the code in flash."""
    layout = board_layout(
        load_board("pimoroni-pico-plus-2"), IMAGE_BYTES, VOCABULARY, code_bytes=CODE
    )
    sram = 520 * 1024
    assert [(r.name, r.base, r.size) for r in layout.regions] == [
        ("SRAM", 0x20000000 + 32 * 1024, sram - 32 * 1024),
        ("PSRAM", 0x11000000, 8 << 20),
    ]
    assert layout.model_base == 0x10000000 + CODE
    assert (layout.logits_base, layout.logits_bytes) == (0x20004000, 4 * VOCABULARY)


def test_logits_that_outgrow_the_reserve_follow_it() -> None:
    layout = board_layout(
        load_board("pimoroni-pico-plus-2"), IMAGE_BYTES, VOCABULARY + 1, code_bytes=CODE
    )
    reserve_end = 0x20000000 + 32 * 1024
    assert (layout.data_limit, layout.logits_base) == (reserve_end, reserve_end)
    assert layout.regions[0].base == reserve_end + 4 * VOCABULARY + 64


def test_layout_gives_the_rest_of_a_region_behind_an_image_in_ram() -> None:
    board = load_board("qemu-virt-riscv64")
    small, large = (
        board_layout(board, size, VOCABULARY, code_bytes=CODE) for size in (4096, 4096 * 3)
    )
    assert small.regions[0].size - large.regions[0].size == 4096 * 2


def test_layout_refuses_an_image_larger_than_its_region() -> None:
    with pytest.raises(DoesNotFitError, match="FLASH"):
        board_layout(load_board("pimoroni-pico-plus-2"), 16 << 20, VOCABULARY, code_bytes=CODE)


# Builds


@pytest.mark.parametrize("toolchain", ["zig", "gcc"])
@pytest.mark.parametrize("name", BARE)
def test_library_needs_four_functions_and_hides_the_rest(
    name: str, toolchain: str, demo_image: Packed, tmp_path: Path
) -> None:
    board = load_board(name)
    made = build(board, demo_image("q4"), tmp_path / "b", toolchain_of(toolchain, board))
    defined, undefined = global_symbols(made.library)
    assert undefined == NEEDED
    assert {symbol for symbol in defined if not symbol.startswith("colibri_")} == set()
    assert "colibri_infer" in defined
    assert writable_bytes(made.library) == 0
    verdict = judge(made.library, rules=LIBRARY_RULES)
    assert (verdict.exit_code, [f.what for f in verdict.findings if f.level == "error"]) == (0, [])


@pytest.mark.parametrize("toolchain", ["zig", "gcc"])
@pytest.mark.parametrize("name", BARE)
def test_elf_agrees_with_the_layout(
    name: str, toolchain: str, demo_image: Packed, tmp_path: Path
) -> None:
    board = load_board(name)
    made = build(board, demo_image("q4"), tmp_path / "b", toolchain_of(toolchain, board))
    assert made.layout is not None
    program = Program(made.elf)
    assert program.address("colibri_model_base") == made.layout.model_base
    assert program.address("colibri_model_size") == made.model.stat().st_size
    assert program.address("__stack_top") - program.address("__stack_bottom") == (
        board.firmware.stack_bytes
    )
    assert program.address("__firmware_end") <= made.layout.data_limit
    assert program.size("colibri_mailbox") == ctypes.sizeof(Mailbox)
    # Nothing is loaded over the mailbox, which holds the request at reset.
    box = program.address("colibri_mailbox")
    with made.elf.open("rb") as file:
        for segment in ELFFile(file).iter_segments():
            start, size = segment["p_vaddr"], segment["p_memsz"]
            assert not (size and start <= box < start + size)
    assert made.map.stat().st_size > 1000


@pytest.mark.parametrize("toolchain", ["zig", "gcc"])
@pytest.mark.parametrize(("kernels", "kib"), [("ref", 26), ("dsp", 30)])
def test_runtime_is_small_on_cortex_m33(
    kernels: str, kib: int, toolchain: str, demo_image: Packed, tmp_path: Path
) -> None:
    """Everything in flash at -Os, the runner and all KV types included."""
    board = load_board("pimoroni-pico-plus-2")
    compiler = toolchain_of(toolchain, board)
    made = build(board, demo_image("q4"), tmp_path / "b", compiler, optimise="-Os", kernels=kernels)
    assert made.kernels == kernels
    assert 8 << 10 < made.bytes["code"] <= kib << 10


def test_only_what_the_image_needs_is_compiled_in(demo_image: Packed, tmp_path: Path) -> None:
    need("module:ziglang")
    board = load_board("pimoroni-pico-plus-2")
    q4 = image_needs(demo_image("q4"), ("f16",))
    types = ("f32", "f16", "bf16", "q8", "q4")
    assert [name for name in types if q4.parts[name]] == ["q8", "q4"]  # the embedding is q8
    assert "-DCOLIBRI_WITH_BF16=0" in q4.defines()
    assert "-DCOLIBRI_WITH_KV_Q8=0" in q4.defines()
    assert "-DCOLIBRI_WITH_KV_F16=0" not in q4.defines()
    assert "-DCOLIBRI_WITH_DENSE=0" in q4.defines()
    least = build(board, demo_image("q4"), tmp_path / "a", kv=("f32",))
    most = build(board, demo_image("q4"), tmp_path / "b")
    assert least.bytes["code"] < most.bytes["code"]


def names_of_the_machine(made: Firmware, folders: Sequence[Path]) -> list[str]:
    """Folders that ELF, map or library name, and absolute paths in the map."""
    found = [
        f"{file.name}: {folder}"
        for file in (made.elf, made.map, made.library)
        for folder in folders
        if str(folder).encode() in file.read_bytes()
    ]
    text = made.map.read_text("utf-8").replace("\n/DISCARD/", "")
    return found + re.findall(r"(?<![^\s(])/.*", text)


@pytest.mark.parametrize(
    ("name", "toolchain"),
    [("qemu-virt-riscv64", "zig"), ("qemu-virt-riscv64", "gcc"), ("pimoroni-pico-plus-2", "gcc"),
     ("raspberry-pi-zero-2w", "zig")],
)  # fmt: skip
def test_build_is_reproducible(
    name: str,
    toolchain: str,
    demo_image: Packed,
    tmp_path: Path,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another folder, another cache: the same files, which tell nothing of either."""
    board = load_board(name)
    toolchain_of(toolchain, board)
    one = build(board, demo_image("q4"), tmp_path / "a", toolchain)
    monkeypatch.setenv("COLIBRI_CACHE", str(tmp_path / "cache"))
    two = build(board, demo_image("q4"), tmp_path / "other folder" / "b", toolchain)
    for part in ("elf", "map", "library"):
        assert getattr(one, part).read_bytes() == getattr(two, part).read_bytes(), part
    folders = [tmp_path, root, Path(sys.prefix), Path.home()]
    assert names_of_the_machine(two, [f for f in folders if f != Path("/")]) == []
    assert not list(two.elf.parent.glob("*.o"))


def test_two_objects_of_one_name_are_an_error(
    demo_image: Packed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("module:ziglang")
    monkeypatch.setattr(Source, "object_name", "same.o")
    with pytest.raises(BuildError, match="File exists"):
        build(load_board("qemu-virt-riscv64"), demo_image("q4"), tmp_path / "b")


@pytest.mark.parametrize(
    ("line", "plain"),
    [
        ("LOAD /usr/lib/gcc/thumb/v8/libgcc.a", "LOAD libgcc.a"),
        ("/usr/lib/my gcc/libgcc.a(_udivdi3.o)", "libgcc.a(_udivdi3.o)"),
        (" 0x20 /c/libc.a(/c/o/1/stderr.o):(.data)", " 0x20 libc.a(stderr.o):(.data)"),
        (" .text  0x10  0x20 libcolibri.a(plan.o)", " .text  0x10  0x20 libcolibri.a(plan.o)"),
        ("/DISCARD/", "/DISCARD/"),
        (" *(.text / 2)", " *(.text / 2)"),
    ],
)
def test_maps_tell_no_folders_of_the_compiler(line: str, plain: str) -> None:
    assert plain_map(f"{line}\n{line}\n") == f"{plain}\n{plain}\n"


def test_an_object_is_named_by_every_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel includes headers of other kernels' folders; another header makes another object."""

    class Copies(Gcc):
        def identity(self) -> str:
            return "copies"

        def compile(self, source: Path, output: Path, flags: Sequence[str]) -> None:
            output.write_bytes(source.read_bytes())

    source, header = tmp_path / "kernels" / "one" / "a.c", tmp_path / "kernels" / "two" / "b.h"
    for file in (source, header):
        file.parent.mkdir(parents=True)
        file.write_text("1")
    monkeypatch.setenv("COLIBRI_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("colibri_emulator.toolchain.data_path", lambda *_: tmp_path)
    compiler = Copies(next(iter(TARGETS.values())))
    one, again = (compile_all(compiler, [Source(source)], (), ()) for _ in range(2))
    header.write_text("2")
    assert one == again != compile_all(compiler, [Source(source)], (), ())


def test_linux_build_is_a_static_executable(demo_image: Packed, tmp_path: Path) -> None:
    need("module:ziglang")
    made = build(load_board("ti-sk-am62"), demo_image("q4"), tmp_path / "b")
    with made.elf.open("rb") as file:
        elf = ELFFile(file)
        assert elf["e_machine"] == "EM_AARCH64"
        assert not [s for s in elf.iter_segments() if s["p_type"] == "PT_INTERP"]
    assert global_symbols(made.library)[1] == NEEDED


def test_too_small_a_reserve_is_told_by_name(demo_image: Packed, tmp_path: Path) -> None:
    need("module:ziglang")
    board = load_board("pimoroni-pico-plus-2")
    small = board.firmware.model_copy(update={"reserve_bytes": 4096})
    board = board.model_copy(update={"firmware": small})
    with pytest.raises(BuildError, match="raise reserve_bytes"):
        build(board, demo_image("q4"), tmp_path / "b")
    assert list(tmp_path.iterdir()) == []


# The folder


def test_build_record_loads_back(demo_image: Packed, tmp_path: Path) -> None:
    need("module:ziglang")
    made = build(load_board("qemu-virt-riscv64"), demo_image("q4"), tmp_path / "b")
    assert load_firmware(tmp_path / "b") == made
    record = json.loads((tmp_path / "b" / "build.json").read_text())
    assert next(iter(record)) == "schema"
    assert {"elf", "model", "map", "library", "bytes"} <= record.keys()
    assert made.model.read_bytes() == demo_image("q4").read_bytes()


def test_build_renews_its_own_folder_and_no_other(demo_image: Packed, tmp_path: Path) -> None:
    need("module:ziglang")
    board = load_board("qemu-virt-riscv64")
    build(board, demo_image("q4"), tmp_path / "b")
    (tmp_path / "b" / "left-over").touch()
    build(board, demo_image("q4"), tmp_path / "b")
    assert not (tmp_path / "b" / "left-over").exists()
    other = tmp_path / "photos"
    other.mkdir()
    (other / "cat.jpg").touch()
    with pytest.raises(BuildError, match="not a build folder"):
        build(board, demo_image("q4"), other)
    assert (other / "cat.jpg").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "photos"]


def test_command_prints_the_record(
    demo_image: Packed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    need("module:ziglang")
    arguments = ["--board", "qemu-virt-riscv64", "--image", str(demo_image("q4"))]
    assert main(["build", *arguments, "-o", str(tmp_path / "b"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["schema"] == 1
    for part in ("elf", "model", "map", "library"):
        assert Path(printed[part]).is_file()
    assert main(["build", *arguments, "-o", str(tmp_path / "b")]) == 0
    assert "firmware.elf" in capsys.readouterr().out
    assert main(["build", *arguments, "-o", str(demo_image("q4")), "--json"]) == 2
    assert "not a build folder" in json.loads(capsys.readouterr().out)["error"]["message"]


def test_folder_that_is_no_build_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="not a build folder"):
        load_firmware(tmp_path)


def test_unknown_kv_type_is_refused(demo_image: Packed, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="f32, f16, q8"):
        build(load_board("qemu-virt-riscv64"), demo_image("q4"), tmp_path / "b", kv=("f8",))


def test_missing_compiler_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BuildError, match="apt-get install gcc-arm-none-eabi"):
        find_toolchain("cortex-m33", "gcc")
    with pytest.raises(BuildError, match="--toolchain zig"):
        find_toolchain("aarch64-linux-musl", "gcc")


def test_needs_are_read_from_the_tables(demo_image: Packed) -> None:
    image = Image(demo_image("f32"))
    needs = image_needs(image, ("f32",))
    assert (needs.bytes, needs.vocabulary) == (image.bytes, image.vocabulary)
    types = ("f32", "f16", "bf16", "q8", "q4")
    assert [name for name in types if needs.parts[name]] == ["f32"]


# mem.c


@pytest.fixture(scope="module")
def mem(root: Path, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The firmware's mem.c under other names, on this machine."""
    need("cc")
    library = tmp_path_factory.mktemp("mem") / "mem.so"
    names = [f"-D{name}=own_{name}" for name in sorted(NEEDED)]
    flags = ["-O2", "-ffreestanding", "-shared", "-fPIC", "-fno-tree-loop-distribute-patterns"]
    source = root / "emulator" / "firmware" / "mem.c"
    subprocess.run(["cc", *flags, *names, str(source), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


def test_mem_functions_do_what_the_standard_says(mem: ctypes.CDLL) -> None:
    """Every alignment of both sides, every length to beyond two words, overlap both ways."""
    size = 96
    start = bytes(range(1, size + 1))
    for to, source, n in product(range(9), range(9), range(25)):
        for name in ("own_memmove", "own_memcpy"):
            if name == "own_memcpy" and abs(to - source) < n:
                source += n + 9  # apart, another alignment
            buffer = ctypes.create_string_buffer(start, size)
            base = ctypes.addressof(buffer)
            getattr(mem, name)(
                ctypes.c_void_p(base + to), ctypes.c_void_p(base + source), ctypes.c_size_t(n)
            )
            want = bytearray(start)
            want[to : to + n] = start[source : source + n]
            assert buffer.raw == bytes(want), (name, to, source, n)
    for to, n, value in product(range(9), range(25), (0, 0xA5, 0x1FF)):
        buffer = ctypes.create_string_buffer(start, size)
        address = ctypes.c_void_p(ctypes.addressof(buffer) + to)
        mem.own_memset(address, value, ctypes.c_size_t(n))
        want = bytearray(start)
        want[to : to + n] = bytes([value & 255]) * n
        assert buffer.raw == bytes(want), (to, n, value)


def test_memcmp_orders_unsigned_bytes(mem: ctypes.CDLL) -> None:
    for a, b in ((b"abc", b"abc"), (b"abd", b"abc"), (b"\x80", b"\x7f"), (b"", b"")):
        got = mem.own_memcmp(a, b, ctypes.c_size_t(len(a)))
        assert (got > 0) - (got < 0) == (a > b) - (a < b)


# Kernel tables


@pytest.mark.parametrize(
    ("board", "compiler", "want"),
    [
        ("raspberry-pi-zero-2w", "zig", "neon"),
        ("raspberry-pi-5-2gb", "zig", "neon-dot"),
        ("qemu-virt-aarch64-2gb", "gcc", "neon"),
        ("qemu-virt-riscv64", "zig", "ref"),
        ("qemu-virt-riscv64v", "zig", "rvv"),
        ("qemu-virt-riscv64v", "gcc", "ref"),
    ],
)
def test_table_is_the_fastest_that_core_and_compiler_have(
    board: str, compiler: str, want: str
) -> None:
    loaded = load_board(board)
    target, core = loaded.firmware.target, loaded.cores[0]
    assert pick_table(target, core, compiler=compiler).name == want
    assert pick_table(target, core, "ref", compiler=compiler).name == "ref"


def test_table_that_does_not_fit_is_refused() -> None:
    board = load_board("qemu-virt-riscv64v")
    with pytest.raises(BuildError, match=r"cannot run 'rvv' when built for riscv64 by gcc.*ref"):
        pick_table("riscv64", board.cores[0], "rvv", compiler="gcc")
    with pytest.raises(BuildError, match=r"one of auto, ref, neon$"):
        pick_table("aarch64", load_board("qemu-virt-aarch64-2gb").cores[0], "neon-dot")
