# SPDX-License-Identifier: Apache-2.0
"""Calibration: what the recorder sums against a second opinion, and what it is good for."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import checkpoints as ck
from colibri import calibrate as module
from colibri import cli
from colibri._core import GLOBAL_LAYER
from colibri.calibrate import Block, Calibration, Inputs, Tokens, calibrate
from colibri.compensate import Factor
from colibri.errors import ColibriError, PackError
from colibri.image import Image
from colibri.image_format import ROLES, Order, Type
from colibri.image_layout import TensorSpec
from colibri.pack import pack
from colibri.quantize import quantize
from image_reader import walk
from oracle import Oracle

Doubles = NDArray[np.float64]
KINDS = (Type.Q8, Type.Q4)


def ids(vocabulary: int, count: int = 600) -> list[int]:
    """Some tokens often, most seldom, as in a text."""
    drawn = np.random.default_rng(7).exponential(vocabulary / 5, count).astype(int)
    return [int(token) % vocabulary for token in drawn]


def ids_file(folder: Path, vocabulary: int, count: int = 600) -> Path:
    file = folder / "ids.json"
    file.write_text(json.dumps(ids(vocabulary, count)))
    return file


def moments(columns: int, seed: int = 0) -> Doubles:
    """Second moments of inputs that hang together, some columns larger than others."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(4 * columns, columns)) @ rng.normal(size=(columns, columns))
    x *= np.exp(rng.normal(size=columns))
    found = x.T @ x / len(x)
    return np.asarray(found + 0.01 * np.trace(found) / columns * np.eye(columns))


def cost(x: NDArray[np.float32], y: tuple[NDArray[Any], NDArray[np.float16]], h: Doubles) -> float:
    error = x - (y[0] * y[1].astype(np.float64)[..., None]).reshape(len(x), -1)[:, : x.shape[1]]
    return float(((error @ h) * error).sum())


# Rounding


def test_the_factor_is_what_it_says() -> None:
    h = moments(50)
    factor = Factor.of(h)
    assert np.allclose(factor.lower * factor.weights @ factor.lower.T, h, rtol=1e-12)
    assert np.array_equal(factor.lower, np.tril(factor.lower))
    assert np.array_equal(np.diagonal(factor.lower), np.ones(50))
    assert (factor.weights > 0).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("columns", [64, 40])
