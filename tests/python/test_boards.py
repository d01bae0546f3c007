# SPDX-License-Identifier: Apache-2.0
"""The boards that ship, loading and merging, the command `colibri boards`."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

from board_text import WHOLE, changed, write
from colibri._data import data_path
from colibri.boards import Board, board_schema, list_boards, load_board
from colibri.boards.schema import schema_text
from colibri.cli import main
from colibri.errors import BoardError

IDS = [
    "arm-mps3-an547",
    "pimoroni-pico-plus-2",
    "qemu-virt-aarch64-2gb",
    "qemu-virt-riscv64",
    "qemu-virt-riscv64v",
    "raspberry-pi-5-2gb",
    "raspberry-pi-zero-2w",
    "st-stm32n6570-dk",
    "ti-sk-am62",
]


# --- the boards that ship ---------------------------------------------------------------------


def test_ids() -> None:
    assert list_boards() == IDS


@pytest.mark.parametrize("board_id", IDS)
def test_shipped_board_is_sound(board_id: str) -> None:
    board = load_board(board_id)
    assert board.id == board_id
    assert board.warnings == ()
    assert board.soc is not None
    json.dumps(board.model_dump())
    fastest = min(board.regions, key=lambda region: region.rank)
    assert fastest.perf.read_Bps is not None, "predictions need the speed of the fastest memory"


def test_shipped_socs_are_all_used_and_named_as_their_file() -> None:
    socs = {path.stem for path in data_path("board_configs", "socs").glob("*.toml")}
    assert socs == {load_board(board_id).soc for board_id in IDS}
    for soc in socs:
        raw = tomllib.loads(data_path("board_configs", "socs", f"{soc}.toml").read_text())
        assert raw["id"] == soc


def texts(value: Any) -> list[str]:
    """Every string inside a dumped board."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [text for part in value for text in texts(part)]
    return [value] if isinstance(value, str) else []


@pytest.mark.parametrize("board_id", IDS)
def test_sources_are_public_documents_not_paths(board_id: str) -> None:
    for text in texts(load_board(board_id).model_dump()):
        assert not re.search(r"(^|\s)[/~]|://|\.md\b", text), text


def test_pico_has_the_map_of_its_datasheet() -> None:
    board = load_board("pimoroni-pico-plus-2")
    places = {region.name: (region.base, region.size) for region in board.regions}
    assert places == {
        "SRAM": (0x20000000, 520 * 1024),
        "FLASH": (0x10000000, 16 << 20),
        "PSRAM": (0x11000000, 8 << 20),
    }
    assert board.firmware.profile == "small"
    assert (board.firmware.code_region, board.firmware.model_region) == ("FLASH", "FLASH")


def test_qemu_boards_match_the_machine() -> None:
    arm, riscv = load_board("qemu-virt-aarch64-2gb"), load_board("qemu-virt-riscv64")
    assert arm.region("RAM").base + arm.firmware.code_offset == 0x40080000
    assert (arm.region("RAM").size, arm.cores[0].count, arm.cores[0].cpu) == (
        2 << 30,
        4,
        "cortex-a53",
    )
    assert (riscv.region("RAM").base, riscv.region("RAM").size) == (0x80000000, 256 << 20)
    assert {arm.firmware.profile, riscv.firmware.profile} == {"wide"}


def test_stm32n6_keeps_its_reservations() -> None:
    board = load_board("st-stm32n6570-dk")
    assert board.region("SRAM").aliases == [0x34000000]
    assert board.region("PSRAM").usable == (32 << 20) - 32
    assert board.region("CACHEAXI").usable == 0


@pytest.mark.parametrize("board_id", [i for i in IDS if load_board(i).os == "linux"])
def test_linux_boards_say_what_the_system_keeps(board_id: str) -> None:
    board = load_board(board_id)
    nominal = sum(region.size for region in board.regions)
    usable = sum(region.usable for region in board.regions) - board.firmware.os_reserve_bytes
    assert 0.05 <= 1 - usable / nominal <= 0.17
    assert board.firmware.os_reserve_reason
    assert board.firmware.os_reserve_source
    assert board.firmware.target == "aarch64-linux-musl"


