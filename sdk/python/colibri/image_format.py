# SPDX-License-Identifier: Apache-2.0
"""Names, numbers and sizes of the image format (docs/spec.md), for the writer.

Reading an image is the C library's job; nothing here parses one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from enum import IntEnum

MAGIC = b"\x89CLB\r\n\x1a\n"
COMPANION_MAGIC = b"\x89CLX\r\n\x1a\n"
MAX_COMPANIONS = 22
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


class Order(IntEnum):
    """How the codes of a quantised tensor lie: row by row, or sixteen rows interleaved."""

    ROWS = 0
    TILES = 1


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
    rope_scale: float = 1.0
    norm: int = 0
    value_size: int = 0
    latent_size: int = 0
    query_latent: int = 0
    identities: int = 0
    router_groups: int = 0
    router_groups_kept: int = 0
    router_scale: float = 1.0
    router_epsilon: float = 0.0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logits_scale: float = 1.0
    clip: float = 0.0
    activation_limit: float = 0.0
    activation_alpha: float = 0.0
    temperature_floor: float = 0.0
    temperature_scale: float = 0.0
    latent_epsilon: float = 1e-6
    logits_cap: float = 0.0
    conv_size: int = 0
    rope_size_2: int = 0
    output_epsilon: float = 0.0
    linear_keys: int = 0
    linear_values: int = 0
    linear_key_size: int = 0
    linear_value_size: int = 0
    linear_rank: int = 0

    def words(self) -> list[int | float]:
        """Values in file order."""
        return [getattr(self, field.name) for field in fields(self)]


@dataclass(frozen=True)
class LayerKind:
    """An entry of the layers section.

    beside: a dense feed-forward beside the experts. rope: 0 for none, else the set of frequencies.
    flags: those of ``colibri_layer``. head_size, kv_heads: 0 for the settings' own.
    """

    experts: bool
    latent: bool = False
    conv: bool = False
    expert_attention: bool = False
    delta: bool = False
    mamba2: bool = False
    lightning: bool = False
    mamba: bool = False
    beside: bool = False
    rope: int = 1
    flags: int = 0
    window: int = 0
    chunk: int = 0
    head_size: int = 0
    kv_heads: int = 0

    @property
    def mixer(self) -> str:
        """The name of its kind, as in SCOPES."""
        named = {"latent": self.latent, "conv": self.conv, "experts": self.expert_attention,
                 "delta": self.delta, "mamba2": self.mamba2, "lightning": self.lightning,
                 "mamba": self.mamba}  # fmt: skip
        return next((name for name, has in named.items() if has), "attention")

    @property
    def attends(self) -> bool:
        """Whether the layer has a cache of positions, and may rotate."""
        return self.mixer in ("attention", "latent", "experts")

    @property
    def dense(self) -> bool:
        """Whether the layer has a dense feed-forward."""
        return self.beside or not self.experts

    def settings(self, whole: Settings) -> Settings:
        """The settings as this layer sees them."""
        return replace(whole, head_size=self.head_size or whole.head_size,
                       kv_heads=self.kv_heads or whole.kv_heads)  # fmt: skip


# Field -> (least, most), as section 2 of the spec has them.
RANGES: dict[str, tuple[int, int]] = {
    "vocabulary": (1, 1 << 24), "hidden": (1, 65536), "layers": (1, 1024),
    "context": (1, MAX_CONTEXT), "heads": (1, 1024), "kv_heads": (1, 1024),
    "head_size": (2, 1024), "rope_size": (0, 1024), "rope_style": (0, 1), "activation": (1, 4),
    "router": (0, 5), "router_flags": (0, 63), "experts": (0, 4096), "top_k": (0, 64),
    "expert_size": (0, 65536), "shared_size": (0, 65536), "shared_flags": (0, 1),
    "dense_size": (0, 65536), "tied": (0, 1), "norm": (0, 1), "value_size": (0, 1024),
    "latent_size": (0, 8192), "query_latent": (0, 65536), "identities": (0, 4095),
    "router_groups": (0, 64), "router_groups_kept": (0, 64),
    "conv_size": (0, 64), "rope_size_2": (0, 1024), "linear_keys": (0, 1024),
    "linear_values": (0, 131072), "linear_key_size": (0, 1024), "linear_value_size": (0, 1024),
    "linear_rank": (0, 65536),
}  # fmt: skip

Size = Callable[[Settings], int]


@dataclass(frozen=True)
class Role:
    """What a tensor is for, where it belongs and which shape it has.

    scope: ``global``, ``layer`` (every layer), a mixer's (see SCOPES), ``dense`` or ``moe`` (layers
    with that feed-forward), ``both`` (with both), ``expert`` (once per expert of a layer).  part:
    the name under which a recipe sets the types of several roles at once; roles without one are
    always f32.
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


