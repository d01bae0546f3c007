# SPDX-License-Identifier: Apache-2.0
"""What a check needs that a machine may lack.

    need("qemu-system-arm")            a program
    need("module:unicorn")             a Python package
    need("direct:/tmp/file")           reads of that file past the system's cache
    need("file:/usr/share/x")          a file that a package brings

A missing one skips the check and is listed at the end of the run; with COLIBRI_REQUIRE_ALL=1 it
fails it, so that CI leaves nothing out but what cannot be installed: a file system's direct reads.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

import pytest

NOT_TO_INSTALL = "direct:"
REQUIRE_ALL = os.environ.get("COLIBRI_REQUIRE_ALL", "") not in ("", "0")


def have(tool: str) -> bool:
    """Whether a program, ``module:`` or ``file:`` is there, or its file system has ``direct:``."""
    kind, _, what = tool.partition(":")
    if kind == "module":
        return importlib.util.find_spec(what) is not None
    if kind == "file":
        return Path(what).is_file()
    if kind == "direct":
        return _opens_directly(what)
    return shutil.which(tool) is not None


def _opens_directly(file: str) -> bool:
    try:
        os.close(os.open(file, os.O_RDONLY | os.O_DIRECT))
    except (AttributeError, OSError):  # no such flag on this system; not on this file system
        return False
    return True


def need(*tools: str) -> None:
    """Skips the calling check, or fails it, when one of the tools is missing."""
    missing = [tool for tool in tools if not have(tool)]
    if not missing:
        return
    reason = f"needs {', '.join(missing)}"
    if REQUIRE_ALL and not missing[0].startswith(NOT_TO_INSTALL):
        pytest.fail(f"{reason}, and COLIBRI_REQUIRE_ALL=1 lets no check be left out")
    pytest.skip(reason)