def test_published_schema_is_up_to_date() -> None:
    published = data_path("board_configs", "board.schema.json").read_text(encoding="utf-8")
    assert published == schema_text(), (
        "run: colibri boards schema -o board_configs/board.schema.json"
    )


def test_schema_knows_every_key_of_the_shipped_files() -> None:
    schema = board_schema()
    for board_id in IDS:
        text = data_path("board_configs", "boards", f"{board_id}.toml").read_text("utf-8")
        raw = tomllib.loads(text)
        assert set(raw) <= set(schema["properties"])
        for region in raw["regions"]:
            assert set(region) <= set(schema["$defs"]["Region"]["properties"])
    assert schema["$defs"]["Region"]["required"] == ["name"]
    assert "usable" not in schema["$defs"]["Region"]["properties"]


# --- loading ----------------------------------------------------------------------------------


def test_path_works_like_an_id(tmp_path: Path) -> None:
    source = data_path("board_configs", "boards", "pimoroni-pico-plus-2.toml")
    copy = Path(shutil.copy(source, tmp_path / "mine.toml"))
    by_id = load_board("pimoroni-pico-plus-2")
    assert load_board(copy) == load_board(str(copy)) == by_id


def test_file_without_soc(tmp_path: Path) -> None:
    board = load_board(write(tmp_path, WHOLE))
    assert isinstance(board, Board)
    assert board.soc is None
    flash = board.region("FLASH")
    assert (flash.usable, flash.end, flash.writable) == ((1 << 20) - (16 << 10), 0x08100000, False)
    assert board.cores[0].features == []
    assert board.cores[0].l1d_bytes == 0


def test_board_overrides_single_fields_of_its_soc(tmp_path: Path) -> None:
    text = data_path("board_configs", "boards", "pimoroni-pico-plus-2.toml").read_text("utf-8")
    text += """
[[regions]]
name = "SRAM"
reserved = [{ offset = 0, size = "8 KiB", reason = "trace buffer" }]
perf.read_Bps = { value = 5, cls = "measured", source = "bench" }
source = "own measurement"

[[cores]]
id = "m33"
freq_hz = 200_000_000
"""
    board, soc = load_board(write(tmp_path, text)), load_board("pimoroni-pico-plus-2")
    mine, theirs = board.region("SRAM"), soc.region("SRAM")
    assert (mine.base, mine.size, mine.usable) == (theirs.base, theirs.size, theirs.size - 8192)
    assert mine.perf.read_Bps is not None
    assert mine.perf.read_Bps.value == 5
    assert mine.perf.write_Bps == theirs.perf.write_Bps
    assert mine.source == f"{theirs.source}; own measurement"
    assert [(core.freq_hz, core.count) for core in board.cores] == [(200_000_000, 2)]


def test_soc_beside_the_board_file(tmp_path: Path) -> None:
    shutil.copy(data_path("board_configs", "socs", "rp2350.toml"), tmp_path / "chip.toml")
    text = data_path("board_configs", "boards", "pimoroni-pico-plus-2.toml").read_text("utf-8")
    board = load_board(write(tmp_path, text.replace('soc = "rp2350"', 'soc = "chip.toml"')))
    assert board.region("SRAM").size == 520 * 1024
    write(tmp_path, 'id = "x"', "chip.toml")
    with pytest.raises(BoardError, match=r"chip\.toml: missing key 'cores'"):
        load_board(tmp_path / "board.toml")


@pytest.mark.parametrize("name", ["pimoroni-pico-plus-3", "", "a\0b", "x" * 5000, "."])
def test_unknown_id_names_the_known_ones(name: str) -> None:
    with pytest.raises(BoardError) as caught:
        load_board(name)
    assert all(board_id in str(caught.value) for board_id in IDS)
    if name.startswith("pimoroni"):
        assert "did you mean 'pimoroni-pico-plus-2'?" in str(caught.value)


