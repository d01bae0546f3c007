# SPDX-License-Identifier: Apache-2.0
"""Code of an ELF as the stack analysis sees it: bytes by address, and where functions begin.

With a symbol table functions have names, sizes and, by mapping symbols, data among their code.
Of a stripped file only the sections and the addresses that are called are known: a function is
called ``sub_<address>`` then and ends where the next one begins.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from colibri.errors import SizeError
from colibri.fit.elf import SHF_EXECINSTR, Elf, Symbol
from colibri.fit.stack.steps import Flow, Step
from colibri.fit.symbols import hidden

PF_X = 1
MACHINES = ("ARM", "AARCH64", "RISCV")
_CODE = ("FUNC", "GNU_IFUNC", "LOOS")
_ANYTHING = (*_CODE, "NOTYPE")


@dataclass(frozen=True, slots=True)
class Function:
    """Where a function's code begins and ends; ``start`` has the Thumb bit."""

    name: str
    start: int
    end: int
    aliases: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)


class Stepper(Protocol):
    """What reads an instruction."""

    def step(self, pointer: int) -> Step | None: ...


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes of the file at their run address."""

    address: int
    data: bytes
    code: bool

    @property
    def end(self) -> int:
        return self.address + len(self.data)


class Program:
    """Bytes and functions of one linked ELF.

    Raises
    ------
    SizeError
        The file is not linked, or for a CPU that is not known.
    """

    def __init__(self, elf: Elf) -> None:
        if elf.machine not in MACHINES:
            raise SizeError(
                f"is for {elf.machine}",
                file=elf.path,
                field="--stack",
                hint="machine code is read of Arm, AArch64 and RISC-V",
            )
        if elf.kind == "relocatable":
            raise SizeError(
                "is a relocatable object: what it calls is decided by the linker",
                file=elf.path,
                field="--stack",
                hint="link it",
            )
        self.elf = elf
        self.word = elf.bits // 8
        self.spans = _spans(elf)
        self._starts_of_spans = [span.address for span in self.spans]
        self._symbols: dict[int, list[Symbol]] = defaultdict(list)
        self.objects: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self._index_symbols()
        self._hints = self._mapping()
        self._hint_starts = [at for at, _ in self._hints]
        self.arm_only_thumb = self._only_thumb()
        self._start_set = {a for a, group in self._symbols.items() if _is_function(group)}
        self._starts = sorted(self._start_set)
        self._found: dict[int, Function] = {}
        self._discovered = False

    # -- bytes ----------------------------------------------------------------------------------

    def read(self, address: int, size: int) -> bytes:
        """Bytes at an address, fewer where the file has no more."""
        span = self._span(address)
        if span is None:
            return b""
        start = address - span.address
        return span.data[start : start + size]

    def number(self, address: int, size: int) -> int | None:
        """A number in the byte order of data, or None where there are no bytes."""
        data = self.read(address, size)
        order = "little" if self.elf.endian == "little" else "big"
        return int.from_bytes(data, order) if len(data) == size else None  # type: ignore[arg-type]

    def is_code(self, address: int) -> bool:
        span = self._span(address)
        return span is not None and span.code

    def code_end(self, address: int) -> int:
        span = self._span(address)
        return address if span is None else span.end

    def _span(self, address: int) -> Span | None:
        index = bisect_right(self._starts_of_spans, address) - 1
        if index < 0 or address >= self.spans[index].end:
            return None
        return self.spans[index]

    # -- symbols --------------------------------------------------------------------------------

    def _index_symbols(self) -> None:
        for symbol in self.elf.symbols:
            if symbol.section is None:
                continue
            section = self.elf.sections[symbol.section]
            if symbol.kind == "OBJECT" and symbol.size:
                self.objects[symbol.name].append((symbol.address, symbol.size))
            elif (
                symbol.kind in _ANYTHING
                and section.executable
                and not hidden(symbol, self.elf.machine)
            ):
                self._symbols[symbol.address].append(symbol)

    def _mapping(self) -> list[tuple[int, str]]:
        """Mapping symbols: from which address on there is code (a, t, x) or data (d)."""
        found = {
            symbol.address: symbol.name[1]
            for symbol in self.elf.symbols
            if symbol.name[:2] in ("$a", "$t", "$d", "$x")
            and symbol.name[2:3] in ("", ".", "r")
            and symbol.section is not None
        }
        return sorted(found.items())

    def hint(self, address: int) -> str:
        """The kind of the mapping symbol in force: a, t, x, d, or nothing."""
        index = bisect_right(self._hint_starts, address) - 1
        return self._hints[index][1] if index >= 0 else ""

    def data_end(self, address: int) -> int | None:
        """Where data among code ends, by the mapping symbols; None where they do not say data."""
        index = bisect_right(self._hint_starts, address)
        if self.hint(address) != "d" or index == len(self._hints):
            return None
        return self._hint_starts[index]

    def _only_thumb(self) -> bool:
        """Cortex-M runs nothing but Thumb code: so says its vector table or each function."""
        functions = [s for s in self.elf.symbols if s.kind == "FUNC" and s.section is not None]
        if functions:
            return all(symbol.thumb for symbol in functions)
        return bool(self.elf.entry & 1)

    def pointer(self, address: int) -> int:
        """A code address with the Thumb bit that the symbols and hints there ask for."""
        if self.elf.machine != "ARM" or address & 1:
            return address
        thumb = any(symbol.thumb for symbol in self._symbols.get(address, ()))
        hint = self.hint(address)
        return address | (thumb or hint == "t" or (self.arm_only_thumb and hint != "a"))

    def plain(self, pointer: int) -> int:
        """The address that a code pointer means."""
        return pointer & ~1 if self.elf.machine == "ARM" else pointer

    # -- functions ------------------------------------------------------------------------------

    @property
    def has_functions(self) -> bool:
        """Whether the symbol table names functions."""
        return bool(self._starts) and not self._discovered

    def discover(self, decoder: Stepper) -> None:
        """Without symbols: a function begins wherever a call in straight-line order leads."""
        found: set[int] = set()
        for span in self.spans:
            at = span.address if span.code else span.end
            while at < span.end:
                pointer = self.pointer(at)
                step = decoder.step(pointer)
                if step is None:
                    at += 2 if pointer & 1 or self.elf.machine == "RISCV" else 4
                    continue
                if step.flow is Flow.CALL and isinstance(step.target, int):
                    target = self.plain(step.target)
                    if self.is_code(target) and target != at + step.size:
                        found.add(target)
                at += step.size
        self._starts, self._start_set = sorted(found), found
        self._discovered = True

    def functions(self) -> list[Function]:
        """Those that the symbol table names."""
        return [self.function(self.pointer(at)) for at in self._starts if self.is_code(at)]

    def is_start(self, pointer: int) -> bool:
        """Whether a named function, or one that was found by a call, begins there."""
        address = self.plain(pointer)
        return address in self._found or address in self._start_set

    def function(self, pointer: int) -> Function:
        """The function that begins at a code address, whether a symbol names it or not."""
        address = self.plain(pointer)
        known = self._found.get(address)
        if known is None:
            known = self._found[address] = self._describe(pointer, address)
        return known

    def _describe(self, pointer: int, address: int) -> Function:
        group = sorted(self._symbols.get(address, []), key=_preference)
        names = list(dict.fromkeys(symbol.name for symbol in group))
        index = bisect_right(self._starts, address)
        following = self._starts[index] if index < len(self._starts) else self.code_end(address)
        end = min(following, self.code_end(address))
        size = max((symbol.size for symbol in group if symbol.kind in _CODE), default=0)
        end = min(end, address + size) if size else end
        if not names:
            names = [self._offset_name(index, address)]
        return Function(names[0], self.pointer(pointer), end, tuple(names[1:]))

    def _offset_name(self, index: int, address: int) -> str:
        """``name+0x12`` within a named function, else ``sub_<address>``."""
        if index:
            before = self._starts[index - 1]
            for symbol in self._symbols.get(before, ()):
                if before + symbol.size > address:
                    return f"{symbol.name}+{address - before:#x}"
        return f"sub_{address:0{self.word * 2}x}"

    def named(self, name: str) -> list[Function]:
        """Functions of that name: static ones of several files may share it."""
        return [
            self.function(self.pointer(at))
            for at, group in self._symbols.items()
            if self.is_code(at) and any(symbol.name == name for symbol in group)
        ]

    def pointers_in(self, address: int, size: int) -> list[int]:
        """Pointers to named functions in a data object, in its order."""
        found = []
        for at in range(address, address + min(size, 1 << 16) - self.word + 1, self.word):
            value = self.number(at, self.word)
            if value and self.is_code(self.plain(value)) and self.is_start(value):
                found.append(value)
        return found


def _is_function(group: Iterable[Symbol]) -> bool:
    return any(symbol.kind in _CODE for symbol in group)


def _preference(symbol: Symbol) -> tuple[bool, int, bool, str]:
    return (symbol.kind not in _CODE, -symbol.size, symbol.binding == "LOCAL", symbol.name)


def _spans(elf: Elf) -> list[Span]:
    """Bytes of the file at their run addresses: sections, or segments where there are none."""
    wanted = [
        (section.address, section.offset, section.size, bool(section.flags & SHF_EXECINSTR))
        for section in elf.sections
        if section.allocated and section.in_file and section.size
    ] or [
        (load.address, load.offset, load.file_size, bool(load.flags & PF_X))
        for load in elf.loads
        if load.file_size
    ]
    return sorted(_read(elf.path, wanted), key=lambda span: span.address)


def _read(path: Path, wanted: list[tuple[int, int, int, bool]]) -> list[Span]:
    try:
        with path.open("rb") as stream:
            spans = []
            for address, offset, size, code in wanted:
                stream.seek(offset)
                spans.append(Span(address, stream.read(size), code))
            return spans
    except OSError as error:
        raise SizeError(f"cannot be read: {error.strerror}", file=path) from error
