# SPDX-License-Identifier: Apache-2.0
"""What config.json says of how a checkpoint's weights are stored (`quantization_config`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from colibri.errors import CheckpointError

METHODS = ("fp8", "mxfp4")
FP8_BLOCK = (128, 128)
_NAMES = {"gptq": "GPTQ", "awq": "AWQ", "bitsandbytes": "bitsandbytes"}


def check_method(config: dict[str, Any], file: Path) -> None:
    """Refuses, by name, weights that were quantised in a way that is not read.

    Raises
    ------
    CheckpointError
        When quantization_config names another method than `METHODS`.
    """
    table = _table(config, file)
    old = table.get("load_in_4bit") or table.get("load_in_8bit")  # from before methods had names
    method = table.get("quant_method") or ("bitsandbytes" if old else None)
    if table and method not in METHODS:
        name = _NAMES.get(str(method).split("_")[0], f"the method {method!r}")
        raise CheckpointError(
            f"weights are quantised with {name}",
            file=file,
            field="quantization_config.quant_method",
            hint="take the bf16, f16 or f32 checkpoint of the model; "
            f"of the quantised ones {' and '.join(METHODS)} are read",
        )


def block_size(config: dict[str, Any], file: Path) -> tuple[int, int]:
    """Rows and columns of a block of an fp8 tensor.

    Raises
    ------
    CheckpointError
        When quantization_config.weight_block_size is not two positive integers.
    """
    given = _table(config, file).get("weight_block_size")
    if given is None:
        return FP8_BLOCK
    if (
        not isinstance(given, list) or len(given) != 2
        or not all(type(n) is int and n > 0 for n in given)
    ):  # fmt: skip
        raise CheckpointError(f"is {given!r}", file=file,
                              field="quantization_config.weight_block_size",
                              hint="valid is [rows, columns], mostly [128, 128]")  # fmt: skip
    return given[0], given[1]


def _table(config: dict[str, Any], file: Path) -> dict[str, Any]:
    table = config.get("quantization_config")
    if table is not None and not isinstance(table, dict):
        raise CheckpointError("must be an object or null", file=file, field="quantization_config")
    return table or {}
