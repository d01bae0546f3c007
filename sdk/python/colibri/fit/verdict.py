# SPDX-License-Identifier: Apache-2.0
"""The verdict: regions, budgets and symbols of a placed ELF.

Last step of the ELF trail. Exit codes: 0 fits (or nothing was asked), 1 does not fit, 2 could not
tell.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from colibri.errors import EXIT_BAD_INPUT, EXIT_DOES_NOT_FIT, EXIT_OK, SizeError
from colibri.fit.attribution import Attribution, attribution
from colibri.fit.budgets import (
    Figure,
    budget_findings,
    empty_groups,
    figures_of,
    overflow_findings,
)
from colibri.fit.debug_info import read_sources
from colibri.fit.elf import Elf
from colibri.fit.findings import EMPTY, STACK_UNKNOWN, UNTOLD, Finding, summed_up
from colibri.fit.inputs import read_input
from colibri.fit.link_map import orphans, read_map, with_map
from colibri.fit.linker_regions import check_linker_regions
from colibri.fit.memory_map import MemoryMap, build_map
from colibri.fit.placing_checks import beyond_class
from colibri.fit.references import References
from colibri.fit.regions import BoardLike
from colibri.fit.stack.analysis import StackOptions, StackReport, analyse
from colibri.fit.stack.report import stack_figure, stack_findings
from colibri.fit.symbol_rules import BROKEN, SymbolRules, symbol_findings
from colibri.fit.symbols import OwnSymbol, attribute
from colibri.fit.why import Why, explain

_MACHINES = {"cortex-m": "ARM", "aarch64": "AARCH64", "riscv": "RISCV"}
_UNTOLD = frozenset({STACK_UNKNOWN, "budget-unknown", UNTOLD, EMPTY})
_EXITS = {"fits": EXIT_OK, "over": EXIT_DOES_NOT_FIT, "unknown": EXIT_BAD_INPUT}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Everything that `colibri size` knows; ``verdict`` is fits, over or unknown."""

    map: MemoryMap
    symbols: list[OwnSymbol]
    findings: list[Finding]
    verdict: str
    attribution: Attribution
    stack: StackReport | None = None
    figures: list[Figure] = field(default_factory=list)
    why: list[Why] = field(default_factory=list)

    @property
    def elf(self) -> Elf:
        return self.map.elf

    @property
    def exit_code(self) -> int:
        asked = self.map.board is not None or _untold(self.findings)
        if self.verdict == "unknown" and not asked:
            return EXIT_OK  # nothing was asked that could not be told
        return _EXITS[self.verdict]

    @property
    def unattributed(self) -> int:
        return sum(usage.unattributed for usage in self.map.usages)


