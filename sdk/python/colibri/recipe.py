# SPDX-License-Identifier: Apache-2.0
"""Recipes: which type each tensor of an image gets.

Norms, biases, routers and RoPE are f32 whatever a recipe says: routing must not change.  The
standard recipe of a type uses it everywhere else, but for q4 keeps embedding and output in q8.
A TOML file changes parts or single roles of it:

    quant = "q4"             # the standard recipe to start from
    group = 32
    [roles]
    attention = "q8"         # a part: embedding, output, attention, dense, shared, experts
    expert_down = "q8"       # a role: wins over its part
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colibri.errors import PackError
from colibri.image_format import GROUPS, ROLES, Role, Type

QUANTS = tuple(kind.name.lower() for kind in Type)
DEFAULT_QUANT = "q4"
DEFAULT_GROUP = 32
FILE_BYTES_MAX = 1 << 20
_FREE = {name: role for name, role in ROLES.items() if role.part}
_PARTS = tuple(dict.fromkeys(role.part for role in _FREE.values() if role.part))
_FIXED = tuple(name for name in ROLES if name not in _FREE)


@dataclass(frozen=True)
class Recipe:
    """Type by role, and the group size of the quantised ones."""

    name: str
    types: dict[str, Type]
    group: int

    def type_of(self, role: Role) -> tuple[Type, int]:
        """Type and group (0 for floats) of a role's tensors."""
        kind = self.types[role.name]
        return kind, self.group if kind in (Type.Q8, Type.Q4) else 0


def make_recipe(
    quant: str | None = None, group: int | None = None, file: Path | None = None
) -> Recipe:
    """The standard recipe of a type, changed by a file if one is given.

    `quant` and `group` win over the file's own.

    Raises
    ------
    PackError
        For unknown types, groups, roles or keys; the message has the valid ones.
    """
    given = _read(file) if file else {}
    where = {"file": file} if file else {}
    quant = given.get("quant", DEFAULT_QUANT) if quant is None else quant
    group = given.get("group", DEFAULT_GROUP) if group is None else group
    kind = _type(quant, "quant", where)
    if isinstance(group, bool) or group not in GROUPS:
        raise PackError(f"is {group!r}", field="group", **where,
                        hint=f"valid is {', '.join(map(str, GROUPS))}")  # fmt: skip
    types = dict.fromkeys(ROLES, Type.F32) | dict.fromkeys(_FREE, kind)
    if kind is Type.Q4:
        types |= {"embedding": Type.Q8, "output": Type.Q8}
    types |= _changes(given.get("roles", {}), where)
    return Recipe(f"{quant}+{file.name}" if file else quant, types, group)


def _read(file: Path) -> dict[str, Any]:
    if file.exists() and not file.is_file():
        raise PackError("is a folder or a device", file=file, hint="give a TOML file")
    try:
        if file.stat().st_size > FILE_BYTES_MAX:
            raise PackError("is too long", file=file, hint=f"valid are {FILE_BYTES_MAX} bytes")
        given = tomllib.loads(file.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise PackError("is nested too deeply to be a recipe", file=file) from error
    except OSError as error:
        raise PackError(error.strerror or "cannot be read", file=file) from error
    except ValueError as error:
        raise PackError(f"is not valid TOML: {error}", file=file) from error
    unknown = sorted(set(given) - {"quant", "group", "roles"})
    if unknown:
        raise PackError("unknown key", file=file, field=unknown[0],
                        hint="valid are quant, group and [roles]")  # fmt: skip
    if not isinstance(given.get("roles", {}), dict):
        raise PackError("must be a table", file=file, field="roles", hint="write [roles]")
    return given


def _changes(roles: dict[str, Any], where: dict[str, Any]) -> dict[str, Type]:
    """Types by role: parts first, so that single roles win."""
    changes: dict[str, Type] = {}
    for name in sorted(roles, key=lambda name: name not in _PARTS):
        field = f"roles.{name}"
        kind = _type(roles[name], field, where)
        if name in _FIXED:
            if kind is not Type.F32:
                raise PackError(f"is {roles[name]}", field=field, **where,
                                hint="this role is always f32")  # fmt: skip
        elif name in _PARTS or name in _FREE:
            changes |= {n: kind for n, role in _FREE.items() if name in (n, role.part)}
        else:
            raise PackError(
                "unknown role",
                field=field,
                **where,
                hint=f"valid are {', '.join(dict.fromkeys((*_PARTS, *_FREE)))}",
            )
    return changes


def _type(name: Any, field: str, where: dict[str, Any]) -> Type:
    if name not in QUANTS:
        raise PackError(f"is {name!r}", field=field, **where, hint=f"valid is {', '.join(QUANTS)}")
    return Type[str(name).upper()]
