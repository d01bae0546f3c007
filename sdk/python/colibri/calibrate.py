# SPDX-License-Identifier: Apache-2.0
"""Calibration: what meets each weight matrix when the model reads a text.

    tokens = read_tokens(Path("text.txt"), source.tokenizer, settings)
    calibration = calibrate(Path("f32.colibri"), wanted, tokens)
    calibration.blocks("expert_down", 3, 7)     # what errors of this matrix cost

The runtime itself runs the model, from an image in f32; a recorder around its kernels sums up the
inputs of each product (recorder.cpp).  An expert's matrices meet only tokens routed to it.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from colibri import _core
from colibri.compensate import Doubles, Factor
from colibri.engine import Engine
from colibri.errors import PackError, TokenizerError
from colibri.image import Image, Tensor
from colibri.image_format import Settings
from colibri.image_layout import TensorSpec
from colibri.quantize import Importance
from colibri.tokenizer import Tokenizer

WINDOW = 512  # tokens that the model sees at a time
TOKENS_MIN, TOKENS_MAX = 256, 1 << 16
FILE_BYTES_MAX = 1 << 26
PRODUCTS_BYTES_MAX = 1 << 30  # of all sums together; roles that do not fit count squares only
PRODUCTS_COLUMNS_MAX = 4095
_BATCH = 128
_DAMPING = 0.01  # of the mean square, added to each column's
#: Tokens of the layer's average expert that each expert's own sums are mixed with.
_PRIOR_TOKENS = 128
#: Roles whose experts all read the same stream, so that the layer's average means something.
_SHARED_STREAM = ("expert_gate", "expert_up")
Key = tuple[str, int | None, int | None]  # role, layer, expert


@dataclass(frozen=True)
class Tokens:
    """A calibration text as windows of token ids.

    Attributes
    ----------
    sha256 : str
        Of the file.
    windows : tuple of arrays
        Each at most WINDOW tokens; of a long text evenly spaced ones.
    given : int
        Tokens of the whole text.
    """

    sha256: str
    windows: tuple[NDArray[np.uint32], ...]
    given: int

    @property
    def count(self) -> int:
        return sum(len(window) for window in self.windows)


def read_tokens(file: Path, tokenizer: bytes | None, settings: Settings) -> Tokens:
    """Token ids of a UTF-8 text, or of a .json file with a list of ids.

    Raises
    ------
    PackError
        For a file that cannot be read, is no text or list, is too short or too long, and for a
        text when the checkpoint has no tokenizer.
    """
    data = _read(file)
    ids = _listed(data, file) if file.suffix == ".json" else _encoded(data, file, tokenizer)
    if len(ids) < TOKENS_MIN:
        hint = f"calibration needs {TOKENS_MIN} tokens; 20,000 and more are good"
        raise PackError(f"has {len(ids)} tokens", file=file, hint=hint)
    outside = next((i for i, t in enumerate(ids) if not 0 <= t < settings.vocabulary), None)
    if outside is not None:
        raise PackError(f"token {outside} is {ids[outside]}", file=file,
                        hint=f"valid is 0 to {settings.vocabulary - 1}")  # fmt: skip
    length = min(WINDOW, settings.context)
    windows = [np.array(ids[i : i + length], np.uint32) for i in range(0, len(ids), length)]
    most = TOKENS_MAX // length
    if len(windows) > most:
        windows = [windows[i * len(windows) // most] for i in range(most)]
    return Tokens(hashlib.sha256(data).hexdigest(), tuple(windows), len(ids))


def _read(file: Path) -> bytes:
    if not file.is_file():
        what = "does not exist" if not file.exists() else "is a folder or a device"
        raise PackError(what, file=file, hint="give a UTF-8 text, or a .json list of token ids")
    try:
        if file.stat().st_size > FILE_BYTES_MAX:
            raise PackError("is too long", file=file, hint=f"valid are {FILE_BYTES_MAX} bytes; "
                            f"{TOKENS_MAX} tokens of it would be used")  # fmt: skip
        return file.read_bytes()
    except OSError as error:
        raise PackError(error.strerror or "cannot be read", file=file) from error


def _listed(data: bytes, file: Path) -> list[int]:
    try:
        ids = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise PackError(f"is not JSON: {error}", file=file) from error
    if not isinstance(ids, list) or any(type(t) is not int for t in ids):
        raise PackError("is not a list of token ids", file=file, hint="write [1, 2, 3, ...]")
    return ids


def _encoded(data: bytes, file: Path, tokenizer: bytes | None) -> list[int]:
    if tokenizer is None:
        raise PackError("the checkpoint has no tokenizer", field="--calibrate",
                        hint="give a .json file with a list of token ids")  # fmt: skip
    try:
        return Tokenizer(tokenizer).encode(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise PackError(f"is not UTF-8 at byte {error.start}", file=file,
                        hint="give a text in UTF-8") from error  # fmt: skip
    except TokenizerError as error:
        raise PackError(error.what, file=file) from error


@dataclass(frozen=True)
class Inputs:
    """What met rows first .. first + rows - 1 of a matrix.

    sums: over tokens, of the products of all pairs of columns (columns x columns), or of their
    squares alone (columns).
    """

    first: int
    rows: int
    tokens: int
    sums: Doubles

    @property
    def pairs(self) -> bool:
        return self.sums.ndim == 2


@dataclass(frozen=True)
class Block:
    """Rows of a matrix that met the same inputs, and what an error costs in them.

    layer: the sums of all experts of the layer, when they read the same stream.  An expert that
    few tokens met leans on their average, as if it had seen _PRIOR_TOKENS more.
    """

    own: Inputs
    layer: Inputs | None

    @property
    def first(self) -> int:
        return self.own.first

    @property
    def end(self) -> int:
        return self.own.first + self.own.rows

    @cached_property
    def importance(self) -> Importance:
        """Damped second moments: their factor, or those of each column as weights."""
        sums, tokens = self.own.sums, float(self.own.tokens)
        if self.layer is not None:
            sums = sums + self.layer.sums * (_PRIOR_TOKENS / self.layer.tokens)
            tokens += _PRIOR_TOKENS
        moments = sums / tokens
        damping = _DAMPING * float(np.mean(np.diagonal(moments) if self.own.pairs else moments))
        if not 0 < damping < np.inf:
            return None  # inputs were all zero
        if self.own.pairs:
            return Factor.of(moments + damping * np.eye(len(moments)))
        return np.asarray(moments + damping)


@dataclass
class Calibration:
    """Sums over a text's tokens for every matrix that it met."""

    tokens: Tokens
    inputs: dict[Key, list[Inputs]]
    notes: tuple[str, ...]
    _layers: dict[tuple[str, int | None], Inputs] = field(default_factory=dict)

    def __post_init__(self) -> None:
        groups: dict[tuple[str, int | None], list[Inputs]] = defaultdict(list)
        for (role, layer, expert), found in self.inputs.items():
            if expert is not None and role in _SHARED_STREAM:
                groups[role, layer] += found
        self._layers = {key: _together(found) for key, found in groups.items()}

    def blocks(self, role: str, layer: int | None, expert: int | None) -> list[Block]:
        """The parts of a matrix in the order of their rows; none when no token met it."""
        average = self._layers.get((role, layer)) if expert is not None else None
        return [Block(own, average) for own in self.inputs.get((role, layer, expert), [])]

    @property
    def description(self) -> dict[str, object]:
        """For the image's notes."""
        return {"text_sha256": self.tokens.sha256, "tokens": self.tokens.count,
                "method": "error-compensated rounding"}  # fmt: skip


