# SPDX-License-Identifier: Apache-2.0
"""Writes the files of an image as a layout has them: streams the data, then the tables.

with new_image(target, layout) as (writer, file):
    writer.tokenizer(data)
    for slot in layout.slots: writer.tensor(slot, encoded rows ...)
    writer.finish()                  # tables, without self-test checksums
    writer.finish((1, 2, 3))         # with them
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from colibri.errors import ColibriError, PackError
from colibri.image import Image
from colibri.image_format import COMPANION_MAGIC, MAGIC, VERSION, align, code_bytes
from colibri.image_layout import (
    CONFIG,
    EXPERTS,
    FILE_BYTES,
    FILES,
    HEADER_BYTES,
    LAYERS,
    NOTES,
    SECTION_BYTES,
    SELFTEST,
    STOP,
    TENSORS,
    TOKENIZER,
    Layout,
    Slot,
    TensorSpec,
    u32,
)
from colibri.placement import companion_names
from colibri.quantize import Encoded

_ID, _CRC_AT = slice(32, 48), 60


@contextlib.contextmanager
def new_image(
    target: Path, layout: Layout, *, inputs: Sequence[Path] = ()
) -> Iterator[tuple[ImageWriter, Path]]:
    """A writer, and the image it writes; its files take their places when all went well.

    They are made in a folder beside the target, under their names, so that the unfinished image
    can be opened.  Companions move first: an image is never there without them.  Companions of
    an image that was there before, and that the new one does not have, are removed last, unless
    they are `inputs` of the work.
    """
    names = (target.name, *companion_names(target, len(layout.files) - 1))
    folder = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        folder.mkdir()
        with contextlib.ExitStack() as stack:
            streams = [stack.enter_context((folder / name).open("w+b")) for name in names]
            yield ImageWriter(streams, layout, names[1:]), folder / target.name
            for stream in streams:
                os.fsync(stream.fileno())
        stale = [path for path in _companions(target) if path.name not in names]
        for name in (*names[1:], target.name):
            (folder / name).replace(target.with_name(name))
        for path in stale:
            if not any(path.samefile(file) for file in inputs if file.exists()):
                path.unlink()
    except OSError as error:
        raise PackError(f"cannot be written: {error.strerror}", file=target) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _companions(target: Path) -> list[Path]:
    """Those of a whole image that is there, by its tables, and of these the ones named after it:
    others may belong to the image that this one is a copy of."""
    try:
        paths = Image(target).paths[1:] if target.is_file() else []
    except ColibriError:
        return []  # no image, or not a whole one: nobody can say whose the files are
    return [path for number, path in enumerate(paths, 1) if path.name == f"{target.name}.{number}"]


@dataclass
class ImageWriter:
    """Streams a layout's data into its files, in order, and knows its checksums."""

    streams: Sequence[BinaryIO]
    layout: Layout
    names: Sequence[str] = ()  # of the companions
    _dense_crc: dict[TensorSpec, int] = field(default_factory=dict)
    _record_crc: dict[int, int] = field(default_factory=dict)
    _tokenizer_crc: int = 0
    _crc: int = 0
    _file: int = 0
    _at: int = 0

    def __post_init__(self) -> None:
        self._at = self.layout.meta_bytes
        self.streams[0].write(bytes(self._at))

    def tokenizer(self, chunks: Iterable[bytes]) -> None:
        """The tokenizer section; comes first, if there is one."""
        self._tokenizer_crc = self.copy(0, self._at, chunks)

    def tensor(self, slot: Slot, rows: Iterable[Encoded]) -> None:
        """A tensor, rows in order; slots must come in the layout's order."""
        self._move(slot.file, slot.offset)
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
        else:
            self._record_crc[slot.record] = self._crc

    def copy_tensor(self, slot: Slot, chunks: Iterable[bytes]) -> int:
        """The bytes of a dense tensor as another image has them; returns their checksum."""
        self._dense_crc[slot.spec] = crc = self.copy(0, slot.offset, chunks)
        return crc

    def copy_record(self, number: int, chunks: Iterable[bytes]) -> int:
        """The bytes of an expert record; returns their checksum."""
        record = self.layout.records[number]
        self._record_crc[number] = crc = self.copy(record.file, record.offset, chunks)
        return crc

    def copy(self, file: int, offset: int, chunks: Iterable[bytes]) -> int:
        """Bytes at a place behind all that has been written; returns their checksum."""
        self._move(file, offset)
        self._crc = 0
        for chunk in chunks:
            self._write(chunk)
        return self._crc

    def finish(self, selftest: tuple[int, int, int] = (0, 0, 0)) -> None:
        """The tables and the companions' headers; may be repeated with other checksums."""
        meta = self._meta(selftest)
        headers = [self._companion(number, meta[_ID]) for number in range(1, len(self.streams))]
        for stream, start in zip(self.streams, (meta, *headers), strict=True):
            stream.seek(0)
            stream.write(start)
            stream.flush()

    def _move(self, file: int, offset: int) -> None:
        if file != self._file:  # the next one: a file is left for good
            self._file, self._at = file, 0
        self._pad(offset)

    def _pad(self, to: int) -> None:
        self._write(bytes(to - self._at))

    def _write(self, data: bytes) -> None:
        self.streams[self._file].write(data)
        self._crc = zlib.crc32(data, self._crc)
        self._at += len(data)

    def _companion(self, number: int, identity: bytes) -> bytes:
        size = self.layout.files[number]
        header = struct.pack("<8sIIQ16s20x", COMPANION_MAGIC, VERSION, number, size, identity)
        return header + struct.pack("<I", zlib.crc32(header))

    def _meta(self, selftest: tuple[int, int, int]) -> bytes:
        layout, model, meta = self.layout, self.layout.model, bytearray(self.layout.meta_bytes)
        contents = {
            CONFIG: model.config, LAYERS: model.layers, TENSORS: b"".join(self._tensor_entries()),
            EXPERTS: b"".join(self._expert_entries()), STOP: model.stop,
            SELFTEST: u32((*selftest, *model.tokens)), NOTES: model.notes,
            FILES: b"".join(self._file_entries()),
        }  # fmt: skip
        identities = [_ID]
        for index, section in enumerate(layout.sections):
            crc = self._tokenizer_crc if section.kind == TOKENIZER else 0
            struct.pack_into("<IIQQII", meta, HEADER_BYTES + SECTION_BYTES * index, section.kind,
                             section.file, section.offset, section.bytes, crc,
                             section.count)  # fmt: skip
            if section.kind in contents:
                meta[section.offset : section.offset + section.bytes] = contents[section.kind]
            if section.kind == FILES:
                starts = range(section.offset, section.offset + section.bytes, FILE_BYTES)
                identities += [slice(start + 8, start + 24) for start in starts]
        struct.pack_into("<8sIIQII16sI", meta, 0, MAGIC, VERSION, layout.number, layout.file_bytes,
                         layout.meta_bytes, len(layout.sections), bytes(16),
                         layout.placement.block)  # fmt: skip
        identity = hashlib.sha256(meta).digest()[:16]
        for place in identities:
            meta[place] = identity
        crc = zlib.crc32(meta[HEADER_BYTES:], zlib.crc32(meta[:_CRC_AT]))
        struct.pack_into("<I", meta, _CRC_AT, crc)
        return bytes(meta)

    def _tensor_entries(self) -> Iterator[bytes]:
        for spec, offset in zip(self.layout.specs, self.layout.offsets, strict=True):
            yield struct.pack(
                "<HHBBHIIQQI12x", spec.layer_number, spec.role.number, spec.kind,
                spec.order, spec.group, spec.rows, spec.columns, offset, spec.bytes,
                0 if spec.is_expert else self._dense_crc[spec],
            )  # fmt: skip

    def _expert_entries(self) -> Iterator[bytes]:
        for number, record in enumerate(self.layout.records):
            yield struct.pack("<QIIII", record.offset, record.bytes, self._record_crc[number],
                              record.file, 0)  # fmt: skip

    def _file_entries(self) -> Iterator[bytes]:
        for name, size in zip(self.names, self.layout.files[1:], strict=True):
            yield struct.pack("<Q24x64s", size, name.encode())
