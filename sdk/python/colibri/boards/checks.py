# SPDX-License-Identifier: Apache-2.0
"""What must hold between the parts of a board: the rules that a single table cannot state.

Each check yields (where, message) for every problem, so that one run shows them all.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, pairwise

from colibri.boards.budgets import Budgets
from colibri.boards.model import Board, Core, Firmware, Region, Storage
from colibri.units import format_bytes

Finding = tuple[str, str]

_GIB = 1 << 30
MAX_CORES = 16  # COLIBRI_SMP_WORKERS
# Above these a size is more likely a typing error than a board.
CLASS_LIMIT = {
    "tcm": 4 << 20,
    "sram": 64 << 20,
    "mram": 64 << 20,
    "rom": 64 << 20,
    "psram": _GIB,
    "nor": _GIB,
    "dram": 128 * _GIB,
}
_ISA_OF_TARGET = {
    "cortex-m4": ("armv7e-m",),
    "cortex-m7": ("armv7e-m",),
    "cortex-m33": ("armv8-m.main", "armv8.1-m.main"),
    "cortex-m55": ("armv8.1-m.main",),
    "aarch64": ("armv8-a", "armv8.2-a", "armv9-a"),
    "riscv64": ("rv64gc", "rv64gcv"),
    "aarch64-linux-musl": ("armv8-a", "armv8.2-a", "armv9-a"),
}
_BARE_KEYS = ("code_region", "data_region", "model_region", "stack_bytes", "reserve_bytes")
_BARE_OPTIONAL = ("code_offset", "qemu_machine", "unicorn_cpu", "psci")
_LINUX_KEYS = ("os_reserve_bytes", "os_reserve_reason", "os_reserve_source")
_LINUX_OPTIONAL = ("os_reserve_cls",)


def closest(word: str, known: Iterable[str]) -> str:
    """``"did you mean 'x'? "`` when one of `known` is near, else nothing."""
    match = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean '{match[0]}'? " if match else ""


def check_board(board: Board) -> Iterator[Finding]:
    """Every problem of a board whose tables are each valid."""
    yield from check_cores(board.cores)
    yield from check_regions(board.regions)
    yield from _check_reach(board.regions, board.cores)
    yield from check_storage(board.storage, board.regions)
    yield from _check_firmware_keys(board.os, board.firmware)
    yield from _check_target(board.firmware, board.cores[0], board.os)
    if board.os == "none":
        yield from _check_placement(board.firmware, board.regions, board.firmware_cores)
        yield from _check_psci(board.firmware, board.cores[0])
    else:
        yield from _check_os_reserve(board.firmware, board.regions)
    yield from _check_budgets(board.budgets, board.regions)


def check_cores(cores: Sequence[Core]) -> Iterator[Finding]:
    """Core ids are unique."""
    yield from _duplicates("cores", "id", [core.id for core in cores])


def check_regions(regions: Sequence[Region]) -> Iterator[Finding]:
    """Each region is sound by itself, and no two claim one address."""
    yield from _duplicates("regions", "name", [region.name for region in regions])
    for region in regions:
        yield from _check_region(region)
    yield from _check_overlaps(regions)


def _duplicates(table: str, key: str, names: Sequence[str]) -> Iterator[Finding]:
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield table, f"{key} '{name}' is used {names.count(name)} times; give each its own"


def _check_region(region: Region) -> Iterator[Finding]:
    where = f"region '{region.name}'"
    if region.size == 0:
        yield f"{where}.size", "0 B (no capacity); write its real size or remove the region"
    for start in (region.base, *region.aliases):
        if start + region.size > 2**64:
            yield (
                f"{where}.base",
                (
                    f"{start:#x} + {format_bytes(region.size)} ends above 2^64; "
                    f"at most {2**64 - start} bytes fit there"
                ),
            )
    yield from _check_reserved(region, where)


def _check_reach(regions: Sequence[Region], cores: Sequence[Core]) -> Iterator[Finding]:
    """Memory that no core can address would be planned, and lost."""
    if not all(_is_32_bit(core.isa) for core in cores):
        return
    for region in regions:
        if max(region.base, *region.aliases, 0) + region.size > 2**32:
            yield (
                f"region '{region.name}'.base",
                f"ends at {region.end:#x}, which no core of this board can address (all are "
                f"32-bit); at most {2**32:#x}",
            )


def _check_reserved(region: Region, where: str) -> Iterator[Finding]:
    previous_end = 0
    previous = ""
    for part in sorted(region.reserved, key=lambda part: part.offset):
        name = f"reserved part '{part.reason}'"
        if part.size == 0:
            yield f"{where}.reserved", f"{name} has size 0; write its real size or remove it"
        if part.offset + part.size > region.size:
            yield (
                f"{where}.reserved",
                (
                    f"{name} [{part.offset:#x}, {part.offset + part.size:#x}) is outside the "
                    f"region of {region.size:#x} bytes; its end may be at most {region.size:#x}"
                ),
            )
        if part.offset < previous_end:
            yield (
                f"{where}.reserved",
                f"{name} overlaps {previous}; it must start at {previous_end:#x} or above",
            )
        if part.offset + part.size >= previous_end:
            previous_end, previous = part.offset + part.size, name


def _check_overlaps(regions: Sequence[Region]) -> Iterator[Finding]:
    spans = [
        (start, start + region.size, region.name, "base" if index == 0 else "alias")
        for region in regions
        if region.size
        for index, start in enumerate((region.base, *region.aliases))
    ]
    for one, two in combinations(sorted(spans), 2):
        if two[0] < one[1]:
            yield (
                f"regions '{one[2]}' and '{two[2]}'",
                (f"overlap: {_span(one)} and {_span(two)}; the second could start at {one[1]:#x}"),
            )


def _span(span: tuple[int, int, str, str]) -> str:
    start, end, name, what = span
    return f"'{name}' ({what}) [{start:#x}, {end:#x})"


def check_storage(storage: Sequence[Storage], regions: Sequence[Region]) -> Iterator[Finding]:
    """Curves rise in block size; xip storage is a region."""
    yield from _duplicates("storage", "name", [store.name for store in storage])
    for store in storage:
        where = f"storage '{store.name}'"
        blocks = [point.block_bytes for point in store.points]
        if blocks[0] == 0 or any(a >= b for a, b in pairwise(blocks)):
            yield f"{where}.points", f"block sizes {blocks} must start above 0 and rise"
        if store.xip:
            yield from _known_region(f"{where}.region", store.region or store.name, regions)
        elif store.region:
            yield f"{where}.region", "only xip storage is a region; write xip = true or drop it"


def _known_region(where: str, name: str, regions: Sequence[Region]) -> Iterator[Finding]:
    known = [region.name for region in regions]
    if name not in known:
        yield where, f"no region '{name}'; {closest(name, known)}known: {', '.join(known)}"


def _check_firmware_keys(os: str, firmware: Firmware) -> Iterator[Finding]:
    """The keys of the board's `os`, all of them and no others."""
    bare, linux = (_BARE_KEYS, _BARE_OPTIONAL), (_LINUX_KEYS, _LINUX_OPTIONAL)
    needed, other = (bare[0], linux) if os == "none" else (linux[0], bare)
    given = firmware.model_fields_set
    for key in needed:
        if key not in given or getattr(firmware, key) == "":
            yield "firmware", f"missing key '{key}'; a board with os '{os}' needs it"
    for key in (*other[0], *other[1]):
        if key in given:
            yield f"firmware.{key}", f"not for a board with os '{os}'; remove it"


