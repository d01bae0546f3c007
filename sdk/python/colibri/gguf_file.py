# SPDX-License-Identifier: Apache-2.0
"""GGUF files: the header checked, the tensors read a few rows at a time.

The layout is that of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3,
little-endian.  The header is walked here, as the file may be damaged or made to harm: nothing in it
is believed before the file is seen to be long enough.  What the codes of quantised tensors stand
for is known by the ``gguf`` package (``pip install colibri-sdk[gguf]``).
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from colibri.checked_json import refuse_special
from colibri.codings import Coding
from colibri.errors import CheckpointError
from colibri.tensor_file import DTYPES, Tensor

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_AXES = 4
# number of a type -> its form in `struct`; strings and arrays apart
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q",
            12: "d"}  # fmt: skip
_STRING, _ARRAY = 8, 9
_LEAST = {"metadata": 8 + 4 + 1, "tensors": 8 + 4 + 8 + 4 + 8}  # bytes of one entry


class GgufFile(NamedTuple):
    """Metadata by key, tensors by name.  Arrays of strings are not kept: None stands for them."""

    metadata: dict[str, Any]
    tensors: dict[str, Tensor]


class _Span(NamedTuple):
    """Where a tensor says that it lies, counted from the start of the data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    bytes: int


def read_gguf(path: Path) -> GgufFile:
    """The metadata and the tensors of a file, no tensor read yet.

    Raises
    ------
    CheckpointError
        When the file is not what the format promises, and when the gguf package is missing.
    """
    walker = _Walker(path, _mapped(path))
    walker.magic()
    kinds = _kinds()
    metadata, spans = walker.header(kinds)
    view = walker.view[walker.data_start(metadata) :]
    _check_spans(path, spans, len(view))
    tensors = {s.name: _tensor(path, s, view[s.start : s.start + s.bytes], kinds) for s in spans}
    return GgufFile(metadata, tensors)


class _Kind(NamedTuple):
    """A type of tensors: values and bytes of a block, and how to decode blocks, if known."""

    name: str
    values: int
    bytes: int
    decode: Callable[..., NDArray[np.float32]] | None


@cache
def _kinds() -> dict[int, _Kind]:
    """Number of a type -> what is known of it."""
    try:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize
    except ImportError as error:
        raise CheckpointError(
            "GGUF files need the gguf package", hint="pip install 'colibri-sdk[gguf]'"
        ) from error

    def decoder(kind: GGMLQuantizationType) -> Callable[..., NDArray[np.float32]] | None:
        def decode(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
            with np.errstate(all="ignore"):  # what is not finite is told by the reader of the rows
                values = dequantize(blocks.reshape(len(blocks), -1), kind)
            return np.asarray(values, np.float32)

        try:
            decode(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8))
        except NotImplementedError:
            return None
        return decode

    return {int(kind): _Kind(kind.name, *sizes, decoder(kind))
            for kind, sizes in GGML_QUANT_SIZES.items()}  # fmt: skip


def _mapped(path: Path) -> memoryview:
    refuse_special(path)
    try:
        with path.open("rb") as stream:
            if not path.stat().st_size:
                raise CheckpointError("is empty", file=path)
            return memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise CheckpointError(error.strerror or "cannot be read", file=path) from error


