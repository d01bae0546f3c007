# SPDX-License-Identifier: Apache-2.0
"""Names, numbers and sizes of the image format (docs/spec.md), for the writer.

Reading an image is the C library's job; nothing here parses one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import IntEnum

MAGIC = b"\x89CLB\r\n\x1a\n"
VERSION = 1
ALIGNMENT = 64
GLOBAL_LAYER = 0xFFFF
MAX_CONTEXT = 131072
GROUPS = (32, 64, 128)


class Type(IntEnum):
    """Element types; the name in lower case is what a recipe says."""

    F32 = 1
    F16 = 2
    BF16 = 3
    Q8 = 4
    Q4 = 5


FLOAT_BYTES = {Type.F32: 4, Type.F16: 2, Type.BF16: 2}


@dataclass(frozen=True)
class Settings:
    """The config section: effective settings of a model, in file order."""

    vocabulary: int
    hidden: int
    layers: int
    context: int
    heads: int
    kv_heads: int
    head_size: int
    rope_size: int
    rope_style: int
    activation: int
    router: int
    router_flags: int
    experts: int
    top_k: int
    expert_size: int
    shared_size: int
    shared_flags: int
    dense_size: int
    tied: int
    norm_epsilon: float
    attention_scale: float
    rope_scale: float

    def words(self) -> list[int | float]:
        """Values in file order; the floats come last."""
        return [getattr(self, field.name) for field in fields(self)]


# Field -> (least, most), as section 2 of the spec has them.
RANGES: dict[str, tuple[int, int]] = {
    "vocabulary": (1, 1 << 24), "hidden": (1, 65536), "layers": (1, 1024),
    "context": (1, MAX_CONTEXT), "heads": (1, 1024), "kv_heads": (1, 1024),
    "head_size": (2, 1024), "rope_size": (0, 1024), "rope_style": (0, 1), "activation": (1, 1),
    "router": (0, 1), "router_flags": (0, 1), "experts": (0, 4096), "top_k": (0, 64),
    "expert_size": (0, 65536), "shared_size": (0, 65536), "shared_flags": (0, 1),
    "dense_size": (0, 65536), "tied": (0, 1),
}  # fmt: skip

Size = Callable[[Settings], int]


@dataclass(frozen=True)
class Role:
    """What a tensor is for, where it belongs and which shape it has.

    scope: ``global``, ``layer`` (every layer), ``dense`` or ``moe`` (layers of that kind),
    ``expert`` (once per expert of a layer).  part: the name under which a recipe sets the types
    of several roles at once; roles without one are always f32.
    """

    number: int
    name: str
    scope: str
    rows: Size
    columns: Size
    part: str | None = None
    vector: bool = False  # 1 x n here, a plain vector in a checkpoint


def _one(_: Settings) -> int:
    return 1


def _hidden(c: Settings) -> int:
    return c.hidden


def _queries(c: Settings) -> int:
    return c.heads * c.head_size


def _keys(c: Settings) -> int:
    return c.kv_heads * c.head_size


def _mlp(number: int, kind: str, scope: str, part: str, size: Size) -> tuple[Role, Role, Role]:
    """Gate, up and down of one feed-forward block."""
    return (
        Role(number, f"{kind}_gate", scope, size, _hidden, part),
        Role(number + 1, f"{kind}_up", scope, size, _hidden, part),
        Role(number + 2, f"{kind}_down", scope, _hidden, size, part),
    )


def _vocabulary(c: Settings) -> int:
    return c.vocabulary


_ROLES = (
    Role(1, "embedding", "global", _vocabulary, _hidden, "embedding"),
    Role(2, "output", "global", _vocabulary, _hidden, "output"),
    Role(3, "output_norm", "global", _one, _hidden, vector=True),
    Role(4, "rope", "global", _one, lambda c: c.rope_size // 2, vector=True),
    Role(16, "attention_norm", "layer", _one, _hidden, vector=True),
    Role(17, "query", "layer", _queries, _hidden, "attention"),
    Role(18, "key", "layer", _keys, _hidden, "attention"),
    Role(19, "value", "layer", _keys, _hidden, "attention"),
    Role(20, "attention_out", "layer", _hidden, _queries, "attention"),
    Role(21, "query_bias", "layer", _one, _queries, vector=True),
    Role(22, "key_bias", "layer", _one, _keys, vector=True),
    Role(23, "value_bias", "layer", _one, _keys, vector=True),
    Role(32, "ffn_norm", "layer", _one, _hidden, vector=True),
    *_mlp(33, "dense", "dense", "dense", lambda c: c.dense_size),
    Role(48, "router", "moe", lambda c: c.experts, _hidden),
    *_mlp(50, "shared", "moe", "shared", lambda c: c.shared_size),
    Role(53, "shared_router", "moe", _one, _hidden),
    *_mlp(64, "expert", "expert", "experts", lambda c: c.expert_size),
)
ROLES: dict[str, Role] = {role.name: role for role in _ROLES}


def align(size: int, to: int = ALIGNMENT) -> int:
    """`size` rounded up to a multiple of `to`."""
    return -(-size // to) * to


def tensor_bytes(kind: Type, group: int, rows: int, columns: int) -> int:
    """Bytes of a tensor: elements, or codes, padding and scales."""
    if kind in FLOAT_BYTES:
        return rows * columns * FLOAT_BYTES[kind]
    return align(code_bytes(kind, group, rows, columns)) + 2 * rows * -(-columns // group)


def code_bytes(kind: Type, group: int, rows: int, columns: int) -> int:
    """Bytes of the codes of a q8 or q4 tensor, without scales."""
    elements = rows * align(columns, group)
    return elements // 2 if kind is Type.Q4 else elements