def test_unknown_region_names_the_known_ones() -> None:
    with pytest.raises(BoardError, match="it has SRAM, FLASH, PSRAM"):
        load_board("pimoroni-pico-plus-2").region("DRAM")


def test_example_of_the_documentation_loads(tmp_path: Path) -> None:
    page = data_path("docs", "boards.md").read_text("utf-8")
    example = page.split("```toml\n")[1].split("```")[0]
    board = load_board(write(tmp_path, example))
    assert board.region("SRAM").usable == (520 - 8) * 1024
    assert board.budgets.regions["SRAM"].warn is not None


# --- the command ------------------------------------------------------------------------------


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main([*arguments, "--json"])
    parsed: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert next(iter(parsed)) == "schema"
    assert isinstance(parsed["schema"], int)
    return code, parsed


@pytest.mark.parametrize("arguments", [["boards"], ["boards", "list"]])
def test_list_command(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    code, parsed = run_json(capsys, *arguments)
    assert code == 0
    assert [board["id"] for board in parsed["boards"]] == IDS
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert all(board_id in shown for board_id in IDS)


@pytest.mark.parametrize("board_id", IDS)
def test_show_command_prints_every_source(
    capsys: pytest.CaptureFixture[str], board_id: str
) -> None:
    code, parsed = run_json(capsys, "boards", "show", board_id)
    assert code == 0
    assert parsed["board"] == json.loads(load_board(board_id).model_dump_json())
    assert main(["boards", "show", board_id]) == 0
    shown = capsys.readouterr().out
    for region in load_board(board_id).regions:
        assert f"{region.base:#010x}" in shown
        for figure in (region.perf.read_Bps, region.perf.latency_ns):
            assert figure is None or figure.source.split()[0] in shown


def test_show_prints_file_text_as_it_is(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = changed('vendor = "Us"', 'vendor = "[red]Us[/red]"')
    path = write(tmp_path, text.replace('"datasheet"', '"[b]page[/b] [/]"'))
    assert main(["boards", "show", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "[red]Us[/red]" in shown
    assert "[b]page[/b] [/]" in shown


def test_show_command_of_an_unknown_board(capsys: pytest.CaptureFixture[str]) -> None:
    code, parsed = run_json(capsys, "boards", "show", "ti-sk-am63")
    assert code == 2
    assert "did you mean 'ti-sk-am62'?" in json.dumps(parsed)


def test_check_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    good = write(tmp_path, WHOLE, "good.toml")
    assert main(["boards", "check", str(good)]) == 0
    assert "ok" in capsys.readouterr().out
    text = changed('size = "64 KiB"', 'size = "64 KB"').replace("count = 1", "count = 0")
    bad = write(tmp_path, text, "bad.toml")
    assert main(["boards", "check", str(bad)]) == 2
    said = capsys.readouterr()
    assert "2 problems" in said.out
    assert "'64 KiB'" in said.err
    assert "'m33'.count" in said.err
    code, parsed = run_json(capsys, "boards", "check", str(bad))
    assert code == 2
    assert parsed["ok"] is False
    assert len(parsed["problems"]) == 2


def test_check_command_of_what_is_no_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for path in (tmp_path, tmp_path / "missing.toml"):
        code, parsed = run_json(capsys, "boards", "check", str(path))
        assert code == 2
        assert parsed["problems"][0]["file"] == str(path)


def test_schema_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["boards", "schema"]) == 0
    assert json.loads(capsys.readouterr().out) == board_schema()
    target = tmp_path / "schema.json"
    assert main(["boards", "schema", "-o", str(target)]) == 0
    assert target.read_text("utf-8") == schema_text()
    assert [path.name for path in tmp_path.iterdir()] == ["schema.json"]
    assert main(["boards", "schema", "-o", str(tmp_path / "no" / "folder.json")]) == 2
    code, parsed = run_json(capsys, "boards", "schema")
    assert code == 0
    assert parsed["json_schema"] == board_schema()


# --- data files -------------------------------------------------------------------------------


def test_missing_data_is_named() -> None:
    with pytest.raises(FileNotFoundError, match=r"no/such\.toml"):
        data_path("no", "such.toml")
