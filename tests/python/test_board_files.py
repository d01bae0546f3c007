# SPDX-License-Identifier: Apache-2.0
"""Board files with a defect: each is refused with its place and the value that would work."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from board_text import WHOLE, changed, write
from colibri._data import data_path
from colibri.boards import check_board_file, load_board
from colibri.errors import BoardError


def refused(folder: Path, text: str) -> str:
    """The message about a board file that must not load."""
    with pytest.raises(BoardError) as caught:
        load_board(write(folder, text))
    assert caught.value.exit_code == 2
    return str(caught.value)


# --- files that are not board files -----------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\xff\xfe\x00\x01" * 50, "not UTF-8"),
        (b"id = ", "not valid TOML"),
        (b"\x7fELF\x01\x01", "not valid TOML"),
        (b"x = " + b"[" * 100_000, "nested too deeply"),
        (b"x = " + b"9" * 10_000, "not valid TOML"),
        (b"#" * (1 << 20) + b"#", "larger than"),
        (b"", "missing key 'schema_version'"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "board.toml"
    path.write_bytes(content)
    with pytest.raises(BoardError, match=expected) as caught:
        load_board(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", ["missing.toml", "folder.toml", "a\0b.toml", "/dev/zero"])
def test_what_is_no_file_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(BoardError):
        load_board(tmp_path / name)


# --- one defect each --------------------------------------------------------------------------

DEFECTS = {
    "KB": ('size = "64 KiB"', 'size = "64 KB"', "SRAM'.size", "write '64 KiB' for 65,536 bytes"),
    "K": ('size = "64 KiB"', 'size = "64K"', "SRAM'.size", "write '64 KiB'"),
    "negative": ('size = "64 KiB"', "size = -1", "SRAM'.size", "negative"),
    "bool as size": ('size = "64 KiB"', "size = true", "SRAM'.size", "not a size"),
    "float size": ('size = "64 KiB"', "size = 65536.0", "SRAM'.size", "not a size"),
    "huge size": ('size = "64 KiB"', f"size = {2**64}", "SRAM'.size", "64 bits"),
    "enormous size": ('size = "64 KiB"', f"size = {10**4000}", "SRAM'.size", "bits"),
    "size 0": ('size = "64 KiB"', "size = 0", "SRAM'.size", "0 B (no capacity)"),
    "bool as count": ("count = 1", "count = true", "m33'.count", "true is not an integer"),
    "count 0": ("count = 1", "count = 0", "m33'.count", "at least 1"),
    "bad line": ("line_bytes = 4", "line_bytes = 48", "m33'.line_bytes", "power of two"),
    "bad isa": ("armv8-m.main", "armv8-m.mian", "m33'.isa", "did you mean 'armv8-m.main'?"),
    "bad kind": ('kind = "sram"', 'kind = "ram"', "SRAM'.kind", "did you mean 'sram'?"),
    "unknown key": ("rank = 0", "rank = 0\nsizes = 1", "regions[0] 'SRAM'", "did you mean 'size'?"),
    "unknown table": ("[firmware]", "[firmwares]", "", "did you mean 'firmware'?"),
    "computed key": ("rank = 0", "rank = 0\nusable = 1", "SRAM'", "unknown key 'usable'"),
    "missing key": ("rank = 0\n", "", "regions[0] 'SRAM'", "missing key 'rank'"),
    "string base": ("base = 0x20000000", 'base = "0x20000000"', "SRAM'.base", "not an integer"),
    "base over 64 bits": ("base = 0x20000000", f"base = {2**64}", "SRAM'.base", "at most"),
    "end over 64 bits": ("base = 0x20000000", f"base = {2**64 - 1}", "SRAM'.base", "above 2^64"),
    "overlap": ("base = 0x20000000", "base = 0x080FFFFF", "'FLASH' and 'SRAM'", "overlap"),
    "alias overlap": ("[0x00000000]", "[0x2000FFFF]", "'SRAM' and 'FLASH'", "(alias)"),
    "own alias": ("[0x00000000]", "[0x08000000]", "'FLASH' and 'FLASH'", "overlap"),
    "duplicate region": ('"FLASH"\nkind', '"SRAM"\nkind', "regions", "'SRAM' is used 2 times"),
    "reserved outside": ("offset = 0", "offset = 0x100000", "FLASH'.reserved", "outside"),
    "reserved too large": ('"16 KiB", reason', '"2 MiB", reason', "reserved", "outside"),
    "reserved nothing": ('"16 KiB", reason', "0, reason", "FLASH'.reserved", "size 0"),
    "no reason": (', reason = "boot loader"', "", "FLASH'.reserved[0]", "missing key 'reason'"),
    "code in reserved": ('code_offset = "16 KiB"', "code_offset = 0", "code_offset", "boot loader"),
    "code outside": ('code_offset = "16 KiB"', 'code_offset = "1 MiB"', "code_offset", "outside"),
    "unknown region": ('data_region = "SRAM"', 'data_region = "SRAN"', "data_region", "'SRAM'?"),
    "data in flash": ('data_region = "SRAM"', 'data_region = "FLASH"', "data_region", "lacks 'w'"),
    "stack too large": ('stack_bytes = "4 KiB"', 'stack_bytes = "62 KiB"', "firmware", "usable"),
    "wrong target": ('target = "cortex-m33"', 'target = "riscv64"', "target", "does not run"),
    "linux target": ('"cortex-m33"\ncode', '"aarch64-linux-musl"\ncode', "target", "os 'none'"),
    "linux key": ("stack_bytes", "os_reserve_bytes = 1\nstack_bytes", "os_reserve_bytes", "remove"),
    "psci": ("stack_bytes", 'psci = "hvc"\nstack_bytes', "psci", "is for target aarch64"),
    "psci word": ("stack_bytes", 'psci = "svc"\nstack_bytes', "psci", "hvc"),
    "no stack": ('stack_bytes = "4 KiB"\n', "", "firmware", "missing key 'stack_bytes'"),
    "escape": ('name = "Bench"', 'name = "\\u001b[31m"', "name", "printable"),
    "version": ("schema_version = 1", "schema_version = 2", "schema_version", "one of 1"),
    "no cores": ("[[cores]]", "[[regions]]", "", "missing key 'cores'"),
    "cores a table": ("[[cores]]", "[cores]", "cores", "is not a list"),
    "unknown soc": ('os = "none"', 'os = "none"\nsoc = "rp2351"', "soc", "did you mean 'rp2350'?"),
    "soc a number": ('os = "none"', 'os = "none"\nsoc = 3', "soc", "not a string"),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_defect_is_named_with_its_place(tmp_path: Path, name: str) -> None:
    old, new, where, what = DEFECTS[name]
    message = refused(tmp_path, changed(old, new))
    assert "board.toml" in message
    assert where in message
    assert what in message


FIGURES = {
    "nan": "not a number",
    "inf": "not a number",
    "-1.0": "out of range",
    "0": "out of range",
    "true": "not a number",
    '"9"': "not a number",
    "1" + "0" * 400: "out of range",
}


@pytest.mark.parametrize("value", FIGURES)
def test_figures_are_finite_and_positive(tmp_path: Path, value: str) -> None:
    figure = f'perf.read_Bps = {{ value = {value}, cls = "measured", source = "x" }}\n'
    message = refused(tmp_path, changed("rank = 0\n", "rank = 0\n" + figure))
    assert "'SRAM'.perf.read_Bps.value" in message
    assert FIGURES[value] in message


POINT = '{{ block_bytes = {}, read_Bps = 1, cls = "measured", source = "x" }}'
ENDINGS = {
    "second core with the id of the first": (
        WHOLE[WHOLE.index("[[cores]]") : WHOLE.index("[[regions]]")],
        "id 'm33' is used 2 times",
    ),
    "budget of an unknown region": ("[budgets.regions]\nSRAN = {}\n", "did you mean 'SRAM'?"),
    "budget over 100 %": ('[budgets.regions.SRAM]\nlimit = "101 %"\n', "up to 100 %"),
    "budget that is a table": ("[budgets.regions.SRAM]\nlimit = {size = 3}\n", "or '90 %'"),
    "warn above limit": ('[budgets.regions.SRAM]\nwarn = "90 %"\nlimit = 8\n', "above limit"),
    "curve that falls": (
        f'[[storage]]\nname = "SD"\nkind = "sd"\npoints = [{POINT.format(8)}, {POINT.format(4)}]\n',
        "[8, 4] must start above 0 and rise",
    ),
    "xip storage without a region": (
        f'[[storage]]\nname = "NOR"\nkind = "nor"\nxip = true\npoints = [{POINT.format(8)}]\n',
        "no region 'NOR'",
    ),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_bad_table_at_the_end(tmp_path: Path, name: str) -> None:
    text, what = ENDINGS[name]
    assert what in refused(tmp_path, WHOLE + text)


def test_overlapping_reservations(tmp_path: Path) -> None:
    two = '{ offset = 4096, size = 1, reason = "log" }, { offset = 0'
    message = refused(tmp_path, changed("{ offset = 0", two))
    assert "'log' overlaps reserved part 'boot loader'" in message
    assert "0x4000" in message


def test_underflow_is_refused(tmp_path: Path) -> None:
    """Reserved parts larger than the region: never a size near 2^64."""
    text = changed('size = "1 MiB"', 'size = "8 KiB"')
    message = refused(tmp_path, text)
    assert "may be at most 0x2000" in message
    assert "18446744073709" not in message


def test_system_may_not_keep_all_memory(tmp_path: Path) -> None:
    text = data_path("board_configs", "boards", "ti-sk-am62.toml").read_text("utf-8")
    assert 'os_reserve_bytes = "205 MiB"' in text
    text = text.replace('os_reserve_bytes = "205 MiB"', 'os_reserve_bytes = "2 GiB"')
    assert "leaves nothing" in refused(tmp_path, text)


def test_every_problem_is_reported_at_once(tmp_path: Path) -> None:
    text = changed("count = 1", "count = 0").replace("[0x00000000]", "[0x20000000]")
    board, problems = check_board_file(write(tmp_path, text.replace("rank = 1", "rnk = 1")))
    assert board is None
    said = "\n".join(str(problem) for problem in problems)
    for part in ("'m33'.count", "unknown key 'rnk'", "missing key 'rank'"):
        assert part in said
    _, problems = check_board_file(write(tmp_path, text))
    assert [("overlap" in problem.message) for problem in problems] == [False, True]


def test_64_bit_bases_are_accepted(tmp_path: Path) -> None:
    text = changed("base = 0x20000000", "base = 0x80000000_00000000")
    text = text.replace('"armv8-m.main"', '"armv8-a"').replace(
        '"cortex-m33"\ncode', '"aarch64"\ncode'
    )
    assert load_board(write(tmp_path, text)).warnings == ()


def test_unlikely_sizes_are_warned_about(tmp_path: Path) -> None:
    board = load_board(write(tmp_path, changed('size = "64 KiB"', 'size = "512 MiB"')))
    assert "512 MiB of sram" in board.warnings[0]


def test_memory_that_no_core_can_address_is_refused(tmp_path: Path) -> None:
    for text in (
        changed("base = 0x20000000", "base = 0x1_0000_0000"),
        changed("base = 0x20000000", "base = 0x20000000\naliases = [0xFFFF_8000]"),
    ):
        with pytest.raises(BoardError, match="no core of this board can address"):
            load_board(write(tmp_path, text))
    load_board(write(tmp_path, changed("base = 0x20000000", "base = 0xFFFF_0000")))  # to the end


def test_budgets_are_sizes_or_percentages(tmp_path: Path) -> None:
    text = (
        '[budgets]\nstack_bytes = "4 KiB"\n[budgets.regions.SRAM]\nwarn = "12.5 %"\nlimit = 9000\n'
    )
    budgets = load_board(write(tmp_path, WHOLE + text)).budgets
    sram = budgets.regions["SRAM"]
    assert sram.marks(65536) == (8192, 9000)
    assert budgets.stack_bytes is not None
    assert budgets.stack_bytes.limit == 4096


# --- any file at all --------------------------------------------------------------------------

TOML_VALUES = st.sampled_from(
    ["true", "-1", "0", "nan", "1e400", '""', "[]", "{}", "[{}]", '"x"', str(2**65), "[[]]",
     "1979-05-27", "[true]", '{a = 1}', '"\\u0000"', '["x", 1]']
)  # fmt: skip


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_value_at_any_key_is_handled(tmp_path: Path, data: st.DataObject) -> None:
    lines = (WHOLE + ENDINGS["warn above limit"][0]).splitlines()
    places = [index for index, line in enumerate(lines) if " = " in line]
    index = data.draw(st.sampled_from(places))
    lines[index] = f"{lines[index].split(' = ')[0]} = {data.draw(TOML_VALUES)}"
    board, problems = check_board_file(write(tmp_path, "\n".join(lines)))
    assert (board is None) == bool(problems)


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(content=st.binary(max_size=300))
def test_any_bytes_are_handled(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "board.toml"
    path.write_bytes(content)
    with pytest.raises(BoardError):
        load_board(path)
