# SPDX-License-Identifier: Apache-2.0
"""Classes of more than text: the text part becomes the image that it would become alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import checkpoints as ck
from colibri.descriptors import families, wrappers
from colibri.errors import CheckpointError
from colibri.pack import pack
from colibri.sources import open_source
from colibri.unsupported import unsupported
from family_runs import tensors_of

#: Class, golden of its text part, prefixes as the class saves them, tensors around the text part.
CASES = {
    "gemma4": ("Gemma4ForConditionalGeneration", "gemma4_text", "model.language_model.", "", (
        "model.vision_tower.patch_embedder.input_proj.weight", "model.vision_tower.std_bias",
        "model.embed_vision.embedding_projection.weight",
        "model.audio_tower.layers.0.norm_out.weight",
        "model.embed_audio.embedding_projection.weight")),
    "llama4": ("Llama4ForConditionalGeneration", "llama4_text", "language_model.model.",
               "language_model.", (
        "vision_model.class_embedding", "vision_model.model.layers.0.self_attn.q_proj.weight",
        "multi_modal_projector.linear_1.weight")),
    "qwen3_5_moe": ("Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe_text",
                    "model.language_model.", "", (
        "model.visual.patch_embed.proj.weight", "model.visual.merger.norm.bias",
        "mtp.layers.0.mlp.gate.weight")),
}  # fmt: skip
OUTER, INNER, BOTH = ["outer"], ["inner"], ["outer", "inner"]


@pytest.fixture(autouse=True)
def _no_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images without notes: with them goes what tells two sources apart."""
    monkeypatch.setattr("colibri.pack._notes_section", lambda *_: b"{}")


def wrapped(
    folder: Path, case: str, *, tied: bool | None = None, levels: list[str] = INNER,
    head: bool | None = None, outer: dict[str, Any] = {}, inner: dict[str, Any] = {},  # noqa: B006
    more: tuple[str, ...] = (),
) -> Path:  # fmt: skip
    """A golden checkpoint inside its class; `tied` is said on `levels`, `head`: with an output."""
    name, golden, prefix, head_prefix, towers = CASES[case]
    source = ck.GOLDEN / golden
    text = json.loads((source / "config.json").read_text())
    del text["architectures"]
    tensors = tensors_of(source)
    if head is not None:
        output = tensors.pop("lm_head.weight", tensors["model.embed_tokens.weight"])
        tensors |= {"lm_head.weight": output} if head else {}
    config: dict[str, Any] = {"architectures": [name], "model_type": case}
    if tied is not None:
        del text["tie_word_embeddings"]
        config |= {"tie_word_embeddings": tied} if "outer" in levels else {}
        text |= {"tie_word_embeddings": tied} if "inner" in levels else {}
    config |= {"text_config": {**text, **inner}, "vision_config": {"hidden_size": 8}, **outer}
    renamed = {_inside(n, prefix, head_prefix): t for n, t in tensors.items()}
    around = dict.fromkeys((*towers, *more), np.ones((2, 3), np.float32))
    return ck.write(folder, config, renamed | around)


def _inside(name: str, prefix: str, head_prefix: str) -> str:
    if name.startswith("model."):
        return prefix + name.removeprefix("model.")
    return head_prefix + name


def alone(folder: Path, case: str, tied: bool) -> Path:
    """The same text model by itself: tied, or with an output of its own."""
    source = ck.GOLDEN / CASES[case][1]
    tensors = tensors_of(source)
    output = tensors.pop("lm_head.weight", tensors["model.embed_tokens.weight"])
    config = json.loads((source / "config.json").read_text())
    extra = {} if tied else {"lm_head.weight": output}
    return ck.write(folder, config, tensors | extra, tie_word_embeddings=tied)


def image(source: Path, target: Path) -> bytes:
    pack(source, target, quant="f32", selftest=ck.no_selftest)
    return target.read_bytes()


def refused(text: str) -> Any:
    return pytest.raises(CheckpointError, match=text)


