# SPDX-License-Identifier: Apache-2.0
"""Safetensors files: the header checked, the tensors read a few rows at a time.

numpy has no bfloat16, so the bytes are taken from a memory map by a header reader of our own,
which checks what the format promises: a header within the file, no key twice, known types, spans
that match the shapes and cover the data without hole or overlap.

A tensor of codes is decoded with the tensor of its scales (`colibri.codings`).
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colibri.checked_json import parse_object, refuse_special
from colibri.codings import Coding, floats, fp8, mxfp4, scale_shape
from colibri.errors import CheckpointError
from colibri.image_format import align

MAX_HEADER = 100_000_000  # as the reference implementation has it
DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}
# Other types may be in a file as long as no tensor of the model has one.
_WIDTHS = {
    **{name: dtype.itemsize for name, dtype in DTYPES.items()},
    **dict.fromkeys(("F64", "I64", "U64"), 8),
    **dict.fromkeys(("I32", "U32"), 4),
    **dict.fromkeys(("I16", "U16"), 2),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2"), 1),
}


Pick = Callable[[NDArray[Any]], NDArray[Any]]


@dataclass(frozen=True)
class Tensor:
    """A tensor in a safetensors file, or a part of one."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    raw: memoryview = field(repr=False)
    coded: Callable[[], Coding] | None = field(default=None, repr=False)  # None: as floats
    factor: float = 1.0  # multiplies every value, in float32
    plus: float = 0.0  # then added to it

    @classmethod
    def given(cls, name: str, file: Path, values: Sequence[float]) -> Tensor:
        """A vector that the file does not have."""
        raw = np.asarray(values, "<f4").tobytes()
        return cls(name, file, "F32", (len(values),), memoryview(raw))

    def part(self, pick: Pick) -> Tensor:
        """A part of the tensor, or its elements in another order.

        `pick` sees stored elements; of mxfp4 it sees blocks, so it must leave the last axis alone.
        """
        whole = self._coding
        shape = _shape_of(whole()._replace(arrays=(pick(whole().arrays[0]),)))
        return replace(self, shape=shape, coded=lambda: whole().picked(pick))

    def with_fp8_scales(self, scales: Tensor, block: tuple[int, int]) -> Tensor:
        """The tensor of codes together with the scales of its blocks."""
        if scales.shape != scale_shape(self.shape, block):
            self._refuse_scales(scales, scale_shape(self.shape, block))
        codes = self._bytes()
        values = np.concatenate(list(scales.rows(1 << 16))).reshape(scales.shape)
        return replace(self, coded=lambda: fp8(codes, values, block))

    def with_mxfp4_scales(self, scales: Tensor) -> Tensor:
        """The tensor of blocks together with their scales; the shape is that of the values."""
        if (self.dtype, scales.dtype, self.shape[-1:]) != ("U8", "U8", (16,)):
            raise CheckpointError(
                f"is {self.dtype} {list(self.shape)}, its scales {scales.dtype}",
                file=self.file,
                field=self.name,
                hint="mxfp4 blocks are U8 [..., 16], with scales of U8",
            )
        if scales.shape != self.shape[:-1]:
            self._refuse_scales(scales, self.shape[:-1])
        coded = mxfp4(self._bytes(), scales._bytes())
        return replace(self, shape=_shape_of(coded), coded=lambda: coded)

    def _bytes(self) -> NDArray[np.uint8]:
        return np.frombuffer(self.raw, np.uint8).reshape(self.shape)

    def _refuse_scales(self, scales: Tensor, expected: tuple[int, ...]) -> None:
        raise CheckpointError(f"shape is {list(scales.shape)}, expected {list(expected)}",
                              file=scales.file, field=scales.name,
                              hint=f"the scales of {self.name}, {list(self.shape)}")  # fmt: skip

    def _coding(self) -> Coding:
        if self.coded:
            return self.coded()
        if self.dtype not in DTYPES:
            raise CheckpointError(f"tensor has type {self.dtype}", file=self.file, field=self.name,
                                  hint=f"valid is {', '.join(DTYPES)}")  # fmt: skip
        return floats(np.frombuffer(self.raw, DTYPES[self.dtype]).reshape(self.shape))

    def rows(self, elements: int, multiple: int = 1) -> Iterator[NDArray[np.float32]]:
        """The values as float32 matrices, a few rows at a time.

        Parameters
        ----------
        elements : int
            Values to give at once, at least `multiple` rows.
        multiple : int
            Rows come in multiples of this, but for the last ones.

        Raises
        ------
        CheckpointError
            For a type that cannot be read, and for NaN or infinity.
        """
        coding, columns = self._coding(), self.shape[-1] if self.shape else 1
        count, step = math.prod(self.shape) // columns, align(max(1, elements // columns), multiple)
        for start in range(0, count, step):
            part = coding.rows(start, start + step)
            self._check_finite(part, start)
            part = part if self.factor == 1 else part * np.float32(self.factor)
            yield part if self.plus == 0 else part + np.float32(self.plus)

    def _check_finite(self, part: NDArray[np.float32], start: int) -> None:
        finite = np.isfinite(part)
        if finite.all():
            return
        row, column = (int(i) for i in np.argwhere(~finite)[0])
        index = np.unravel_index((start + row) * part.shape[1] + column, self.shape or (1,))
        raise CheckpointError(
            f"weight {part[row, column]} at index {[int(i) for i in index]}",
            file=self.file, field=self.name, hint="every weight must be a finite number",
        )  # fmt: skip

    def same_bytes(self, other: Tensor) -> bool:
        """Whether two tensors are identical in type, shape and content."""
        return (self.dtype, self.shape) == (other.dtype, other.shape) and self.raw == other.raw