def _check_target(firmware: Firmware, core: Core, os: str) -> Iterator[Finding]:
    linux = firmware.target.endswith("-linux-musl")
    if linux != (os == "linux"):
        fitting = [t for t in _ISA_OF_TARGET if t.endswith("-linux-musl") == (os == "linux")]
        yield (
            "firmware.target",
            f"'{firmware.target}' is not for os '{os}'; one of {', '.join(fitting)}",
        )
    if core.isa not in _ISA_OF_TARGET[firmware.target]:
        fitting = [target for target, isas in _ISA_OF_TARGET.items() if core.isa in isas]
        yield (
            "firmware.target",
            f"'{firmware.target}' does not run on core '{core.id}' ({core.isa}); "
            + (f"one of {', '.join(fitting)}" if fitting else "no target does yet"),
        )


def _check_psci(firmware: Firmware, core: Core) -> Iterator[Finding]:
    if firmware.psci and firmware.target != "aarch64":
        yield "firmware.psci", f"is for target aarch64, not {firmware.target}; remove it"
    if firmware.psci and core.count > MAX_CORES:
        yield "firmware.psci", f"firmware uses {MAX_CORES} cores at most, not {core.count}"


def _check_placement(
    firmware: Firmware, regions: Sequence[Region], cores: int
) -> Iterator[Finding]:
    """Code, data and model go to regions that exist and can hold them."""
    by_name = {region.name: region for region in regions}
    for key, need in (("code_region", "x"), ("data_region", "w"), ("model_region", "r")):
        name = getattr(firmware, key)
        if not name:
            continue
        yield from _known_region(f"firmware.{key}", name, regions)
        region = by_name.get(name)
        if region and (need not in region.access or (need == "w" and not region.writable)):
            yield f"firmware.{key}", f"'{name}' ({region.kind}, {region.access}) lacks '{need}'"
    code, data = by_name.get(firmware.code_region), by_name.get(firmware.data_region)
    if code:
        yield from _check_code_offset(firmware.code_offset, code)
    needed = firmware.stack_bytes * cores + firmware.reserve_bytes
    stacks = f"{cores} x stack_bytes" if cores > 1 else "stack_bytes"
    if data and needed > max(data.usable, 0):
        yield (
            "firmware",
            (
                f"{stacks} + reserve_bytes is {format_bytes(needed)}, but '{data.name}' has "
                f"{format_bytes(max(data.usable, 0))} usable"
            ),
        )


