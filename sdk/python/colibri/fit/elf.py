# SPDX-License-Identifier: Apache-2.0
"""Read an ELF file into plain, immutable records.

The records are what every other input becomes too (:mod:`colibri.fit.inputs`). Nothing here knows
about boards. Every count and offset of the file is checked against the bytes that are there before
it is used, so a damaged file is refused with :class:`~colibri.errors.SizeError`, never half-read.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from elftools.common.exceptions import ELFError
from elftools.construct import ConstructError

from colibri.errors import SizeError
from colibri.fit.elf_tables import (
    SYMBOL_INFO,
    ProgramHeader,
    SectionHeader,
    file_header,
    file_size,
    header_size,
    program_headers,
    section_headers,
    segment_size,
    symbol_entries,
    symbol_size,
)
from colibri.fit.findings import Finding

if TYPE_CHECKING:
    from colibri.fit.link_map import LinkMap

SHF_WRITE, SHF_ALLOC, SHF_EXECINSTR, SHF_TLS = 0x1, 0x2, 0x4, 0x400
#: Formats that hold bytes at addresses and nothing else.
IMAGE_FORMATS = frozenset({"intel-hex", "srec", "raw"})
KINDS = {"ET_EXEC": "executable", "ET_DYN": "shared", "ET_REL": "relocatable"}
#: More loadable segments than any linker makes; a bound on the work a hostile file can cause.
MAX_LOADS = 256
#: Runs of zero bytes shorter than this are ordinary data.
ZERO_RUN = 1024
#: What pyelftools raises on damaged files; it does not promise only its own error.
DAMAGED = (
    ELFError,
    ConstructError,
    ValueError,
    LookupError,
    ArithmeticError,
    TypeError,
    AttributeError,
    AssertionError,
    RuntimeError,
)
_CHUNK = 1 << 20
_CLASSES, _ORDERS = {1: 32, 2: 64}, {1: "<", 2: ">"}
GRP_COMDAT = 1
_PLACES = {0: "UNDEF", 0xFFF1: "ABS", 0xFFF2: "COMMON"}
#: Longer names are cut: a table without terminators must not make every name the whole file.
_NAME_LIMIT = 1024
_NONZERO = re.compile(rb"[^\x00]")

#: What a file that is no ELF probably is, by its first bytes.
_LOOKS_LIKE = (
    (b"UF2\n", "a UF2 image; give the ELF or the Intel HEX that it was made from"),
    (b"BC\xc0\xde", "LLVM bitcode; give the linked firmware"),
    (b"MZ", "a Windows executable; give an ELF"),
    (b"\xcf\xfa\xed\xfe", "a Mach-O file; give an ELF"),
    (b"{", "JSON; stored results go to --baseline"),
)


@dataclass(frozen=True, slots=True)
class Section:
    """One section header.

    ``zeros`` counts zero bytes in long runs of writable file content; ``group`` is the signature
    of its COMDAT group, ``member`` the object file of an archive that it comes from.
    """

    index: int
    name: str
    kind: str
    flags: int
    address: int
    offset: int
    size: int
    align: int
    link: int = 0
    entry_size: int = 0
    info: int = 0
    zeros: int = 0
    group: str = ""
    member: str = ""

    @property
    def allocated(self) -> bool:
        return bool(self.flags & SHF_ALLOC) and self.kind != "NULL"

    @property
    def writable(self) -> bool:
        return bool(self.flags & SHF_WRITE)

    @property
    def executable(self) -> bool:
        return bool(self.flags & SHF_EXECINSTR)

    @property
    def in_file(self) -> bool:
        """Whether the section has bytes in the file (everything but NOBITS)."""
        return self.kind not in ("NOBITS", "NULL")

    @property
    def takes_memory(self) -> bool:
        """Whether the section occupies addresses: ``.tbss`` has one but occupies nothing."""
        return self.allocated and self.size > 0 and (self.in_file or not self.flags & SHF_TLS)


@dataclass(frozen=True, slots=True)
class Segment:
    """One program header; ``load`` is ``p_paddr``."""

    index: int
    kind: str
    offset: int
    address: int
    load: int
    file_size: int
    memory_size: int
    flags: int


class Symbol(NamedTuple):
    """One symbol; ``section`` is an index, or None with ``place`` UNDEF, ABS, COMMON or OTHER.

    ``file`` is the source file that the table names before a local symbol. ``thumb``: an Arm
    function of Thumb code, whose value has bit 0 set in the file. ``member`` is the object of a
    symbol without a section, where there are several.
    """

    name: str
    address: int
    size: int
    kind: str
    binding: str
    section: int | None
    place: str
    thumb: bool = False
    file: str = ""
    member: str = ""


@dataclass(frozen=True, slots=True)
class MemoryRange:
    """One line of a linker script's ``MEMORY``, as its map file repeats it."""

    name: str
    origin: int
    length: int
    attributes: str = ""


