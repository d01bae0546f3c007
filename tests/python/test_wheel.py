# SPDX-License-Identifier: Apache-2.0
"""An installed wheel in an empty folder has everything: code, C sources, boards, the demo model."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

CHECK = """
import json, sys
from pathlib import Path
import colibri, colibri_emulator
from colibri._data import data_path
here = Path(sys.prefix).resolve()
for module in (colibri, colibri_emulator, colibri._core):
    assert here in Path(module.__file__).resolve().parents, module.__file__
for name in ("sdk/c/CMakeLists.txt", "sdk/c/src/plan.c", "sdk/c/kernels/ref/matmul.c",
             "sdk/c/kernels/x86/avx2.c", "sdk/c/include/colibri/colibri.h",
             "sdk/c/ports/posix/pool.c", "emulator/firmware/runner.c",
             "board_configs/board.schema.json", "board_configs/socs/rp2350.toml",
             "models/demo-moe/model.safetensors", "models/demo-moe/tokenizer.json",
             "models/demo-moe/reference/prompts.json"):
    assert here in data_path(*name.split("/")).resolve().parents, name
assert len(colibri.list_boards()) >= 8
for board in colibri.list_boards():
    colibri.load_board(board)
print(colibri.version())
"""


@pytest.fixture(scope="module")
def wheel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
        f"--config-settings=build-dir={folder / 'build'}", "--wheel-dir", str(folder), str(root),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = folder.glob("*.whl")
    return made


def test_wheel_in_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    """A fresh environment with only the wheel; dependencies are lent from this one."""
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    python = tmp_path / "env" / "bin" / "python"
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    empty = tmp_path / "empty"
    empty.mkdir()
    done = subprocess.run(
        [python, "-c", CHECK], cwd=empty, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not list(empty.iterdir())


def test_wheel_carries_no_more_than_it_should(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    for name in (
        "py.typed",
        "_core.pyi",
        "families/qwen2_moe.toml",
        "project/project.schema.json",
        "report/page.html.j2",
        "report/page.css",
        "report/page.js",
    ):
        assert f"colibri/{name}" in names
    for name in names:
        top = name.split("/")[0]
        assert top in ("colibri", "colibri_emulator") or top.endswith(".dist-info"), name
        assert "__pycache__" not in name
        assert "/recipes/" not in name
        assert not name.endswith((".npz", "valid_docs.txt", ".o", ".a"))
    assert wheel.stat().st_size < 30 << 20
