# SPDX-License-Identifier: Apache-2.0
"""Symbols and loadable parts of an ELF, for the CPU engines."""

from __future__ import annotations

import bisect
from pathlib import Path

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from colibri.errors import EmulateError


class Program:
    """What an engine needs of a firmware ELF."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            elf = ELFFile(file)
            self.path = path
            self.entry = int(elf["e_entry"])
            # Thumb marks code addresses with an odd bit.
            self._mask = ~1 if elf["e_machine"] == "EM_ARM" else ~0
            self.segments = [
                (int(s["p_paddr"]), bytes(s.data()))
                for s in elf.iter_segments()
                if s["p_type"] == "PT_LOAD" and s["p_filesz"]
            ]
            table = elf.get_section_by_name(".symtab")
            if not isinstance(table, SymbolTableSection):
                raise EmulateError("has no symbol table", file=path, hint="do not strip it")
            symbols = [s for s in table.iter_symbols() if s.name and not s.name.startswith("$")]
            self._values = {s.name: int(s["st_value"]) for s in symbols}
            self._sizes = {s.name: int(s["st_size"]) for s in symbols}
            functions = sorted(
                (int(s["st_value"]) & self._mask, s.name)
                for s in symbols
                if s["st_info"]["type"] == "STT_FUNC"
            )
        self._starts = [address for address, _ in functions]
        self._names = [name for _, name in functions]

    def address(self, symbol: str) -> int:
        """Address of a symbol that must be there."""
        if symbol not in self._values:
            raise EmulateError(
                f"has no symbol {symbol}", file=self.path, hint="build it with colibri build"
            )
        return self._values[symbol] & self._mask

    def size(self, symbol: str) -> int:
        """Size of a symbol that must be there."""
        self.address(symbol)
        return self._sizes[symbol]

    def where(self, pc: int) -> str:
        """``function+offset`` of a code address, or the address when no function holds it."""
        index = bisect.bisect_right(self._starts, pc & self._mask) - 1
        if index < 0:
            return f"{pc:#x}"
        return f"{self._names[index]}+{(pc & self._mask) - self._starts[index]:#x}"
