# SPDX-License-Identifier: Apache-2.0
"""Damaged inputs, each tried in a process that may neither hang nor take much memory."""

from __future__ import annotations

import multiprocessing
import random
import resource
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

VALUES = [0, 1, 0x0A, 0x20, 0x28, 0x2F, 0x30, 0x39, 0x3A, 0x7F, 0x80, 0xFE, 0xFF]
DEADLINE, MEMORY = 60, 1 << 30
Try = Callable[[bytes], bool]


def damaged(whole: bytes, seed: int, times: int) -> Iterator[bytes]:
    """Cut short, changed bytes, a part left out, a part twice."""
    rng = random.Random(seed)
    for _ in range(times):
        kind, at = rng.randrange(4), rng.randrange(len(whole))
        length = rng.randrange(1, 40)
        if kind == 0:
            yield whole[:at]
        elif kind == 1:
            mutant = bytearray(whole)
            for _ in range(rng.randint(1, 6)):
                mutant[rng.randrange(len(whole))] = rng.choice([*VALUES, rng.randrange(256)])
            yield bytes(mutant)
        elif kind == 2:
            yield whole[:at] + whole[at + length :]
        else:
            yield whole[: at + length] + whole[at:]


def attacked(accepts: Try, mutants: list[bytes], keep: Path, deadline: float = DEADLINE) -> int:
    """How many of the mutants are accepted rather than refused.

    Anything else fails: another exception, more than `MEMORY` bytes beside what the process
    has, no answer within `deadline` seconds. The mutant is kept in `keep` then.
    """
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(
        target=_tried, args=(there, accepts, mutants), daemon=True
    )
    child.start()
    accepted = 0
    for number, mutant in enumerate(mutants):
        answer: bool | str = "no answer in time"
        if here.poll(deadline):
            try:
                answer = here.recv()
            except EOFError:
                answer = "the process is gone"
        if not isinstance(answer, bool):
            child.kill()
            keep.write_bytes(mutant)
            pytest.fail(f"mutant {number}, kept in {keep}: {answer}")
        accepted += answer
    child.join(DEADLINE)
    return accepted


def _tried(answers: Connection, accepts: Try, mutants: list[bytes]) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    for mutant in mutants:
        try:
            answers.send(accepts(mutant))
        except BaseException:
            answers.send(traceback.format_exc())
            return
