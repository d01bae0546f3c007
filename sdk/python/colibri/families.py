# SPDX-License-Identifier: Apache-2.0
"""Family descriptors: what a checkpoint's config and tensor names mean.

A descriptor is a TOML file in ``colibri/families``; a model of known parts needs only that:

    [keys]      config.json keys that are read: type, default, limits, and where to look (`at`,
                dotted paths; all places that have a value must agree)
    [[require]] conditions on several keys, with the value that would do
    [settings]  the image's settings as expressions over the keys
    [layer]     experts: an expression, true for a layer (number `layer`) that has experts
    [rope]      kind and theta, as expressions
    [tensors]   role -> name, with {layer} and {expert}; `when` says whether the model has it
    ignore      patterns of tensors that hold nothing to keep
    prefixes    dropped from the front of tensor names, as often as they occur

Expressions are those of `colibri.expressions`.  Descriptors are chosen by architecture class.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, field_validator

from colibri.errors import CheckpointError
from colibri.expressions import evaluate
from colibri.image_format import MAX_CONTEXT, RANGES, ROLES, Role, Settings

_TYPES: dict[str, tuple[str, tuple[type, ...]]] = {
    "int": ("an integer", (int,)),
    "float": ("a number", (int, float)),
    "bool": ("true or false", (bool,)),
    "str": ("a string", (str,)),
    "list": ("a list", (list,)),
}
_FLOAT_MAX = float(np.finfo(np.float32).max)
_WORDS = (
    "router",
    "router_flags",
    "experts",
    "top_k",
    "expert_size",
    "shared_size",
    "shared_flags",
)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Key(_Strict):
    """One key of config.json.  `default` is an expression over the keys before it."""

    type: Literal["int", "float", "bool", "str", "list"]
    items: Literal["int", "str"] = "str"
    default: str | None = None
    at: tuple[str, ...] = ()
    min: int | None = None
    above: float | None = None
    one_of: tuple[bool | int | float | str, ...] = ()

    def valid(self) -> str:
        """The values that would do, in words."""
        if self.one_of:
            choices = " or ".join(_json(value) for value in self.one_of)
            return f"a list of {choices}" if self.type == "list" else choices
        words = _TYPES[self.type][0]
        if self.type == "list":
            words += f" of {'integers' if self.items == 'int' else 'strings'}"
        if self.min is not None:
            words += f", {self.min} or more"
        return words + (f", more than {self.above:g}" if self.above is not None else "")

    def accepts(self, value: Any) -> bool:
        """Whether a config value has the right type and lies within the limits."""
        if self.type == "list":
            return isinstance(value, list) and all(
                _is(item, self.items) and (not self.one_of or item in self.one_of) for item in value
            )
        if not _is(value, self.type) or (self.one_of and value not in self.one_of):
            return False
        return (self.min is None or value >= self.min) and (
            self.above is None or value > self.above
        )


class Require(_Strict):
    """A condition on several keys."""

    key: str
    test: str
    valid: str


class TensorName(_Strict):
    """Name of a tensor without prefix, and when a model has it."""

    name: str
    when: str = "True"


class Layer(_Strict):
    """What a layer is made of."""

    experts: str


class Rope(_Strict):
    """Rotary position embedding."""

    kind: str
    theta: str


class Family(_Strict):
    """A descriptor file."""

    name: str
    architectures: tuple[str, ...]
    ignore: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ("model.", "language_model.")
    keys: dict[str, Key]
    require: tuple[Require, ...] = ()
    settings: dict[str, str]
    layer: Layer
    rope: Rope
    tensors: dict[str, TensorName] = Field(min_length=1)

    @field_validator("tensors", mode="before")
    @classmethod
    def _short_form(cls, value: dict[str, Any]) -> dict[str, Any]:
        """A plain string is a name."""
        unknown = sorted(set(value) - set(ROLES))
        if unknown:
            raise ValueError(f"unknown roles {unknown}")
        return {r: {"name": n} if isinstance(n, str) else n for r, n in value.items()}


@dataclass(frozen=True)
class Wanted:
    """A tensor that the image needs: role, place, and name without prefix."""

    role: Role
    layer: int | None
    expert: int | None
    name: str


@dataclass(frozen=True)
class Model:
    """A checkpoint's config, understood."""

    family: Family
    architecture: str
    settings: Settings
    expert_layers: tuple[bool, ...]
    rope: NDArray[np.float32]
    tensors: tuple[Wanted, ...]
    notes: tuple[str, ...]


