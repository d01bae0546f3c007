# SPDX-License-Identifier: Apache-2.0
"""What a model is packed from: a checkpoint folder, the text part of one, or a GGUF file."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from colibri.checkpoint import Checkpoint
from colibri.descriptors import Wrapper, wrappers
from colibri.errors import CheckpointError
from colibri.matching import strip

# Keys that publishers put beside the language model's config or into it.
_EITHER = ("tie_word_embeddings", "quantization_config")


def open_source(path: Path | str) -> Checkpoint:
    """Opens a folder with config.json, or a GGUF file.

    Raises
    ------
    CheckpointError
        For anything that is neither, and for what `Checkpoint.open` and `open_gguf` refuse.
    """
    path = Path(path)
    if path.is_file():
        from colibri.gguf_source import open_gguf

        return open_gguf(path)
    return text_part(Checkpoint.open(path))


def text_part(checkpoint: Checkpoint) -> Checkpoint:
    """The language model in a checkpoint of more than text; any other checkpoint as it is."""
    named = checkpoint.config.get("architectures")
    name = named[0] if isinstance(named, list) and len(named) == 1 else None
    if not isinstance(name, str) or name not in wrappers():
        return checkpoint
    wrapper, family = wrappers()[name]

    def around(tensor: str) -> str | None:
        short = strip(tensor, family.prefixes)
        return next((p for p in wrapper.ignore if fnmatchcase(short, p)), None)

    left_out = Counter(pattern for n in checkpoint.tensors if (pattern := around(n)))
    counts = ", ".join(f"{count} of {pattern}" for pattern, count in sorted(left_out.items()))
    note = f"{name}: the text part" + (f"; tensors left out: {counts}" if counts else "")
    config = _text_config(checkpoint, wrapper)
    return replace(
        checkpoint,
        config={**config, "architectures": [family.architectures[0]]},
        tensors={n: t for n, t in checkpoint.tensors.items() if around(n) is None},
        missing={n: file for n, file in checkpoint.missing.items() if around(n) is None},
        notes=[*checkpoint.notes, note],
    )


def _text_config(checkpoint: Checkpoint, wrapper: Wrapper) -> dict[str, Any]:
    """The inner config with what only the outer one says; stop ids of both count."""
    outer, file = checkpoint.config, checkpoint.config_file
    inner = outer.get(wrapper.config)
    if not isinstance(inner, dict):
        what = "is missing" if inner is None else "must be an object"
        raise CheckpointError(what, file=file, field=wrapper.config,
                              hint="it is the text model's config")  # fmt: skip
    config = dict(inner)
    for key in _EITHER:
        values = [v for v in (inner.get(key), outer.get(key)) if v is not None]
        if len(values) == 2 and values[0] != values[1]:
            raise CheckpointError(
                f"is {values[1]!r}, but {wrapper.config}.{key} is {values[0]!r}",
                file=file, field=key, hint="give both the same value",
            )  # fmt: skip
        if values:
            config[key] = values[0]
    stops: list[Any] = []
    for value in (inner.get("eos_token_id"), outer.get("eos_token_id")):
        stops += value if isinstance(value, list) else [] if value is None else [value]
    return config | {"eos_token_id": stops}
