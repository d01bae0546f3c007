# SPDX-License-Identifier: Apache-2.0
"""A GGUF file as a checkpoint: its metadata become a config, its tensors keep their names.

What is what is data, in ``families/_gguf.toml``; the family's own descriptor then says what model
it is, with the names of tensors replaced by those of GGUF.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator

from colibri.checkpoint import Checkpoint
from colibri.descriptors import Family, TensorName, several
from colibri.errors import CheckpointError
from colibri.expressions import evaluate
from colibri.gguf_file import GgufFile, read_gguf

_STOPS = tuple(f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))
_FREQUENCIES = "rope_freqs.weight"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Rule(_Strict):
    """A value of the config: the first metadata key that is there, put through an expression."""

    sources: tuple[str, ...] = Field(alias="from", min_length=1)
    value: str = "x"
    each: str | None = None
    array: bool = False


class Check(_Strict):
    """What a metadata value must be, and how to say that."""

    test: str
    valid: str


class Dialect(_Strict):
    """One of [[models]], with the tables that it uses laid under it."""

    architecture: str
    family: str
    when: str = "True"
    required: tuple[str, ...]
    ignore: tuple[str, ...]
    config: dict[str, Rule]
    set: dict[str, Any]
    present: dict[str, str]
    checks: dict[str, Check]
    tensors: dict[str, tuple[TensorName, ...]]

    @field_validator("config", mode="before")
    @classmethod
    def _short_rule(cls, value: dict[str, Any]) -> dict[str, Any]:
        """A plain string is a rule of one key."""
        return {k: {"from": [v]} if isinstance(v, str) else v for k, v in value.items()}

    @field_validator("tensors", mode="before")
    @classmethod
    def _short_name(cls, value: dict[str, Any]) -> dict[str, Any]:
        return several(value)

    def adapt(self, family: Family) -> Family:
        """The family with GGUF's names of tensors, each when the family has the role at all."""
        renamed = {role: tuple(self._places(role, own)) for role, own in family.tensors.items()}
        update = {"tensors": renamed, "prefixes": (), "ignore": self.ignore}
        return family.model_copy(update=update)

    def _places(self, role: str, own: tuple[TensorName, ...]) -> Iterator[TensorName]:
        has = " or ".join(f"({name.when})" for name in own)
        for place in self.tensors.get(role, own):
            yield place.model_copy(update={"when": f"({has}) and ({place.when})"})


@cache
def dialects() -> tuple[Dialect, ...]:
    """All of [[models]]."""
    text = files("colibri").joinpath("families", "_gguf.toml").read_text(encoding="utf-8")
    tables = tomllib.loads(text)
    return tuple(Dialect.model_validate(_laid_out(m, tables)) for m in tables["models"])


def _laid_out(model: dict[str, Any], tables: dict[str, Any]) -> dict[str, Any]:
    """The tables that a model uses, one over another: lists add up, false takes away."""
    model = dict(model)
    merged: dict[str, Any] = {}
    for table in ("common", *model.pop("use", ())):
        merged = _over(merged, tables[table])
    return _over(merged, model)


