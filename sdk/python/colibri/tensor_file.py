# SPDX-License-Identifier: Apache-2.0
"""Safetensors files: the header checked, the tensors read a few rows at a time.

numpy has no bfloat16, so the bytes are taken from a memory map by a header reader of our own,
which checks what the format promises: a header within the file, no key twice, known types, spans
that match the shapes and cover the data without hole or overlap.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colibri.checked_json import parse_object, refuse_special
from colibri.errors import CheckpointError

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


@dataclass(frozen=True)
class Tensor:
    """A tensor in a safetensors file."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    raw: memoryview = field(repr=False)

    def rows(self, elements: int) -> Iterator[NDArray[np.float32]]:
        """The values as float32 matrices, a few rows at a time.

        Parameters
        ----------
        elements : int
            Values to give at once, at least a row.

        Raises
        ------
        CheckpointError
            For a type that is not F32, F16 or BF16, and for NaN or infinity.
        """
        if self.dtype not in DTYPES:
            raise CheckpointError(f"tensor has type {self.dtype}", file=self.file, field=self.name,
                                  hint=f"valid is {', '.join(DTYPES)}")  # fmt: skip
        columns = self.shape[-1] if self.shape else 1
        matrix = np.frombuffer(self.raw, DTYPES[self.dtype]).reshape(-1, columns)
        step = max(1, elements // columns)
        for start in range(0, len(matrix), step):
            part = _to_float32(matrix[start : start + step], self.dtype)
            self._check_finite(part, start)
            yield part

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


def _to_float32(values: NDArray[Any], dtype: str) -> NDArray[np.float32]:
    if dtype == "BF16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)


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
