# SPDX-License-Identifier: Apache-2.0
"""bench/size_tools.py: its firmware has the sizes that are known by hand, its parsers read what
other tools print.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import size_parsers as parsers
import size_readers as readers
import size_tools
from needs import need
from size_builds import KNOWN, KNOWN_ESP, Firmware, build_all, known

ARM_TOOLS = tuple(f"arm-none-eabi-{name}" for name in ("gcc", "size", "nm", "objcopy", "strip"))


@pytest.fixture(scope="module")
def firmware(tmp_path_factory: pytest.TempPathFactory) -> Firmware:
    need(*ARM_TOOLS, "module:capstone")
    return build_all(tmp_path_factory.mktemp("firmware"))


def said(tool: readers.Tool, firmware: Firmware) -> dict[str, parsers.Answer]:
    return size_tools.answers(tool, firmware)


def test_this_project_is_right_on_every_question(firmware: Firmware) -> None:
    assert set(KNOWN) < set(known(firmware)) == set(size_tools.QUESTIONS)
    assert said(readers.colibri(), firmware) == known(firmware)


def test_esp32c3_layout(firmware: Firmware) -> None:
    need("riscv64-unknown-elf-gcc")
    ask = readers.colibri().esp
    assert ask is not None
    assert firmware.esp is not None
    assert ask(firmware.esp) == KNOWN_ESP


def test_gnu_size_nm_and_ld(firmware: Firmware) -> None:
    """By hand: size takes code in TCM for text and adds overlays up, nm lists every name, ld
    counts up to the highest address."""
    gnu = readers.binutils("GNU", "arm-none-eabi-size", "arm-none-eabi-nm", "")
    size = said(gnu, firmware)
    assert size == {
        "flash": 64 + 1536 + 544 + 256 + 256 + 128 + 384 + 640,
        "all ram": 5384 - 256 + 384,
        "mode_b": 640,
        "fault": 3 * int(known(firmware)["fault"]),
        "canary": 1024,
        "big-endian": 3808,
        "stripped": 3808,
        "hex": 3808,
        "archive": 4096,
    }
    assert said(readers.linker(), firmware) == {
        "flash": 3808 + 192,
        "sram": 3976,
        "tcm": 1408,
        "canary": 1024,
        "failed link": 12168,
        "too large": "exit 1",
        "big-endian": 4000,
    }


def test_tools_that_are_not_there_are_named(
    firmware: Firmware, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    absent = size_tools.all_tools(tmp_path, None, tmp_path / "memap.py")
    names = {tool.name for tool in absent if tool.version is None}
    assert {"puncover", "esp-idf-size", "Zephyr size_report", "memap", "PlatformIO"} <= names
    monkeypatch.setattr(size_tools, "answers", lambda tool, firmware: {})
    result = size_tools.compare([readers.colibri(), *absent], firmware)
    assert set(result["missing"]) == names
    assert "pip install puncover" in result["missing"].values()
    assert all(result["missing"].values())


@pytest.mark.parametrize(
    ("answer", "hand", "shown"),
    [(None, 1, "-"), (3808, 3808, "3,808"), (4000, 3808, "4,000 *"), ("error", 1, "error *")],
)
def test_cells(answer: parsers.Answer | None, hand: int, shown: str) -> None:
    assert size_tools.cell(answer, hand) == shown


def test_the_page_has_these_figures(firmware: Firmware) -> None:
    """docs/size-tools-compared.md: columns of the tools that every machine here has."""
    page = (Path(__file__).parents[2] / "docs" / "size-tools-compared.md").read_text()
    cells = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    rows = {row[0]: row[1:] for row in cells}
    tools = {
        1: said(readers.colibri(), firmware),
        2: said(readers.binutils("GNU", "arm-none-eabi-size", "arm-none-eabi-nm", ""), firmware),
        4: said(readers.linker(), firmware),
    }
    for key, hand in KNOWN.items():
        row = rows[size_tools.QUESTIONS[key]]
        assert row[0] == size_tools.cell(hand, None)
        shown = {column: size_tools.cell(says.get(key), hand) for column, says in tools.items()}
        assert {column: row[column] for column in tools} == shown


# Output that the tools printed, cut to a few lines.


def test_bloaty_csv() -> None:
    """bloaty 1.1 (commit 81a414c), -d segments."""
    text = "segments,vmsize,filesize\nLOAD #0 [RX],2336,2336\n[Unmapped],0,18135\n"
    assert parsers.bloaty_rows(text) == {"LOAD #0 [RX]": (2336, 2336), "[Unmapped]": (0, 18135)}


def test_ld_memory_usage() -> None:
    """GNU ld 2.40: whole units when it can."""
    text = (
        "Memory region         Used Size  Region Size  %age Used\n"
        "           FLASH:        4000 B        64 KB      6.10%\n"
        "            SRAM:          8 KB        32 KB     25.00%\n"
        "ld: region `SRAM' overflowed by 12168 bytes\n"
    )
    assert parsers.linker_used(text) == {"FLASH": 4000, "SRAM": 8192}
    assert parsers.linker_overflow(text) == 12168
    assert parsers.linker_overflow("") == "error"


def test_puncover_report() -> None:
    """puncover 0.8.0, --generate-report."""
    text = """{"no_tag": {"timestamp": "2026-11-29T23:13:55", "stack_report": {"reset": {
        "max_static_stack_size": 184, "call_stack": [], "max_stack_size": "N/A"}}}}"""
    assert parsers.puncover_stack(json.loads(text), "reset") == 184


def test_esp_idf_size_json2() -> None:
    """esp-idf-size 2.3.2, --format json2."""
    text = """{"version": "1.2", "total_size": 3808, "layout": [
        {"name": "DRAM", "total": 327680, "used": 3464, "free": 324216, "parts": {}},
        {"name": "Flash Data", "total": 0, "used": 608, "free": 0, "parts": {}}]}"""
    assert parsers.esp_layout(json.loads(text)) == {"DRAM": 3464, "Flash Data": 608, "image": 3808}


def test_zephyr_tree() -> None:
    """scripts/footprint/size_report, ram.json."""
    text = """{"symbols": {"name": "Root", "size": 5512, "identifier": "root", "children": [
        {"name": "(no paths)", "size": 0, "identifier": ":"},
        {"name": "main.c", "size": 516, "identifier": "/main.c", "children": [
            {"name": "samples", "size": 512, "identifier": "/main.c/samples"},
            {"name": "ticks", "size": 4, "identifier": "/main.c/ticks"}]}]}, "total_size": 5512}"""
    leaves = dict(parsers.zephyr_leaves(json.loads(text)["symbols"]))
    assert leaves == {"(no paths)": 0, "samples": 512, "ticks": 4}


def test_memap_modules() -> None:
    """memap 0.4.0, -e json."""
    text = """[{"module": "[lib]/hal.a/uart.o", "size": {".text": 36, ".data": 32, ".bss": 256,
        ".text-delta": 36}}, {"summary": {"static_ram": 1032, "total_flash": 1792}}]"""
    assert parsers.memap_module(json.loads(text), "uart.o") == 288


def test_platformio_sizedata() -> None:
    """PlatformIO 6.2.0, sizedata.json: `memory`."""
    text = """{"total": {"ram_size": 5512, "flash_size": 3808}, "files": [
        {"path": "main.c", "ram_size": 0, "flash_size": 48, "symbols": [
            {"addr": 134217889, "name": "fault", "size": 24, "section": ".text"},
            {"addr": 134217889, "name": "nmi", "size": 24, "section": ".text"}]}]}"""
    assert parsers.platformio_symbols(json.loads(text), ("fault", "nmi")) == 48


def test_archive_members_of_gnu_size() -> None:
    """GNU size 2.40."""
    text = (
        "   text\t   data\t    bss\t    dec\t    hex\tfilename\n"
        "     36\t     32\t    256\t    324\t    144\tuart.o (ex obj/libhal.a)\n"
        "   4096\t      0\t      0\t   4096\t   1000\tunused.o (ex obj/libhal.a)\n"
    )
    assert parsers.gnu_member(text, "unused.o") == 4096
    assert parsers.gnu_totals(text) == (4096, 0, 0)