@pytest.mark.parametrize("case", CASES)
def test_the_image_is_that_of_the_text_part(tmp_path: Path, case: str) -> None:
    name, golden, *_, towers = CASES[case]
    source = wrapped(tmp_path / "w", case)
    assert image(source, tmp_path / "a") == image(ck.GOLDEN / golden, tmp_path / "b")
    (note,) = [note for note in open_source(source).notes if name in note]
    assert "the text part; tensors left out: " in note
    counts = [int(part.split()[0]) for part in note.partition("left out: ")[2].split(", ")]
    assert sum(counts) == len([t for t in towers if not t.startswith("mtp.")])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("levels", [OUTER, INNER, BOTH], ids="+".join)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("head", [True, False])
def test_tied_or_not_on_either_level(
    tmp_path: Path, case: str, levels: list[str], tied: bool, head: bool
) -> None:
    source = wrapped(tmp_path / "w", case, tied=tied, levels=levels, head=head)
    if not tied and not head:
        with refused(r"missing: lm_head\.weight.*tie_word_embeddings"):
            image(source, tmp_path / "a")
        return
    expected = image(alone(tmp_path / "b", case, tied), tmp_path / "b.image")
    assert image(source, tmp_path / "a") == expected


def test_levels_that_disagree_are_refused(tmp_path: Path) -> None:
    source = wrapped(tmp_path / "w", "llama4", outer={"tie_word_embeddings": True})
    with refused("tie_word_embeddings: is True, but text_config.tie_word_embeddings is False"):
        open_source(source)


@pytest.mark.parametrize("level", ["outer", "inner"])
def test_quantised_weights_are_seen_on_either_level(tmp_path: Path, level: str) -> None:
    table: dict[str, Any] = {level: {"quantization_config": {"quant_method": "gptq"}}}
    with refused("quantised with GPTQ"):
        image(wrapped(tmp_path / "w", "gemma4", **table), tmp_path / "a")


def test_stop_ids_of_both_levels(tmp_path: Path) -> None:
    source = wrapped(
        tmp_path / "w", "gemma4", outer={"eos_token_id": [1, 106]}, inner={"eos_token_id": 2}
    )
    assert open_source(source).stop_ids(320) == [1, 2, 106]
    source = wrapped(
        tmp_path / "v", "gemma4", outer={"eos_token_id": 7}, inner={"eos_token_id": None}
    )
    assert open_source(source).stop_ids(320) == [7]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", [
    "model.talker.weight", "model.visual2.weight",
    "model.language_model.layers.0.self_attn.q_proj.bias",
])  # fmt: skip
def test_tensors_outside_the_towers_are_refused(tmp_path: Path, case: str, name: str) -> None:
    with refused(f"no use for: {name}"):
        image(wrapped(tmp_path / "w", case, more=(name,)), tmp_path / "a")


def test_towers_of_another_class_are_refused(tmp_path: Path) -> None:
    with refused("no use for: multi_modal_projector.linear_1.weight"):
        image(wrapped(tmp_path / "w", "gemma4", more=("multi_modal_projector.linear_1.weight",)),
              tmp_path / "a")  # fmt: skip


def test_files_of_the_towers_may_be_missing(tmp_path: Path) -> None:
    """Who wants the text alone need not fetch the rest."""
    source = wrapped(tmp_path / "w", "qwen3_5_moe")
    tensors = tensors_of(source)
    towers = [name for name in tensors if ".visual." in name]
    weight_map = ck.write_sharded(
        source, tensors, [[n for n in tensors if n not in towers], towers]
    )
    (source / weight_map[towers[0]]).unlink()
    expected = image(ck.GOLDEN / "qwen3_5_moe_text", tmp_path / "b")
    assert image(source, tmp_path / "a") == expected


@pytest.mark.parametrize(("value", "words"), [(None, "is missing"), ([], "must be an object")])
def test_a_class_without_its_text_config(tmp_path: Path, value: Any, words: str) -> None:
    source = wrapped(tmp_path / "w", "llama4", outer={"text_config": value})
    with refused(f"config.json: text_config: {words}"):
        open_source(source)


def test_the_lists_agree() -> None:
    assert {case[0] for case in CASES.values()} == set(wrappers())
    assert not set(wrappers()) & (set(unsupported()) | set(families()))
