# SPDX-License-Identifier: Apache-2.0
"""A second reader of images, by docs/spec.md alone: a test oracle and nothing else.

`walk` checks every rule of the page that a whole file shows, weights included, and gives the
content back with all tensors as float32.  The page's tables are read from the page.
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

from spec_page import ONLY_WITH, ROWS, WORDS

TYPES = {1: "f32", 2: "f16", 3: "bf16", 4: "q8", 5: "q4"}
HOLD, RELEASE, EARLY_ROUTER = 32, 64, 128
GLOBAL = 0xFFFF


@dataclass
class Layer:
    """An entry of the layers section, sizes in effect."""

    mixer: int
    ffn: int
    rope: int
    flags: int
    window: int
    chunk: int
    head_size: int
    kv_heads: int

    @property
    def rotates(self) -> int:
        """Number of the set, or 0."""
        return self.rope if self.mixer in (1, 2, 4) else 0


@dataclass
class Walked:
    """Content of an image.  Tensors by (layer or None, role[, expert])."""

    config: dict[str, Any]
    layers: list[Layer]
    tensors: dict[tuple[Any, ...], NDArray[np.float32]]
    groups: dict[tuple[Any, ...], int]
    types: dict[str, str]
    stop: list[int]
    selftest: tuple[int, int, int]
    tokens: list[int]
    notes: dict[str, Any]
    tokenizer: bytes | None
    sections: dict[int, tuple[int, int]]
    record_sections: dict[int, tuple[int, int]]  # by file
    block: int  # alignment of records

    @property
    def expert_layers(self) -> list[bool]:
        return [layer.ffn in (2, 3) for layer in self.layers]

    @property
    def records(self) -> int:
        """Experts of a layer that have one."""
        return int(self.config["experts"] - self.config["identities"])


def up(value: int, to: int) -> int:
    return (value + to - 1) // to * to


def walk(image: Path | bytes) -> Walked:
    data = image if isinstance(image, bytes) else image.read_bytes()
    folder = None if isinstance(image, bytes) else image.parent
    magic, version, layout, file_bytes, meta_bytes, count = struct.unpack_from("<8sIIQII", data)
    alignment, zero0, zero1, crc = struct.unpack_from("<4I", data, 48)
    assert magic == bytes.fromhex("89434C420D0A1A0A")
    assert (version, file_bytes, zero0, zero1) == (1, len(data), 0, 0)
    assert layout in (0, 1, 2)
    assert meta_bytes % 64 == 0
    assert 1 <= count <= 32
    assert alignment in [1 << n for n in range(6, 17)]
    assert crc == zlib.crc32(data[:60] + data[64:meta_bytes])
    table = [struct.unpack_from("<IIQQII", data, 64 + 32 * i) for i in range(count)]
    files = _companions(data, table, layout, alignment, folder)
    blank = bytearray(data[:meta_bytes])
    blank[32:48], blank[60:64] = bytes(16), bytes(4)
    for at in (offset + 96 * n for kind, _, offset, _, _, many in table if kind == 8
               for n in range(many)):  # fmt: skip
        blank[at + 8 : at + 24] = bytes(16)
    assert data[32:48] == hashlib.sha256(blank).digest()[:16]
    used = _check_sections(data, table, meta_bytes, alignment, len(files) - 1)
    assert not any(data[i] for i in range(meta_bytes) if not used[i]), "padding in the meta part"
    section = {kind: (offset, size, n) for kind, _, offset, size, _, n in table}

    def content(kind: int) -> bytes:
        offset, size, _ = section[kind]
        return data[offset : offset + size]

    config, layers = _config_and_layers(content(1), content(2))
    assert section[1][2] == 1
    assert section[2][1:] == (16 * config["layers"], config["layers"])
    has_experts = any(layer.ffn in (2, 3) for layer in layers)
    assert (4 in section) == (18 in section) == has_experts
    assert all(section[kind][2] == 0 for kind in (7, 17, 18) if kind in section)
    assert 16 not in section or section[16][2] == 1
    walked = Walked(config, layers, {}, {}, {}, [], (0, 0, 0), [], json.loads(content(7)),
                    content(16) if 16 in section else None,
                    {k: (o, s) for k, (o, s, _) in section.items()},
                    {f: (o, s) for k, f, o, s, _, _ in table if k == 18}, alignment)  # fmt: skip
    assert isinstance(walked.notes, dict)
    walked.stop = list(struct.unpack(f"<{section[5][2]}I", content(5)))
    first = struct.unpack(f"<3I{section[6][2]}I", content(6))
    walked.selftest, walked.tokens = first[:3], list(first[3:])
    assert 1 <= len(walked.tokens) <= 64
    assert all(token < config["vocabulary"] for token in walked.tokens)
    assert 4 not in section or section[4][1] == 24 * section[4][2]
    _tensors(walked, files, content(3), section[3][2], content(4) if 4 in section else b"")
    return walked


# Section 7


def _companions(
    data: bytes, table: list[tuple[int, ...]], layout: int, alignment: int, folder: Path | None
) -> list[bytes]:
    """Content of all files, the image's first."""
    found = [(offset, size, n) for kind, _, offset, size, _, n in table if kind == 8]
    files = [data]
    if layout == 0:
        assert not found
        return files
    ((at, size, count),) = found
    assert size == 96 * count
    assert 1 <= count <= (1 if layout == 2 else 22)
    assert folder is not None, "companions are beside the image"
    for n in range(1, count + 1):
        length, identity, zero, padded = struct.unpack_from("<Q16sQ64s", data, at + 96 * (n - 1))
        assert (identity, zero) == (data[32:48], 0)
        content = (folder / _name(padded)).read_bytes()
        assert len(content) == length
        magic, version, number, own, same = struct.unpack_from("<8sIIQ16s", content)
        assert magic == bytes.fromhex("89434C580D0A1A0A")
        assert (version, number, own, same) == (1, n, length, identity)
        assert not any(content[40:60])
        assert struct.unpack_from("<I", content, 60)[0] == zlib.crc32(content[:60])
        assert not any(content[64:alignment])
        files.append(content)
    return files