@contextmanager
def _collector_at_rest() -> Iterator[None]:
    """Millions of records that form no cycles: walking them over and over finds nothing."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@_collector_at_rest()
def judge(
    path: str | Path | Sequence[str | Path],
    board: BoardLike | None = None,
    image: Path | None = None,
    stack: StackOptions | None = None,
    *,
    link_map: Path | None = None,
    base: int | None = None,
    groups: Mapping[str, Sequence[str]] | None = None,
    application: Mapping[str, int | str] | None = None,
    rules: SymbolRules | None = None,
    why: Sequence[str] = (),
) -> Verdict:
    """Read, place and judge one firmware.

    Parameters
    ----------
    path : path or sequence of path
        An ELF, a map file, a raw binary; or objects and archives, or HEX files, that belong
        together (:func:`colibri.fit.inputs.read_input`).
    board : BoardLike, optional
        A board with regions and budgets; without one there is a size but no verdict, unless a map
        tells the linker's regions.
    image : Path, optional
        A model image that is flashed beside the firmware.
    stack : StackOptions, optional
        Bound the stack too; of a linked ELF only.
    link_map : Path, optional
        The map file that was written with the ELF.
    base : int, optional
        Address of a raw binary.
    groups : mapping, optional
        Patterns by name of a group (:class:`colibri.fit.attribution.Grouping`).
    application : mapping, optional
        Bytes by region that the rest of the program takes. Only for firmware that does not hold it,
        such as that of ``colibri build``: it is counted beside the ELF.
    rules : SymbolRules, optional
        Symbols that must or must not be there, owners without variables.
    why : sequence of str
        Symbols, objects and libraries to explain (:func:`colibri.fit.why.explain`).

    Raises
    ------
    SizeError
        An input that cannot be judged.
    """
    paths = [Path(p) for p in ([path] if isinstance(path, (str, Path)) else path)]
    elf = read_input(paths, base)
    if link_map is not None:
        elf = with_map(elf, read_map(link_map))
    if stack is not None and elf.format != "elf":
        raise SizeError(
            f"is no ELF ({elf.format}): there is no code to bound a stack of",
            file=elf.path,
            field="--stack",
            hint="give the linked ELF",
        )
    placed = build_map(elf, board, image, application)
    table = attribute(placed)
    owners = attribution(placed, table, read_sources(elf), groups)
    findings = [*elf.notes, *placed.findings, *table.findings, *owners.findings]
    findings += [*orphans(elf.link_map)] if elf.link_map is not None else []
    references = References(elf, paths)
    findings += symbol_findings(placed, owners, board, rules, references)
    if board is not None:
        regions = [usage.region for usage in placed.usages]
        findings += board_remarks(elf, board)
        if elf.kind != "relocatable" and not placed.places:
            what = "nothing in it takes memory: a damaged file, or the link dropped everything"
            findings.append(Finding("error", EMPTY, what, elf.path.name))
        findings += beyond_class(regions)
        findings += check_linker_regions(elf.memory, regions, board.id)
    figures = figures_of(placed, owners, board.budgets if board is not None else None, groups)
    findings += [*overflow_findings(placed), *budget_findings(figures)]
    findings += empty_groups(owners, groups or {})
    report = analyse(elf, stack) if stack is not None else None
    if report is not None:
        budget = getattr(getattr(board, "budgets", None), "stack_depth", None)
        findings += stack_findings(report, placed.stack_bytes, budget)
        figures.append(stack_figure(report, placed.stack_bytes, budget))
    word = decide(elf, board, findings)
    found = summed_up(findings)
    reasons = explain(elf, references, why)
    return Verdict(placed, table.rows, found, word, owners, report, figures, reasons)


def decide(elf: Elf, board: BoardLike | None, findings: list[Finding]) -> str:
    """One word for all findings."""
    codes = {finding.code for finding in findings if finding.level == "error"} - _UNTOLD
    if elf.kind == "relocatable":
        return "over" if codes & BROKEN else "unknown"
    if elf.kind == "shared" and "outside" in codes:
        return "unknown"  # its addresses are not final
    if codes:
        return "over"
    return "unknown" if (board is None and not elf.memory) or _untold(findings) else "fits"


def _untold(findings: list[Finding]) -> bool:
    """Whether a budget or a rule was set, and what it is about is not known."""
    return any(finding.code in _UNTOLD and finding.level == "error" for finding in findings)


# -- the board ------------------------------------------------------------------------------------


def board_remarks(elf: Elf, board: BoardLike) -> Iterator[Finding]:
    for text in getattr(board, "warnings", ()):
        yield Finding("warning", "board", text, board.id)
    target = str(getattr(board.firmware, "target", ""))
    machine = next((m for prefix, m in _MACHINES.items() if target.startswith(prefix)), None)
    if machine is not None and elf.machine and machine != elf.machine:
        yield Finding(
            "warning",
            "machine",
            (f"the ELF is for {elf.machine}, the board runs {machine} ({target})"),
            elf.path.name,
        )
    if elf.kind == "relocatable":
        yield Finding(
            "warning",
            "not-linked",
            (
                "a relocatable object has no addresses, so it cannot be told whether it fits; "
                "link it"
            ),
            elf.path.name,
        )
    elif elf.kind == "shared" and board.os == "none":
        yield Finding(
            "warning",
            "not-placed",
            ("position-independent: its addresses may not be final; link it at fixed addresses"),
            elf.path.name,
        )