@dataclass(frozen=True, slots=True)
class Elf:
    """An ELF file, or another input in its terms, as the size tools see it.

    ``entry`` and ``flags`` are e_entry and e_flags. ``format`` says what was read: elf, archive,
    objects, intel-hex, srec, raw or map. ``memory`` are the linker's own regions when a
    ``link_map`` tells them, ``notes`` what reading had to say.
    """

    path: Path
    file_size: int
    bits: int
    endian: str
    machine: str
    kind: str
    header_bytes: int
    sections: tuple[Section, ...]
    segments: tuple[Segment, ...]
    symbols: tuple[Symbol, ...]
    stripped: bool
    entry: int = 0
    flags: int = 0
    format: str = "elf"
    memory: tuple[MemoryRange, ...] = ()
    notes: tuple[Finding, ...] = ()
    link_map: LinkMap | None = None

    @property
    def loads(self) -> tuple[Segment, ...]:
        return tuple(s for s in self.segments if s.kind == "LOAD" and s.memory_size > 0)

    @property
    def detail(self) -> str:
        """Finest level of a report: symbols, sections, segments; areas of images; map parts."""
        if self.format in IMAGE_FORMATS:
            return "areas"
        if self.format == "map":
            return "parts"
        if not self.sections:
            return "segments"
        return "sections" if self.stripped else "symbols"


def read_elf(path: str | Path) -> Elf:
    """Read and check an ELF file.

    Raises
    ------
    SizeError
        The file cannot be read, is no ELF, is truncated or contradicts itself.
    """
    path = Path(path)
    if not path.is_file():
        what = "is not a regular file" if path.exists() else "does not exist"
        raise SizeError(what, file=path, hint="give the path of a linked firmware ELF")
    try:
        with path.open("rb") as stream:
            return _Reader(path, stream, path.stat().st_size).read()
    except OSError as error:
        raise SizeError(f"cannot be read: {error.strerror}", file=path) from error


def read_elf_bytes(data: bytes, name: Path) -> Elf:
    """Read an ELF that lies in memory, as a member of an archive; ``name`` is for messages."""
    return _Reader(name, BytesIO(data), len(data)).read()


