# SPDX-License-Identifier: Apache-2.0
"""What a project file may say: one class per TOML table, strict, as in board files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
)

from colibri.boards.budgets import Budgets, GroupName
from colibri.boards.scalars import Id, Name, Size, Text
from colibri.errors import UnitError
from colibri.fit.stack.declared import StackTable
from colibri.recipe import QUANTS
from colibri.units import parse_percent, parse_size

Engine = Literal["native", "cpu"]
#: A shell pattern of symbols or owners.
Pattern = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f-\x9f]+$", max_length=400)]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]


def _path(value: Any) -> Any:
    if not isinstance(value, str) or not value or "\0" in value:
        raise UnitError(f"{str(value)[:40]!r} is not a path", hint="write it in quotes")
    return Path(value)


File = Annotated[Path, BeforeValidator(_path), WithJsonSchema({"type": "string", "minLength": 1})]


class _Table(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Model(_Table):
    """Where the image comes from: packed from a checkpoint, as `colibri pack` does, or ready."""

    checkpoint: File | None = Field(default=None, description="folder or GGUF file")
    image: File | None = Field(default=None, description="a packed image, instead of checkpoint")
    quant: Literal["f32", "f16", "bf16", "q8", "q4"] | None = None
    group: Literal[32, 64, 128] | None = None
    recipe: File | None = Field(default=None, description="TOML file with a type per role")
    calibrate: File | None = Field(default=None, description="text that q8 and q4 lose least on")
    layout: Literal["monolithic", "sharded", "hybrid"] = "monolithic"
    shard_size: Size | None = None
    block: Size | None = None
    heat: File | None = Field(default=None, description="trace; hottest experts first")
    pin: File | None = Field(default=None, description="trace; hottest experts stay in memory")

    @property
    def packing(self) -> dict[str, Any]:
        """The keys that are about packing, as they were set."""
        return self.model_dump(exclude_unset=True, exclude={"checkpoint", "image"})


class Limits(_Table):
    """Limits of the engine, as `colibri plan` takes them."""

    context: Count | None = None
    batch: Count | None = None
    workers: Count = 1
    kv: Literal["f32", "f16", "q8"] = "f32"
    memory: Size | None = Field(default=None, description="stream experts within so many bytes")
    expert_slots: Count | None = None
    policy: Literal["auto", "lru", "frequency", "least-stale"] = "auto"
    prefetch: bool | None = None

    @property
    def streamed(self) -> bool:
        """Whether any of these asks for streamed experts."""
        asked = (self.memory, self.expert_slots, self.prefetch)
        return self.policy != "auto" or any(value is not None for value in asked)


class Run(_Table):
    """What the emulated model is asked; a prompt, or token ids where there is no tokenizer."""

    prompt: str | None = Field(default=None, min_length=1)
    tokens: list[Annotated[int, Field(ge=0, le=2**32 - 1)]] | None = Field(
        default=None, min_length=1
    )
    max_new_tokens: Annotated[int, Field(ge=0, le=2**31 - 1)] = 24
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    top_k: Annotated[int, Field(ge=0, le=2**32 - 1)] = 0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0


class Symbols(_Table):
    """Symbols that a firmware must or must not contain."""

    forbidden: list[Pattern] = Field(default=[], description="beside heap, threads, stdio, exit")
    allowed: list[Pattern] = Field(default=[], description="although forbidden")
    required: dict[Pattern, str] = Field(
        default={}, description="name or pattern: the region that it must lie in, or ''"
    )
    no_writable: list[Pattern] = Field(
        default=[], description="owners (as in [groups]) that may own no writable memory"
    )
    may_need: list[Pattern] | None = Field(
        default=None, description="the only names that may stay undefined"
    )


class Ratchet(_Table):
    """Figures may not get worse than those on record without a reason."""

    file: File = Path("colibri-figures.json")
    tolerance: dict[Pattern, Annotated[str | int, BeforeValidator(lambda v: _tolerance(v))]] = (
        Field(default={}, description="figures by pattern: bytes, a size, or a percentage")
    )


def _tolerance(value: Any) -> Any:
    if isinstance(value, str) and value.strip().endswith("%"):
        parse_percent(value)
        return value
    return parse_size(value)


class ProjectBoard(_Table):
    """One board of the project; the key is its id unless `board` says another or a file."""

    board: str | None = Field(default=None, description="id, or path of a board file")
    build: bool = Field(default=True, description="make the firmware that `colibri build` makes")
    toolchain: Literal["auto", "zig", "gcc"] = "auto"
    kernels: Text = "auto"
    weights: Literal["auto", "mapped", "streamed"] = "auto"
    elf: File | None = Field(default=None, description="your own firmware, instead of a build")
    map: File | None = Field(default=None, description="its map (GNU ld, lld)")
    su: list[File] = Field(default=[], description="files or folders of gcc's .su and .ci files")
    emulate: list[Engine] = Field(
        default=["native"], description="native: the twin. cpu: firmware on an emulated CPU"
    )
    limits: Limits | None = Field(default=None, description="instead of the project's")
    application: dict[Name, Size] | None = Field(default=None, description="likewise")
    symbols: Symbols | None = Field(default=None, description="likewise")
    budgets: Budgets = Field(default=Budgets(), description="over the project's and the board's")


class Project(_Table):
    """A project file."""

    schema_version: Literal[1]
    name: Id
    model: Model | None = Field(default=None, description="none: firmware alone is checked")
    limits: Limits = Limits()
    run: Run = Run()
    application: dict[Name, Size] = Field(
        default={}, description="memory by region that the program beside the engine takes"
    )
    groups: dict[GroupName, list[Pattern]] = Field(
        default={}, description="owners by pattern; the first group that matches has them"
    )
    symbols: Symbols = Symbols()
    stack: StackTable | None = Field(default=None, description="what code does not tell")
    budgets: Budgets = Budgets()
    ratchet: Ratchet | None = None
    boards: dict[Text, ProjectBoard] = Field(min_length=1)


assert set(QUANTS) == {"f32", "f16", "bf16", "q8", "q4"}
