# SPDX-License-Identifier: Apache-2.0
"""Which source file code and variables come from, by DWARF when there is any.

No verdict depends on it.
Compilation units say which addresses are theirs. After link-time optimisation by GCC they do not:
one unit holds everything, and the line table tells the source of each instruction, inlined ones
included. What cannot be parsed ends in a warning, never in an error.
"""

from __future__ import annotations

import posixpath
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import SEEK_CUR, BytesIO
from pathlib import Path
from typing import Any

from elftools.common.exceptions import DWARFError, ELFError
from elftools.common.utils import struct_parse
from elftools.dwarf.abbrevtable import AbbrevDecl, AbbrevTable
from elftools.dwarf.descriptions import describe_form_class
from elftools.dwarf.dwarfinfo import DebugSectionDescriptor, DwarfConfig, DWARFInfo
from elftools.dwarf.ranges import BaseAddressEntry

from colibri.fit.debug_variables import Found, VariableFinder
from colibri.fit.elf import DAMAGED, Elf, Section
from colibri.fit.findings import Finding
from colibri.fit.leb128 import uleb

_SECTIONS = {
    "debug_info_sec": ".debug_info",
    "debug_abbrev_sec": ".debug_abbrev",
    "debug_str_sec": ".debug_str",
    "debug_line_str_sec": ".debug_line_str",
    "debug_ranges_sec": ".debug_ranges",
    "debug_rnglists_sec": ".debug_rnglists",
    "debug_addr_sec": ".debug_addr",
    "debug_str_offsets_sec": ".debug_str_offsets",
    "debug_line_sec": ".debug_line",
}
#: Read in small steps whose number is bounded otherwise (MAX_RANGES, MAX_LINE_BYTES).
_BOUNDED = (".debug_ranges", ".debug_rnglists", ".debug_line")
_OTHERS = (
    "debug_aranges_sec",
    "debug_frame_sec",
    "eh_frame_sec",
    "debug_loc_sec",
    "debug_pubtypes_sec",
    "debug_pubnames_sec",
    "debug_loclists_sec",
    "debug_sup_sec",
    "gnu_debugaltlink_sec",
    "debug_types_sec",
)
_COMPRESSED, _IMPLICIT_CONST = 0x800, 0x21
_BAD = (*DAMAGED, DWARFError)
#: Bounds on what a hostile file can cost. Line tables are read one opcode at a time.
MAX_UNITS, MAX_RANGES, MAX_LINE_BYTES = 100_000, 4_000_000, 1 << 20
#: Entries and attributes that are looked at for variables: about a second.
MAX_STEPS = 1_500_000
_WHOLE_PROGRAM = "<artificial>"  # the unit that GCC makes of all others


@dataclass(slots=True)
class Sources:
    """Source files by address. ``lto``: units are the linker's, lines tell the sources.

    ``variables``: the source of each variable by its address.
    """

    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    variables: dict[int, str] = field(default_factory=dict)
    lto: bool = False
    findings: list[Finding] = field(default_factory=list)

    def split(self, address: int, size: int) -> Iterator[tuple[str, int, int]]:
        """Cut a range into (file, start, size); the file is empty where none is known."""
        end, index = address + size, max(0, bisect_right(self.starts, address) - 1)
        while address < end:
            while index < len(self.starts) and self.ends[index] <= address:
                index += 1
            if index == len(self.starts) or self.starts[index] >= end:
                yield "", address, end - address
                return
            if self.starts[index] > address:
                yield "", address, self.starts[index] - address
                address = self.starts[index]
            stop = min(end, self.ends[index])
            yield self.files[index], address, stop - address
            address = stop


def read_sources(elf: Elf) -> Sources:
    """The source of every address that debug information tells; empty without any."""
    sections = {s.name: s for s in elf.sections if not s.allocated and s.in_file and s.size}
    if elf.format != "elf" or elf.kind == "relocatable" or ".debug_info" not in sections:
        return Sources()
    packed = [
        s for s in sections.values() if s.name in _SECTIONS.values() and s.flags & _COMPRESSED
    ]
    if packed:
        what = f"{packed[0].name} is compressed: sources are not told; objcopy "
        return Sources(findings=[_warning(elf, f"{what}--decompress-debug-sections helps")])
    try:
        return _Reader(elf, _open(elf, sections)).read()
    except (*_BAD, OSError, MemoryError, RecursionError) as error:
        return Sources(findings=[_warning(elf, f"cannot be parsed ({_short(error)})")])


