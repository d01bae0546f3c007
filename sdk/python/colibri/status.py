# SPDX-License-Identifier: Apache-2.0
"""From the numbers of `colibri_error` to a sentence and the exception that carries it.

The extension calls `error_from` whenever a C call fails; status.h says what the numbers mean.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, fields

from colibri import _core
from colibri.errors import (
    ColibriError,
    DoesNotFitError,
    EngineError,
    ImageError,
    PlanError,
    RuntimeStatus,
)
from colibri.image_format import Settings

#: Members of colibri_limits, as status LIMIT numbers them.
LIMITS = (
    "size",
    "sequences",
    "context",
    "batch",
    "workers",
    "kv",
    "profile",
    "weights",
    "expert_slots",
    "policy",
    "prefetch",
    "balance",
    "prefer_cached",
)
#: Those that only streamed experts have a use for.
_OF_STREAMING = tuple(map(LIMITS.index, ("expert_slots", "prefetch", "prefer_cached")))
_IN_THOUSANDTHS = LIMITS.index("prefer_cached")
_CONFIG = fields(Settings)
_REPACK = "pack the model again"
_LAYOUT_OFFSET = 12
_BINDINGS = 8
_BACKEND_MEMORY = 2
NO_EXPERT = 0xFFFF0000
MEMORY = 20
CHECKSUM = 44
READ_ERRORS = (60, 62)  # of storage; of what was read
BACKEND = 61


@dataclass(frozen=True)
class _Rule:
    """How one status is said: which exception, what was wrong, and what would work."""

    error: type[ColibriError]
    what: Callable[[RuntimeStatus], str]
    hint: Callable[[RuntimeStatus], str | None]


def tensor_place(where: int) -> str:
    """``"layer 3, query"`` from layer << 16 | role."""
    layer, role = where >> 16, where & 0xFFFF
    names = {number: name for name, number in _core.ROLES.items()}
    name = names.get(role, f"role {role}")
    return name if layer == _core.GLOBAL_LAYER else f"layer {layer}, {name}"


def _limit(s: RuntimeStatus) -> str:
    if not 0 < s.where < len(LIMITS):
        return "the limits ask for more memory than a 64-bit number can say"
    have = s.have / 1000 if s.where == _IN_THOUSANDTHS else s.have
    return f"limit '{LIMITS[s.where]}' is {have}"


def _limit_hint(s: RuntimeStatus) -> str | None:
    if not s.need:
        if s.where in _OF_STREAMING:
            return "leave it out, or stream experts (weights='streamed', --expert-slots)"
        return "leave it out: the model has no experts, or this build no such router"
    need = s.need // 1000 if s.where == _IN_THOUSANDTHS else s.need
    return f"at most {need}" if s.need < s.have else f"at least {need}"


def _argument(s: RuntimeStatus) -> str:
    if s.where == 1:
        return "the engine's memory has been given to another"
    if s.need:
        return f"argument {s.where} of the runtime call has {s.have} entries"
    return f"argument {s.where} of the runtime call is missing or contradictory"


def _config(s: RuntimeStatus) -> str:
    if s.where >= len(_CONFIG):
        return f"model setting {s.where}, which no version uses, is {s.have} instead of 0"
    field = _CONFIG[s.where]
    value = s.have if field.type == "int" else struct.unpack("<f", struct.pack("<I", s.have))[0]
    return f"model setting '{field.name}' is out of range ({value})"


def _unsupported(s: RuntimeStatus) -> str:
    """`where` is 7 (the limit `weights`), 12 (the layout), a tensor, or an offset in the file."""
    if s.where == LIMITS.index("weights"):
        return "the weights cannot be used where they lie: the storage does not map"
    if s.where == _BINDINGS:
        return f"{s.have} experts are bound to a backend, which this build leaves out"
    if s.where == _LAYOUT_OFFSET:
        return f"image layout {s.have} (sharded or hybrid) is not read by this build"
    if s.where >> 16 or s.where in _core.ROLES.values():
        what = f"type {s.have}" if s.have < 1 << 8 else f"weight order {s.have >> 8}"
        return f"{tensor_place(s.where)} has {what}, which this build leaves out"
    return f"the layer table at offset {s.where:#x} asks for a part that this build leaves out"


def _unsupported_hint(s: RuntimeStatus) -> str:
    if s.where == LIMITS.index("weights"):
        return "load them into memory (weights='loaded' or 'streamed')"
    if s.where == _LAYOUT_OFFSET:
        return "make it one file: colibri convert IMAGE -o FILE --layout monolithic"
    return "build the library with it"


def _read(s: RuntimeStatus) -> str:
    """`where` is an expert, or 0xFFFF0000 and the number of a file."""
    what = f"reading failed at offset {s.have:#x} ({s.need:,} bytes)"
    if s.where < NO_EXPERT:
        return f"layer {s.where >> 16}, expert {s.where & 0xFFFF}: {what}"
    file = s.where - NO_EXPERT
    return f"{what} of companion file {file}" if file else what


def _corrupt(s: RuntimeStatus) -> str:
    return (
        f"layer {s.where >> 16}, expert {s.where & 0xFFFF}: the {s.need:,} bytes read at offset "
        f"{s.have:#x} do not match their checksum"
    )


def _backend(s: RuntimeStatus) -> str:
    reasons = {1: "cannot compute it to the bit", 2: "has no memory left for it", 3: "failed"}
    what = reasons.get(s.have, f"answered {s.have}")
    return f"layer {s.where >> 16}, expert {s.where & 0xFFFF}: the backend it is bound to {what}"


def _backend_hint(s: RuntimeStatus) -> str:
    if s.have == _BACKEND_MEMORY:
        return f"give it {s.need:,} bytes" if s.need else "bind fewer experts to it"
    return "run again, or leave the expert to the CPU"


_COMPANION = {
    1: "is not there, or cannot be read", 2: "is too short", 3: "is no companion file",
    4: "has a damaged header", 5: "is in the place of another", 6: "is of another image",
    7: "says another length",
}  # fmt: skip


def _companion(s: RuntimeStatus) -> str:
    return f"companion file {s.where} {_COMPANION.get(s.have, 'cannot be used')}"


def _companion_hint(s: RuntimeStatus) -> str:
    return f"put the file of {s.need:,} bytes beside the image that was written with it"


def _magic_hint(s: RuntimeStatus) -> str:
    return "give the image that it lies beside" if s.have else "make one with 'colibri pack'"


def _text(text: str) -> Callable[[RuntimeStatus], str]:
    return lambda _: text


def _need(before: str, after: str = "") -> Callable[[RuntimeStatus], str | None]:
    return lambda s: f"{before} {s.need:,}{after}"


def _no_hint(_: RuntimeStatus) -> None:
    return None


_RULES: dict[int, _Rule] = {
    1: _Rule(EngineError, _argument, lambda s: f"at most {s.need}" if s.need else None),
    2: _Rule(EngineError, lambda s: f"token {s.have} at index {s.where} is not in the vocabulary",
             lambda s: f"use 0 .. {s.need - 1}" if s.need else None),
    3: _Rule(EngineError, lambda s: f"sequence {s.have} at index {s.where} is unknown",
             lambda s: f"use 0 .. {s.need - 1}" if s.need else None),
    4: _Rule(EngineError, lambda s: f"the sequence would pass its context of {s.have} tokens",
             _need("make the engine with context", " or more, or reset the sequence")),
    5: _Rule(EngineError, _text("the logits buffer is too small"), _need("it takes", " floats")),
    6: _Rule(EngineError, lambda s: f"sequence {s.where} lost its state in a call that failed",
             lambda s: f"reset({s.where}), then give it its tokens again"),
    20: _Rule(DoesNotFitError, lambda s: f"memory region {s.where} has {s.have:,} bytes",
              _need("give it", " bytes")),
    21: _Rule(PlanError, lambda s: f"memory region {s.where} is not aligned"
              + (f": its address is {s.have} past a multiple of {s.need}" if s.have else ""),
              _need("its address must be a multiple of")),
    22: _Rule(PlanError, _limit, _limit_hint),
    23: _Rule(EngineError, _text("the floating-point unit does not round to nearest or flushes "
                                 "denormals"), lambda _: "reset its control register"),
    40: _Rule(ImageError, lambda s: "a companion file" if s.have else "not a Colibri image",
              _magic_hint),
    41: _Rule(ImageError, lambda s: f"image version {s.have} is unknown",
              _need("this library reads version")),
    42: _Rule(ImageError, lambda s: f"truncated at {s.have:,} bytes", _need("it takes", " bytes")),
    43: _Rule(ImageError, lambda s: f"tables break a rule of the format at offset {s.where:#x}",
              lambda _: _REPACK),
    44: _Rule(ImageError, lambda s: f"header and tables have checksum {s.have:08x}, "
                                    f"not {s.need:08x}", lambda _: "copy the file again"),
    45: _Rule(ImageError, _config, lambda _: _REPACK),
    46: _Rule(ImageError, lambda s: f"{tensor_place(s.where)} is missing, misplaced or misshapen",
              lambda _: _REPACK),
    47: _Rule(ImageError, _unsupported, _unsupported_hint),
    48: _Rule(ImageError, _companion, _companion_hint),
    60: _Rule(ImageError, _read, lambda _: "run again; if it stays, check the medium, or copy "
                                         "the file again"),
    62: _Rule(ImageError, _corrupt, lambda _: "run again; if it stays, copy the file again"),
    61: _Rule(EngineError, _backend, _backend_hint),
    80: _Rule(EngineError, lambda s: f"NaN or infinity came up (layer or row {s.where})",
              lambda _: "check the image with 'colibri inspect'"),
    81: _Rule(EngineError, lambda s: f"self-test checksum is {s.have:08x}, not {s.need:08x}",
              lambda _: "this build or CPU computes other numbers than the packer's"),
}  # fmt: skip


def error_from(subject: str, code: int, where: int, have: int, need: int) -> ColibriError:
    """The exception for a failed C call; `subject` is the image or the operation."""
    status = RuntimeStatus(code, where, have, need)
    rule = _RULES.get(code)
    if rule is None:
        error = ColibriError(_core.status_name(code), file=subject)
    else:
        if code == BACKEND and have == _BACKEND_MEMORY:
            rule = _Rule(DoesNotFitError, rule.what, rule.hint)
        error = rule.error(rule.what(status), file=subject, hint=rule.hint(status))
    error.status = status
    return error


def error_from_errno(path: str, number: int) -> ImageError:
    """The exception for a file that cannot be opened."""
    return ImageError(f"cannot open: {os.strerror(number)}", file=path)
