# SPDX-License-Identifier: Apache-2.0
"""Options of commands that can stream experts; any of them asks for it."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from colibri.units import parse_size

Policy = Literal["auto", "lru", "frequency", "least-stale"]

MemoryOption = Annotated[
    str | None,
    typer.Option(
        "--memory",
        metavar="SIZE",
        help="Bytes that the engine may take in all, such as 512MiB. Experts are streamed from "
        "the file into as many slots as fit.",
    ),
]
SlotsOption = Annotated[
    int | None,
    typer.Option("--expert-slots", help="Stream experts: how many are in memory at once."),
]
PolicyOption = Annotated[
    Policy,
    typer.Option("--policy", help="Stream experts: which one makes room. Results do not change."),
]
DirectOption = Annotated[
    bool,
    typer.Option("--direct", help="Stream experts past the system's page cache (O_DIRECT)."),
]


def wants_streaming(
    memory: str | None, slots: int | None, policy: str, direct: bool = False
) -> bool:
    """Whether any of the options was given."""
    return memory is not None or slots is not None or policy != "auto" or direct


def memory_bytes(memory: str | None) -> int | None:
    """Bytes of ``--memory``."""
    return None if memory is None else parse_size(memory)
