# SPDX-License-Identifier: Apache-2.0
"""Any value under any key of any family's config.json is taken or refused, never a traceback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from colibri.errors import CheckpointError
from colibri.families import describe

GOLDEN = sorted((Path(__file__).resolve().parents[1] / "golden").glob("*/config.json"))
SAID_ELSEWHERE = ("architectures", "transformers_version", "num_hidden_layers")
VALUES: tuple[Any, ...] = (
    0, -1, 1, 2**31, 2**63, 10**400, 1e300, 1e-320, -0.0, 1.5, float("nan"), float("inf"),
    None, True, "x", [], {}, [0], {"a": 1},
)  # fmt: skip


def changed(config: dict[str, Any]) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    for key, old in config.items():
        if key in SAID_ELSEWHERE:
            continue
        yield from ((key, value, {**config, key: value}) for value in VALUES)
        if isinstance(old, dict):
            yield from (
                (f"{key}.{name}", value, {**config, key: new}) for name, value, new in changed(old)
            )


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.parent.name)
def test_any_value_is_taken_or_refused(path: Path) -> None:
    config = json.loads(path.read_text())
    refused = 0
    for key, value, other in changed(config):
        try:
            model = describe(other, path)
        except CheckpointError as error:
            refused += len(str(error)) < 1000
        except Exception as error:
            raise AssertionError(f"{key} = {value!r}") from error
        else:
            assert model.settings.layers == len(model.layers)
    assert refused > 50
