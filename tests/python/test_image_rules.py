# SPDX-License-Identifier: Apache-2.0
"""The format three times: docs/spec.md, the packer's tables and the C library say the same."""

from __future__ import annotations

import hashlib
import json
import random
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields
from pathlib import Path

import pytest

import checkpoints as ck
from colibri import Image, ImageError, _core
from colibri.cli.inspect import describe as inspect
from colibri.families import describe
from colibri.image_format import RANGES, ROLES, SCOPES, WHOLE_NORMS, Role, Settings
from colibri.pack import pack
from image_reader import walk
from spec_page import ROWS, WORDS, Row

HEADER = (ck.ROOT / "sdk" / "c" / "include" / "colibri" / "image.h").read_text(encoding="utf-8")
RULES = (ck.ROOT / "sdk" / "c" / "src" / "image_rules.c").read_text(encoding="utf-8")
GOLDENS = sorted(path.parent.name for path in ck.GOLDEN.glob("*/config.json"))
MIXERS = {"attention": 1, "latent": 2, "conv": 3, "experts": 4, "delta": 5, "mamba2": 6,
          "lightning": 7, "mamba": 8}  # fmt: skip


# Roles


def of_role(role: Role) -> list[Row]:
    return [row for row in ROWS if row.role == role.number]


def test_numbers_and_names_of_roles() -> None:
    page = {row.name: row.role for row in ROWS}
    assert page == {role.name: role.number for role in ROLES.values()}
    enum = re.findall(r"COLIBRI_ROLE_(\w+) = (\d+)", HEADER)
    assert page == {name.lower(): int(number) for name, number in enum} == _core.ROLES


def test_roles_ascend() -> None:
    for numbers in ([row.role for row in ROWS], [role.number for role in ROLES.values()]):
        assert numbers == sorted(numbers)


def test_marks_of_roles() -> None:
    """Always f32, optional, in the records: the page, the packer, and the rules in C."""
    rules = re.findall(r"\{COLIBRI_ROLE_(\w+), \w+, \w+, ([A-Z0-9_ |]+), \w+\}", RULES)
    assert len(rules) == len({row.role for row in ROWS}) == len(dict(rules))
    for name, text in rules:
        role = ROLES[name.lower()]
        flags = set(text.replace("VECTOR", "F32_ONLY | OPTIONAL").split(" | "))
        for row in of_role(role):
            assert row.f32 == (role.part is None) == ("F32_ONLY" in flags), name
            assert row.optional == ("OPTIONAL" in flags), name
            assert row.in_record == (role.scope == "expert") == ("IN_RECORD" in flags), name


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("ffn", [1, 2, 3])
def test_where_roles_belong(mixer: str, ffn: int) -> None:
    scopes = {"layer", *SCOPES[mixer]}
    scopes |= {"dense"} if ffn & 1 else set()
    scopes |= {"moe", "expert"} if ffn & 2 else set()
    scopes |= {"both"} if ffn == 3 else set()
    page = {row.name for row in ROWS if row.may_be_in(MIXERS[mixer], ffn)}
    assert page == {role.name for role in ROLES.values() if role.scope in scopes}
    assert {row.name for row in ROWS if row.may_be_in(None)} == {
        role.name for role in ROLES.values() if role.scope == "global"
    }


# Primes, so that no two sizes are equal by chance.
SIZES = {
    "vocabulary": 101, "hidden": 103, "heads": 12, "kv_heads": 3, "head_size": 46, "rope_size": 26,
    "experts": 11, "expert_size": 107, "shared_size": 109, "dense_size": 113, "conv_size": 5,
    "linear_keys": 2, "linear_values": 6, "linear_key_size": 13, "linear_value_size": 17,
}  # fmt: skip
LATENT = {"value_size": 23, "latent_size": 29, "query_latent": 31}
MAMBA = {"linear_keys": 1, "linear_value_size": 1, "linear_rank": 37}


@pytest.mark.parametrize("name", ROLES)
@pytest.mark.parametrize("more", [{}, {"rope_size_2": 14}])
def test_shapes_of_roles(name: str, more: dict[str, int]) -> None:
    role = ROLES[name]
    for row in of_role(role):
        numbers = row.numbers if row.where == "mixer" else frozenset()
        own = LATENT if 2 in numbers else MAMBA if numbers == {8} else {}
        zeros = {field.name: 0 for field in fields(Settings)}
        settings = Settings(**{**zeros, **SIZES, **more, **own})
        shapes = [(role.rows(settings), role.columns(settings))]
        if name in WHOLE_NORMS:
            shapes.append((1, WHOLE_NORMS[name](settings)))
        page = row.shapes(asdict(settings))
        assert set(page) <= set(shapes)
        assert len(page) == len(shapes) or len(of_role(role)) > 1


# Config


def test_words_of_the_config() -> None:
    struct_text = re.search(
        r"typedef struct colibri_config \{(.*?)\} colibri_config;", HEADER, re.S
    )
    assert struct_text is not None
    library = re.findall(r"^ +(uint32_t|float) (\w+)(\[\d+\])?;", struct_text[1], re.M)
    reserved = 64 - len(WORDS)
    assert library.pop() == ("uint32_t", "reserved", f"[{reserved}]")
    page = [(word.name, word.is_float) for word in WORDS]
    assert page == [(name, kind == "float") for kind, name, _ in library]
    assert page == [(field.name, field.type == "float") for field in fields(Settings)]
    assert [word.number for word in WORDS] == list(range(len(WORDS)))


