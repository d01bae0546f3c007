# SPDX-License-Identifier: Apache-2.0
"""Options of commands that lay out a board's memory: room for what is not the engine's."""

from __future__ import annotations

from typing import Annotated

import typer

from colibri.units import parse_size

ApplicationOption = Annotated[
    list[str] | None,
    typer.Option(
        "--application",
        metavar="REGION=SIZE",
        help="Bytes of a region that the rest of your program takes, as in SRAM=64KiB; repeat for "
        "other regions. The engine does not get them.",
    ),
]
CodeOption = Annotated[
    str | None,
    typer.Option(
        "--code",
        metavar="SIZE",
        help="Bytes kept for firmware's code and constants. Default: budgets.code_bytes of the "
        "board, else what was counted for such images and CPUs, with a margin.",
    ),
]


def parse_application(words: list[str] | None) -> dict[str, int] | None:
    """Bytes by region, of all --application options."""
    if words is None:
        return None
    found: dict[str, int] = {}
    for word in words:
        name, equals, size = (part.strip() for part in word.partition("="))
        if not (name and equals):
            raise typer.BadParameter(
                f"{word[:40]!r}: write REGION=SIZE, as in SRAM=64KiB", param_hint="--application"
            )
        if name in found:
            raise typer.BadParameter(
                f"region {name[:40]} is given twice; add its bytes up", param_hint="--application"
            )
        found[name] = parse_size(size)
    return found


def parse_code(code: str | None) -> int | None:
    """Bytes of ``--code``."""
    return None if code is None else parse_size(code)
