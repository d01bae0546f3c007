# SPDX-License-Identifier: Apache-2.0
"""Place the sections of an ELF into regions by address, never by name.

Second step of the ELF trail (``elf -> places -> memory_map -> symbols -> verdict``). A section has
a run address and, when it has bytes in the file, a load address. Both cost memory; when they are
the same place they cost it once. What is counted is written out in :data:`COUNTING_RULE`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from colibri.application import checked_application
from colibri.errors import SizeError
from colibri.fit.elf import Elf, Section
from colibri.fit.findings import Finding
from colibri.fit.linker_regions import linker_regions
from colibri.fit.places import Place, PlaceFinder
from colibri.fit.placing_checks import check_places
from colibri.fit.regions import (
    AddressMap,
    BoardLike,
    Extent,
    Piece,
    Region,
    board_regions,
    derived_regions,
    main_memory,
)

COUNTING_RULE = (
    "Sections are placed by address. A region's used bytes are its run-time sections, the load "
    "images stored in it, segment bytes outside every section, the model image and the reserved "
    "stack, each address once. NOBITS costs run memory only, .tbss nothing. Reserved parts are "
    "not free; padding between sections is shown, not counted."
)
COUNTING_RULE_OS = (
    "The board runs an operating system, so addresses are virtual: all allocated sections are "
    "counted in {region}, each address once; the file itself lives on storage."
)
COUNTING_RULE_OBJECT = (
    "A relocatable object has no addresses: section sizes are added up by their flags "
    "(text: executable, rodata: read-only, data: writable, bss: NOBITS), COMDAT groups once. An "
    "upper bound: a link drops what nothing needs."
)
_CHARGED_IN_ORDER = {"section": 0, "segment": 1, "image": 2, "stack": 3, "application": 4}

RULE_APPLICATION = " What the application was declared to take is added."
#: Rows that no symbol is looked for in.
OWN = ("image", "stack", "application")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a region: what it is and how many bytes of ``used`` it stands for."""

    name: str
    kind: str
    role: str
    address: int
    bytes: int
    section: int | None = None


@dataclass(slots=True)
class Usage:
    """A region and what is in it. ``used`` is the sum of ``rows`` by construction."""

    region: Region
    rows: list[Row] = field(default_factory=list)
    reach: int = 0
    load_bytes: int = 0
    load_start: int | None = None
    load_end: int = 0
    symbol_bytes: int = 0

    @property
    def used(self) -> int:
        return sum(row.bytes for row in self.rows)

    @property
    def free(self) -> int | None:
        capacity = self.region.capacity
        return None if capacity is None else max(0, capacity - self.used)

    @property
    def percent(self) -> float | None:
        capacity = self.region.capacity
        return round(100 * self.used / capacity, 2) if capacity else None

    @property
    def overflow(self) -> int:
        """Bytes beyond the region: by the highest address in use, or by the sum."""
        if self.region.capacity is None:
            return 0
        return max(0, self.reach - self.region.end, self.used - self.region.capacity)

    @property
    def load_span(self) -> int:
        """Length of a flat file of this region, from its first to its last stored byte."""
        return self.load_end - self.load_start if self.load_start is not None else 0

    @property
    def padding(self) -> int:
        """Bytes of the flat file that nothing counted owns."""
        return max(0, self.load_span - self.load_bytes)

    @property
    def unattributed(self) -> int:
        """Bytes that no symbol owns; image, stack and application own theirs."""
        own = sum(row.bytes for row in self.rows if row.kind in OWN)
        return self.used - own - self.symbol_bytes


@dataclass(slots=True)
class MemoryMap:
    """Where everything is. ``totals`` groups sections by flags, like GNU ``size``."""

    elf: Elf
    board: str | None
    rule: str
    totals: dict[str, int]
    usages: list[Usage] = field(default_factory=list)
    outside: list[Row] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    image_bytes: int = 0
    stack_bytes: int = 0
    inexact: bool = False


def build_map(
    elf: Elf,
    board: BoardLike | None = None,
    image: Path | None = None,
    application: Mapping[str, int | str] | None = None,
) -> MemoryMap:
    """Place an ELF into a board's regions, or into ranges of its own when there is no board."""
    if image is not None and (board is None or elf.kind == "relocatable"):
        raise SizeError(
            "there is no region to count the image in",
            field="--image",
            hint="give a linked firmware and --board, whose firmware.model_region holds the image",
        )
    declared = _declared(board, application)
    name = board.id if board is not None else None
    if elf.kind == "relocatable":
        return MemoryMap(elf, name, COUNTING_RULE_OBJECT, section_totals(elf))
    regions = board_regions(board) if board is not None else ()
    virtual = None
    if board is not None and board.os == "linux":
        virtual = main_memory(board, regions)
        regions = tuple(virtual if r.name == virtual.name else r for r in regions)
    finder = PlaceFinder(elf, image, run_only=virtual is not None, application=declared)
    places = finder.all()
    if board is None and elf.memory:
        regions = linker_regions(elf.memory)
    elif board is None:
        regions = derived_regions((p.address, p.address + p.size) for p in places)
    rule = COUNTING_RULE_OS.format(region=virtual.name) if virtual else COUNTING_RULE
    rule += RULE_APPLICATION if declared else ""
    result = MemoryMap(elf, name, rule, section_totals(elf), [Usage(r) for r in regions])
    result.findings = finder.findings
    result.inexact = elf.format == "map"
    _Locator(result, AddressMap(regions, virtual), model_region(board, regions)).place(places)
    _charge(result, virtual is not None)
    bounded = board is not None or bool(elf.memory)
    result.findings += check_places(result.elf, result.places, bounded, virtual is None)
    result.image_bytes = sum(p.size for p in places if p.kind == "image")
    result.stack_bytes = sum(p.size for p in places if p.kind == "stack")
    return result


