# SPDX-License-Identifier: Apache-2.0
"""Show a verdict: one JSON object, or tables for people."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from colibri.cli.common import table
from colibri.fit.compare import Comparison
from colibri.fit.demangle import demangled
from colibri.fit.findings import Finding
from colibri.fit.format_compare import comparison_json, show_comparison
from colibri.fit.format_owners import owners_json, show_owners
from colibri.fit.memory_map import Row, Usage
from colibri.fit.pictures import bars
from colibri.fit.stack.report import show_stack, stack_json
from colibri.fit.symbol_names import readable, short
from colibri.fit.symbols import OwnSymbol
from colibri.fit.verdict import Verdict
from colibri.fit.view import View
from colibri.fit.why import show_why, why_json
from colibri.report.bars import legend, terminal_bar
from colibri.units import format_bytes

#: Symbols in JSON and on screen; ``symbols_total`` in JSON tells how many there are.
JSON_SYMBOLS = 1000
SCREEN_ROWS = 12
EVERYTHING = View()
_STYLES = {
    "error": "bold red",
    "warning": "yellow",
    "note": "dim",
    "fits": "bold green",
    "over": "bold red",
    "unknown": "bold yellow",
}
_WORDS = {"fits": "fits", "over": "does not fit", "unknown": "no verdict"}


# -- JSON -----------------------------------------------------------------------------------------


def as_json(
    verdict: Verdict, comparison: Comparison | None = None, view: View = EVERYTHING
) -> dict[str, Any]:
    """The fields of the JSON result, without ``schema``, which the command line adds."""
    elf, placed = verdict.elf, verdict.map
    symbols = view.symbols(verdict)
    fields: dict[str, Any] = {
        "elf": str(elf.path),
        "board": placed.board,
        "machine": elf.machine,
        "bits": elf.bits,
        "endian": elf.endian,
        "kind": elf.kind,
        "format": elf.format,
        "detail": elf.detail,
        "verdict": verdict.verdict,
        "regions": [_region_json(usage) for usage in placed.usages],
        "outside": [_row_json(row) for row in placed.outside],
        "totals": placed.totals,
        "image_bytes": placed.image_bytes,
        "stack_bytes": placed.stack_bytes,
        "symbols": [_symbol_json(verdict, s) for s in symbols[: view.rows(JSON_SYMBOLS)]],
        "symbols_total": len(verdict.symbols),
        "unattributed": verdict.unattributed,
        **owners_json(verdict.attribution, view),
        "inexact": placed.inexact,
        "findings": [_finding_json(finding) for finding in verdict.findings],
        "rule": placed.rule,
    }
    if view.filters:
        fields["filter"] = _filter_json(verdict, symbols, view)
    if verdict.why:
        fields["why"] = why_json(verdict.why)
    if verdict.stack is not None:
        fields["stack"] = stack_json(verdict.stack, placed.stack_bytes)
    if comparison is not None:
        fields["baseline"] = comparison_json(comparison)
    return fields


def _filter_json(verdict: Verdict, symbols: list[OwnSymbol], view: View) -> dict[str, Any]:
    return {
        "patterns": list(view.filters),
        "symbols": len(symbols),
        "bytes": sum(s.size for s in symbols),
        "all_symbols": len(verdict.symbols),
        "all_bytes": sum(s.size for s in verdict.symbols),
    }


def _region_json(usage: Usage) -> dict[str, Any]:
    region = usage.region
    return {
        "name": region.name,
        "kind": region.kind,
        "base": region.base,
        "size": region.end - region.base,
        "reserved": region.reserved_bytes,
        "used": usage.used,
        "free": usage.free,
        "percent": usage.percent,
        "overflow": usage.overflow,
        "load_bytes": usage.load_bytes,
        "load_span": usage.load_span,
        "padding": usage.padding,
        "unattributed": usage.unattributed,
        "rows": [_row_json(row) for row in usage.rows],
    }


def _row_json(row: Row) -> dict[str, Any]:
    return {
        "name": row.name,
        "kind": row.kind,
        "role": row.role,
        "address": row.address,
        "bytes": row.bytes,
    }


def _symbol_json(verdict: Verdict, symbol: OwnSymbol) -> dict[str, Any]:
    return {
        "name": symbol.name,
        "demangled": demangled(symbol.name),
        "size": symbol.size,
        "by_region": symbol.charged,
        "region": symbol.region,
        "load_region": symbol.load_region,
        "section": verdict.elf.sections[symbol.section].name,
        "address": symbol.address,
        "kind": symbol.kind,
        "aliases": list(symbol.aliases),
        "declared_size": symbol.declared_size,
        "clipped": symbol.clipped,
        "object": symbol.object,
        "library": symbol.library,
        "source": symbol.source,
    }


def _finding_json(finding: Finding) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "level": finding.level,
        "code": finding.code,
        "what": finding.what,
        "where": finding.where,
        "value": finding.value,
        "limit": finding.limit,
    }
    if finding.chain is not None:
        fields |= {
            "chain": finding.chain.bounded,
            "chain_source": finding.chain.source,
            "chain_complete": finding.chain.complete,
        }
    return fields


# -- tables ---------------------------------------------------------------------------------------


def show(
    console: Console,
    verdict: Verdict,
    comparison: Comparison | None = None,
    view: View = EVERYTHING,
) -> None:
    """Print the result: regions, what is in them, symbols, findings, one last line."""
    if verdict.map.usages:
        _show_regions(console, verdict)
        _show_rows(console, verdict, view.rows(SCREEN_ROWS))
    else:
        _show_totals(console, verdict)
    _show_symbols(console, verdict, view)
    show_owners(console, verdict.attribution, view)
    show_why(console, verdict.why)
    if verdict.stack is not None:
        show_stack(console, verdict.stack, verdict.map.stack_bytes)
    if comparison is not None:
        show_comparison(console, comparison)
    for finding in verdict.findings:
        where = f"{_plain(finding.where)}: " if finding.where else ""
        console.print(Text(f"{finding.level:8}", style=_STYLES[finding.level]), end="")
        console.print(Text(f"{where}{_plain(finding.what)}"), soft_wrap=True)
    console.print(Text(f"Counted: {verdict.map.rule}", style="dim"), soft_wrap=True)
    regions = "regions of the linker script" if verdict.elf.memory else "no board given"
    on = f" on {verdict.map.board}" if verdict.map.board else f" ({regions})"
    line = Text(_WORDS[verdict.verdict], style=_STYLES[verdict.verdict])
    console.print(line + Text(f": {_plain(verdict.elf.path.name)}{on}"), soft_wrap=True)


def _show_regions(console: Console, verdict: Verdict) -> None:
    board = verdict.map.board or ("linker script" if verdict.elf.memory else "no board given")
    shown = table(f"{_title(verdict)} on {board}", "region", ">used", ">of", ">free", ">%", "")
    pairs = list(zip(verdict.map.usages, bars(verdict), strict=True))
    for usage, drawn in sorted(pairs, key=lambda pair: -pair[0].overflow):  # over-full ones first
        bar = terminal_bar(drawn)
        capacity = usage.region.capacity
        if capacity is None:
            shown.add_row(usage.region.name, _bytes(usage.used), "-", "-", "-", bar)
            continue
        size = format_bytes(capacity) if capacity else "0 B (no capacity)"
        free = f"-{usage.overflow:,}" if usage.overflow else f"{usage.free or 0:,}"
        shown.add_row(
            usage.region.name,
            _bytes(usage.used),
            size,
            free,
            _percent(usage.percent),
            bar,
        )
    for row in verdict.map.outside[:SCREEN_ROWS]:
        shown.add_row(
            _cell(f"outside every declared region: {row.name}"),
            _bytes(row.bytes),
            "-",
            "-",
            "-",
            f"at {row.address:#x}",
        )
    console.print(shown, legend(drawn for _, drawn in pairs), sep="\n")


def _show_rows(console: Console, verdict: Verdict, most: int | None) -> None:
    shown = table("where it goes", "region", "what", "role", ">bytes")
    for usage in verdict.map.usages:
        rows = sorted((r for r in usage.rows if r.bytes), key=lambda r: -r.bytes)
        for row in rows[:most]:
            role = {"both": "", "loose": ""}.get(row.role, row.role)
            shown.add_row(usage.region.name, _cell(row.name), role, f"{row.bytes:,}")
        rest = rows[most:] if most is not None else []
        if rest:
            total = sum(row.bytes for row in rest)
            shown.add_row(usage.region.name, f"{len(rest):,} more", "", f"{total:,}")
        if usage.padding:
            shown.add_row(
                usage.region.name,
                Text("padding and gaps, not counted", style="dim"),
                "",
                f"{usage.padding:,}",
            )
    console.print(shown)


def _show_totals(console: Console, verdict: Verdict) -> None:
    shown = table(f"{_title(verdict)} ({verdict.elf.kind})", "group", ">bytes")
    for name, size in verdict.map.totals.items():
        shown.add_row(name, f"{size:,}")
    console.print(shown)


def _show_symbols(console: Console, verdict: Verdict, view: View) -> None:
    symbols, most = view.symbols(verdict), view.rows(SCREEN_ROWS)
    shown = table("largest symbols", "symbol", "region", "section", ">bytes")
    for symbol in symbols[:most]:
        regions = [name for name in (symbol.region, symbol.load_region) if name]
        name = short(readable(symbol.name))
        name += f" (+{len(symbol.aliases)} aliases)" if symbol.aliases else ""
        section = verdict.elf.sections[symbol.section].name
        shown.add_row(_cell(name), " + ".join(regions), _cell(section), f"{symbol.size:,}")
    rest = symbols[most:] if most is not None else []
    if rest:
        total = sum(s.size for s in rest)
        shown.add_row(f"{len(rest):,} more", "", "", f"{total:,}")
    if view.filters:
        few, every = (sum(s.size for s in part) for part in (symbols, verdict.symbols))
        count = f"{len(symbols):,} / {len(verdict.symbols):,} symbols"
        shown.add_row(Text(f"shown / all: {count}", style="dim"), "", "", f"{few:,} / {every:,}")
    for usage in verdict.map.usages if not view.filters else ():
        if usage.unattributed:
            shown.add_row("unattributed", usage.region.name, "", f"{usage.unattributed:,}")
    console.print(shown)


def _title(verdict: Verdict) -> str:
    return escape(_plain(verdict.elf.path.name))


def _percent(value: float | None) -> str:
    if value is None:
        return "-"
    return "<0.1" if 0 < value < 0.1 else f"{value:.1f}"


def _bytes(value: int) -> str:
    return format_bytes(value, exact=True)


def _cell(text: str) -> Text:
    """A table cell that is shown as it is: brackets in names are not markup."""
    return Text(_plain(text))


def _plain(text: str) -> str:
    """Text of a file as it may stand on a terminal: no control characters."""
    return "".join(c if c.isprintable() else "?" for c in text)
