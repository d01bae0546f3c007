# SPDX-License-Identifier: Apache-2.0
"""What the tests of images in several files share."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import checkpoints as ck
from colibri import Image, cli
from colibri.pack import pack
from colibri.placement import Placement

SHARD = 1 << 16  # bytes of a shard of the goldens: some hold several experts


def placement(layout: str, largest: int = 0) -> Placement:
    return Placement.of(layout, shard_bytes=max(SHARD, largest) if layout == "sharded" else None)


def packed(folder: Path, layout: str, source: Path, quant: str = "q4", **options: Any) -> Path:
    folder.mkdir(parents=True)
    if "placement" not in options:
        options["placement"] = placement(layout)
    return pack(source, folder / "m.colibri", quant=quant, **options).image


def content(image: Path) -> dict[str, bytes]:
    """All files of a folder that holds one image."""
    return {path.name: path.read_bytes() for path in image.parent.iterdir()}


def companion(image: Path, number: int) -> Path:
    return image.with_name(f"{image.name}.{number}")


def heat_file(path: Path, counts: object) -> Path:
    path.write_text(json.dumps({"kind": "a trace", "heat": {"layers": counts}}))
    return path


def run(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    code = cli.main([*map(str, words), "--json"])
    fields: dict[str, Any] = json.loads(capsys.readouterr().out)
    return {"exit": code, **fields}


def four_shards(folder: Path) -> Path:
    """A small model: eight records of 1,728 bytes in four shards."""
    image = packed(folder / "sharded", "sharded", ck.write(folder / "in"),
                   placement=Placement.of("sharded", shard_bytes=10_000))  # fmt: skip
    assert len(Image(image).files) == 5
    return image


def copied(image: Path, folder: Path) -> Path:
    """A copy of an image and its companions, to be spoiled."""
    shutil.copytree(image.parent, folder / "copy")
    return folder / "copy" / image.name
