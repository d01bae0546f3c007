# SPDX-License-Identifier: Apache-2.0
"""The three tables of an ELF as tuples, unpacked in one go.

A build with a section for each function has tens of thousands of headers and symbols; parsing
each by a general parser takes longer than everything else together. Field order is that of the
ELF specification (gABI 4.1, "Section Header", "Symbol Table", "Program Header").
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from elftools.elf.enums import ENUM_SH_TYPE_BASE, ENUM_ST_INFO_BIND, ENUM_ST_INFO_TYPE


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


class SymbolEntry(NamedTuple):
    """``st_*`` fields; ``kind`` and ``binding`` without ``STT_`` and ``STB_``."""

    name: int
    value: int
    size: int
    kind: str
    binding: str
    section: int


def _names(enum: Mapping[str, int], prefix: str) -> dict[int, str]:
    pairs = [(v, k.removeprefix(prefix)) for k, v in enum.items() if isinstance(v, int)]
    return dict(reversed(pairs))  # the first name of a value is the specification's own


_KINDS = _names(ENUM_SH_TYPE_BASE, "SHT_")
_TYPES = _names(ENUM_ST_INFO_TYPE, "STT_") | {10: "GNU_IFUNC"}
_BINDINGS = _names(ENUM_ST_INFO_BIND, "STB_")
_INFO = [(_TYPES.get(i & 15, str(i & 15)), _BINDINGS.get(i >> 4, str(i >> 4))) for i in range(256)]
_HEADER = {32: "10I", 64: "2I4Q2I2Q"}
_SYMBOL = {32: "3I2BH", 64: "I2BH2Q"}


def header_size(bits: int) -> int:
    return struct.calcsize("<" + _HEADER[bits])


def symbol_size(bits: int) -> int:
    return struct.calcsize("<" + _SYMBOL[bits])


def section_headers(data: bytes, order: str, bits: int) -> Iterator[SectionHeader]:
    """Every header in ``data``, whose length is a multiple of :func:`header_size`."""
    for name, kind, *rest in struct.iter_unpack(order + _HEADER[bits], data):
        yield SectionHeader(name, _KINDS.get(kind, f"{kind:#x}"), *rest)


def symbol_entries(data: bytes, order: str, bits: int) -> Iterator[SymbolEntry]:
    """Every symbol in ``data``, whose length is a multiple of :func:`symbol_size`."""
    if bits == 32:
        for name, value, size, info, _, home in struct.iter_unpack(order + _SYMBOL[32], data):
            kind, binding = _INFO[info]
            yield SymbolEntry(name, value, size, kind, binding, home)
    else:
        for name, info, _, home, value, size in struct.iter_unpack(order + _SYMBOL[64], data):
            kind, binding = _INFO[info]
            yield SymbolEntry(name, value, size, kind, binding, home)
