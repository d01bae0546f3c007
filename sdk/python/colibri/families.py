# SPDX-License-Identifier: Apache-2.0
"""Family descriptors: what a checkpoint's config and tensor names mean.

A descriptor is a TOML file in ``colibri/families``; a model of known parts needs only that:

    base        another descriptor (without .toml), or several, that this one is laid over; false
                takes an entry of it away. Files that start with _ are only bases
    [keys]      config.json keys that are read: type, default, limits, and where to look (`at`,
                dotted paths; all places that have a value must agree); `null` is the value of an
                explicit null, where that is not the same as an absent key; `when`: else
                the key is not read; `uniform`: may be a list of one value per layer, all the same
    [defaults]  defaults of keys, briefly: the class defaults of the original code
    [[require]] conditions on several keys, with the value that would do
    [settings]  the image's settings as expressions over the keys
    [layer]     expressions for a layer (number `layer`): experts, and where needed latent, rope,
                flags, window, chunk; `sliding` is a name that they may use
    [rope]      kind and theta, as expressions; `at`: where the scaling's own keys are; `absent`:
                the scaling of a config that has none; `size`: rotated elements. [rope_2] the same
                for layers that rotate with the second set
    [names]     more numbers for names of tensors, as expressions over `layer`
    [tensors]   role -> name, with {layer} and {expert}; `when` says whether the model has it;
                `pick` takes a part out of a tensor x of the given `shape`; `scales` is the tensor
                of the scales of an mxfp4 tensor; `factor` multiplies the values, `plus` is added to them; `zeros` stands in for a vector that no checkpoint
                has. A list of these: the first one that the checkpoint has
    ignore      patterns of tensors that hold nothing to keep
    [[wrappers]] classes of more than text that have a model of this family inside: architecture,
                config (the key of its config), ignore (patterns of the tensors around it)
    extra_layers  expression: layers after the last which are left out (multi-token prediction)
    prefixes    dropped from the front of tensor names, as often as they occur
    tested      how: golden (reference outputs), variants (other sizes), oracle (float64 formulas)

Expressions are those of `colibri.expressions`.  Descriptors are chosen by architecture class.
"""

from __future__ import annotations

import math
import tomllib
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, field_validator

from colibri.errors import CheckpointError
from colibri.expressions import evaluate
from colibri.formats import check_method
from colibri.image_format import MAX_CONTEXT, RANGES, ROLES, SCOPES, LayerKind, Role, Settings
from colibri.rope import Rope as Frequencies
from colibri.rope import make_rope
from colibri.unsupported import why_not

_TYPES: dict[str, tuple[str, tuple[type, ...]]] = {
    "int": ("an integer", (int,)),
    "float": ("a number", (int, float)),
    "bool": ("true or false", (bool,)),
    "str": ("a string", (str,)),
    "list": ("a list", (list,)),
    "dict": ("a table", (dict,)),
}
_FLOAT_MAX = float(np.finfo(np.float32).max)
_ADDING = ("require", "ignore")
_WORDS = (
    "router",
    "router_flags",
    "experts",
    "top_k",
    "expert_size",
    "shared_size",
    "shared_flags",
    "router_groups",
    "router_groups_kept",
)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Key(_Strict):
    """One key of config.json.  `default` is an expression over the keys before it."""

    type: Literal["int", "float", "bool", "str", "list", "dict"]
    items: Literal["int", "str"] = "str"
    default: str | None = None
    null: str | None = None
    when: str = "True"
    uniform: bool = False
    at: tuple[str, ...] = ()
    min: int | None = None
    above: float | None = None
    one_of: tuple[bool | int | float | str, ...] = ()

    def valid(self) -> str:
        """The values that would do, in words."""
        if self.one_of:
            choices = " or ".join(_json(value) for value in self.one_of)
            return f"a list of {choices}" if self.type == "list" else choices
        words = _TYPES[self.type][0] + ", or a list of one per layer, all equal" * self.uniform
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
    """Name of a tensor without prefix, when a model has it, and which part of it is meant."""

    name: str = ""
    when: str = "True"
    pick: str | None = None
    shape: str | None = None
    scales: str | None = None
    zeros: bool = False
    factor: str = "1.0"
    plus: float = 0.0


