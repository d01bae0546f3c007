# SPDX-License-Identifier: Apache-2.0
"""Where expert records go: behind the weights, into shards, or into one file beside the image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from colibri.checked_json import read_json
from colibri.errors import CheckpointError, PackError
from colibri.image_format import ALIGNMENT, MAX_COMPANIONS, align

LayoutName = Literal["monolithic", "sharded", "hybrid"]
LAYOUTS: tuple[LayoutName, ...] = ("monolithic", "sharded", "hybrid")
FAT32_BYTES = 2**32 - 1  # the longest file that FAT32 holds
STREAM_BLOCK = 4096  # flash and direct reads want this
BLOCK_MAX = 65536
NAME_MAX = 63  # bytes of a companion's name


@dataclass(frozen=True)
class Placement:
    """How records are laid out.

    Attributes
    ----------
    layout : str
        One of `LAYOUTS`.
    block : int
        Alignment of records, a power of two from 64 to 65536.
    shard_bytes : int
        Most bytes of a companion file; sharded only.
    order : tuple of int
        Numbers of the records (as in the expert table) in the order in which they shall lie;
        empty: as in the table.
    """

    layout: LayoutName = "monolithic"
    block: int = ALIGNMENT
    shard_bytes: int = FAT32_BYTES
    order: tuple[int, ...] = ()

    @classmethod
    def of(
        cls, layout: LayoutName, block: int | None = None, shard_bytes: int | None = None
    ) -> Placement:
        """Checked, with the defaults of the layout."""
        given = block
        if given is None:
            given = ALIGNMENT if layout == "monolithic" else STREAM_BLOCK
        if not ALIGNMENT <= given <= BLOCK_MAX or given & (given - 1):
            raise PackError(
                f"is {given}",
                field="block",
                hint=f"valid is a power of two from {ALIGNMENT} to {BLOCK_MAX}",
            )
        if shard_bytes is not None and layout != "sharded":
            raise PackError(f"is for sharded images, not {layout} ones", field="shard size",
                            hint="add --layout sharded, or leave it out")  # fmt: skip
        return cls(layout, given, FAT32_BYTES if shard_bytes is None else shard_bytes)

    def ordered(self, records: int) -> tuple[int, ...]:
        """Numbers of all records in the order in which they lie."""
        return self.order or tuple(range(records))

    def companions(self, sizes: Sequence[int]) -> list[list[int]]:
        """Numbers of the records of each companion file, from the bytes of each record.

        Raises
        ------
        PackError
            When there is nothing to put there, or too much for the size of a shard.
        """
        if self.layout == "monolithic":
            return []
        if not sizes:
            raise PackError(f"is {self.layout}, but the model has no experts", field="layout",
                            hint="use monolithic")  # fmt: skip
        limit = math.inf if self.layout == "hybrid" else self.shard_bytes
        least = self.block + max(sizes)
        if least > limit:
            raise PackError(f"is {limit}, less than one expert takes", field="shard size",
                            hint=f"valid is {least} or more")  # fmt: skip
        files: list[list[int]] = []
        end = 0
        for number in self.ordered(len(sizes)):
            start = align(end, self.block)
            if not files or start + sizes[number] > limit:
                files.append([])
                start = self.block
            end = start + sizes[number]
            files[-1].append(number)
        if len(files) > MAX_COMPANIONS:
            padded = sum(align(size, self.block) for size in sizes)
            enough = least + self.block + padded // MAX_COMPANIONS
            raise PackError(f"is {limit}, which makes {len(files)} shards", field="shard size",
                            hint=f"{enough} or more makes {MAX_COMPANIONS} at most")  # fmt: skip
        return files


#: Everything in one file.
MONOLITHIC = Placement()


def companion_names(target: Path, count: int) -> list[str]:
    """Names of an image's companion files: its own and a number."""
    names = [f"{target.name}.{number}" for number in range(1, count + 1)]
    for name in names:
        if len(name.encode()) > NAME_MAX or any(c in name for c in "\\:") or not name.isprintable():
            raise PackError(
                "cannot name companion files", file=target,
                hint=f"use at most {NAME_MAX - 3} bytes of UTF-8 without \\ and :",
            )  # fmt: skip
        if target.with_name(name).is_dir():
            hint = "a companion file goes there: give the image another name"
            raise PackError("is a folder", file=target.with_name(name), hint=hint)
    return names


def hottest_first(heat: Path, expert_layers: Sequence[int], records: int) -> tuple[int, ...]:
    """Numbers of the records by how often they are used, from a JSON file.

    The file is a trace (`colibri trace`), of which only this is looked at:
    ``{"heat": {"layers": [[12, 0, 7, ...], ...]}}``, for each layer that has experts, in their
    order, how often each expert was chosen.
    """
    try:
        given = read_json(heat).get("heat")
    except CheckpointError as error:
        raise PackError(error.what, file=heat, hint="give what `colibri trace` writes") from error
    layers = given.get("layers") if isinstance(given, dict) else None
    if not isinstance(layers, list) or len(layers) != len(expert_layers):
        have = f"{len(layers)} lists" if isinstance(layers, list) else "no lists of counts"
        hint = f"give a trace of this model, with {len(expert_layers)} layers of experts"
        raise PackError(f"has {have}", file=heat, field="heat.layers", hint=hint)
    flat = [
        n
        for layer, counts in zip(expert_layers, layers, strict=True)
        for n in _counts(heat, counts, layer, records)
    ]
    return tuple(sorted(range(len(flat)), key=lambda number: (-flat[number], number)))


def _counts(heat: Path, given: Any, layer: int, records: int) -> list[float]:
    if not isinstance(given, list) or len(given) < records:
        have = f"{len(given)} counts" if isinstance(given, list) else "no list of counts"
        raise PackError(f"has {have}", file=heat, field=f"heat.layers, layer {layer}",
                        hint=f"give {records}, one for each expert")  # fmt: skip
    for number in given:
        valid = isinstance(number, int | float) and not isinstance(number, bool)
        if not valid or not 0 <= number < math.inf:
            raise PackError(f"has {number!r}", file=heat, field=f"heat.layers, layer {layer}",
                            hint="counts are numbers from 0")  # fmt: skip
    return given[:records]
