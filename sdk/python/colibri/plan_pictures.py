# SPDX-License-Identifier: Apache-2.0
"""A plan of one image or of several as bars, and as a section of a page.

The engine's bytes are planned; what the image and the firmware take beside them is what the plan
was made with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from colibri.application import ROW
from colibri.boards import Board, load_board
from colibri.fit.findings import Finding
from colibri.fit.regions import Extent
from colibri.joint_plan import ImageBuffer, JointPlan, JointRegion
from colibri.planner import Buffer, Plan, PlanRegion
from colibri.report.bars import Bar, Piece
from colibri.report.page import Address, Section, Table
from colibri.report.palette import RoleName

#: Rows that are not work space of the engine, by the names that the planners give them.
_ROLES: dict[str, RoleName] = {
    ROW: "application",
    "expert_cache": "slots",
    "expert_slots": "slots",
    "image": "weights",
    "kv_cache": "kv",
    "logits": "application",
    "os": "system",
    "recurrent": "kv",
    "reserved": "reserved",
    "weights": "weights",
}


def role_of(buffer: Buffer) -> RoleName:
    """What a row of a memory map is for."""
    if buffer.name == "firmware":  # one row where both are in one region
        return "code" if buffer.why.startswith("code") else "data"
    return _ROLES.get(buffer.name, "work")


def bars_of(made: Plan | JointPlan, board: Board | None = None) -> list[Bar]:
    """A bar for each region of either plan; with addresses when the board is given."""
    return joint_bars(made, board) if isinstance(made, JointPlan) else plan_bars(made, board)


def plan_bars(made: Plan, board: Board | None = None) -> list[Bar]:
    """A bar for each region."""
    lack = made.lack if made.lack is not None and not made.memory.problem else None
    bars = []
    for region in made.regions:
        pieces = [*_pieces(region, _base(board, region.name))]
        beyond, note = 0, ""
        if lack is not None and lack.region == region.name:  # its buffers have no place
            pieces.append(Piece("engine, without a place", "work", lack.need))
            beyond = lack.need - lack.have
            note = "of the engine no buffer has a place: all its bytes here are shown as one piece"
        bars.append(_bar(region, pieces, board, beyond, note))
    return bars


def joint_bars(made: JointPlan, board: Board | None = None) -> list[Bar]:
    """A bar for each region; bytes that images share are counted once."""
    bars = []
    for region in made.regions:
        base, covered = _base(board, region.name), Extent()
        pieces = []
        for row in region.buffers:
            new = covered.add(row.offset, row.offset + row.bytes)
            name = f"{row.image}: {row.name}" if row.image else row.name
            start = None if base is None else base + row.offset
            pieces.append(Piece(f"{name} (shared)" * row.shared or name, role_of(row), new, start))
        bars.append(_bar(region, pieces, board, 0))
    return bars


def _bar(
    region: PlanRegion | JointRegion,
    pieces: Sequence[Piece],
    board: Board | None,
    beyond: int,
    note: str = "",
) -> Bar:
    kept = tuple(piece for piece in pieces if piece.bytes)
    base = _base(board, region.name)
    return Bar(region.name, base, region.size, kept, note=note, kind="planned", beyond=beyond)


def _pieces(region: PlanRegion, base: int | None) -> Iterator[Piece]:
    for row in region.buffers:
        name = f"{row.name}: {row.why}" if row.name in ("firmware", "reserved", "os") else row.name
        yield Piece(name, role_of(row), row.bytes, None if base is None else base + row.offset)


def _base(board: Board | None, name: str) -> int | None:
    return None if board is None else board.region(name).base


# -- a section of a page --------------------------------------------------------------------------


def plan_section(made: Plan | JointPlan, board: Board | str, images: Sequence[str]) -> Section:
    """All that `colibri plan` knows."""
    target = board if isinstance(board, Board) else load_board(board)
    joint = isinstance(made, JointPlan)
    engines = "the engines" if joint else "the engine"
    summary = f"{made.total_bytes:,} bytes for {engines}" if made.fits else made.advice[0]
    if not isinstance(made, JointPlan) and made.fits:
        summary += f"; longest context that fits: {made.max_context:,} tokens"
    return Section(
        title=f"{', '.join(images)} on {made.board}",
        status="fits" if made.fits else "over",
        summary=summary,
        facts=tuple(_facts(made, target)),
        bars=bars_of(made, target),
        tables=tuple(_tables(made)),
        findings=[*_findings(made)],
        rule="the engine's buffers are planned, to the byte: the engine takes just that. What is "
        "beside them is what the plan was made with: the image's bytes are counted, what firmware "
        "and system take is declared.",
        data=made.to_json(),
    )


def _findings(made: Plan | JointPlan) -> Iterator[Finding]:
    for index, text in enumerate(made.advice):
        yield Finding("note" if index else "error", "plan", text)
    for text in made.memory.notes():
        yield Finding("note", "reserve", text)
    if made.routing:
        yield Finding("note", "routing", made.routing["note"])
    if isinstance(made, Plan) and made.experts:
        yield Finding("note", "experts", made.experts["why"])


def _facts(made: Plan | JointPlan, board: Board) -> Iterator[tuple[str, str]]:
    yield "board", board.name
    if isinstance(made, JointPlan):
        yield "saved by sharing", f"{made.saved_bytes:,} B"
        return
    for name, value in made.limits.items():
        yield name, str(value)
    yield "weights", made.weights


def _tables(made: Plan | JointPlan) -> Iterator[Table]:
    if isinstance(made, JointPlan):
        rows = [(part.image, part.own_bytes, part.shared_bytes, part.bytes) for part in made.images]
        yield Table("Images", ("image", ">own", ">shared", ">engine"), rows)
    columns = ("region", ">offset", ">bytes", "image", "buffer", "why")
    yield Table("Memory map", columns, [
        (region.name, Address(row.offset), row.bytes,
         f"{row.image}, shared" * row.shared or row.image if isinstance(row, ImageBuffer) else "",
         row.name, row.why)
        for region in made.regions
        for row in region.buffers
    ])  # fmt: skip
    if isinstance(made, Plan):
        unplaced = sorted(made.unplaced, key=lambda row: -row.bytes)
        rows_ = [(row.name, row.bytes, row.why) for row in unplaced]
        yield Table("Buffers without a place", ("buffer", ">bytes", "why"), rows_)
