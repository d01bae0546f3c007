# SPDX-License-Identifier: Apache-2.0
"""`colibri build`: firmware, model file and library for a board."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from colibri.application import application_note
from colibri.cli.common import (
    VERBATIM,
    BoardOption,
    JsonOption,
    command,
    console,
    emit_json,
    progress,
    table,
)
from colibri.cli.reserves import (
    ApplicationOption,
    CodeOption,
    parse_application,
    parse_code,
)
from colibri.units import format_bytes

if TYPE_CHECKING:
    from colibri_emulator.build_firmware import Firmware

app = command("Cross-compile the runtime and a runner for a board.")


@app.command()
def build(
    board: BoardOption,
    image: Annotated[Path, typer.Option("--image", metavar="IMAGE", help="A packed image.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Folder to make or to renew.")
    ],
    toolchain: Annotated[
        Literal["auto", "zig", "gcc"],
        typer.Option("--toolchain", help="auto: zig from pip when installed, else GNU GCC."),
    ] = "auto",
    kv: Annotated[
        list[str] | None,
        typer.Option("--kv", help="KV type to compile in beside f32; repeat. Default: all."),
    ] = None,
    kernels: Annotated[
        str, typer.Option("--kernels", help="Kernel table; auto: the fastest the core can run.")
    ] = "auto",
    weights: Annotated[
        Literal["auto", "mapped", "streamed"],
        typer.Option(
            "--weights",
            help="mapped: used where the image lies. streamed: experts are read when needed. "
            "auto: streamed where the image does not fit.",
        ),
    ] = "auto",
    application: ApplicationOption = None,
    code: CodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Cross-compile the runtime and a runner for a board.

    Makes DIR with firmware.elf, model.colibri, firmware.map, libcolibri.a and build.json. On a
    board without an operating system the model goes to the address that the link fixed.
    """
    from colibri.boards import load_board
    from colibri_emulator.build_firmware import ALL_KV, build_firmware

    target = load_board(board)
    with progress(f"building for {target.id}"):
        made = build_firmware(
            target, image, output, toolchain=toolchain, kernels=kernels,
            kv=tuple(kv) if kv else ALL_KV, weights=weights,
            application=parse_application(application), code=parse_code(code),
        )  # fmt: skip
    if as_json:
        emit_json(made.to_json())
    else:
        _show(made)


def _show(made: Firmware) -> None:
    title = f"{made.board}: {made.target}, {made.toolchain}, {made.kernels} kernels"
    rows = table(title, "file", ">bytes", "holds")
    counted = made.bytes
    holds = f"code and constants {counted['code']:,}, data {counted['data']:,}, bss "
    rows.add_row(str(made.elf), f"{made.elf.stat().st_size:,}", f"{holds}{counted['bss']:,}")
    where = "opened by the executable"
    if made.layout is not None:
        where = f"goes to {made.layout.model_base:#010x}"
        if made.layout.tables_bytes:
            where = "read from the board's storage"
    rows.add_row(str(made.model), f"{counted['model']:,}", f"the image, {where}")
    rows.add_row(str(made.map), f"{made.map.stat().st_size:,}", "the linker's map")
    rows.add_row(str(made.library), f"{counted['library']:,}", "the runtime, for your own program")
    out = console()
    out.print(rows)
    if made.layout is not None:
        free = ", ".join(f"{r.name} {format_bytes(r.size)}" for r in made.layout.regions)
        out.print(f"memory for the engine: {free}")
        out.print(application_note(made.application), markup=VERBATIM)
