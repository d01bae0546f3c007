# SPDX-License-Identifier: Apache-2.0
"""From an ELF to its worst-case stack, in file order:

``program`` (code and functions) → ``disassembler``, ``arm``, ``aarch64``, ``riscv`` (instructions)
→ ``steps`` (what they do to the stack pointer) → ``walk`` (one function) → ``usage_files``,
``declared`` (what code does not tell) → ``code_graph`` or ``ci_graph`` (who calls whom)
→ ``graph`` (the deepest chain) → ``vectors`` (interrupts) → here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from colibri.errors import SizeError
from colibri.fit.elf import Elf
from colibri.fit.stack.ci_graph import CiGraph
from colibri.fit.stack.code_graph import CodeGraph
from colibri.fit.stack.declared import Declared, EntryRule, declared_for
from colibri.fit.stack.graph import Bound, Bounds
from colibri.fit.stack.program import MACHINES, Program
from colibri.fit.stack.usage_files import UsageFiles, read_usage
from colibri.fit.stack.vectors import exception_frame, vector_table


@dataclass(frozen=True)
class StackOptions:
    """What is asked: entries by name or pattern, GCC's files, files with a table [stack]."""

    entries: tuple[str, ...] = ()
    usage: tuple[Path, ...] = ()
    calls: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """A function that something outside the program calls, with its bound.

    ``role`` is thread, exception (a handler that no priority is declared for) or interrupt.
    """

    name: str
    role: str
    what: str
    bound: Bound
    priority: int | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Level:
    """Interrupts of one priority, of which one is active at a time; ``bytes`` with its frame."""

    priority: int
    name: str
    bytes: int


@dataclass(frozen=True)
class StackReport:
    """The worst case: the deepest thread, and one interrupt of each priority on top of it.

    Attributes
    ----------
    method : str
        ``code``: read from machine code; ``ci``: from GCC's call graphs alone.
    thread_bytes, interrupt_bytes : int
        The two parts of ``bytes``.
    complete : bool
        Nothing is unknown below any entry that counts; else ``bytes`` is a lower bound.
    absent : mapping of str to EntryRule
        Entries that the user's tables declare and no function has.
    """

    method: str
    entries: tuple[Entry, ...]
    levels: tuple[Level, ...]
    interrupt_frame: int
    notes: tuple[str, ...]
    warn: int | None = None
    limit: int | None = None
    absent: Mapping[str, EntryRule] = field(default_factory=dict)

    @property
    def counted(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.role != "exception"]

    @property
    def thread_bytes(self) -> int:
        return max((e.bound.bytes for e in self.entries if e.role == "thread"), default=0)

    @property
    def interrupt_bytes(self) -> int:
        return sum(level.bytes for level in self.levels)

    @property
    def bytes(self) -> int:
        return self.thread_bytes + self.interrupt_bytes

    @property
    def complete(self) -> bool:
        return all(entry.bound.complete for entry in self.counted)


def analyse(elf: Elf, options: StackOptions) -> StackReport:
    """The worst-case stack of an ELF.

    Raises
    ------
    SizeError
        The code cannot be read and there is no call graph of GCC, a file is wrong, or no entry is
        found.
    """
    declared = declared_for((symbol.name for symbol in elf.symbols), options.calls)
    usage = read_usage(options.usage) if options.usage else None
    readable = elf.machine in MACHINES and find_spec("capstone") is not None
    if not readable and usage is not None and usage.has_calls:
        return _from_ci(usage, declared, options)
    return _from_code(elf, usage, declared, options)


def _absent(graph: CodeGraph | CiGraph, declared: Declared) -> dict[str, EntryRule]:
    """What ships declares the entries of libraries, of which a firmware takes what it needs."""
    tables = [table for table in declared.tables if not table.when]
    rules = {pattern: rule for table in tables for pattern, rule in table.entries.items()}
    return {pattern: rule for pattern, rule in rules.items() if not graph.find(pattern)}


# -- from code ------------------------------------------------------------------------------------


def _from_code(
    elf: Elf, usage: UsageFiles | None, declared: Declared, options: StackOptions
) -> StackReport:
    program = Program(elf)
    graph = CodeGraph(program, declared, usage)
    handlers = vector_table(program)
    starts = _starts(graph, declared, options, handlers)
    if not starts:
        raise _no_entry(elf, options)
    numbers = graph.add(list(starts))
    bounds = Bounds(graph.nodes, graph.turns)
    entries = []
    for (pointer, what), number in zip(starts.items(), numbers, strict=True):
        rule = declared.entry(graph.functions[number].names) or EntryRule()
        exception = pointer in handlers and "Reset" not in handlers[pointer]
        asked = exception and not options.entries
        entries.append(_entry(bounds.bound(number), what, rule, asked))
    frame = _interrupt_frame(elf, declared)
    notes = _notes(program, graph)
    return _report("code", entries, frame, notes, declared, _absent(graph, declared))


