# SPDX-License-Identifier: Apache-2.0
"""Other sizes of the same families, other seeds: a user's checkpoint is not the golden one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import colibri
import variants
from colibri._core import EVENTS
from colibri.errors import CheckpointError
from colibri.families import describe
from colibri.pack import pack

LIMIT = 1e-4  # of the largest logit
WEIGHT_LIMIT = 1e-4
#: Options that the runtime has no part for, and the key by which the packer refuses them.
REFUSED = {
    ("deepseek_v2", "bias"): "attention_bias",
    ("deepseek_v3", "bias"): "attention_bias",
    ("ernie4_5_moe", "bias_untied"): "use_bias",
    ("glm4_moe_lite", "bias"): "attention_bias",
    ("granitemoehybrid", "proj_bias"): "mamba_proj_bias",
    ("lfm2_moe", "conv_bias"): "conv_bias",
    ("llama", "mlp_bias"): "mlp_bias",
    ("longcat_flash", "bias"): "attention_bias",
}

FILES = sorted(path.stem for path in variants.FOLDER.glob("*.json"))
CASES = [
    (family, name) for family in FILES for name in variants.load(family)
    if (family, name) not in REFUSED
]  # fmt: skip
CLASS_DEFAULTS: dict[str, dict[str, Any]] = json.loads(variants.DEFAULTS.read_text())


class Run:
    """Logits of every token, and each router's choices, by the runtime."""

    def __init__(self, image: Path, tokens: int) -> None:
        self.engine = colibri.Engine(image, context=tokens, trace=True)

    def infer(self, ids: NDArray[Any]) -> NDArray[np.float32]:
        return self.engine.infer(ids.tolist(), all_logits=True)

    def routes(self) -> list[dict[int, dict[int, float]]]:
        """Per router, in the order in which they run: token -> expert -> weight."""
        found: dict[int, dict[int, dict[int, float]]] = {}
        base, count = 0, 0
        for event in self.engine.take_trace():
            if event["kind"] == EVENTS["step"]:
                base, count = base + count, int(event["count"])
            if event["kind"] == EVENTS["route"]:
                router = found.setdefault(int(event["layer"]), {})
                weight = np.uint32(event["bytes"]).view(np.float32)
                chosen = router.setdefault(base + (int(event["count"]) & 0xFFFF), {})
                chosen[int(event["index"])] = float(weight)
        return list(found.values())


def _check_routes(
    routes: list[dict[int, dict[int, float]]], experts: NDArray[Any], weights: NDArray[Any]
) -> None:
    assert len(routes) == len(experts)
    for router, chosen in enumerate(routes):
        for token in range(experts.shape[1]):
            pair = experts[router, token].tolist(), weights[router, token].tolist()
            expected = dict(zip(*pair, strict=True))
            assert chosen[token].keys() == expected.keys(), f"router {router}, token {token}"
            for expert, weight in expected.items():
                assert chosen[token][expert] == pytest.approx(weight, rel=WEIGHT_LIMIT, abs=1e-6), (
                    f"router {router}, token {token}, expert {expert}"
                )


@pytest.mark.parametrize(("family", "name"), CASES, ids=[f"{f}-{n}" for f, n in CASES])
def test_variant(tmp_path: Path, family: str, name: str) -> None:
    """Logits, every router's experts and weights, and greedy tokens are the reference's."""
    variant, reference = variants.load(family)[name], variants.reference(family, name)
    image = tmp_path / "variant.colibri"
    pack(variants.checkpoint(tmp_path / "checkpoint", variant), image, quant="f32")
    for row, ids in enumerate(reference["input_ids"]):
        run = Run(image, ids.size + reference["greedy"].shape[1])
        logits = run.infer(ids)
        _check_routes(run.routes(), reference["experts"][:, row], reference["weights"][:, row])
        expected = reference["logits"][row]
        error = np.abs(logits[variant["positions"]] - expected).max() / np.abs(expected).max()
        assert error < LIMIT
        for token in reference["greedy"][row]:
            assert int(logits[-1].argmax()) == token
            logits = run.infer(np.asarray([token]))


@pytest.mark.parametrize(("family", "name"), REFUSED, ids=[f"{f}-{n}" for f, n in REFUSED])
def test_refused(tmp_path: Path, family: str, name: str) -> None:
    """What the runtime cannot compute is refused by the name of the key, and nothing is written."""
    source = variants.checkpoint(tmp_path / "checkpoint", variants.load(family)[name])
    with pytest.raises(CheckpointError) as caught:
        pack(source, tmp_path / "variant.colibri", quant="f32")
    assert caught.value.field == REFUSED[family, name]
    assert caught.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


@pytest.mark.parametrize("family", CLASS_DEFAULTS)
def test_class_defaults(monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    """A config that says nothing means what its class says in transformers."""
    monkeypatch.setattr("colibri.families._wanted", lambda *_: ())  # names of large models' tensors
    case = CLASS_DEFAULTS[family]
    named = {"architectures": case["architectures"]}
    brief = describe({**named, **case["needed"]}, Path("config.json"))
    full = describe({**case["config"], **named}, Path("config.json"))
    assert brief.settings == full.settings
    assert brief.layers == full.layers
    assert brief.notes == full.notes
    assert brief.ropes.keys() == full.ropes.keys()
    for rope in brief.ropes:
        assert np.array_equal(brief.ropes[rope], full.ropes[rope])


def test_names_fold_and_unfold() -> None:
    """Ranges in names stand for what they were made of."""
    names = [f"a.{i}.b.{j}.c" for i in range(3) for j in range(12)] + ["a.1.d", "a.7.d", "e"]
    entries: dict[str, Any] = {name: [[len(name), 2], 0.0, 1.0] for name in names}
    folded = variants.fold(entries)
    assert variants.expand(folded) == entries
    assert len(folded) < 8
