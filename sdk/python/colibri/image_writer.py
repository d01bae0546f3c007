# SPDX-License-Identifier: Apache-2.0
"""Writes an image as docs/spec.md has it: places everything, streams the data, then the meta part.

layout = Layout.of(settings, layers, tensors, stop, tokens, notes, tokenizer_bytes)
writer = ImageWriter(stream, layout)
writer.tokenizer(data)
for slot in layout.slots: writer.tensor(slot, encoded rows ...)
writer.finish()                  # meta part, without self-test checksums
writer.finish((1, 2, 3))         # with them
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from colibri.image_format import (
    ALIGNMENT,
    GLOBAL_LAYER,
    MAGIC,
    VERSION,
    LayerKind,
    Order,
    Role,
    Settings,
    Type,
    align,
    code_bytes,
    tensor_bytes,
)
from colibri.quantize import Encoded

HEADER_BYTES, SECTION_BYTES = 64, 32
CONFIG, LAYERS, TENSORS, EXPERTS, STOP, SELFTEST, NOTES = range(1, 8)
TOKENIZER, WEIGHTS, EXPERT_WEIGHTS = 16, 17, 18
_CRC_AT = 60


@dataclass(frozen=True)
class TensorSpec:
    """A tensor to store: an expert role stands for all experts of its layer."""

    role: Role
    layer: int | None
    kind: Type
    group: int
    rows: int
    columns: int
    order: Order = Order.ROWS

    @property
    def bytes(self) -> int:
        """As the spec computes them."""
        return tensor_bytes(self.kind, self.group, self.rows, self.columns)

    @property
    def is_expert(self) -> bool:
        """Whether it lies in expert records."""
        return self.role.scope == "expert"


@dataclass(frozen=True)
class Slot:
    """Where one tensor's bytes go; a dense tensor is a record of its own."""

    spec: TensorSpec
    expert: int | None
    offset: int
    starts_record: bool = True


@dataclass(frozen=True)
class Section:
    """An entry of the section table."""

    kind: int
    offset: int
    bytes: int
    count: int = 0


@dataclass(frozen=True)
class Layout:
    """Where everything lies; fixed before a weight is read."""

    settings: Settings
    layers: tuple[LayerKind, ...]
    specs: tuple[TensorSpec, ...]
    offsets: tuple[int, ...]  # of each spec: in the file, of expert roles in the record
    records: tuple[tuple[int, int], ...]  # offset, bytes
    slots: tuple[Slot, ...]
    sections: tuple[Section, ...]
    stop: tuple[int, ...]
    tokens: tuple[int, ...]
    notes: bytes
    meta_bytes: int
    file_bytes: int

    @classmethod
    def of(
        cls,
        settings: Settings,
        layers: tuple[LayerKind, ...],
        specs: Iterable[TensorSpec],
        *,
        stop: Iterable[int],
        tokens: Iterable[int],
        notes: bytes,
        tokenizer_bytes: int,
    ) -> Layout:
        """Places sections, tensors and records one after the other."""
        ordered = tuple(sorted(specs, key=_table_order))
        stop, tokens = tuple(stop), tuple(tokens)
        each = settings.experts - settings.identities
        records = sum(layer.experts for layer in layers) * each
        data_sections = 1 + bool(tokenizer_bytes) + bool(records)
        sections = _meta_sections(
            settings, len(ordered), records, stop, tokens, notes, data_sections
        )
        meta = at = align(sections[-1].offset + sections[-1].bytes)
        if tokenizer_bytes:
            sections.append(Section(TOKENIZER, at, tokenizer_bytes, 1))
            at = align(at + tokenizer_bytes)
        dense = [spec for spec in ordered if not spec.is_expert]
        places, end = _place(dense, at)
        offsets = dict(zip(dense, places, strict=True))
        sections.append(Section(WEIGHTS, at, end - at))
        slots = [Slot(spec, None, offsets[spec]) for spec in dense]
        spans, end = _place_records(ordered, layers, each, end, offsets, slots)
        if records:
            sections.append(Section(EXPERT_WEIGHTS, spans[0][0], end - spans[0][0]))
        return cls(
            settings, layers, ordered, tuple(offsets[s] for s in ordered),
            tuple(spans), tuple(slots), tuple(sections), stop, tokens, notes, meta, end,
        )  # fmt: skip