def _starts(
    graph: CodeGraph, declared: Declared, options: StackOptions, handlers: dict[int, list[str]]
) -> dict[int, str]:
    """Code pointers of the entries, and how each was found."""
    if options.entries:
        found = {pattern: graph.find(pattern) for pattern in options.entries}
        missing = [pattern for pattern, starts in found.items() if not starts]
        if missing:
            raise SizeError(
                f"no function is called {missing[0]!r}",
                file=graph.program.elf.path,
                field="--entry",
                hint="names and patterns are those of the symbol table",
            )
        return {start: "asked for" for starts in found.values() for start in starts}
    starts: dict[int, str] = {}
    entry = graph.program.elf.entry
    if entry and graph.program.is_code(graph.program.plain(entry)):
        starts[graph.program.function(graph.program.pointer(entry)).start] = "entry of the ELF"
    for pointer, exceptions in handlers.items():
        more = f" and {len(exceptions) - 3} more" if len(exceptions) > 3 else ""
        starts.setdefault(pointer, f"vector: {', '.join(exceptions[:3])}{more}")
    for table in declared.tables:
        for pattern in table.entries:
            for start in graph.find(pattern):
                starts.setdefault(start, "declared")
    return starts


def _entry(bound: Bound, what: str, rule: EntryRule, exception: bool) -> Entry:
    role = "interrupt" if rule.priority is not None else "exception" if exception else "thread"
    return Entry(bound.name, role, what, bound, rule.priority, rule.limit)


def _interrupt_frame(elf: Elf, declared: Declared) -> int:
    """Of Cortex-M by the architecture, of other CPUs as declared: their handlers save by code."""
    given = declared.setting("interrupt_frame")
    if given is not None:
        return int(given)
    cortex_m = elf.machine == "ARM"
    return exception_frame(declared.setting("fpu")) if cortex_m else 0


def _notes(program: Program, graph: CodeGraph) -> list[str]:
    notes = [f"{node.name}: {note}" for node in graph.nodes for note in node.notes]
    if not program.has_functions:
        notes.insert(0, "no symbols: functions are where calls lead, and named by address")
    return notes


def _no_entry(elf: Elf, options: StackOptions) -> SizeError:
    return SizeError(
        "has no entry point in its code",
        file=elf.path,
        field="--entry",
        hint="name a function with --entry, or in [stack.entries] of a --calls file",
    )


# -- from GCC's files -----------------------------------------------------------------------------


def _from_ci(usage: UsageFiles, declared: Declared, options: StackOptions) -> StackReport:
    graph = CiGraph(usage, declared)
    patterns = options.entries or [p for table in declared.tables for p in table.entries]
    numbers = [number for pattern in patterns for number in graph.find(pattern)]
    if options.entries and not numbers:
        raise SizeError(
            f"no .ci file has {options.entries[0]!r}", field="--entry", hint="see .ci files"
        )
    numbers = numbers or graph.find("main") or graph.roots()
    bounds = Bounds(graph.nodes, graph.turns)
    entries = [
        _entry(
            bounds.bound(number),
            "asked for" if options.entries else "of the .ci files",
            declared.entry((graph.names[number],)) or EntryRule(),
            False,
        )
        for number in dict.fromkeys(numbers)
    ]
    frame = int(declared.setting("interrupt_frame") or 0)
    notes = ["calls and frames are those of gcc's .ci files: assembly is not in them"]
    return _report("ci", entries, frame, notes, declared, _absent(graph, declared))


def _report(
    method: str,
    entries: Sequence[Entry],
    frame: int,
    notes: Iterable[str],
    declared: Declared,
    absent: Mapping[str, EntryRule],
) -> StackReport:
    ordered = sorted(entries, key=lambda entry: (entry.role != "thread", -entry.bound.bytes))
    deepest: dict[int, Entry] = {}
    for entry in ordered:
        if entry.priority is not None:
            deepest.setdefault(entry.priority, entry)
    levels = tuple(
        Level(priority, entry.name, entry.bound.bytes + frame)
        for priority, entry in sorted(deepest.items(), reverse=True)
    )
    return StackReport(
        method,
        tuple(ordered),
        levels,
        frame,
        tuple(notes),
        declared.setting("warn"),
        declared.setting("limit"),
        absent,
    )
