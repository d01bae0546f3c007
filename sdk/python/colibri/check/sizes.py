# SPDX-License-Identifier: Apache-2.0
"""The step that judges a firmware: its own, or the one that was built."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from colibri.check.rows import BoardResult
from colibri.check.sheet import Sheet
from colibri.errors import SizeError
from colibri.fit.budgets import Figure
from colibri.fit.findings import EMPTY, STACK_UNKNOWN, UNTOLD
from colibri.fit.stack import StackOptions
from colibri.fit.symbol_names import short
from colibri.fit.symbol_rules import LIBRARY_RULES, SymbolRules
from colibri.fit.verdict import Verdict, judge
from colibri.project.loader import LoadedProject, Target
from colibri.project.model import Symbols

#: Findings that the rows of figures tell already.
_TOLD = frozenset({"budget", "budget-warn", "budget-unknown"})

#: Errors that say that something cannot be told.
_UNKNOWN = frozenset({EMPTY, STACK_UNKNOWN, UNTOLD})
_TOLD_OF_STACK = frozenset({"stack", "stack-warn"})


def size(sheet: Sheet, loaded: LoadedProject, target: Target, result: BoardResult) -> Verdict:
    """Rows of every figure of the firmware, and of whatever else is wrong with it."""
    stack = _stack_options(loaded, target)
    try:
        verdict = _judged(loaded, target, result, stack)
    except SizeError as error:
        if stack is None or _stack_asked(loaded, target):
            raise
        verdict = _judged(loaded, target, result, None)
        sheet.say("size", "stack_depth", "worst-case stack: not told", "info", str(error))
    for figure in verdict.figures:
        if figure.name == "stack_depth":
            sheet.figure("size", figure, _deepest(verdict))
        elif figure.value == 0 and (untold := _untold(figure, verdict)):
            sheet.figure("size", _not_told(figure, untold, loaded, target))
        elif figure.name != "image" or (figure.value and result.image is None):  # else of "pack"
            sheet.figure("size", figure)
    held = any(figure.name == "stack_depth" and figure.held for figure in verdict.figures)
    for finding in verdict.findings:
        told = finding.code in _TOLD or (
            finding.code in _TOLD_OF_STACK and finding.where == "stack"
        )
        told |= held and finding.code == STACK_UNKNOWN
        if not told and finding.level != "note":
            broken = "unknown" if finding.code in _UNKNOWN else "over"
            status = broken if finding.level == "error" else "warning"
            if finding.code == "machine":  # firmware of another board: no figure means anything
                status = "unknown"
            where = short(finding.symbol) or finding.where
            name = f"{finding.code}.{where}" if where else finding.code
            sheet.say("size", name, finding.code, status, finding.what)
    word = {"fits": "ok", "over": "over"}.get(verdict.verdict, "unknown")
    what = {"fits": "fits", "over": "does not fit"}.get(verdict.verdict, "no verdict")
    sheet.say("size", "verdict", f"{verdict.elf.path.name} {what}", word)
    return verdict


def _judged(
    loaded: LoadedProject, target: Target, result: BoardResult, stack: StackOptions | None
) -> Verdict:
    options, made = target.options, result.firmware
    more: dict[str, Any] = {}
    link_map: Path | None
    if options.elf is not None:
        elf = loaded.path(options.elf)
        link_map = loaded.path(options.map) if options.map else None
    else:
        elf, link_map = made.elf, made.map
        if target.application:
            more["application"] = target.application
    image = result.image if _flashed(target, result) else None
    return judge(
        elf, target.board, image, stack, link_map=link_map, groups=loaded.project.groups,
        rules=_rules(target.symbols), **more,
    )  # fmt: skip


def _rules(symbols: Symbols) -> SymbolRules:
    return SymbolRules(
        tuple(symbols.forbidden), tuple(symbols.allowed), symbols.required,
        tuple(symbols.no_writable), None if symbols.may_need is None else tuple(symbols.may_need),
    )  # fmt: skip


def library(sheet: Sheet, result: BoardResult) -> None:
    """A row about the runtime in the build: no heap, no threads, no variables of its own."""
    made = result.firmware
    verdict = judge(made.library, rules=LIBRARY_RULES)
    broken = [finding.what for finding in verdict.findings if finding.level == "error"]
    what = f"{made.library.name}: no heap, threads, stdio or variables"
    sheet.say("build", "library", what, "over" if broken else "ok", "; ".join(broken))


def _flashed(target: Target, result: BoardResult) -> bool:
    """Whether the image lies beside the firmware in the board's model region."""
    board, made = target.board, result.firmware
    if board.os != "none" or not board.firmware.model_region:
        return False
    return made is None or made.layout is None or not made.layout.tables_bytes


def _stack_asked(loaded: LoadedProject, target: Target) -> bool:
    asked = (target.board.budgets.stack_depth, loaded.project.stack, target.options.su or None)
    return asked != (None, None, None)


def _stack_options(loaded: LoadedProject, target: Target) -> StackOptions | None:
    """The stack is bounded where firmware has one of its own, or where a mark asks for it."""
    asked = _stack_asked(loaded, target)
    if not asked and (target.board.os != "none" or find_spec("capstone") is None):
        return None
    su = tuple(loaded.path(path) for path in target.options.su)
    return StackOptions((), su, (loaded.file,) if loaded.project.stack is not None else ())


def _untold(figure: Figure, verdict: Verdict) -> str:
    """Why nothing was found of what may be there."""
    if figure.name == "stack":
        return "no __stack_bottom and __stack_top tell it"
    if figure.name.startswith("region.") and verdict.elf.detail == "areas":
        return "an image tells what is stored, not what memory the firmware takes"
    return ""


def _not_told(figure: Figure, untold: str, loaded: LoadedProject, target: Target) -> Figure:
    """Unknown where the project holds the figure, else no figure: board files hold many."""
    region = figure.name.partition(".")[2]
    for budgets in (loaded.project.budgets, target.options.budgets):
        if region in budgets.regions if region else budgets.stack_bytes is not None:
            return replace(figure, value=None, untold=untold)
    return replace(figure, value=None, warn=None, limit=None)


def _deepest(verdict: Verdict) -> str:
    """What the bound does not know, and the chain that it comes from."""
    assert verdict.stack is not None
    unknown = [finding.what for finding in verdict.findings if finding.code == STACK_UNKNOWN]
    entries = [entry for entry in verdict.stack.counted if entry.bound.chain]
    if not entries:
        return "; ".join(unknown)
    deepest = max(entries, key=lambda entry: entry.bound.bytes)
    return "; ".join([*unknown, " → ".join(link.name for link in deepest.bound.chain)])
