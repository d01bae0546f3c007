# SPDX-License-Identifier: Apache-2.0
"""Where everything lies in the files of an image (docs/spec.md), fixed before a weight is read."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from colibri.image_format import (
    GLOBAL_LAYER,
    LayerKind,
    Order,
    Role,
    Settings,
    Type,
    align,
    tensor_bytes,
)
from colibri.placement import LAYOUTS, MONOLITHIC, Placement

HEADER_BYTES, SECTION_BYTES, FILE_BYTES = 64, 32, 96
CONFIG, LAYERS, TENSORS, EXPERTS, STOP, SELFTEST, NOTES, FILES = range(1, 9)
TOKENIZER, WEIGHTS, EXPERT_WEIGHTS = 16, 17, 18


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

    @property
    def layer_number(self) -> int:
        """As the tensor table says it."""
        return GLOBAL_LAYER if self.layer is None else self.layer


@dataclass(frozen=True)
class Record:
    """An entry of the expert table: the bytes of one expert, and where they lie."""

    file: int
    offset: int
    bytes: int


@dataclass(frozen=True)
class Slot:
    """Where one tensor's bytes go.  record: the number of its expert's entry in the table."""

    spec: TensorSpec
    expert: int | None
    offset: int
    starts_record: bool = True
    file: int = 0
    record: int = -1


@dataclass(frozen=True)
class Section:
    """An entry of the section table."""

    kind: int
    offset: int
    bytes: int
    count: int = 0
    file: int = 0


@dataclass(frozen=True)
class Model:
    """What an image says beside its weights, as bytes of the sections that hold it.

    expert_layers: numbers of the layers that have experts, `records` of them each.
    """

    config: bytes
    layers: bytes
    stop: bytes
    notes: bytes
    tokens: tuple[int, ...]  # of the self-test
    expert_layers: tuple[int, ...]
    records: int
    tokenizer_bytes: int


@dataclass(frozen=True)
class Layout:
    """Where everything lies."""

    model: Model
    placement: Placement
    specs: tuple[TensorSpec, ...]
    offsets: tuple[int, ...]  # of each spec: in the file, of expert roles in the record
    records: tuple[Record, ...]  # in the order of the expert table
    slots: tuple[Slot, ...]  # in the order in which they are written
    sections: tuple[Section, ...]
    meta_bytes: int
    files: tuple[int, ...]  # bytes of each, the image itself first

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
        placement: Placement = MONOLITHIC,
    ) -> Self:
        """Lays out a model from its settings."""
        model = Model(
            _config(settings), _layers(layers), u32(stop), notes, tuple(tokens),
            tuple(number for number, kind in enumerate(layers) if kind.experts),
            settings.experts - settings.identities, tokenizer_bytes,
        )  # fmt: skip
        return cls.place(model, specs, placement)

    @classmethod
    def place(cls, model: Model, specs: Iterable[TensorSpec], placement: Placement) -> Self:
        """Places sections, tensors and records one after the other."""
        ordered = tuple(sorted(specs, key=lambda spec: (spec.layer_number, spec.role.number)))
        roles = {layer: [s for s in ordered if s.is_expert and s.layer == layer]
                 for layer in model.expert_layers}  # fmt: skip
        inner = {layer: _place(of, 0) for layer, of in roles.items()}
        sizes = [inner[layer][1] for layer in model.expert_layers for _ in range(model.records)]
        companions = placement.companions(sizes)
        sections = _meta_sections(model, len(ordered), len(sizes), len(companions))
        meta = at = align(sections[-1].offset + sections[-1].bytes)
        if model.tokenizer_bytes:
            sections.append(Section(TOKENIZER, at, model.tokenizer_bytes, 1))
            at = align(at + model.tokenizer_bytes)
        dense = [spec for spec in ordered if not spec.is_expert]
        places, end = _place(dense, at)
        sections.append(Section(WEIGHTS, at, end - at))
        groups = companions or ([list(placement.ordered(len(sizes)))] if sizes else [])
        records, files = _place_records(groups, sizes, placement.block, end, bool(companions))
        for file, size in enumerate(files):
            if file or (sizes and not companions):
                begin = min(record.offset for record in records if record.file == file)
                sections.append(Section(EXPERT_WEIGHTS, begin, size - begin, file=file))
        offsets = dict(zip(dense, places, strict=True))
        slots = [Slot(spec, None, offsets[spec]) for spec in dense]
        for layer, of in roles.items():
            offsets |= zip(of, inner[layer][0], strict=True)
        for number in (number for group in groups for number in group):
            slots += _slots(number, records[number], model, roles, offsets)
        return cls(
            model, placement, ordered, tuple(offsets[s] for s in ordered), tuple(records),
            tuple(slots), tuple(sections), meta, tuple(files),
        )  # fmt: skip

    @property
    def file_bytes(self) -> int:
        """Of the image itself."""
        return self.files[0]

    @property
    def number(self) -> int:
        """Of the layout, in the header."""
        return LAYOUTS.index(self.placement.layout)


def _place(specs: Iterable[TensorSpec], at: int) -> tuple[list[int], int]:
    """Offsets of tensors from `at` on, and where the last one ends."""
    offsets, end = [], at
    for spec in specs:
        offsets.append(align(end))
        end = offsets[-1] + spec.bytes
    return offsets, end


def _place_records(
    groups: Sequence[Sequence[int]], sizes: Sequence[int], block: int, end: int, beside: bool
) -> tuple[list[Record], list[int]]:
    """Records one after the other: behind `end` of the image, or each group in a companion."""
    found: dict[int, Record] = {}
    files = [end]
    for group in groups:
        at = HEADER_BYTES if beside else end
        for number in group:
            begin = align(at, block)
            at = begin + sizes[number]
            found[number] = Record(len(files) if beside else 0, begin, sizes[number])
        files = [*files, at] if beside else [at]
    return [found[number] for number in range(len(sizes))], files


def _slots(
    number: int,
    record: Record,
    model: Model,
    roles: dict[int, list[TensorSpec]],
    offsets: dict[TensorSpec, int],
) -> list[Slot]:
    """The tensors of a record."""
    index, expert = divmod(number, model.records)
    return [
        Slot(spec, expert, record.offset + offsets[spec], offsets[spec] == 0, record.file, number)
        for spec in roles[model.expert_layers[index]]
    ]


def _meta_sections(model: Model, tensors: int, records: int, companions: int) -> list[Section]:
    sizes = [
        (CONFIG, len(model.config), 1), (LAYERS, len(model.layers), len(model.layers) // 16),
        (TENSORS, 48 * tensors, tensors), (EXPERTS, 24 * records, records),
        (STOP, len(model.stop), len(model.stop) // 4),
        (SELFTEST, 12 + 4 * len(model.tokens), len(model.tokens)), (NOTES, len(model.notes), 0),
        (FILES, FILE_BYTES * companions, companions),
    ]  # fmt: skip
    kept = [entry for entry in sizes if entry[2] or entry[0] not in (EXPERTS, FILES)]
    data = 1 + bool(model.tokenizer_bytes) + (companions or bool(records))
    at = HEADER_BYTES + SECTION_BYTES * (len(kept) + data)
    sections = []
    for kind, size, count in kept:
        at = align(at)
        sections.append(Section(kind, at, size, count))
        at += size
    return sections


def _config(settings: Settings) -> bytes:
    words = [struct.pack("<f" if isinstance(w, float) else "<I", w) for w in settings.words()]
    return b"".join(words).ljust(256, b"\0")


_MIXERS = {"attention": 1, "latent": 2, "conv": 3, "experts": 4, "delta": 5, "mamba2": 6,
           "lightning": 7, "mamba": 8}  # fmt: skip


def _layers(layers: Iterable[LayerKind]) -> bytes:
    return b"".join(
        struct.pack("<BBBBIIHH", _MIXERS[kind.mixer], kind.dense + 2 * kind.experts, kind.rope,
                    kind.flags, kind.window, kind.chunk, kind.head_size, kind.kv_heads)
        for kind in layers
    )  # fmt: skip


def u32(values: Iterable[int]) -> bytes:
    """Words of a table."""
    array: NDArray[np.uint32] = np.fromiter(values, "<u4")
    return array.tobytes()
