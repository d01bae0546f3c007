# SPDX-License-Identifier: Apache-2.0
"""What a check needs that a machine may lack.

    need("qemu-system-arm")            a program
    need("module:unicorn")             a Python package

A missing one skips the check and is listed at the end of the run; with COLIBRI_REQUIRE_ALL=1 it
fails it, so that CI leaves nothing out.
"""

from __future__ import annotations

import importlib.util
import os
import shutil

import pytest

REQUIRE_ALL = os.environ.get("COLIBRI_REQUIRE_ALL", "") not in ("", "0")


def have(tool: str) -> bool:
    """Whether a program or a ``module:`` is there."""
    kind, _, module = tool.partition(":")
    if kind == "module":
        return importlib.util.find_spec(module) is not None
    return shutil.which(tool) is not None


def need(*tools: str) -> None:
    """Skips the calling check, or fails it, when one of the tools is missing."""
    missing = [tool for tool in tools if not have(tool)]
    if not missing:
        return
    reason = f"needs {', '.join(missing)}"
    if REQUIRE_ALL:
        pytest.fail(f"{reason}, and COLIBRI_REQUIRE_ALL=1 lets no check be left out")
    pytest.skip(reason)
