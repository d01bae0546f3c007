# SPDX-License-Identifier: Apache-2.0
"""What can be wrong with where things were placed: overlaps, reserved parts, odd intentions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from colibri.fit.elf import Elf
from colibri.fit.findings import OF_A_KIND, Finding
from colibri.fit.places import Place
from colibri.fit.regions import Piece, Region
from colibri.units import format_bytes


def check_places(
    elf: Elf, places: Sequence[Place], on_board: bool, physical: bool
) -> Iterator[Finding]:
    """Every finding about placed bytes.

    Parameters
    ----------
    elf, places
        The file and its located places.
    on_board : bool
        The regions are a board's, not derived from the ELF.
    physical : bool
        Addresses are physical, not handed out by an operating system.
    """
    yield from zero_bytes(elf)
    yield from shared_by_extras(places)
    if physical:
        yield from shared_loads(places)
        yield from shared_runs(elf, places)
    if on_board:
        yield from outside(places)
    if on_board and physical:
        yield from reserved(places)
        yield from volatile_loads(places)
        yield from read_only_writes(elf, places)


#: Larger than any part of the kind on a small board; a size above is taken for a slip of units.
CLASS_LIMITS = {"tcm": 16 << 20, "sram": 256 << 20, "dram": 256 << 30}
_OTHER_CLASS_LIMIT = 16 << 30


def beyond_class(regions: Iterable[Region]) -> Iterator[Finding]:
    """Regions whose size cannot be meant: percentages of them would mean nothing."""
    for region in regions:
        limit = CLASS_LIMITS.get(region.kind, _OTHER_CLASS_LIMIT)
        if region.size is not None and region.size > limit:
            yield Finding(
                "warning",
                "region-size",
                f"{format_bytes(region.size)} is more than any {region.kind} has (up to "
                f"{format_bytes(limit)}): check the unit in the board file",
                region.name,
                region.size,
                limit,
            )


def zero_bytes(elf: Elf) -> Iterator[Finding]:
    for section in elf.sections:
        if section.zeros:
            yield Finding(
                "warning",
                "zero-bytes",
                (
                    f"{format_bytes(section.zeros)} of zero bytes are stored in the load image; "
                    "use a NOBITS section"
                ),
                section.name,
                section.zeros,
            )


def shared_by_extras(places: Sequence[Place]) -> Iterator[Finding]:
    """The image and the stack against everything else."""
    for extra in places:
        if extra.kind not in ("image", "stack") or extra.role == "loose":
            continue
        hits = [p for p in places if p is not extra and _shared(p, extra)]
        if extra.kind == "stack":
            hits = [p for p in hits if p.role != "load" and p.kind != "image"]
        around = next((p for p in hits if _shared(p, extra) == extra.size), None)
        if around is not None:
            yield Finding(
                "note",
                "inside",
                (f"{extra.name} lies inside {around.name} and is counted there"),
                extra.name,
                extra.size,
            )
        elif hits:
            names = ", ".join(p.name for p in hits[:OF_A_KIND])
            yield Finding(
                "error",
                "overlap",
                (f"{extra.name} at {extra.address:#x} ({extra.size:,} B) overlaps {names}"),
                extra.name,
                sum(_shared(p, extra) for p in hits),
            )


def shared_loads(places: Sequence[Place]) -> Iterator[Finding]:
    """Two things stored at one address destroy each other."""
    stored = [p for p in places if p.stored and p.kind != "image"]
    for one, two, start, size in _overlaps(stored):
        yield Finding(
            "error",
            "load-overlap",
            (f"load addresses of {one.name} and {two.name} overlap by {size:,} B at {start:#x}"),
            f"{one.name}, {two.name}",
            size,
        )


def shared_runs(elf: Elf, places: Sequence[Place]) -> Iterator[Finding]:
    """Sections that use the same memory: overlays do so on purpose."""
    running = [p for p in places if p.role != "load" and p.kind in ("section", "segment")]
    for one, two, start, size in _overlaps(running):
        if one.role == two.role == "both":
            continue  # a load overlap, said there
        names = f"{one.name} and {two.name}"
        overlay = one.role == two.role == "run" and all(
            p.section is not None and elf.sections[p.section].in_file for p in (one, two)
        )
        if overlay:
            yield Finding(
                "note",
                "overlay",
                (
                    f"{names} share {size:,} B of run memory (overlay): the region counts the "
                    "largest, their load images add up"
                ),
                f"{one.name}, {two.name}",
                size,
            )
        else:
            yield Finding(
                "warning",
                "overlap",
                (f"{names} share {size:,} B of run memory at {start:#x}: counted once"),
                f"{one.name}, {two.name}",
                size,
            )


def outside(places: Sequence[Place]) -> Iterator[Finding]:
    lost = {p.name: piece for p in places for piece in p.pieces if piece.region is None}
    if lost:
        total = sum(p.size for place in places for p in place.pieces if p.region is None)
        names = list(lost)[:OF_A_KIND]
        more = f" and {len(lost) - len(names)} more" if len(lost) > len(names) else ""
        first = next(iter(lost.values())).start
        yield Finding(
            "error",
            "outside",
            (f"{total:,} B lie outside every declared region (the first at {first:#x})"),
            ", ".join(names) + more,
            total,
        )


def reserved(places: Sequence[Place]) -> Iterator[Finding]:
    for place, piece in _pieces(places):
        for part in piece.region.reserved if piece.region is not None else ():
            assert piece.region is not None
            start = piece.region.base + part.offset
            size = min(piece.end, start + part.size) - max(piece.start, start)
            if size > 0:
                yield Finding(
                    "error",
                    "reserved",
                    (
                        f"{place.name} uses {size:,} B of a reserved part of {piece.region.name} "
                        f"({part.size:,} B at {start:#x}): {part.reason}"
                    ),
                    place.name,
                    size,
                    0,
                )


def volatile_loads(places: Sequence[Place]) -> Iterator[Finding]:
    """Stored bytes in RAM, in firmware that otherwise is in flash."""
    stored = [p for p in places if p.stored and p.pieces[0].region is not None]
    if not any(_non_volatile(p) for p in stored):
        return
    for place in stored:
        if not _non_volatile(place):
            yield Finding(
                "warning",
                "volatile-load",
                (
                    f"load address {place.address:#x} is outside every non-volatile region: "
                    "nothing puts it there after a reset"
                ),
                place.name,
                place.size,
            )


def read_only_writes(elf: Elf, places: Sequence[Place]) -> Iterator[Finding]:
    for place in places:
        section = elf.sections[place.section] if place.section is not None else None
        region = place.pieces[0].region
        if section is None or region is None or not section.writable or place.role == "load":
            continue
        if region.read_only or region.non_volatile:
            yield Finding(
                "warning",
                "read-only",
                (f"writable section runs in {region.name}, which cannot be written in place"),
                section.name,
                section.size,
            )


def _pieces(places: Iterable[Place]) -> Iterator[tuple[Place, Piece]]:
    for place in places:
        if place.role != "loose":
            for piece in place.pieces:
                yield place, piece


def _shared(one: Place, two: Place) -> int:
    return sum(
        max(0, min(a.end, b.end) - max(a.start, b.start))
        for a in one.pieces
        for b in two.pieces
        if one.role != "loose" and two.role != "loose"
    )


def _non_volatile(place: Place) -> bool:
    return any(p.region is not None and p.region.non_volatile for p in place.pieces)


def _overlaps(places: Iterable[Place]) -> Iterator[tuple[Place, Place, int, int]]:
    """Pairs that share addresses: each range with the one before it that reaches furthest."""
    ranges = sorted(_pieces(places), key=lambda item: (item[1].start, item[1].end))
    furthest: tuple[Place, Piece] | None = None
    for place, piece in ranges:
        if furthest is not None and piece.start < furthest[1].end and place is not furthest[0]:
            shared = min(piece.end, furthest[1].end) - piece.start
            yield furthest[0], place, piece.start, shared
        if furthest is None or piece.end > furthest[1].end:
            furthest = place, piece
