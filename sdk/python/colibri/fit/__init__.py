# SPDX-License-Identifier: Apache-2.0
"""Does a firmware fit? From an ELF to a verdict, in file order:

``inputs`` (told apart; read by ``elf``, ``objects``, ``images``, ``link_map``) → ``places`` (what
asks for memory) → ``regions`` (the board's memory, by address) → ``memory_map`` (placed and
counted, then ``placing_checks``) → ``symbols``, ``attribution`` (who owns the bytes; sources from
``debug_info``, ``debug_variables``) → ``stack`` (how deep it gets, when asked) → ``references``,
``why`` (why something is there) → ``symbol_rules``, ``variables`` (what must and must not be there)
→ ``verdict`` (budgets, one word) → ``compare`` (against a baseline: ``baseline``, ``stored``,
``pairing``, ``growth``) → ``view`` (which rows) → ``format``, ``pictures``. Names are read by
``demangle``.

>>> from colibri.fit import judge
>>> judge("firmware.elf").exit_code  # doctest: +SKIP
0
"""

from colibri.fit.elf import Elf, read_elf
from colibri.fit.findings import Finding
from colibri.fit.memory_map import MemoryMap, build_map
from colibri.fit.verdict import Verdict, judge

__all__ = ["Elf", "Finding", "MemoryMap", "Verdict", "build_map", "judge", "read_elf"]
