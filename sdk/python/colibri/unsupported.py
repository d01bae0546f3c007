# SPDX-License-Identifier: Apache-2.0
"""Architecture classes that are known and refused, and what is missing for each.

The list is data: ``families/_unsupported.toml``.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files


@cache
def unsupported() -> dict[str, str]:
    """Architecture class -> why it is refused, as the end of a sentence."""
    text = files("colibri").joinpath("families", "_unsupported.toml").read_text(encoding="utf-8")
    table = tomllib.loads(text)
    needs = {name: f"needs {part}, which this version does not have"
             for name, part in table["needs"].items()}  # fmt: skip
    return needs | {name: f"is out of scope: {why}" for name, why in table["out_of_scope"].items()}


def why_not(architecture: str) -> str:
    """What the packer says of a class that no descriptor names."""
    return f"{architecture} {unsupported().get(architecture, 'is not supported')}"
