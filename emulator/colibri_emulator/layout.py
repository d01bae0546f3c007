# SPDX-License-Identifier: Apache-2.0
"""Who gets which bytes of a bare-metal board: code, data and stack, image, logits, engine.

One answer for the planner, the twin and the linker script, so that a plan made on the desktop is
the plan that the firmware makes.

    code_region   | (code_offset) code and constants, code_bytes at most | ...
    data_region   | stacks + reserve_bytes: the runner's RAM | engine ...
    model_region  | ... what code and runner take | image | engine, when it is RAM
    every region  | ... | the application's, as declared

An image that stays in a storage (experts streamed) has no place of its own: only its tables are in
RAM, behind the logits.

There is a stack of `stack_bytes` for each core that firmware can use (`Board.firmware_cores`).
Where code and data share a region, the runner's part starts at code_offset and holds both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from colibri._core import MAX_REGIONS
from colibri.application import application_rooms
from colibri.boards import Board, Region
from colibri.errors import BoardError, DoesNotFitError, Lack
from colibri.units import format_bytes

STATIC_BYTES = 8 << 10  # the runner's own data: mailbox, engine handle, plan
MMU_BYTES = 36 << 10  # page tables and their alignment, on AArch64
MODEL_ALIGNMENT = 4096
ALIGNMENT = 64
IMAGE = "the image"  # as messages call it
PAGE = 4096
_STEP = 0x0100_0000  # between the places that are tried for a device


@dataclass(frozen=True)
class EngineRegion:
    """Memory for the engine, as `colibri_init` gets it."""

    name: str
    base: int
    size: int
    rank: int


@dataclass(frozen=True)
class Layout:
    """Addresses of everything on one board with one image."""

    regions: tuple[EngineRegion, ...]
    code_start: int
    code_limit: int
    data_start: int
    data_limit: int
    stack_bytes: int  # of each core
    core_stacks_bytes: int  # of all cores but the first
    model_base: int
    model_bytes: int
    logits_base: int
    logits_bytes: int
    tables_base: int = 0
    tables_bytes: int = 0  # not 0: the image stays in a storage, and this much of it is in RAM
    device_base: int = 0  # registers of the emulated block device, where no region is


@dataclass
class _Space:
    """What is still free of a region: one piece, taken from the front."""

    region: Region
    start: int
    end: int
    application: int = 0  # bytes of it behind `end`

    @classmethod
    def of(cls, region: Region) -> _Space:
        """The longest part of a region without reserved bytes."""
        start, end = region.longest_piece
        return cls(region, region.base + start, region.base + end)

    @property
    def free(self) -> int:
        return self.end - self.start

    def take(self, size: int, alignment: int, what: str) -> int:
        """Address of the next `size` bytes."""
        base = _align_up(self.start, alignment)
        if base + size > self.end:
            beside = f" beside the application's {format_bytes(self.application)}"
            error = DoesNotFitError(
                f"{what} needs {format_bytes(size)}, region {self.region.name} has "
                f"{format_bytes(max(self.end - base, 0))} left{beside if self.application else ''}",
                hint=f"{what} needs a region with {format_bytes(size, exact=True)} free",
            )
            error.lack = Lack(what, self.region.name, self.end - base, size)
            raise error
        self.start = base + size
        return base


def board_layout(
    board: Board,
    image_bytes: int,
    vocabulary: int,
    tables_bytes: int = 0,
    *,
    code_bytes: int,
    application: Mapping[str, int] | None = None,
    device: bool = False,
) -> Layout:
    """Places code, data, image and logits; what remains of the RAM is the engine's.

    Parameters
    ----------
    board : Board
        A board with ``os = "none"``.
    image_bytes : int
        Length of the image file.
    vocabulary : int
        Floats in a row of logits, which the application keeps.
    tables_bytes : int
        Of an image that stays in a storage: its header and tables, which are kept in RAM.
    code_bytes : int
        Kept for code and constants; `build_firmware` holds the link to it.
    application : mapping, optional
        Bytes that the rest of the program takes, by region.
    device : bool
        Whether anything is read from a storage.

    Raises
    ------
    BoardError
        For a board with an operating system.
    DoesNotFitError
        When a part does not fit its region, with the bytes it needs.
    """
    if board.os != "none":
        raise BoardError(
            f"board {board.id} runs {board.os}, its memory is not laid out at build time",
            field="os",
            hint='only boards with os = "none" have a layout',
        )
    fw = board.firmware
    spaces = {region.name: _Space.of(region) for region in board.regions}
    for room in application_rooms(board, application):
        space = spaces[room.region]
        space.end, space.application = space.region.base + room.offset, room.bytes
    code, data = spaces[fw.code_region], spaces[fw.data_region]
    shared = fw.code_region == fw.data_region
    code_start = max(code.start, code.region.base + fw.code_offset)
    code.start = code_start
    if not shared:
        code.take(code_bytes, 1, "code")
    core_stacks = fw.stack_bytes * (board.firmware_cores - 1)
    runner = STATIC_BYTES + (MMU_BYTES if fw.target == "aarch64" else 0)
    runner += code_bytes if shared else 0
    reserve = max(fw.reserve_bytes, runner if shared else 0)
    own = fw.stack_bytes + core_stacks + reserve
    data_start = data.take(own, 1 if shared else ALIGNMENT, "data")
    data_limit = data.start
    logits_bytes = _align_up(vocabulary * 4, ALIGNMENT)
    inside = reserve - runner
    model_bytes = 0 if tables_bytes else image_bytes
    model_base = 0
    if model_bytes:
        model_base = spaces[fw.model_region].take(model_bytes, MODEL_ALIGNMENT, IMAGE)
    if logits_bytes <= inside:
        logits_base = data_limit - logits_bytes
        data_limit = logits_base
    else:
        space = _logits_space(spaces, data, logits_bytes)
        logits_base = space.take(logits_bytes, ALIGNMENT, "a row of logits")
    tables_base = 0
    if tables_bytes:
        space = _logits_space(spaces, data, tables_bytes)
        tables_base = space.take(tables_bytes, ALIGNMENT, "the image's tables")
    return Layout(
        regions=_engine_regions(spaces),
        code_start=code_start,
        code_limit=data_limit if shared else code_start + code_bytes,
        data_start=data_start,
        data_limit=data_limit,
        stack_bytes=fw.stack_bytes,
        core_stacks_bytes=core_stacks,
        model_base=model_base,
        model_bytes=model_bytes,
        logits_base=logits_base,
        logits_bytes=logits_bytes,
        tables_base=tables_base,
        tables_bytes=tables_bytes,
        device_base=_device_page(board) if device else 0,
    )


def _device_page(board: Board) -> int:
    """An address for the block device's registers, where the board has no region.

    Where a Cortex-M has peripherals, if that is free; below 2 GiB, beyond which Unicorn loses
    addresses that go through AArch64's page tables.
    """
    taken = [(base, base + r.size) for r in board.regions for base in (r.base, *r.aliases)]
    pages: Iterator[int] = chain(
        range(0x5000_0000, 0x6000_0000, _STEP), range(_STEP, 0x8000_0000, _STEP)
    )
    for page in pages:
        if all(end <= page or page + PAGE <= start for start, end in taken):
            return page
    raise BoardError(
        f"board {board.id} leaves no page below 2 GiB for a block device's registers",
        field="regions",
    )


def _logits_space(spaces: dict[str, _Space], data: _Space, size: int) -> _Space:
    """For logits that outgrow the reserve: behind it when they leave half, else in bulk."""
    if size <= data.free // 2:
        return data
    return max((space for space in spaces.values() if space.region.writable), key=lambda s: s.free)


def _engine_regions(spaces: dict[str, _Space]) -> tuple[EngineRegion, ...]:
    """Free RAM in the board's order: the largest ones when the runtime takes fewer."""
    found = []
    for space in spaces.values():
        # Address 0 is C's NULL, which the runtime takes for missing memory.
        base = _align_up(max(space.start, 1), ALIGNMENT)
        if space.region.writable and space.end > base:
            found.append(EngineRegion(space.region.name, base, space.end - base, space.region.rank))
    kept = sorted(found, key=lambda region: (-region.size, region.rank))[:MAX_REGIONS]
    return tuple(region for region in found if region in kept)


def _align_up(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment
