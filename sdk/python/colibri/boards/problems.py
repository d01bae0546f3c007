# SPDX-License-Identifier: Apache-2.0
"""Validation errors of pydantic, said the way a person who writes a board file needs them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from colibri.boards.checks import Finding, closest

_TYPE_NAMES = {
    "int_type": "an integer",
    "string_type": "a string in quotes",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
}
_BOUND_WORDS = {
    "greater_than_equal": ("ge", "at least"),
    "less_than_equal": ("le", "at most"),
}
_PATTERN_WORDS = {
    r"^[a-z0-9][a-z0-9-]*$": "use lower-case letters, digits and '-', for example 'my-board-1'",
    r"^[A-Za-z][A-Za-z0-9_]*$": "use a letter, then letters, digits or '_', for example 'SRAM'",
    r"^[a-z0-9][a-z0-9._-]*$": "use lower-case letters, digits, '.', '_' or '-'",
}
Label = Callable[[tuple[int | str, ...]], str]


def findings(error: ValidationError, model: type[BaseModel], label: Label) -> Iterator[Finding]:
    """One (where, message) for each error; `label` names the place of a location."""
    for detail in error.errors(include_url=False):
        where = label(_place(detail))
        yield where, _message(detail, model)


def _place(detail: ErrorDetails) -> tuple[int | str, ...]:
    """The location; for a missing or unknown key the table it is missing from."""
    loc = detail["loc"]
    return loc[:-1] if detail["type"] in ("missing", "extra_forbidden") else loc


def _message(detail: ErrorDetails, model: type[BaseModel]) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "missing":
        return f"missing key '{detail['loc'][-1]}'"
    if kind == "extra_forbidden":
        return _unknown_key(str(detail["loc"][-1]), _keys_at(model, detail["loc"][:-1]))
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        return _not_one_of(detail["input"], str(context["expected"]))
    if kind in _TYPE_NAMES:
        return f"{shown(detail['input'])} is not {_TYPE_NAMES[kind]}"
    if kind in _BOUND_WORDS:
        key, words = _BOUND_WORDS[kind]
        return f"{shown(detail['input'])} is out of range; write {words} {context[key]}"
    if kind == "too_short" and detail["input"] in ({}, []):
        return "is empty; write at least one"
    if kind == "string_pattern_mismatch":
        hint = _PATTERN_WORDS.get(str(context["pattern"]), "use printable text, not empty")
        return f"{shown(detail['input'])} is not allowed here; {hint}"
    return detail["msg"][0].lower() + detail["msg"][1:]


def _unknown_key(key: str, known: Sequence[str]) -> str:
    return f"unknown key {shown(key)}; {closest(key, known)}valid keys: {', '.join(known)}"


def _not_one_of(value: object, expected: str) -> str:
    known = re.findall(r"'([^']*)'", expected) or [expected]
    near = closest(value, known) if isinstance(value, str) else ""
    return f"{shown(value)} is not known; {near}one of {', '.join(known)}"


def _keys_at(model: type[BaseModel], loc: Sequence[int | str]) -> list[str]:
    """Keys of the table that a location names."""
    current: Any = model
    for part in loc:
        if isinstance(part, int):
            continue
        if get_origin(current) is dict:
            current = get_args(current)[1]
        else:
            current = _table_of(current.model_fields[part].annotation)
    return list(current.model_fields)


def _table_of(annotation: Any) -> Any:
    """The model inside `list[Model]` or `Model | None`; a dict as it is."""
    if get_origin(annotation) is dict:
        return annotation
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in get_args(annotation):
        found = _table_of(inner)
        if found is not None:
            return found
    return None


def shown(value: object) -> str:
    """A value as it may stand in a message: short, on one line, TOML spelling of booleans."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
