# SPDX-License-Identifier: Apache-2.0
"""A small ELF writer for tests: every field can be wrong on purpose.

>>> elf = ElfWriter(machine=ARM)
>>> text = elf.section(".text", 0x0800_0000, b"\\x00\\xbf" * 8, flags=AX)
>>> elf.load([text])
>>> elf.symbol("main", 0x0800_0001, 16, FUNC, section=text)
>>> data = elf.build()
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

X86, ARM, X86_64, AARCH64, RISCV, XTENSA = 3, 40, 62, 183, 243, 94
EXEC, DYN, REL = 2, 3, 1
NOTYPE, OBJECT, FUNC, SECTION, FILE, TLS = 0, 1, 2, 3, 4, 6
LOCAL, GLOBAL, WEAK = 0, 1, 2
ABS, COMMON, XINDEX = 0xFFF1, 0xFFF2, 0xFFFF
PROGBITS, SYMTAB, STRTAB, NOBITS, GROUP, SYMTAB_SHNDX = 1, 2, 3, 8, 17, 18
SHT_RELA, SHT_REL = 4, 9
W, A, X, T = 1, 2, 4, 0x400
AX, WA = A | X, W | A


@dataclass
class _Section:
    name: str
    kind: int
    flags: int
    address: int
    data: bytes
    size: int
    align: int = 1
    link: int = 0
    info: int = 0
    entry: int = 0
    offset: int = -1
    signature: str = ""
    entries: tuple[tuple[int, str, int, int], ...] = ()


@dataclass
class _Load:
    members: list[int]
    paddr: int | None
    address: int | None
    extra: int
    lead: int
    kind: int = 1


@dataclass
class ElfWriter:
    """Collects sections, segments and symbols; `build` lays them out."""

    bits: int = 32
    little: bool = True
    machine: int = ARM
    kind: int = EXEC
    sections: list[_Section] = field(default_factory=lambda: [_Section("", 0, 0, 0, b"", 0)])
    loads: list[_Load] = field(default_factory=list)
    raw_segments: list[tuple[int, ...]] = field(default_factory=list)
    symbols: list[tuple[str, int, int, int, int]] = field(default_factory=list)

    def section(
        self,
        name: str,
        address: int,
        data: bytes | int,
        *,
        flags: int = A,
        kind: int | None = None,
        align: int = 1,
    ) -> int:
        """Adds a section and returns its index; an int for `data` makes it NOBITS."""
        content = data if isinstance(data, bytes) else b""
        size = len(data) if isinstance(data, bytes) else data
        kind = kind if kind is not None else PROGBITS if isinstance(data, bytes) else NOBITS
        self.sections.append(_Section(name, kind, flags, address, content, size, align))
        return len(self.sections) - 1

    def comdat(self, signature: str, members: list[int], *, flags: int = 1) -> int:
        """A group of sections, of which a link keeps one for each signature (a symbol's name)."""
        data = struct.pack(f"{self._order}{len(members) + 1}I", flags, *members)
        index = self.section(".group", 0, data, flags=0, kind=GROUP, align=4)
        self.sections[index].signature = signature
        return index

    def relocate(
        self, section: int, *entries: tuple[int, str, int, int], addends: bool = True
    ) -> int:
        """A relocation table of a section: place, symbol's name, type, addend of each entry.

        Without `addends` the last number is not stored: the section's content has it.
        """
        kind = SHT_RELA if addends else SHT_REL
        name = (".rela" if addends else ".rel") + self.sections[section].name
        index = self.section(name, 0, b"", flags=0, kind=kind, align=4)
        self.sections[index].info, self.sections[index].entries = section, entries
        return index

    def load(
        self,
        members: list[int],
        *,
        paddr: int | None = None,
        address: int | None = None,
        extra: int = 0,
        lead: int = 0,
    ) -> None:
        """A PT_LOAD over sections; `extra` stored bytes after the last, `lead` before the first."""
        self.loads.append(_Load(members, paddr, address, extra, lead))

    def segment(
        self,
        kind: int,
        offset: int,
        vaddr: int,
        paddr: int,
        filesz: int,
        memsz: int,
        flags: int = 7,
        align: int = 1,
    ) -> None:
        """A program header with exactly these fields."""
        self.raw_segments.append((kind, offset, vaddr, paddr, filesz, memsz, flags, align))

    def symbol(
        self,
        name: str,
        value: int,
        size: int = 0,
        kind: int = NOTYPE,
        *,
        section: int = ABS,
        bind: int = GLOBAL,
    ) -> None:
        self.symbols.append((name, value, size, bind << 4 | kind, section))

    def write(self, path: Path, **how: bool) -> Path:
        path.write_bytes(self.build(**how))
        return path

    # -- layout ---------------------------------------------------------------------------------

    def build(self, *, headers: bool = True, symbols: bool = True) -> bytes:
        sections = [*self.sections]
        if symbols and self.symbols:
            self._symbol_sections(sections)
        names, offsets = _strings([s.name for s in sections] + [".shstrtab"])
        sections.append(_Section(".shstrtab", STRTAB, 0, 0, names, len(names)))
        head, ph_size, sh_size = (52, 32, 40) if self.bits == 32 else (64, 56, 64)
        count = len(self.loads) + len(self.raw_segments)
        out = bytearray(head + ph_size * count)
        segments = [self._layout(load, sections, out) for load in self.loads]
        for section in sections[1:]:
            if section.offset < 0:
                section.offset = len(out)
                out += section.data
        for index, fields in enumerate([*segments, *self.raw_segments]):
            packed = self._program_header(fields)
            out[head + index * ph_size : head + (index + 1) * ph_size] = packed
        table_at, total = len(out) if headers else 0, len(sections)
        if headers:
            if total >= 0xFF00:
                sections[0].size, sections[0].link = total, total - 1
            for section, name in zip(sections, offsets, strict=True):
                out += self._section_header(section, name)
        out[:head] = self._header(head if count else 0, count, table_at, total, ph_size, sh_size)
        for section in sections:
            section.offset = -1
        return bytes(out)

    def _layout(self, load: _Load, sections: list[_Section], out: bytearray) -> tuple[int, ...]:
        members = [sections[i] for i in load.members]
        base = load.address if load.address is not None else min(s.address for s in members)
        base -= load.lead
        start = 0 if load.lead else len(out)
        filesz = memsz = load.lead
        for section in members:
            reach = section.address - base + section.size
            memsz = max(memsz, reach)
            if section.kind != NOBITS:
                filesz = max(filesz, reach)
        filesz += load.extra
        memsz = max(memsz, filesz)
        out += bytes(max(0, start + filesz - len(out)))
        for section in members:
            section.offset = start + section.address - base
            if section.kind != NOBITS:
                out[section.offset : section.offset + section.size] = section.data
        paddr = base if load.paddr is None else load.paddr - load.lead
        return (load.kind, start, base, paddr, filesz, memsz, 7, 1)

    def _symbol_sections(self, sections: list[_Section]) -> None:
        ordered = sorted(self.symbols, key=lambda s: s[3] >> 4)  # local symbols come first
        names, offsets = _strings([""] + [s[0] for s in ordered])
        entries, wide = [(0, 0, 0, 0, 0)], [0]
        for (_, value, size, info, home), name in zip(ordered, offsets[1:], strict=True):
            special = home >= 0xFF00 and home in (ABS, COMMON)
            entries.append(
                (name, value, size, info, XINDEX if home >= 0xFF00 and not special else home)
            )
            wide.append(home if home >= 0xFF00 and not special else 0)
        data = b"".join(self._symbol(e) for e in entries)
        locals_ = 1 + sum(s[3] >> 4 == LOCAL for s in ordered)
        index = len(sections)
        for section in sections:
            if section.signature:
                section.link = index
                section.info = 1 + [s[0] for s in ordered].index(section.signature)
        numbers = {symbol[0]: number for number, symbol in enumerate(ordered, 1)}
        for section in (s for s in sections if s.entries):
            section.link = index
            self._relocations(section, numbers)
        entry = 16 if self.bits == 32 else 24
        sections.append(
            _Section(".symtab", SYMTAB, 0, 0, data, len(data), 4, index + 1, locals_, entry)
        )
        sections.append(_Section(".strtab", STRTAB, 0, 0, names, len(names)))
        if any(wide):
            packed = struct.pack(f"{self._order}{len(wide)}I", *wide)
            sections.append(
                _Section(".symtab_shndx", SYMTAB_SHNDX, 0, 0, packed, len(packed), 4, index, 0, 4)
            )

    def _relocations(self, section: _Section, numbers: dict[str, int]) -> None:
        shift, addends = 8 if self.bits == 32 else 32, section.kind == SHT_RELA
        narrow, wide = ("IIi", "QQq") if addends else ("II", "QQ")
        section.data = b"".join(
            self._pack(narrow, wide, place, numbers[name] << shift | kind, *[addend][:addends])
            for place, name, kind, addend in section.entries
        )
        section.size = len(section.data)
        section.entry = section.size // len(section.entries)

    # -- records --------------------------------------------------------------------------------

    @property
    def _order(self) -> str:
        return "<" if self.little else ">"

    def _pack(self, narrow: str, wide: str, *values: int) -> bytes:
        return struct.pack(self._order + (narrow if self.bits == 32 else wide), *values)

    def _header(self, phoff: int, phnum: int, shoff: int, shnum: int, ph: int, sh: int) -> bytes:
        ident = b"\x7fELF" + bytes([1 if self.bits == 32 else 2, 1 if self.little else 2, 1])
        many = shnum >= 0xFF00
        return ident.ljust(16, b"\0") + self._pack(
            "HHIIIIIHHHHHH",
            "HHIQQQIHHHHHH",
            self.kind,
            self.machine,
            1,
            0,
            phoff,
            shoff,
            0,
            52 if self.bits == 32 else 64,
            ph,
            phnum,
            sh,
            0 if many or not shoff else shnum,
            0xFFFF if many else shnum - 1 if shoff else 0,
        )

    def _program_header(self, fields: tuple[int, ...]) -> bytes:
        kind, offset, vaddr, paddr, filesz, memsz, flags, align = fields
        if self.bits == 32:
            return self._pack("8I", "", kind, offset, vaddr, paddr, filesz, memsz, flags, align)
        return self._pack("", "2I6Q", kind, flags, offset, vaddr, paddr, filesz, memsz, align)

    def _section_header(self, s: _Section, name: int) -> bytes:
        return self._pack(
            "10I",
            "2I4Q2I2Q",
            name,
            s.kind,
            s.flags,
            s.address,
            max(0, s.offset),
            s.size,
            s.link,
            s.info,
            s.align,
            s.entry,
        )

    def _symbol(self, entry: tuple[int, int, int, int, int]) -> bytes:
        name, value, size, info, home = entry
        if self.bits == 32:
            return self._pack("IIIBBH", "", name, value, size, info, 0, home)
        return self._pack("", "IBBHQQ", name, info, 0, home, value, size)


def _strings(names: list[str]) -> tuple[bytes, list[int]]:
    table, offsets = bytearray(b"\0"), []
    for name in names:
        offsets.append(len(table) if name else 0)
        table += name.encode() + b"\0" if name else b""
    return bytes(table), offsets