def _shape_of(coding: Coding) -> tuple[int, ...]:
    """Shape of the values: two axes within a row of codes are one of values."""
    first, inner = coding.arrays[0], coding.inner[0]
    return first.shape if inner == 1 else (*first.shape[:-2], first.shape[-2] * coding.block)


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, none of them read yet.

    Raises
    ------
    CheckpointError
        When the file is not what the format promises; with expected and actual size when it is
        shorter or longer than its header says.
    """
    refuse_special(path)
    try:
        with path.open("rb") as stream:
            size = path.stat().st_size
            view = memoryview(
                mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
            )
    except OSError as error:
        raise CheckpointError(error.strerror or "cannot be read", file=path) from error
    start = 8 + _header_bytes(path, view)
    header = parse_object(bytes(view[8:start]), path, "header")
    header.pop("__metadata__", None)
    entries = {name: _entry(path, name, entry) for name, entry in header.items()}
    _check_spans(path, entries, start, len(view))
    return {
        name: Tensor(name, path, dtype, shape, view[start + begin : start + end])
        for name, (dtype, shape, begin, end) in entries.items()
    }


_Entry = tuple[str, tuple[int, ...], int, int]


def _header_bytes(path: Path, view: memoryview) -> int:
    if len(view) < 8:
        raise CheckpointError(
            f"is cut short: expected at least 8 bytes, has {len(view)}", file=path
        )
    length = int.from_bytes(view[:8], "little")
    if length > MAX_HEADER:
        raise CheckpointError(f"header length is {length}", file=path,
                              hint=f"valid are at most {MAX_HEADER} bytes")  # fmt: skip
    if length > len(view) - 8:
        raise CheckpointError(
            f"is cut short in the header: expected at least {8 + length} bytes, has {len(view)}",
            file=path,
        )
    return length


def _entry(path: Path, name: str, entry: Any) -> _Entry:
    def natural(value: Any) -> bool:
        return type(value) is int and 0 <= value < 1 << 63

    def refuse(what: str) -> CheckpointError:
        return CheckpointError(what, file=path, field=name)

    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise refuse("header entry must have dtype, shape and data_offsets")
    dtype, shape, span = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _WIDTHS:
        raise refuse(f"unknown dtype {dtype!r}; known are {', '.join(sorted(_WIDTHS))}")
    if not isinstance(shape, list) or len(shape) > 8 or not all(map(natural, shape)):
        raise refuse(f"shape {shape!r} is not a list of at most 8 sizes")
    if not isinstance(span, list) or len(span) != 2 or not all(map(natural, span)):
        raise refuse(f"data_offsets {span!r} is not [begin, end]")
    expected = math.prod(shape) * _WIDTHS[dtype]
    if span[1] - span[0] != expected:
        raise refuse(f"data_offsets span {span[1] - span[0]} bytes, {dtype} {shape} has {expected}")
    return dtype, tuple(shape), span[0], span[1]


def _check_spans(path: Path, entries: dict[str, _Entry], start: int, size: int) -> None:
    """The tensors cover the data, from `start` to the end of the file, each byte once."""
    end = 0
    for name, (_, _, begin, stop) in sorted(entries.items(), key=lambda e: (e[1][2], e[1][3])):
        if begin != end:
            what = "overlaps the tensor before it" if begin < end else "leaves a hole before it"
            raise CheckpointError(
                f"{what}: begins at {begin}, expected {end}", file=path, field=name
            )
        end = stop
    if start + end != size:
        what = "is cut short" if size < start + end else "has bytes after the last tensor"
        raise CheckpointError(f"{what}: expected {start + end} bytes, has {size}", file=path,
                              hint="fetch the file again")  # fmt: skip
