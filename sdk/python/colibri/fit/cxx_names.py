# SPDX-License-Identifier: Apache-2.0
"""What a mangled C++ name means, where that is simple: qualified names without arguments.

Itanium C++ ABI, 5.1 "External Names": ``_ZN4uart4sendEPKh`` is ``uart::send``.  Templates,
substitutions and local names are left alone.
"""

from __future__ import annotations

import re

_OPERATORS = {
    "nw": "operator new", "na": "operator new[]", "dl": "operator delete",
    "da": "operator delete[]", "cl": "operator()", "ix": "operator[]", "aS": "operator=",
}  # fmt: skip
_STRUCTOR = re.compile(r"([CD])[0-5]")
_LENGTH = re.compile(r"[1-9]\d{0,3}")


def plain_name(name: str) -> str:
    """The qualified name, or nothing where it is not plain."""
    if not name.startswith("_Z"):
        return ""
    rest = name[2:].removeprefix("L")
    if not rest.startswith("N"):
        space, rest = _part(rest, []) if rest.startswith("St") else ("", rest)
        part, rest = _part(rest, [])
        plain = "::".join(filter(None, (space, part)))
        return plain if part and not rest.startswith("I") else ""
    rest, parts = rest[1:].lstrip("rVKRO"), list[str]()
    while not rest.startswith("E"):
        part, rest = _part(rest, parts)
        if not part:
            return ""
        parts.append(part)
    return "::".join(parts)


def _part(text: str, before: list[str]) -> tuple[str, str]:
    """One component and what follows it; nothing where it is of another kind."""
    if text.startswith("St"):
        return "std", text[2:]
    if text[:2] in _OPERATORS:
        return _OPERATORS[text[:2]], text[2:]
    if before and (found := _STRUCTOR.match(text)):
        return ("~" if found[1] == "D" else "") + before[-1], text[2:]
    length = _LENGTH.match(text)
    if length is None:
        return "", ""
    start, size = length.end(), int(length[0])
    part = text[start : start + size]
    return (part, text[start + size :]) if len(part) == size else ("", "")