def test_ranges_of_the_config() -> None:
    """The packer's are for all models, so 0 counts where it means that there are no such layers."""
    page = {}
    for word in WORDS:
        if not word.is_float:
            least, most = word.limits
            page[word.name] = (0 if word.only_with else least, most)
    assert page == RANGES


# Images


@pytest.mark.parametrize("quant", ["f32", "q4"])
@pytest.mark.parametrize("name", GOLDENS)
def test_the_second_reader_reads_every_family(tmp_path: Path, name: str, quant: str) -> None:
    packed = pack(ck.GOLDEN / name, tmp_path / "image", quant=quant, selftest=ck.no_selftest)
    image, w = Image(packed.image), walk(packed.image)
    image.verify()
    assert image.config == pytest.approx(w.config)
    assert len(image.tensors) == len({key[:2] for key in w.tensors})
    for t in image.tensors:
        layer = None if t.layer == _core.GLOBAL_LAYER else t.layer
        key = (layer, t.name, 0) if t.is_expert else (layer, t.name)
        assert (w.types[t.name], w.groups[key]) == (t.type_name, t.group)
        assert w.tensors[key].shape == (t.rows, t.columns)
    weights = sum(x.size for key, x in w.tensors.items() if key[1] not in ("rope", "rope_2"))
    facts = inspect(image)
    assert facts["parameters"] == packed.parameters == weights
    assert {role["role"]: role["bytes"] for role in facts["roles"]} == packed.roles


def test_the_goldens_have_every_role() -> None:
    seen = set()
    for name in GOLDENS:
        file = ck.GOLDEN / name / "config.json"
        model = describe(json.loads(file.read_text(encoding="utf-8")), file)
        seen |= {wanted.role.name for wanted in model.tensors} | set(model.ropes)
    assert seen == set(ROLES)


def sealed(data: bytearray) -> bytes:
    """With the id and the checksum that its meta part should have."""
    meta = data[: struct.unpack_from("<I", data, 24)[0]]
    meta[32:48], meta[60:64] = bytes(16), bytes(4)
    meta[32:48] = hashlib.sha256(meta).digest()[:16]
    data[: len(meta)] = meta
    struct.pack_into("<I", data, 60, zlib.crc32(meta[64:], zlib.crc32(meta[:60])))
    return bytes(data)


def places(data: bytes) -> Iterator[tuple[str, int, str]]:
    """Fields that a reader checks at open: (what, offset, form)."""
    count = struct.unpack_from("<I", data, 28)[0]
    table = [struct.unpack_from("<IIQQII", data, 64 + 32 * i) for i in range(count)]
    at = {kind: (offset, entries) for kind, _, offset, _, _, entries in table}
    for word in range(64):
        yield f"word {word}", at[1][0] + 4 * word, "I"
    forms = {2: (16, "BBBBIIHH"), 3: (48, "HHBBHIIQQ"), 4: (24, "")}
    for kind in forms.keys() & at:
        size, form = forms[kind]
        for entry in range(at[kind][1]):
            start = at[kind][0] + size * entry
            for i, one in enumerate(form):
                where = start + struct.calcsize("<" + form[:i])
                yield f"section {kind}, entry {entry}, field {i}", where, one
            if kind > 2:
                yield f"section {kind}, entry {entry}, zero", start + size - 4, "I"
    for i in range(count):
        for offset, form in ((0, "I"), (4, "I"), (8, "Q"), (16, "Q"), (24, "I"), (28, "I")):
            yield f"section table, entry {i}, at {offset}", 64 + 32 * i + offset, form


def accepts(reader: Callable[[bytes], object], image: bytes) -> bool:
    """Whatever the second reader trips over is wrong; the library refuses by name only."""
    try:
        reader(image)
    except ImageError:
        return False
    except Exception:
        if reader is not walk:
            raise
        return False
    return True


VALUES = (*range(9), 16, 24, 25, 31, 32, 33, 63, 64, 65, 128, 255, 1024, 1025, 65535, 65536, 131073,
          0x3F800000, 0x7F800000, 0x7FC00000, 0xBF800000, 2**32 - 1, 2**63, 2**64 - 64)  # fmt: skip


@pytest.mark.parametrize("rounds", [40, pytest.param(1000, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "name",
    [
        "deepseek_v2",
        "gemma4_text",
        "granitemoehybrid",
        "jamba",
        "jetmoe",
        "lfm2_moe",
        "longcat_flash",
        "minimax",
    ],
)
def test_both_readers_refuse_the_same(tmp_path: Path, name: str, rounds: int) -> None:
    """One field changed, the checksum right: config and layers half of the time, any table else."""
    made = pack(ck.GOLDEN / name, tmp_path / "image", quant="q4", selftest=ck.no_selftest).image
    data = made.read_bytes()
    everywhere = list(places(data))
    first = [place for place in everywhere if place[0].startswith(("word", "section 2,"))]
    rng = random.Random(name)
    taken = 0
    for n in range(rounds):
        what, at, form = rng.choice(everywhere if n % 2 else first)
        value = struct.unpack_from("<" + form, data, at)[0]
        other = rng.choice([*VALUES, value + 1, value - 1, value * 2, value // 2])
        changed = bytearray(data)
        struct.pack_into("<" + form, changed, at, other % (1 << 8 * struct.calcsize(form)))
        image = sealed(changed)
        verdicts = [accepts(reader, image) for reader in (walk, Image)]
        assert verdicts[0] == verdicts[1], f"{what}: {other} for {value}"
        taken += verdicts[0]
    assert 0 < taken < rounds