def _together(parts: list[Inputs]) -> Inputs:
    total = np.zeros_like(parts[0].sums)
    for part in parts:
        total += part.sums
    return Inputs(0, parts[0].rows, sum(part.tokens for part in parts), total)


def calibrate(
    image: Path,
    wanted: list[TensorSpec],
    tokens: Tokens,
    progress: Callable[[int], None] = lambda _: None,
) -> Calibration:
    """Runs an f32 image over the tokens and sums up what the wanted matrices meet.

    Parameters
    ----------
    wanted : list of TensorSpec
        Matrices to look at, an expert role once per layer.
    progress : callable
        Gets the tokens done.
    """
    opened = Image(image)
    pairs, notes = _choose(wanted, opened.config)
    places = {(spec.role.name, spec.layer) for spec in wanted}
    matrices = {
        address: (key, tensor)
        for address, key, tensor in _matrices(opened)
        if key[:2] in places
    }  # fmt: skip
    recorder = _core.Recorder(
        "auto", [(at, t.bytes, t.name in pairs) for at, (_, t) in matrices.items()]
    )
    engine = Engine(opened, context=len(tokens.windows[0]), batch=_BATCH, recorder=recorder)
    output = any(spec.role.name == "output" for spec in wanted)  # meets a token whose logits count
    for window in tokens.windows:
        engine.reset(0)
        for at in range(0, len(window), _BATCH):
            engine.infer(window[at : at + _BATCH], all_logits=output)
        progress(len(window))
    inputs = _sort(matrices, recorder)
    return Calibration(tokens, inputs, (*notes, *_unmet(matrices, inputs)))


