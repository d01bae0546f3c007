# SPDX-License-Identifier: Apache-2.0
"""Variables of owners that may have none: what the rule ``no_writable`` finds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from colibri.errors import SizeError
from colibri.fit.attribution import Attribution, Grouping, Owned
from colibri.fit.elf import SHF_TLS, Elf, Symbol
from colibri.fit.findings import Finding, cannot_tell
from colibri.fit.objects import SLIM, member_and_library
from colibri.fit.symbol_names import shown

#: Writable by their flags, and no variables: the start-up code or the loader reads them.
_NO_VARIABLES = (".data.rel.ro", ".init_array", ".preinit_array", ".fini_array", ".ctors", ".dtors")


def writable_findings(elf: Elf, owners: Attribution, patterns: Sequence[str]) -> Iterator[Finding]:
    """Variables of the owners that ``patterns`` name, and patterns that cannot be held.

    Parameters
    ----------
    elf : Elf
        With a symbol table.
    owners : Attribution
        Its bytes by symbol, section, object, library and source.
    patterns : sequence of str
        As in a group (:class:`colibri.fit.attribution.Grouping`); ``*`` is everything.

    Raises
    ------
    SizeError
        A pattern with a prefix that is none.
    """
    rules = {pattern: _grouping(pattern) for pattern in patterns}
    matched: set[str] = set()
    left, sourceless = _variable_bytes(elf), False
    for part in [*owners.owned, *_unplaced(elf)]:
        fitting = [p for p, rule in rules.items() if p == "*" or rule.of(part) == p]
        matched.update(fitting)
        size = max(part.charged.values(), default=0)  # stored and run: the same bytes
        if part.section in left and size:
            left[part.section] -= size
            sourceless |= not part.source
            if fitting:
                yield _variable(part, size, fitting[0])
    for name, size in left.items() if "*" in rules else ():
        if size > 0:
            yield _variable(Owned({}, section=name), size, "*")
    for pattern in rules:
        if not _is_known(pattern, elf, owners, sourceless):
            yield cannot_tell(
                "which object or source has which variable is not known: give --map, link without "
                "link-time optimisation, or use symbol:NAME",
                pattern,
            )
        elif pattern not in matched and pattern != "*":
            what = "this rule about variables names nothing that is in it"
            yield Finding("warning", "rule-unused", what, pattern)


def _is_known(pattern: str, elf: Elf, owners: Attribution, sourceless: bool) -> bool:
    """Whether all variables have what a pattern is held against."""
    what = pattern.partition(":")[0]
    if pattern == "*" or what in ("symbol", "section", "region"):
        return True
    if what == "source":
        return not sourceless
    lto = any(finding.code == "lto" for finding in owners.findings)
    return elf.kind == "relocatable" or (elf.link_map is not None and not lto)


def _variable_bytes(elf: Elf) -> dict[str, int]:
    """Bytes of variables by section name; thread-local and common ones are variables too."""
    sizes: dict[str, int] = {}
    for section in elf.sections:
        name = section.name
        if section.allocated and section.writable and not name.startswith(_NO_VARIABLES):
            sizes[name] = sizes.get(name, 0) + section.size
    for part in _unplaced(elf):
        sizes.setdefault(part.section, 0)
    return sizes


def _unplaced(elf: Elf) -> Iterator[Owned]:
    """Variables that take no memory yet, or as much as there are threads."""
    for symbol in elf.symbols:
        section = elf.sections[symbol.section] if symbol.section is not None else None
        if symbol.place == "COMMON" and symbol.name != SLIM:
            yield _owned(symbol, "COMMON", symbol.member)
        elif section is not None and section.flags & SHF_TLS and not section.takes_memory:
            yield _owned(symbol, section.name, section.member)


def _owned(symbol: Symbol, section: str, member: str) -> Owned:
    origin, library = member_and_library(member)
    return Owned({"": symbol.size}, symbol.name, section, origin, library, symbol.file)


def _grouping(pattern: str) -> Grouping:
    try:
        return Grouping({pattern: [pattern]})
    except SizeError as error:
        raise SizeError(error.what, field="no_writable", hint=error.hint) from None


def _variable(part: Owned, size: int, pattern: str) -> Finding:
    name = shown(part.symbol) if part.symbol else f"a part of {part.section} without a symbol"
    owner = f"{part.library}({part.object})" if part.library else part.object
    of = f" of {owner}" if owner else ""
    return Finding(
        "error",
        "writable",
        f"{name}{of}: {size:,} B that can be written, and {pattern} may have none",
        part.section,
        size,
        0,
    )
