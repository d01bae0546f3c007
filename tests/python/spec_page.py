# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/spec.md, read out of the page: words of the config, roles of tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spec.md"
ONLY_WITH = {"": tuple(range(1, 9)), "latent": (2,), "linear": (5, 6, 7, 8),
             "filter": (3, 5, 6, 8), "mamba": (8,)}  # fmt: skip
Shape = tuple[int, int]


@dataclass(frozen=True)
class Word:
    """A word of the config; one that is `only_with` some layers is 0 without them."""

    number: int
    name: str
    range: str
    only_with: str

    @property
    def is_float(self) -> bool:
        return self.range.startswith("f")

    @property
    def limits(self) -> tuple[int, int]:
        """Of an integer word."""
        least, most = map(int, self.range.split(" .. "))
        return least, most

    def allows(self, value: float) -> bool:
        if not self.is_float:
            return self.limits[0] <= value <= self.limits[1]
        finite = abs(value) < float("inf")
        return finite and {"f": True, "f > 0": value > 0, "f >= 0": value >= 0}[self.range]


@dataclass(frozen=True)
class Row:
    """What the page says of a role, in layers of one kind."""

    role: int
    name: str
    size: str
    where: str  # global, layer, mixer or ffn ...
    numbers: frozenset[int]  # ... which
    when: str
    f32: bool
    optional: bool

    @property
    def in_record(self) -> bool:
        return 64 <= self.role <= 79

    def may_be_in(self, mixer: int | None, ffn: int = 0) -> bool:
        """Whether such layers (mixer None: no layer) have the role, if its condition holds."""
        if self.where in ("global", "layer"):
            return (self.where == "global") == (mixer is None)
        return mixer is not None and (mixer if self.where == "mixer" else ffn) in self.numbers

    def holds(self, names: Mapping[str, Any]) -> bool:
        return bool(not self.when or _value(self.when, names))

    def shapes(self, names: Mapping[str, Any]) -> list[Shape]:
        """Rows and columns; names are those of the layer, see `names_of`."""
        c = names
        letters = {
            "H": c["hidden"], "Q": c["heads"] * c["head_size"], "K": c["kv_heads"] * c["head_size"],
            "E": c["experts"], "L": c["latent_size"], "R": c["rope_size"],
            "N": c["linear_keys"] * c["linear_key_size"],
            "V": c["linear_values"] * c["linear_value_size"],
        }  # fmt: skip
        found = []
        for text in self.size.split("; "):
            rows, columns = text.replace("/", "//").split(" x ")
            found.append((_value(rows, {**c, **letters}), _value(columns, {**c, **letters})))
        return found


def _value(text: str, names: Mapping[str, Any]) -> Any:
    return eval(text, {"__builtins__": {}}, dict(names))


def _table(head: str) -> list[list[str]]:
    """Cells of the rows of the page's table that begins so."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith(head)) + 2
    end = next(i for i in range(first, len(lines)) if not lines[i].startswith("|"))
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[first:end]]


def _words() -> list[Word]:
    return [Word(int(n), name, range, only) for n, name, range, only, _ in _table("| word | name ")]


def _rows() -> list[Row]:
    found = []
    for number, name, size, where, when, marks in _table("| role | name "):
        kind = re.fullmatch(r"(?:every )?(global|layer|mixer|ffn)(.*)", where)
        code = re.match("`([a-z0-9_]+)`", name)
        assert kind is not None, where
        assert code is not None, name
        numbers = frozenset(map(int, re.findall(r"\d", kind[2])))
        assert set(marks.split()) <= {"f", "o"}
        found.append(Row(int(number), code[1], size, kind[1], numbers, when,
                         "f" in marks, "o" in marks))  # fmt: skip
    return found


WORDS, ROWS = _words(), _rows()
