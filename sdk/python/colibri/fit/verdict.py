# SPDX-License-Identifier: Apache-2.0
"""The verdict: regions, budgets and forbidden symbols of a placed ELF.

Last step of the ELF trail. Exit codes: 0 fits (or nothing was asked), 1 does not fit, 2 could not
tell.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colibri.errors import EXIT_BAD_INPUT, EXIT_DOES_NOT_FIT, EXIT_OK, SizeError
from colibri.fit.attribution import Attribution, attribution
from colibri.fit.debug_info import read_sources
from colibri.fit.elf import Elf, Symbol
from colibri.fit.findings import Finding, summed_up
from colibri.fit.inputs import read_input
from colibri.fit.link_map import orphans, read_map, with_map
from colibri.fit.linker_regions import check_linker_regions
from colibri.fit.memory_map import MemoryMap, Usage, build_map
from colibri.fit.placing_checks import beyond_class
from colibri.fit.regions import BoardLike
from colibri.fit.stack.analysis import StackOptions, StackReport, analyse
from colibri.fit.stack.report import stack_findings
from colibri.fit.symbols import OwnSymbol, attribute

_FORBIDDEN = {
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
_PATTERN = re.compile("|".join(f"(?P<{group}>{text})" for group, text in _FORBIDDEN.items()))
_MACHINES = {"cortex-m": "ARM", "aarch64": "AARCH64", "riscv": "RISCV"}
_UNTOLD = "stack-unknown"
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


def judge(
    path: str | Path | Sequence[str | Path],
    board: BoardLike | None = None,
    image: Path | None = None,
    stack: StackOptions | None = None,
    *,
    link_map: Path | None = None,
    base: int | None = None,
    groups: Mapping[str, Sequence[str]] | None = None,
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

    Raises
    ------
    SizeError
        An input that cannot be judged.
    """
    with _collector_at_rest():
        return _judge(path, board, image, stack, link_map, base, groups)


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


def _judge(
    path: str | Path | Sequence[str | Path],
    board: BoardLike | None,
    image: Path | None,
    stack: StackOptions | None,
    link_map: Path | None,
    base: int | None,
    groups: Mapping[str, Sequence[str]] | None,
) -> Verdict:
    elf = read_input([path] if isinstance(path, (str, Path)) else path, base)
    if link_map is not None:
        elf = with_map(elf, read_map(link_map))
    if stack is not None and elf.format != "elf":
        raise SizeError(
            f"is no ELF ({elf.format}): there is no code to bound a stack of",
            file=elf.path,
            field="--stack",
            hint="give the linked ELF",
        )
    placed = build_map(elf, board, image)
    table = attribute(placed)
    owners = attribution(placed, table, read_sources(elf), groups)
    findings = [*elf.notes, *placed.findings, *table.findings, *owners.findings]
    findings += [*orphans(elf.link_map)] if elf.link_map is not None else []
    findings += forbidden(elf, board)
    if board is not None:
        regions = [usage.region for usage in placed.usages]
        findings += board_remarks(elf, board)
        findings += beyond_class(regions)
        findings += check_linker_regions(elf.memory, regions, board.id)
        findings += budget_findings(placed, board)
    findings += region_findings(placed, board.budgets if board is not None else None)
    report = analyse(elf, stack) if stack is not None else None
    if report is not None:
        budget = getattr(getattr(board, "budgets", None), "stack_depth", None)
        findings += stack_findings(report, placed.stack_bytes, budget)
    word = decide(elf, board, findings)
    return Verdict(placed, table.rows, summed_up(findings), word, owners, report)


def decide(elf: Elf, board: BoardLike | None, findings: list[Finding]) -> str:
    """One word for all findings."""
    codes = {finding.code for finding in findings if finding.level == "error"} - {_UNTOLD}
    if elf.kind == "relocatable":
        return "unknown"
    if elf.kind == "shared" and "outside" in codes:
        return "unknown"  # its addresses are not final
    if codes:
        return "over"
    return "unknown" if (board is None and not elf.memory) or _untold(findings) else "fits"


