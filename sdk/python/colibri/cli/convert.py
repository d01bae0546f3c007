# SPDX-License-Identifier: Apache-2.0
"""`colibri convert`: an image in another layout."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from colibri.cli.common import (
    BlockOption,
    HeatOption,
    ImageArgument,
    JsonOption,
    LayoutOption,
    ShardSizeOption,
    command,
    console,
    emit_json,
    files_table,
    placement_of,
    progress,
)
from colibri.convert import convert as convert_image

app = command("Write an image in another layout: experts inside it, or in files beside it.")


@app.command()
def convert(
    image: ImageArgument,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Image to write.")],
    layout: LayoutOption,
    shard_size: ShardSizeOption = None,
    block: BlockOption = None,
    heat: HeatOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write an image in another layout: experts inside it, or in files beside it.

    Weights are copied as they are and checked on the way. What comes out is what `colibri pack`
    would have written. Files beside the image are named after it: IMAGE.1, IMAGE.2, ...
    """
    placement = placement_of(layout, shard_size, block)
    with progress("converting") as bar:
        made = convert_image(image, output, placement, heat=heat, progress=bar)
    if as_json:
        files = [{"file": str(path), "bytes": size} for path, size in made.files]
        emit_json({"image": str(made.image), "layout": layout, "bytes": made.bytes, "files": files})
    else:
        console().print(files_table(made.files))
