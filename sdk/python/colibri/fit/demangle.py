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
#: Letters that a library may have to write for one name, as a power of two.
_MOST_BITS = 20
_MANGLED = re.compile(r"_Z\w|_R[A-Za-z]|__Z\w|__R[A-Z]")
_RUST_HASH = re.compile(r"17h[0-9a-f]{16}E")
_RUST_SUFFIX = re.compile(r"\.llvm\.[0-9A-Fa-f@]+$")
_LENGTH = re.compile(r"[1-9]\d{0,3}")
_ESCAPES = {
    "SP": "@", "BP": "*", "RF": "&", "LT": "<", "GT": ">", "LP": "(", "RP": ")", "C": ",",
}  # fmt: skip
_ESCAPE = re.compile(r"\$(u[0-9a-f]{1,6}|[A-Z]{1,2})\$|(\.\.)|(\.)")
#: Whatever may be a reference; all places, those within another one included.
_REFERENCE = re.compile(r"(?=[ST](L\d*_)?[0-9A-Z]*_)")
_RUST_REFERENCE = re.compile(r"(?=B[0-9a-zA-Z]*_)")
_PACK = re.compile(r"(?=[Ds]p|f[lrLR])")
_LONG_STANDARD = 90  # letters that `Ss` and the like stand for


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
    """Whether what a name means cannot be much longer than the name, by an upper bound.

    A part that is written twice has been referred to, so each back reference (and argument of a
    template) at most doubles what a name's letters make; an expansion of a pack writes its pattern
    as often as the pack has elements. Letters of identifiers that look like references count too.
    """
    if name.startswith("_R"):
        references, packs, letters = len(_RUST_REFERENCE.findall(name)), 0, len(name)
    else:
        references, packs = len(_REFERENCE.findall(name)), len(_PACK.findall(name))
        letters = len(name) + _LONG_STANDARD * name.count("S")
    return (1 + packs) * letters.bit_length() + references <= _MOST_BITS
