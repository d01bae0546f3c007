# SPDX-License-Identifier: Apache-2.0
"""The pools of ports/posix and ports/baremetal (tests/c/pool.c), with ThreadSanitizer watching."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import checkpoints as ck
from colibri import Engine, Image, _core
from colibri.pack import pack
from native import SANITIZERS, program

THREADS = "thread"
WORKERS = (1, 2, 3, 4, 7, 8)  # as in pool.c
TOKENS = tuple(i * 7919 + 1 for i in range(12))


@pytest.mark.parametrize("sanitize", ["", THREADS, SANITIZERS])
@pytest.mark.parametrize("what", ["items", "options"])
def test_every_item_is_done_once(what: str, sanitize: str) -> None:
    assert program("pool", what, sanitize=sanitize) == "ok\n"


def test_threads_have_the_environment_of_their_creator() -> None:
    assert program("pool", "environment") == "ok\n"


def test_an_idle_pool_sleeps() -> None:
    """CPU time in ms of a second without work, which a thread that looks would fill."""
    assert float(program("pool", "idle")) < 50


@pytest.mark.parametrize("sanitize", ["", THREADS])
def test_logits_do_not_depend_on_pool_or_workers(sanitize: str, tmp_path: Path) -> None:
    path = tmp_path / "small.colibri"
    pack(ck.write(tmp_path / "in", mlp_only_layers=[0], num_hidden_layers=3), path, quant="q4")
    found = program("pool", "infer", path, sanitize=sanitize).split()
    assert len(found) == len(_core.kernels()) * 3 * len(WORKERS)
    assert len(set(found)) == 1


@pytest.mark.long
def test_the_demo_model_under_thread_sanitizer(demo_image: Callable[[str], Path]) -> None:
    found = program("pool", "infer", demo_image("q4"), sanitize=THREADS).split()
    assert set(found) == {_crc(Engine(Image(demo_image("q4")), context=24))}


def _crc(engine: Engine) -> str:
    """What infer() of pool.c computes."""
    tokens = [token % engine.vocabulary for token in TOKENS]
    rows = [engine.infer(tokens[:8]), *(engine.infer([token]) for token in tokens[8:])]
    crc = 0
    for row in rows:
        crc = _core.crc32(row.tobytes(), crc)
    return f"{crc:08x}"
