# SPDX-License-Identifier: Apache-2.0
"""Which parts a family is made of, read off its descriptor.

A part that depends on the config counts, as one of the family's models may have it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Any

from colibri.descriptors import Family
from colibri.image_format import Settings

_ROUTERS = {1: "softmax", 2: "softmax of the chosen", 3: "sigmoid", 4: "sparsemixer",
            5: "sigmoid of the chosen"}  # fmt: skip
_ROUTER_FLAGS = {1: "renormalised", 2: "renormalised, clamped", 4: "p-norm",
                 8: "groups by their best", 16: "groups by their two best",
                 32: "weight on the input"}  # fmt: skip
_LAYER_FLAGS = {1: "unit keys", 2: "temperature", 4: "norms after rotation", 8: "keys are values",
                16: "unit values"}  # fmt: skip
_ACTIVATIONS = {1: "SiLU", 2: "GELU", 3: "ReLU", 4: "clamped SiLU"}
_MIXERS = {"latent": "latent", "conv": "short convolution", "expert_attention": "made of experts",
           "delta": "gated delta rule", "mamba2": "Mamba 2",
           "lightning": "lightning", "mamba": "Mamba"}  # fmt: skip


def parts_of(family: Family) -> dict[str, list[str]]:
    """router, ffn, attention, norms, rope: what a model of the family may be made of."""
    kinds = {"router": _router, "ffn": _feed_forward, "attention": _attention, "norms": _norms,
             "rope": _rope}  # fmt: skip
    return {name: list(find(family)) for name, find in kinds.items()}


def _router(family: Family) -> Iterator[str]:
    kinds = [_ROUTERS[n] for n in sorted(_values(family, "router")) if n]
    if not kinds:
        return
    yield from kinds
    flags = family.settings["router_flags"]
    by_config = "" if flags.isdigit() else " by config"
    yield from (words + by_config for words in _bits(_ROUTER_FLAGS, _outcomes(flags)))
    names = {"router_selection": "selection bias", "router_bias": "bias",
             "router_norm": "norm of its own", "router_weight": "scale per expert"}  # fmt: skip
    yield from _roles(family, names)
    if _differs(family, "router_scale"):
        yield "scaled"


def _feed_forward(family: Family) -> Iterator[str]:
    yield from (_ACTIVATIONS[n] for n in sorted(_values(family, "activation")))
    if family.layer.experts != "False":
        if "shared_gate" in family.tensors:
            gated = "shared_router" in family.tensors
            yield "shared expert behind a gate" if gated else "shared expert"
        yield from _roles(family, {"expert_gate_bias": "biases"})
        if family.layer.beside != "False":
            yield "dense FFN beside"
        if _differs(family, "identities"):
            yield "identities"
    if family.layer.experts != "True":
        yield "dense layers" if family.layer.experts != "False" else "dense"


def _attention(family: Family) -> Iterator[str]:
    mixers = [words for field, words in _MIXERS.items() if getattr(family.layer, field) != "False"]
    if "key" in family.tensors:
        mixers = ["grouped-query", *mixers]
    yield from mixers
    names = {"query_norm": "query and key norms", "query_bias": "biases", "sinks": "sinks",
             "output_gate": "output gate"}  # fmt: skip
    yield from _roles(family, names)
    yield from _bits(_LAYER_FLAGS, _outcomes(family.layer.flags))
    if family.layer.window != "0":
        yield "window"
    if family.layer.chunk != "0":
        yield "chunks"
    if _differs(family, "clip"):
        yield "clip"


def _norms(family: Family) -> Iterator[str]:
    yield "LayerNorm" if 1 in _values(family, "norm") else "RMSNorm"
    if "attention_norm" not in family.tensors:
        yield "after blocks only"
    elif "attention_post_norm" in family.tensors:
        yield "before and after blocks"
    if "ffn_residual" in family.tensors:
        yield "residual behind the norms"
    scales = [n for n in ("embedding", "residual", "logits") if _differs(family, f"{n}_scale")]
    if scales:
        yield f"multipliers: {', '.join(scales)}"
    if _differs(family, "logits_cap"):
        yield "logits cap"


def _rope(family: Family) -> Iterator[str]:
    if family.layer.rope == "0":
        yield "none"
        return
    yield from ("pairs" if n else "halves" for n in sorted(_values(family, "rope_style")))
    partial = family.keys.get("partial_rotary_factor")
    if partial is not None and not partial.one_of:
        yield "part of a head"
    if 0 in _outcomes(family.layer.rope):
        yield "not in every layer"
    if family.rope_2 is not None:
        yield "two sets"


def _roles(family: Family, names: dict[str, str]) -> Iterator[str]:
    return (words for role, words in names.items() if role in family.tensors)


def _bits(names: dict[int, str], values: Iterable[Any]) -> Iterator[str]:
    used = {bit for value in values for bit in names if int(value) & bit}
    return (names[bit] for bit in sorted(used))


def _values(family: Family, setting: str) -> set[Any]:
    """The constants that a setting's expression may come to."""
    default = getattr(Settings, setting, 0)
    text = family.settings.get(setting)
    return {default} if text is None else _outcomes(text)


def _differs(family: Family, setting: str) -> bool:
    text = family.settings.get(setting)
    return text is not None and text not in (str(getattr(Settings, setting)), "1.0", "0.0")


def _outcomes(text: str) -> set[Any]:
    return set(_constants(ast.parse(text, mode="eval").body))


def _constants(node: ast.expr) -> Iterator[Any]:
    """Constants that can be the result or, as flags do, add up to it."""
    match node:
        case ast.Constant(value):
            yield value
        case ast.IfExp(_, yes, no):
            yield from (*_constants(yes), *_constants(no))
        case ast.BinOp(left, ast.Add(), right):
            yield from (*_constants(left), *_constants(right))
