# SPDX-License-Identifier: Apache-2.0
"""Read an ELF file into plain, immutable records.

First step of the ELF trail: ``elf -> memory_map -> symbols -> verdict``. Nothing here knows about
boards. Every count and offset of the file is checked against the bytes that are there before it is
used, so a damaged file is refused with :class:`~colibri.errors.SizeError`, never half-read.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from elftools.common.exceptions import ELFError
from elftools.common.utils import struct_parse
from elftools.construct import ConstructError
from elftools.elf.elffile import ELFFile

from colibri.errors import SizeError

SHF_WRITE, SHF_ALLOC, SHF_EXECINSTR, SHF_TLS = 0x1, 0x2, 0x4, 0x400
KINDS = {"ET_EXEC": "executable", "ET_DYN": "shared", "ET_REL": "relocatable"}
#: More loadable segments than any linker makes; a bound on the work a hostile file can cause.
MAX_LOADS = 256
#: Runs of zero bytes shorter than this are ordinary data.
ZERO_RUN = 1024
#: What pyelftools raises on damaged files; it does not promise only its own error.
_DAMAGED = (
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
#: Longer names are cut: a table without terminators must not make every name the whole file.
_NAME_LIMIT = 1024
_NONZERO = re.compile(rb"[^\x00]")

#: What a file that is no ELF probably is, by its first bytes.
_LOOKS_LIKE = (
    (b"!<arch>", "a static library; give one of its members or the linked firmware"),
    (b":", "Intel HEX text; give the ELF that it was made from"),
    (b"UF2\n", "a UF2 image; give the ELF that it was made from"),
    (b"MZ", "a Windows executable; give an ELF"),
    (b"\xcf\xfa\xed\xfe", "a Mach-O file; give an ELF"),
    (b"{", "JSON; stored results go to --baseline"),
)


@dataclass(frozen=True, slots=True)
class Section:
    """One section header; ``zeros`` counts zero bytes in long runs of writable file content."""

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


@dataclass(frozen=True, slots=True)
class Symbol:
    """One symbol; ``section`` is an index, or None with ``place`` UNDEF, ABS, COMMON or OTHER.

    ``thumb``: an Arm function of Thumb code, whose value has bit 0 set in the file.
    """

    name: str
    address: int
    size: int
    kind: str
    binding: str
    section: int | None
    place: str
    thumb: bool = False


@dataclass(frozen=True, slots=True)
class Elf:
    """An ELF file as the size tools see it; ``entry`` and ``flags`` are e_entry and e_flags."""

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

    @property
    def loads(self) -> tuple[Segment, ...]:
        return tuple(s for s in self.segments if s.kind == "LOAD" and s.memory_size > 0)

    @property
    def detail(self) -> str:
        """Finest level that the file can be reported at: symbols, sections or segments."""
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
            return _Reader(path, stream).read()
    except OSError as error:
        raise SizeError(f"cannot be read: {error.strerror}", file=path) from error


class _Reader:
    """Parses with pyelftools' structures, after bounding each table by the file's size."""

    def __init__(self, path: Path, stream: BinaryIO) -> None:
        self.path = path
        self.stream = stream
        self.size = path.stat().st_size
        self.check_magic()
        try:
            self.elf: Any = ELFFile(stream)
        except _DAMAGED as error:
            raise self.bad("ELF header", f"cannot be parsed ({type(error).__name__})") from error
        self.header: Any = self.elf.header
        self.bits: int = self.elf.elfclass
        self.order = "<" if self.elf.little_endian else ">"
        self.to_scan = self.size  # bytes that zero_bytes may still read; sections do not overlap

    def bad(self, field: str, what: str) -> SizeError:
        return SizeError(
            what,
            file=self.path,
            field=field,
            hint="the file is damaged or truncated, link or copy it again",
        )

    def check_magic(self) -> None:
        first = self.stream.read(16)
        if first[:4] == b"\x7fELF":
            return
        seen = f"it starts with {first[:8].hex(' ')}" if first else "it is empty"
        hint = "give the linked firmware with its ELF header (firmware.elf), not a .bin or an image"
        looks = next((f"looks like {t}" for m, t in _LOOKS_LIKE if first.startswith(m)), hint)
        raise SizeError(
            f"not an ELF file: {seen}, an ELF with 7f 45 4c 46", file=self.path, hint=looks
        )

    def read(self) -> Elf:
        kind = KINDS.get(self.header["e_type"])
        if kind is None:
            raise SizeError(
                f"{self.header['e_type']} has no size verdict",
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
        return Elf(
            path=self.path,
            file_size=self.size,
            bits=self.bits,
            endian="little" if self.elf.little_endian else "big",
            machine=str(self.header["e_machine"]).removeprefix("EM_"),
            kind=kind,
            header_bytes=self.header["e_phoff"] + len(segments) * self.header["e_phentsize"],
            sections=sections,
            segments=segments,
            symbols=symbols,
            stripped=not any(s.kind == "SYMTAB" for s in sections),
            entry=self.header["e_entry"],
            flags=self.header["e_flags"],
        )

    # -- tables ---------------------------------------------------------------------------------

    def table(self, field: str, offset: int, count: int, entry: int, layout: Any) -> Iterator[Any]:
        """Parse ``count`` records of ``entry`` bytes, all of which must lie in the file."""
        if entry != layout.sizeof():
            raise self.bad(field, f"entries are {entry} bytes, not {layout.sizeof()}")
        if offset + count * entry > self.size:
            raise self.bad(
                field, f"needs bytes {offset}..{offset + count * entry} of a {self.size} byte file"
            )
        for index in range(count):
            try:
                yield struct_parse(layout, self.stream, offset + index * entry)
            except _DAMAGED as error:
                raise self.bad(f"{field} entry {index}", f"cannot be parsed ({error})") from error

    def sections(self) -> tuple[Section, ...]:
        offset = self.header["e_shoff"]
        if offset == 0:
            return ()
        size, layout = self.header["e_shentsize"], self.elf.structs.Elf_Shdr
        first = next(self.table("section header 0", offset, 1, size, layout))
        count = self.header["e_shnum"] or first["sh_size"]  # extended numbering
        headers = list(self.table("section header table", offset, count, size, layout))
        names_at = self.header["e_shstrndx"]
        names_at = first["sh_link"] if names_at in (0xFFFF, "SHN_XINDEX") else names_at
        for index, header in enumerate(headers):
            self.check_section(index, header)
        names = self.strings(headers, names_at)
        return tuple(self.section(i, h, names) for i, h in enumerate(headers))

    def check_section(self, index: int, header: Any) -> None:
        where = f"section header {index}"
        if header["sh_type"] not in ("SHT_NOBITS", "SHT_NULL"):
            end = header["sh_offset"] + header["sh_size"]
            if end > self.size:
                raise self.bad(where, f"ends at byte {end} of a {self.size} byte file")
        if header["sh_flags"] & SHF_ALLOC and header["sh_type"] != "SHT_NULL":
            self.check_range(where, header["sh_addr"], header["sh_size"])

    def check_range(self, where: str, address: int, size: int) -> None:
        if address + size > 1 << self.bits:
            raise self.bad(where, f"ends at {address + size:#x}, beyond {self.bits}-bit addresses")

    def section(self, index: int, header: Any, names: bytes) -> Section:
        kind = str(header["sh_type"]).removeprefix("SHT_")
        flags = int(header["sh_flags"])
        wanted = SHF_ALLOC | SHF_WRITE
        counted = kind == "PROGBITS" and flags & wanted == wanted
        offset, size = header["sh_offset"], header["sh_size"]
        return Section(
            index=index,
            name=_name(names, header["sh_name"]) or (f"section {index}" if kind != "NULL" else ""),
            kind=kind,
            flags=flags,
            address=header["sh_addr"],
            offset=offset,
            size=size,
            align=max(1, header["sh_addralign"]),
            link=header["sh_link"],
            entry_size=header["sh_entsize"],
            info=header["sh_info"],
            zeros=self.zero_bytes(offset, size) if counted else 0,
        )

    def strings(self, headers: list[Any], index: int) -> bytes:
        if not isinstance(index, int) or not 0 < index < len(headers):
            return b""
        if headers[index]["sh_type"] in ("SHT_NOBITS", "SHT_NULL"):
            return b""
        return self.bytes_at(headers[index]["sh_offset"], headers[index]["sh_size"])

    def segments(self) -> Iterator[Segment]:
        count = self.header["e_phnum"]
        if count == 0xFFFF and self.header["e_shoff"]:  # PN_XNUM: the count is in section 0
            size, layout = self.header["e_shentsize"], self.elf.structs.Elf_Shdr
            first = next(self.table("section header 0", self.header["e_shoff"], 1, size, layout))
            count = first["sh_info"]
        if count == 0:
            return
        entry, layout, loads = self.header["e_phentsize"], self.elf.structs.Elf_Phdr, 0
        for index, header in enumerate(
            self.table("program header table", self.header["e_phoff"], count, entry, layout)
        ):
            kind = str(header["p_type"]).removeprefix("PT_")
            if kind == "LOAD":
                self.check_load(index, header)
                loads += 1
                if loads > MAX_LOADS:
                    raise self.bad("program header table", f"has over {MAX_LOADS} PT_LOAD entries")
            yield Segment(
                index=index,
                kind=kind,
                offset=header["p_offset"],
                address=header["p_vaddr"],
                load=header["p_paddr"],
                file_size=header["p_filesz"],
                memory_size=header["p_memsz"],
                flags=header["p_flags"],
            )

    def check_load(self, index: int, header: Any) -> None:
        where, size = f"program header {index}", header["p_filesz"]
        if size > header["p_memsz"]:
            raise self.bad(where, f"has p_filesz {size} above p_memsz {header['p_memsz']}")
        if header["p_offset"] + size > self.size:
            end = header["p_offset"] + size
            raise self.bad(where, f"ends at byte {end} of a {self.size} byte file")
        self.check_range(where, header["p_vaddr"], header["p_memsz"])
        self.check_range(where, header["p_paddr"], size)

    # -- symbols --------------------------------------------------------------------------------

    def symbols(
        self, table: Section, sections: tuple[Section, ...], tls_base: int | None
    ) -> Iterator[Symbol]:
        layout = self.elf.structs.Elf_Sym
        count = table.size // layout.sizeof()
        if not 0 < table.link < len(sections) or not sections[table.link].in_file:
            raise self.bad(f"section {table.name}", f"names no string table (sh_link {table.link})")
        strings = sections[table.link]
        names = self.bytes_at(strings.offset, strings.size)
        extended = self.extended_indices(table, sections)
        where = f"section {table.name}"
        for index, entry in enumerate(
            self.table(where, table.offset, count, table.entry_size, layout)
        ):
            wide = extended[index] if index < len(extended) else 0
            section, place = _home(entry["st_shndx"], wide, len(sections))
            kind = str(entry["st_info"]["type"]).removeprefix("STT_")
            address = int(entry["st_value"])
            thumb = kind == "FUNC" and self.header["e_machine"] == "EM_ARM" and address & 1 == 1
            address -= thumb  # the Thumb bit; data may really live at odd addresses
            if kind == "TLS" and self.header["e_type"] != "ET_REL":
                if tls_base is None:
                    continue
                address += tls_base
            yield Symbol(
                name=_name(names, entry["st_name"]),
                address=address,
                size=entry["st_size"],
                kind=kind,
                binding=str(entry["st_info"]["bind"]).removeprefix("STB_"),
                section=section,
                place=place,
                thumb=thumb,
            )

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
    text = table[offset : offset + _NAME_LIMIT]
    return text.split(b"\x00", 1)[0].decode("utf-8", "replace")


def _home(index: int | str, wide: int, count: int) -> tuple[int | None, str]:
    if index in ("SHN_XINDEX", 0xFFFF):  # the number did not fit 16 bits
        return (wide, "") if 0 < wide < count else (None, "OTHER")
    if isinstance(index, int):
        return (index, "") if 0 < index < min(count, 0xFF00) else (None, "OTHER")
    place = index.removeprefix("SHN_")
    return None, place if place in ("UNDEF", "ABS", "COMMON") else "OTHER"