def _name(padded: bytes) -> str:
    name = padded.rstrip(b"\0").decode("utf-8")
    assert 1 <= len(name.encode()) <= 63
    assert name not in (".", "..")
    assert not any(char < " " or char in "/\\:\x7f" for char in name)
    return name


def _check_sections(
    data: bytes, table: list[tuple[int, ...]], meta: int, alignment: int, companions: int
) -> bytearray:
    own, beside = table[: len(table) - companions], table[len(table) - companions :]
    kinds = [entry[0] for entry in own]
    assert kinds == sorted(set(kinds))
    allowed = {*range(1, 8), 16, 17} | ({8} if companions else {18})
    assert {1, 2, 3, 5, 6, 7, 17} <= set(kinds) <= allowed
    for n, (kind, file, offset, _, crc, count) in enumerate(beside, 1):
        assert (kind, file, offset, crc, count) == (18, n, alignment, 0, 0)
    at = 64 + 32 * len(table)
    used = bytearray(b"\1" * at + bytes(meta - at))
    previous = 0
    for kind, file, offset, size, crc, _ in own:
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


# Sections 2 and 3 of the page


def _config_and_layers(raw: bytes, layers: bytes) -> tuple[dict[str, Any], list[Layer]]:
    assert len(raw) == 256
    assert not any(raw[4 * len(WORDS) :])
    codes = "".join("f" if word.is_float else "I" for word in WORDS)
    values = struct.unpack_from(f"<{codes}", raw)
    c: dict[str, Any] = dict(zip((word.name for word in WORDS), values, strict=True))
    found = [Layer(*entry) for entry in struct.iter_unpack("<BBBBIIHH", layers)]
    for layer in found:
        layer.head_size = layer.head_size or c["head_size"]
        layer.kv_heads = layer.kv_heads or c["kv_heads"]
    has = {name: any(layer.mixer in of for layer in found) for name, of in ONLY_WITH.items()}
    has["experts"] = any(layer.ffn in (2, 3) for layer in found)
    has["dense"] = any(layer.ffn in (1, 3) for layer in found)
    for word in WORDS:
        value = c[word.name]
        assert word.allows(value) if has[word.only_with] else value == 0, (word.name, value)
    _check_config(c, latent=has["latent"], experts=has["experts"])
    _check_layers(c, found)
    return c, found


