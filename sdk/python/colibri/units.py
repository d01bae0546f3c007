# SPDX-License-Identifier: Apache-2.0
"""Sizes with one meaning: integers are bytes, strings carry KiB, MiB or GiB.

`KB`, `K`, `MB` and the like mean 1000 to some tools and 1024 to others, so they are refused
with the text that would work.

>>> parse_size("64 KiB")
65536
>>> format_bytes(532480)
'520 KiB'
"""

from __future__ import annotations

import re
from fractions import Fraction

from colibri.errors import UnitError

SIZE_PATTERN = r"^[0-9]{1,20}( ?(KiB|MiB|GiB))?$"
PERCENT_PATTERN = r"^[0-9]{1,3}(\.[0-9]{1,6})? ?%$"
SIZE_MAX = 2**64 - 1

_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_ANY_SIZE = re.compile(r"\s*(-?[0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([A-Za-z]*)\s*", re.ASCII)
_HINT = "write an integer of bytes, or a string such as '64 KiB', '8 MiB' or '2 GiB'"


def parse_size(value: object) -> int:
    """Bytes meant by an integer or by a KiB/MiB/GiB string.

    Raises
    ------
    UnitError
        For anything else, with the value that would work when one can be guessed.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise UnitError(f"{_shown(value)} is not a size", hint=_HINT)
    size = value if isinstance(value, int) else _parse_text(value)
    if size < 0:
        raise UnitError(f"size {_shown(value)} is negative", hint="write 0 or more bytes")
    if size > SIZE_MAX:
        raise UnitError(f"size {_shown(value)} does not fit 64 bits", hint=_HINT)
    return size


def _parse_text(text: str) -> int:
    if re.fullmatch(SIZE_PATTERN, text, re.ASCII):
        number, unit = re.fullmatch(r"([0-9]+) ?(\w*)", text, re.ASCII).groups()  # type: ignore[union-attr]
        return int(number) * _UNITS[unit]
    loose = _ANY_SIZE.fullmatch(text)
    if loose is None:
        raise UnitError(f"{_shown(text)} is not a size", hint=_HINT)
    raise UnitError(*_explain(text, *loose.groups()), hint=_suggest(*loose.groups()) or _HINT)


def _explain(text: str, number: str, unit: str) -> tuple[str]:
    if number.startswith("-"):
        return (f"size {_shown(text)} is negative",)
    if _binary_unit(unit) and unit not in _UNITS:
        return (f"{_shown(text)}: unit '{unit}' has no single meaning (1000 or 1024)",)
    if "." in number:
        return (f"{_shown(text)} is not a whole number",)
    return (f"{_shown(text)} is not a size",)


def _suggest(number: str, unit: str) -> str | None:
    """The text that would work for `number` of a sloppy `unit`."""
    proper = _binary_unit(unit)
    if number.startswith("-"):
        return "write 0 or more bytes"
    if proper is None:
        return None
    if "." not in number:
        size = int(number) * _UNITS[proper]
        return f"write '{int(number)} {proper}' for {size:,} bytes" if proper else None
    whole, fraction = number.split(".")
    scaled = int(whole + fraction) * _UNITS[proper]
    size, rest = divmod(scaled, 10 ** len(fraction))
    return None if rest else f"write {_written(size)}"


def _written(size: int) -> str:
    """`size` as it may be written in a file, in the largest unit that divides it."""
    unit = next(u for u in ("GiB", "MiB", "KiB", "") if size % _UNITS[u] == 0)
    return f"'{size // _UNITS[unit]} {unit}'" if unit else str(size)


def _binary_unit(unit: str) -> str | None:
    """The binary unit that a sloppy one most likely means: K, kB, kib → KiB."""
    letter = re.fullmatch(r"([kmg])(i?b|ibytes?|bytes?)?", unit.lower())
    if letter:
        return letter[1].upper() + "iB"
    return "" if unit == "" else None


def parse_percent(text: str) -> float:
    """The number in a string such as '90 %'; more than 0, at most 100."""
    if not re.fullmatch(PERCENT_PATTERN, text, re.ASCII):
        raise UnitError(f"{_shown(text)} is not a percentage", hint="write for example '90 %'")
    percent = float(text.rstrip("% "))
    if not 0 < percent <= 100:
        raise UnitError(f"{_shown(text)} is out of range", hint="write more than 0 %, up to 100 %")
    return percent


def percent_of(whole: int | float, percent: float) -> Fraction:
    """A share without rounding: 32.3 % of 1000 are 323, where floats make it a little less."""
    return Fraction(str(whole)) * Fraction(str(percent)) / 100


def _unit_of(size: int) -> str:
    return max((unit for unit, scale in _UNITS.items() if size >= scale), key=_UNITS.__getitem__)


def format_bytes(size: int, *, exact: bool = False) -> str:
    """A size for people, in binary units.

    Parameters
    ----------
    size : int
        Bytes; negative values keep their sign.
    exact : bool
        Put the number of bytes in front: ``'131,000 B (127.9 KiB)'``.
    """
    if size < 0:
        return "-" + format_bytes(-size, exact=exact)
    unit = _unit_of(size) if size else ""
    if not unit:
        return f"{size} B"
    whole, rest = divmod(size, _UNITS[unit])
    short = f"{size / _UNITS[unit]:.1f} {unit}" if rest else f"{whole} {unit}"
    return f"{size:,} B ({short})" if exact else short


def _shown(value: object) -> str:
    """A value as it may stand in a message: short, on one line."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