def _place_records(
    specs: tuple[TensorSpec, ...],
    layers: tuple[LayerKind, ...],
    experts: int,
    end: int,
    offsets: dict[TensorSpec, int],
    slots: list[Slot],
) -> tuple[list[tuple[int, int]], int]:
    """Places the expert records after `end`; fills in offsets and slots."""
    spans: list[tuple[int, int]] = []
    for layer in (number for number, kind in enumerate(layers) if kind.experts):
        roles = [spec for spec in specs if spec.is_expert and spec.layer == layer]
        inner, size = _place(roles, 0)
        offsets |= zip(roles, inner, strict=True)
        for expert in range(experts):
            begin = align(end)
            end = begin + size
            spans.append((begin, size))
            for role, at in zip(roles, inner, strict=True):
                slots.append(Slot(role, expert, begin + at, starts_record=at == 0))
    return spans, end


def _table_order(spec: TensorSpec) -> tuple[int, int]:
    return _layer_number(spec.layer), spec.role.number


def _layer_number(layer: int | None) -> int:
    return GLOBAL_LAYER if layer is None else layer


def _place(specs: Iterable[TensorSpec], at: int) -> tuple[list[int], int]:
    """Offsets of tensors from `at` on, and where the last one ends."""
    offsets, end = [], at
    for spec in specs:
        offsets.append(align(end))
        end = offsets[-1] + spec.bytes
    return offsets, end


def _meta_sections(
    settings: Settings,
    tensors: int,
    records: int,
    stop: tuple[int, ...],
    tokens: tuple[int, ...],
    notes: bytes,
    data_sections: int,
) -> list[Section]:
    sizes = [
        (CONFIG, 256, 1), (LAYERS, 16 * settings.layers, settings.layers),
        (TENSORS, 48 * tensors, tensors), (EXPERTS, 24 * records, records),
        (STOP, 4 * len(stop), len(stop)), (SELFTEST, 12 + 4 * len(tokens), len(tokens)),
        (NOTES, len(notes), 0),
    ]  # fmt: skip
    kept = [entry for entry in sizes if entry[0] != EXPERTS or records]
    at = HEADER_BYTES + SECTION_BYTES * (len(kept) + data_sections)
    sections = []
    for kind, size, count in kept:
        at = align(at)
        sections.append(Section(kind, at, size, count))
        at += size
    return sections


