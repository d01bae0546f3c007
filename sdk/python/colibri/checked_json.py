# SPDX-License-Identifier: Apache-2.0
"""JSON of files that others made, a checkpoint's most of all: an object, no key twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from colibri.errors import CheckpointError, ColibriError

MAX_JSON = 64 << 20


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; a key given twice is refused."""
    return parse_object(read_bytes(path), path)


def read_bytes(path: Path) -> bytes:
    """The content of a small file."""
    try:
        refuse_special(path)
        size = path.stat().st_size
        if size > MAX_JSON:
            raise CheckpointError(f"has {size} bytes", file=path,
                                  hint=f"valid are at most {MAX_JSON}")  # fmt: skip
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(
            error.strerror or "cannot be read",
            file=path,
            hint="a checkpoint folder must have this file",
        ) from error


def refuse_special(path: Path) -> None:
    """CheckpointError for what is there and no file: a pipe or a device may never end."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise CheckpointError("is a pipe or a device", file=path, hint="give a file")


def parse_object(
    data: bytes,
    path: Path,
    field: str | None = None,
    error: type[ColibriError] = CheckpointError,
) -> dict[str, Any]:
    """The object that JSON text stands for; `path` and `field` say where it is from."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise error(f"key '{twice}' is there twice", file=path, field=field)
        return result

    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as problem:
        raise error(f"is not valid JSON: {problem}", file=path, field=field) from problem
    if not isinstance(value, dict):
        raise error("must hold a JSON object", file=path, field=field)
    return value
