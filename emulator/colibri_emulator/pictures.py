# SPDX-License-Identifier: Apache-2.0
"""An emulation as bars, and as a section of a page.

What the plan gives a region is planned; what the engine took of it, and the deepest stack of an
emulated CPU, is counted; speeds are predicted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from colibri.boards import Board
from colibri.fit.findings import Finding
from colibri.plan_pictures import plan_bars, role_of
from colibri.planner import Plan
from colibri.report.bars import Bar, Piece
from colibri.report.page import Cell, Section, Table
from colibri_emulator.report import EmulationReport, Prediction, Range, RegionUse

_SUMMARIES = {
    "fits": "It ran in the board's memory.",
    "over": "It does not fit, and nothing was run.",
    "fault": "It stopped with a fault.",
}


def stack_bar(report: EmulationReport) -> Bar | None:
    """The stack of an emulated CPU, when the engine sees it."""
    counted = report.counted
    if counted is None or counted.stack_high_water is None:
        return None
    pieces = (Piece("stack, high water", "stack", counted.stack_high_water),)
    return Bar("stack", None, counted.stack_bytes, pieces, note="painted stack, read back")


def bars(report: EmulationReport, plan: Plan) -> list[Bar]:
    """The regions as the engine left them, and the stack."""
    stack = stack_bar(report)
    used = [use for use in report.regions if report.fits and (use.used or use.high_water)]
    regions = [use.bar(_engine_pieces(plan, use)) for use in used]
    return [*regions, *([stack] if stack is not None else [])]


def _engine_pieces(plan: Plan, use: RegionUse) -> tuple[Piece, ...]:
    """Which buffers the engine took; none where it did not take what was planned."""
    fixed = {(row.region, row.name, row.offset) for row in plan.memory.rows}
    own = [b for b in plan.region(use.name).buffers if (use.name, b.name, b.offset) not in fixed]
    if sum(buffer.bytes for buffer in own) != use.high_water:
        return ()
    return tuple(Piece(buffer.name, role_of(buffer), buffer.bytes) for buffer in own)


def emulation_section(report: EmulationReport, plan: Plan, board: Board) -> Section:
    """All that `colibri emulate` knows: what was planned, then what came of it."""
    status = "fault" if report.fault else "fits" if report.fits else "over"
    return Section(
        title=f"{Path(report.image).name} on {report.board}, {report.machine}",
        status=status,
        summary=_SUMMARIES[status],
        facts=tuple(_facts(report)),
        bars=[*plan_bars(plan, board), *bars(report, plan)],
        tables=tuple(_tables(report)),
        findings=[*_findings(report)],
        rule="high water and stack are counted, by reading memory back. Speeds are predicted from "
        "the figures listed; no speed here was measured.",
        data=report.to_json(),
    )


def _facts(report: EmulationReport) -> Iterator[tuple[str, str]]:
    yield "ran on", report.engine
    if report.logits_crc32:
        yield "tokens", f"{len(report.tokens)} after {report.prompt_tokens} (counted)"
        yield "logits CRC-32", f"{report.logits_crc32} (counted)"
    if report.counted and report.counted.instructions is not None:
        yield "instructions", f"{report.counted.instructions:,} (counted)"
    if report.accelerator:
        use = report.accelerator
        yield use.name, f"{use.experts} experts bound, {use.used:,} of {use.size:,} B (counted)"


def _findings(report: EmulationReport) -> Iterator[Finding]:
    if report.fault:
        yield Finding("error", "fault", report.fault)
    if report.shortfall:
        short = report.shortfall
        what = f"{short.region} has {short.have:,} B, {short.need:,} B would do"
        yield Finding("error", "memory", what, short.buffer, short.have, short.need)
        for text in short.advice[1:]:
            yield Finding("note", "advice", text)
    for note in report.notes:
        yield Finding("note", "note", note)


def _tables(report: EmulationReport) -> Iterator[Table]:
    columns = ("region", ">size", ">planned", ">high water (counted)", ">written (counted)")
    rows = [(use.name, use.size, use.used, use.high_water, use.written) for use in report.regions]
    yield Table("Memory of the engine", columns, rows)
    if report.experts:
        counted: list[tuple[Cell, ...]] = [
            (name.replace("_", " "), value if isinstance(value, int | float | str) else str(value))
            for name, value in report.experts.items()
        ]
        yield Table("Streamed experts, counted", ("what", ">value"), counted)
    if report.predicted:
        yield from _speed(report.predicted)


def _speed(predicted: Prediction) -> Iterator[Table]:
    limits = predicted.limits
    given: list[tuple[str, Range | None, str, str | None]] = [
        ("load the image", predicted.load_s, "s", limits.get("load")),
        ("prompt", predicted.prefill_tok_s, "tok/s", limits.get("prefill")),
        ("generation", predicted.decode_tok_s, "tok/s", limits.get("decode")),
        ("first token after", predicted.first_token_s, "s", ""),
    ]
    if predicted.storage:
        given.append(("a token computes", predicted.storage.compute_s, "s", ""))
        given.append(("a token waits for storage", predicted.storage.waiting_s, "s", ""))
    columns = ("figure", ">low", ">likely", ">high", "unit", "set by")
    yield Table("Speed, predicted", columns, [
        (name, each.low, each.mid, each.high, unit, by or "")
        for name, each, unit, by in given
        if each is not None and each.mid
    ])  # fmt: skip
    inputs = [(i.name, i.value, i.unit, i.cls, i.source) for i in predicted.inputs]
    yield Table("Predicted from", ("figure", ">value", "unit", "class", "source"), inputs)
