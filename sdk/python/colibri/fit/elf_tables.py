# SPDX-License-Identifier: Apache-2.0
"""The header of an ELF and its three tables as tuples, unpacked in one go.

A build with a section for each function has tens of thousands of headers and symbols, a library
thousands of files; a general parser takes longer for them than everything else together. Field
order is that of the ELF specification (gABI 4.1, "ELF Header", "Section Header", "Symbol Table",
"Program Header").
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from elftools.elf.enums import (
    ENUM_E_MACHINE,
    ENUM_E_TYPE,
    ENUM_P_TYPE_BASE,
    ENUM_SH_TYPE_BASE,
    ENUM_ST_INFO_BIND,
    ENUM_ST_INFO_TYPE,
)


class FileHeader(NamedTuple):
    """``e_*`` fields from the type on; ``kind`` with ``ET_``, ``machine`` without ``EM_``."""

    kind: str
    machine: str
    version: int
    entry: int
    segments_at: int
    sections_at: int
    flags: int
    size: int
    segment_size: int
    segment_count: int
    section_size: int
    section_count: int
    names: int


class ProgramHeader(NamedTuple):
    """``p_*`` fields; ``kind`` is the type without ``PT_``."""

    kind: str
    flags: int
    offset: int
    address: int
    load: int
    file_size: int
    memory_size: int
    align: int


class SectionHeader(NamedTuple):
    """``sh_*`` fields; ``kind`` is the type without ``SHT_``."""

    name: int
    kind: str
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry_size: int


#: ``st_*`` fields: name, value, size, info, section.
SymbolEntry = tuple[int, int, int, int, int]


def _names(enum: Mapping[str, int], prefix: str) -> dict[int, str]:
    pairs = [(v, k.removeprefix(prefix)) for k, v in enum.items() if isinstance(v, int)]
    return dict(reversed(pairs))  # the first name of a value is the specification's own


_FILES = _names(ENUM_E_TYPE, "")
_MACHINES = _names(ENUM_E_MACHINE, "EM_")
_SEGMENTS = _names(ENUM_P_TYPE_BASE, "PT_")
_KINDS = _names(ENUM_SH_TYPE_BASE, "SHT_")
_TYPES = _names(ENUM_ST_INFO_TYPE, "STT_") | {10: "GNU_IFUNC"}
_BINDINGS = _names(ENUM_ST_INFO_BIND, "STB_")
#: Type and binding by ``st_info``, without ``STT_`` and ``STB_``.
SYMBOL_INFO = [
    (_TYPES.get(i & 15, str(i & 15)), _BINDINGS.get(i >> 4, str(i >> 4))) for i in range(256)
]
_FILE = {32: "2H5I6H", 64: "2HI3QI6H"}
_SEGMENT = {32: "8I", 64: "2I6Q"}
_HEADER = {32: "10I", 64: "2I4Q2I2Q"}
_SYMBOL = {32: "3I2BH", 64: "I2BH2Q"}


def file_size(bits: int) -> int:
    return struct.calcsize("<" + _FILE[bits])


def segment_size(bits: int) -> int:
    return struct.calcsize("<" + _SEGMENT[bits])


def header_size(bits: int) -> int:
    return struct.calcsize("<" + _HEADER[bits])


def symbol_size(bits: int) -> int:
    return struct.calcsize("<" + _SYMBOL[bits])


def file_header(data: bytes, order: str, bits: int) -> FileHeader:
    """What comes after ``e_ident``; ``data`` has :func:`file_size` bytes."""
    kind, machine, *rest = struct.unpack(order + _FILE[bits], data)
    return FileHeader(
        _FILES.get(kind, f"e_type {kind}"), _MACHINES.get(machine, str(machine)), *rest
    )


def program_headers(data: bytes, order: str, bits: int) -> Iterator[ProgramHeader]:
    """Every header in ``data``, whose length is a multiple of :func:`segment_size`."""
    for kind, *rest in struct.iter_unpack(order + _SEGMENT[bits], data):
        if bits == 32:  # flags come late there
            rest.insert(0, rest.pop(5))
        yield ProgramHeader(_SEGMENTS.get(kind, f"{kind:#x}"), *rest)


def section_headers(data: bytes, order: str, bits: int) -> Iterator[SectionHeader]:
    """Every header in ``data``, whose length is a multiple of :func:`header_size`."""
    for name, kind, *rest in struct.iter_unpack(order + _HEADER[bits], data):
        yield SectionHeader(name, _KINDS.get(kind, f"{kind:#x}"), *rest)


def symbol_entries(data: bytes, order: str, bits: int) -> Iterator[SymbolEntry]:
    """Every symbol in ``data``, whose length is a multiple of :func:`symbol_size`."""
    entries = struct.iter_unpack(order + _SYMBOL[bits], data)
    if bits == 32:
        return ((name, value, size, info, home) for name, value, size, info, _, home in entries)
    return ((name, value, size, info, home) for name, info, _, home, value, size in entries)
