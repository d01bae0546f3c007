# SPDX-License-Identifier: Apache-2.0
"""What a board's memory holds before the engine comes: firmware or system, image, reserved parts.

Bare-metal boards follow `colibri_emulator.layout`, which the linker script is made from. On a
Linux board the system keeps its share, the image is mapped, and the rest is the engine's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from colibri._core import MAX_REGIONS
from colibri.application import (
    ROW,
    WHY,
    application_note,
    application_rooms,
    checked_application,
)
from colibri.boards import Board
from colibri.errors import DoesNotFitError, ImageError, Lack, PlanError
from colibri.image import PAGES, Image
from colibri.limits import Limits
from colibri.units import format_bytes

if TYPE_CHECKING:
    from colibri_emulator.code_size import CodeReserve
    from colibri_emulator.layout import Layout

PAGE = 4096  # what Linux hands out
Weights = Literal["mapped", "streamed", "streamed-mapped"]
IN_PLACE = ("nor", "rom", "mram")  # memories that hold an image without power
IMAGE_ALIGNMENT = 4096  # of images behind the first, in flash
HUGE_PAGE = 2 << 20  # with pages of 4 KiB, on x86-64, AArch64 and RV64


class Row(NamedTuple):
    """Bytes of a region that are taken; `offset` from the region's start."""

    region: str
    name: str
    offset: int
    bytes: int
    why: str


class FreeRegion(NamedTuple):
    """Memory for the engine: a part of the board's region of that name."""

    name: str
    address: int
    size: int
    rank: int


@dataclass(frozen=True)
class BoardMemory:
    """Free regions in the order that the C planner gets them, and what fills the rest.

    `problem` says what does not fit even before the engine, or is empty; `lack` has its numbers.
    `application` is what was declared, `code` what firmware's code is given.
    """

    regions: tuple[FreeRegion, ...]
    rows: tuple[Row, ...]
    problem: str = ""
    lack: Lack | None = None
    application: dict[str, int] | None = None
    code: CodeReserve | None = None

    def code_json(self) -> dict[str, Any] | None:
        """`code` for a command's JSON."""
        return None if self.code is None else self.code._asdict()

    def notes(self) -> Iterator[str]:
        """What a reader of a plan must know about the rest of the program and the code."""
        yield from self.application_notes()
        if self.code is not None:
            yield f"code: {self.code.why}"

    def application_notes(self) -> Iterator[str]:
        """What was declared; that nothing was, where no system keeps programs apart."""
        if self.application is not None or self.code is not None:
            yield application_note(self.application)


def streamed_weights(board: Board, image: Image, limits: Limits) -> Weights:
    """How a board streams experts: from a file, from mapped flash, or from another storage.

    Raises
    ------
    PlanError
        For a board without an operating system whose flash does not hold the image, or not all of
        its files, and that has no storage beside it.
    """
    if board.os == "linux":
        return "streamed"
    flash = board.region(board.firmware.model_region)
    in_place = flash.kind in IN_PLACE
    held = in_place and not _bare_metal(board, [image], limits, "streamed-mapped").problem
    if any(not storage.xip for storage in board.storage):
        return "streamed-mapped" if held else "streamed"
    if held and len(image.files) == 1:
        return "streamed-mapped"
    raise PlanError(
        f"board {board.id} has no storage that experts could be read from",
        hint="add a [[storage]] that is not xip to its board file, or flash that holds the image",
    )


def reads_storage(image: Image, weights: Weights) -> bool:
    """Whether experts come from a storage, and not from where the CPU reads the image itself."""
    return weights == "streamed" or (weights == "streamed-mapped" and len(image.files) > 1)