class Layer(_Strict):
    """What a layer is made of; see `LayerKind`."""

    experts: str
    sliding: str = "False"
    latent: str = "False"
    conv: str = "False"
    expert_attention: str = "False"
    delta: str = "False"
    mamba2: str = "False"
    beside: str = "False"
    rope: str = "1"
    flags: str = "0"
    window: str = "0"
    chunk: str = "0"
    head_size: str = "0"
    kv_heads: str = "0"


class Rope(_Strict):
    """Rotary position embedding; `at` are the config's tables that may describe its scaling."""

    kind: str
    theta: str
    at: tuple[str, ...] = ("rope_parameters", "rope_scaling")
    absent: dict[str, str | bool | float] = {}
    size: str = "rope_size"


class Wrapper(_Strict):
    """A class with a language model in it; see `colibri.sources`."""

    architecture: str
    config: str = "text_config"
    ignore: tuple[str, ...]


class Family(_Strict):
    """A descriptor file."""

    name: str
    architectures: tuple[str, ...]
    tested: tuple[Literal["golden", "variants", "oracle"], ...] = ()
    ignore: tuple[str, ...] = ()
    wrappers: tuple[Wrapper, ...] = ()
    extra_layers: str = "0"
    prefixes: tuple[str, ...] = ("model.", "language_model.")
    keys: dict[str, Key]
    require: tuple[Require, ...] = ()
    settings: dict[str, str]
    layer: Layer
    rope: Rope
    rope_2: Rope | None = None
    names: dict[str, str] = {}
    tensors: dict[str, tuple[TensorName, ...]] = Field(min_length=1)

    @field_validator("tensors", mode="before")
    @classmethod
    def _short_form(cls, value: dict[str, Any]) -> dict[str, Any]:
        """A plain string is a name, a table or a string alone a list of one."""
        unknown = sorted(set(value) - set(ROLES))
        if unknown:
            raise ValueError(f"unknown roles {unknown}")
        return several(value)


def several(tensors: dict[str, Any]) -> dict[str, Any]:
    """Names of tensors by role, in the long form: lists of tables."""
    lists = {r: n if isinstance(n, list) else [n] for r, n in tensors.items()}
    return {
        r: [{"name": n} if isinstance(n, str) else n for n in names] for r, names in lists.items()
    }


class Place(NamedTuple):
    """A tensor of a checkpoint, and which part of it; without a name, zeros."""

    name: str
    shape: tuple[int, ...] | None = None
    pick: Callable[[NDArray[Any]], NDArray[Any]] | None = None
    scales: str | None = None
    factor: float = 1.0
    plus: float = 0.0


@dataclass(frozen=True)
class Wanted:
    """A tensor that the image needs: role, place, and where it may be found.

    `places` are names without prefix, each with the tensor's shape and the part that is meant, or
    None twice for the whole of a tensor.
    """

    role: Role
    layer: int | None
    expert: int | None
    places: tuple[Place, ...]

    @property
    def name(self) -> str:
        """The first place's name, for messages."""
        return self.places[0].name


@dataclass(frozen=True)
class Model:
    """A checkpoint's config, understood."""

    family: Family
    architecture: str
    settings: Settings
    layers: tuple[LayerKind, ...]
    ropes: dict[str, NDArray[np.float32]]
    tensors: tuple[Wanted, ...]
    ignore: tuple[str, ...]
    notes: tuple[str, ...]

    def settings_of(self, layer: int | None) -> Settings:
        """The settings as a layer sees them."""
        return self.settings if layer is None else self.layers[layer].settings(self.settings)


