# SPDX-License-Identifier: Apache-2.0
"""Every family computes what its authors' code does, and the list of families says what is so."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import checkpoints as ck
from colibri.cli import main
from colibri.descriptors import families
from colibri.errors import CheckpointError
from colibri.families import describe
from colibri.family_parts import parts_of
from colibri.pack import pack
from colibri.unsupported import unsupported
from family_runs import Choices, distance, greedy, packed, run, tensors_of
from image_reader import walk

FAR = 1e-5  # of the largest logit; the promise is 1e-4
# The gated delta rule feeds float32 rounding back into its state, token by token.
FARTHER = {"qwen3_5_moe_text": 3e-5}
GOLDENS = sorted(path.parent.name for path in ck.GOLDEN.glob("*/reference.npz"))


def config_of(golden: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ck.GOLDEN / golden / "config.json").read_text())
    return found


def routers(reference: Any) -> list[str]:
    """Names of the reference's routers in the trace's order: those of attention come last."""
    names = [n.removeprefix("experts/") for n in reference.files if n.startswith("experts/")]

    def place(name: str) -> tuple[bool, int]:
        number = re.search(r"\.(\d+)\.", name)
        assert number is not None
        return "attention" in name, int(number[1])

    return sorted(names, key=place)


def check_routes(found: Choices, experts: Any, weights: Any) -> None:
    assert sorted(found) == list(range(len(experts)))
    for token, chosen in found.items():
        expected = dict(zip(experts[token].tolist(), weights[token].tolist(), strict=True))
        assert chosen == pytest.approx(expected, rel=1e-4, abs=1e-6), f"token {token}"


@pytest.mark.parametrize("name", GOLDENS)
def test_golden(tmp_path: Path, name: str) -> None:
    """Logits, every router's experts and weights, and the greedy tokens of both sequences."""
    image = tmp_path / "golden.colibri"
    pack(ck.GOLDEN / name, image, quant="f32")
    with np.load(ck.GOLDEN / name / "reference.npz") as r:
        names = routers(r)
        for row, ids in enumerate(r["input_ids"]):
            logits, routes = run(image, ids)
            assert distance(logits, r["logits"][row]) < FARTHER.get(name, FAR)
            assert len(routes) == len(names)
            for found, router in zip(routes, names, strict=True):
                check_routes(found, r[f"experts/{router}"][row], r[f"weights/{router}"][row])
            assert greedy(image, ids, r["greedy"].shape[1]) == r["greedy"][row].tolist()


# Descriptors


def test_what_is_said_to_be_tested_is() -> None:
    """`tested` in a descriptor means that the files are there, and the other way round."""
    variants = [next(iter(json.loads(path.read_text()).values()))["config"]
                for path in (ck.GOLDEN / "variants").glob("*.json")]  # fmt: skip
    there = {"golden": {config_of(name)["architectures"][0] for name in GOLDENS},
             "variants": {config["architectures"][0] for config in variants}}  # fmt: skip
    for family in families().values():
        assert family.tested, family.name
        for kind, classes in there.items():
            has = bool(classes & set(family.architectures))
            assert (kind in family.tested) == has, f"{family.name}: {kind}"


def test_mtp_layers_are_left_out(tmp_path: Path) -> None:
    source = ck.copy_golden("glm4_moe", tmp_path)
    tensors = tensors_of(source)
    more = {n.replace("layers.2.", "layers.3."): t for n, t in tensors.items() if ".2." in n}
    ck.write(source, json.loads((source / "config.json").read_text()), tensors | more)
    with pytest.raises(CheckpointError, match=r"no use for: model.layers.3"):
        packed(source)
    ck.change_config(source, num_nextn_predict_layers=1)
    assert packed(source).exists()


def test_per_layer_lists_must_agree(tmp_path: Path) -> None:
    source = ck.copy_golden("hunyuan_v1_moe", tmp_path)
    expected = packed(source).read_bytes()
    ck.change_config(source, moe_topk=[2, 2, 2], num_experts=[8, 8, 8])
    assert packed(source).read_bytes() == expected
    ck.change_config(source, moe_topk=[2, 2, 3])
    with pytest.raises(CheckpointError, match=r"moe_topk: is .* one per layer, all equal"):
        packed(source)


