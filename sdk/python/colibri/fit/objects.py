# SPDX-License-Identifier: Apache-2.0
"""Objects and archives as one relocatable :class:`~colibri.fit.elf.Elf`.

Their sum is an upper bound of what they add to a firmware: a linker drops what nothing needs,
keeps one of each COMDAT group and merges strings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from colibri.errors import SizeError
from colibri.fit.archive import MAGIC, THIN_MAGIC, read_members
from colibri.fit.elf import Elf, Section, Symbol, read_elf, read_elf_bytes
from colibri.fit.findings import Finding

_BITCODE = (b"BC\xc0\xde", b"\xde\xc0\x17\x0b")
#: The symbol of an object that holds nothing but gcc's intermediate code.
SLIM = "__gnu_lto_slim"


def read_objects(paths: Sequence[Path]) -> Elf:
    """Add up object files and archives.

    Raises
    ------
    SizeError
        One of them is damaged, linked, or for another machine than the first.
    """
    joined = _Joined(paths)
    for path in paths:
        joined.add_file(path)
    return joined.result()


def is_archive(first: bytes) -> bool:
    return first.startswith((MAGIC, THIN_MAGIC))


class _Joined:
    """Collects sections and symbols; indices of later objects are moved up."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths
        self.sections = [Section(0, "", "NULL", 0, 0, 0, 0, 1)]
        self.symbols: list[Symbol] = []
        self.objects: list[Elf] = []
        self.kept: dict[str, int] = {}  # COMDAT signature -> number of the object that has it
        self.dropped: Counter[str] = Counter()
        self.dropped_bytes = 0
        self.unsized: list[str] = []
        self.other: list[str] = []

    def add_file(self, path: Path) -> None:
        with path.open("rb") as stream:
            first = stream.read(8)
        if not is_archive(first):
            self.add(read_elf(path), path.name)
            return
        for member in read_members(path):
            name = f"{path.name}({member.name})"
            if member.data.startswith(b"\x7fELF"):
                self.add(read_elf_bytes(member.data, Path(f"{path}({member.name})")), name)
            elif member.data.startswith(_BITCODE):
                self.unsized.append(name)
            else:
                self.other.append(name)

    def add(self, elf: Elf, name: str) -> None:
        if elf.kind != "relocatable":
            raise SizeError(
                f"is {elf.kind}, the others are objects",
                file=elf.path,
                hint="give one linked file alone, or objects and archives only",
            )
        if self.objects and _target(elf) != _target(self.objects[0]):
            raise SizeError(
                f"is for {_target(elf)}, {self.objects[0].path} for {_target(self.objects[0])}",
                file=elf.path,
                hint="give objects of one machine",
            )
        if any(s.name == SLIM for s in elf.symbols):
            self.unsized.append(name)
        moved = dict(self.place(elf, name, len(self.objects)))
        self.symbols += (
            s._replace(member=name) if s.section is None else s._replace(section=moved[s.section])
            for s in elf.symbols
            if s.section is None or s.section in moved
        )
        self.objects.append(elf)

    def place(self, elf: Elf, name: str, number: int) -> Iterator[tuple[int, int]]:
        """Take over the sections that a link would keep; yield old and new index."""
        for section in elf.sections:
            if not section.allocated:
                continue
            if section.group and self.kept.setdefault(section.group, number) != number:
                self.dropped[section.group] += 1
                self.dropped_bytes += section.size
                continue
            yield section.index, len(self.sections)
            self.sections.append(replace(section, index=len(self.sections), member=name))

    def result(self) -> Elf:
        if not self.objects:
            raise SizeError(
                "holds no ELF object", file=self.paths[0], hint="give a library of ELF objects"
            )
        first = self.objects[0]
        return Elf(
            path=self.paths[0],
            file_size=sum(path.stat().st_size for path in self.paths),
            bits=first.bits,
            endian=first.endian,
            machine=first.machine,
            kind="relocatable",
            header_bytes=0,
            sections=tuple(self.sections),
            segments=(),
            symbols=tuple(self.symbols),
            stripped=all(elf.stripped for elf in self.objects),
            format="archive" if len(self.paths) == 1 else "objects",
            notes=tuple(self.notes()),
        )

    def notes(self) -> Iterator[Finding]:
        if len(self.objects) > 1:
            yield Finding(
                "note",
                "upper-bound",
                f"sum of {len(self.objects):,} objects: an upper bound, a link drops what nothing "
                "needs",
                self.paths[0].name,
                len(self.objects),
            )
        if self.dropped:
            yield Finding(
                "note",
                "comdat",
                f"{len(self.dropped):,} COMDAT groups are in several objects: each counted once, "
                f"{self.dropped_bytes:,} B left out",
                next(iter(self.dropped)),
                self.dropped_bytes,
            )
        if self.unsized:
            yield Finding(
                "warning",
                "lto-objects",
                f"{len(self.unsized):,} objects hold no machine code, only a compiler's "
                "intermediate code: their size is known after the link",
                _few(self.unsized),
                len(self.unsized),
            )
        if self.other:
            yield Finding(
                "warning",
                "not-elf",
                f"{len(self.other):,} members are not ELF: not counted",
                _few(self.other),
                len(self.other),
            )


def member_and_library(name: str) -> tuple[str, str]:
    """``lib.a(member.o)`` as member and library; ``main.o`` has none."""
    library, bracket, member = name.rstrip(")").partition("(")
    return (member, library) if bracket else (name, "")


def _target(elf: Elf) -> str:
    return f"{elf.machine}, {elf.bits} bits, {elf.endian} endian"


def _few(names: Iterable[str], most: int = 3) -> str:
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if names[most:] else "")
