# SPDX-License-Identifier: Apache-2.0
"""What the tests of the packer share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import checkpoints as ck
import colibri
from colibri.errors import CheckpointError, ColibriError, PackError
from colibri.pack import pack
from image_reader import Walked, walk
from oracle import Oracle

QUANTS = ("f32", "f16", "bf16", "q8", "q4")


def make(source: Path, tmp_path: Path, name: str = "out.colibri", **options: Any) -> Path:
    options.setdefault("selftest", ck.no_selftest)
    return pack(source, tmp_path / name, **options).image


def oracle(w: Walked, *, activations: bool = False) -> Oracle:
    vectors = {"router", "shared_router"}
    tensors = {k: v[0] if len(v) == 1 and k[1] not in vectors else v for k, v in w.tensors.items()}
    return Oracle(w.config, w.expert_layers, tensors, w.groups if activations else None)


def refuse(tmp_path: Path, source: Path, *texts: str, **options: Any) -> ColibriError:
    """Packing must fail with these texts, leave no file and touch no older image."""
    out = tmp_path / "out"
    out.mkdir(exist_ok=True)
    target = out / "model.colibri"
    target.write_bytes(b"older")
    options.setdefault("selftest", ck.no_selftest)
    with pytest.raises((CheckpointError, PackError)) as caught:
        pack(source, target, **options)
    assert caught.value.exit_code == 2
    for text in texts:
        assert text in str(caught.value), str(caught.value)
    assert [p.name for p in out.iterdir()] == ["model.colibri"]
    assert target.read_bytes() == b"older"
    return caught.value


def recipe(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    return path


def both(path: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Logits of a golden sequence by the runtime, and by this folder's reader and NumPy."""
    image = colibri.Image(path)
    image.verify()
    ids = np.load(ck.GOLDEN / name / "reference.npz")["input_ids"][0]
    ours = colibri.Engine(image, context=64).infer(ids, all_logits=True)
    return ours, oracle(walk(path), activations=True).logits(ids)
