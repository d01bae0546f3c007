# SPDX-License-Identifier: Apache-2.0
"""Small C parts of the CPU engines, compiled for this host on first use and kept in the cache."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

from colibri.errors import EmulateError
from colibri_emulator.cache import cached, digest

_HERE = Path(__file__).resolve().parent
# A QEMU plugin finds the functions of QEMU when it is loaded.
_FLAGS = ("-O2", "-shared", "-fPIC", "-Wall", "-Wextra")
_LATE = ("-Wl,--unresolved-symbols=ignore-all",)


def native_library(name: str) -> Path:
    """The shared library of ``native/<name>.c``."""
    source = _HERE / f"{name}.c"
    compilers = [[path] for word in ("cc", "gcc", "clang") if (path := shutil.which(word))]
    compilers.append([sys.executable, "-m", "ziglang", "cc"])
    key = digest([source.read_bytes(), platform.machine(), sys.platform, *_FLAGS])

    def make(output: Path) -> None:
        errors = ""
        for compiler in compilers:
            late = _LATE if "ziglang" not in compiler else ("-Wl,-z,lazy", "-Wl,-z,undefs")
            command = [*compiler, *_FLAGS, *late, str(source), "-o", str(output)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return
            errors = done.stderr.strip()
        raise EmulateError(
            f"no compiler for the host could build {source.name}: {errors[:400]}",
            hint='pip install "colibri-sdk[cross]" installs one',
        )

    return cached(f"native/{name}-{key}.so", make)
