# SPDX-License-Identifier: Apache-2.0
"""Fixtures that all tests share, and the list of what a run left out."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from colibri import cli
from needs import NOT_TO_INSTALL, REQUIRE_ALL

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "models" / "demo-moe"
_left_out: Counter[str] = Counter()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the checks that take minutes too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--long"):
        return
    long = [item for item in items if "long" in item.keywords]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if "long" not in item.keywords]


def _count_skip(report: Any) -> Any:
    """A skip is counted by reason; where nothing may be left out it is a failure."""
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else "?"
        reason = reason.removeprefix("Skipped: ")
        if REQUIRE_ALL and not reason.startswith(f"needs {NOT_TO_INSTALL}"):
            report.outcome = "failed"
            report.longrepr = f"left out ({reason}), which COLIBRI_REQUIRE_ALL=1 forbids"
        else:
            _left_out[reason] += 1
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Any:
    return _count_skip((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Any:
    return _count_skip((yield))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not _left_out:
        return
    terminalreporter.section("left out on this machine")
    for reason, count in sorted(_left_out.items()):
        terminalreporter.line(f"{count:4d} checks: {reason}")


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def demo() -> Path:
    """The demo model's checkpoint."""
    return DEMO


@pytest.fixture(scope="session")
def prompts() -> list[dict[str, Any]]:
    """Reference prompts: text, token ids, and the greedy continuation in float32."""
    found: list[dict[str, Any]] = json.loads((DEMO / "reference" / "prompts.json").read_text())
    return found


@pytest.fixture(scope="session")
def demo_image(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Path of the demo model packed as f32, f16, bf16, q8 or q4; each is packed once a run."""
    from colibri.pack import pack

    folder = tmp_path_factory.mktemp("demo")

    def packed(quant: str) -> Path:
        path = folder / f"{quant}.colibri"
        if not path.exists():
            pack(DEMO, path, quant=quant, jobs=os.cpu_count() or 1)
        return path

    return packed


@pytest.fixture
def invoke(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """Runs a command that must succeed; its JSON."""

    def run(*words: object) -> dict[str, Any]:
        assert cli.main([*map(str, words), "--json"]) == 0
        return dict(json.loads(capsys.readouterr().out))

    return run