class _Walker:
    """Reads a header from front to back; every length is checked against what is left."""

    def __init__(self, path: Path, view: memoryview) -> None:
        self.path, self.view, self.at = path, view, 0

    def refuse(self, what: str, field: str, hint: str | None = None) -> CheckpointError:
        return CheckpointError(what, file=self.path, field=field, hint=hint)

    def magic(self) -> None:
        magic = bytes(self.view[:4])
        if magic != MAGIC:
            raise self.refuse(f"starts with {magic!r}, not with {MAGIC!r}", "magic",
                              "give a folder with config.json, or a GGUF file")  # fmt: skip
        self.at = 4

    def header(self, kinds: dict[int, _Kind]) -> tuple[dict[str, Any], list[_Span]]:
        version = self.number("I", "version")
        if version not in VERSIONS:
            swapped = " (big-endian)" if version & 0xFFFF == 0 else ""
            raise self.refuse(f"is {version}{swapped}", "version", "valid is 2 or 3, little-endian")
        counts = {name: self.number("Q", f"count of {name}") for name in ("tensors", "metadata")}
        for name, count in counts.items():
            self.check_room(count, _LEAST[name], f"count of {name}")
        metadata: dict[str, Any] = {}
        for i in range(counts["metadata"]):
            key = self.string(f"key {i}")
            if key in metadata:
                raise self.refuse("is there twice", key)
            metadata[key] = self.value(self.number("I", key), key)
        align = alignment(self.path, metadata)
        spans = [self.tensor(i, kinds, align) for i in range(counts["tensors"])]
        return metadata, spans

    def data_start(self, metadata: dict[str, Any]) -> int:
        align = alignment(self.path, metadata)
        return -(-self.at // align) * align

    def check_room(self, count: int, size: int, field: str) -> None:
        left = len(self.view) - self.at
        if count * size > left:
            raise self.refuse(f"is cut short: {count} of at least {size} bytes, {left} are left",
                              field, "fetch the file again")  # fmt: skip

    def number(self, form: str, field: str) -> Any:
        size = struct.calcsize(f"<{form}")
        self.check_room(1, size, field)
        (value,) = struct.unpack_from(f"<{form}", self.view, self.at)
        self.at += size
        return value

    def string(self, field: str) -> str:
        length = self.number("Q", field)
        self.check_room(length, 1, field)
        raw = bytes(self.view[self.at : self.at + length])
        self.at += length
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.refuse(f"is not UTF-8: {error.reason}", field) from error

    def value(self, kind: int, key: str) -> Any:
        if kind == _STRING:
            return self.string(key)
        if kind == _ARRAY:
            return self.array(key)
        if kind not in _SCALARS:
            raise self.refuse(f"has values of the unknown type {kind}", key)
        return self.number(_SCALARS[kind], key)

    def array(self, key: str) -> list[Any] | None:
        kind, count = self.number("I", key), self.number("Q", key)
        if kind == _STRING:
            self.check_room(count, 8, key)
            for _ in range(count):
                length = self.number("Q", key)
                self.check_room(length, 1, key)
                self.at += length
            return None
        if kind not in _SCALARS:
            raise self.refuse(f"is an array of the unknown type {kind}", key)
        size = struct.calcsize(_SCALARS[kind])
        self.check_room(count, size, key)
        raw = self.view[self.at : self.at + count * size]
        self.at += count * size
        return list(np.frombuffer(raw, np.dtype(_SCALARS[kind]).newbyteorder("<")).tolist())

    def tensor(self, number: int, kinds: dict[int, _Kind], align: int) -> _Span:
        name = self.string(f"name of tensor {number}")
        axes = self.number("I", name)
        if not 1 <= axes <= MAX_AXES:
            raise self.refuse(f"has {axes} axes", name, f"valid is 1 to {MAX_AXES}")
        shape = tuple(self.number("Q", name) for _ in range(axes))[::-1]
        kind, start = self.number("I", name), self.number("Q", name)
        if not all(shape) or math.prod(shape) >= 1 << 63:
            raise self.refuse(f"shape is {list(shape)}", name, "valid are sizes of 1 or more")
        if kind not in kinds:
            raise self.refuse(f"has the unknown type {kind}", name, "a newer gguf package may help")
        known = kinds[kind]
        if shape[-1] % known.values:
            raise self.refuse(f"rows of {shape[-1]} values are no whole blocks of {known.name}",
                              name, f"valid are multiples of {known.values}")  # fmt: skip
        if start % align:
            raise self.refuse(f"begins at {start}", name, f"valid are multiples of {align}")
        size = math.prod(shape) // known.values * known.bytes
        return _Span(name, known.name, shape, start, size)


def alignment(path: Path, metadata: dict[str, Any]) -> int:
    """What the offsets of tensors are multiples of."""
    value = metadata.get("general.alignment", 32)
    if type(value) is not int or not 0 < value <= 1 << 20 or value & value - 1:
        raise CheckpointError(f"is {value!r}", file=path, field="general.alignment",
                              hint="valid is a power of two")  # fmt: skip
    return value


def _check_spans(path: Path, spans: list[_Span], size: int) -> None:
    """Names are unique, and tensors lie within the file, none over another."""
    names: set[str] = set()
    for span in spans:
        if span.name in names:
            raise CheckpointError("is there twice", file=path, field=span.name)
        names.add(span.name)
        if span.start + span.bytes > size:
            raise CheckpointError(
                f"is cut short: ends at byte {span.start + span.bytes} of the data, "
                f"which has {max(size, 0)}",
                file=path, field=span.name, hint="fetch the file again",
            )  # fmt: skip
    for one, other in pairwise(sorted(spans, key=lambda s: s.start)):
        if one.start + one.bytes > other.start:
            raise CheckpointError(f"overlaps {one.name}", file=path, field=other.name)


def _tensor(path: Path, span: _Span, raw: memoryview, kinds: dict[int, _Kind]) -> Tensor:
    kind = next(k for k in kinds.values() if k.name == span.dtype)
    if span.dtype in DTYPES or kind.decode is None:
        return Tensor(span.name, path, span.dtype, span.shape, raw)
    blocks = (*span.shape[:-1], span.shape[-1] // kind.values, kind.bytes)
    coding = Coding((np.frombuffer(raw, np.uint8).reshape(blocks),), (2,), kind.decode, kind.values)
    return Tensor(span.name, path, span.dtype, span.shape, raw, lambda: coding)
