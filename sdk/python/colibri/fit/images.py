# SPDX-License-Identifier: Apache-2.0
"""Flash images without names: Intel HEX, S-records and raw bytes, as areas at addresses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from colibri.errors import SizeError
from colibri.fit.elf import SHF_ALLOC, Elf, Section, Segment
from colibri.fit.findings import Finding
from colibri.fit.hex_files import read_intel_hex, read_srec

_Range = tuple[int, int, str]  # start, size, name


def read_image(path: Path, format: str) -> Elf:
    """An Intel HEX (``intel-hex``) or S-record (``srec``) file."""
    areas = read_intel_hex(path) if format == "intel-hex" else read_srec(path)
    if not areas:
        raise SizeError("holds no data", file=path, hint="give an image with data records")
    ranges = [(a.start, len(a.data), f"area {a.start:#010x}") for a in areas]
    return image_of(path, format, ranges)


def read_raw(path: Path, base: int) -> Elf:
    """A file of bytes that lies at ``base``."""
    size = path.stat().st_size
    if not size:
        raise SizeError("is empty", file=path, hint="give an image with bytes in it")
    if not 0 <= base <= (1 << 64) - size:
        raise SizeError(
            f"{base:#x} is no address for {size:,} bytes",
            file=path,
            field="--base",
            hint="give the address of the first byte, as in --base 0x08000000",
        )
    return image_of(path, "raw", [(base, size, path.name)])


def join_images(images: Sequence[Elf]) -> Elf:
    """Several images that are flashed together; what they share is found when they are placed."""
    ranges = [
        (s.address, s.size, f"{image.path.name} {s.name}")
        for image in images
        for s in image.sections[1:]
    ]
    return image_of(images[0].path, images[0].format, ranges)


def image_of(path: Path, format: str, ranges: Sequence[_Range]) -> Elf:
    """The record of an image: a section and a segment for each range of bytes."""
    sections = [Section(0, "", "NULL", 0, 0, 0, 0, 1)]
    segments: list[Segment] = []
    offset = 0
    for start, size, name in ranges:
        sections.append(Section(len(sections), name, "PROGBITS", SHF_ALLOC, start, offset, size, 1))
        segments.append(Segment(len(segments), "LOAD", offset, start, start, size, size, 4))
        offset += size
    low, high = min(r[0] for r in ranges), max(r[0] + r[1] for r in ranges)
    return Elf(
        path=path,
        file_size=path.stat().st_size,
        bits=32 if high <= 1 << 32 else 64,
        endian="",
        machine="",
        kind="image",
        header_bytes=0,
        sections=tuple(sections),
        segments=tuple(segments),
        symbols=(),
        stripped=True,
        format=format,
        notes=_gaps(path, offset, high - low, len(ranges)),
    )


def _gaps(path: Path, stored: int, span: int, areas: int) -> tuple[Finding, ...]:
    if span <= stored:
        return ()
    what = (
        f"{areas:,} areas hold {stored:,} B; written as one flat file they span {span:,} B, "
        f"{span - stored:,} B of it padding"
    )
    return (Finding("note", "gaps", what, path.name, stored, span),)
