# SPDX-License-Identifier: Apache-2.0
"""The JSON Schema of board files, made from the model.

``colibri boards schema -o board_configs/board.schema.json`` writes the published file anew.  A
schema cannot say all that `colibri boards check` checks: overlaps, references and underflow.
"""

from __future__ import annotations

import json
from typing import Any

from colibri.boards.model import Board

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_ABOUT = (
    "A board file of Colibri SDK (TOML). With 'soc', cores and regions of that SoC are taken "
    "over; an entry with the same id or name overrides single keys. Without it, every core and "
    "region must be complete. 'colibri boards check FILE' checks what a schema cannot."
)


def board_schema() -> dict[str, Any]:
    """The schema as a dictionary, stable from run to run."""
    schema = Board.model_json_schema(mode="validation")
    definitions = schema["$defs"]
    definitions["Region"]["required"] = ["name"]
    definitions["Core"]["required"] = ["id"]
    # A board with a SoC may leave out what the SoC has.
    schema["required"] = [key for key in schema["required"] if key not in ("cores", "regions")]
    schema["anyOf"] = [{"required": ["soc"]}, {"required": ["cores", "regions"]}]
    for table in ("cores", "regions"):
        schema["properties"][table].pop("minItems", None)
    return {"$schema": DIALECT, **schema, "description": _ABOUT}


def schema_text() -> str:
    """The schema as the published file holds it."""
    return json.dumps(board_schema(), indent=2) + "\n"