def test_hunyuan_alpha_stretches_the_base(tmp_path: Path) -> None:
    """A fixed alpha: theta * alpha ** (d / (d - 2))."""
    config = {**config_of("hunyuan_v1_moe"),
              "rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}}  # fmt: skip
    rope = describe(config, tmp_path).ropes["rope"]
    base = 10000.0 * 1000.0 ** (32 / 30)
    assert rope == pytest.approx(base ** -(np.arange(0, 32, 2) / 32), rel=1e-6)


def test_slopes_of_lightning_attention(tmp_path: Path) -> None:
    """The packer computes what the class does, and takes no notice of what a checkpoint has."""
    source = ck.copy_golden("minimax", tmp_path)
    tensors = tensors_of(source)
    image = packed(source).read_bytes()
    found = walk(image).tensors
    for layer in (0, 2):
        theirs = tensors[f"model.layers.{layer}.self_attn.slope_rate"].ravel()
        assert found[layer, "linear_decay"].ravel() == pytest.approx(theirs, rel=2e-7)
        assert found[layer, "attention_residual"].ravel() == pytest.approx([1.2, 0.9])
    assert found[1, "attention_residual"].ravel() == pytest.approx([1.5, 0.8])
    assert found[1, "ffn_residual"].ravel() == pytest.approx([1.3, 0.7])
    kept = {n: t for n, t in tensors.items() if not n.endswith(("_decay", "slope_rate"))}
    ck.write(source, json.loads((source / "config.json").read_text()), kept)
    assert walk(packed(source)).tensors.keys() == found.keys()


def test_settings_of_layers_that_a_model_has_not(tmp_path: Path) -> None:
    """Sizes of linear attention and filters are 0 where no layer has them."""
    config = {**config_of("jamba"), "attn_layer_period": 1, "attn_layer_offset": 0}
    settings = describe(config, tmp_path).settings
    words = ("conv_size", "linear_keys", "linear_values", "linear_key_size", "linear_rank")
    assert not any(getattr(settings, word) for word in words)


# The command and the list of what is refused


def test_families_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["families"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in families())
    assert all(name in out for name in unsupported())
    assert max(map(len, out.splitlines())) <= 100


def test_families_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["families", "--json"]) == 0
    fields = json.loads(capsys.readouterr().out)
    assert next(iter(fields)) == "schema"
    rows = {row["family"]: row for row in fields["families"]}
    assert {c for row in rows.values() for c in row["architectures"]} == set(families())
    parts = rows["AFMoE"]["parts"]
    assert parts["router"] == ["sigmoid", "renormalised", "selection bias", "scaled"]
    assert {"output gate", "window", "query and key norms"} <= set(parts["attention"])
    assert parts["norms"] == ["RMSNorm", "before and after blocks", "multipliers: embedding"]
    assert parts["rope"] == ["halves", "not in every layer"]
    assert rows["OLMoE"]["parts"]["router"] == ["softmax", "renormalised by config"]
    assert rows["Llama"]["parts"] == {"router": [], "ffn": ["SiLU", "dense"],
                                      "attention": ["grouped-query", "biases"],
                                      "norms": ["RMSNorm"], "rope": ["halves"]}  # fmt: skip


def test_parts_of_every_family_are_named() -> None:
    for family in families().values():
        parts = parts_of(family)
        assert all(parts[kind] for kind in ("ffn", "attention", "norms", "rope"))
        assert (family.layer.experts == "False") == (parts["router"] == [])


def test_no_class_is_both_known_and_refused() -> None:
    assert not set(unsupported()) & set(families())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("KimiLinearForCausalLM",
         "KimiLinearForCausalLM needs Kimi delta attention layers, which this version does"),
        ("SwitchTransformersForConditionalGeneration",
         "SwitchTransformersForConditionalGeneration is out of scope: encoder-decoder"),
        ("NewForCausalLM", "NewForCausalLM is not supported; supported are AfmoeForCausalLM, "),
    ],
)  # fmt: skip
def test_refused_classes_say_what_is_missing(tmp_path: Path, name: str, text: str) -> None:
    source = ck.change_config(ck.copy_golden("mixtral", tmp_path), architectures=[name])
    with pytest.raises(CheckpointError) as error:
        packed(source)
    assert text in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["mixtral"]