@dataclass
class ImageWriter:
    """Streams a layout's data into a file, in order, and knows its checksums."""

    stream: BinaryIO
    layout: Layout
    _dense_crc: dict[TensorSpec, int] = field(default_factory=dict)
    _record_crc: list[int] = field(default_factory=list)
    _tokenizer_crc: int = 0
    _crc: int = 0
    _at: int = 0

    def __post_init__(self) -> None:
        self.stream.write(bytes(self.layout.meta_bytes))
        self._at = self.layout.meta_bytes

    def tokenizer(self, data: bytes) -> None:
        """The tokenizer section; comes first, if there is one."""
        self._crc = 0
        self._write(data)
        self._tokenizer_crc = self._crc

    def tensor(self, slot: Slot, rows: Iterable[Encoded]) -> None:
        """A tensor, rows in order; slots must come in the layout's order."""
        self._pad(slot.offset)
        if slot.starts_record:
            self._crc = 0  # padding counts inside a record only
        scales = []
        for part in rows:
            self._write(part.codes)
            scales.append(part.scales)
        spec = slot.spec
        if spec.group:
            self._pad(
                align(slot.offset + code_bytes(spec.kind, spec.group, spec.rows, spec.columns))
            )
            self._write(b"".join(scales))
        if self._at != slot.offset + spec.bytes:
            raise AssertionError(f"{spec.role.name}: wrote to {self._at}, not as laid out")
        if slot.expert is None:
            self._dense_crc[spec] = self._crc
        elif slot.starts_record:
            self._record_crc.append(self._crc)
        else:
            self._record_crc[-1] = self._crc

    def finish(self, selftest: tuple[int, int, int] = (0, 0, 0)) -> None:
        """The meta part; may be repeated with other self-test checksums."""
        self.stream.seek(0)
        self.stream.write(self._meta(selftest))
        self.stream.flush()

    def _pad(self, to: int) -> None:
        self._write(bytes(to - self._at))

    def _write(self, data: bytes) -> None:
        self.stream.write(data)
        self._crc = zlib.crc32(data, self._crc)
        self._at += len(data)

    def _meta(self, selftest: tuple[int, int, int]) -> bytes:
        layout, meta = self.layout, bytearray(self.layout.meta_bytes)
        contents = {
            CONFIG: _config(layout.settings), LAYERS: _layers(layout),
            TENSORS: b"".join(self._tensor_entries()), EXPERTS: self._expert_entries(),
            STOP: _u32(layout.stop), SELFTEST: _u32((*selftest, *layout.tokens)),
            NOTES: layout.notes,
        }  # fmt: skip
        for index, section in enumerate(layout.sections):
            crc = self._tokenizer_crc if section.kind == TOKENIZER else 0
            struct.pack_into("<IIQQII", meta, HEADER_BYTES + SECTION_BYTES * index, section.kind, 0,
                             section.offset, section.bytes, crc, section.count)  # fmt: skip
            if section.kind in contents:
                meta[section.offset : section.offset + section.bytes] = contents[section.kind]
        struct.pack_into("<8sIIQII16sI", meta, 0, MAGIC, VERSION, 0, layout.file_bytes,
                         layout.meta_bytes, len(layout.sections), bytes(16), ALIGNMENT)  # fmt: skip
        meta[32:48] = hashlib.sha256(meta).digest()[:16]
        crc = zlib.crc32(meta[HEADER_BYTES:], zlib.crc32(meta[:_CRC_AT]))
        struct.pack_into("<I", meta, _CRC_AT, crc)
        return bytes(meta)

    def _tensor_entries(self) -> Iterator[bytes]:
        for spec, offset in zip(self.layout.specs, self.layout.offsets, strict=True):
            yield struct.pack(
                "<HHBBHIIQQI12x", _layer_number(spec.layer), spec.role.number, spec.kind,
                spec.order, spec.group, spec.rows, spec.columns, offset, spec.bytes,
                0 if spec.is_expert else self._dense_crc[spec],
            )  # fmt: skip

    def _expert_entries(self) -> bytes:
        entries = zip(self.layout.records, self._record_crc, strict=True)
        return b"".join(struct.pack("<QIIII", at, size, crc, 0, 0) for (at, size), crc in entries)


def _config(settings: Settings) -> bytes:
    words = [struct.pack("<f" if isinstance(w, float) else "<I", w) for w in settings.words()]
    return b"".join(words).ljust(256, b"\0")


_MIXERS = {"attention": 1, "latent": 2, "conv": 3, "experts": 4, "delta": 5, "mamba2": 6,
           "lightning": 7, "mamba": 8}  # fmt: skip


def _layers(layout: Layout) -> bytes:
    return b"".join(
        struct.pack("<BBBBIIHH", _MIXERS[kind.mixer], kind.dense + 2 * kind.experts, kind.rope,
                    kind.flags, kind.window, kind.chunk, kind.head_size, kind.kv_heads)
        for kind in layout.layers
    )  # fmt: skip


def _u32(values: Iterable[int]) -> bytes:
    array: NDArray[np.uint32] = np.fromiter(values, "<u4")
    return array.tobytes()
