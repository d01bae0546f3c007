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
                of the scales of an mxfp4 tensor; `factor` multiplies the values, `plus` is added
                to them; `whole`: a norm of all heads at once; `zeros` and `value` (an
                expression) stand in for a vector that no checkpoint has. A list of these: the
                first one that the checkpoint has
    ignore      patterns of tensors that hold nothing to keep
    [[wrappers]] classes of more than text that have a model of this family inside: architecture,
                config (the key of its config), ignore (patterns of the tensors around it)
    extra_layers  expression: layers after the last which are left out (multi-token prediction)
    prefixes    dropped from the front of tensor names, as often as they occur
    tested      how: golden (reference outputs), variants (other sizes), oracle (float64 formulas)

Expressions are those of `colibri.expressions`.  Descriptors are chosen by architecture class.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator

from colibri.image_format import ROLES

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
            choices = " or ".join(as_json(value) for value in self.one_of)
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
    value: str | None = None
    factor: str = "1.0"
    plus: float = 0.0
    whole: bool = False


class Layer(_Strict):
    """What a layer is made of; see `LayerKind`."""

    experts: str
    sliding: str = "False"
    latent: str = "False"
    conv: str = "False"
    expert_attention: str = "False"
    delta: str = "False"
    mamba2: str = "False"
    lightning: str = "False"
    mamba: str = "False"
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


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool) and kind != "bool":
        return False
    if not isinstance(value, _TYPES[kind][1]):
        return False
    # Beyond 2^53 floats and integers part ways, and no setting of a model is that large.
    return kind in ("str", "list", "dict") or in_range(value)


def as_json(value: Any) -> str:
    """A value as JSON would write it, short enough for a message."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    text = f'"{value}"' if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def in_range(value: Any) -> bool:
    return bool(abs(value) <= (_FLOAT_MAX if isinstance(value, float) else 1 << 53))
