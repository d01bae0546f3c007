# SPDX-License-Identifier: Apache-2.0
"""The one exception tree of Colibri SDK.

Everything that the package raises on purpose is a `ColibriError`.  A message says what was
wrong, where (file, field) and which value would work; `exit_code` is what a command returns.

    ColibriError
    ├── UnitError          a size such as "64 KB"
    ├── FileError          a file with one or more problems
    │   ├── BoardError         a board or SoC file
    │   ├── ProjectError       a project file
    │   └── RatchetError       figures on record
    ├── CheckpointError    a Hugging Face checkpoint
    ├── PackError          packing a checkpoint into an image
    ├── ImageError         a packed image
    ├── TokenizerError     text to tokens and back
    ├── EngineError        the runtime while it runs
    ├── TraceError         a trace of expert use, or what to make of one
    ├── PlanError          a memory plan
    │   └── DoesNotFitError    (exit code 1)
    ├── BuildError         cross-compiling firmware
    ├── EmulateError       the twin or a CPU machine
    └── SizeError          an ELF and its verdict
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

EXIT_OK = 0
EXIT_DOES_NOT_FIT = 1
EXIT_BAD_INPUT = 2
TEXT_MAX = 8000
#: Set in the environment: errors print where they come from.
TRACEBACK = "COLIBRI_TRACEBACK"


@dataclass(frozen=True)
class RuntimeStatus:
    """What the C library reported: its status and the numbers of `colibri_error`."""

    code: int
    where: int
    have: int
    need: int


@dataclass(frozen=True)
class Lack:
    """A part that does not fit: the bytes that its region has for it, and those it takes."""

    part: str
    region: str
    have: int
    need: int


class ColibriError(Exception):
    """Base of every error of the package.

    Parameters
    ----------
    what : str
        What was wrong.
    file, field : optional
        Where it was found.
    hint : str, optional
        The value or the step that would work.
    """

    exit_code: ClassVar[int] = EXIT_BAD_INPUT
    #: Set when the C library refused something.
    status: RuntimeStatus | None = None

    def __init__(
        self,
        what: str,
        *,
        file: str | Path | None = None,
        field: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.what = _bounded(what)
        self.file = str(file) if file is not None else None
        self.field = _bounded(field) if field is not None else None
        self.hint = _bounded(hint) if hint is not None else None
        where = "".join(f"{part}: " for part in (self.file, self.field) if part)
        super().__init__(f"{where}{self.what}" + (f"; {self.hint}" if self.hint else ""))


def _bounded(text: str) -> str:
    """A part of a message; what a file of megabytes has in it is cut."""
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 3] + "..."


class UnitError(ColibriError, ValueError):
    """A size or a percentage that is not written in a way with one meaning."""


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a file: the file, the place in it, and what would work."""

    file: str
    where: str
    message: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.file, self.where, self.message) if part)


class FileError(ColibriError):
    """A file that a person wrote, with one or more problems."""

    def __init__(
        self,
        what: str,
        *,
        file: str | Path | None = None,
        field: str | None = None,
        hint: str | None = None,
        problems: Sequence[Problem] = (),
    ) -> None:
        super().__init__(what, file=file, field=field, hint=hint)
        self.problems = tuple(problems)

    @classmethod
    def from_problems(cls, problems: Sequence[Problem]) -> Self:
        """One error that carries, and prints, every problem."""
        if len(problems) == 1:
            (only,) = problems
            return cls(only.message, file=only.file, field=only.where or None, problems=problems)
        lines = "".join(f"\n  {problem}" for problem in problems)
        return cls(f"{len(problems)} problems:{lines}", problems=problems)


class BoardError(FileError):
    """A board that is unknown, or a board file with one or more problems."""


class ProjectError(FileError):
    """A project file that does not say what is to be checked, or contradicts itself."""


class RatchetError(FileError):
    """Figures on record: a file that is damaged or cannot be written, a change without a reason."""


class CheckpointError(ColibriError):
    """A checkpoint that is incomplete, contradictory or of an unknown architecture."""


class PackError(ColibriError):
    """An image that cannot be written as asked: recipe, layout, weights out of range, file."""


class ImageError(ColibriError):
    """An image that is refused by the validator."""


class TokenizerError(ColibriError):
    """Text that cannot be tokenized, or an image without a tokenizer."""


class EngineError(ColibriError):
    """A runtime call that failed."""


class TraceError(ColibriError):
    """A trace of expert use that cannot be made, read, or replayed as asked."""


class PlanError(ColibriError):
    """A plan that cannot be computed from what was given."""


class DoesNotFitError(PlanError):
    """A model that does not fit the memory it was given."""

    exit_code: ClassVar[int] = EXIT_DOES_NOT_FIT
    #: Set when a board's layout has no room.
    lack: Lack | None = None


class BuildError(ColibriError):
    """Firmware that cannot be built."""


class EmulateError(ColibriError):
    """An emulation that cannot be run, or that stopped with a fault."""


class SizeError(ColibriError):
    """An ELF that cannot be judged."""


def internal_error(error: Exception) -> str:
    """What to say of an exception that nobody meant to raise."""
    return (
        f"internal error, please report it: {type(error).__name__}: {error}; "
        f"set {TRACEBACK}=1 to see where"
    )