@cache
def families() -> dict[str, Family]:
    """Architecture class -> descriptor."""
    found: dict[str, Family] = {}
    for entry in sorted(files("colibri").joinpath("families").iterdir(), key=lambda e: e.name):
        if entry.name.endswith(".toml"):
            family = Family.model_validate(tomllib.loads(entry.read_text(encoding="utf-8")))
            found |= dict.fromkeys(family.architectures, family)
    return found


def describe(config: dict[str, Any], file: Path) -> Model:
    """Reads a config.json with the descriptor of its architecture.

    Raises
    ------
    CheckpointError
        For an unknown architecture, and for every key that is missing or unusable.
    """
    architecture = _architecture(config, file)
    family = families()[architecture]
    values = _read_keys(family, config, file)
    layers = values[_count_key(family)]
    kinds = tuple(
        bool(evaluate(family.layer.experts, {**values, "layer": layer}))
        for layer in range(min(layers, RANGES["layers"][1]))
    )
    settings, notes = _settings(family, values, kinds, file)
    wanted = tuple(_wanted(family, values, settings, kinds))
    return Model(family, architecture, settings, kinds, _rope(family, values, settings, file),
                 wanted, notes)  # fmt: skip


def _count_key(family: Family) -> str:
    return family.settings["layers"]


def _architecture(config: dict[str, Any], file: Path) -> str:
    named = config.get("architectures")
    if not isinstance(named, list) or len(named) != 1 or not isinstance(named[0], str):
        problem = "is missing" if named is None else f"must name one class, not {_json(named)}"
    elif named[0] not in families():
        problem = f"{named[0]} is not supported"
    else:
        return str(named[0])
    raise CheckpointError(problem, file=file, field="architectures",
                          hint=f"supported are {', '.join(sorted(families()))}")  # fmt: skip


def _read_keys(family: Family, config: dict[str, Any], file: Path) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, key in family.keys.items():
        values[name] = _read_key(name, key, config, values, file)
    for rule in family.require:
        if not evaluate(rule.test, values):
            raise CheckpointError(f"is {_json(values[rule.key])}", file=file, field=rule.key,
                                  hint=f"valid is {rule.valid}")  # fmt: skip
    return values


def _read_key(
    name: str, key: Key, config: dict[str, Any], values: dict[str, Any], file: Path
) -> Any:
    found = {p: v for p in key.at or (name,) if (v := _look_up(config, p)) is not None}
    for path, value in found.items():
        if not key.accepts(value):
            raise CheckpointError(f"is {_json(value)}", file=file, field=path,
                                  hint=f"valid is {key.valid()}")  # fmt: skip
    if not found:
        if key.default is None:
            raise CheckpointError("is missing", file=file, field=name,
                                  hint=f"valid is {key.valid()}")  # fmt: skip
        return evaluate(key.default, values)
    (path, value), *others = found.items()
    for other, second in others:
        if second != value:
            raise CheckpointError(
                f"is {_json(value)}, but {other} is {_json(second)}",
                file=file,
                field=path,
                hint="give both the same value",
            )
    return float(value) if key.type == "float" else value


def _look_up(config: dict[str, Any], path: str) -> Any:
    value: Any = config
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _settings(
    family: Family, values: dict[str, Any], kinds: tuple[bool, ...], file: Path
) -> tuple[Settings, tuple[str, ...]]:
    try:
        result = {n: evaluate(e, values) for n, e in family.settings.items()}
    except ValueError as error:
        hint = "the values of these keys do not go together"
        raise CheckpointError(str(error), file=file, hint=hint) from error
    notes: tuple[str, ...] = ()
    if not any(kinds):
        result |= dict.fromkeys(_WORDS, 0)
    if all(kinds):
        result["dense_size"] = 0
    if result["context"] > MAX_CONTEXT:
        notes = (f"context cut from {result['context']} to {MAX_CONTEXT} tokens, the most that "
                 "image version 1 carries",)  # fmt: skip
        result["context"] = MAX_CONTEXT
    for name in ("norm_epsilon", "attention_scale", "rope_scale"):
        result[name] = float(np.float32(result[name]))
    settings = Settings(**{field.name: result[field.name] for field in fields(Settings)})
    _check_settings(family, settings, kinds, file)
    return settings, notes


