# SPDX-License-Identifier: Apache-2.0
"""A check as an HTML page: its rows first, then plan, firmware and emulation of each board."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from colibri.check.rows import BoardResult, CheckResult, Row
from colibri.check.table import summary
from colibri.fit.pictures import size_section
from colibri.plan_pictures import plan_section
from colibri.report.page import Page, Section, VerdictRow

#: Statuses whose details are about what is wrong.
SAID = frozenset({"over", "unknown", "warning", "skipped"})


def page_of(result: CheckResult) -> Page:
    """The page; `colibri.report.html.write_page` writes it."""
    return Page(
        result.project,
        result.verdict,
        [section for one in result.boards for section in _sections(one)],
        summary(result),
        [_verdict_row(row) for row in result.rows],
        [("project file", str(result.file))],
    )


def _verdict_row(row: Row) -> VerdictRow:
    return VerdictRow(
        row.board, row.step, row.what, "" if row.value is None else row.value,
        row.bound, row.status, row.unit, row.kind,
        row.detail if row.status in SAID else "",
    )  # fmt: skip


def _sections(one: BoardResult) -> Iterator[Section]:
    from colibri_emulator.pictures import emulation_section

    made = []
    if one.plan is not None and one.image is not None:
        made.append(("plan", plan_section(one.plan, one.board, [one.image.name])))
    if one.size is not None:
        made.append(("size", size_section(one.size)))
    for engine, report in one.reports.items():
        made.append((f"emulate, {engine}", emulation_section(report, one.plan, one.board)))
    for step, section in made:
        # check.json has the data of all boards; a page of several would grow without need.
        yield replace(section, title=f"{one.name}: {step}", data=None)
