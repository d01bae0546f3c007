# SPDX-License-Identifier: Apache-2.0
"""Options of commands that can stream experts, any of which asks for it, and of routers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from colibri.units import parse_size

if TYPE_CHECKING:
    from colibri.experts.pins import Pin
    from colibri.image import Image

Policy = Literal["auto", "lru", "frequency", "least-stale"]
Prefetch = Literal["auto", "on", "off"]

MemoryOption = Annotated[
    str | None,
    typer.Option(
        "--memory",
        metavar="SIZE",
        help="Bytes that engine and tables of the image may take in all, such as 512MiB. Experts "
        "are streamed from the file into as many slots as fit.",
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
PinOption = Annotated[
    str | None,
    typer.Option(
        "--pin",
        metavar="TRACE",
        help="Stream experts: the hottest of a trace of this image (`colibri trace`) stay once "
        "read, as many as half of the slots. Default: what `pack --pin` left in the image; none: "
        "not even that.",
    ),
]
PrefetchOption = Annotated[
    Prefetch,
    typer.Option(
        "--prefetch",
        help="Stream experts: behind a layer's last read, read what the next layer is likely to "
        "choose (auto: off). Results do not change.",
    ),
]
BalanceOption = Annotated[
    int | None,
    typer.Option(
        "--balance-router",
        min=1,
        metavar="N",
        help="Changes results: the probability of an expert that was chosen more than N times in "
        "a row (3 is usual) is halved with each choice more.",
    ),
]
PreferOption = Annotated[
    float | None,
    typer.Option(
        "--prefer-cached",
        metavar="LAMBDA",
        help="Changes results: experts in memory gain LAMBDA (0.001 to 1) of the range of a "
        "token's scores. With streamed experts only.",
    ),
]
DirectOption = Annotated[
    bool,
    typer.Option("--direct", help="Stream experts past the system's page cache (O_DIRECT)."),
]


def wants_streaming(
    memory: str | None,
    slots: int | None,
    policy: str,
    prefetch: str,
    direct: bool = False,
    pin: str | None = None,
) -> bool:
    """Whether any of the options was given."""
    given = memory is not None or slots is not None or pin is not None
    return given or policy != "auto" or prefetch != "auto" or direct


def pins_for(image: Image, pin: str | None) -> list[Pin]:
    """What ``--pin`` asks for, hottest first; without it, what the image itself wants pinned."""
    from colibri.experts.pins import pins_of_image, pins_of_trace

    if pin == "none":
        return []
    return pins_of_image(image) if pin is None else pins_of_trace(image, Path(pin))


def wants_prefetch(prefetch: str) -> bool | None:
    """What `Engine` takes for ``--prefetch``."""
    return {"auto": None, "on": True, "off": False}[prefetch]


def memory_bytes(memory: str | None) -> int | None:
    """Bytes of ``--memory``."""
    return None if memory is None else parse_size(memory)
