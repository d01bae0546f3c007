# SPDX-License-Identifier: Apache-2.0
"""README, CONTRIBUTING and docs: examples run, commands and linked files exist, figures agree."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from colibri import cli
from colibri.descriptors import families
from runtime_sizes import load

PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/*.md")
DEMO_CRC = "170f6dcd"


@pytest.fixture(scope="module")
def readme(root: Path) -> str:
    return (root / "README.md").read_text("utf-8")


def test_python_example_runs_as_printed(
    readme: str, demo_image: Callable[[str], Path], tmp_path: Path
) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "demo-q4.colibri").symlink_to(demo_image("q4"))
    done = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    first, *text = done.stdout.splitlines()
    assert f"# {first}\n" in example
    assert text[-1].endswith(DEMO_CRC)


def test_every_command_is_shown_and_exists(readme: str) -> None:
    shown = set(re.findall(r"^\| `colibri ([\w-]+)", readme, re.MULTILINE))
    helped = CliRunner().invoke(cli.app, ["--help"]).stdout
    assert shown == set(
        re.findall(r"^  ([\w-]+)  +[A-Z]", helped.split("Commands:")[1], re.MULTILINE)
    )


def test_linked_files_exist(root: Path) -> None:
    pages = [page for pattern in PAGES for page in sorted(root.glob(pattern))]
    assert len(pages) > 10
    for page in pages:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_paths_in_contributing_exist(root: Path) -> None:
    tree = (root / "CONTRIBUTING.md").read_text("utf-8").split("```")[1]
    folder: list[str] = []
    for line in filter(str.strip, tree.splitlines()):
        name = line.split("  ")[0] if not line.startswith(" ") else line.strip().split("  ")[0]
        depth = (len(line) - len(line.lstrip())) // 2
        folder = [*folder[:depth], name]
        for one in name.split(" "):
            path = "/".join([*(part.rstrip("/") for part in folder[:-1]), one])
            assert list(root.glob(path.rstrip("/"))), path


def test_sizes_are_the_recorded_ones(readme: str) -> None:
    limits = load()
    compilers = limits["code"]["compilers"].values()
    figures = [limits["stack"], limits["arena"][0], *compilers]
    for figure in figures:
        assert f"{figure['bytes']:,} " in readme
    sizes = [entry["bytes"] for entry in limits["families"]["measured"].values()]
    assert f"of {len(sizes)} models | {min(sizes):,} to {max(sizes):,} bytes" in readme


def test_families_are_counted(readme: str) -> None:
    routed = {family.name: family.layer.experts != "False" for family in families().values()}
    dense = list(routed.values()).count(False)
    assert f"{len(routed) - dense} families with experts and {dense} dense ones" in readme


def test_pictures_are_of_the_demo(root: Path, readme: str) -> None:
    for picture in re.findall(r"\((docs/pictures/\w+\.svg)\)", readme):
        text = (root / picture).read_text("utf-8")
        assert "https://cdn" not in text
        if "emulate" in text:
            assert DEMO_CRC in text
