# SPDX-License-Identifier: Apache-2.0
"""`colibri families`: which models the packer knows, what they are made of, how that is tested."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from colibri.cli.common import JsonOption, command, console, emit_json, table
from colibri.descriptors import Family
from colibri.descriptors import families as known
from colibri.family_parts import parts_of
from colibri.unsupported import unsupported

app = command("Show which models the packer knows, and what they are made of.")


@app.command()
def families(as_json: JsonOption = False) -> None:
    """Show the families: class names, parts, and how each is tested."""
    found = sorted({id(f): f for f in known().values()}.values(), key=lambda f: f.name.lower())
    if as_json:
        emit_json({"families": [_fields(f) for f in found], "unsupported": unsupported()})
        return
    listing = table("Families", "family, class", "parts", "tested",
                    caption="tested: golden and variants against the original code's outputs, "
                            "oracle against formulas in float64")  # fmt: skip
    for family in found:
        names = "\n".join((family.name, *family.architectures, *_wrapped(family)))
        listing.add_row(Text(names), Text(_parts(family)), Text("\n".join(family.tested)))
    console().print(listing)
    refused = table("Known and refused", "class", "why")
    for name, why in unsupported().items():
        refused.add_row(name, Text(why))
    console().print("", refused)


def _fields(family: Family) -> dict[str, Any]:
    return {
        "family": family.name,
        "architectures": list(family.architectures),
        "wrappers": _wrapped(family),
        "parts": parts_of(family),
        "tested": list(family.tested),
    }


def _wrapped(family: Family) -> list[str]:
    """Classes of which the text part is taken."""
    return [wrapper.architecture for wrapper in family.wrappers]


def _parts(family: Family) -> str:
    kinds = parts_of(family).items()
    return "\n".join(f"{kind}: {', '.join(parts)}" for kind, parts in kinds if parts)
