# SPDX-License-Identifier: Apache-2.0
"""Several images + board + limits → where every byte lies when all are in memory at once.

The C planner places one image after the other: the first as if it were alone, each further one in
what `colibri_plan_beside` says is left.  What an engine uses only during a call is shared.

>>> plan_together(["chat.colibri", "tools.colibri"], "pimoroni-pico-plus-2").fits  # doctest: +SKIP
True
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

from colibri import _core
from colibri.arena import MemoryRegion
from colibri.board_memory import BoardMemory, Weights, board_memory
from colibri.boards import Board, load_board
from colibri.engine import check_pages
from colibri.errors import DoesNotFitError, PlanError
from colibri.experts.pins import pins_of_image
from colibri.image import Image
from colibri.limits import LimitOptions, Limits
from colibri.planner import (
    Buffer,
    at_most,
    buffer_of,
    limits_json,
    streamed_experts,
    used_up,
)
from colibri.routing import routing_options

SCHEMA = 1
_ANYWHERE = [("memory", 0, 2**62, 0)]


@dataclass(frozen=True)
class ImageBuffer(Buffer):
    """A row of the memory map with its image, or of none; what is `shared` overlaps others'."""

    image: str = ""
    shared: bool = False


@dataclass(frozen=True)
class JointRegion:
    """A region of the board: its size, what is used, and by what."""

    name: str
    size: int
    used: int
    buffers: tuple[ImageBuffer, ...]


@dataclass(frozen=True)
class ImagePart:
    """What one image takes: bytes of its own, and bytes that it shares with the others."""

    image: str
    own_bytes: int
    shared_bytes: int
    limits: dict[str, Any]
    experts: dict[str, Any] | None

    @property
    def bytes(self) -> int:
        """What its engine takes in all."""
        return self.own_bytes + self.shared_bytes


@dataclass(frozen=True)
class JointPlan:
    """An exact memory plan of several images.

    Parameters
    ----------
    fits : bool
        Whether everything has a place.
    images : tuple of ImagePart
        In the order in which their engines must be made, which is not the order given: the one
        whose calls use most comes first.
    total_bytes : int
        What all engines take, shared bytes once.
    saved_bytes : int
        What sharing saves: the sum over the images less `total_bytes`.
    regions : tuple of JointRegion
        The memory map.
    advice : tuple of str
        When it does not fit: what was missing.
    routing : dict, optional
        What changes the choice of experts, of every image (`colibri.routing`).
    """

    board: str
    fits: bool
    images: tuple[ImagePart, ...]
    total_bytes: int
    saved_bytes: int
    regions: tuple[JointRegion, ...]
    memory: BoardMemory = field(repr=False)
    advice: tuple[str, ...] = ()
    routing: dict[str, Any] | None = None

    def require(self) -> JointPlan:
        """The plan itself, or DoesNotFitError with the advice."""
        if not self.fits:
            raise DoesNotFitError(self.advice[0], file=self.board, hint="; ".join(self.advice[1:]))
        return self

    def to_json(self) -> dict[str, Any]:
        """What ``colibri plan A B --json`` prints."""
        return {
            "schema": SCHEMA,
            "fits": self.fits,
            "board": self.board,
            "total_bytes": self.total_bytes,
            "saved_bytes": self.saved_bytes,
            "images": [{**vars(part), "bytes": part.bytes} for part in self.images],
            "regions": [
                {**vars(region), "buffers": [vars(buffer) for buffer in region.buffers]}
                for region in self.regions
            ],
            "routing": self.routing,
            "application": self.memory.application,
            "code": self.memory.code_json(),
            "advice": list(self.advice),
        }


def plan_together(
    images: Sequence[Image | str | Path],
    board: Board | str | Path,
    context: int | None = None,
    **limits: Unpack[LimitOptions],
) -> JointPlan:
    """Plans images that stay in a board's memory together, so that switching costs nothing.

    Parameters
    ----------
    images : sequence of Image or path
        The models, at least one; the same one twice is two engines.
    board, context, **limits
        As `colibri.plan` takes them, for each image, but no pins: each has those that its image
        names.  Streamed images need `expert_slots`: the first would take all there is.

    Raises
    ------
    ImageError, BoardError, PlanError
        When there is nothing to plan. Models that do not fit are a plan that says so.
    """
    asked = Limits(context, **limits)
    opened = [image if isinstance(image, Image) else Image(image) for image in images]
    target = board if isinstance(board, Board) else load_board(board)
    if not opened:
        raise PlanError("there are no images to plan", hint="give at least one")
    if asked.pins:
        raise PlanError("pins are for one image", hint="pack each with --pin TRACE instead")
    check_pages(asked.pages, asked.streamed)
    if asked.streamed and target.os != "linux":
        raise PlanError(
            f"board {target.id} has no system whose files experts of several images could be read "
            "from",
            hint='take a board with os = "linux", or plan each image by itself',
        )
    if asked.streamed and asked.expert_slots is None and len(opened) > 1:
        raise PlanError(
            "experts of several images would take all memory there is for the first",
            hint="say how many of each are in memory: --expert-slots",
        )
    weights: Weights = "streamed" if asked.streamed else "mapped"
    core = asked.core(target.firmware.profile, weights)
    there = board_memory(target, opened, asked, weights=weights)
    if asked.memory is not None:
        tables = sum(image.meta_bytes for image in opened) if asked.streamed else 0
        there = at_most(max(asked.memory - tables, 0), there)
    return _JointPlanner(target, there, core).plan(opened)


