# SPDX-License-Identifier: Apache-2.0
"""A second reader of images, written from docs/spec.md alone: a test oracle and nothing else.

`walk` checks every rule of the page that a whole file shows, weights included, and gives the
content back with all tensors as float32.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

CONFIG_NAMES = [
    "vocabulary",
    "hidden",
    "layers",
    "context",
    "heads",
    "kv_heads",
    "head_size",
    "rope_size",
    "rope_style",
    "activation",
    "router",
    "router_flags",
    "experts",
    "top_k",
    "expert_size",
    "shared_size",
    "shared_flags",
    "dense_size",
    "tied",
    "norm_epsilon",
    "attention_scale",
    "rope_scale",
]
ROLE_NAMES = {
    1: "embedding", 2: "output", 3: "output_norm", 4: "rope", 16: "attention_norm", 17: "query",
    18: "key", 19: "value", 20: "attention_out", 21: "query_bias", 22: "key_bias",
    23: "value_bias", 32: "ffn_norm", 33: "dense_gate", 34: "dense_up", 35: "dense_down",
    48: "router", 50: "shared_gate", 51: "shared_up", 52: "shared_down", 53: "shared_router",
    64: "expert_gate", 65: "expert_up", 66: "expert_down",
}  # fmt: skip
OPTIONAL = {21, 22, 23}
FLOAT_ONLY = {3, 4, 16, 21, 22, 23, 32, 48, 53}
TYPES = {1: "f32", 2: "f16", 3: "bf16", 4: "q8", 5: "q4"}


@dataclass
class Walked:
    """Content of an image.  Tensors by (layer or None, role[, expert])."""

    config: dict[str, Any]
    expert_layers: list[bool]
    tensors: dict[tuple[Any, ...], NDArray[np.float32]]
    groups: dict[tuple[Any, ...], int]
    types: dict[str, str]
    stop: list[int]
    selftest: tuple[int, int, int]
    tokens: list[int]
    notes: dict[str, Any]
    tokenizer: bytes | None
    sections: dict[int, tuple[int, int]]


def up(value: int, to: int) -> int:
    return (value + to - 1) // to * to


def walk(path: Path) -> Walked:
    data = path.read_bytes()
    magic, version, layout, file_bytes, meta_bytes, count = struct.unpack_from("<8sIIQII", data)
    alignment, zero0, zero1, crc = struct.unpack_from("<4I", data, 48)
    assert magic == bytes.fromhex("89434C420D0A1A0A")
    assert (version, layout, file_bytes, zero0, zero1) == (1, 0, len(data), 0, 0)
    assert meta_bytes % 64 == 0
    assert 1 <= count <= 32
    assert alignment & (alignment - 1) == 0
    assert crc == zlib.crc32(data[:60] + data[64:meta_bytes])
    blank = bytearray(data[:meta_bytes])
    blank[32:48], blank[60:64] = bytes(16), bytes(4)
    assert data[32:48] == hashlib.sha256(blank).digest()[:16]
    table = [struct.unpack_from("<IIQQII", data, 64 + 32 * i) for i in range(count)]
    used = _check_sections(data, table, meta_bytes, alignment)
    assert not any(data[i] for i in range(meta_bytes) if not used[i]), "padding in the meta part"
    section = {kind: (offset, size, n) for kind, _, offset, size, _, n in table}

    def content(kind: int) -> bytes:
        offset, size, _ = section[kind]
        return data[offset : offset + size]

    config = _config(content(1))
    layers = [struct.unpack_from("<BB14s", content(2), 16 * i) for i in range(config["layers"])]
    assert section[2][1:] == (16 * config["layers"], config["layers"])
    assert all(mixer == 1 and ffn in (1, 2) and not any(rest) for mixer, ffn, rest in layers)
    expert_layers = [ffn == 2 for _, ffn, _ in layers]
    assert (4 in section) == (18 in section) == any(expert_layers)
    walked = Walked(config, expert_layers, {}, {}, {}, [], (0, 0, 0), [], json.loads(content(7)),
                    content(16) if 16 in section else None,
                    {k: (o, s) for k, (o, s, _) in section.items()})  # fmt: skip
    walked.stop = list(struct.unpack(f"<{section[5][2]}I", content(5)))
    first = struct.unpack(f"<3I{section[6][2]}I", content(6))
    walked.selftest, walked.tokens = first[:3], list(first[3:])
    assert 1 <= len(walked.tokens) <= 64
    assert all(0 <= t < config["vocabulary"] for t in walked.tokens + walked.stop)
    _tensors(walked, data, content(3), section[3][2], content(4) if 4 in section else b"")
    return walked


def _check_sections(
    data: bytes, table: list[tuple[int, ...]], meta: int, alignment: int
) -> bytearray:
    kinds = [entry[0] for entry in table]
    assert kinds == sorted(set(kinds))
    assert {1, 2, 3, 5, 6, 7, 17} <= set(kinds)
    at = 64 + 32 * len(table)
    used = bytearray(b"\1" * at + bytes(meta - at))
    previous = 0
    for kind, file, offset, size, crc, _ in table:
        assert file == 0
        if previous < 16 <= kind:
            assert up(at, 64) == meta
        at = up(at, alignment if kind == 18 else 64)
        assert offset == at, f"section {kind} at {offset}, not {at}"
        at += size
        if kind < 16:
            used[offset:at] = b"\1" * size
        assert crc == (zlib.crc32(data[offset:at]) if kind == 16 else 0)
        previous = kind
    assert at == len(data)
    return used


def _config(raw: bytes) -> dict[str, Any]:
    assert len(raw) == 256
    assert not any(raw[22 * 4 :])
    values = struct.unpack_from("<19I3f", raw)
    c = dict(zip(CONFIG_NAMES, values, strict=True))
    assert 1 <= c["vocabulary"] <= 1 << 24
    assert 1 <= c["hidden"] <= 65536
    assert 1 <= c["layers"] <= 1024
    assert 1 <= c["context"] <= 131072
    assert c["heads"] % c["kv_heads"] == 0
    assert c["head_size"] % 2 == c["rope_size"] % 2 == 0
    assert c["rope_size"] <= c["head_size"]
    assert c["activation"] == 1
    assert c["router"] in (0, 1)
    assert c["norm_epsilon"] > 0
    assert c["top_k"] <= min(c["experts"], 64)
    return c


def _shapes(c: dict[str, Any]) -> dict[int, tuple[int, int]]:
    h, q, kv = c["hidden"], c["heads"] * c["head_size"], c["kv_heads"] * c["head_size"]
    shapes = {1: (c["vocabulary"], h), 2: (c["vocabulary"], h), 3: (1, h),
              4: (1, c["rope_size"] // 2), 16: (1, h), 17: (q, h), 18: (kv, h), 19: (kv, h),
              20: (h, q), 21: (1, q), 22: (1, kv), 23: (1, kv), 32: (1, h),
              48: (c["experts"], h), 53: (1, h)}  # fmt: skip
    for first, size in ((33, c["dense_size"]), (50, c["shared_size"]), (64, c["expert_size"])):
        shapes |= {first: (size, h), first + 1: (size, h), first + 2: (h, size)}
    return shapes


def _expected_roles(c: dict[str, Any], layer: int, experts: bool) -> set[int]:
    if layer == 0xFFFF:
        return {1, 3} | (set() if c["tied"] else {2}) | ({4} if c["rope_size"] else set())
    roles = {16, 17, 18, 19, 20, 32}
    if not experts:
        return roles | {33, 34, 35}
    shared = {50, 51, 52} if c["shared_size"] else set()
    return roles | {48, 64, 65, 66} | shared | ({53} if c["shared_flags"] & 1 else set())


def _tensors(w: Walked, data: bytes, table: bytes, count: int, experts: bytes) -> None:
    c, shapes = w.config, _shapes(w.config)
    entries = [struct.unpack_from("<HHBBHIIQQIIQ", table, 48 * i) for i in range(count)]
    assert len(table) == 48 * count
    assert [e[:2] for e in entries] == sorted({e[:2] for e in entries})
    for layer in (*range(c["layers"]), 0xFFFF):
        found = {e[1] for e in entries if e[0] == layer}
        wanted = _expected_roles(c, layer, layer != 0xFFFF and w.expert_layers[layer])
        assert found - OPTIONAL == wanted, (layer, found ^ wanted)
    at, end = w.sections[17][0], sum(w.sections[17])
    moe = [i for i, has in enumerate(w.expert_layers) if has]
    records = [struct.unpack_from("<QIIII", experts, 24 * i) for i in range(len(experts) // 24)]
    assert len(records) == len(moe) * c["experts"]
    sizes: dict[int, int] = {}
    for layer, role, kind, order, group, rows, columns, offset, size, crc, zero0, zero1 in entries:
        assert (rows, columns) == shapes[role]
        assert (order, zero0, zero1) == (0, 0, 0)
        assert kind in TYPES
        assert (group in (32, 64, 128)) == (kind > 3)
        assert kind > 3 or group == 0
        assert kind == 1 or role not in FLOAT_ONLY
        name, where = ROLE_NAMES[role], None if layer == 0xFFFF else layer
        assert w.types.setdefault(name, TYPES[kind]) == TYPES[kind]
        shape = (kind, group, rows, columns)
        if role < 64:
            assert offset == at
            assert crc == zlib.crc32(data[offset : offset + size])
            at = up(offset + size, 64)
            w.tensors[where, name] = _decode(data, offset, size, *shape)
            w.groups[where, name] = group
            last = offset + size
            continue
        assert crc == 0
        assert offset == up(sizes.get(layer, 0), 64)
        sizes[layer] = offset + size
        for expert in range(c["experts"]):
            base = records[moe.index(layer) * c["experts"] + expert][0]
            w.tensors[where, name, expert] = _decode(data, base + offset, size, *shape)
            w.groups[where, name, expert] = group
    assert last == end
    _check_records(w, data, records, sizes, moe)


def _check_records(
    w: Walked, data: bytes, records: list[tuple[int, ...]], sizes: dict[int, int], moe: list[int]
) -> None:
    alignment = struct.unpack_from("<I", data, 48)[0]
    spans = []
    for index, (offset, size, crc, file, zero) in enumerate(records):
        assert offset % alignment == 0
        assert (file, zero) == (0, 0)
        assert size == sizes[moe[index // w.config["experts"]]]
        assert crc == zlib.crc32(data[offset : offset + size])
        spans.append((offset, offset + size))
    if spans:
        spans.sort()
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
        assert spans[0][0] >= w.sections[18][0]
        assert spans[-1][1] == sum(w.sections[18]) == len(data)


def _decode(
    data: bytes, offset: int, size: int, kind: int, group: int, rows: int, columns: int
) -> NDArray[np.float32]:
    raw = data[offset : offset + size]
    if kind <= 3:
        dtype = {1: "<f4", 2: "<f2", 3: "<u2"}[kind]
        flat = np.frombuffer(raw, dtype)
        if kind == 3:
            flat = (flat.astype("<u4") << 16).view("<f4")
        return flat.astype(np.float32).reshape(rows, columns)
    groups = -(-columns // group)
    coded = rows * groups * group // (1 if kind == 4 else 2)
    assert size == up(coded, 64) + 2 * rows * groups
    assert not any(raw[coded : up(coded, 64)])
    if kind == 4:
        codes = np.frombuffer(raw[:coded], np.int8).astype(int)
        assert codes.min() >= -127
    else:
        pairs = np.frombuffer(raw[:coded], np.uint8).astype(int).reshape(-1, group // 2)
        codes = np.concatenate((pairs & 15, pairs >> 4), 1) - 8
    codes = codes.reshape(rows, groups, group)
    assert not codes.reshape(rows, -1)[:, columns:].any(), "padding is code 0"
    scales = np.frombuffer(raw[up(coded, 64) :], "<f2").astype(np.float32).reshape(rows, groups, 1)
    assert np.isfinite(scales).all()
    return (codes * scales).astype(np.float32).reshape(rows, -1)[:, :columns]
