# SPDX-License-Identifier: Apache-2.0
"""Types of single values in board and project files: sizes, addresses, names, numbers."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import (
    BeforeValidator,
    Field,
    PlainValidator,
    StringConstraints,
    WithJsonSchema,
)

from colibri.errors import UnitError
from colibri.units import SIZE_MAX, SIZE_PATTERN, parse_size

FIGURE_MAX = 1e15


def _number(value: object) -> int | float:
    """A finite number above zero; a bool is not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnitError("not a number", hint="write one, for example 37_500_000")
    if isinstance(value, float) and not math.isfinite(value):
        raise UnitError(f"{value} is not a number", hint="write a finite number above 0")
    if not 0 < value <= FIGURE_MAX:
        raise UnitError("out of range", hint=f"write a number above 0, at most {FIGURE_MAX:g}")
    return value


def power_of_two(value: int) -> int:
    if value < 1 or value & (value - 1):
        raise UnitError(f"{value} is not a power of two", hint="write for example 32 or 64")
    return value


SIZE_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "integer", "minimum": 0, "maximum": SIZE_MAX},
        {"type": "string", "pattern": SIZE_PATTERN},
    ],
    "description": "bytes as an integer, or a string with KiB, MiB or GiB",
}
Size = Annotated[int, BeforeValidator(parse_size), WithJsonSchema(SIZE_SCHEMA)]
Address = Annotated[int, Field(ge=0, le=SIZE_MAX)]
Number = Annotated[
    float, PlainValidator(_number), WithJsonSchema({"type": "number", "exclusiveMinimum": 0})
]
# No control characters: what a file says is printed on terminals.
Text = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f-\x9f]+$", max_length=400)]
Id = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=64)]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_]*$", max_length=32)]
Word = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=64)]
