# SPDX-License-Identifier: Apache-2.0
"""The CI page: its workflows are sound, and each of their steps does what the page says.

Steps run in bash as the runners start it, in an empty folder with the page's own project. Two
things are replaced: the install step by the package under test, which is on PATH, and GitHub's
`gh`, which downloads an artifact, by a script that copies a folder.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import metadata, version
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from needs import need

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
PAGE = ROOT / "docs" / "ci.md"
INSTALL = re.compile(r'^pip install "colibri-sdk\[([a-z,]+)\]==([0-9.]+)"$')
BOARD = "pimoroni-pico-plus-2"
FLASH = 'budgets.regions.FLASH = { warn = "80 %", limit = "90 %" }'


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)\n```\n", PAGE.read_text(encoding="utf-8"), re.S)


def workflow(index: int) -> dict[Any, Any]:
    need("module:yaml")
    import yaml

    found: dict[Any, Any] = yaml.safe_load(blocks("yaml")[index])
    return found


def steps() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = workflow(0)["jobs"]["check"]["steps"]
    return found


# --- the workflow as it is written ---------------------------------------------------------------


def test_three_workflows_and_two_project_files() -> None:
    assert (len(blocks("yaml")), len(blocks("toml"))) == (3, 2)


def test_actions_are_pinned_by_major_version() -> None:
    used = [step["uses"] for step in steps() if "uses" in step]
    assert [name.split("@")[0] for name in used] == [
        "actions/checkout", "actions/setup-python", "actions/cache", "actions/upload-artifact",
    ]  # fmt: skip
    for name in used:
        assert re.fullmatch(r"actions/[a-z-]+@v[1-9][0-9]*", name)


def test_workflow_is_one_that_runs() -> None:
    flow = workflow(0)
    assert set(flow[True]) == {"push", "pull_request"}  # YAML 1.1 reads `on` as true
    assert flow["permissions"] == {"actions": "read", "contents": "read"}
    assert flow["name"] == "fits"
    (download,) = [s["run"] for s in steps() if "gh run" in s.get("run", "")]
    assert "--workflow fits" in download
    (upload,) = [s for s in steps() if "upload-artifact" in s.get("uses", "")]
    assert f"--name {upload['with']['name']} " in download
    (python,) = [s for s in steps() if "setup-python" in s.get("uses", "")]
    assert python["with"] == {"python-version": "3.12"}  # `cache: pip` fails without requirements
    for step in steps():
        assert ("uses" in step) != ("run" in step)
        assert set(step) <= {"name", "uses", "run", "with", "env", "if", "continue-on-error"}


def test_the_install_step_is_of_this_version_and_its_extras() -> None:
    lines = [s["run"] for s in steps() if s.get("name") == "Install"] + workflow(1)["check"][
        "script"
    ][:1]
    assert len(lines) == 2
    for line in lines:
        found = INSTALL.match(line)
        assert found, line
        extras = metadata("colibri-sdk").get_all("Provides-Extra") or []
        assert set(found[1].split(",")) <= set(extras)
        assert found[2] == version("colibri-sdk")


# --- the steps, run -------------------------------------------------------------------------------


class Runner:
    """A job's folder, with what a runner gives its steps."""

    def __init__(self, folder: Path, project: str) -> None:
        self.folder, self.summary = folder / "job", folder / "summary.md"
        self.artifact = folder / "artifact"
        (folder / "bin").mkdir()
        self.folder.mkdir()
        (self.folder / "colibri.toml").write_text(project, encoding="utf-8")
        (self.folder / "model").symlink_to(GOLDEN / "qwen2_moe")
        (folder / "bin" / "gh").write_text(
            "#!/bin/bash\nset -e\n"
            'case "$1 $2" in\n"run list") echo 17;;\n'
            f'"run download") [ "$3" = 17 ] && cp -r "{self.artifact}" "$7";;\n'
            "*) exit 9;;\nesac\n"
        )
        (folder / "bin" / "gh").chmod(0o755)
        path = f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment = {**os.environ, "PATH": path, "GITHUB_STEP_SUMMARY": str(self.summary)}

    def bash(self, script: str) -> subprocess.CompletedProcess[str]:
        """As GitHub's runner does: the first failing command ends the step."""
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script], cwd=self.folder,
            env=self.environment, capture_output=True, text=True, check=False, timeout=600,
        )  # fmt: skip

    def job(self, event: str) -> dict[str, int]:
        """Exit codes of the steps that ran, by name."""
        codes: dict[str, int] = {}
        failed = False
        for step in steps():
            if "run" not in step or step["name"] == "Install":
                continue
            if not _runs(step.get("if", "success()"), event, failed):
                continue
            code = self.bash(step["run"]).returncode
            codes[step["name"]] = code
            failed |= bool(code) and not step.get("continue-on-error", False)
        return codes


def _runs(condition: str, event: str, failed: bool) -> bool:
    """The conditions of the page; GitHub adds `success()` where no status function is named."""
    known = {
        "success()": not failed,
        "always()": True,
        "github.event_name == 'pull_request'": event == "pull_request" and not failed,
        "github.event_name == 'pull_request' && !cancelled()": event == "pull_request",
    }
    return known[condition]


def project(**changes: str) -> str:
    text = blocks("toml")[0].replace('checkpoint = "model"', 'checkpoint = "model"\nquant = "q8"')
    for old, new in changes.items():
        assert old in text
        text = re.sub(rf"^{old} = .*$", f"{old} = {new}", text, flags=re.M)
    return text