def _check_code_offset(offset: int, code: Region) -> Iterator[Finding]:
    if offset >= code.size:
        yield "firmware.code_offset", f"{offset:#x} is outside '{code.name}' of {code.size:#x}"
    for part in code.reserved:
        if part.offset <= offset < part.offset + part.size:
            yield (
                "firmware.code_offset",
                (
                    f"{offset:#x} is in the part of '{code.name}' reserved for: {part.reason}; "
                    f"it ends at {part.offset + part.size:#x}"
                ),
            )


def _check_os_reserve(firmware: Firmware, regions: Sequence[Region]) -> Iterator[Finding]:
    ram = sum(max(region.usable, 0) for region in regions if region.kind == "dram")
    if firmware.os_reserve_bytes >= ram:
        yield (
            "firmware.os_reserve_bytes",
            (
                f"{format_bytes(firmware.os_reserve_bytes)} leaves nothing of the "
                f"{format_bytes(ram)} usable DRAM; write less than that"
            ),
        )


def _check_budgets(budgets: Budgets, regions: Sequence[Region]) -> Iterator[Finding]:
    for table in ("regions", "spans"):
        for name in getattr(budgets, table):
            yield from _known_region(f"budgets.{table}.{name}", name, regions)
    yield from budgets.problems({region.name: region.size for region in regions})


def board_warnings(board: Board) -> Iterator[str]:
    """What is possible but looks like a typing error."""
    for region in board.regions:
        limit = CLASS_LIMIT[region.kind]
        if region.size > limit:
            yield (
                f"region '{region.name}': {format_bytes(region.size)} of {region.kind} is more "
                f"than any known board has ({format_bytes(limit)}); check the unit"
            )


def _is_32_bit(isa: str) -> bool:
    return isa.startswith(("rv32", "armv6-m", "armv7", "armv8-m", "armv8.1-m"))
