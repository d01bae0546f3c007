# SPDX-License-Identifier: Apache-2.0
"""No bit of any family depends on batch, neighbours, workers or kernels."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np
import pytest

from checkpoints import copy_golden
from colibri import Engine, Image
from colibri.pack import pack

GOLDEN = Path(__file__).parents[1] / "golden"
FAMILIES = sorted(path.parent.name for path in GOLDEN.glob("*/config.json"))
QUANTS = ("f32", "q4")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Packs each golden once for each quantisation."""
    folder, made = tmp_path_factory.mktemp("families"), {}

    def image(family: str, quant: str) -> Image:
        if (family, quant) not in made:
            path = folder / f"{family}-{quant}.colibri"
            pack(GOLDEN / family, path, quant=quant)
            made[family, quant] = Image(path)
        return made[family, quant]

    return image


def tokens_of(family: str) -> list[list[int]]:
    return np.load(GOLDEN / family / "reference.npz")["input_ids"].tolist()


def crc(rows: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(rows, "<f4").tobytes())


def alone(image: Image, tokens: list[int], **options) -> np.ndarray:
    return Engine(image, context=32, **options).infer(tokens, all_logits=True)


@pytest.mark.parametrize("quant", QUANTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_no_bit_depends_on_how_it_is_computed(images, family, quant):
    image, (tokens, _) = images(family, quant), tokens_of(family)
    expected = crc(alone(image, tokens, kernels="ref", batch=1))
    for options in ({"batch": 24}, {"batch": 7, "workers": 3}, {"batch": 24, "workers": 2}):
        for kernels in ("ref", "auto"):
            assert crc(alone(image, tokens, kernels=kernels, **options)) == expected, (
                options,
                kernels,
            )


@pytest.mark.parametrize("kv", ["f16", "q8"])
@pytest.mark.parametrize("family", FAMILIES)
def test_other_cache_types_depend_on_nothing_either(images, family, kv):
    image, (tokens, _) = images(family, "q4"), tokens_of(family)
    expected = crc(alone(image, tokens, kernels="ref", batch=1, kv=kv))
    assert crc(alone(image, tokens, kernels="auto", batch=24, workers=2, kv=kv)) == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_sequences_do_not_see_each_other(images, family):
    """Two sequences token by token in one batch give what each gives alone; a reset forgets."""
    image, pair = images(family, "q4"), tokens_of(family)
    expected = [crc(alone(image, tokens)) for tokens in pair]
    engine = Engine(image, context=32, sequences=2, batch=5)
    engine.infer_batch([7, 9, 11], [0, 1, 0], [0, 0, 1])
    engine.reset()
    mixed = [token for both in zip(*pair, strict=True) for token in both]
    rows = engine.infer_batch(mixed, [0, 1] * len(pair[0]), [1] * len(mixed))
    assert [crc(rows[0::2]), crc(rows[1::2])] == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_self_test_holds(images, family):
    for kv in ("f32", "f16", "q8"):
        Engine(images(family, "q4"), context=32, kv=kv).selftest()


def raise_bias(file: Path, name: str, value: float) -> None:
    """Sets the first element of a bfloat16 vector, in place."""
    data = bytearray(file.read_bytes())
    size = int.from_bytes(data[:8], "little")
    entry = json.loads(data[8 : 8 + size])[name]
    at = 8 + size + entry["data_offsets"][0]
    data[at : at + 2] = np.float32(value).tobytes()[2:]
    file.write_bytes(data)


def test_an_outlier_in_an_f16_cache_is_clamped(tmp_path):
    """A key of 1e6 becomes 65504: finite logits, and the same on every table."""
    folder = copy_golden("qwen2_moe", tmp_path)
    raise_bias(folder / "model.safetensors", "model.layers.0.self_attn.k_proj.bias", 1e6)
    pack(folder, tmp_path / "outlier.colibri", quant="f32")
    image = Image(tmp_path / "outlier.colibri")
    tokens = tokens_of("qwen2_moe")[0]
    rows = alone(image, tokens, kv="f16", kernels="ref")
    assert np.isfinite(rows).all()
    assert crc(alone(image, tokens, kv="f16", kernels="auto", batch=24)) == crc(rows)


def test_a_step_may_choose_no_expert_that_has_weights(tmp_path):
    """All choices of all tokens are experts that give their input back: nothing is multiplied."""
    folder = copy_golden("longcat_flash", tmp_path)
    file = folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    biases = [header[name] for name in header if name.endswith("e_score_correction_bias")]
    assert [(bias["dtype"], bias["shape"]) for bias in biases] == [("F32", [16])] * 2
    for bias in biases:  # 4 of 16 have no weights, and a token chooses 4
        end = 8 + size + bias["data_offsets"][1]
        data[end - 16 : end] = np.full(4, 1e6, "<f4").tobytes()
    file.write_bytes(data)
    pack(folder, tmp_path / "identities.colibri", quant="q4")
    image, tokens = Image(tmp_path / "identities.colibri"), tokens_of("longcat_flash")[0]
    engine = Engine(image, context=32, kernels="ref", batch=1, trace=True)
    rows = engine.infer(tokens, all_logits=True)
    routed = [event for event in engine.take_trace() if event["kind"] == 6]
    assert {int(event["index"]) for event in routed} == {12, 13, 14, 15}
    assert crc(alone(image, tokens, batch=24, workers=3)) == crc(rows)