def _over(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in own.items():
        if isinstance(value, dict):
            merged[key] = {**base.get(key, {}), **value}
        elif isinstance(value, list):
            merged[key] = [*base.get(key, []), *value]
        else:
            merged[key] = value
    for part in ("config", "checks"):
        merged[part] = {k: v for k, v in merged.get(part, {}).items() if v is not False}
    return merged


def open_gguf(path: Path) -> Checkpoint:
    """The checkpoint in a GGUF file.

    Raises
    ------
    CheckpointError
        For a file that is damaged, and for a model that is not known or not understood.
    """
    file = read_gguf(path)
    split = file.metadata.get("split.count", 1)
    if split not in (0, 1):
        raise CheckpointError(f"is {split}: the model lies in several files", file=path,
                              field="split.count",
                              hint="join them with llama-gguf-split --merge")  # fmt: skip
    architecture = file.metadata.get("general.architecture")
    values = _Values(architecture, file.metadata)
    dialect = _dialect(architecture, values, path)
    _check(dialect, values, path)
    config = _config(dialect, values, file, path)
    config["eos_token_id"] = [file.metadata[key] for key in _STOPS if key in file.metadata]
    notes = [f"a GGUF file of architecture {architecture}: its tokenizer is not carried, "
             "the image takes token ids only"]  # fmt: skip
    kinds = Counter(t.dtype for t in file.tensors.values() if t.coded)
    if kinds:
        counts = ", ".join(f"{count} of {kind}" for kind, count in sorted(kinds.items()))
        notes.append(f"quantised tensors decoded: {counts}")
    return Checkpoint(path, config, {}, None, file.tensors, {}, notes, dialect.adapt)


class _Values(dict[str, Any]):
    """An architecture's metadata by the key without its name; in expressions absent is 0.

    Arrays of one value repeated stand for that value, unless they are asked for as they are.
    """

    def __init__(self, architecture: Any, metadata: dict[str, Any]) -> None:
        start = f"{architecture}."
        own = {k.removeprefix(start): v for k, v in metadata.items() if k.startswith(start)}
        super().__init__((key.replace(".", "_"), _single(value)) for key, value in own.items())
        self.keys_there = own

    def __missing__(self, name: str) -> int:
        return 0

    def with_x(self, x: Any) -> _Values:
        """The same with a value that is called x."""
        other = _Values("", {})
        other.update(self, x=x)
        return other


def _single(value: Any) -> Any:
    if isinstance(value, list) and value and all(v == value[0] for v in value):
        return value[0]
    return value


def _dialect(architecture: Any, values: _Values, path: Path) -> Dialect:
    known = sorted({d.architecture for d in dialects()})
    for dialect in dialects():
        if dialect.architecture == architecture and _true(dialect.when, values):
            return dialect
    raise CheckpointError(f"is {architecture!r}", file=path, field="general.architecture",
                          hint=f"supported are {', '.join(known)}")  # fmt: skip


def _true(test: str, names: dict[str, Any]) -> bool:
    """A condition that values of the wrong type do not meet."""
    try:
        return bool(evaluate(test, names))
    except ValueError:
        return False


def _check(dialect: Dialect, values: _Values, path: Path) -> None:
    """Nothing that matters is absent, nothing that is there goes unnoticed."""
    start = f"{dialect.architecture}."
    for key in dialect.required:
        if key not in values.keys_there:
            raise CheckpointError("is missing", file=path, field=start + key)
    read = {key for rule in dialect.config.values() for key in rule.sources} | set(dialect.checks)
    for key, value in values.keys_there.items():
        if key not in read:
            raise CheckpointError(f"is {_brief(value)}, and {dialect.family} has no use for it",
                                  file=path, field=start + key)  # fmt: skip
        check = dialect.checks.get(key)
        names = values.with_x(_single(value))
        if check and not _true(check.test, names):
            raise CheckpointError(f"is {_brief(value)}", file=path, field=start + key,
                                  hint=f"valid is {check.valid}")  # fmt: skip


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _config(dialect: Dialect, values: _Values, file: GgufFile, path: Path) -> dict[str, Any]:
    found = dict(dialect.set)
    for key, rule in dialect.config.items():
        source = next((s for s in rule.sources if s in values.keys_there), None)
        if source is not None:
            field = f"{dialect.architecture}.{source}"
            found[key] = _value(rule, values, values.keys_there[source], path, field)
    names = file.tensors
    for key, pattern in dialect.present.items():
        found[key] = any(fnmatchcase(name, pattern) for name in names)
    found["tie_word_embeddings"] = "output.weight" not in names
    if (embedding := names.get("token_embd.weight")) is not None:
        found.setdefault("vocab_size", embedding.shape[0])
    if _FREQUENCIES in names:
        found |= _stretched(file, found, path)
    config: dict[str, Any] = {"architectures": [dialect.family], "model_type": dialect.architecture}
    for key, value in found.items():
        *outer, last = key.split(".")
        table = config
        for name in outer:
            table = table.setdefault(name, {})
        table[last] = value
    return config


def _value(rule: Rule, values: _Values, value: Any, path: Path, field: str) -> Any:
    try:
        if rule.each is not None:
            return [evaluate(rule.each, values.with_x(item)) for item in value]
        whole = value if rule.array else _single(value)
        return evaluate(rule.value, values.with_x(whole))
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"is {_brief(value)}", file=path, field=field,
            hint="valid is a number, or an array of numbers",
        ) from error  # fmt: skip


def _stretched(file: GgufFile, found: dict[str, Any], path: Path) -> dict[str, Any]:
    """Wavelengths multiplied one by one, as the file has them: what llama3 scaling comes to."""
    if found.get("rope_scaling.rope_type", "default") != "default":
        raise CheckpointError("is there beside another scaling of positions", file=path,
                              field=_FREQUENCIES)  # fmt: skip
    factors = np.concatenate([part.ravel() for part in file.tensors[_FREQUENCIES].rows(1 << 16)])
    scaling = {"rope_type": "longrope", "short_factor": factors.tolist(), "attention_factor": 1.0,
               "original_max_position_embeddings": found["max_position_embeddings"]}  # fmt: skip
    return {f"rope_scaling.{key}": value for key, value in scaling.items()}
