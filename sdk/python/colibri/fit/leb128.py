# SPDX-License-Identifier: Apache-2.0
"""LEB128, the numbers of variable length that DWARF is made of."""

from __future__ import annotations

from elftools.common.exceptions import ELFError

_MOST_BITS = 70


def uleb(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned LEB128 number of up to 64 bits, and where the next byte is.

    Raises
    ------
    ELFError, IndexError
        It is longer than that, or the data end within it.
    """
    value = shift = 0
    while data[at] & 0x80:
        if shift > _MOST_BITS:
            raise ELFError("a number has more than 64 bits")
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | data[at] << shift, at + 1
