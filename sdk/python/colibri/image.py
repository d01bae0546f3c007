# SPDX-License-Identifier: Apache-2.0
"""A packed model, opened by the one reader there is (image.c).

>>> image = Image("demo.colibri")                                   # doctest: +SKIP
>>> image.config["experts"], image.stop_ids                         # doctest: +SKIP
(16, (0,))
"""

from __future__ import annotations

import builtins
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from colibri import _core
from colibri.errors import ImageError, TokenizerError
from colibri.placement import LAYOUTS, LayoutName
from colibri.status import CHECKSUM, NO_EXPERT, READ_ERRORS
from colibri.tokenizer import Tokenizer

TYPE_NAMES = {number: name for name, number in _core.TYPES.items()}
ROLE_NAMES = {number: name for name, number in _core.ROLES.items()}
SECTION_NAMES = {number: name for name, number in _core.SECTIONS.items()}


_MOE = 2  # COLIBRI_FFN_MOE: experts, alone or with a dense block


class Section(NamedTuple):
    """An entry of the section table."""

    kind: int
    file: int
    offset: int
    bytes: int
    crc32: int
    count: int  # type: ignore[assignment]  # the format's word; tuple.count is not needed here

    @property
    def name(self) -> str:
        return SECTION_NAMES.get(self.kind, f"kind {self.kind}")


class Tensor(NamedTuple):
    """An entry of the tensor table; offsets of expert roles are inside the expert's record."""

    layer: int
    role: int
    type: int
    order: int
    group: int
    rows: int
    columns: int
    offset: int
    bytes: int
    crc32: int

    @property
    def name(self) -> str:
        return ROLE_NAMES.get(self.role, f"role {self.role}")

    @property
    def type_name(self) -> str:
        return TYPE_NAMES.get(self.type, f"type {self.type}")

    @property
    def is_expert(self) -> bool:
        return _core.ROLES["expert_gate"] <= self.role < _core.ROLES["linear_in"]


class Expert(NamedTuple):
    """An entry of the expert table: one record with the three tensors of one expert."""

    offset: int
    bytes: int
    crc32: int
    file: int


class File(NamedTuple):
    """A file of an image; `name` is what it calls a companion."""

    name: str
    bytes: int


class Pages(NamedTuple):
    """How the memory of an image opened with ``pages="huge"`` lies.

    `bytes` of memory hold a copy of the files (0: they are mapped), `huge_bytes` of them are in
    huge pages now, counted by the kernel; `reason` says why that is not all.  `load_seconds` is
    what the open took, measured.
    """

    asked: str
    bytes: int
    huge_bytes: int
    reason: str | None
    load_seconds: float

    def __str__(self) -> str:
        if not self.bytes:
            return f"the file is mapped: {self.reason or 'asked for'}"
        told = f"{self.huge_bytes:,} of {self.bytes:,} bytes are in huge pages"
        because = f" ({self.reason})" if self.reason else ""
        return f"{told}{because}; measured: {self.load_seconds:.3f} s to read the file"


#: Names of ``pages``: the file mapped with the system's pages, or copied into huge ones.
PAGES = ("4k", "huge")
MAX_READERS = 64
READERS = 4  # reads at once that keep a disk busy and still let records arrive one by one
MAX_TIME_LIMIT = 86_400  # seconds


def check_path(path: str) -> None:
    """ImageError for a path that the C library cannot take."""
    if "\0" in path:
        raise ImageError("a path cannot hold a zero byte", file=repr(path))
    if not path.isprintable() and any("\ud800" <= char <= "\udfff" for char in path):
        raise ImageError("the path is not UTF-8", file=ascii(path), hint="rename the file")


