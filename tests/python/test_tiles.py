# SPDX-License-Identifier: Apache-2.0
"""Weights in tiles of sixteen rows: the same numbers as in rows, to the bit, in every reader."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from colibri import Engine, Image, _core
from colibri.errors import BoardError
from colibri.image_format import Order, Type
from colibri.pack import pack
from colibri.quantize import encode
from colibri.weight_order import order_of_target
from image_reader import walk

GOLDEN = Path(__file__).parents[1] / "golden"
FAMILIES = sorted(path.parent.name for path in GOLDEN.glob("*/config.json"))
KINDS = {"q8": Type.Q8, "q4": Type.Q4}
TENSOR_ENTRY, ORDER_AT = 48, 5


def in_both_orders(folder: Path, checkpoint: Path, quant: str = "q4") -> tuple[Path, Path]:
    rows, tiles = folder / "rows.colibri", folder / "tiles.colibri"
    pack(checkpoint, rows, quant=quant)
    pack(checkpoint, tiles, quant=quant, order=Order.TILES)
    return rows, tiles


@pytest.mark.parametrize(
    ("quant", "family"), [("q4", family) for family in FAMILIES] + [("q8", "deepseek_v2")]
)
def test_a_model_in_tiles_gives_the_bits_of_rows(family: str, quant: str, tmp_path: Path) -> None:
    rows, tiles = in_both_orders(tmp_path, GOLDEN / family, quant)
    tokens = np.load(GOLDEN / family / "reference.npz")["input_ids"][0].tolist()
    assert any(tensor.order for tensor in Image(tiles).tensors)
    want = Engine(Image(rows), context=32, kernels="ref").infer(tokens, all_logits=True)
    for kernels in _core.kernels():
        engine = Engine(Image(tiles), context=32, kernels=kernels, workers=2)
        got = engine.infer(tokens, all_logits=True)
        assert np.array_equal(got.view(np.uint32), want.view(np.uint32)), kernels
        engine.reset()
        engine.selftest()
    Image(tiles).verify()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_second_reader_finds_the_same_weights(family: str, tmp_path: Path) -> None:
    rows, tiles = (walk(path) for path in in_both_orders(tmp_path, GOLDEN / family))
    assert rows.selftest == tiles.selftest
    assert rows.tensors.keys() == tiles.tensors.keys()
    for key, values in rows.tensors.items():
        assert np.array_equal(values, tiles.tensors[key]), key


@pytest.mark.parametrize("kernels", _core.kernels())
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("quant", KINDS)
def test_products_of_every_height(quant: str, group: int, kernels: str) -> None:
    """Whole tiles, rows beyond them, and ranges that begin and end within a tile."""
    rng, table = np.random.default_rng(group), _core.Kernels(kernels)
    for rows in (1, 15, 16, 17, 33, 48, 63):
        for columns in (1, group - 1, group, 2 * group + 5):
            weight = rng.standard_normal((rows, columns)).astype(np.float32)
            x = rng.standard_normal((9, columns)).astype(np.float32)
            bias = rng.standard_normal(rows).astype(np.float32)
            results = []
            for order in Order:
                stored = encode(weight, KINDS[quant], group, order)
                data = stored.codes + bytes(-len(stored.codes) % 64) + stored.scales
                for begin, end in ((0, rows), (rows // 3, rows - rows // 4)):
                    outs: list[NDArray[Any]] = [
                        use.matmul(data, KINDS[quant], group, rows, x, bias, None, None, 9,
                                   begin, end, order)
                        for use in (table, _core.Kernels("ref"))
                    ]  # fmt: skip
                    assert np.array_equal(*(out.view(np.uint32) for out in outs))
                    results.append(outs[0])
            assert np.array_equal(results[0], results[2])
            assert np.array_equal(results[1], results[3])


def test_an_encoded_tile_by_hand() -> None:
    """Column 9 of row 2: q8 in block 2, byte 1 of row 2; q4 in block 1, byte 1, low half."""
    codes = np.zeros((16, 32), np.float32)
    codes[:, 31] = -127
    codes[2, 9] = 5
    stored = np.frombuffer(encode(codes, Type.Q8, 32, Order.TILES).codes, np.int8)
    assert stored[2 * 64 + 4 * 2 + 1] == 5
    assert np.count_nonzero(stored) == 17
    codes[:, 31] = -8
    stored = np.frombuffer(encode(codes, Type.Q4, 32, Order.TILES).codes, np.uint8)
    assert stored[1 * 64 + 4 * 2 + 1] == 5 + 8 | 8 << 4
    assert set(stored[3 * 64 + 3 :: 4].tolist()) == {0 << 4 | 8}


@pytest.fixture(scope="module")
def tiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiles") / "tiles.colibri"
    pack(GOLDEN / "deepseek_v2", path, quant="q4", order=Order.TILES)
    return path


def with_order(image: Path, name: str, order: int, target: Path) -> Path:
    """The image with one tensor said to be in another order, checksum mended."""
    data = bytearray(image.read_bytes())
    meta_bytes, count = struct.unpack_from("<II", data, 24)
    sections = [struct.unpack_from("<IIQQII", data, 64 + 32 * i) for i in range(count)]
    table = next(s[2] for s in sections if s[0] == 3)
    index = next(i for i, t in enumerate(Image(image).tensors) if t.name == name)
    data[table + TENSOR_ENTRY * index + ORDER_AT] = order
    crc = zlib.crc32(data[64:meta_bytes], zlib.crc32(data[:60]))
    struct.pack_into("<I", data, 60, crc)
    target.write_bytes(data)
    return target


@pytest.mark.parametrize(("name", "order"), [("router", 1), ("query", 2), ("attention_norm", 1)])
def test_orders_that_a_tensor_cannot_have_are_refused(
    tiled: Path, name: str, order: int, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match=f"{name} is missing|{name} has weight order 2"):
        Image(with_order(tiled, name, order, tmp_path / "bad.colibri"))


def test_a_target_decides_the_order() -> None:
    assert order_of_target(None) is Order.ROWS
    assert order_of_target("pimoroni-pico-plus-2") is Order.ROWS
    assert order_of_target("st-stm32n6570-dk") is Order.ROWS
    assert order_of_target("raspberry-pi-5-2gb") is Order.TILES
    with pytest.raises(BoardError):
        order_of_target("no-such-board")