def _vector(number: int, name: str, scope: str, size: Size) -> Role:
    """A norm, a bias or another vector: always f32."""
    return Role(number, name, scope, _one, size, vector=True)


def _vocabulary(c: Settings) -> int:
    return c.vocabulary


def _experts(c: Settings) -> int:
    return c.experts


def _expert(c: Settings) -> int:
    return c.expert_size


def _linear(c: Settings) -> int:
    return c.linear_values * c.linear_value_size


def _linear_keys(c: Settings) -> int:
    return c.linear_keys * c.linear_key_size


def _channels(c: Settings) -> int:
    """What goes through the filter: with a rank (Mamba), values only."""
    return _linear(c) if c.linear_rank else 2 * _linear_keys(c) + _linear(c)


def _rotations(c: Settings) -> int:
    return c.rope_size // 2


_ROLES = (
    Role(1, "embedding", "global", _vocabulary, _hidden, "embedding"),
    Role(2, "output", "global", _vocabulary, _hidden, "output"),
    _vector(3, "output_norm", "global", _hidden),
    _vector(4, "rope", "global", _rotations),
    _vector(5, "rope_2", "global", lambda c: (c.rope_size_2 or c.rope_size) // 2),
    _vector(6, "output_norm_bias", "global", _hidden),
    _vector(7, "output_bias", "global", _vocabulary),
    _vector(16, "attention_norm", "layer", _hidden),
    Role(17, "query", "attending", _queries, lambda c: c.query_latent or c.hidden, "attention"),
    Role(18, "key", "attention", _keys, _hidden, "attention"),
    Role(19, "value", "attention", _keys, _hidden, "attention"),
    Role(20, "attention_out", "attending", _hidden,
         lambda c: c.heads * (c.value_size or c.head_size), "attention"),
    _vector(21, "query_bias", "attention", _queries),
    _vector(22, "key_bias", "attention", _keys),
    _vector(23, "value_bias", "attention", _keys),
    _vector(24, "attention_out_bias", "mixing", _hidden),
    _vector(25, "query_norm", "attention", lambda c: c.head_size),
    _vector(26, "key_norm", "attention", lambda c: c.head_size),
    _vector(27, "sinks", "attention", lambda c: c.heads),
    Role(28, "output_gate", "attention", _queries, _hidden, "attention"),
    _vector(29, "attention_norm_bias", "layer", _hidden),
    _vector(30, "attention_post_norm", "layer", _hidden),
    Role(31, "attention_router", "expert_attention", _experts, _hidden),
    _vector(32, "ffn_norm", "layer", _hidden),
    *_mlp(33, "dense", "dense", "dense", lambda c: c.dense_size),
    _vector(36, "ffn_norm_bias", "layer", _hidden),
    _vector(37, "ffn_post_norm", "layer", _hidden),
    Role(38, "conv_in", "conv", lambda c: 3 * c.hidden, _hidden, "attention"),
    Role(39, "conv", "conv", _hidden, lambda c: c.conv_size),
    Role(40, "latent_query", "latent", lambda c: c.query_latent, _hidden, "attention"),
    _vector(41, "latent_query_norm", "latent", lambda c: c.query_latent),
    Role(42, "latent", "latent", lambda c: c.latent_size + c.rope_size, _hidden, "attention"),
    _vector(43, "latent_norm", "latent", lambda c: c.latent_size),
    Role(44, "latent_key", "latent", lambda c: c.heads * c.latent_size,
         lambda c: c.head_size - c.rope_size, "attention"),
    Role(45, "latent_value", "latent", lambda c: c.heads * c.value_size,
         lambda c: c.latent_size, "attention"),
    Role(46, "conv_out", "conv", _hidden, _hidden, "attention"),
    _vector(47, "layer_scale", "layer", _one),
    Role(48, "router", "moe", _experts, _hidden),
    _vector(49, "router_bias", "moe", _experts),
    *_mlp(50, "shared", "moe", "shared", lambda c: c.shared_size),
    Role(53, "shared_router", "moe", _one, _hidden),
    _vector(54, "router_selection", "moe", _experts),
    _vector(55, "router_norm", "moe", _hidden),
    _vector(56, "router_weight", "moe", _experts),
    _vector(57, "experts_norm", "both", _hidden),
    _vector(58, "experts_post_norm", "both", _hidden),
    _vector(59, "dense_post_norm", "both", _hidden),
    _vector(60, "experts_bias", "moe", _hidden),
    Role(61, "expert_query", "expert_attention", lambda c: c.experts * _keys(c), _hidden,
         "attention"),
    Role(62, "expert_attention_out", "expert_attention", lambda c: c.experts * c.hidden, _keys,
         "attention"),
    *_mlp(64, "expert", "expert", "experts", _expert),
    _vector(67, "expert_gate_bias", "expert", _expert),
    _vector(68, "expert_up_bias", "expert", _expert),
    _vector(69, "expert_down_bias", "expert", _hidden),
    Role(80, "linear_in", "linear", _channels, _hidden, "attention"),
    Role(81, "linear_gate", "linear", _linear, _hidden, "attention"),
    Role(82, "linear_step", "stepping", lambda c: c.linear_values, _hidden),
    Role(83, "linear_beta", "delta", lambda c: c.linear_values, _hidden),
    Role(84, "linear_conv", "filtering", _channels, lambda c: c.conv_size),
    _vector(85, "linear_conv_bias", "filtering", _channels),
    _vector(86, "linear_step_bias", "filtering", lambda c: c.linear_values),
    _vector(87, "linear_decay", "headed", lambda c: c.linear_values),
    _vector(88, "linear_skip", "skipping", lambda c: c.linear_values),
    _vector(89, "linear_norm", "headed", lambda c: c.linear_value_size),
    Role(90, "linear_out", "linear", _hidden, _linear, "attention"),
    _vector(91, "attention_residual", "layer", lambda _: 2),
    _vector(92, "ffn_residual", "layer", lambda _: 2),
    Role(93, "linear_select", "mamba", lambda c: c.linear_rank + 2 * _linear_keys(c), _linear,
         "attention"),
    _vector(94, "linear_step_norm", "mamba", lambda c: c.linear_rank),
    _vector(95, "linear_key_norm", "mamba", _linear_keys),
    _vector(96, "linear_query_norm", "mamba", _linear_keys),
    Role(97, "linear_step_up", "mamba", _linear, lambda c: c.linear_rank, "attention"),
    Role(98, "linear_state_decay", "mamba", _linear, _linear_keys),
)  # fmt: skip
# Roles of layers by mixer; mixing: all that end in a projection of heads.
SCOPES = {
    "attention": {"attention", "attending", "mixing"},
    "latent": {"latent", "attending", "mixing"},
    "experts": {"attention", "expert_attention", "mixing"},
    "conv": {"conv"},
    "delta": {"linear", "headed", "stepping", "filtering", "delta"},
    "mamba2": {"linear", "headed", "stepping", "filtering", "skipping"},
    "lightning": {"linear", "headed"},
    "mamba": {"linear", "filtering", "skipping", "mamba"},
}
# A norm of queries or keys covers each head, or all of them at once.
WHOLE_NORMS: dict[str, Size] = {
    "query_norm": _queries, "key_norm": _keys, "linear_norm": _linear,
}  # fmt: skip
ROLES: dict[str, Role] = {role.name: role for role in _ROLES}


TILE_ROWS = 16
# Tensors that hold all heads or all experts, and how many parts that are.
_PARTS: dict[str, Size] = {
    "latent_key": lambda c: c.heads, "latent_value": lambda c: c.heads,
    "expert_query": _experts, "expert_attention_out": _experts,
}  # fmt: skip


def can_tile(role: str, settings: Settings, kind: Type, rows: int) -> bool:
    """Whether a tensor's rows may lie in tiles: quantised, and each part of whole tiles."""
    parts = _PARTS.get(role)
    return kind not in FLOAT_BYTES and (not parts or rows // parts(settings) % TILE_ROWS == 0)


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
