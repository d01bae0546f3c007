# SPDX-License-Identifier: Apache-2.0
"""One table: what bytes are for, what that is called, and how it looks everywhere.

The colours of two roles differ, also for people who see no red, green or blue (the tests compute
it); beside the colour there is always a letter, a name or a hatch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RoleName = Literal[
    "code", "constants", "data", "bss", "stack", "weights", "kv", "work", "slots", "application",
    "unattributed", "padding", "overflow", "free", "reserved", "system",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Role:
    """How bytes of one role look; colours are ``#rrggbb``.

    ``light`` and ``dark`` are for the background of a page; a terminal has the dark one.
    """

    name: str
    letter: str
    light: str
    dark: str
    hatched: bool = False

    @property
    def style(self) -> str:
        """Rich style of a cell that is filled with it."""
        return self.dark

    @property
    def letter_style(self) -> str:
        """Rich style of a letter on such a cell."""
        return f"{text_on(self.dark)} on {self.dark}"


def _role(name: str, letter: str, colour: str) -> Role:
    """A role of one colour on every background."""
    return Role(name, letter, colour, colour)


#: In the order in which a bar shows them, from the left.
ROLES: dict[RoleName, Role] = {
    "code": _role("code", "C", "#1f63c6"),
    "constants": _role("constants", "K", "#59b3f9"),
    "data": _role("data", "D", "#f7ab00"),
    "bss": _role("zeroed data", "Z", "#857331"),
    "stack": _role("stack", "S", "#ce8524"),
    "weights": _role("weights (image)", "W", "#755591"),
    "kv": _role("KV cache", "V", "#09734d"),
    "work": _role("work space", "B", "#9ecd95"),
    "slots": _role("expert slots", "E", "#a46ef7"),
    "application": _role("application", "A", "#ff6ec4"),
    "unattributed": _role("unattributed", "U", "#9ab46a"),
    "padding": Role("fill and padding", "P", "#cfd3da", "#4a505b", hatched=True),
    "overflow": Role("overflow", "!", "#d0021b", "#d0021b", hatched=True),
    "free": Role("free", "░", "#e9ebef", "#2b3038"),
    "reserved": Role("reserved", "R", "#787c84", "#787c84", hatched=True),
    "system": Role("system", "O", "#555a63", "#555a63", hatched=True),
}
#: Nobody's to use: at the right end of a bar, and not in its ``used``.
TAKEN: frozenset[RoleName] = frozenset({"reserved", "system"})
#: What is left or missing: computed by a bar, never one of its pieces.
COMPUTED: frozenset[RoleName] = frozenset({"free", "overflow"})


def text_on(colour: str) -> str:
    """Black or white, whichever is easier to read; the contrast is 4.5 or more on any colour."""
    return max("#000000", "#ffffff", key=lambda text: contrast(text, colour))


def contrast(one: str, other: str) -> float:
    """Contrast ratio of WCAG 2: from 1 to 21."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    """Relative luminance of an sRGB colour (IEC 61966-2-1), 0 to 1."""
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