def test_inputs_that_do_not_hang_together_change_nothing(kind: Type, columns: int) -> None:
    x = np.random.default_rng(1).normal(0, 0.05, (30, columns)).astype(np.float32)
    plain = quantize(x, kind, 32)
    for importance in (Factor.of(np.eye(columns) * 3), np.full(columns, 0.25)):
        found = quantize(x, kind, 32, importance)
        assert np.array_equal(found[0], plain[0])
        assert np.array_equal(found[1], plain[1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("columns", [128, 100])
def test_compensation_lowers_the_error_of_the_products(
    kind: Type, group: int, columns: int
) -> None:
    x = np.random.default_rng(2).normal(0, 0.05, (48, columns)).astype(np.float32)
    h = moments(columns)
    plain, weighted, compensated = (
        quantize(x, kind, group, importance)
        for importance in (None, np.diagonal(h), Factor.of(h))
    )  # fmt: skip
    diagonal = np.diag(np.diagonal(h))
    assert cost(x, weighted, diagonal) < cost(x, plain, diagonal) * (
        1.001 if kind is Type.Q8 else 1
    )
    assert cost(x, compensated, h) < 0.6 * cost(x, plain, h)
    assert not compensated[0].reshape(48, -1)[:, columns:].any()


def test_each_code_is_the_nearest_to_what_is_left() -> None:
    """The sum that is made small, written out: lower^T times the error, weighted."""
    x = np.random.default_rng(3).normal(0, 0.05, (5, 32)).astype(np.float32)
    factor = Factor.of(moments(32))
    codes, scales = quantize(x, Type.Q4, 32, factor)
    step = scales.astype(np.float64)[:, 0]
    for row in range(5):
        error = x[row] - codes[row, 0] * step[row]
        left = factor.lower.T @ error
        inside = (codes[row, 0] > -8) & (codes[row, 0] < 7)
        assert (np.abs(left[inside]) <= np.abs(step[row]) * 0.5000001).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_cut_into_rows_does_not_matter(kind: Type) -> None:
    x = np.random.default_rng(4).standard_t(3, (65, 128)).astype(np.float32)
    for importance in (Factor.of(moments(128)), np.diagonal(moments(128))):
        whole = quantize(x, kind, 32, importance)
        for step in (1, 7, 64):
            parts = [quantize(x[i : i + step], kind, 32, importance) for i in range(0, 65, step)]
            for n in (0, 1):
                assert np.array_equal(whole[n], np.concatenate([part[n] for part in parts]))


@pytest.mark.parametrize("size", [1e-60, 1e-3, 1e60])
@pytest.mark.parametrize("columns", [64, 50])
def test_the_size_of_the_inputs_does_not_matter(size: float, columns: int) -> None:
    x = np.random.default_rng(4).normal(0, 0.05, (8, columns)).astype(np.float32)
    x[0] = 0
    h = moments(columns)
    for make in (Factor.of, lambda m: np.diagonal(m).copy()):
        one, other = (
            quantize(x, Type.Q4, 32, make(h * s)) for s in (1, 2.0 ** round(np.log2(size)))
        )
        assert np.array_equal(one[0], other[0])
        assert not one[1][0].any()


# What is recorded


class Watched(Oracle):
    """The NumPy model; keeps the sums of the products of what meets each matrix."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.sums: dict[tuple[Any, ...], Doubles] = {}
        self.counts: dict[tuple[Any, ...], int] = defaultdict(int)

    def _linear(self, key: tuple[Any, ...], x: NDArray[np.float32]) -> NDArray[np.float32]:
        wide = x.astype(np.float64)
        self.sums[key] = self.sums.get(key, 0) + wide.T @ wide
        self.counts[key] += len(x)
        return super()._linear(key, x)


def specs(image: Image) -> list[TensorSpec]:
    """Every matrix of an image."""
    return [
        TensorSpec(ROLES[t.name], None if t.layer == GLOBAL_LAYER else t.layer,
                   Type.F32, 0, t.rows, t.columns)
        for t in image.tensors if t.rows > 1 and ROLES[t.name].part
    ]  # fmt: skip


def recorded(path: Path, tokens: list[int], context: int = 48) -> Calibration:
    image = Image(path)
    parts = tuple(
        np.array(tokens[i : i + context], np.uint32) for i in range(0, len(tokens), context)
    )
    return calibrate(path, specs(image), Tokens("", parts, len(tokens)))


@pytest.mark.parametrize("name", ["qwen2_moe", "mixtral"])
def test_sums_are_those_of_a_second_opinion(tmp_path: Path, name: str) -> None:
    path = pack(ck.GOLDEN / name, tmp_path / "f32", quant="f32", selftest=ck.no_selftest).image
    w = walk(path)
    tokens = ids(w.config["vocabulary"], 290)
    found = recorded(path, tokens)
    vectors = {"router", "shared_router"}
    tensors = {k: v[0] if len(v) == 1 and k[1] not in vectors else v for k, v in w.tensors.items()}
    model = Watched(w.config, w.expert_layers, tensors)
    for at in range(0, len(tokens), 48):
        model.logits(np.array(tokens[at : at + 48]))
    seen = 0
    for (role, layer, expert), inputs in found.inputs.items():
        key = (layer, role) if expert is None else (layer, role, expert)
        (one,) = inputs
        assert one.tokens == model.counts[key]
        assert (one.first, one.rows) == (0, len(tensors[key]))
        largest = np.abs(model.sums[key]).max()
        assert np.allclose(one.sums, model.sums[key], rtol=1e-4, atol=1e-5 * largest), key
        seen += expert is not None
    assert seen > 10
    assert {(k[0], k[1], *k[2:]) for k in model.sums} == {
        (layer, role) if expert is None else (layer, role, expert)
        for role, layer, expert in found.inputs
    }  # fmt: skip


@pytest.mark.parametrize("name", ["deepseek_v2", "jetmoe"])
def test_parts_with_inputs_of_their_own_cover_the_tensor(tmp_path: Path, name: str) -> None:
    """Heads of latent attention, experts of attention."""
    path = pack(ck.GOLDEN / name, tmp_path / "f32", quant="f32", selftest=ck.no_selftest).image
    image = Image(path)
    found = recorded(path, ids(image.vocabulary, 290))
    rows = {(t.name, t.layer): t.rows for t in image.tensors}
    parted = "latent_key" if name == "deepseek_v2" else "expert_query"
    many = 0
    for (role, layer, expert), inputs in found.inputs.items():
        ends = [one.first + one.rows for one in inputs]
        firsts = [one.first for one in inputs]
        assert firsts == sorted(firsts)
        if expert is None and layer is not None and role != "expert_query":
            assert firsts == [0, *ends[:-1]]
            assert ends[-1] == rows[role, layer]
        many += role == parted and len(inputs) > 1
    assert many


def test_squares_are_the_diagonal_and_a_note_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = pack(
        ck.write(tmp_path / "in"), tmp_path / "f32", quant="f32", selftest=ck.no_selftest
    ).image
    whole = recorded(path, ids(40))
    monkeypatch.setattr(module, "PRODUCTS_BYTES_MAX", 8 * 32 * 32 * 2 * 4)
    part = recorded(path, ids(40))
    kinds = {key[0]: inputs[0].pairs for key, inputs in part.inputs.items()}
    assert kinds["query"]
    assert not kinds["expert_down"]
    assert any(
        note.startswith("expert_down: calibrated by column weights alone") for note in part.notes
    )
    for key, inputs in part.inputs.items():
        for one, other in zip(inputs, whole.inputs[key], strict=True):
            expected = other.sums if one.pairs else np.diagonal(other.sums)
            assert np.allclose(one.sums, expected, rtol=1e-12)
    monkeypatch.setattr(module, "PRODUCTS_COLUMNS_MAX", 31)
    assert not any(i.pairs for inputs in recorded(path, ids(40)).inputs.values() for i in inputs)


def test_an_expert_with_few_tokens_leans_on_its_layer() -> None:
    def inputs(tokens: int, scale: float) -> Inputs:
        return Inputs(0, 4, tokens, np.eye(4) * scale * tokens)

    sums = {
        ("expert_gate", 0, 0): [inputs(1, 100.0)],
        ("expert_gate", 0, 1): [inputs(12799, 1.0)],
        ("expert_down", 0, 0): [inputs(1, 100.0)],
    }
    found = Calibration(Tokens("", (), 0), sums, ())
    few, many, alone = (
        found.blocks(role, 0, expert)[0].importance
        for role, expert in (("expert_gate", 0), ("expert_gate", 1), ("expert_down", 0))
    )
    assert isinstance(few, Factor)
    assert isinstance(many, Factor)
    assert isinstance(alone, Factor)
    average = (100 + 12799) / 12800
    assert few.weights == pytest.approx((100 + 128 * average) / 129 * 1.01)
    assert many.weights == pytest.approx(1.01, rel=1e-3)
    assert alone.weights == pytest.approx(101)
    assert found.blocks("expert_gate", 0, 2) == []


def test_inputs_that_were_all_zero_say_nothing() -> None:
    assert Block(Inputs(0, 4, 9, np.zeros((4, 4))), None).importance is None


# The packer


def test_the_image_does_not_depend_on_jobs(tmp_path: Path) -> None:
    source = ck.write(tmp_path / "in")
    text = ids_file(tmp_path, 40)
    images = [
        pack(source, tmp_path / f"out{jobs}", quant="q4", calibration_text=text, jobs=jobs).image
        for jobs in (1, 3, 1)
    ]  # fmt: skip
    data = [image.read_bytes() for image in images]
    assert data[0] == data[1] == data[2]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ids.json", "in", "out1", "out3"]
    plain = pack(source, tmp_path / "plain", quant="q4").image
    w, p = walk(images[0]), walk(plain)
    changed = {k[1] for k in w.tensors if not np.array_equal(w.tensors[k], p.tensors[k])}
    assert {"query", "expert_down", "shared_up", "output"} <= changed
    assert not changed & {"embedding", "router", "attention_norm"}
    notes = Image(images[0]).notes["calibration"]
    assert notes["tokens"] == 600
    assert len(notes["text_sha256"]) == 64
    assert "calibration" not in Image(plain).notes


def test_the_order_of_the_weights_changes_none_of_them(tmp_path: Path) -> None:
    source, text = ck.write(tmp_path / "in"), ids_file(tmp_path, 40)
    rows, tiles = (
        pack(source, tmp_path / order.name, quant="q4", calibration_text=text, order=order,
             selftest=ck.no_selftest).image
        for order in (Order.ROWS, Order.TILES)
    )  # fmt: skip
    one, other = walk(rows).tensors, walk(tiles).tensors
    assert rows.read_bytes() != tiles.read_bytes()
    assert all(np.array_equal(one[key], other[key]) for key in one)


def test_experts_that_met_nothing_are_noted_and_packed_plainly(tmp_path: Path) -> None:
    source = ck.write(tmp_path / "in")
    text = tmp_path / "ids.json"
    text.write_text(json.dumps([5] * 300))
    packed = pack(source, tmp_path / "out", quant="q4", calibration_text=text)
    assert any("met no calibration token" in note for note in packed.notes)


def test_a_text_goes_through_the_tokenizer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("A hummingbird is a small bird that can hover. " * 60)
    out = tmp_path / "out"
    words = ["pack", str(ck.DEMO), "-o", str(out), "--calibrate", str(text), "--json"]
    assert cli.main(words) == 0
    capsys.readouterr()
    assert cli.main(["inspect", str(out)]) == 0
    assert "calibration: text_sha256" in capsys.readouterr().out


def test_a_long_text_is_read_in_windows_from_everywhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "TOKENS_MAX", 1024)
    file = tmp_path / "ids.json"
    file.write_text(json.dumps([*range(4096)]))
    settings = type("Settings", (), {"vocabulary": 4096, "context": 256})
    tokens = module.read_tokens(file, None, settings)  # type: ignore[arg-type]
    assert (tokens.count, tokens.given) == (1024, 4096)
    assert [int(window[0]) for window in tokens.windows] == [0, 1024, 2048, 3072]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff\xfe text", "the checkpoint has no tokenizer"),
        ("[1, 2", "is not JSON"),
        ('{"a": 1}', "is not a list of token ids"),
        ("[1, true]", "is not a list of token ids"),
        (json.dumps([1] * 255), "has 255 tokens"),
        (json.dumps([1] * 300 + [40]), "token 300 is 40"),
        (json.dumps([-1] * 300), "token 0 is -1"),
        (None, "does not exist"),
    ],
)
def test_bad_texts_are_refused(tmp_path: Path, content: Any, words: str) -> None:
    source = ck.write(tmp_path / "in")
    file = tmp_path / ("text.txt" if isinstance(content, bytes) else "ids.json")
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(PackError, match=words):
        pack(source, tmp_path / "out", quant="q4", calibration_text=file)
    assert not (tmp_path / "out").exists()


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_bytes(b"good \xff bad")
    with pytest.raises(PackError, match="is not UTF-8 at byte 5"):
        pack(ck.DEMO, tmp_path / "out", quant="q4", calibration_text=file)


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    with file.open("wb") as stream:
        stream.truncate(module.FILE_BYTES_MAX + 1)
    with pytest.raises(PackError, match="is too long"):
        pack(ck.DEMO, tmp_path / "out", quant="q4", calibration_text=file)


@pytest.mark.parametrize("quant", ["f32", "f16", "bf16"])
def test_floats_have_nothing_to_calibrate(tmp_path: Path, quant: str) -> None:
    source = ck.write(tmp_path / "in")
    with pytest.raises(PackError, match="there is nothing to calibrate"):
        pack(source, tmp_path / "out", quant=quant, calibration_text=ids_file(tmp_path, 40))


def test_the_text_is_no_target(tmp_path: Path) -> None:
    text = ids_file(tmp_path, 40)
    with pytest.raises(ColibriError, match="is an input of this pack"):
        pack(ck.write(tmp_path / "in"), text, quant="q4", calibration_text=text)