class _Reader:
    """Reads tables, after bounding each by the file's size."""

    def __init__(self, path: Path, stream: BinaryIO, size: int) -> None:
        self.path = path
        self.stream = stream
        self.size = size
        ident = self.check_magic()
        if len(ident) < 16 or ident[4] not in _CLASSES or ident[5] not in _ORDERS:
            raise self.bad("ELF header", f"has class and byte order {ident[4:6].hex(' ')}")
        self.bits, self.order = _CLASSES[ident[4]], _ORDERS[ident[5]]
        length = file_size(self.bits)
        data = stream.read(length)
        if len(data) < length:
            raise self.bad("ELF header", f"needs {16 + length} bytes of a {size} byte file")
        self.header = file_header(data, self.order, self.bits)
        self.to_scan = self.size  # bytes that zero_bytes may still read; sections do not overlap

    def bad(self, field: str, what: str) -> SizeError:
        return SizeError(
            what,
            file=self.path,
            field=field,
            hint="the file is damaged or truncated, link or copy it again",
        )

    def check_magic(self) -> bytes:
        """The first 16 bytes, ``e_ident``."""
        first = self.stream.read(16)
        if first[:4] == b"\x7fELF":
            return first
        seen = f"it starts with {first[:8].hex(' ')}" if first else "it is empty"
        hint = "give the linked firmware with its ELF header (firmware.elf), not a .bin or an image"
        looks = next((f"looks like {t}" for m, t in _LOOKS_LIKE if first.startswith(m)), hint)
        raise SizeError(
            f"not an ELF file: {seen}, an ELF with 7f 45 4c 46", file=self.path, hint=looks
        )

    def read(self) -> Elf:
        kind = KINDS.get(self.header.kind)
        if kind is None:
            raise SizeError(
                f"{self.header.kind} has no size verdict",
                file=self.path,
                field="e_type",
                hint="give an executable, a shared or a relocatable object",
            )
        sections = self.sections()
        segments = tuple(self.segments())
        tables = [s for s in sections if s.kind == "SYMTAB"]
        tables = tables or [s for s in sections if s.kind == "DYNSYM"]
        tls_base = next((s.address for s in segments if s.kind == "TLS"), None)
        symbols = tuple(self.symbols(tables[0], sections, tls_base)) if tables else ()
        if kind == "relocatable":
            sections = self.grouped(sections, symbols)
        return Elf(
            path=self.path,
            file_size=self.size,
            bits=self.bits,
            endian="little" if self.order == "<" else "big",
            machine=self.header.machine,
            kind=kind,
            header_bytes=self.header.segments_at + len(segments) * self.header.segment_size,
            sections=sections,
            segments=segments,
            symbols=symbols,
            stripped=not any(s.kind == "SYMTAB" for s in sections),
            entry=self.header.entry,
            flags=self.header.flags,
        )

    # -- tables ---------------------------------------------------------------------------------

    def block(self, field: str, offset: int, count: int, entry: int, right: int) -> bytes:
        """The bytes of a whole table, after checking its entry size and that it is there."""
        if entry != right:
            raise self.bad(field, f"entries are {entry} bytes, not {right}")
        end = offset + count * entry
        if end > self.size:
            raise self.bad(field, f"needs bytes {offset}..{end} of a {self.size} byte file")
        return self.bytes_at(offset, end - offset)

    def headers(self, field: str, count: int) -> list[SectionHeader]:
        offset, entry = self.header.sections_at, self.header.section_size
        data = self.block(field, offset, count, entry, header_size(self.bits))
        return list(section_headers(data, self.order, self.bits))

    def sections(self) -> tuple[Section, ...]:
        if self.header.sections_at == 0:
            return ()
        (first,) = self.headers("section header 0", 1)
        count = self.header.section_count or first.size  # extended numbering
        headers = self.headers("section header table", count)
        names_at = first.link if self.header.names == 0xFFFF else self.header.names
        for index, header in enumerate(headers):
            self.check_section(index, header)
        names = self.strings(headers, names_at)
        return tuple(self.section(i, h, names) for i, h in enumerate(headers))

    def check_section(self, index: int, header: SectionHeader) -> None:
        where = f"section header {index}"
        if header.kind not in ("NOBITS", "NULL"):
            end = header.offset + header.size
            if end > self.size:
                raise self.bad(where, f"ends at byte {end} of a {self.size} byte file")
        if header.flags & SHF_ALLOC and header.kind != "NULL":
            self.check_range(where, header.address, header.size)

    def check_range(self, where: str, address: int, size: int) -> None:
        if address + size > 1 << self.bits:
            raise self.bad(where, f"ends at {address + size:#x}, beyond {self.bits}-bit addresses")

    def section(self, index: int, header: SectionHeader, names: bytes) -> Section:
        wanted = SHF_ALLOC | SHF_WRITE
        counted = header.kind == "PROGBITS" and header.flags & wanted == wanted
        name = _name(names, header.name)
        return Section(
            index=index,
            name=name or (f"section {index}" if header.kind != "NULL" else ""),
            kind=header.kind,
            flags=header.flags,
            address=header.address,
            offset=header.offset,
            size=header.size,
            align=max(1, header.align),
            link=header.link,
            entry_size=header.entry_size,
            info=header.info,
            zeros=self.zero_bytes(header.offset, header.size) if counted else 0,
        )

    def strings(self, headers: list[SectionHeader], index: int) -> bytes:
        if not 0 < index < len(headers):
            return b""
        if headers[index].kind in ("NOBITS", "NULL"):
            return b""
        return self.bytes_at(headers[index].offset, headers[index].size)

    def grouped(
        self, sections: tuple[Section, ...], symbols: tuple[Symbol, ...]
    ) -> tuple[Section, ...]:
        """Mark the sections of COMDAT groups, of which a link keeps one, with their signature."""
        marks = {
            s.index: s.name for s in sections if s.name.startswith(".gnu.linkonce.") and s.allocated
        }
        for table in sections:
            if table.kind != "GROUP" or table.size < 4:
                continue
            data = self.bytes_at(table.offset, table.size & ~3)
            flags, *members = struct.unpack(f"{self.order}{len(data) // 4}I", data)
            if not flags & GRP_COMDAT:
                continue
            named = table.info < len(symbols) and symbols[table.info].name
            marks |= dict.fromkeys(members, named or table.name)
        return tuple(replace(s, group=marks[s.index]) if s.index in marks else s for s in sections)

    def segments(self) -> Iterator[Segment]:
        count = self.header.segment_count
        if count == 0xFFFF and self.header.sections_at:  # PN_XNUM: the count is in section 0
            (first,) = self.headers("section header 0", 1)
            count = first.info
        if count == 0:
            return
        at, entry = self.header.segments_at, self.header.segment_size
        data = self.block("program header table", at, count, entry, segment_size(self.bits))
        loads = 0
        for index, header in enumerate(program_headers(data, self.order, self.bits)):
            if header.kind == "LOAD":
                self.check_load(index, header)
                loads += 1
                if loads > MAX_LOADS:
                    raise self.bad("program header table", f"has over {MAX_LOADS} PT_LOAD entries")
            yield Segment(
                index=index,
                kind=header.kind,
                offset=header.offset,
                address=header.address,
                load=header.load,
                file_size=header.file_size,
                memory_size=header.memory_size,
                flags=header.flags,
            )

    def check_load(self, index: int, header: ProgramHeader) -> None:
        where, size = f"program header {index}", header.file_size
        if size > header.memory_size:
            raise self.bad(where, f"has p_filesz {size} above p_memsz {header.memory_size}")
        end = header.offset + size
        if end > self.size:
            raise self.bad(where, f"ends at byte {end} of a {self.size} byte file")
        self.check_range(where, header.address, header.memory_size)
        self.check_range(where, header.load, size)

    # -- symbols --------------------------------------------------------------------------------

    def symbols(
        self, table: Section, sections: tuple[Section, ...], tls_base: int | None
    ) -> Iterator[Symbol]:
        entry = symbol_size(self.bits)
        if not 0 < table.link < len(sections) or not sections[table.link].in_file:
            raise self.bad(f"section {table.name}", f"names no string table (sh_link {table.link})")
        strings = sections[table.link]
        names = self.bytes_at(strings.offset, strings.size)
        extended = self.extended_indices(table, sections)
        where, count = f"section {table.name}", table.size // entry
        data = self.block(where, table.offset, count, table.entry_size, entry)
        file, arm = "", self.header.machine == "ARM"
        linked = self.header.kind != "ET_REL"
        most = min(len(sections), 0xFF00)
        for index, (at, value, size, info, home) in enumerate(
            symbol_entries(data, self.order, self.bits)
        ):
            kind, binding = SYMBOL_INFO[info]
            section: int | None = home
            place, thumb = "", False
            if not 0 < home < most:
                wide = extended[index] if index < len(extended) else 0
                section, place = _home(home, wide, len(sections))
            name = _name(names, at)
            if kind == "FUNC" and arm:
                value, thumb = value & ~1, value & 1 == 1  # data may really live at odd addresses
            elif kind == "TLS" and linked and tls_base is None:
                section, place = None, "OTHER"  # an offset into a template that is not there
            elif kind == "TLS" and linked:
                value += tls_base or 0  # an offset into the template
            elif kind == "FILE":
                file = name
            local = file if binding == "LOCAL" else ""
            yield Symbol(name, value, size, kind, binding, section, place, thumb, local)

    def extended_indices(self, table: Section, sections: tuple[Section, ...]) -> tuple[int, ...]:
        """Section numbers above 0xfeff live in a table of their own beside the symbols."""
        for section in sections:
            if section.kind == "SYMTAB_SHNDX" and section.link == table.index:
                data = self.bytes_at(section.offset, section.size & ~3)
                return struct.unpack(f"{self.order}{len(data) // 4}I", data)
        return ()

    # -- bytes ----------------------------------------------------------------------------------

    def bytes_at(self, offset: int, size: int) -> bytes:
        self.stream.seek(offset)
        return self.stream.read(size)

    def zero_bytes(self, offset: int, size: int) -> int:
        """Count zero bytes that come in runs of :data:`ZERO_RUN` or more."""
        total = 0
        size = min(size, self.to_scan)
        self.to_scan -= size
        for start in range(0, size, _CHUNK):
            data = self.bytes_at(offset + start, min(_CHUNK, size - start))
            at = data.find(bytes(ZERO_RUN))
            while at >= 0:
                stop = _NONZERO.search(data, at)
                end = stop.start() if stop else len(data)
                total += end - at
                at = data.find(bytes(ZERO_RUN), end)
        return total


def _name(table: bytes, offset: int) -> str:
    if not 0 <= offset < len(table):
        return ""
    end = table.find(b"\x00", offset, offset + _NAME_LIMIT)
    return table[offset : end if end >= 0 else offset + _NAME_LIMIT].decode("utf-8", "replace")


def _home(index: int, wide: int, count: int) -> tuple[int | None, str]:
    """The section of a symbol whose number is not simply one, and what it is instead."""
    if index == 0xFFFF:  # the number did not fit 16 bits
        return (wide, "") if 0 < wide < count else (None, "OTHER")
    return None, _PLACES.get(index, "OTHER")