def _untold(findings: list[Finding]) -> bool:
    """Whether a budget of the stack was set and its bound is not known."""
    return any(finding.code == _UNTOLD and finding.level == "error" for finding in findings)


# -- forbidden symbols ----------------------------------------------------------------------------


def forbidden(elf: Elf, board: BoardLike | None) -> Iterator[Finding]:
    """Functions that firmware must not contain or need; a remark where an OS provides them."""
    found = {s.name: s for s in elf.symbols if forbidden_group(s) is not None}
    if board is None or board.os != "none" or elf.kind == "relocatable":
        if found:
            yield Finding(
                "note",
                "forbidden",
                (f"contains or needs {', '.join(sorted(found))}: bare-metal firmware must not"),
                elf.path.name,
                len(found),
            )
        return
    for name, symbol in sorted(found.items()):
        where = elf.sections[symbol.section].name if symbol.section is not None else "undefined"
        how = "is needed but not defined" if symbol.place == "UNDEF" else "is linked in"
        size = f", {symbol.size:,} B" if symbol.size else ""
        yield Finding(
            "error",
            "forbidden",
            (f"{name} ({forbidden_group(symbol)}) {how}{size}"),
            where,
            symbol.size,
            0,
        )


def forbidden_group(symbol: Symbol) -> str | None:
    """The group of a forbidden function: heap, threads, stdio or exit."""
    undefined = symbol.place == "UNDEF" and symbol.binding != "WEAK"
    if symbol.kind not in ("FUNC", "GNU_IFUNC", "LOOS") and not undefined:
        return None
    if symbol.place == "UNDEF" and not undefined:
        return None  # a weak reference that nothing satisfied
    found = _PATTERN.fullmatch(symbol.name.split("@", 1)[0])
    return found.lastgroup if found is not None else None


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


def region_findings(placed: MemoryMap, budgets: Any) -> Iterator[Finding]:
    """Overflow and budget of each region that has a size."""
    for usage in placed.usages:
        region, capacity = usage.region, usage.region.capacity
        if capacity is None:
            continue
        if usage.overflow:
            last = max(usage.rows, key=lambda row: row.address + row.bytes)
            yield Finding(
                "error",
                "overflow",
                (
                    f"{region.name} overflows by {usage.overflow:,} B (last: {last.name}); it has "
                    f"{capacity:,} B"
                ),
                region.name,
                usage.used,
                capacity,
            )
        budget = budgets.regions.get(region.name) if budgets else None
        if budget is not None:
            yield from _held("uses", usage.used, usage, budget)
            if budget.span is not None:
                what = "as one flat file, gaps padded, spans"
                yield from _held(what, usage.load_span, usage, budget.span)


def _held(what: str, value: int, usage: Usage, marks: Any) -> Iterator[Finding]:
    """A region's figure against its limit and, below that, its warning mark."""
    name, capacity = usage.region.name, usage.region.capacity
    for level, code, mark in (
        ("error", "budget", marks.limit),
        ("warning", "budget-warn", marks.warn),
    ):
        most = mark.of(capacity) if mark is not None else value
        if value > most:
            text = (
                f"{name} {what} {value:,} B, {value - most:,} B more than its "
                f"{'limit' if level == 'error' else 'warning mark'} of {most:,} B"
            )
            yield Finding(level, code, text, name, value, most)
            return


def budget_findings(placed: MemoryMap, board: BoardLike) -> Iterator[Finding]:
    """The budgets that are not about one region."""
    budgets = board.budgets
    code = placed.totals["text"] + placed.totals["rodata"]
    for field, what, value in (
        ("image_bytes", "the model image", placed.image_bytes),
        ("stack_bytes", "the reserved stack", placed.stack_bytes),
        ("code_bytes", "code and constants", code),
    ):
        limit = getattr(budgets, field, None)
        if limit is not None and value > limit:
            yield Finding(
                "error",
                "budget",
                (
                    f"{what}: {value:,} B, {value - limit:,} B more than "
                    f"budgets.{field} = {limit:,} B"
                ),
                field,
                value,
                limit,
            )
