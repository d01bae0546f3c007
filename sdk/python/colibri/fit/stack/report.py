# SPDX-License-Identifier: Apache-2.0
"""Show a stack report: findings for the verdict, one JSON object, tables for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.text import Text

from colibri.cli.common import printable, table
from colibri.fit.budgets import Figure
from colibri.fit.findings import STACK_UNKNOWN, Finding, cannot_tell
from colibri.fit.stack.analysis import Entry, StackReport
from colibri.fit.stack.graph import Bound

SCREEN_UNKNOWN = 12
SCREEN_ENTRIES = 24
JSON_UNKNOWN = 1000


# -- findings -------------------------------------------------------------------------------------


def stack_findings(report: StackReport, reserved: int, budget: Any = None) -> Iterator[Finding]:
    """The report against limits: declared ones, the board's, the reserved stack, each entry's.

    Parameters
    ----------
    reserved : int
        Bytes between the linker's stack symbols, or 0.
    budget : RegionBudget, optional
        ``budgets.stack_depth`` of a board: sizes, or percentages of the reserved stack.
    """
    figure = stack_figure(report, reserved, budget)
    yield from _against(report, figure)
    if reserved and report.bytes > reserved:
        what = (
            f"the worst-case stack of {report.bytes:,} B does not fit the reserved {reserved:,} B"
        )
        yield Finding("error", "stack", what, "stack", report.bytes, reserved)
    yield from _entry_limits(report)
    yield from _absent(report)
    if not report.complete:
        asked = figure.limit is not None or any(e.limit for e in report.counted)
        yield _incomplete(report, asked)
    open_handlers = [entry for entry in report.entries if entry.role == "exception"]
    if open_handlers:
        names = ", ".join(entry.name for entry in open_handlers[:4])
        what = f"{len(open_handlers)} handlers have no declared priority and do not count: {names}"
        yield Finding("note", "stack-handlers", what, "stack", len(open_handlers))


def stack_figure(report: StackReport, reserved: int, budget: Any = None) -> Figure:
    """The worst case with the lower of declared and board's marks.

    A bound that is not complete is not known, unless what is known is above the limit already.
    """
    warn, limit = budget.marks(reserved or None) if budget is not None else (None, None)
    warn, limit = _lower(warn, report.warn), _lower(limit, report.limit)
    known = report.complete or (limit is not None and report.bytes > limit)
    untold = ""
    if not reserved and budget is not None and budget.relative:
        untold = "no __stack_bottom and __stack_top tell the reserved stack"
    return Figure(
        "stack_depth", "worst-case stack", report.bytes if known else None, "budgets.stack_depth",
        warn=warn, limit=limit, capacity=reserved or None, untold=untold,
    )  # fmt: skip


def _lower(one: int | None, other: int | None) -> int | None:
    return min((mark for mark in (one, other) if mark is not None), default=None)


def _against(report: StackReport, figure: Figure) -> Iterator[Finding]:
    for level, code, name, most in (
        ("error", "stack", "limit", figure.limit),
        ("warning", "stack-warn", "warning mark", figure.warn),
    ):
        if most is not None and report.bytes > most:
            what = (
                f"the worst-case stack is {report.bytes:,} B, {report.bytes - most:,.0f} B more "
                f"than its {name} of {most:,.0f} B"
            )
            yield Finding(level, code, what, "stack", report.bytes, int(most))
            return


def _entry_limits(report: StackReport) -> Iterator[Finding]:
    for entry in report.entries:
        if entry.limit is not None and entry.bound.bytes > entry.limit:
            what = f"{entry.name} takes {entry.bound.bytes:,} B of stack, limit {entry.limit:,} B"
            yield Finding("error", "stack", what, entry.name, entry.bound.bytes, entry.limit)


def _absent(report: StackReport) -> Iterator[Finding]:
    """Declared entries that no function has: misspelt, or inlined."""
    for pattern, rule in report.absent.items():
        what = f"no function is called {pattern!r} (misspelt, dropped or inlined?)"
        if rule.limit is not None:
            yield cannot_tell(f"{what}, so its limit cannot be held", f"stack.entries.{pattern}")
        else:
            yield Finding("warning", "stack-entry", what, pattern)


def _incomplete(report: StackReport, asked: bool) -> Finding:
    """An error where a budget asks for the bound: then it cannot be told whether it is kept."""
    unknown = dict.fromkeys(u for entry in report.counted for u in entry.bound.unknown)
    first = next(iter(unknown))
    more = f", and {len(unknown) - 1} more" if len(unknown) > 1 else ""
    what = f"the worst-case stack is not known: {first.function}: {first.what}{more}"
    level = "error" if asked else "warning"
    return Finding(level, STACK_UNKNOWN, what, first.function, len(unknown))


# -- JSON -----------------------------------------------------------------------------------------


def stack_json(report: StackReport, reserved: int) -> dict[str, Any]:
    """The value of ``stack`` in the result."""
    return {
        "method": report.method,
        "bytes": report.bytes,
        "complete": report.complete,
        "thread_bytes": report.thread_bytes,
        "interrupt_bytes": report.interrupt_bytes,
        "interrupt_frame": report.interrupt_frame,
        "reserved": reserved or None,
        "levels": [
            {"priority": level.priority, "name": level.name, "bytes": level.bytes}
            for level in report.levels
        ],
        "entries": [_entry_json(entry) for entry in report.entries],
        "notes": list(report.notes[:JSON_UNKNOWN]),
    }


def _entry_json(entry: Entry) -> dict[str, Any]:
    bound = entry.bound
    return {
        "name": entry.name,
        "role": entry.role,
        "what": entry.what,
        "priority": entry.priority,
        "limit": entry.limit,
        "bytes": bound.bytes,
        "complete": bound.complete,
        "functions": bound.functions,
        "chain": [{"function": link.name, "bytes": link.bytes} for link in bound.chain],
        "unknown": [
            {"function": unknown.function, "what": unknown.what}
            for unknown in bound.unknown[:JSON_UNKNOWN]
        ],
        "unknown_total": len(bound.unknown),
    }


# -- tables ---------------------------------------------------------------------------------------


def show_stack(console: Console, report: StackReport, reserved: int) -> None:
    """Entries with their chains, what is unknown, interrupts, and the sum."""
    shown = table("worst-case stack", "entry", ">bytes", "deepest chain (function: its bytes)")
    for entry in report.entries[:SCREEN_ENTRIES]:
        name = entry.name if entry.role == "thread" else f"{entry.name} ({entry.role})"
        shown.add_row(_cell(name), _bytes(entry.bound), _cell(_chain(entry.bound)))
    rest = report.entries[SCREEN_ENTRIES:]
    if rest:
        shown.add_row(f"{len(rest):,} more", f"{max(e.bound.bytes for e in rest):,}", "")
    for level in report.levels:
        what = f"{level.name}, with the {report.interrupt_frame} B that the CPU stores"
        shown.add_row(f"interrupts of priority {level.priority}", f"{level.bytes:,}", _cell(what))
    of = f" of {reserved:,} B reserved" if reserved else ""
    least = "" if report.complete else "at least "
    shown.add_row("together", f"{least}{report.bytes:,}", of.strip())
    console.print(shown)
    _show_unknown(console, report)
    for note in report.notes[:SCREEN_UNKNOWN]:
        console.print(Text(printable(note), style="dim"), soft_wrap=True)


def _show_unknown(console: Console, report: StackReport) -> None:
    unknown = dict.fromkeys(u for entry in report.entries for u in entry.bound.unknown)
    if not unknown:
        return
    shown = table("unknown: the stack may be deeper there", "function", "what")
    for one in list(unknown)[:SCREEN_UNKNOWN]:
        shown.add_row(_cell(one.function), _cell(one.what))
    if len(unknown) > SCREEN_UNKNOWN:
        shown.add_row(f"{len(unknown) - SCREEN_UNKNOWN:,} more", "")
    console.print(shown)


def _bytes(bound: Bound) -> str:
    return f"{bound.bytes:,}" if bound.complete else f"at least {bound.bytes:,}"


def _chain(bound: Bound) -> str:
    return ", ".join(f"{link.name}: {link.bytes:,}" for link in bound.chain)


def _cell(text: str) -> Text:
    return Text("".join(c if c.isprintable() else "?" for c in text))
