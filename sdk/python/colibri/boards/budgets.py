# SPDX-License-Identifier: Apache-2.0
"""Budgets: what `colibri size` and `colibri check` hold figures to.

The same tables stand in board files and in project files. Each budget has a mark that warns and
one that fails, ``{ warn = "80 %", limit = "90 %" }``; a value alone is the limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from colibri.boards.scalars import SIZE_SCHEMA, Name, Number
from colibri.errors import UnitError
from colibri.units import PERCENT_PATTERN, parse_percent, parse_size, percent_of

_SCALAR_OR_SIZE = {"anyOf": [*SIZE_SCHEMA["anyOf"], {"type": "string", "pattern": PERCENT_PATTERN}]}
#: Name of a group of owners, as `[groups]` of a project file defines it.
GroupName = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f-\x9f]+$", max_length=64)]


class _Table(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Limit(_Table):
    """A mark: a size, or a percentage of what there is."""

    size: int | None = None
    percent: float | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_scalar(cls, value: Any) -> Any:
        if isinstance(value, str) and value.endswith("%"):
            return {"percent": parse_percent(value)}
        if isinstance(value, dict):
            raise UnitError("a limit is a size or a percentage", hint="write '64 KiB' or '90 %'")
        return {"size": parse_size(value)}

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return _SCALAR_OR_SIZE

    def of(self, capacity: int) -> int:
        """The mark in bytes for something that holds `capacity` bytes."""
        if self.size is not None:
            return self.size
        assert self.percent is not None
        return int(percent_of(capacity, self.percent))


class _Budget(_Table):
    """A table of `warn` and `limit`, or the limit alone."""

    scalar_schema: ClassVar[dict[str, Any]]

    @model_validator(mode="before")
    @classmethod
    def _limit_alone(cls, value: Any) -> Any:
        return value if isinstance(value, (dict, cls)) else {"limit": value}

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        table = handler.resolve_ref_schema(handler(core_schema))
        return {"anyOf": [cls.scalar_schema, table]}


class RegionBudget(_Budget):
    """Budget of something that has a capacity: a region, the reserved stack."""

    scalar_schema = _SCALAR_OR_SIZE
    warn: Limit | None = None
    limit: Limit | None = None

    @property
    def relative(self) -> bool:
        """Whether a mark is a percentage."""
        marks = (self.warn, self.limit)
        return any(mark is not None and mark.percent is not None for mark in marks)

    def marks(self, capacity: int | None) -> tuple[int | None, int | None]:
        """`warn` and `limit` in bytes; None where there is none, or nothing to take a share of."""
        return _bytes(self.warn, capacity), _bytes(self.limit, capacity)


def _bytes(mark: Limit | None, capacity: int | None) -> int | None:
    if mark is None or (mark.percent is not None and capacity is None):
        return None
    return mark.of(capacity or 0)


def _size_alone(value: Any) -> Any:
    if isinstance(value, str) and value.strip().endswith("%"):
        raise UnitError("nothing is said of which this could be a share", hint="write a size")
    return parse_size(value)


_OnlySize = Annotated[int, BeforeValidator(_size_alone), WithJsonSchema(SIZE_SCHEMA)]


class SizeBudget(_Budget):
    """Budget of something without a capacity, in bytes."""

    scalar_schema = SIZE_SCHEMA
    warn: _OnlySize | None = None
    limit: _OnlySize | None = None


class NumberBudget(_Budget):
    """Budget of a speed (at least that) or of a time in seconds (at most that)."""

    scalar_schema: ClassVar[dict[str, Any]] = {"type": "number", "exclusiveMinimum": 0}
    warn: Number | None = None
    limit: Number | None = None


def _field(description: str) -> Any:
    return Field(default=None, description=description)


class Budgets(_Table):
    """What a firmware, and the model in it, are held to."""

    regions: dict[Name, RegionBudget] = Field(
        default={}, description="used bytes of a region; percentages are of what is not reserved"
    )
    spans: dict[Name, RegionBudget] = Field(
        default={},
        description="length of a region's flat file, from its first to its last stored byte: "
        "what flashing tools write, gaps filled",
    )
    groups: dict[GroupName, SizeBudget] = Field(
        default={}, description="bytes of the owners in a group, in all regions"
    )
    image_bytes: SizeBudget | None = _field("the model image")
    stack_bytes: SizeBudget | None = _field("the stack that the linker reserves")
    stack_depth: RegionBudget | None = _field(
        "worst-case stack of `colibri size --stack`; percentages are of the stack that the linker "
        "reserves"
    )
    code_bytes: SizeBudget | None = _field("code and constants")
    arena_bytes: SizeBudget | None = _field("planned: memory of the engine")
    tok_s: NumberBudget | None = _field("predicted: tokens generated a second, at least")
    first_token_s: NumberBudget | None = _field("predicted: seconds to the first token, at most")
    deadline_s: NumberBudget | None = _field("predicted: seconds to the last token, at most")

    def marks(self, name: str) -> tuple[float | None, float | None]:
        """`warn` and `limit` of a budget in bytes, tokens a second or seconds."""
        return _pair(getattr(self, name))

    def problems(self, capacities: dict[str, int]) -> Iterator[tuple[str, str]]:
        """(where, message) of each `warn` that comes after its `limit`."""
        for table, budgets in (("regions", self.regions), ("spans", self.spans)):
            for name, budget in budgets.items():
                if name in capacities:
                    yield from _order(f"{table}.{name}", *budget.marks(capacities[name]))
        if self.stack_depth is not None:
            yield from _order("stack_depth", *self.stack_depth.marks(_ANY))
        for name, sizes in self.groups.items():
            yield from _order(f"groups.{name}", sizes.warn, sizes.limit)
        for name in ("image_bytes", "stack_bytes", "code_bytes", "arena_bytes"):
            yield from _order(name, *self.marks(name))
        for name in ("first_token_s", "deadline_s"):
            yield from _order(name, *self.marks(name))
        warn, limit = self.marks("tok_s")
        yield from _order("tok_s", limit, warn, "below")


#: A capacity to compare two percentages by, where the real one is not known yet.
_ANY = 1 << 30


def _pair(budget: Any) -> tuple[Any, Any]:
    return (None, None) if budget is None else (budget.warn, budget.limit)


def _order(
    where: str, low: float | None, high: float | None, word: str = "above"
) -> Iterator[tuple[str, str]]:
    if low is not None and high is not None and low > high:
        better = "smaller" if word == "above" else "larger"
        yield f"budgets.{where}.warn", f"is {word} limit; write a {better} one"