def _check_settings(
    family: Family, settings: Settings, kinds: tuple[bool, ...], file: Path
) -> None:
    """The ranges of the spec, told in terms of the config's keys."""

    def refuse(name: str, valid: str) -> None:
        raise CheckpointError(f"{name} is {getattr(settings, name)}", file=file,
                              field=family.settings[name], hint=f"valid is {valid}")  # fmt: skip

    for name, (least, most) in RANGES.items():
        if not least <= getattr(settings, name) <= most:
            refuse(name, f"{least} to {most}")
    if settings.heads % settings.kv_heads:
        refuse("kv_heads", f"a divisor of the {settings.heads} heads")
    for name in ("head_size", "rope_size"):
        if getattr(settings, name) % 2:
            refuse(name, "an even number")
    if settings.rope_size > settings.head_size:
        refuse("rope_size", f"at most the head size, {settings.head_size}")
    if any(kinds) and not 1 <= settings.top_k <= settings.experts:
        refuse("top_k", f"1 to the {settings.experts} experts")
    if not all(kinds) and settings.dense_size < 1:
        refuse("dense_size", "1 or more, as some layers are dense")
    if not 0 < settings.norm_epsilon < math.inf:
        refuse("norm_epsilon", "a positive number that float32 can hold")


def _rope(
    family: Family, values: dict[str, Any], settings: Settings, file: Path
) -> NDArray[np.float32]:
    """Inverse frequencies, in float32 as the reference computes them."""
    kind = evaluate(family.rope.kind, values)
    if kind != "default":
        raise CheckpointError(f"is {_json(kind)}", file=file, field="rope_type",
                              hint='valid is "default"')  # fmt: skip
    theta = np.float32(evaluate(family.rope.theta, values))
    exponents = np.arange(0, settings.rope_size, 2).astype(np.float32)
    # The power is rounded once, from float64: correctly rounded but for ties no theta meets.
    powers = np.float64(theta) ** (exponents / np.float32(settings.rope_size)).astype(np.float64)
    with np.errstate(divide="ignore", over="ignore"):  # what comes of it is refused below
        frequencies = np.float32(1.0) / powers.astype(np.float32)
    if not (np.isfinite(frequencies).all() and frequencies.max(initial=0) <= 1):
        raise CheckpointError(f"is {theta:g}", file=file, field="rope_theta",
                              hint="valid is a number from 1 up")  # fmt: skip
    return np.asarray(frequencies, np.float32)


def _wanted(
    family: Family, values: dict[str, Any], settings: Settings, kinds: tuple[bool, ...]
) -> Iterator[Wanted]:
    """Every tensor of the model by the descriptor, roles in file order within a layer."""
    for layer in (None, *range(settings.layers)):
        for role in ROLES.values():
            if not _belongs(role, layer, kinds) or role.name not in family.tensors:
                continue
            tensor = family.tensors[role.name]
            if not evaluate(tensor.when, {**values, "layer": layer}):
                continue
            for expert in range(settings.experts) if role.scope == "expert" else (None,):
                name = tensor.name.format(layer=layer, expert=expert)
                yield Wanted(role, layer, expert, name)


def _belongs(role: Role, layer: int | None, kinds: tuple[bool, ...]) -> bool:
    if layer is None:
        return role.scope == "global"
    scopes = {"layer", "moe", "expert"} if kinds[layer] else {"layer", "dense"}
    return role.scope in scopes


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool) and kind != "bool":
        return False
    if not isinstance(value, _TYPES[kind][1]):
        return False
    # Beyond 2^53 floats and integers part ways, and no setting of a model is that large.
    return kind in ("str", "list") or _in_range(value)


def _in_range(value: Any) -> bool:
    return bool(abs(value) <= (_FLOAT_MAX if isinstance(value, float) else 1 << 53))


def _json(value: Any) -> str:
    """A value as JSON would write it, short enough for a message."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    text = f'"{value}"' if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