def _open(elf: Elf, sections: dict[str, Section]) -> Any:
    """pyelftools' view of the sections that are needed, and of no others."""
    found: dict[str, Any] = dict.fromkeys(_OTHERS)
    with Path(elf.path).open("rb") as stream:
        for key, name in _SECTIONS.items():
            section = sections.get(name)
            if section is None:
                found[key] = None
                continue
            stream.seek(section.offset)
            data = stream.read(section.size)
            kept = BytesIO(data) if name in _BOUNDED else _Metered(data)
            found[key] = DebugSectionDescriptor(kept, name, section.offset, section.size, 0)
    return _Dwarf(DwarfConfig(elf.endian == "little", "", elf.bits // 8), **found)


class _Metered(BytesIO):
    """A section that may be read a few times over, not once for each of a million entries.

    Strings without an end, blocks as long as the file and lists that many units share would
    otherwise make the work of a small hostile file endless.
    """

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.data = data
        self.left = 8 * len(data) + (1 << 20)

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.spend(len(data) + 1)
        return data

    def spend(self, size: int) -> None:
        """Take note of bytes that were read."""
        self.left -= size
        if self.left < 0:
            raise ELFError("a section is read over and over")


class _Abbreviations(AbbrevTable):
    """The one declaration of a unit that is needed; those before it are passed over."""

    __slots__ = ()
    stream: _Metered

    def _parse_abbrev_table(self) -> dict[int, AbbrevDecl]:
        return {}

    def get_abbrev(self, code: int) -> AbbrevDecl:
        data, at = self.stream.data, self.offset
        while code not in self._abbrev_map:
            begin = at
            number, at = uleb(data, at)
            if number == 0:
                break
            if number == code:
                self.stream.seek(at)
                declared = struct_parse(self.structs.Dwarf_abbrev_declaration, self.stream)
                self._abbrev_map[code] = AbbrevDecl(code, declared)
            at = pass_declaration(data, at)
            self.stream.spend(at - begin)
        return self._abbrev_map[code]


def pass_declaration(data: bytes, at: int) -> int:
    """Where a declaration ends, of which only the code was read: tag, children, attributes."""
    _, at = uleb(data, at)
    at += 1
    attribute = form = 1
    while attribute or form:
        attribute, at = uleb(data, at)
        form, at = uleb(data, at)
        if form == _IMPLICIT_CONST:  # its value stands here
            _, at = uleb(data, at)
    return at


class _Dwarf(DWARFInfo):
    def get_abbrev_table(self, offset: int) -> AbbrevTable:
        if offset not in self._abbrevtable_cache:
            assert self.debug_abbrev_sec is not None
            stream = self.debug_abbrev_sec.stream
            self._abbrevtable_cache[offset] = _Abbreviations(self.structs, stream, offset)
        return self._abbrevtable_cache[offset]


class _Reader:
    def __init__(self, elf: Elf, dwarf: Any) -> None:
        self.elf, self.dwarf = elf, dwarf
        self.result = Sources()
        self.ranges: list[tuple[int, int, str]] = []
        self.lists = dwarf.range_lists()
        self.backwards = self.damaged = self.entries = self.table_bytes = 0
        self.begins: list[int] = []  # units, and the source of each
        self.sources: list[str] = []
        self.origins: dict[int, int] = {}  # variables of which only another unit tells the source
        self.tables: dict[int, dict[int, str]] = {}
        self.finder = VariableFinder(
            dwarf.debug_info_sec.stream.getvalue(),
            dwarf.debug_abbrev_sec.stream,
            dwarf.debug_addr_sec.stream.getvalue() if dwarf.debug_addr_sec else b"",
            elf.endian == "little",
            MAX_STEPS,
        )

    def read(self) -> Sources:
        whole: list[Any] = []
        try:
            self.units(whole)
        except _BAD as error:  # a header: where the next unit begins is not known
            self.say(f"cannot be parsed from a unit on ({_short(error)})")
        if whole:
            self.lines(whole)
        for address, at in self.origins.items():
            index = bisect_right(self.begins, at) - 1
            if index >= 0 and self.sources[index]:
                self.result.variables.setdefault(address, self.sources[index])
        if self.finder.left <= 0:
            self.say("is large: sources of variables are told by the first part of it")
        if self.damaged:
            self.say(f"{self.damaged:,} units cannot be parsed: their sources are not told")
        if self.backwards:
            self.say(f"{self.backwards:,} ranges end before they begin: not used")
        return self.finished()

    def say(self, what: str) -> None:
        self.result.findings.append(_warning(self.elf, what))

    def units(self, whole: list[Any]) -> None:
        for number, unit in enumerate(self.dwarf.iter_CUs()):
            if number >= MAX_UNITS or self.entries > MAX_RANGES:
                self.say(f"has more than {MAX_UNITS:,} units or {MAX_RANGES:,} ranges: cut there")
                return
            try:
                self.unit(unit, whole)
            except _BAD:
                self.damaged += 1

    def unit(self, unit: Any, whole: list[Any]) -> None:
        top = unit.get_top_DIE()
        name, folder = _text(top, "DW_AT_name"), _text(top, "DW_AT_comp_dir")
        file = posixpath.normpath(posixpath.join(folder, name)) if name else ""
        if name == _WHOLE_PROGRAM:
            whole.append(unit)
            file = ""
        else:
            for start, end in self.unit_ranges(unit, top):
                self.add(start, end, file)
        self.begins.append(unit.cu_offset)
        self.sources.append(file)
        self.variables(unit, top, file)

    def variables(self, unit: Any, top: Any, file: str) -> None:
        """Where the unit's variables come from: the file that declares them, or the unit's."""
        if self.finder.left <= 0:
            return
        names = ("DW_AT_addr_base", "DW_AT_GNU_addr_base")
        base = next((top.attributes[n].value for n in names if n in top.attributes), 0)
        for found in self.finder.unit(unit, base):
            source = self.declared_in(unit, top, found, file)
            if source:
                self.result.variables[found.address] = source
            elif found.origin >= 0:
                self.origins[found.address] = found.origin

    def declared_in(self, unit: Any, top: Any, found: Found, file: str) -> str:
        """The file that an entry says; file 0 is the unit's own, or none."""
        line = top.attributes.get("DW_AT_stmt_list")
        if not found.file or line is None:
            return file
        if line.value not in self.tables:
            self.tables[line.value] = {}  # a damaged one is read once
            self.tables[line.value] = self.file_table(unit, top, line.value)
        return self.tables[line.value].get(found.file, file)

    def file_table(self, unit: Any, top: Any, offset: int) -> dict[int, str]:
        """The files of a line table's header, of which all together have to fit the section."""
        stream = self.dwarf.debug_line_sec.stream
        check_line_header(stream, offset, unit.structs)
        program = self.dwarf.line_program_for_CU(unit)
        self.table_bytes += stream.tell() - offset
        if self.table_bytes > 2 * self.dwarf.debug_line_sec.size:
            raise ELFError("line tables overlap")
        return _files(program, _text(top, "DW_AT_comp_dir")) if program is not None else {}

    def add(self, start: int, end: int, file: str) -> None:
        if end < start:
            self.backwards += 1
        elif end > start and file:
            self.ranges.append((start, end, file))

    def unit_ranges(self, unit: Any, top: Any) -> Iterator[tuple[int, int]]:
        low = top.attributes.get("DW_AT_low_pc")
        high, listed = top.attributes.get("DW_AT_high_pc"), top.attributes.get("DW_AT_ranges")
        base = low.value if low is not None else 0
        if listed is not None and self.lists is not None:
            for entry in self.lists.get_range_list_at_offset(listed.value, unit):
                self.entries += 1
                if isinstance(entry, BaseAddressEntry):
                    base = entry.base_address
                else:
                    shift = 0 if entry.is_absolute else base
                    yield shift + entry.begin_offset, shift + entry.end_offset
        elif low is not None and high is not None:
            offset = describe_form_class(high.form) == "constant"
            yield base, base + high.value if offset else high.value

    def lines(self, units: list[Any]) -> None:
        """Sources by line table: of each instruction, wherever it was inlined."""
        self.result.lto = True
        size = self.dwarf.debug_line_sec.size if self.dwarf.debug_line_sec else 0
        if not 0 < size <= MAX_LINE_BYTES:
            self.say(
                f"{size:,} B of line tables after link-time optimisation: sources are told for up "
                f"to {MAX_LINE_BYTES:,} B"
            )
            return
        for unit in units:
            try:
                self.line_table(unit)
            except _BAD:
                self.damaged += 1

    def line_table(self, unit: Any) -> None:
        offset = unit.get_top_DIE().attributes["DW_AT_stmt_list"].value
        check_line_header(self.dwarf.debug_line_sec.stream, offset, unit.structs)
        program = self.dwarf.line_program_for_CU(unit)
        if program is None:
            return
        files = _files(program, _text(unit.get_top_DIE(), "DW_AT_comp_dir"))
        at: int | None = None
        file = ""
        for entry in program.get_entries():
            state = entry.state
            if state is None:
                continue
            if at is not None:
                self.add(at, state.address, file)
            at = None if state.end_sequence else state.address
            file = files.get(state.file, "")

    def finished(self) -> Sources:
        """Sorted ranges without overlaps: where two meet, the one that begins later wins."""
        result = self.result
        for start, end, file in sorted(self.ranges):
            if result.ends and start < result.ends[-1]:
                result.ends[-1] = start
            if result.files and result.files[-1] == file and result.ends[-1] == start:
                result.ends[-1] = end
            else:
                result.starts.append(start)
                result.ends.append(end)
                result.files.append(file)
        return result


def check_line_header(stream: Any, offset: int, structs: Any) -> None:
    """Refuse tables of version 5 whose entries are empty: any number of them fits in no bytes."""
    stream.seek(offset)
    struct_parse(structs.Dwarf_initial_length(""), stream)
    wide = structs.dwarf_format // 8
    if struct_parse(structs.the_Dwarf_uint16, stream) < 5:
        return
    stream.seek(2 + wide + 5, SEEK_CUR)  # sizes of addresses, header length, five small fields
    stream.seek(struct_parse(structs.the_Dwarf_uint8, stream) - 1, SEEK_CUR)
    sizes = {0x1F: wide, 0x0E: wide, 0x0B: 1, 0x05: 2, 0x06: 4, 0x07: 8, 0x1E: 16}
    for _ in range(2):
        size = 0
        for _ in range(struct_parse(structs.the_Dwarf_uint8, stream)):
            struct_parse(structs.the_Dwarf_uleb128, stream)
            size += sizes.get(struct_parse(structs.the_Dwarf_uleb128, stream), 1)
        count = struct_parse(structs.the_Dwarf_uleb128, stream)
        if count * max(1, size) > MAX_LINE_BYTES or (count and not size):
            raise ELFError(f"a line table says that it has {count} files of {size} bytes")
        stream.seek(count * size, SEEK_CUR)


def _files(program: Any, folder: str) -> dict[int, str]:
    """File numbers of a line table; from version 5 on both tables begin at 0."""
    header = program.header
    folders = [_decoded(d) for d in header["include_directory"]]
    first = 0 if header["version"] >= 5 else 1
    if first:
        folders.insert(0, folder)
    return {
        index: posixpath.normpath(
            posixpath.join(
                folder,
                folders[entry.dir_index] if entry.dir_index < len(folders) else "",
                _decoded(entry.name),
            )
        )
        for index, entry in enumerate(header["file_entry"], start=first)
    }


def _text(die: Any, name: str) -> str:
    found = die.attributes.get(name)
    return _decoded(found.value) if found is not None else ""


def _decoded(value: Any) -> str:
    return value.decode("utf-8", "replace").replace("\\", "/") if isinstance(value, bytes) else ""


def _warning(elf: Elf, what: str) -> Finding:
    return Finding("warning", "debug-info", f"debug information: {what}", elf.path.name)


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:200]
