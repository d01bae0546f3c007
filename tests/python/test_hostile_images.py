# SPDX-License-Identifier: Apache-2.0
"""Any bytes given as an image are refused with a named error or handled, under sanitizers.

tests/c/hostile.c makes the attacks from a tiny image; a few are kept as files in tests/faults.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import checkpoints as ck
from colibri import Engine, Image, ImageError
from colibri.pack import pack
from colibri.placement import Placement
from native import SANITIZERS, program

FAULTS = Path(__file__).resolve().parents[1] / "faults"
TINY: dict[str, Any] = {
    "vocab_size": 8, "hidden_size": 32, "num_hidden_layers": 1, "num_experts": 2,
    "num_experts_per_tok": 1, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8,
    "intermediate_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1,
}  # fmt: skip


def tiny(folder: Path, quant: str, **changes: Any) -> Path:
    image = folder / f"{quant}.colibri"
    if not image.exists():
        pack(ck.write(folder / f"in_{quant}", **{**TINY, **changes}), image, quant=quant)
    return image


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


@pytest.fixture(scope="module")
def image(folder: Path) -> Path:
    return tiny(folder, "q4")


def attack(mode: str, *arguments: object, seconds: float = 300) -> dict[str, int]:
    """Counts of the attack; a crash, a hang or a broken promise fails the test."""
    words = program("hostile", mode, *arguments, sanitize=SANITIZERS, seconds=seconds).split()
    return {name: int(count) for name, count in zip(words[::2], words[1::2], strict=True)}


def test_every_prefix_is_refused(image: Path) -> None:
    assert attack("prefixes", image)["opened"] == 0


def test_single_bits(image: Path) -> None:
    """All bits of the tables, and of every eleventh byte of the weights."""
    counts = attack("bits", image, 11)
    size, meta = image.stat().st_size, Image(image).meta_bytes
    flips = len([i for i in range(meta, size) if i % 11 == 0]) * 8
    assert counts["opened"] - 2 == flips
    assert counts["ran"] >= flips
    assert counts["caught"] > 0.9 * flips


@pytest.mark.long
@pytest.mark.parametrize("quant", ["q4", "q8"])
def test_every_single_bit(folder: Path, quant: str) -> None:
    image = tiny(folder, quant)
    counts = attack("bits", image, 1, seconds=1200)
    assert counts["opened"] - 2 == (image.stat().st_size - Image(image).meta_bytes) * 8


def test_reads_that_fail_or_lie(folder: Path, image: Path) -> None:
    other = folder / "other.colibri"
    pack(ck.write(folder / "in_other", **{**TINY, "vocab_size": 12, "mlp_only_layers": [0],
                                          "num_hidden_layers": 2}), other, quant="q8")  # fmt: skip
    assert attack("storage", image, other)["reads"] > 50


def test_fields_with_a_good_checksum(image: Path) -> None:
    """Who writes an image writes its checksum: every word of the tables, telling values."""
    counts = attack("fields", image)
    assert counts["ran"] > 1000


@pytest.mark.long
@pytest.mark.parametrize("quant", ["q4", "f32"])
def test_table_bits_with_a_good_checksum(folder: Path, quant: str) -> None:
    assert attack("mended", tiny(folder, quant))["ran"] > 1000


@pytest.mark.parametrize(("seed", "rounds"), [
    (1, 2000), pytest.param(2, 60_000, marks=pytest.mark.long)])  # fmt: skip
def test_random_changes(image: Path, seed: int, rounds: int) -> None:
    assert attack("fuzz", image, seed, rounds)["ran"] > rounds // 50


@pytest.mark.long
def test_random_changes_with_dense_layers(folder: Path) -> None:
    made = tiny(folder, "f16", mlp_only_layers=[0], num_hidden_layers=2)
    assert attack("fuzz", made, 3, 40_000)["ran"] > 100


# Images in several files


@pytest.fixture(scope="module")
def sharded(folder: Path) -> tuple[Path, ...]:
    """The tiny image with its two experts in a file each, then a file of both."""
    source = ck.write(folder / "in_sharded", **TINY)
    (record, _) = Image(tiny(folder, "q4")).experts
    shards = Placement.of("sharded", 64, 64 + record.bytes)
    pack(source, folder / "sharded.colibri", quant="q4", placement=shards)
    return Image(folder / "sharded.colibri").paths


def test_companions_that_are_cut_or_changed(sharded: tuple[Path, ...]) -> None:
    assert len(sharded) == 3
    counts = attack("companions", *sharded)
    assert counts["ran"] == counts["opened"] > 50
    assert counts["silent"] == 0


def test_fields_of_several_files(sharded: tuple[Path, ...]) -> None:
    image, *companions = sharded
    assert attack("fields", image, *companions)["ran"] > 1000


def test_reads_of_several_files_that_fail(sharded: tuple[Path, ...], image: Path) -> None:
    one, *companions = sharded
    assert attack("storage", one, image, *companions)["reads"] > 50


@pytest.mark.parametrize(("seed", "rounds"), [
    (4, 2000), pytest.param(5, 40_000, marks=pytest.mark.long)])  # fmt: skip
def test_random_changes_of_several_files(sharded: tuple[Path, ...], seed: int, rounds: int) -> None:
    image, *companions = sharded
    assert attack("fuzz", image, seed, rounds, *companions)["ran"] > rounds // 50


# Kept attacks: name of the file tells the status


STATUS = {
    "magic": (40, "not a Colibri image"), "version": (41, "version"),
    "truncated": (42, "truncated"), "structure": (43, "offset"), "checksum": (44, "checksum"),
    "config": (45, "setting"), "tensor": (46, "missing, misplaced or misshapen"),
    "unsupported": (47, "leaves out"),
}  # fmt: skip
KEPT = sorted(FAULTS.glob("*.image"))


def test_there_are_kept_attacks() -> None:
    assert {path.name.split("_")[0] for path in KEPT} == set(STATUS)


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
@pytest.mark.parametrize("map", [True, False])
def test_kept_attacks(path: Path, map: bool) -> None:
    code, text = STATUS[path.name.split("_")[0]]
    with pytest.raises(ImageError, match=text) as caught:
        Image(path, map=map)
    assert caught.value.exit_code == 2
    assert str(path) in str(caught.value)
    assert caught.value.status is not None
    assert caught.value.status.code == code


def test_kept_attacks_under_sanitizers() -> None:
    lines = program("hostile", "files", *KEPT, sanitize=SANITIZERS).splitlines()
    opened = [int(line.split()[0]) for line in lines[: len(KEPT)]]
    assert opened == [STATUS[path.name.split("_")[0]][0] for path in KEPT]


# Every rule of docs/spec.md that open can check: one field wrong, the checksum right


def mended(data: bytes, at: int, form: str, value: float) -> bytes:
    changed = bytearray(data)
    struct.pack_into(f"<{form}", changed, at, value)
    meta = min(_meta_bytes(changed), len(changed))
    struct.pack_into("<I", changed, 60, zlib.crc32(changed[64:meta], zlib.crc32(changed[:60])))
    return bytes(changed)


MAGIC, VERSION, TRUNCATED, STRUCTURE, CHECKSUM, CONFIG, TENSOR, UNSUPPORTED = range(40, 48)
NAN, INF = float("nan"), float("inf")
HEADER = {  # offset: (form, values, status)
    0: ("B", [0, 0x88], MAGIC), 7: ("B", [0, 13], MAGIC), 8: ("I", [0, 2, 2**24], VERSION),
    12: ("I", [1, 2, 3, 2**31], STRUCTURE), 16: ("Q", [2**63, 2**32 - 1], TRUNCATED),
    24: ("I", [0, 64, 63, 2**32 - 64], STRUCTURE), 28: ("I", [0, 1, 33, 2**27], STRUCTURE),
    48: ("I", [0, 1, 32, 96, 128, 4096, 131072], STRUCTURE), 52: ("I", [1], STRUCTURE),
    56: ("I", [1, 2**31], STRUCTURE),
}  # fmt: skip
SETTINGS: dict[int, tuple[str, list[Any]]] = {  # word: values out of range
    0: ("I", [0, 2**24 + 1]), 1: ("I", [0, 65537]), 3: ("I", [0, 131073]), 4: ("I", [0, 1025]),
    5: ("I", [0, 3, 2**31]), 6: ("I", [0, 1, 7, 1026]), 7: ("I", [3, 18, 2**32 - 2]),
    8: ("I", [2]), 9: ("I", [0, 99]), 10: ("I", [0, 99]), 11: ("I", [2**31]), 12: ("I", [0, 4097]),
    13: ("I", [0, 3, 65]), 14: ("I", [0, 65537]), 15: ("I", [65537]), 16: ("I", [2, 3]),
    17: ("I", [1]), 18: ("I", [2]), 19: ("f", [0, -1, NAN, INF]), 20: ("f", [NAN, INF, -INF]),
    21: ("f", [NAN, INF]), 22: ("I", [2]), 44: ("I", [1]), 48: ("I", [1]), 63: ("I", [1, 2**31]),
}  # fmt: skip
SECTION = {0: ("I", [0, 8, 9, 15, 19, 99]), 4: ("I", [1]), 8: ("Q", [0, 63, 2**64 - 64]),
           16: ("Q", [2**63, 2**64 - 1]), 24: ("I", [1])}  # fmt: skip
WEIGHT = {  # of a matrix's entry
    0: ("H", [1, 0xFFFF], TENSOR), 2: ("H", [0, 99], TENSOR), 4: ("B", [0, 6, 1], TENSOR),
    5: ("B", [2, 255], UNSUPPORTED), 6: ("H", [0, 16, 33, 256], TENSOR),
    8: ("I", [0, 2**31], TENSOR), 12: ("I", [0, 33], TENSOR),
    16: ("Q", [0, 2**64 - 64], TENSOR), 24: ("Q", [0, 64, 2**63], TENSOR),
    36: ("I", [1], TENSOR), 40: ("Q", [1, 2**63], TENSOR),
}  # fmt: skip


def wrong_fields(opened: Image) -> list[tuple[str, int, str, float, int]]:
    """(what, offset, form, value, status) for every rule."""
    at = {s.name: s.offset for s in opened.sections}
    cases = [("header", a, f, v, s) for a, (f, vs, s) in HEADER.items() for v in vs]
    cases += [
        ("setting", at["config"] + 4 * w, f, v, CONFIG)
        for w, (f, vs) in SETTINGS.items()
        for v in vs
    ]
    for i in range(len(opened.sections)):
        cases += [
            ("section", 64 + 32 * i + a, f, v, STRUCTURE)
            for a, (f, vs) in SECTION.items()
            for v in vs
        ]
        cases.append(("count", 64 + 32 * i + 28, "I", opened.sections[i].count + 1, STRUCTURE))
    names = [t.name for t in opened.tensors]
    for name in ("query", "embedding", "expert_up"):
        entry = at["tensors"] + 48 * names.index(name)
        cases += [(name, entry + a, f, v, s) for a, (f, vs, s) in WEIGHT.items() for v in vs
                  if not (name == "embedding" and (a, v) == (0, 0xFFFF))]  # fmt: skip
    for name in ("attention_norm", "query_bias", "router", "output_norm", "rope"):
        cases.append((name, at["tensors"] + 48 * names.index(name) + 4, "B", 2, TENSOR))
    cases.append(("crc", at["tensors"] + 48 * names.index("expert_up") + 32, "I", 1, TENSOR))
    cases += [("layer", at["layers"] + a, "B", v, STRUCTURE)
              for a, v in ((0, 0), (0, 9), (1, 0), (1, 4), (2, 3), (15, 128))]  # fmt: skip
    cases.append(("layer", at["layers"] + 1, "B", 1, CONFIG))
    experts = at["experts"]
    cases += [("expert", experts + a, f, v, STRUCTURE) for a, f, v in (
        (0, "Q", 0), (0, "Q", opened.experts[0].offset + 1), (0, "Q", opened.bytes),
        (0, "Q", 2**64 - 64), (8, "I", 0), (8, "I", opened.experts[0].bytes + 1),
        (16, "I", 1), (20, "I", 1))]  # fmt: skip
    padding = at["experts"] - 1
    assert padding >= at["tensors"] + 48 * len(names)
    return [*cases, ("padding", padding, "B", 1, STRUCTURE)]


def test_every_rule_is_checked_at_open(image: Path) -> None:
    data = image.read_bytes()
    cases = wrong_fields(Image(data))
    assert len(cases) > 200
    for what, at, form, value, expected in cases:
        with pytest.raises(ImageError) as caught:
            Image(mended(data, at, form, value))  # raises: "DID NOT RAISE" means it was taken
        assert caught.value.status is not None
        assert caught.value.status.code == expected, (what, at, value)


LINEAR = {  # golden: word: values out of range
    "minimax": {41: [2, 64], 44: [0, 1025], 45: [0, 3, 131073], 46: [0, 1025], 47: [0, 1025],
                48: [1]},
    "jamba": {41: [0, 1, 65], 44: [0, 2], 45: [0, 131073], 46: [0, 1025], 47: [0, 2],
              48: [0, 65537, 2**31]},
}  # fmt: skip


@pytest.mark.parametrize("name", LINEAR)
def test_sizes_of_linear_attention(tmp_path: Path, name: str) -> None:
    data = pack(ck.GOLDEN / name, tmp_path / "image", selftest=ck.no_selftest).image.read_bytes()
    config = next(s.offset for s in Image(data).sections if s.name == "config")
    for word, values in LINEAR[name].items():
        for value in values:
            with pytest.raises(ImageError) as caught:
                Image(mended(data, config + 4 * word, "I", value))
            assert caught.value.status is not None
            assert (caught.value.status.code, caught.value.status.where) == (CONFIG, word)


def test_heads_are_a_multiple_of_kv_heads(image: Path) -> None:
    data = image.read_bytes()
    config = next(s.offset for s in Image(data).sections if s.name == "config")
    three = mended(mended(data, config + 16, "I", 3), config + 20, "I", 2)
    with pytest.raises(ImageError, match="'kv_heads'"):
        Image(three)


# From Python


def test_things_that_are_no_image(tmp_path: Path) -> None:
    other = b"GGUF" + bytes(4096)
    for content in (b"", b"\0", b"\x89CLB", bytes(64), other, bytes(range(256)) * 16):
        path = tmp_path / "file"
        path.write_bytes(content)
        for source in (path, content):
            with pytest.raises(ImageError):
                Image(source)
    with pytest.raises(ImageError, match="cannot open"):
        Image(tmp_path / "none")
    with pytest.raises(ImageError):
        Image(tmp_path)


def test_an_image_of_the_other_byte_order_is_refused(image: Path, tmp_path: Path) -> None:
    data = image.read_bytes()
    swapped = b"".join(data[i : i + 4][::-1] for i in range(0, len(data), 4))
    for content in (swapped, data[:8] + swapped[8:]):
        with pytest.raises(ImageError):
            Image(content)


def test_a_shortened_file_is_refused_and_says_the_length(image: Path, tmp_path: Path) -> None:
    whole = image.read_bytes()
    cut = tmp_path / "cut.colibri"
    cut.write_bytes(whole[:-1])
    with pytest.raises(ImageError, match=f"{len(whole):,}"):
        Image(cut)


def test_offsets_beyond_32_bits_are_not_cut(image: Path, tmp_path: Path) -> None:
    """A sparse file of 5 GiB with the weights at its end: cut to 32 bits, offsets lie elsewhere."""
    data = bytearray(image.read_bytes())
    opened = Image(image)
    weights = opened.section("weights")
    assert weights is not None
    content = bytes(data[weights.offset :])
    shift = _add_tokenizer(data, opened, (5 << 30) - 3)
    path = tmp_path / "large.colibri"
    with path.open("wb") as stream:
        stream.write(data[: _meta_bytes(data)])
        stream.seek(weights.offset + shift)
        stream.write(content)
    large = Image(path)
    assert large.bytes == path.stat().st_size > 2**32
    small = Engine(image, context=8)
    assert np.array_equal(Engine(large, context=8).infer([1, 2]), small.infer([1, 2]))
    path.unlink()


def _meta_bytes(data: bytearray) -> int:
    return int(struct.unpack_from("<I", data, 24)[0])


def _add_tokenizer(data: bytearray, image: Image, size: int) -> int:
    """Puts a tokenizer section before the weights; returns how far what follows moved."""
    count, meta = struct.unpack_from("<I", data, 28)[0], image.meta_bytes
    entries = [list(struct.unpack_from("<IIQQII", data, 64 + 32 * i)) for i in range(count)]
    at = entries[-2][2]
    grown = 64 + 32 * (count + 1)
    sections = [bytes(data[e[2] : e[2] + e[3]]) for e in entries[:-2]]
    new, tables = bytearray(data[:64] + bytes(grown - 64)), []
    for entry, section in zip(entries[:-2], sections, strict=True):
        new += bytes(-len(new) % 64)
        tables.append((entry, len(new)))
        new += section
    new += bytes(-len(new) % 64)
    shift = len(new) + (size + 63) // 64 * 64 - at
    rows = [[*e[:2], offset, *e[3:]] for e, offset in tables]
    rows.append([16, 0, len(new), size, 0, 1])
    rows += [[*e[:2], e[2] + shift, *e[3:]] for e in entries[-2:]]
    for i, row in enumerate(rows):
        struct.pack_into("<IIQQII", new, 64 + 32 * i, *row)
    by_kind = {row[0]: row for row in rows}
    for i in range(by_kind[3][5]):
        entry_at = by_kind[3][2] + 48 * i
        if struct.unpack_from("<H", new, entry_at + 2)[0] < 64:
            offset = struct.unpack_from("<Q", new, entry_at + 16)[0]
            struct.pack_into("<Q", new, entry_at + 16, offset + shift)
    for i in range(by_kind[4][5]):
        entry_at = by_kind[4][2] + 24 * i
        struct.pack_into("<Q", new, entry_at, struct.unpack_from("<Q", new, entry_at)[0] + shift)
    struct.pack_into("<QII", new, 16, len(data) + shift, len(new), count + 1)
    struct.pack_into("<I", new, 60, zlib.crc32(new[64:], zlib.crc32(new[:60])))
    assert meta == at
    data[:] = new
    return int(shift)