@cache
def families() -> dict[str, Family]:
    """Architecture class -> descriptor."""
    found: dict[str, Family] = {}
    folder = files("colibri").joinpath("families")
    for name in sorted(entry.name for entry in folder.iterdir()):
        if name.endswith(".toml") and not name.startswith("_"):
            family = Family.model_validate(_read_descriptor(name))
            found |= dict.fromkeys(family.architectures, family)
    return found


@cache
def wrappers() -> dict[str, tuple[Wrapper, Family]]:
    """Architecture class -> what is said of it, and the family of the model in it."""
    return {w.architecture: (w, f) for f in families().values() for w in f.wrappers}


def _read_descriptor(name: str) -> dict[str, Any]:
    """A descriptor file, laid over the one that it names as its base."""
    text = files("colibri").joinpath("families", name).read_text(encoding="utf-8")
    own = tomllib.loads(text)
    bases, defaults = own.pop("base", []), own.pop("defaults", {})
    merged: dict[str, Any] = {}
    for base in [bases] if isinstance(bases, str) else bases:
        merged = _laid_over(merged, _read_descriptor(f"{base}.toml"))
    merged = _laid_over(merged, own)
    for key, value in defaults.items():
        default = value if isinstance(value, str) else repr(value)
        merged["keys"][key] = {**merged["keys"][key], "default": default}
    return merged


