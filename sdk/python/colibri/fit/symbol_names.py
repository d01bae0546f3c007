# SPDX-License-Identifier: Apache-2.0
"""Names of symbols: which group they are of, what patterns mean them, how they are shown."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from fnmatch import fnmatchcase

from colibri.fit.cxx_names import plain_name
from colibri.fit.demangle import demangled
from colibri.fit.elf import Elf, Symbol
from colibri.fit.findings import Chain
from colibri.fit.symbols import hidden

_GROUPS = {
    "heap": (
        r"_?(malloc|free|calloc|realloc)(_r)?|(posix_)?memalign|aligned_alloc|_?sbrk(_r)?"
        r"|_Zn[wa][jm].*|_Zd[la]Pv.*"
    ),
    "threads": r"pthread_\w+|thrd_\w+",
    "stdio": (
        r"_?v?(f|s|sn|as|d)?i?(printf|scanf)(_r)?|f?puts|f?putc|putchar|fopen|fwrite|fread"
        r"|__(v?f|v?s|v?sn)?printf_chk"
    ),
    "exit": r"exit|atexit|abort|__cxa_throw|__cxa_atexit",
}
#: Patterns of whole names by group.
GROUPS = {group: re.compile(pattern) for group, pattern in _GROUPS.items()}
_GROUP = "group:"
_SHOWN_NAMES, _SHOWN_LETTERS = 6, 60
#: Names that are compared with one that is missing.
_MOST_NAMES = 20_000


def forbidden_group(symbol: Symbol) -> str | None:
    """The group of a forbidden function: heap, threads, stdio or exit."""
    undefined = symbol.place == "UNDEF" and symbol.binding != "WEAK"
    if symbol.kind not in ("FUNC", "GNU_IFUNC", "LOOS") and not undefined:
        return None
    if symbol.place == "UNDEF" and not undefined:
        return None  # a weak reference that nothing satisfied
    name = symbol.name.split("@", 1)[0]
    return next((g for g, pattern in GROUPS.items() if pattern.fullmatch(name)), None)


def is_needed(symbol: Symbol) -> bool:
    return symbol.place == "UNDEF" and symbol.binding != "WEAK" and bool(symbol.name)


def is_defined(symbol: Symbol, elf: Elf, labels: bool = False) -> bool:
    """Whether a symbol names something of the program; ``labels``: one without type, too."""
    if symbol.kind in ("FILE", "SECTION") or hidden(symbol, elf.machine):
        return False
    there = symbol.section is not None or symbol.place in ("COMMON", "ABS")
    return there and (labels or symbol.kind != "NOTYPE" or symbol.binding != "LOCAL")


def fits(pattern: str, name: str) -> bool:
    """Whether a pattern means a symbol, by its name, or by what a C++ or Rust name says.

    Of C++ with or without arguments: ``board::Uart::open`` and ``board::Uart::open(int)``.
    """
    name = name.split("@", 1)[0]
    return any(fnmatchcase(text, pattern) for text in (name, plain_name(name), demangled(name)))


def readable(name: str) -> str:
    """A name as people read it: in plain, or as it is."""
    return demangled(name) or plain_name(name) or name


def nearest(pattern: str, names: Iterable[str]) -> list[str]:
    """Up to three names that may have been meant."""
    word = pattern.strip("*")
    by_text = {readable(name): name for name in sorted(names)}
    inside = [by_text[text] for text in by_text if word and word.lower() in text.lower()]
    near = [text for text in by_text if abs(len(text) - len(word)) <= len(word)]
    near.sort(key=lambda text: text[:2] != word[:2])  # of very many only the likeliest are compared
    found = [by_text[text] for text in get_close_matches(word, near[:_MOST_NAMES], cutoff=0.6)]
    return list(dict.fromkeys([*sorted(inside, key=len)[:2], *found]))[:3]


def short(text: str) -> str:
    """A name cut in its middle where it would fill the screen."""
    if len(text) <= _SHOWN_LETTERS:
        return text
    half = _SHOWN_LETTERS // 2
    return f"{text[:half]}...{text[3 - half :]}"


def shown(name: str) -> str:
    """A name in plain, with the mangled one behind it."""
    plain = readable(name)
    return f"{short(plain)} ({short(name)})" if plain != name else short(name)


def chain_text(chain: Chain | None) -> str:
    """A chain as a part of a sentence; the middle of a long one is left out."""
    if chain is None:
        return ""
    users = [short(readable(name)) for name in chain.names[1:]]
    if not users:
        return ", an entry by itself" if chain.complete else ""
    if len(users) > _SHOWN_NAMES:
        left = len(users) - _SHOWN_NAMES + 1
        users[_SHOWN_NAMES - 2 : -1] = [f"{left} more"]
    end = "" if chain.complete else ", which nothing that is known refers to"
    return f", needed by {' <- '.join(users)}{end} ({chain.source})"