def board_memory(
    board: Board,
    images: Image | Sequence[Image],
    limits: Limits,
    *,
    weights: Weights = "mapped",
) -> BoardMemory:
    """The memory of a board around an image, or around several at once.

    Of the limits, pages, application and code count here. With huge pages the image is no mapped
    file, which the system may drop and read again, but memory of the program's own, in whole huge
    pages.  With `weights` streamed it is read, and only its tables are kept.
    """
    pages, application = limits.pages, checked_application(board, limits.application)
    if pages not in PAGES:
        raise PlanError(f"pages are '{pages}'", hint=f"use one of {', '.join(PAGES)}")
    several = [images] if isinstance(images, Image) else list(images)
    if board.os == "linux" and weights == "streamed":
        sizes = [image.meta_bytes for image in several]
        return _linux(board, application, sizes, "its tables; the rest is read")
    if board.os == "linux":
        if pages == "4k":
            sizes = [image.total_bytes for image in several]
            return _linux(board, application, sizes, "mapped file, weights used in place")
        sizes = [
            sum(-(-file.bytes // HUGE_PAGE) * HUGE_PAGE for file in image.files)
            for image in several
        ]
        return _linux(
            board, application, sizes, "the file's copy in huge pages, held while it is open"
        )
    if pages == "huge":
        raise PlanError(
            f"board {board.id} has no system that hands out pages",
            field="pages",
            hint='only boards with os = "linux" have huge pages; firmware maps RAM in blocks',
        )
    return _bare_metal(board, several, limits, weights)


def refuse_companions(image: Image, why: str) -> None:
    """ImageError for an image in several files, where the model is one block of memory."""
    if len(image.files) > 1:
        raise ImageError(
            f"a {image.layout} image is {len(image.files)} files, and {why}",
            file=image.name,
            hint="make it one file: colibri convert IMAGE -o FILE --layout monolithic",
        )


def _reserved(board: Board) -> Iterator[Row]:
    for region in board.regions:
        for part in region.reserved:
            yield Row(region.name, "reserved", part.offset, part.size, part.reason)


def _bare_metal(
    board: Board, images: Sequence[Image], limits: Limits, weights: Weights
) -> BoardMemory:
    """Images lie one behind the other, each at the next multiple of `IMAGE_ALIGNMENT`."""
    # Imported late: the emulator is built on this package.
    from colibri_emulator.code_size import code_reserve
    from colibri_emulator.layout import IMAGE, board_layout

    if weights == "mapped":
        for image in images:
            refuse_companions(image, f"board {board.id} has no files")
    starts = [0]
    for image in images:
        starts.append(-(-(starts[-1] + image.bytes) // IMAGE_ALIGNMENT) * IMAGE_ALIGNMENT)
    total = starts[-2] + images[-1].bytes
    application = checked_application(board, limits.application)
    code = code_reserve(board, images, streaming=weights != "mapped", asked=limits.code)
    reserved = tuple(_reserved(board))
    tables = images[0].meta_bytes if weights == "streamed" else 0  # one image streams
    try:
        layout = board_layout(
            board, total, max(i.vocabulary for i in images), tables,
            code_bytes=code.bytes, application=application,
        )  # fmt: skip
        rooms = tuple(_application_rows(board, application))
    except DoesNotFitError as error:
        lack = error.lack
        assert lack is not None
        name = "image" if lack.part == IMAGE else lack.part
        row = Row(lack.region, name, 0, lack.need, "has no place")
        lack = replace(lack, part=name)
        return BoardMemory((), (*reserved, row), str(error), lack, application, code)
    cores = board.firmware_cores
    stacks = "stack" if cores == 1 else f"stacks of {cores} cores"
    spans = [
        ("firmware", layout.code_start, layout.code_limit, "code and constants, at most"),
        ("firmware", layout.data_start, layout.data_limit, f"{stacks} and static data"),
        ("logits", layout.logits_base, layout.logits_base + layout.logits_bytes,
         "one row, the application's"),
        *_image_spans(layout, images, starts),
    ]  # fmt: skip
    if layout.data_start < layout.code_limit:  # one region: a single row for both
        start, end = layout.code_start, max(layout.code_limit, layout.data_limit)
        spans[:2] = [("firmware", start, end, f"code, constants, static data and {stacks}")]
    rows = [_row_at(board, *span) for span in spans]
    free = tuple(FreeRegion(r.name, r.base, r.size, r.rank) for r in layout.regions)
    taken = (*reserved, *rooms, *rows)
    return BoardMemory(free, taken, application=application, code=code)


def _application_rows(board: Board, application: dict[str, int] | None) -> Iterator[Row]:
    for room in application_rooms(board, application):
        yield Row(room.region, ROW, room.offset, room.bytes, WHY)


def _image_spans(
    layout: Layout, images: Sequence[Image], starts: Sequence[int]
) -> Iterator[tuple[str, int, int, str]]:
    """Where images lie, or the tables of one that stays in a storage."""
    if layout.tables_bytes:
        base = layout.tables_base
        yield "image", base, base + layout.tables_bytes, "its tables; the rest is read"
        return
    for start, image in zip(starts, images, strict=False):
        base = layout.model_base + start
        yield "image", base, base + image.bytes, "weights, used in place"


def _row_at(board: Board, name: str, start: int, end: int, why: str) -> Row:
    region = next(r for r in board.regions if r.base <= start < r.end)
    return Row(region.name, name, start - region.base, end - start, why)


def _linux(
    board: Board,
    application: dict[str, int] | None,
    image_bytes: Sequence[int],
    image_why: str,
) -> BoardMemory:
    firmware = board.firmware
    rows = list(_reserved(board))
    memory = [region for region in board.regions if region.kind == "dram"]
    free = {region.name: region.longest_piece for region in memory}
    try:
        rooms = list(_application_rows(board, application))
    except DoesNotFitError as error:
        lack = error.lack
        assert lack is not None
        rows.append(Row(lack.region, ROW, 0, lack.need, "has no place"))
        return BoardMemory((), tuple(rows), str(error), lack, application)
    for room in rooms:
        if room.region in free:
            free[room.region] = (free[room.region][0], room.offset)
    rows += rooms
    problem: str = ""
    lack = None
    for name, size, why in (
        ("os", firmware.os_reserve_bytes, firmware.os_reserve_reason),
        *(("image", size, image_why) for size in image_bytes),
    ):
        place = max(free, key=lambda key: free[key][1] - free[key][0])
        start, end = free[place]
        rows.append(Row(place, name, start, size, why))
        behind = -(-(start + size) // PAGE) * PAGE
        if behind > end:
            lack = Lack(name, place, end - behind + size, size)
            beside = " beside the application" if application else ""
            problem = (
                f"{place} has {format_bytes(max(lack.have, 0))} for the {name}, "
                f"which takes {format_bytes(size)}{beside}"
            )
            break
        free[place] = (behind, end)
    regions = [
        FreeRegion(region.name, region.base + start, end - start, region.rank)
        for region in memory
        for start, end in [free[region.name]]
        if end > start
    ]
    kept = () if problem else tuple(regions[:MAX_REGIONS])
    return BoardMemory(kept, tuple(rows), problem, lack, application)
