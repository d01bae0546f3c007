# SPDX-License-Identifier: Apache-2.0
"""The ``MEMORY`` of a linker script, as its map file repeats it: regions, and what a board has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from colibri.fit.elf import MemoryRange
from colibri.fit.findings import Finding
from colibri.fit.regions import Region

LINKER_KIND = "linker script"


def linker_regions(memory: Iterable[MemoryRange]) -> tuple[Region, ...]:
    """Regions to place into when no board is given; ``!`` turns attributes around, so no access."""
    return tuple(
        Region(
            name=entry.name,
            kind=LINKER_KIND,
            base=entry.origin,
            size=entry.length,
            access="" if "!" in entry.attributes else entry.attributes.lower(),
        )
        for entry in memory
    )


def check_linker_regions(
    memory: Iterable[MemoryRange], regions: Sequence[Region], board: str
) -> Iterator[Finding]:
    """Regions of the linker script that reach outside the board's: one of the two is wrong."""
    for entry in memory:
        if entry.length and not any(_holds(region, entry) for region in regions):
            near = next((r for r in regions if _touches(r, entry)), None)
            has = f"{near.name} has {near.base:#x}..{near.end:#x}" if near else "no region is there"
            yield Finding(
                "warning",
                "linker-region",
                f"the linker script gives it {entry.origin:#x}..{entry.origin + entry.length:#x}, "
                f"on {board} {has}",
                entry.name,
                entry.length,
                near.end - near.base if near else 0,
            )


def _windows(region: Region) -> Iterator[tuple[int, int]]:
    for base in (region.base, *region.aliases):
        yield base, base + region.end - region.base


def _holds(region: Region, entry: MemoryRange) -> bool:
    end = entry.origin + entry.length
    return any(low <= entry.origin and end <= high for low, high in _windows(region))


def _touches(region: Region, entry: MemoryRange) -> bool:
    end = entry.origin + entry.length
    return any(entry.origin < high and low < end for low, high in _windows(region))
