# SPDX-License-Identifier: Apache-2.0
"""Worst-case stack of any firmware ELF; `analysis` names the files in the order of reading.

>>> from colibri.fit import judge
>>> from colibri.fit.stack import StackOptions
>>> judge("firmware.elf", stack=StackOptions()).stack.bytes  # doctest: +SKIP
1272
"""

from colibri.fit.stack.analysis import Entry, StackOptions, StackReport, analyse
from colibri.fit.stack.graph import Bound, Bounds, Edge, Node

__all__ = ["Bound", "Bounds", "Edge", "Entry", "Node", "StackOptions", "StackReport", "analyse"]