def _declared(
    board: BoardLike | None, application: Mapping[str, int | str] | None
) -> dict[str, int] | None:
    if application and board is None:
        raise SizeError(
            "there is no region to count the application in",
            field="application",
            hint="give the board",
        )
    return checked_application(board, application) if board is not None else None


def section_totals(elf: Elf) -> dict[str, int]:
    """Allocated section sizes grouped by flags; commons are not counted before layout."""
    totals = {"text": 0, "rodata": 0, "data": 0, "bss": 0}
    for section in elf.sections:
        if section.takes_memory:
            totals[group_of(section)] += section.size
    return totals


def group_of(section: Section) -> str:
    """The group of a section in the totals, by its flags."""
    if not section.in_file:
        return "bss"
    if section.executable:
        return "text"
    return "data" if section.writable else "rodata"


def model_region(board: BoardLike | None, regions: Iterable[Region]) -> Region | None:
    """The region that a board file names for the model image, if it names one."""
    firmware = board.firmware if board is not None else None
    name = firmware.model_region if firmware is not None else None
    return next((r for r in regions if r.name == name), None)


class _Locator:
    """Looks up every place; a load address that makes no sense falls back to the run address."""

    def __init__(self, result: MemoryMap, space: AddressMap, model: Region | None) -> None:
        self.result, self.space, self.model = result, space, model

    def place(self, places: Iterable[Place]) -> None:
        runs: dict[int, Place] = {}
        loads: list[Place] = []
        # Run places first, so that fallbacks find them; upwards, so that overflow chains work.
        for place in sorted(places, key=lambda p: (p.role == "load", p.address)):
            place = place._replace(pieces=self.pieces(place))
            run = runs.get(place.key)
            if run is None:
                runs[place.key] = place
            elif run.pieces == place.pieces:  # one place, seen through two windows
                runs[place.key] = run._replace(role="both")
            elif place.pieces[0].region is None and run.pieces[0].region is not None:
                self.suspicious(place)
            else:
                loads.append(place)
        self.result.places = [*runs.values(), *loads]

    def pieces(self, place: Place) -> tuple[Piece, ...]:
        if place.role != "loose":
            return self.space.locate(place.address, place.size)
        named = (r for r in self.space.regions if r.name == place.region)
        region = next(named, self.model or self.space.virtual)
        if region is None:
            raise SizeError(
                "the board names no region for the image",
                field="firmware.model_region",
                hint=f"name one of {', '.join(r.name for r in self.space.regions)}",
            )
        return (Piece(region, region.base, place.size),)

    def suspicious(self, place: Place) -> None:
        self.result.inexact = True
        self.result.findings.append(
            Finding(
                "warning",
                "load-address",
                (
                    f"suspicious load address {place.address:#x}, outside every region: "
                    "counted at the run address only, the result is inexact"
                ),
                place.name,
                place.address,
            )
        )


def _charge(result: MemoryMap, virtual: bool) -> None:
    """Fill the regions' rows; addresses that several places share are counted once."""
    usages = {u.region.name: u for u in result.usages}
    covered = {name: Extent() for name in usages}
    for place, piece in _in_charging_order(result.places):
        if piece.region is None:
            result.outside.append(_row(place, piece, piece.size))
            continue
        usage, loose = usages[piece.region.name], place.role == "loose"
        new = piece.size if loose else covered[piece.region.name].add(piece.start, piece.end)
        if not loose and not virtual:
            usage.reach = max(usage.reach, piece.end)
        if place.stored and place.kind != "image":  # the image is a file of its own
            usage.load_bytes += new
            start = piece.start if usage.load_start is None else usage.load_start
            usage.load_start = min(start, piece.start)
            usage.load_end = max(usage.load_end, piece.end)
        if new or place.kind == "section":
            usage.rows.append(_row(place, piece, new))


def _row(place: Place, piece: Piece, size: int) -> Row:
    return Row(place.name, place.kind, place.role, piece.start, size, place.section)


def _in_charging_order(places: Iterable[Place]) -> Iterator[tuple[Place, Piece]]:
    for place in sorted(places, key=lambda p: (_CHARGED_IN_ORDER[p.kind], p.address, -p.size)):
        for piece in place.pieces:
            yield place, piece
