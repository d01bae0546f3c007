# SPDX-License-Identifier: Apache-2.0
"""Reads of the storage that go wrong, by number.

>>> faults = parse_faults("3:eio,7-9:short,12:late=250ms,20:never,31:corrupt")
>>> faults.at(8).kind, faults.at(12).seconds, faults.at(1)
('short', 0.25, None)

Read 1 is the first that the engine asks for: the dense weights where they are loaded, else the
first missing expert.  A read that is begun again has the next number.

=========  =======================================================================================
eio        the storage answers with an error
short      half of the bytes arrive, then an error
corrupt    all bytes arrive, one of them changed
late=TIME  all is well, TIME (us, ms, s) later than it should; an error beyond the time limit
never      no answer: the port gives up after its time limit
=========  =======================================================================================
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, cast

from colibri.errors import EmulateError

Kind = Literal["eio", "short", "corrupt", "late", "never"]
#: Seconds after which the port of the twin stops a read and reports it as failed.
TIME_LIMIT = 1.0
MAX_READS = 1 << 20  # in one list
_ENTRY = re.compile(r"(\d{1,12})(?:-(\d{1,12}))?:(eio|short|corrupt|never|late)(?:=(.+))?")
_TIME = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(us|ms|s)")
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_HINT = "write NUMBER:KIND or FIRST-LAST:KIND, as in 3:eio,7-9:short,12:late=250ms,20:never"


@dataclass(frozen=True)
class ReadFault:
    """What becomes of one read; `seconds` is how late it is."""

    kind: Kind
    seconds: float = 0.0

    def duration(self, seconds: float) -> float:
        """How long the read takes that alone takes `seconds`."""
        gives_up = self.kind == "never" or self.seconds >= TIME_LIMIT
        return TIME_LIMIT if gives_up else seconds + self.seconds

    @property
    def outcome(self) -> str | None:
        """What the runtime sees: a kind of `Engine(faults=...)`, or None when nothing."""
        if self.kind == "late":
            return "fail" if self.seconds >= TIME_LIMIT else None
        return "fail" if self.kind in ("eio", "never") else self.kind


@dataclass(frozen=True)
class Faults:
    """Faults by the number of the read."""

    by_read: Mapping[int, ReadFault] = field(default_factory=dict)

    def at(self, read: int) -> ReadFault | None:
        """The fault of a read, or None."""
        return self.by_read.get(read)

    def outcomes(self) -> list[tuple[int, str]]:
        """Those that the runtime sees, for `Engine(faults=...)`."""
        found = ((read, fault.outcome) for read, fault in self.by_read.items())
        return [(read, outcome) for read, outcome in found if outcome is not None]

    def __bool__(self) -> bool:
        return bool(self.by_read)


NO_FAULTS = Faults()


def parse_faults(text: str) -> Faults:
    """Faults from a list such as ``3:eio,12:late=250ms``.

    Raises
    ------
    EmulateError
        For what is no such list, with the entry that is wrong.
    """
    found: dict[int, ReadFault] = {}
    for entry in text.split(","):
        fault, reads = _entry(entry.strip())
        for read in reads:
            if read in found:
                raise _wrong(entry, f"read {read} has a fault already")
            found[read] = fault
        if len(found) > MAX_READS:
            raise _wrong(entry, f"more than {MAX_READS:,} reads")
    return Faults(found)


def _entry(text: str) -> tuple[ReadFault, range]:
    match = _ENTRY.fullmatch(text)
    if not match:
        raise _wrong(text, "is not a fault")
    first, last, kind, value = match.groups()
    reads = range(int(first), int(last or first) + 1)
    if not reads or reads[0] < 1:
        raise _wrong(text, "reads are numbered from 1, the lower one first")
    if len(reads) > MAX_READS:
        raise _wrong(text, f"more than {MAX_READS:,} reads")
    return _fault(text, kind, value), reads


def _fault(text: str, kind: str, value: str | None) -> ReadFault:
    if (value is not None) != (kind == "late"):
        raise _wrong(text, "late takes a time, the others none")
    return ReadFault(cast(Kind, kind), _seconds(text, value) if value is not None else 0.0)


def _seconds(text: str, value: str) -> float:
    match = _TIME.fullmatch(value)
    if not match:
        raise _wrong(text, "the time is a number with us, ms or s, as in late=250ms")
    return float(match.group(1)) * _UNITS[match.group(2)]


def _wrong(entry: str, why: str) -> EmulateError:
    return EmulateError(f"{entry.strip()[:40]!r}: {why}", field="--faults", hint=_HINT)
