# SPDX-License-Identifier: Apache-2.0
"""`colibri inspect`: what an image holds, as the C reader sees it."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

from rich.text import Text

from colibri.cli.common import ImageArgument, JsonOption, command, console, emit_json, table
from colibri.image import Image
from colibri.units import format_bytes

app = command("Show what an image holds: header, config, sections, bytes per role.")


@app.command()
def inspect(image: ImageArgument, as_json: JsonOption = False) -> None:
    """Show what an image holds, after checking every block against its checksum."""
    opened = Image(image)
    opened.verify()
    fields = describe(opened)
    if as_json:
        emit_json(fields)
    else:
        _show(fields)


def describe(image: Image) -> dict[str, Any]:
    """The facts of a verified image: header, config, sections, roles, stop ids, notes."""
    header = image.read(0, 64)
    roles = role_sizes(image)
    weights = sum(role["weights"] for role in roles if role["role"] not in ("rope", "rope_2"))
    return {
        "image": image.name,
        "bytes": sum(file.bytes for file in image.files),
        "version": int.from_bytes(header[8:12], "little"),
        "layout": image.layout,
        "files": [
            {"name": path.name if path else file.name, "bytes": file.bytes}
            for path, file in zip_longest(image.paths, image.files)
        ],
        "id": header[32:48].hex(),
        "verified": True,
        "config": image.config,
        "sections": [
            {"name": s.name, "file": s.file, "offset": s.offset, "bytes": s.bytes, "count": s.count}
            for s in image.sections
        ],
        "parameters": weights,
        "bits_per_weight": round(8 * sum(role["bytes"] for role in roles) / weights, 4),
        "roles": roles,
        "experts": len(image.experts),
        "stop_ids": list(image.stop_ids),
        "notes": image.notes,
    }


def role_sizes(image: Image) -> list[dict[str, Any]]:
    """Type, weights and bytes by role; an expert role counts once per expert."""
    rows: dict[tuple[str, str, int], dict[str, Any]] = {}
    for tensor in image.tensors:
        copies = image.config["experts"] - image.config["identities"] if tensor.is_expert else 1
        empty = {"role": tensor.name, "type": tensor.type_name, "group": tensor.group,
                 "weights": 0, "bytes": 0}  # fmt: skip
        row = rows.setdefault((tensor.name, tensor.type_name, tensor.group), empty)
        row["weights"] += copies * tensor.rows * tensor.columns
        row["bytes"] += copies * tensor.bytes
    for row in rows.values():
        row["bits_per_weight"] = round(8 * row["bytes"] / row["weights"], 3)
    return list(rows.values())


def _show(fields: dict[str, Any]) -> None:
    out = console()
    size = format_bytes(fields["bytes"], exact=True)
    out.print(
        Text(f"{fields['image']}: image version {fields['version']}, {fields['layout']}, {size}")
    )
    out.print(f"id {fields['id']}, every checksum right\n")
    config = table("Config", "setting", ">value")
    for name, value in fields["config"].items():
        config.add_row(name, f"{value:g}" if isinstance(value, float) else str(value))
    sections = table("Sections", "section", ">file", ">offset", ">bytes", ">count")
    for section in fields["sections"]:
        numbers = (f"{section[k]:,}" for k in ("file", "offset", "bytes", "count"))
        sections.add_row(section["name"], *numbers)
    files = table("Files", ">file", "name", ">bytes")
    for number, file in enumerate(fields["files"]):
        files.add_row(str(number), file["name"], f"{file['bytes']:,}")
    several = [files] if len(fields["files"]) > 1 else []
    for part in (config, sections, *several, _role_table(fields)):
        out.print(part, "")
    stops = ", ".join(map(str, fields["stop_ids"])) or "none"
    out.print(f"stop ids: {stops}")
    for name, value in fields["notes"].items():
        out.print(Text(f"{name}: {_plain(value)}"), soft_wrap=True)


def _role_table(fields: dict[str, Any]) -> Any:
    caption = (
        f"{fields['parameters']:,} parameters, {fields['bits_per_weight']:.2f} bits per weight"
    )
    roles = table("Tensors by role", "role", "type", ">group", ">weights", ">bytes", ">bits/weight",
                  caption=caption)  # fmt: skip
    for role in fields["roles"]:
        roles.add_row(role["role"], role["type"], str(role["group"] or "-"), f"{role['weights']:,}",
                      f"{role['bytes']:,}", f"{role['bits_per_weight']:.2f}")  # fmt: skip
    return roles


def _plain(value: Any) -> str:
    """A value of the notes on one line."""
    if isinstance(value, dict):
        return ", ".join(f"{k} {_plain(v)}" for k, v in value.items())
    return "; ".join(map(_plain, value)) if isinstance(value, list) else str(value)
