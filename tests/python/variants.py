# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of other shapes and seeds, made from a few numbers and NumPy alone.

``tests/golden/variants/<family>.json`` has, for each variant, its config and its tensors:

    "model.layers.{0..1}.mlp.gate.weight": [[5, 48], 0.0, 0.29]     shape, centre, scale

A name with ``{a..b}`` stands for one tensor per number. Values are centre + scale * noise; the
noise is uniform, of unit variance, from PCG64 seeded by the variant's seed and the tensor's name.
``<family>.npz`` has what the reference computes; ``tests/golden/make_variants.py`` makes both.
"""

from __future__ import annotations

import itertools
import json
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import checkpoints as ck

FOLDER = ck.GOLDEN / "variants"
#: Each class's defaults, and what a config needs besides to be one of a model that we carry.
DEFAULTS = ck.GOLDEN / "class_defaults.json"
#: What `<family>.npz` has for each variant, under ``<variant>/<array>``.
ARRAYS = ("input_ids", "logits", "experts", "weights", "greedy")
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
Entry = list[Any]  # shape, centre, scale


def expand(tensors: dict[str, Entry]) -> dict[str, Entry]:
    """One entry per tensor."""
    return {name: entry for folded, entry in tensors.items() for name in _names(folded)}


def _names(folded: str) -> Iterator[str]:
    parts = _RANGE.split(folded)
    ranges = [range(int(a), int(b) + 1) for a, b in zip(parts[1::3], parts[2::3], strict=True)]
    for numbers in itertools.product(*ranges):
        pairs = itertools.zip_longest(parts[0::3], map(str, numbers), fillvalue="")
        yield "".join(text + number for text, number in pairs)


def fold(tensors: dict[str, Entry]) -> dict[str, Entry]:
    """The opposite of `expand`: numbers in names become ranges, the rightmost first."""
    for place in range(3):
        tensors = _fold_place(tensors, place)
    return tensors


def _fold_place(tensors: dict[str, Entry], place: int) -> dict[str, Entry]:
    runs: dict[tuple[str, str, str], list[int]] = {}
    alone: dict[str, Entry] = {}
    for name, entry in tensors.items():
        numbers = list(re.finditer(r"(?<=\.)\d+(?=\.|$)|\{\d+\.\.\d+\}", name))
        plain = [m for m in numbers if not m[0].startswith("{")]
        if place >= len(numbers) or not plain:
            alone[name] = entry
            continue
        m = plain[-1]
        key = (name[: m.start()], name[m.end() :], json.dumps(entry))
        runs.setdefault(key, []).append(int(m[0]))
    for (head, tail, text), found in runs.items():
        for first, last in _runs(sorted(found)):
            middle = str(first) if first == last else f"{{{first}..{last}}}"
            alone[head + middle + tail] = json.loads(text)
    return alone


def _runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    for _, group in itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        yield run[0], run[-1]


def values(seed: int, name: str, entry: Entry) -> NDArray[np.float32]:
    """A tensor's weights. Raw output of PCG64 is the same in every NumPy."""
    shape, centre, scale = entry
    raw = np.random.PCG64([seed, zlib.crc32(name.encode())]).random_raw(int(np.prod(shape)))
    noise = ((raw >> np.uint64(11)) * 2.0**-53 - 0.5) * 12**0.5
    return np.asarray((centre + scale * noise).reshape(shape), np.float32)


def to_bf16(array: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Bits of the nearest bfloat16, ties to even."""
    bits = array.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def weights(seed: int, dtype: str, tensors: dict[str, Entry]) -> ck.Tensors:
    """Every tensor as a file has it (bfloat16 as bits)."""
    stored: dict[str, Callable[[NDArray[np.float32]], NDArray[Any]]]
    stored = {"float32": np.asarray, "float16": lambda a: a.astype(np.float16), "bfloat16": to_bf16}
    return {
        name: stored[dtype](values(seed, name, entry))
        for name, entry in sorted(expand(tensors).items())
    }


def checksum(tensors: ck.Tensors) -> int:
    return zlib.crc32(b"".join(array.tobytes() for array in tensors.values()))


def write(folder: Path, config: dict[str, Any], tensors: ck.Tensors) -> Path:
    """A checkpoint folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(ck.safetensors_bytes(tensors))
    return folder


def checkpoint(folder: Path, variant: dict[str, Any]) -> Path:
    """A variant as a publisher would have it.

    That is what the reference was computed with, and where the variant says so: ``more``, tensors
    that a model of tokens has no use for, and ``wrap``, a class around the language model: its name
    and type, and what stands before the names of tensors.
    """
    tensors = weights(variant["seed"], variant["dtype"], variant["tensors"])
    if checksum(tensors) != variant["crc32"]:
        raise AssertionError("the weights are not those that the reference was computed with")
    config = variant["config"]
    tensors |= weights(variant["seed"], variant["dtype"], variant.get("more", {}))
    if wrap := variant.get("wrap"):
        tensors = {_renamed(name, wrap["names"]): array for name, array in tensors.items()}
        inner = {k: v for k, v in config.items() if k != "architectures"}
        config = {"architectures": [wrap["class"]], "model_type": wrap["type"],
                  "text_config": inner}  # fmt: skip
    return write(folder, config, tensors)


def _renamed(name: str, prefixes: dict[str, str]) -> str:
    found = next((old for old in prefixes if name.startswith(old)), None)
    return name if found is None else prefixes[found] + name.removeprefix(found)


def load(family: str) -> dict[str, dict[str, Any]]:
    """The variants of a family by name."""
    found: dict[str, dict[str, Any]] = json.loads((FOLDER / f"{family}.json").read_text())
    return found


def reference(family: str, variant: str) -> dict[str, NDArray[Any]]:
    """What the reference computes."""
    with np.load(FOLDER / f"{family}.npz") as arrays:
        return {name: arrays[f"{variant}/{name}"] for name in ARRAYS}
