# SPDX-License-Identifier: Apache-2.0
"""A config.json understood: settings, layers, RoPE and every tensor that the image needs."""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from colibri.descriptors import Family, Key, Layer, TensorName, as_json, families, wrappers
from colibri.errors import CheckpointError
from colibri.expressions import evaluate
from colibri.formats import check_method
from colibri.image_format import (
    MAX_CONTEXT,
    RANGES,
    ROLES,
    SCOPES,
    WHOLE_NORMS,
    LayerKind,
    Role,
    Settings,
)
from colibri.rope import Rope as Frequencies
from colibri.rope import make_rope
from colibri.unsupported import why_not

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
_LINEAR_WORDS = ("linear_keys", "linear_values", "linear_key_size", "linear_value_size",
                 "linear_rank")  # fmt: skip


class Place(NamedTuple):
    """A tensor of a checkpoint, and which part of it; without a name, zeros or `values`."""

    name: str
    shape: tuple[int, ...] | None = None
    pick: Callable[[NDArray[Any]], NDArray[Any]] | None = None
    scales: str | None = None
    factor: float = 1.0
    plus: float = 0.0
    values: tuple[float, ...] | None = None
    whole: bool = False


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

    def columns(self, settings: Settings) -> int:
        """Columns by the config alone, where a norm may cover a head or all of them at once."""
        whole = any(place.whole for place in self.places)
        return (WHOLE_NORMS[self.role.name] if whole else self.role.columns)(settings)


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


def describe(
    config: dict[str, Any],
    file: Path,
    adapt: Callable[[Family], Family] | None = None,
    layers: int | None = None,
) -> Model:
    """Reads a config.json with the descriptor of its architecture.

    Parameters
    ----------
    adapt : callable, optional
        Gives the descriptor other names of tensors, as the source at hand has them.
    layers : int, optional
        Only the first so many layers of the model.

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
    if layers is not None and not 1 <= layers <= count:
        raise CheckpointError(f"{layers} of its layers are asked for", file=file,
                              hint=f"valid is 1 to {count}")  # fmt: skip
    kinds = tuple(_layer(family.layer, values, layer) for layer in range(layers or count))
    settings, notes = _settings(family, values, kinds, file)
    settings = replace(settings, layers=layers or settings.layers)
    ropes = _ropes(family, values, settings, kinds, config, file)
    scale = ropes["rope"].scale if "rope" in ropes else 1.0
    settings = replace(
        settings,
        rope_scale=float(np.float32(settings.rope_scale * scale)),
        context=min(settings.context, *(r.context for r in ropes.values()), MAX_CONTEXT),
    )
    notes = (*notes, *(note for rope in ropes.values() for note in rope.notes))
    wanted = tuple(_wanted(family, values, settings, kinds))
    extra = min(evaluate(family.extra_layers, values), RANGES["layers"][1])
    beyond = range(settings.layers, settings.layers + extra)
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
    sets = {"rope": family.rope, "rope_2": family.rope_2}
    for number, (name, rope) in enumerate(sets.items(), 1):
        if number not in used or rope is None:
            continue
        names = {**asdict(settings), **values}
        # before it is cut: scalings go by it
        context = evaluate(family.settings["context"], values)
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
        problem = "is missing" if named is None else f"must name one class, not {as_json(named)}"
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
            raise CheckpointError(f"is {as_json(values[rule.key])}", file=file, field=rule.key,
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
            raise CheckpointError(f"is {as_json(value)}", file=file, field=path,
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
                f"is {as_json(value)}, but {other} is {as_json(second)}",
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
    scopes = {scope for kind in kinds for scope in SCOPES[kind.mixer]}
    if "linear" not in scopes:
        result |= dict.fromkeys(_LINEAR_WORDS, 0)
    if not scopes & {"conv", "filtering"}:
        result["conv_size"] = 0
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
        raise CheckpointError(
            f"{name} is {getattr(settings, name)}",
            file=file,
            field=family.settings.get(name, name),
            hint=f"valid is {valid}",
        )

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
        if tensor.value is not None:
            yield Place(name, values=tuple(map(float, evaluate(tensor.value, names))))
        elif tensor.pick is None or tensor.shape is None:
            yield Place(name, scales=scales, factor=factor, plus=tensor.plus, whole=tensor.whole)
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
