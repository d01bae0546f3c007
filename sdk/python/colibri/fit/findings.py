# SPDX-License-Identifier: Apache-2.0
"""What the size tools have to say, one record per statement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

#: Findings of one kind beyond this many are summed up in one line.
OF_A_KIND = 20
#: Names of a chain in JSON.
MOST_NAMES = 100
#: The code of an error that says that a rule could not be held against the input.
UNTOLD = "symbols-unknown"
#: The code of an error that says that there is nothing to judge.
EMPTY = "empty"
#: The code of what says that the worst-case stack is not known; an error where a mark holds it.
STACK_UNKNOWN = "stack-unknown"
_ORDER = {"error": 0, "warning": 1, "note": 2}


@dataclass(frozen=True, slots=True)
class Chain:
    """Why a symbol is there: its name, who needs that, ..., at last an entry.

    ``source`` says what told it; not ``complete``: the last one is no entry, and nothing that is
    known refers to it.
    """

    names: tuple[str, ...]
    source: str
    complete: bool

    @property
    def bounded(self) -> list[str]:
        """The names, of which a chain that no person wrote keeps both ends."""
        names, half = list(self.names), MOST_NAMES // 2
        if len(names) <= MOST_NAMES:
            return names
        return [*names[:half], f"({len(names) - MOST_NAMES + 1:,} more)", *names[1 - half :]]


@dataclass(frozen=True, slots=True)
class Finding:
    """``level`` is error (does not fit), warning or note; ``code`` is stable, for scripts.

    ``symbol`` is what a rule about symbols is about: a name, or the pattern of the rule.
    """

    level: str
    code: str
    what: str
    where: str = ""
    value: int | None = None
    limit: int | None = None
    chain: Chain | None = None
    symbol: str = ""


def cannot_tell(what: str, where: str) -> Finding:
    """A rule that the input does not allow to be judged."""
    return Finding("error", UNTOLD, f"cannot be told: {what}", where)


def summed_up(findings: Iterable[Finding]) -> list[Finding]:
    """Errors first, and at most a screenful of each kind."""
    seen: Counter[tuple[str, str]] = Counter()
    kept: list[Finding] = []
    for finding in findings:
        key = (finding.level, finding.code)
        seen[key] += 1
        if seen[key] <= OF_A_KIND:
            kept.append(finding)
    for (level, code), times in seen.items():
        if times > OF_A_KIND:
            more = times - OF_A_KIND
            kept.append(Finding(level, code, f"{more:,} more findings of this kind", value=more))
    return sorted(kept, key=lambda finding: _ORDER[finding.level])
