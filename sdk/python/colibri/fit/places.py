# SPDX-License-Identifier: Apache-2.0
"""What an ELF asks memory for: every section, loose segment bytes, the model image, the stack.

Nothing here knows regions; :mod:`colibri.fit.memory_map` looks the addresses up. A *place* is a
range of addresses with a role: ``run`` (where it is used), ``load`` (where its bytes are stored)
or ``both`` (one place for the two).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import NamedTuple

from colibri.application import ROW
from colibri.errors import SizeError
from colibri.fit.elf import Elf, Section, Segment
from colibri.fit.findings import Finding
from colibri.fit.regions import Piece

MODEL_BASE, MODEL_SIZE = "colibri_model_base", "colibri_model_size"
STACK_BOTTOM, STACK_TOP = "__stack_bottom", "__stack_top"


class Place(NamedTuple):
    """Bytes that something occupies; the run and the load place of one thing share ``key``.

    ``kind`` is section, segment, image, stack or application. The role ``loose`` means: in
    ``region`` (empty: the board's model region), at no address that is known.
    """

    key: int
    name: str
    kind: str
    role: str
    address: int
    size: int
    section: int | None = None
    pieces: tuple[Piece, ...] = ()
    region: str = ""

    @property
    def stored(self) -> bool:
        return self.role in ("load", "both")

    def part(self, offset: int, size: int) -> list[Piece]:
        """The pieces of the ``size`` bytes that begin ``offset`` bytes into this place."""
        first = self.pieces[0]
        if offset >= 0 and size > 0 and offset + size <= first.size:
            return [Piece(first.region, first.start + offset, size)]
        at, found = 0, []
        for piece in self.pieces:
            start, end = max(at, offset), min(at + piece.size, offset + size)
            if start < end:
                found.append(Piece(piece.region, piece.start + start - at, end - start))
            at += piece.size
        return found


class PlaceFinder:
    """Lists the places of one ELF.

    Parameters
    ----------
    elf : Elf
        An executable or shared object.
    image : Path, optional
        A model image that is flashed beside it.
    run_only : bool
        Load addresses mean nothing (the file lives on a board's storage).
    application : mapping, optional
        Bytes by region of what is linked to the firmware later.
    """

    def __init__(
        self,
        elf: Elf,
        image: Path | None = None,
        run_only: bool = False,
        application: Mapping[str, int] | None = None,
    ) -> None:
        self.elf, self.image, self.run_only = elf, image, run_only
        self.application = application or {}
        self.findings: list[Finding] = []
        self.loads = sorted(elf.loads, key=lambda s: s.offset)
        # Some linkers leave every p_paddr at 0: then it says nothing.
        self.no_load_address = all(s.load == 0 for s in self.loads) and any(
            s.address for s in self.loads
        )
        self._keys = count()

    def all(self) -> list[Place]:
        found = list(self.sections()) if self.elf.sections else list(self.segments())
        return [*found, *self.image_place(), *self.stack_place(), *self.application_places()]

    def say(
        self,
        level: str,
        code: str,
        what: str,
        where: str,
        value: int | None = None,
        limit: int | None = None,
    ) -> None:
        self.findings.append(Finding(level, code, what, where, value, limit))

    # -- sections and what is between them ------------------------------------------------------

    def sections(self) -> Iterator[Place]:
        members: dict[int, list[tuple[int, Section]]] = {s.index: [] for s in self.loads}
        for section in self.elf.sections:
            if not section.takes_memory:
                continue
            segment = self.segment_of(section)
            if segment is not None:
                start = section.address - segment.address
                members[segment.index].append((start, section))
                self.check_order(section, start, segment)
            elif section.in_file:
                self.say(
                    "warning",
                    "no-segment",
                    ("no loadable segment holds this section: counted at its run address"),
                    section.name,
                    section.size,
                )
            load = section.address
            if segment is not None and not self.no_load_address:
                load = segment.load + section.offset - segment.offset
            yield from self.pair(
                Place(
                    next(self._keys),
                    section.name,
                    "section",
                    "run",
                    section.address,
                    section.size,
                    section.index,
                ),
                load if section.in_file else None,
            )
        for segment in self.loads:
            yield from self.segment_only(segment, members[segment.index])

    def pair(self, run: Place, load: int | None) -> Iterator[Place]:
        """A place at its run address and, when it is stored elsewhere, at its load address."""
        if load is None or self.run_only:
            yield run
        elif load == run.address:
            yield run._replace(role="both")
        else:
            yield run
            yield run._replace(role="load", address=load)

    def segment_of(self, section: Section) -> Segment | None:
        """The loadable segment with this section's bytes at this section's address."""
        for segment in self.loads:
            if _holds_address(segment, section) and (
                not section.in_file or _holds_bytes(segment, section)
            ):
                return segment
        return None

    def check_order(self, section: Section, start: int, segment: Segment) -> None:
        if not section.in_file and start + section.size <= segment.file_size:
            self.say(
                "warning",
                "nobits-in-file",
                (
                    "NOBITS section lies before file bytes of its segment: a gap of "
                    f"{section.size:,} B of zeros in a flat image"
                ),
                section.name,
                section.size,
            )

    def segment_only(self, segment: Segment, members: list[tuple[int, Section]]) -> Iterator[Place]:
        """Stored bytes that belong to no section; a lead-in (ELF header) is not firmware."""
        members.sort(key=lambda member: (member[0], member[1].size))
        done = members[0][0] if members else self.header_part(segment)
        for start, section in members:
            start = min(start, segment.file_size)
            if start - done >= section.align:  # less than that is padding
                yield from self.loose_bytes(segment, done, start - done)
            done = max(done, start + section.size)
        if done < segment.file_size:
            yield from self.loose_bytes(segment, done, segment.file_size - done)

    def loose_bytes(self, segment: Segment, offset: int, size: int) -> Iterator[Place]:
        yield from self.stored_part(
            f"unattributed (segment {segment.index} only)", segment, offset, size
        )

    def stored_part(self, name: str, segment: Segment, offset: int, size: int) -> Iterator[Place]:
        run = segment.address + offset
        load = run if self.no_load_address else segment.load + offset
        yield from self.pair(Place(next(self._keys), name, "segment", "run", run, size), load)

    def header_part(self, segment: Segment) -> int:
        return min(self.elf.header_bytes, segment.file_size) if segment.offset == 0 else 0

    def segments(self) -> Iterator[Place]:
        """Without section headers: file bytes and the zero-filled rest of each segment."""
        for segment in self.loads:
            name, skip = f"segment {segment.index}", self.header_part(segment)
            if segment.file_size > skip:
                yield from self.stored_part(name, segment, skip, segment.file_size - skip)
            rest = segment.memory_size - segment.file_size
            if rest > 0:
                yield Place(
                    next(self._keys),
                    f"{name} (zero-filled)",
                    "segment",
                    "run",
                    segment.address + segment.file_size,
                    rest,
                )

    # -- what only symbols or options tell ------------------------------------------------------

    def value(self, name: str) -> int | None:
        """A symbol's value. Linkers give one constant as absolute or beside a section."""
        return next(
            (
                s.address
                for s in self.elf.symbols
                if s.name == name and (s.place == "ABS" or s.section is not None)
            ),
            None,
        )

    def image_place(self) -> Iterator[Place]:
        """The model image: where the link says, with the size of ``--image`` when given."""
        base, size = self.value(MODEL_BASE), self.value(MODEL_SIZE)
        given = None
        if self.image is not None:
            if not self.image.is_file():
                raise SizeError(
                    "is not a file",
                    file=self.image,
                    field="--image",
                    hint="give the packed model image",
                )
            given = self.image.stat().st_size
        if base is not None and size:
            if given not in (None, size):
                self.say(
                    "warning",
                    "image-size",
                    (
                        f"the ELF was linked for an image of {size:,} B, --image has {given:,} B: "
                        "counted with the latter"
                    ),
                    MODEL_SIZE,
                    given,
                    size,
                )
            yield Place(next(self._keys), "image", "image", "both", base, given or size)
        elif given:
            yield Place(next(self._keys), "image", "image", "loose", 0, given)

    def stack_place(self) -> Iterator[Place]:
        bottom, top = self.value(STACK_BOTTOM), self.value(STACK_TOP)
        if bottom is not None and top is not None and bottom < top:
            yield Place(next(self._keys), "stack", "stack", "run", bottom, top - bottom)

    def application_places(self) -> Iterator[Place]:
        """What the author of the rest of the program declared."""
        for region, size in self.application.items():
            if size:
                yield Place(next(self._keys), ROW, "application", "loose", 0, size, region=region)


def _holds_address(segment: Segment, section: Section) -> bool:
    start = section.address - segment.address
    return start >= 0 and start + section.size <= segment.memory_size


def _holds_bytes(segment: Segment, section: Section) -> bool:
    start = section.offset - segment.offset
    return start >= 0 and start + section.size <= segment.file_size