def _check_config(c: dict[str, Any], *, latent: bool, experts: bool) -> None:
    assert c["heads"] % c["kv_heads"] == 0
    assert not c["linear_keys"] or c["linear_values"] % c["linear_keys"] == 0
    assert not c["linear_rank"] or (c["linear_keys"], c["linear_value_size"]) == (1, 1)
    assert not any(c[name] % 2 for name in ("head_size", "rope_size", "rope_size_2"))
    assert c["rope_size"] <= c["head_size"]
    assert not latent or 0 < c["rope_size"] < c["head_size"]
    products = [("heads", "head_size"), ("heads", "value_size"), ("linear_keys", "linear_key_size"),
                ("linear_values", "linear_value_size")]  # fmt: skip
    assert all(c[a] * c[b] <= 131072 for a, b in products)
    assert c["shared_size"] or not c["shared_flags"]
    if not experts:
        return
    assert c["top_k"] <= c["experts"]
    assert c["router"] != 4 or c["top_k"] == 2
    assert c["identities"] < c["experts"]
    groups, kept, ranks = c["router_groups"], c["router_groups_kept"], c["router_flags"] & 24
    if groups == 0:
        assert (kept, ranks) == (0, 0)
        return
    assert ranks in (8, 16)
    assert c["experts"] % groups == 0
    assert 1 <= kept <= groups
    assert c["experts"] // groups * kept >= c["top_k"]


def _check_layers(c: dict[str, Any], layers: list[Layer]) -> None:
    held = False
    for layer in layers:
        assert 1 <= layer.mixer <= 8
        assert 1 <= layer.ffn <= 3
        assert layer.rope <= 2
        assert not (layer.window and layer.chunk)
        assert layer.head_size % 2 == 0
        assert 2 <= layer.head_size <= 1024
        assert c["heads"] * layer.head_size <= 131072
        assert c["heads"] % layer.kv_heads == 0
        size = [0, c["rope_size"], c["rope_size_2"] or c["rope_size"]][layer.rotates]
        assert size <= layer.head_size
        assert layer.mixer != 2 or layer.rope == 1
        assert bool(layer.flags & RELEASE) == held
        held = bool(layer.flags & HOLD)
        assert not held or layer.ffn == 3
        if layer.flags & EARLY_ROUTER:
            assert layer.ffn != 1
            assert layer.mixer != 4
        if layer.mixer == 4:
            assert layer.ffn == 2
            assert c["heads"] == c["top_k"] * layer.kv_heads
    assert not held


# Sections 4 and 5


