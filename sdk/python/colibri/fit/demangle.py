# SPDX-License-Identifier: Apache-2.0
"""Mangled names in plain: C++ (Itanium ABI) and Rust (legacy and v0).

Libraries that know the grammars print a name as long as its back references make it, which is up to
exponential.  :func:`is_small` bounds that before a name of a file gets there.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.util import find_spec

#: Plain names that are longer are not shown.
MOST_LETTERS = 4096
#: Letters that a library may have to write for one name.
_MOST_WORK = 1 << 21
_MANGLED = re.compile(r"_Z\w|_R[A-Za-z]|__Z\w|__R[A-Z]")
_RUST_HASH = re.compile(r"17h[0-9a-f]{16}E")
_RUST_SUFFIX = re.compile(r"\.llvm\.[0-9A-Fa-f@]+$")
_LENGTH = re.compile(r"[1-9]\d{0,3}")
_ESCAPES = {
    "SP": "@", "BP": "*", "RF": "&", "LT": "<", "GT": ">", "LP": "(", "RP": ")", "C": ",",
}  # fmt: skip
_ESCAPE = re.compile(r"\$(u[0-9a-f]{1,6}|[A-Z]{1,2})\$|(\.\.)|(\.)")
#: Whatever may be a reference; all places, those within another one included.
_REFERENCE = re.compile(r"(?=([ST])(L[0-9]*_)?([0-9A-Z]*)_)")
_RUST_REFERENCE = re.compile(r"(?=B[0-9a-zA-Z]*_)")
_PACK = re.compile(r"(?=[Ds]p|s[ZP]|f[lrLR])")
_DIGITS = re.compile(r"[0-9]+")
#: Letters of what `Ss` stands for, and of builtin types and operators by letter of the name.
_LONG_STANDARD, _LONG_TYPE = 90, 12


def is_mangled(name: str) -> bool:
    return name.startswith(("_Z", "_R", "__Z", "__R")) and _MANGLED.match(name) is not None


def can_demangle() -> bool:
    """Whether the library for C++ and Rust v0 is there; legacy Rust names need none."""
    return find_spec("pycxxfilt") is not None


@lru_cache(maxsize=1 << 16)
def demangled(name: str) -> str:
    """A name in plain; nothing where it is not mangled, or not understood, or cannot be bounded.

    >>> demangled("_ZN3foo3bar17h05af221e174051e9E")
    'foo::bar'
    """
    if not is_mangled(name):
        return ""
    if name.startswith("__"):
        name = name[1:]  # a format whose C names have an underscore
    plain = _rust_legacy(name) or _by_library(name)
    return plain if len(plain) <= MOST_LETTERS and plain != name else ""


def _by_library(name: str) -> str:
    if not can_demangle() or not is_small(name):
        return ""
    import pycxxfilt

    try:
        return pycxxfilt.demangle(name) or ""
    except ValueError:
        return ""


# -- legacy Rust ----------------------------------------------------------------------------------


def _rust_legacy(name: str) -> str:
    """``_ZN``, parts with their lengths, ``17h`` and a hash, ``E``: without the hash."""
    name = _RUST_SUFFIX.sub("", name)
    if not name.startswith("_ZN") or not _RUST_HASH.fullmatch(name[-20:]):
        return ""
    rest, parts = name[3:-20], list[str]()
    while rest:
        length = _LENGTH.match(rest)
        if length is None or len(rest) < length.end() + int(length[0]):
            return ""
        start, end = length.end(), length.end() + int(length[0])
        parts.append(_unescaped(rest[start:end]))
        rest = rest[end:]
    return "::".join(parts)


def _unescaped(part: str) -> str:
    def plain(found: re.Match[str]) -> str:
        if found[1] is None:
            return "::" if found[2] else "."
        if not found[1].startswith("u"):
            return _ESCAPES.get(found[1], found[0])
        number = int(found[1][1:], 16)
        return chr(number) if number < 0x110000 and chr(number).isprintable() else found[0]

    return _ESCAPE.sub(plain, part[1:] if part.startswith("_$") else part)


# -- how long a name can get ----------------------------------------------------------------------


def is_small(name: str) -> bool:
    """Whether what a name means cannot be much longer than the name, by an upper bound."""
    return most_letters(name) <= _MOST_WORK


def most_letters(name: str) -> int:
    """An upper bound of the letters that a demangler writes for a name.

    A reference writes no more than all before it does, so each at most doubles the whole.  For C++
    that is sharpened: parts are numbered in the order in which they end, so a reference to part `k`
    writes no more than had been written when `k` or a later one was first referred to; so do
    arguments (``T_``) until others may have taken their place.  An expansion of a pack writes its
    pattern, which follows it, as often as the pack has elements.
    """
    if name.startswith("_R"):
        return len(name) << min(64, len(_RUST_REFERENCE.findall(name)))
    expansions = [found.start() for found in _PACK.finditer(name)]
    packs, elements = len(expansions), 1
    if expansions and "J" in name:  # each element has a letter between the two
        elements = max(1, expansions[-1] - name.index("J"))
    work = _letters(name)
    if packs > 8 or ("cv" in name and "T" in name):  # its T may come before what it stands for
        return work << min(64, len(_REFERENCE.findall(name)) + 10 * packs)
    named, first = _maybe_identifiers(name), dict[str, list[tuple[int, int]]](S=[], T=[])
    at = work = before = 0
    start = expansions[0] if expansions else len(name)  # patterns of packs lie behind
    for found in _REFERENCE.finditer(name):
        between = name[at : found.start()]
        if at <= start < found.start():
            before = work + _letters(name[at:start])
        work, at = work + _letters(between), found.start()
        if "E" in between or "Z" in between:
            first["T"].clear()
        number = int(found[3], 36) + 1 if found[3] else 0
        known = first[found[1]]
        cost = next((then for top, then in known if top >= number), work)
        sure = len(found[3]) <= 2 and not found[2] and not named[at]
        if sure and name[at - 1] not in "TDGalr" and (not known or number > known[-1][0]):
            known.append((number, work))
        work += cost
        if work > _MOST_WORK:
            return work
    if at <= start:
        before = work + _letters(name[at:start])
    work += _letters(name[at:])
    times: int = elements**packs
    return before + (work - before) * times


def _letters(text: str) -> int:
    """What letters stand for by themselves: `Ss` and the like for long names, `j` for two words."""
    return _LONG_STANDARD * text.count("S") + _LONG_TYPE * len(text)


def _maybe_identifiers(name: str) -> bytearray:
    """For each letter whether it may be one of an identifier, which begins with its length."""
    inside, end = bytearray(len(name)), 0
    for found in _DIGITS.finditer(name):
        end = max(end, min(len(name), found.end() + int(found[0])))
        inside[found.end() : end] = b"\1" * max(0, end - found.end())
    return inside
