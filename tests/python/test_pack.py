# SPDX-License-Identifier: Apache-2.0
"""The packer: images that a second reader accepts and the runtime computes alike."""

from __future__ import annotations

import json
import math
import re
import zlib
from pathlib import Path

import numpy as np
import pytest

import checkpoints as ck
import colibri
from colibri.pack import pack
from image_reader import walk
from oracle import perplexity
from packing import QUANTS, both, make, oracle


@pytest.mark.parametrize("name", ["qwen2_moe", "mixtral"])
def test_golden_checkpoints_compute_what_the_reference_does(tmp_path: Path, name: str) -> None:
    w = walk(make(ck.GOLDEN / name, tmp_path, quant="f32"))
    reference = np.load(ck.GOLDEN / name / "reference.npz")
    modules = sorted(key[8:] for key in reference if key.startswith("experts/"))
    model = oracle(w)
    for row, ids in enumerate(reference["input_ids"]):
        logits, expected = model.logits(ids), reference["logits"][row]
        assert np.abs(logits - expected).max() < 1e-5 * np.abs(expected).max()
        for layer, module in enumerate(modules):
            trace = model.trace
            assert np.array_equal(trace.experts[layer], reference[f"experts/{module}"][row])
            assert np.allclose(trace.weights[layer], reference[f"weights/{module}"][row], rtol=1e-5)
        states = reference["hidden_states"][:, row]
        assert np.allclose(model.trace.states, states, atol=1e-5 * np.abs(states).max())


@pytest.mark.parametrize("quant", QUANTS)
@pytest.mark.parametrize("group", [32, 64, 128])
def test_a_second_reader_accepts_every_type(tmp_path: Path, quant: str, group: int) -> None:
    source = ck.write(tmp_path / "in")
    w = walk(make(source, tmp_path, quant=quant, group=group))
    expected = {"embedding": "q8", "output": "q8"} if quant == "q4" else {}
    free = re.compile("embedding|output|query|key|value|attention_out|.*_(gate|up|down)")
    for role, kind in w.types.items():
        assert kind == (expected.get(role, quant) if free.fullmatch(role) else "f32"), role
    assert {g for g in w.groups.values() if g} == ({group} if quant in ("q8", "q4") else set())
    tensors = ck.random_tensors(ck.CONFIG)
    limit = {"f32": 0, "f16": 3e-4, "bf16": 2e-3, "q8": 3e-3, "q4": 0.05}[quant]
    assert (
        np.abs(
            w.tensors[1, "expert_up", 3] - tensors["model.layers.1.mlp.experts.3.up_proj.weight"]
        ).max()
        <= limit
    )
    assert np.abs(w.tensors[None, "output"] - tensors["lm_head.weight"]).max() <= limit
    assert np.array_equal(w.tensors[0, "router"], tensors["model.layers.0.mlp.gate.weight"])
    assert w.stop == [3]
    assert w.selftest == ck.SELFTEST
    assert w.tokenizer is None


@pytest.mark.parametrize("quant", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("name", ["qwen2_moe", "mixtral"])
def test_the_runtime_agrees_with_the_second_opinion(tmp_path: Path, name: str, quant: str) -> None:
    logits, expected = both(make(ck.GOLDEN / name, tmp_path, quant=quant), name)
    assert np.abs(logits - expected).max() < 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("quant", QUANTS)
def test_golden_checksums_are_the_runtimes(tmp_path: Path, quant: str) -> None:
    path = pack(ck.GOLDEN / "qwen2_moe", tmp_path / "image", quant=quant).image
    image, w = colibri.Image(path), walk(path)
    for kv, crc in zip(("f32", "f16", "q8"), w.selftest, strict=True):
        engine = colibri.Engine(image, context=8, kv=kv)
        engine.selftest()
        rows = engine.infer(w.tokens, all_logits=True)
        assert zlib.crc32(rows.astype("<f4").tobytes()) == crc


@pytest.mark.long
def test_perplexity_of_quantised_weights(tmp_path: Path) -> None:
    """The promise of docs/quantisation.md, by the second opinion, on the whole held-out text."""
    tokenizer = colibri.Tokenizer((ck.DEMO / "tokenizer.json").read_bytes())
    texts = [
        np.array(tokenizer.encode(file.read_bytes().decode()))
        for file in sorted((ck.DEMO / "reference").glob("valid_*.txt"))
    ]
    found = {}
    for quant in ("f32", "q8", "q4"):
        w = walk(make(ck.DEMO, tmp_path, quant=quant))
        found[quant] = perplexity(oracle(w, activations=True).logits, texts)
    text = ck.DEMO / "reference" / "calibration.txt"
    w = walk(make(ck.DEMO, tmp_path, quant="q4", calibration_text=text))
    found["calibrated"] = perplexity(oracle(w, activations=True).logits, texts)
    reference = json.loads((ck.DEMO / "reference" / "perplexity.json").read_text())["domains"]
    sums = [sum(d[k] for d in reference.values()) for k in ("nll_sum", "predicted_tokens")]
    assert found["f32"] == pytest.approx(math.exp(sums[0] / sums[1]), rel=1e-5)
    assert found["q8"] < found["f32"] * 1.001
    assert found["q4"] < found["f32"] * 1.025
    assert found["calibrated"] < found["f32"] * 1.012
