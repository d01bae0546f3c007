# SPDX-License-Identifier: Apache-2.0
"""The test programs in tests/c, built when first asked for and run with a time limit."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SANITIZERS = "address,undefined"


@functools.cache
def build(sanitize: str = "") -> Path:
    """Folder of the programs, under build/ so that the next run finds them."""
    folder = ROOT / "build" / "tests_c" / (sanitize.replace(",", "_") or "plain")
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    commands = (
        ["cmake", "-S", str(ROOT / "tests" / "c"), "-B", str(folder), "-DCMAKE_BUILD_TYPE=Release",
         f"-DCOLIBRI_SANITIZE={sanitize}"],
        ["cmake", "--build", str(folder), "--parallel", str(os.cpu_count() or 1)],
    )  # fmt: skip
    for command in commands:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ, "PATH": path}
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


def program(name: str, *arguments: object, sanitize: str = "", seconds: float = 300) -> str:
    """Standard output of a program; the test fails when it does, or when it does not end."""
    command = [str(build(sanitize) / name), *map(str, arguments)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds)
    except subprocess.TimeoutExpired:
        pytest.fail(f"{' '.join(command)} did not end within {seconds} s")
    if done.returncode != 0:
        pytest.fail(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[:4000]}")
    return done.stdout
