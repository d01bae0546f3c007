# SPDX-License-Identifier: Apache-2.0
"""What must and must not be in a firmware: symbols, and variables of owners that may have none.

Bare-metal firmware must not contain heap, threads, stdio and exit; a project adds rules of its
own (:class:`SymbolRules`).  A finding about a symbol has the chain of references that pulled it in.
What an input cannot tell (no symbols, no map, intermediate code of a compiler) is an error of its
own, so that no rule holds because nothing was looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from colibri.errors import SizeError
from colibri.fit.attribution import Attribution
from colibri.fit.elf import Symbol
from colibri.fit.findings import OF_A_KIND, UNTOLD, Chain, Finding, cannot_tell
from colibri.fit.memory_map import MemoryMap
from colibri.fit.references import References
from colibri.fit.regions import BoardLike
from colibri.fit.stack.declared import matches
from colibri.fit.symbol_names import (
    GROUPS,
    chain_text,
    fits,
    forbidden_group,
    is_defined,
    is_needed,
    nearest,
    short,
    shown,
)
from colibri.fit.variables import writable_findings

#: Codes of errors that are a broken rule, whatever the input is.
BROKEN = frozenset({"forbidden", "required", "misplaced", "writable", "needs"})
_GROUP = "group:"
#: What compilers call by themselves where a CPU lacks it: single floats, 32-bit division, 64-bit
#: shifts and products.  Not double and not 64-bit division: sources can do without these.
COMPILER_HELPERS = (
    "__aeabi_mem*", "__aeabi_f[!2]*", "__aeabi_f2[iul]*", "__aeabi_cf*", "__aeabi_i2f",
    "__aeabi_ui2f", "__aeabi_l2f", "__aeabi_ul2f", "__aeabi_idiv*", "__aeabi_uidiv*",
    "__aeabi_lmul", "__aeabi_llsl", "__aeabi_llsr", "__aeabi_lasr", "__aeabi_lcmp",
    "__aeabi_ulcmp", "__aeabi_uread*", "__aeabi_uwrite*", "__gnu_thumb1_case_*", "__mul[sd]i3",
    "__divsi3", "__udivsi3", "__modsi3", "__umodsi3", "__ash[lr]di3", "__lshrdi3", "__cmpdi2",
    "__ucmpdi2", "__c[lt]z[sd]i2", "__popcount[sd]i2", "__bswap[sd]i2", "__*sf[23]",
    "__fix*sf[sd]i", "__float*sf", "__riscv_save_*", "__riscv_restore_*",
)  # fmt: skip


@dataclass(frozen=True)
class SymbolRules:
    """Rules of a project.  Patterns have ``*``, ``?`` and ``[abc]``.

    Attributes
    ----------
    forbidden : tuple of str
        Names that must not be in the firmware, beside the groups heap, threads, stdio and exit
        that bare-metal boards forbid; ``group:heap`` forbids one of these without a board.
    allowed : tuple of str
        Names that are exempt from the groups and from `forbidden`.
    required : mapping of str to str
        Names that must be there, each with the region where they must be at run time, or "".
    no_writable : tuple of str
        Owners that may have no variables (.data, .bss), as
        :class:`colibri.fit.attribution.Grouping` has them; ``*`` is everything.
    may_need : tuple of str, optional
        The only names that may stay undefined; None: any.
    """

    forbidden: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    required: Mapping[str, str] = field(default_factory=dict)
    no_writable: tuple[str, ...] = ()
    may_need: tuple[str, ...] | None = None

    @property
    def count(self) -> int:
        need = 0 if self.may_need is None else 1
        return len(self.forbidden) + len(self.required) + len(self.no_writable) + need


#: What holds for the runtime's own library, libcolibri.a.
LIBRARY_RULES = SymbolRules(
    forbidden=tuple(f"{_GROUP}{name}" for name in GROUPS),
    no_writable=("*",),
    may_need=("memcpy", "memmove", "memset", "memcmp", *COMPILER_HELPERS),
)


def symbol_findings(
    placed: MemoryMap,
    owners: Attribution,
    board: BoardLike | None,
    rules: SymbolRules | None,
    references: References,
) -> list[Finding]:
    """All that the built-in groups and a project's rules have to say.

    Raises
    ------
    SizeError
        A rule that is wrong by itself: an unknown group, region or prefix.
    """
    check = _Check(placed, rules or SymbolRules(), references)
    found = [*check.forbidden(board)]
    if rules is not None and rules.count:
        found += [*check.untold(), *check.needs(), *check.required()]
        if check.has_symbols:
            found += writable_findings(placed.elf, owners, rules.no_writable)
        if not any(f.level == "error" and f.code in BROKEN | {UNTOLD} for f in found):
            found.append(Finding("note", "rules", f"{rules.count:,} rules about symbols hold"))
    return found


class _Check:
    def __init__(self, placed: MemoryMap, rules: SymbolRules, references: References) -> None:
        self.placed, self.elf, self.rules = placed, placed.elf, rules
        self.references = references
        self.unexplained: list[str] = []
        self.asked: Counter[str] = Counter()  # chains, by the code of their finding
        for pattern in rules.forbidden:
            if pattern.startswith(_GROUP) and pattern.removeprefix(_GROUP) not in GROUPS:
                raise SizeError(
                    f"there is no group {pattern.removeprefix(_GROUP)!r}",
                    field="forbidden",
                    hint=f"groups are {', '.join(GROUPS)}",
                )

    # -- what must not be there -----------------------------------------------------------------

    def forbidden(self, board: BoardLike | None) -> Iterator[Finding]:
        """Errors by the rules and, on bare metal, by the groups; else groups are a remark."""
        strict = board is not None and board.os == "none" and self.elf.kind != "relocatable"
        remarked: list[str] = []
        for symbol in self.present():
            reason = self.by_rule(symbol)
            group = None if reason else forbidden_group(symbol)
            if (reason or group) and self.is_allowed(symbol.name):
                continue
            if reason or (group and strict):
                yield self.forbidden_finding(symbol, reason or str(group))
            elif group:
                remarked.append(symbol.name)
        if remarked:
            what = f"contains or needs {', '.join(remarked)}: bare-metal firmware must not"
            yield Finding("note", "forbidden", what, self.elf.path.name, len(remarked))
        if self.unexplained:
            few = ", ".join(self.unexplained[:3])
            more = len(self.unexplained) - 3
            yield Finding(
                "note",
                "no-chain",
                f"nothing that was given tells what needs {few}"
                + (f" and {more} more" if more > 0 else "")
                + f": {self.references.hint()}",
                self.elf.path.name,
                len(self.unexplained),
            )

    def present(self) -> list[Symbol]:
        """One symbol for each name that is defined or needed, by name."""
        found: dict[str, Symbol] = {}
        for symbol in self.elf.symbols:
            if is_defined(symbol, self.elf) or is_needed(symbol):
                known = found.get(symbol.name)
                if known is None or (is_needed(known) and not is_needed(symbol)):
                    found[symbol.name] = symbol
        return [found[name] for name in sorted(found)]

    def by_rule(self, symbol: Symbol) -> str:
        """The first rule that forbids a symbol."""
        for pattern in self.rules.forbidden:
            if pattern.startswith(_GROUP):
                group = forbidden_group(symbol)
                if group == pattern.removeprefix(_GROUP):
                    return group
            elif fits(pattern, symbol.name):
                return f"forbidden by {pattern}"
        return ""

    def is_allowed(self, name: str) -> bool:
        return any(fits(pattern, name) for pattern in self.rules.allowed)

    def forbidden_finding(self, symbol: Symbol, reason: str) -> Finding:
        elf, needed = self.elf, is_needed(symbol)
        where = elf.sections[symbol.section].name if symbol.section is not None else symbol.place
        chain = self.chain(symbol, "forbidden")
        told = chain is not None and (len(chain.names) > 1 or chain.complete)
        if not told and self.asked["forbidden"] <= OF_A_KIND:
            self.unexplained.append(short(symbol.name))
        linked = "is in it" if elf.kind == "relocatable" else "is linked in"
        how = "is needed but not defined" if needed else linked
        size = f", {symbol.size:,} B" if symbol.size else ""
        return Finding(
            "error",
            "forbidden",
            f"{shown(symbol.name)} ({reason}) {how}{size}{chain_text(chain)}",
            "undefined" if needed else where,
            symbol.size,
            0,
            chain,
            symbol.name,
        )

    def chain(self, symbol: Symbol, code: str) -> Chain | None:
        """Of as many findings of a kind as are kept."""
        self.asked[code] += 1
        return self.references.chain(symbol) if self.asked[code] <= OF_A_KIND else None

    def needs(self) -> Iterator[Finding]:
        """Undefined symbols of a library that are not among those it may need."""
        patterns = self.rules.may_need
        for symbol in self.present() if patterns is not None else ():
            if not is_needed(symbol) or any(fits(p, symbol.name) for p in patterns or ()):
                continue
            if self.by_rule(symbol) and not self.is_allowed(symbol.name):
                continue  # said already
            chain = self.chain(symbol, "needs")
            yield Finding(
                "error",
                "needs",
                f"{shown(symbol.name)} is needed and not among what may be{chain_text(chain)}",
                "undefined",
                chain=chain,
                symbol=symbol.name,
            )

    # -- what must be there ---------------------------------------------------------------------

    def untold(self) -> Iterator[Finding]:
        """Inputs without symbols: no rule can be held against them."""
        elf = self.elf
        intermediate = next((note for note in elf.notes if note.code == "lto-objects"), None)
        if intermediate is not None:
            yield cannot_tell(
                "these objects hold a compiler's intermediate code: what they contain and need is "
                "known after the link",
                intermediate.where,
            )
        if elf.detail in ("areas", "segments", "sections"):
            yield cannot_tell(
                "it has no symbol table (stripped, or an image); give the ELF as it was linked",
                elf.path.name,
            )

    @property
    def has_symbols(self) -> bool:
        return self.elf.detail not in ("areas", "segments", "sections")

    def required(self) -> Iterator[Finding]:
        for pattern, region in self.rules.required.items() if self.has_symbols else ():
            self.check_region(pattern, region)
            found = self.matching(pattern)
            if not found:
                yield self.missing(pattern)
            elif region and self.elf.kind == "relocatable":
                yield cannot_tell("objects have no addresses: link first", pattern)
            else:
                for symbol in found if region else ():
                    yield from self.misplaced(symbol, region)

    def check_region(self, pattern: str, region: str) -> None:
        names = [usage.region.name for usage in self.placed.usages]
        if not region or region in names or self.elf.kind == "relocatable":
            return
        if self.placed.board is None and not self.elf.memory:
            raise SizeError(
                f"no region has a name without a board, so none is {region}",
                field=f"required {pattern}",
                hint="give --board, or the map of GNU ld",
            )
        raise SizeError(
            f"there is no region {region}",
            field=f"required {pattern}",
            hint=f"regions are {', '.join(names)}",
        )

    def matching(self, pattern: str) -> list[Symbol]:
        """Defined symbols of a name; what compilers append counts when nothing else has it."""
        elf = self.elf
        known = [s for s in elf.symbols if is_defined(s, elf, labels=True)]
        exact = [s for s in known if fits(pattern, s.name)]
        return exact or [s for s in known if matches(pattern, (s.name,))]

    def missing(self, pattern: str) -> Finding:
        elf = self.elf
        names = {s.name for s in elf.symbols if is_defined(s, elf, labels=True)}
        if elf.link_map is not None and elf.format == "map":
            if any(fits(pattern, name) for name, *_ in elf.link_map.symbols):
                return cannot_tell("the map does not tell its section: give the ELF", pattern)
            return cannot_tell("is not in the map, which has no static functions", pattern)
        near = nearest(pattern, names)
        hint = f"; nearest: {', '.join(map(shown, near))}" if near else ""
        return Finding(
            "error",
            "required",
            f"{shown(pattern)} is required and not there (dropped, inlined or renamed?){hint}",
            elf.path.name,
            symbol=pattern,
        )

    def misplaced(self, symbol: Symbol, region: str) -> Iterator[Finding]:
        there = self.regions_of(symbol)
        if there != [region]:
            yield Finding(
                "error",
                "misplaced",
                f"{shown(symbol.name)} runs in {' and '.join(there) or 'no region'}, the rule "
                f"wants {region}",
                region,
                symbol.address,
                symbol=symbol.name,
            )

    def regions_of(self, symbol: Symbol) -> list[str]:
        """Where the bytes of a symbol are at run time."""
        if symbol.section is None:
            regions = (usage.region for usage in self.placed.usages)
            return [r.name for r in regions if r.base <= symbol.address < r.end]
        section = self.elf.sections[symbol.section]
        offset = min(symbol.address - section.address, max(0, section.size - 1))
        pieces = [
            piece
            for place in self.placed.places
            if place.section == symbol.section and place.role != "load"
            for piece in place.part(offset, max(1, symbol.size))
        ]
        names = (p.region.name if p.region is not None else "no region" for p in pieces)
        return list(dict.fromkeys(names))