def _tensors(w: Walked, files: list[bytes], table: bytes, count: int, experts: bytes) -> None:
    data = files[0]
    entries = [struct.unpack_from("<HHBBHIIQQIIQ", table, 48 * i) for i in range(count)]
    assert len(table) == 48 * count
    assert [e[:2] for e in entries] == sorted({e[:2] for e in entries})
    assert {e[0] for e in entries} == {*range(w.config["layers"]), GLOBAL}
    rows = {(layer, row.role): row for layer in (*range(w.config["layers"]), GLOBAL)
            for row in ROWS if _has(w, layer, row)}  # fmt: skip
    needed = {key for key, row in rows.items() if not row.optional}
    there = {e[:2] for e in entries}
    assert needed <= there, f"missing {needed - there}"
    assert there <= set(rows), f"of no use {there - set(rows)}"
    at, last = w.sections[17][0], 0
    moe = [i for i, has in enumerate(w.expert_layers) if has]
    records = [struct.unpack_from("<QIIII", experts, 24 * i) for i in range(len(experts) // 24)]
    assert len(records) == len(moe) * w.records
    sizes: dict[int, int] = {}
    for layer, role, kind, order, group, high, wide, offset, size, crc, zero0, zero1 in entries:
        row = rows[layer, role]
        assert (high, wide) in row.shapes(_names(w, layer)), (layer, row.name, high, wide)
        assert (zero0, zero1) == (0, 0)
        assert order in ((0, 1) if kind > 3 else (0,))
        parts = {44: "heads", 45: "heads", 61: "experts", 62: "experts"}.get(role)
        assert order == 0 or parts is None or high // w.config[parts] % 16 == 0
        assert kind in TYPES
        assert group in ((32, 64, 128) if kind > 3 else (0,))
        assert kind == 1 or not row.f32
        where = None if layer == GLOBAL else layer
        assert w.types.setdefault(row.name, TYPES[kind]) == TYPES[kind]
        shape = (kind, group, high, wide, order)
        if not row.in_record:
            assert offset == at
            assert crc == zlib.crc32(data[offset : offset + size])
            last = offset + size
            at = up(last, 64)
            w.tensors[where, row.name] = _decode(data, offset, size, *shape)
            w.groups[where, row.name] = group
            continue
        assert crc == 0
        assert offset == up(sizes.get(layer, 0), 64)
        sizes[layer] = offset + size
        for expert in range(w.records):
            base, _, _, file, _ = records[moe.index(layer) * w.records + expert]
            w.tensors[where, row.name, expert] = _decode(files[file], base + offset, size, *shape)
            w.groups[where, row.name, expert] = group
    assert last == sum(w.sections[17])
    _check_records(w, files, records, sizes, moe)


def _has(w: Walked, layer: int, row: Any) -> bool:
    kind = (None, 0) if layer == GLOBAL else (w.layers[layer].mixer, w.layers[layer].ffn)
    return bool(row.may_be_in(*kind) and row.holds(_names(w, layer)))


def _names(w: Walked, layer: int) -> dict[str, Any]:
    """What the page's expressions may say in a layer."""
    sets = {one.rotates for one in w.layers} if w.config["rope_size"] else set()
    names = {**w.config, "set_1": 1 in sets, "set_2": 2 in sets}
    if layer == GLOBAL:
        return names
    own = w.layers[layer]
    return {**names, "head_size": own.head_size, "kv_heads": own.kv_heads,
            "key_is_value": bool(own.flags & 8)}  # fmt: skip


def _check_records(
    w: Walked,
    files: list[bytes],
    records: list[tuple[int, ...]],
    sizes: dict[int, int],
    moe: list[int],
) -> None:
    spans: dict[int, list[tuple[int, int]]] = {}
    for index, (offset, size, crc, file, zero) in enumerate(records):
        assert offset % w.block == 0
        assert zero == 0
        assert size == sizes[moe[index // w.records]]
        assert crc == zlib.crc32(files[file][offset : offset + size])
        spans.setdefault(file, []).append((offset, offset + size))
    assert set(spans) == set(w.record_sections)
    for file, found in spans.items():
        found.sort()
        assert all(up(a[1], w.block) == b[0] for a, b in itertools.pairwise(found))
        assert found[0][0] == w.record_sections[file][0]
        assert found[-1][1] == sum(w.record_sections[file]) == len(files[file])


def _decode(
    data: bytes, offset: int, size: int, kind: int, group: int, rows: int, columns: int, order: int
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
    tiled = rows // 16 * 16 if order else 0
    stored = np.frombuffer(raw[:coded], np.int8 if kind == 4 else np.uint8).astype(int)
    stored = stored.reshape(rows, -1)
    codes = np.concatenate([_untiled(stored[:tiled], kind), _in_rows(stored[tiled:], kind, group)])
    assert codes.min() >= (-127 if kind == 4 else -8)
    codes = codes.reshape(rows, groups, group)
    assert not codes.reshape(rows, -1)[:, columns:].any(), "padding is code 0"
    scales = np.frombuffer(raw[up(coded, 64) :], "<f2").astype(np.float32).reshape(rows, groups)
    scales[:tiled] = scales[:tiled].reshape(-1, groups, 16).swapaxes(1, 2).reshape(tiled, groups)
    scales = scales.reshape(rows, groups, 1)
    assert np.isfinite(scales).all()
    return (codes * scales).astype(np.float32).reshape(rows, -1)[:, :columns]


def _in_rows(stored: NDArray[Any], kind: int, group: int) -> NDArray[Any]:
    """Codes of order 0, from bytes by row."""
    if kind == 4:
        return stored
    count, size = stored.shape
    pairs = stored.reshape(count, 2 * size // group, group // 2)
    return (np.concatenate((pairs & 15, pairs >> 4), 2) - 8).reshape(count, 2 * size)


def _untiled(stored: NDArray[Any], kind: int) -> NDArray[Any]:
    """Codes of order 1: column blocks of 16 rows x 4 bytes, element by element."""
    per_block = 4 if kind == 4 else 8
    columns = stored.shape[1] * (1 if kind == 4 else 2)
    codes = np.zeros((len(stored), columns), int)
    for first in range(0, len(stored), 16):
        tile = stored[first : first + 16].reshape(columns // per_block, 16, 4)
        for block, byte in itertools.product(range(len(tile)), range(4)):
            at = block * per_block + byte
            if kind == 4:
                codes[first : first + 16, at] = tile[block, :, byte]
            else:
                codes[first : first + 16, at] = (tile[block, :, byte] & 15) - 8
                codes[first : first + 16, at + 4] = (tile[block, :, byte] >> 4) - 8
    return codes