def test_a_project_that_fits_and_one_that_does_not(tmp_path: Path) -> None:
    need("bash", "module:yaml", "module:ziglang")
    runner = Runner(tmp_path, project())
    assert runner.job("push") == {"Check": 0, "Summary": 0}
    out = runner.folder / "out"
    assert runner.summary.read_text().startswith("## reader: fits\n")
    assert json.loads((out / "check.json").read_text())["verdict"] == "fits"
    (upload,) = [s for s in steps() if "upload-artifact" in s.get("uses", "")]
    uploaded = upload["with"]["path"].split()
    for pattern in uploaded:
        there = list(runner.folder.glob(pattern))
        assert there or pattern == "out/report.html", pattern  # a page needs the extra `html`

    # the artifact of main, and a change that is over: arena by a byte, flash by far
    (runner.artifact / BOARD).mkdir(parents=True)
    (out / BOARD / "firmware.elf").rename(runner.artifact / BOARD / "firmware.elf")
    arena = next(r["value"] for r in rows(out) if r["name"] == "arena")
    over = project(arena_bytes=str(arena - 1)).replace(FLASH, 'budgets.regions.FLASH = "64 KiB"')
    (runner.folder / "colibri.toml").write_text(over, encoding="utf-8")
    runner.summary.unlink()
    codes = runner.job("pull_request")
    assert codes == {"Check": 1, "Summary": 0, "What the change costs": 0}
    said = runner.summary.read_text().replace("\\", "")
    assert said.startswith("## reader: does not fit\n")
    assert f"{arena:,} B, 1 B more than budgets.arena_bytes limit = {arena - 1:,} B" in said
    assert "more than budgets.regions.FLASH limit = 65,536 B" in said
    assert said.index("❌ over") < said.index("<details>")
    suite = ElementTree.parse(out / "junit.xml").getroot()
    assert suite.get("failures") == "4"  # arena, flash planned and linked, verdict

    # and what the change costs, of a change that fits
    (runner.folder / "colibri.toml").write_text(project(), encoding="utf-8")
    runner.summary.unlink()
    assert runner.job("pull_request") == dict.fromkeys(
        ("Check", "Summary", "Firmware of the main branch", "What the change costs"), 0
    )
    assert (runner.folder / "base" / BOARD / "firmware.elf").is_file()
    assert runner.summary.read_text().count("```") == 2
    assert "firmware.elf" in runner.summary.read_text()


def test_a_project_file_that_is_wrong(tmp_path: Path) -> None:
    need("bash", "module:yaml")
    runner = Runner(tmp_path, project().replace("tok_s", "toks"))
    assert runner.job("pull_request") == {"Check": 2, "Summary": 0, "What the change costs": 0}
    assert not runner.summary.exists()


def test_no_artifact_of_main_is_no_error(tmp_path: Path) -> None:
    need("bash", "module:yaml")
    runner = Runner(tmp_path, planned())
    codes = runner.job("pull_request")
    assert codes.pop("Firmware of the main branch") != 0
    assert set(codes.values()) == {0}


def planned() -> str:
    """The page's project without a build, which takes a second."""
    return project().replace(FLASH, "build = false")


def rows(out: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((out / "check.json").read_text())["rows"]
    return found


@pytest.mark.long
def test_figures_on_record(tmp_path: Path) -> None:
    """The commands of the section, with the table that it adds."""
    need("bash", "module:yaml")
    runner = Runner(tmp_path, planned() + "\n" + blocks("toml")[1] + "\n")
    file = runner.folder / "colibri.toml"
    first, again = re.findall(
        r"^    (colibri check --record.*?)(?: +#.*)?$", PAGE.read_text(), re.M
    )
    assert runner.bash(first).returncode == 0
    assert (runner.folder / "colibri-figures.json").is_file()
    assert runner.job("push") == {"Check": 0, "Summary": 0}
    worse = file.read_text().replace('"300 KiB"', '"2 MiB"') + "[limits]\nbatch = 64\n"
    file.write_text(worse)
    assert runner.job("push")["Check"] == 1
    assert "arena" in runner.summary.read_text()
    assert runner.bash(first).returncode != 0  # a reason is due
    assert runner.bash(again).returncode == 0
    assert runner.job("push")["Check"] == 0
    assert "Sampler with top-p." in (runner.folder / "colibri-figures.json").read_text()


def test_gitlab_script(tmp_path: Path) -> None:
    need("bash", "module:yaml")
    job = workflow(1)["check"]
    runner = Runner(tmp_path, planned())
    for line in job["script"][1:]:
        assert runner.bash(line).returncode == 0
    assert job["artifacts"]["when"] == "always"
    kept = [*job["artifacts"]["paths"], job["artifacts"]["reports"]["junit"]]
    for name in kept:
        assert (runner.folder / name).is_file() or name == "out/report.html", name


def test_hook_before_a_push(tmp_path: Path) -> None:
    need("bash", "module:yaml")
    (hook,) = workflow(2)["repos"][0]["hooks"]
    runner = Runner(tmp_path, planned())
    assert runner.bash(hook["entry"]).returncode == 0
    assert re.search(hook["files"], "colibri.toml")
    assert re.search(hook["files"], "model/config.json")
    assert not re.search(hook["files"], "README.md")
    assert f"--board {next(iter(tomllib.loads(planned())['boards']))}" in hook["entry"]