def _work_bytes(image: Image, limits: _core.Limits) -> int:
    """What its calls use."""
    buffers = _core.plan(image.core, limits, _ANYWHERE)["buffers"]
    return sum(size for kind, _, _, size, _ in buffers if not _core.buffer_keeps(kind))


def _names(images: Iterable[Image]) -> list[str]:
    """A name for each image: its file's, numbered where another has the same."""
    names = [Path(image.name).stem for image in images]
    many, seen = Counter(names), Counter[str]()
    for index, name in enumerate(names):
        seen[name] += 1
        if many[name] > 1:
            names[index] = f"{name} {seen[name]}"
    return names


class _JointPlanner:
    """One call of `plan_together`."""

    def __init__(self, board: Board, memory: BoardMemory, limits: _core.Limits) -> None:
        self.board, self.memory, self.limits = board, memory, limits
        free = memory.regions or (used_up(board),)
        self.left = [MemoryRegion(r.name, r.address, r.size, r.rank) for r in free]
        self.total = 0
        self.rows: list[tuple[str, ImageBuffer]] = []  # with the region's name

    def plan(self, images: Sequence[Image]) -> JointPlan:
        names = _names(images)
        self._add_fixed(names)
        parts: list[ImagePart] = []
        advice = (self.memory.problem,) if self.memory.problem else ()
        if not advice:
            named = sorted(
                zip(names, images, strict=True),
                key=lambda pair: -_work_bytes(pair[1], self.limits),
            )
            for index, (name, image) in enumerate(named):
                if index:  # what the one before leaves
                    left = _core.plan_beside(named[index - 1][1].core, self.limits, self.left)
                    self.left = [MemoryRegion(*region) for region in left]
                made = self._add(name, image)
                if isinstance(made, str):
                    advice = (made,)
                    break
                parts.append(made)
        total = self.total
        return JointPlan(
            board=self.board.id,
            fits=not advice,
            images=tuple(parts),
            total_bytes=total if not advice else 0,
            saved_bytes=sum(part.bytes for part in parts) - total if not advice else 0,
            regions=tuple(self._map()),
            memory=self.memory,
            advice=advice,
            routing=routing_options(self.limits),
        )

    def _add_fixed(self, names: Sequence[str]) -> None:
        """What the board's memory holds besides engines; images in the order given."""
        order = iter(names)
        for row in self.memory.rows:
            image = next(order, "") if row.name == "image" else ""
            made = ImageBuffer(row.name, row.offset, row.bytes, row.why, image)
            self.rows.append((row.region, made))

    def _add(self, name: str, image: Image) -> ImagePart | str:
        """One more engine; or what is missing for it."""
        result = _core.plan(image.core, self.limits, self.left)
        if result["shortage"] is not None:
            index, have, need = result["shortage"]
            return (
                f"{self.left[index].name} has {have:,} bytes left for {name}, {need:,} would do "
                f"({need - have:,} more)"
            )
        shared = 0
        for row in result["buffers"]:
            region, buffer = self.left[row[1]], buffer_of(row)
            work = not _core.buffer_keeps(row[0])
            shared += buffer.bytes if work else 0
            self.total += 0 if region.use else buffer.bytes
            offset = region.address + buffer.offset - self.board.region(region.name).base
            self.rows.append((
                region.name,
                ImageBuffer(buffer.name, offset, buffer.bytes, buffer.why, name, work),
            ))  # fmt: skip
        return ImagePart(
            name, result["total_bytes"] - shared, shared,
            limits_json(result["limits"]),
            streamed_experts(image, result, self.limits.policy, pins_of_image(image)),
        )  # fmt: skip

    def _map(self) -> Iterator[JointRegion]:
        for region in self.board.regions:
            rows = [row for name, row in self.rows if name == region.name]
            rows.sort(key=lambda row: (row.offset, row.image))
            yield JointRegion(region.name, region.size, _covered(rows), tuple(rows))


def _covered(rows: Iterable[ImageBuffer]) -> int:
    """Bytes that rows in ascending order cover."""
    used = end = 0
    for row in rows:
        begin = max(row.offset, end)
        end = max(end, row.offset + row.bytes)
        used += max(0, end - begin)
    return used