def _choose(wanted: list[TensorSpec], config: dict[str, int]) -> tuple[set[str], list[str]]:
    """Roles whose pairs of columns are summed, cheapest first, and notes on the others."""
    cost: dict[str, int] = defaultdict(int)
    columns: dict[str, int] = defaultdict(int)
    for spec in wanted:
        name = spec.role.name
        parts = _parts(spec, config)
        cost[name] += 8 * parts * spec.columns**2
        columns[name] = max(columns[name], spec.columns)
    chosen, total = set(), 0
    for name in sorted(cost, key=lambda name: (cost[name], name)):
        if columns[name] <= PRODUCTS_COLUMNS_MAX and total + cost[name] <= PRODUCTS_BYTES_MAX:
            chosen.add(name)
            total += cost[name]
    notes = [
        f"{name}: calibrated by column weights alone, without compensation: its "
        f"{columns[name]} columns would take {cost[name] >> 20} MiB"
        for name in cost if name not in chosen
    ]  # fmt: skip
    return chosen, notes


def _parts(spec: TensorSpec, config: dict[str, int]) -> int:
    """Matrices of a tensor entry with inputs of their own."""
    if spec.is_expert or spec.role.name in ("expert_query", "expert_attention_out"):
        return int(config["experts"])
    return int(config["heads"]) if spec.role.name in ("latent_key", "latent_value") else 1


def _matrices(image: Image) -> Iterator[tuple[int, Key, Tensor]]:
    """Every tensor, of every expert, with the address at which it is mapped."""
    base = image.core.address
    layers = image.expert_layers
    each = int(image.config["experts"]) - int(image.config["identities"])
    for tensor in image.tensors:
        if not tensor.is_expert:
            layer = None if tensor.layer == _core.GLOBAL_LAYER else tensor.layer
            yield base + tensor.offset, (tensor.name, layer, None), tensor
            continue
        first = layers.index(tensor.layer) * each
        for expert, record in enumerate(image.experts[first : first + each]):
            yield base + record.offset + tensor.offset, (tensor.name, tensor.layer, expert), tensor


def _sort(
    matrices: dict[int, tuple[Key, Tensor]], recorder: _core.Recorder
) -> dict[Key, list[Inputs]]:
    """What was recorded by matrix; a tensor's parts in the order of their rows."""
    starts = np.array(sorted(matrices), np.uint64)
    inputs: dict[Key, list[Inputs]] = defaultdict(list)
    for address, rows, tokens, sums in recorder.take():
        start = int(starts[np.searchsorted(starts, np.uint64(address), "right") - 1])
        key, tensor = matrices[start]
        if sums.ndim == 2:
            sums += np.triu(sums, 1).T
        inputs[key].append(Inputs((address - start) // (4 * tensor.columns), rows, tokens, sums))
    return inputs


def _unmet(
    matrices: dict[int, tuple[Key, Tensor]], inputs: dict[Key, list[Inputs]]
) -> Iterator[str]:
    """Notes on matrices that no token met."""
    total: dict[str, int] = defaultdict(int)
    unmet: dict[str, int] = defaultdict(int)
    for key, _ in matrices.values():
        total[key[0]] += 1
        unmet[key[0]] += key not in inputs
    for role, count in unmet.items():
        if count:
            yield f"{role}: {count} of {total[role]} matrices met no calibration token"