class Image:
    """A checked, read-only view of an image.

    The companion files of a sharded or hybrid image are looked for beside it, by the names that
    it has for them.

    Parameters
    ----------
    source : str, Path or bytes
        The file, or its content.
    map : bool
        Map the file, so that weights are used in place. Without it every byte is read.
    pages : {"4k", "huge"}
        ``"huge"`` copies the file into memory in huge pages (Linux): faster to read for the CPU,
        but the whole file is read first and takes memory of its size. Where that is not to be
        had the file is mapped; `pages` says why.

    Raises
    ------
    ImageError
        When the file cannot be opened or breaks a rule of docs/spec.md. Weights are not read
        here: `verify` checks them.
    """

    def __init__(self, source: str | Path | bytes, *, map: bool = True, pages: str = "4k") -> None:
        if not isinstance(source, str | Path | bytes | bytearray | memoryview):
            raise ImageError(
                f"{type(source).__name__} is not a path or bytes", hint="give str, Path or bytes"
            )
        self.path = Path(source) if isinstance(source, str | Path) else None
        self.name = str(source) if self.path is not None else "image in memory"
        given = str(source) if isinstance(source, str | Path) else bytes(source)
        if isinstance(given, str):
            check_path(given)
        if pages not in PAGES:
            raise ImageError(f"pages are '{pages}'", hint=f"use one of {', '.join(PAGES)}")
        huge = pages == "huge"
        if huge and (self.path is None or not map):
            raise ImageError(
                "only a file that is mapped can be put into huge pages",
                file=self.name,
                hint='give a path and leave map as it is, or pages="4k"',
            )
        begin = time.perf_counter()
        self.core = _core.Image(given, map, self.name, huge)
        self._opened = (pages, time.perf_counter() - begin)

    def __repr__(self) -> str:
        return f"Image({self.name!r}, {self.bytes:,} bytes)"

    @property
    def bytes(self) -> int:
        """Length of the image itself, without companion files."""
        return self.core.bytes

    @property
    def total_bytes(self) -> int:
        """Length of all files, each padded to a multiple of 64 but the last."""
        return self.core.total_bytes

    @cached_property
    def files(self) -> tuple[File, ...]:
        """The image itself, then its companions."""
        return tuple(File(*row) for row in self.core.files())

    @property
    def paths(self) -> tuple[Path, ...]:
        """Of all files; empty for an image in memory."""
        if self.path is None:
            return ()
        return (self.path, *(self.path.with_name(file.name) for file in self.files[1:]))

    @cached_property
    def layout(self) -> LayoutName:
        """Where its experts lie (`colibri.placement`)."""
        return LAYOUTS[int.from_bytes(self.read(12, 4), "little")]

    @property
    def pages(self) -> Pages:
        """Where the bytes are, asked anew: the kernel may gather or split pages."""
        asked, seconds = self._opened
        return Pages(asked, *self.core.pages(), seconds)

    def read_ahead(
        self, threads: int = READERS, direct: bool = False, time_limit: float | None = None
    ) -> None:
        """Lets streamed experts be read by threads while others are computed.

        Engines with streamed weights call it themselves; the first call counts.

        Parameters
        ----------
        threads : int
            Reads at once, 1 to 64, each of at most 2 MiB.
        direct : bool
            Past the page cache (O_DIRECT), so that no byte of the model is in memory twice.
        time_limit : float, optional
            Seconds after which a read that its device does not answer has failed.  Default: a
            read takes as long as the system lets it.

        Raises
        ------
        ImageError
            When the file system has no direct reads, or there are no more threads.
        """
        if not 1 <= threads <= MAX_READERS:
            raise ImageError(f"threads is {threads}", hint=f"use 1 .. {MAX_READERS}")
        if time_limit is not None and not 0.001 <= time_limit <= MAX_TIME_LIMIT:
            raise ImageError(
                f"time_limit is {time_limit} s",
                hint=f"use 0.001 .. {MAX_TIME_LIMIT:,}, or None for no limit",
            )
        failed = self.core.read_ahead(threads, direct, round((time_limit or 0) * 1000))
        if failed:
            hint = "leave direct out" if direct else None
            what = f"cannot read ahead: {os.strerror(failed)}"
            raise ImageError(what, file=self.name, hint=hint)

    @property
    def meta_bytes(self) -> int:
        """Length of header and tables, which a storage without a map needs in RAM."""
        return self.core.meta_bytes

    @cached_property
    def config(self) -> dict[str, Any]:
        """Effective model settings (docs/spec.md, section 2)."""
        return self.core.config()

    @property
    def vocabulary(self) -> int:
        return int(self.config["vocabulary"])

    @property
    def context(self) -> int:
        """The longest context that the model was made for."""
        return int(self.config["context"])

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        return tuple(Section(*row) for row in self.core.sections())

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(Tensor(*row) for row in self.core.tensors())

    @cached_property
    def experts(self) -> tuple[Expert, ...]:
        return tuple(Expert(*row) for row in self.core.experts())

    @cached_property
    def expert_layers(self) -> tuple[int, ...]:
        """Layers that have experts, in the order of the expert table."""
        return tuple(i for i, kind in enumerate(self.core.layers()) if kind[1] & _MOE)

    @cached_property
    def stop_ids(self) -> tuple[int, ...]:
        """Token ids that end a text."""
        return tuple(self.core.stop_ids())

    def section(self, name: str) -> Section | None:
        """A section by name (``"notes"``, ``"tokenizer"``, ...), or None."""
        kind = _core.SECTIONS[name]
        return next((section for section in self.sections if section.kind == kind), None)

    def section_bytes(self, name: str) -> builtins.bytes | None:
        """The content of a section, or None when the image has none."""
        section = self.section(name)
        return None if section is None else self.read(section.offset, section.bytes)

    def read(self, offset: int, bytes: int, file: int = 0) -> builtins.bytes:
        """`bytes` bytes from `offset` of the image or of a companion; ImageError outside of it."""
        if not 0 <= file < len(self.files):
            raise ImageError(
                f"has no file {file}", file=self.name, hint=f"valid is 0 .. {len(self.files) - 1}"
            )
        size = self.files[file].bytes
        if offset < 0 or bytes < 0 or offset + bytes > size:
            raise ImageError(
                f"bytes {offset} .. {offset + bytes} are not all inside",
                file=self.files[file].name or self.name,
                hint=f"the file has {size}",
            )
        return self.core.read(offset, bytes, file)

    @cached_property
    def notes(self) -> dict[str, Any]:
        """Where the image came from; for people and tools, never read by the runtime."""
        try:
            notes = json.loads(self.section_bytes("notes") or b"{}")
        except (ValueError, RecursionError) as error:
            raise ImageError("notes are not JSON", file=self.name, field="notes") from error
        if not isinstance(notes, dict):
            raise ImageError("notes are not a JSON object", file=self.name, field="notes")
        return notes

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer inside; TokenizerError when there is none."""
        data = self.section_bytes("tokenizer")
        if data is None:
            raise TokenizerError(
                "the image has no tokenizer", file=self.name, hint="give token ids (--tokens)"
            )
        return Tokenizer(data, name=self.name)

    @property
    def has_tokenizer(self) -> bool:
        return self.section("tokenizer") is not None

    def verify(self) -> None:
        """Checks every weight block, and the tokenizer, against its checksum."""
        with self.named_errors():
            self.core.verify()

    @contextmanager
    def named_errors(self) -> Iterator[None]:
        """Errors of reading weights say the name of what was read, and of the file that has it."""
        try:
            yield
        except ImageError as error:
            raise self.named(error) from None

    def named(self, error: ImageError) -> ImageError:
        """One such error."""
        status = error.status
        what, file, hint = error.what, 0, error.hint
        if status is None or status.code not in (CHECKSUM, *READ_ERRORS):
            return error
        if status.code == CHECKSUM:
            block = self._block_name(status.where)
            what = f"{block} has checksum {status.have:08x}, not {status.need:08x}"
            hint = "copy the file again or pack the model again"
        elif status.where >= NO_EXPERT:
            file = status.where - NO_EXPERT
        else:
            row = self.expert_layers.index(status.where >> 16) * self._experts_each
            file = self.experts[row + (status.where & 0xFFFF)].file
        path = self.name if file == 0 or self.path is None else self.paths[file]
        named = ImageError(what, file=path, hint=hint)
        named.status = status
        return named

    @property
    def _experts_each(self) -> int:
        return int(self.config["experts"] - self.config["identities"])

    def _block_name(self, block: int) -> str:
        """Blocks are numbered as colibri_verify goes: tensors, experts, the tokenizer."""
        if block < len(self.tensors):
            tensor = self.tensors[block]
            at = "" if tensor.layer == _core.GLOBAL_LAYER else f" of layer {tensor.layer}"
            return f"tensor {tensor.name}{at}"
        block -= len(self.tensors)
        if block < len(self.experts):
            layer, expert = divmod(block, self._experts_each)
            return f"expert {expert} of layer {self.expert_layers[layer]}"
        return "the tokenizer"
