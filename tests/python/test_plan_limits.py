# SPDX-License-Identifier: Apache-2.0
"""Limits: defaults, ranges and the limit that an error names.  Older callers: tests/c/callers.c."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import checkpoints as ck
from colibri import Engine, Image, PlanError, _core
from colibri.pack import pack
from native import SANITIZERS, program

HUGE = [("m", 0, 2**62, 0)]
LIMIT = 22


@pytest.fixture(scope="module")
def image(demo_image: Callable[[str], Path]) -> Image:
    return Image(demo_image("q4"))


def test_zeros_are_the_defaults(image: Image) -> None:
    limits = _core.plan(image.core, _core.Limits(), HUGE)["limits"]
    assert (limits.sequences, limits.context, limits.batch, limits.workers) == (1, 1024, 16, 1)
    assert (limits.kv, limits.profile, limits.weights) == (
        _core.TYPES["f32"], _core.PROFILES["wide"], _core.WEIGHTS["mapped"])  # fmt: skip


@pytest.mark.parametrize(
    ("name", "where", "bad", "best"),
    [("sequences", 1, 0, 1), ("sequences", 1, 65536, 65535), ("sequences", 1, 2**32 - 1, 65535),
     ("context", 2, 1025, 1024), ("context", 2, 2**32 - 1, 1024), ("batch", 3, 4097, 4096),
     ("batch", 3, 2**31, 4096), ("workers", 4, 65, 64), ("workers", 4, 2**32 - 1, 64),
     ("kv", 5, 3, 1), ("kv", 5, 5, 1), ("kv", 5, 99, 1), ("profile", 6, 3, 2),
     ("weights", 7, 5, 4), ("expert_slots", 8, 1, 0), ("policy", 9, 4, 3)],
)  # fmt: skip
def test_a_limit_out_of_range_is_named(
    image: Image, name: str, where: int, bad: int, best: int
) -> None:
    with pytest.raises(PlanError) as caught:
        _core.plan(image.core, _core.Limits(**{name: bad}), HUGE)
    status = caught.value.status
    assert status is not None
    assert (status.code, status.where, status.have) == (LIMIT, where, bad)
    assert f"'{name}' is {bad}" in str(caught.value)
    if bad != 0:
        assert status.need == best
    assert _core.plan(image.core, _core.Limits(**{name: best}), HUGE)["shortage"] is None


def test_python_refuses_what_is_no_limit(image: Image) -> None:
    wrong: list[dict[str, Any]] = [
        {"context": 0}, {"context": -1}, {"batch": 0}, {"workers": 2**32}, {"sequences": 0},
        {"kv": "q4"}, {"profile": "huge"}, {"weights": "flash"},
    ]  # fmt: skip
    for settings in wrong:
        name, value = next(iter(settings.items()))
        with pytest.raises(PlanError, match=f"(?i){name.removesuffix('s')}.*{value}"):
            Engine(image, **settings)


def test_sizes_grow_with_every_limit(image: Image) -> None:
    base = {"sequences": 2, "context": 64, "batch": 8, "workers": 2}
    sizes = []
    for more in ({}, {"sequences": 3}, {"context": 65}, {"batch": 9}, {"workers": 3}):
        plan = _core.plan(image.core, _core.Limits(**{**base, **more}), HUGE)
        sizes.append(plan["total_bytes"])
    assert all(size > sizes[0] for size in sizes[1:])


@pytest.mark.parametrize("sanitize", ["", SANITIZERS])
def test_c_callers(image: Image, tmp_path: Path, sanitize: str) -> None:
    """Shorter structs of older callers, wrong arguments, misplaced memory, float environment."""
    small = tmp_path / "small.colibri"
    pack(ck.write(tmp_path / "in"), small, quant="q4")
    assert program("callers", small, sanitize=sanitize) == "ok\n"
