# SPDX-License-Identifier: Apache-2.0
"""`colibri pack`: turn a Hugging Face checkpoint or a GGUF file into one deployable image."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from colibri.cli.common import (
    VERBATIM,
    BlockOption,
    HeatOption,
    JsonOption,
    LayoutOption,
    ShardSizeOption,
    command,
    console,
    emit_json,
    files_table,
    note,
    placement_of,
    progress,
    table,
)
from colibri.pack import Packed
from colibri.pack import pack as pack_checkpoint
from colibri.units import format_bytes
from colibri.weight_order import order_of_target

app = command("Turn a Hugging Face checkpoint or a GGUF file into one deployable image.")

Quant = Literal["f32", "f16", "bf16", "q8", "q4"]


@app.command()
def pack(
    checkpoint: Annotated[
        Path, typer.Argument(metavar="CHECKPOINT", help="Folder with config.json, or a GGUF file.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="IMAGE", help="File to write.")],
    quant: Annotated[
        Quant | None, typer.Option("--quant", help="Type of the weights. Default: q4.")
    ] = None,
    group: Annotated[
        int | None,
        typer.Option("--group", help="Columns that share a scale: 32, 64 or 128. Default: 32."),
    ] = None,
    recipe: Annotated[
        Path | None,
        typer.Option("--recipe", metavar="FILE", help="TOML file with a type per role."),
    ] = None,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            "--calibrate",
            metavar="FILE",
            help="UTF-8 text, or .json list of token ids, that q8 and q4 shall lose least on.",
        ),
    ] = None,
    layout: LayoutOption = "monolithic",
    shard_size: ShardSizeOption = None,
    block: BlockOption = None,
    heat: HeatOption = None,
    pin: Annotated[
        Path | None,
        typer.Option(
            "--pin",
            metavar="TRACE",
            help="As --heat, and when experts are streamed those in front stay in memory.",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            metavar="BOARD",
            help="Lay weights out for a board's CPU, or for this one: host. Default: row by row.",
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", min=1, help="Threads. Default: the machine's cores, at most 8."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Turn a Hugging Face checkpoint or a GGUF file into one deployable image.

    The image is the same whatever the number of jobs; nothing is left when it fails.
    """
    placement = placement_of(layout, shard_size, block)
    with progress("packing") as bar:
        packed = pack_checkpoint(
            checkpoint, output, quant=quant, group=group, recipe=recipe,
            order=order_of_target(target), placement=placement, heat=heat, pin=pin,
            calibration_text=calibrate,
            jobs=jobs or min(8, os.cpu_count() or 1), progress=bar,
        )  # fmt: skip
    if as_json:
        emit_json(_fields(packed))
    else:
        _show(packed)


def _fields(packed: Packed) -> dict[str, object]:
    return {
        "image": str(packed.image), "bytes": packed.bytes,
        "files": [{"file": str(path), "bytes": size} for path, size in packed.files],
        "parameters": packed.parameters,
        "bits_per_weight": round(packed.bits_per_weight, 4), "roles": packed.roles,
        "notes": list(packed.notes),
    }  # fmt: skip


def _show(packed: Packed) -> None:
    roles = table(f"{packed.image}", "role", ">bytes", ">share")
    total = sum(packed.roles.values())
    for name, size in packed.roles.items():
        roles.add_row(name, f"{size:,}", f"{100 * size / total:.1f} %")
    console().print(roles)
    if len(packed.files) > 1:
        console().print("", files_table(packed.files))
    console().print(
        f"\n{format_bytes(packed.bytes, exact=True)}, {packed.parameters:,} parameters, "
        f"{packed.bits_per_weight:.2f} bits per weight"
    )
    for text in packed.notes:
        note(f"note: {text}", style="yellow", markup=VERBATIM)