def _laid_over(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Tables are merged, what is in `_ADDING` adds up, false takes away, anything else replaces."""
    merged = dict(base)
    for key, value in own.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict) and "type" not in value:
            merged[key] = _laid_over(base[key], value)
        elif key in _ADDING and isinstance(value, list):
            merged[key] = [*base.get(key, []), *value]
        else:
            merged[key] = value
    return {key: value for key, value in merged.items() if value is not False}


def describe(
    config: dict[str, Any], file: Path, adapt: Callable[[Family], Family] | None = None
) -> Model:
    """Reads a config.json with the descriptor of its architecture.

    Parameters
    ----------
    adapt : callable, optional
        Gives the descriptor other names of tensors, as the source at hand has them.

    Raises
    ------
    CheckpointError
        For an unknown architecture, and for every key that is missing or unusable.
    """
    architecture = _architecture(config, file)
    family = families()[architecture]
    family = adapt(family) if adapt else family
    check_method(config, file)
    values = _read_keys(family, config, file)
    count = min(evaluate(family.settings["layers"], values), RANGES["layers"][1])
    kinds = tuple(_layer(family.layer, values, layer) for layer in range(count))
    settings, notes = _settings(family, values, kinds, file)
    ropes = _ropes(family, values, settings, kinds, config, file)
    scale = ropes["rope"].scale if "rope" in ropes else 1.0
    settings = replace(settings, rope_scale=float(np.float32(settings.rope_scale * scale)),
                       context=min(settings.context, *(r.context for r in ropes.values()), MAX_CONTEXT))  # fmt: skip
    notes = (*notes, *(note for rope in ropes.values() for note in rope.notes))
    wanted = tuple(_wanted(family, values, settings, kinds))
    beyond = range(settings.layers, settings.layers + evaluate(family.extra_layers, values))
    ignore = (*family.ignore, *(f"layers.{layer}.*" for layer in beyond))
    frequencies = {name: rope.frequencies for name, rope in ropes.items()}
    return Model(family, architecture, settings, kinds, frequencies, wanted, ignore, notes)


def _ropes(
    family: Family, values: dict[str, Any], settings: Settings, kinds: tuple[LayerKind, ...],
    config: dict[str, Any], file: Path,
) -> dict[str, Frequencies]:  # fmt: skip
    """The sets of frequencies that some layer rotates with."""
    used = {kind.rope for kind in kinds if kind.attends} if settings.rope_size else set()
    made = {}
    for number, (name, rope) in enumerate({"rope": family.rope, "rope_2": family.rope_2}.items(), 1):
        if number not in used or rope is None:
            continue
        names = {**asdict(settings), **values}
        context = evaluate(family.settings["context"], values)  # before it is cut: scalings go by it
        scaling = next((t for at in rope.at if (t := _look_up(config, at))), rope.absent)
        made[name] = make_rope(evaluate(rope.kind, names), evaluate(rope.theta, names),
                               evaluate(rope.size, names), context, scaling, file)  # fmt: skip
    return made


def _layer(layer: Layer, values: dict[str, Any], number: int) -> LayerKind:
    names = {**values, "layer": number}
    names["sliding"] = bool(evaluate(layer.sliding, names))
    texts = layer.model_dump(exclude={"sliding"})
    given = {field: evaluate(text, names) for field, text in texts.items()}
    kinds = {field: bool(given[field]) for field in given if field not in _NUMBERS}
    return LayerKind(**{**given, **kinds})


_NUMBERS = ("rope", "flags", "window", "chunk", "head_size", "kv_heads")


def _architecture(config: dict[str, Any], file: Path) -> str:
    named = config.get("architectures")
    if not isinstance(named, list) or len(named) != 1 or not isinstance(named[0], str):
        problem = "is missing" if named is None else f"must name one class, not {_json(named)}"
    elif named[0] not in families():
        problem = why_not(named[0])
    else:
        return str(named[0])
    raise CheckpointError(problem, file=file, field="architectures",
                          hint=f"supported are {', '.join(_supported())}")  # fmt: skip


def _supported() -> list[str]:
    return sorted({**families(), **wrappers()})


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
    if not evaluate(key.when, values):
        return None
    places = key.at or (name,)
    found = {p: _one(v, key) for p in places if (v := _look_up(config, p)) is not None}
    for path, value in found.items():
        if not key.accepts(value):
            raise CheckpointError(f"is {_json(value)}", file=file, field=path,
                                  hint=f"valid is {key.valid()}")  # fmt: skip
    if not found:
        if key.null is not None and any(_is_there(config, p) for p in places):
            return evaluate(key.null, values)
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


def _one(value: Any, key: Key) -> Any:
    """The value that all layers share, where a list may say it for each."""
    if key.uniform and isinstance(value, list) and value and all(v == value[0] for v in value):
        return value[0]
    return value


def _look_up(config: dict[str, Any], path: str) -> Any:
    value: Any = config
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _is_there(config: dict[str, Any], path: str) -> bool:
    *outer, last = path.split(".")
    table = _look_up(config, ".".join(outer)) if outer else config
    return isinstance(table, dict) and last in table


def _settings(
    family: Family, values: dict[str, Any], kinds: tuple[LayerKind, ...], file: Path
) -> tuple[Settings, tuple[str, ...]]:
    try:
        result = {n: evaluate(e, values) for n, e in family.settings.items()}
    except ValueError as error:
        hint = "the values of these keys do not go together"
        raise CheckpointError(str(error), file=file, hint=hint) from error
    notes: tuple[str, ...] = ()
    if not any(kind.experts for kind in kinds):
        result |= dict.fromkeys(_WORDS, 0)
    if not any(kind.dense for kind in kinds):
        result["dense_size"] = 0
    if not any(kind.rope and kind.attends for kind in kinds):
        result["rope_size"] = 0
    if result["context"] > MAX_CONTEXT:
        notes = (f"context cut from {result['context']} to {MAX_CONTEXT} tokens, the most that "
                 "image version 1 carries",)  # fmt: skip
        result["context"] = MAX_CONTEXT
    for field in fields(Settings):
        if field.type == "float" and field.name in result:
            result[field.name] = float(np.float32(result[field.name]))
    settings = Settings(**result)
    _check_settings(family, settings, kinds, file)
    return settings, notes


def _check_settings(
    family: Family, settings: Settings, kinds: tuple[LayerKind, ...], file: Path
) -> None:
    """The ranges of the spec, told in terms of the config's keys."""

    def refuse(name: str, valid: str) -> None:
        raise CheckpointError(f"{name} is {getattr(settings, name)}", file=file,
                              field=family.settings.get(name, name), hint=f"valid is {valid}")  # fmt: skip

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
    if any(k.experts for k in kinds) and not 1 <= settings.top_k <= settings.experts:
        refuse("top_k", f"1 to the {settings.experts} experts")
    groups, kept = settings.router_groups, settings.router_groups_kept
    if groups and settings.experts % groups:
        refuse("router_groups", f"a divisor of the {settings.experts} experts")
    if groups and not 1 <= kept <= groups:
        refuse("router_groups_kept", f"1 to the {groups} groups")
    if groups and settings.experts // groups * kept < settings.top_k:
        refuse("top_k", f"at most the {settings.experts // groups * kept} experts of {kept} groups")
    if any(k.dense for k in kinds) and settings.dense_size < 1:
        refuse("dense_size", "1 or more, as some layers are dense")
    if not 0 < settings.norm_epsilon < math.inf:
        refuse("norm_epsilon", "a positive number that float32 can hold")


def _wanted(
    family: Family, values: dict[str, Any], settings: Settings, kinds: tuple[LayerKind, ...]
) -> Iterator[Wanted]:
    """Every tensor of the model by the descriptor, roles in file order within a layer."""
    records = range(settings.experts - settings.identities)
    for layer in (None, *range(settings.layers)):
        own = settings if layer is None else kinds[layer].settings(settings)
        names = {**asdict(own), **values, "layer": layer}
        if layer is not None:
            names |= {n: evaluate(e, names) for n, e in family.names.items()}
        for role in ROLES.values():
            if not _belongs(role, layer, kinds) or role.name not in family.tensors:
                continue
            for expert in records if role.scope == "expert" else (None,):
                expert_names = ChainMap({"expert": expert}, names)
                places = tuple(_places(family.tensors[role.name], expert_names))
                if places:
                    yield Wanted(role, layer, expert, places)


def _places(tensors: tuple[TensorName, ...], names: Mapping[str, Any]) -> Iterator[Place]:
    for tensor in tensors:
        if not evaluate(tensor.when, names):
            continue
        name = tensor.name.format_map(names)
        scales = tensor.scales and tensor.scales.format_map(names)
        factor = float(evaluate(tensor.factor, names))
        if tensor.pick is None or tensor.shape is None:
            yield Place(name, scales=scales, factor=factor, plus=tensor.plus)
        else:
            yield Place(name, tuple(evaluate(tensor.shape, names)), _picker(tensor.pick, names),
                        scales, factor, tensor.plus)  # fmt: skip


def _picker(pick: str, names: Mapping[str, Any]) -> Callable[[NDArray[Any]], NDArray[Any]]:
    return lambda x: np.asarray(evaluate(pick, {**names, "x": x}))


def _belongs(role: Role, layer: int | None, kinds: tuple[LayerKind, ...]) -> bool:
    if layer is None:
        return role.scope == "global"
    kind = kinds[layer]
    scopes = {"layer"} | SCOPES[kind.mixer]
    scopes |= {"moe", "expert"} if kind.experts else set()
    scopes |= {"dense"} if kind.dense else set()
    scopes |= {"both"} if kind.beside else set()
    return role.scope in scopes


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool) and kind != "bool":
        return False
    if not isinstance(value, _TYPES[kind][1]):
        return False
    # Beyond 2^53 floats and integers part ways, and no setting of a model is that large.
    return kind in ("str", "list", "dict") or _in_range(value)


def _in_range(value: Any) -> bool:
    return bool(abs(value) <= (_FLOAT_MAX if isinstance(value, float) else 1 << 53))


def _json(value: Any) -> str:
    """A value as JSON would write it, short enough for a message."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    text = f'"{value}"' if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
