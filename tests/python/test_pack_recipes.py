# SPDX-License-Identifier: Apache-2.0
"""The packer: types and groups by role."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import checkpoints as ck
from colibri.image_format import ROLES
from image_reader import walk
from packing import both, make, recipe, refuse


def test_recipes_set_types_by_part_and_role(tmp_path: Path) -> None:
    lines = ['quant = "q8"', "group = 64", "[roles]", 'expert_down = "q8"', 'experts = "q4"']
    text = "\n".join([*lines, 'embedding = "f16"', 'router = "f32"'])
    file = recipe(tmp_path, text)
    source = ck.write(tmp_path / "in")
    w = walk(make(source, tmp_path, recipe=file))
    expected = {
        "expert_down": "q8",
        "expert_up": "q4",
        "embedding": "f16",
        "query": "q8",
        "output": "q8",
    }
    assert expected.items() <= w.types.items()
    assert w.groups[0, "query"] == 64
    assert "recipe.toml" in w.notes["recipe"]["name"]
    w = walk(make(source, tmp_path, recipe=file, quant="bf16", group=32))
    assert w.types["query"] == "bf16"
    assert w.types["expert_up"] == "q4"
    assert w.groups[0, "expert_up", 0] == 32


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "[roles]\nexpert = 'q4'",
            "roles.expert: unknown role; valid are embedding, output, attention",
        ),
        ("[roles]\nexperts = 'q5'", "roles.experts: is 'q5'; valid is f32, f16, bf16, q8, q4"),
        ("[roles]\nexperts = 4", "roles.experts: is 4; valid is f32"),
        ("[roles]\nexperts = ['q4']", "roles.experts: is ['q4']; valid is f32"),
        ("[roles]\nrouter = 'q8'", "roles.router: is q8; this role is always f32"),
        ("quant = 'int4'", "quant: is 'int4'; valid is f32"),
        ("group = 48", "group: is 48; valid is 32, 64, 128"),
        ("group = true", "group: is True; valid is"),
        ("group = '32'", "group: is '32'; valid is"),
        ("groups = 32", "groups: unknown key; valid are quant, group"),
        ("roles = 1", "roles: must be a table"),
        ("[roles", "is not valid TOML"),
    ],
)
def test_wrong_recipes(tmp_path: Path, text: str, expected: str) -> None:
    error = refuse(tmp_path, ck.write(tmp_path / "in"), expected, recipe=recipe(tmp_path, text))
    assert "recipe.toml" in str(error)


def test_a_missing_recipe(tmp_path: Path) -> None:
    refuse(
        tmp_path,
        ck.write(tmp_path / "in"),
        "gone.toml: No such file",
        recipe=tmp_path / "gone.toml",
    )


def test_a_group_that_is_none(tmp_path: Path) -> None:
    refuse(tmp_path, ck.write(tmp_path / "in"), "group: is 16; valid is 32, 64, 128", group=16)


@pytest.mark.parametrize("quant", ["q8", "q4"])
@pytest.mark.parametrize(
    "role", [name for name, r in ROLES.items() if r.part and r.part != "dense"]
)
def test_the_runtime_agrees_on_quantised_roles(tmp_path: Path, role: str, quant: str) -> None:
    """One role at a time: float noise may turn an activation's code, and a chain of them routes."""
    file = recipe(tmp_path, f'quant = "f32"\n[roles]\n{role} = "{quant}"\n')
    logits, expected = both(make(ck.GOLDEN / "qwen2_moe", tmp_path, recipe=file), "qwen2_moe")
    errors = np.abs(logits - expected).max(-1) / np.abs(expected).max()
    assert np.median(errors) < 1e-4
    assert errors.max() < 2e-3
