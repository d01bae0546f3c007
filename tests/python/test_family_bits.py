# SPDX-License-Identifier: Apache-2.0
"""Every family keeps the numbers' contract: no bit depends on batch, neighbours, workers or kernels."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest
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
            assert crc(alone(image, tokens, kernels=kernels, **options)) == expected, (options, kernels)


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
