# SPDX-License-Identifier: Apache-2.0
"""The files of a check."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from colibri.check.junit import junit
from colibri.check.markdown import markdown
from colibri.check.page import page_of
from colibri.check.rows import CheckResult, counts, word_of
from colibri.errors import ColibriError, ProjectError
from colibri.fit.format import as_json
from colibri.project.loader import REPORT_FILES
from colibri.report.html import write_page
from colibri.text_files import write_text

SCHEMA = 1


def fields(result: CheckResult) -> dict[str, Any]:
    """The JSON of a check, without ``schema``."""
    return {
        "project": result.project,
        "file": str(result.file),
        "verdict": result.verdict,
        "counts": counts(result.rows),
        "rows": [asdict(row) for row in result.rows],
        "boards": [
            {
                "name": one.name,
                "board": one.board.id,
                "verdict": word_of(result.of_board(one.name)),
                "image": str(one.image) if one.image is not None else None,
                "plan": one.plan.to_json() if one.plan is not None else None,
                "firmware": one.firmware.to_json() if one.firmware is not None else None,
                "size": as_json(one.size) if one.size is not None else None,
                "emulate": {name: report.to_json() for name, report in one.reports.items()},
            }
            for one in result.boards
        ],
    }


def remove_reports(folder: Path) -> None:
    """Takes away those of an earlier check, which nobody may take for this one's."""
    for name in REPORT_FILES:
        with contextlib.suppress(OSError):
            (folder / name).unlink()


def write_reports(result: CheckResult, folder: Path) -> list[str]:
    """``check.json``, ``summary.md``, ``junit.xml`` and, with its extra, ``report.html``.

    Returns what could not be written, and why.
    """
    text = json.dumps({"schema": SCHEMA, **fields(result)}, indent=1, allow_nan=False)
    for name, content in (
        ("check.json", text + "\n"),
        ("summary.md", markdown(result)),
        ("junit.xml", junit(result)),
    ):
        write_text(folder / name, content, ProjectError)
    try:
        write_page(folder / "report.html", page_of(result))
    except ColibriError as error:
        return [f"no report.html: {error.what}; {error.hint}"]
    return []
