# SPDX-License-Identifier: Apache-2.0
"""Reports about images, units and output that no other test of the size tool holds; the corpus.

Each test is named after its public report.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from colibri import Engine, Image
from colibri.cli import _prepare_streams
from colibri.engine import MemoryRegion
from colibri.errors import ImageError, PlanError, UnitError
from colibri.fit import judge
from colibri.units import parse_size
from elf_writer import FUNC
from size_support import FLASH, firmware
from test_hostile_images import mended, tiny

HERE = Path(__file__).parent
#: Files whose tests know every answer by hand, and tests in them that judge no file of a size.
CORPUS = ("test_size", "test_size_symbols", "test_size_images", "test_size_maps")
NOT_ANSWERS = (
    "bad_", "budget", "baseline", "needs_its", "say_nothing", "command", "bounded", "paths_with",
    "forbidden_symbols", "another_build", "gate_can", "cannot_be_meant", "gnu_ld", "objcopy",
)  # fmt: skip


@pytest.mark.parametrize("length", [2**40, 2**63, 2**64 - 1])
def test_ai_on_the_edge_2324_a_corrupted_length_names_its_field(
    tmp_path: Path, length: int
) -> None:
    """The length of each section, with the checksum right: nothing is allocated for it."""
    path = tiny(tmp_path, "q4")
    data = path.read_bytes()
    for number in range(len(Image(path).sections)):
        at = 64 + 32 * number + 16
        with pytest.raises(ImageError, match=rf"at offset {at:#x}; pack the model again"):
            Image(mended(data, at, "Q", length))
    with pytest.raises(ImageError, match=rf"truncated at {len(data):,} bytes; it takes"):
        Image(mended(data, 16, "Q", 2**40))


@pytest.mark.parametrize("off", [1, 4, 32, 63])
def test_tflite_micro_1548_a_misaligned_arena_says_what_it_needs(tmp_path: Path, off: int) -> None:
    path = tiny(tmp_path, "q4")
    size = Engine(path, context=8).high_water()
    memory = np.zeros(size + 128, np.uint8)
    base = memory.ctypes.data + -memory.ctypes.data % 64
    says = rf"its address is {off} past a multiple of 64; its address must be a multiple of 64$"
    with pytest.raises(PlanError, match=says):
        Engine(path, context=8, memory=[MemoryRegion("m", base + off, size)])
    assert Engine(path, context=8, memory=[MemoryRegion("m", base, size)]).high_water() == size


def test_openamp_reference_26_k_has_one_meaning() -> None:
    assert parse_size("64 KiB") == 0x10000
    for other in ("64K", "64 k", "64 KB", "64 kB", "0x10000 K"):
        with pytest.raises(UnitError):
            parse_size(other)


def test_esp_idf_size_names_and_paths_of_any_letters(tmp_path: Path) -> None:
    """Blanks in the path, letters of many alphabets in names: in tables and in JSON, as UTF-8."""
    folder = tmp_path / "my build ü"
    folder.mkdir()
    elf = firmware()
    elf.symbol("größe_尺寸", FLASH + 0x301, 0x80, FUNC, section=1)
    path = elf.write(folder / "f w.elf")
    assert "größe_尺寸" in [s.name for s in judge(path).symbols]
    command = (sys.executable, "-c", "import sys; from colibri.cli import main; sys.exit(main())")
    told = os.environ | {"PYTHONIOENCODING": "utf-8", "COLUMNS": "100"}
    for words in ([], ["--json"]):
        done = subprocess.run(
            [*command, "size", str(path), *words], env=told, check=True, capture_output=True
        )
        text = done.stdout.decode("utf-8")
        assert "größe_尺寸" in (text if not words else text.encode().decode("unicode_escape"))


def test_esp_idf_size_output_is_utf_8_on_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "out").open("w", encoding="cp1252") as out, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        patch.setattr("colibri.cli.os.name", "nt")
        _prepare_streams()
        out.write("größe_尺寸")
    assert (tmp_path / "out").read_bytes() == "größe_尺寸".encode()


def test_the_corpus_has_80_files() -> None:
    """Counted are cases of tests whose expected numbers are written out; refusals are not."""
    files = [str(HERE / f"{name}.py") for name in CORPUS]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", *files],
        check=True,
        capture_output=True,
        text=True,
        cwd=HERE.parents[1],
    )
    cases = [line for line in done.stdout.splitlines() if "::" in line]
    known = [case for case in cases if not any(word in case for word in NOT_ANSWERS)]
    assert len(known) >= 80, len(known)
