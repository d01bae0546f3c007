# SPDX-License-Identifier: Apache-2.0
"""The JSON Schema of project files, made from the model.

``colibri check --schema`` prints it; ``project.schema.json`` beside this file is the published one.
A schema cannot say all that `load_project` checks: boards, regions, groups, marks in order.
"""

from __future__ import annotations

import json
from typing import Any

from colibri.boards.schema import DIALECT
from colibri.project.model import Project

_ABOUT = (
    "A project file of Colibri SDK (colibri.toml). 'colibri check FILE' checks what a schema "
    "cannot: boards, regions and groups that are named, marks in their order."
)


def project_schema() -> dict[str, Any]:
    """The schema as a dictionary, stable from run to run."""
    schema = Project.model_json_schema(mode="validation")
    schema["$defs"]["Model"]["oneOf"] = [{"required": ["checkpoint"]}, {"required": ["image"]}]
    _close(schema)
    return {"$schema": DIALECT, **schema, "description": _ABOUT}


def _close(part: Any) -> None:
    """Tables whose keys have a pattern take no others."""
    if isinstance(part, dict) and "patternProperties" in part:
        part["additionalProperties"] = False
    for inner in part.values() if isinstance(part, dict) else part:
        if isinstance(inner, (dict, list)):
            _close(inner)


def schema_text() -> str:
    """The schema as the published file holds it."""
    return json.dumps(project_schema(), indent=2) + "\n"
