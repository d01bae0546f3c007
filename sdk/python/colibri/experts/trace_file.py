# SPDX-License-Identifier: Apache-2.0
"""A trace as JSON (docs/expert-cache.md): one object, the choices of a token on each line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from colibri.errors import TraceError
from colibri.experts.trace import ExpertTrace, Text, heat_of
from colibri.text_files import write_text

SCHEMA = 1
KIND = "expert-trace"
FILE_BYTES_MAX = 1 << 30
EXPERTS_MAX = 4096
RECORD_BYTES_MAX = 2**32 - 1
_MAKE = "make it with `colibri trace`"


def write_trace(trace: ExpertTrace, file: Path) -> None:
    """Writes under a temporary name, then gives the file its own; TraceError when it cannot."""
    head = {
        "schema": SCHEMA,
        "kind": KIND,
        "image": trace.image,
        "tokenizer": trace.tokenizer,
        "text": {"source": trace.text.source, "sha256": trace.text.sha256},
        "tokens": trace.tokens,
        "window": trace.window,
        "experts": trace.experts,
        "identities": trace.identities,
        "top_k": trace.top_k,
        "layer_numbers": trace.layers,
        "record_bytes": trace.record_bytes,
        "routing": trace.routing,
        "balance_router": trace.balance_router,
        "heat": {"layers": trace.heat},
        "ids": trace.text.ids,
    }
    lines = ",\n".join(json.dumps(token, separators=(",", ":")) for token in trace.choices.tolist())
    fields = "".join(f"{json.dumps(name)}: {json.dumps(value, separators=(',', ':'))},\n"
                     for name, value in head.items())  # fmt: skip
    write_text(file, f'{{\n{fields}"choices": [\n{lines}\n]\n}}\n', TraceError)


def read_trace(file: Path) -> ExpertTrace:
    """The trace in a file; TraceError names what in it is not as it should be."""
    return _Reader(file, _object(file)).trace()


def _object(file: Path) -> dict[str, Any]:
    try:
        if not file.is_file():
            what = "does not exist" if not file.exists() else "is a folder or a device"
            raise TraceError(what, file=file, hint="give a trace; " + _MAKE)
        if file.stat().st_size > FILE_BYTES_MAX:
            raise TraceError("is too long", file=file, hint=f"valid are {FILE_BYTES_MAX:,} bytes")
        value = json.loads(file.read_bytes())
    except OSError as error:
        raise TraceError(error.strerror or "cannot be read", file=file) from error
    except (ValueError, RecursionError) as error:
        raise TraceError(f"is not JSON: {error}", file=file, hint=_MAKE) from error
    if not isinstance(value, dict):
        raise TraceError("is not a JSON object", file=file, hint=_MAKE)
    return value


class _Reader:
    """Takes the fields of a trace one by one and says which one is wrong."""

    def __init__(self, file: Path, fields: dict[str, Any]) -> None:
        self.file, self.fields = file, fields

    def trace(self) -> ExpertTrace:
        if self._value("kind") != KIND:
            self._refuse("kind", f"is {self._shown('kind')}", f"a trace has '{KIND}'; {_MAKE}")
        if self._value("schema") != SCHEMA:
            self._refuse("schema", f"is {self._shown('schema')}", f"this version reads {SCHEMA}")
        experts = self._number("experts", 1, EXPERTS_MAX)
        identities = self._number("identities", 0, EXPERTS_MAX)
        top_k = self._number("top_k", 1, experts + identities)
        layers = self._numbers("layer_numbers", 0, 2**16 - 1)
        if not layers or list(layers) != sorted(set(layers)):
            self._refuse("layer_numbers", "do not rise", "a layer is there once, in order")
        ids = self._numbers("ids", 0, 2**32 - 1, self._number("tokens", 1, 2**32 - 1))
        shape = (len(ids), len(layers), top_k)
        choices = self._choices(shape, experts + identities)
        self._check_heat(heat_of(choices, experts))
        return ExpertTrace(
            image=self._hex("image", self._value("image"), 32),
            tokenizer=self._tokenizer(),
            text=self._text(ids),
            experts=experts,
            identities=identities,
            top_k=top_k,
            layers=layers,
            record_bytes=self._numbers("record_bytes", 1, RECORD_BYTES_MAX, len(layers)),
            window=self._number("window", 1, 2**32 - 1),
            choices=choices,
            routing=self._table("routing"),
            balance_router=self._balance(),
        )

    def _value(self, name: str) -> Any:
        if name not in self.fields:
            self._refuse(name, "is missing", _MAKE)
        return self.fields[name]

    def _number(self, name: str, least: int, most: int) -> int:
        value = self._value(name)
        if type(value) is not int or not least <= value <= most:
            self._refuse(name, f"is {self._shown(name)}", f"valid is {least} to {most}")
        return int(value)

    def _numbers(
        self, name: str, least: int, most: int, count: int | None = None
    ) -> tuple[int, ...]:
        values = self._value(name)
        if not isinstance(values, list):
            self._refuse(name, "is not a list", "write whole numbers, as in [0, 1, 2]")
        if count is not None and len(values) != count:
            self._refuse(name, f"has {len(values)} elements", f"it must have {count}")
        for at, value in enumerate(values):
            if type(value) is not int or not least <= value <= most:
                self._refuse(f"{name}[{at}]", f"is {_short(value)}", f"valid is {least} to {most}")
        return tuple(values)

    def _table(self, name: str) -> dict[str, Any]:
        value = self._value(name)
        if not isinstance(value, dict):
            self._refuse(name, "is not an object", _MAKE)
        return dict(value)

    def _hex(self, name: str, value: Any, digits: int) -> str:
        if not isinstance(value, str) or not re.fullmatch(f"[0-9a-f]{{{digits}}}", value):
            self._refuse(name, f"is {_short(value)}", f"write {digits} hexadecimal digits")
        return str(value)

    def _balance(self) -> int | None:
        if self.fields.get("balance_router") is None:  # as in traces from before there was one
            return None
        return self._number("balance_router", 1, 2**32 - 1)

    def _tokenizer(self) -> str | None:
        value = self._value("tokenizer")
        return None if value is None else self._hex("tokenizer", value, 64)

    def _text(self, ids: tuple[int, ...]) -> Text:
        text = self._table("text")
        source = text.get("source")
        if source not in ("text", "ids"):
            self._refuse("text.source", f"is {_short(source)}", "write 'text' or 'ids'")
        name: Literal["text", "ids"] = "ids" if source == "ids" else "text"
        return Text(ids, name, self._hex("text.sha256", text.get("sha256"), 64))

    def _choices(self, shape: tuple[int, int, int], experts: int) -> NDArray[np.uint16]:
        """Tokens x layers x top_k, no expert twice in a token's layer."""
        tokens, layers, top_k = shape
        wanted = f"{tokens} tokens of {layers} layers of {top_k} experts"
        try:
            found = np.array(self._value("choices"))
        except ValueError:  # lists of different lengths
            self._refuse("choices", "is not a regular list", f"it must have {wanted}")
        if found.shape != shape or found.dtype.kind != "i":
            what = f"has the shape {found.shape} of {found.dtype}"
            self._refuse("choices", what, f"it must have {wanted}, whole numbers")
        outside = np.argwhere((found < 0) | (found >= experts))
        if outside.size:
            where = tuple(outside[0].tolist())
            self._refuse(_place(where), f"is {found[where]}", f"valid is 0 to {experts - 1}")
        ordered = np.sort(found, axis=2)
        twice = np.argwhere(ordered[:, :, 1:] == ordered[:, :, :-1])
        if twice.size:
            self._refuse(_place(tuple(twice[0].tolist()[:2])), "has an expert twice",
                         "a token chooses an expert of a layer once")  # fmt: skip
        return found.astype(np.uint16)

    def _check_heat(self, counted: list[list[int]]) -> None:
        if self._table("heat").get("layers") != counted:
            self._refuse("heat.layers", "does not agree with the choices", _MAKE + " again")

    def _shown(self, name: str) -> str:
        return _short(self.fields[name])

    def _refuse(self, field: str, what: str, hint: str) -> None:
        raise TraceError(what, file=self.file, field=field, hint=hint)


def _place(index: tuple[int, ...]) -> str:
    return "choices" + "".join(f"[{i}]" for i in index)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."
