# SPDX-License-Identifier: Apache-2.0
"""Which source file global variables come from, by the entries of DWARF units.

Only entries of a unit itself and of its namespaces are looked at; functions and types are passed
over, in one step where the compiler says where they end. DWARF 5, 7.5 "Format of Debugging
Information", tells the sizes of forms.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from elftools.common.exceptions import ELFError

from colibri.fit.leb128 import uleb

_VARIABLE, _NAMESPACE = 0x34, 0x39
_SIBLING, _LOCATION, _ORIGIN, _DECL_FILE, _SPECIFICATION = 0x01, 0x02, 0x31, 0x3A, 0x47
_ADDR, _ADDRX, _GNU_ADDR_INDEX = 0x03, 0xA1, 0xFB
_INDIRECT, _IMPLICIT_CONST, _REF_ADDR = 0x16, 0x21, 0x10
#: Bytes of forms that have always the same number of them.
_FIXED = {
    0x05: 2, 0x06: 4, 0x07: 8, 0x0B: 1, 0x0C: 1, 0x11: 1, 0x12: 2, 0x13: 4, 0x14: 8, 0x19: 0,
    0x1C: 4, 0x1E: 16, 0x20: 8, 0x21: 0, 0x24: 8, 0x25: 1, 0x26: 2, 0x27: 3, 0x28: 4, 0x29: 1,
    0x2A: 2, 0x2B: 3, 0x2C: 4,
}  # fmt: skip
#: Forms as wide as an offset in the file; numbers of variable length; blocks with their lengths.
_OFFSETS = frozenset({0x0E, 0x17, 0x1D, 0x1F, 0x1F20, 0x1F21})
_NUMBERS = frozenset({0x0D, 0x0F, 0x15, 0x1A, 0x1B, 0x22, 0x23, 0x1F01, 0x1F02})
_BLOCKS = {0x0A: 1, 0x03: 2, 0x04: 4, 0x09: 0, 0x18: 0}
#: Forms that hold a position relative to the unit, and their bytes.
_REFERENCES = {0x11: 1, 0x12: 2, 0x13: 4, 0x14: 8}


@dataclass(frozen=True, slots=True)
class Found:
    """A variable: its address, the number of the file that declares it (0: none is said), and
    where in the section the entry is that it completes (-1: none)."""

    address: int
    file: int
    origin: int = -1


@dataclass(slots=True)
class _Kind:
    """An abbreviation: what an entry is and has.

    ``size`` is known when all forms are fixed. ``sibling``: which attribute refers to the next
    entry, where it lies when all forms before it are fixed, and its bytes. ``placed``: it has a
    location.
    """

    tag: int
    children: bool
    attributes: list[tuple[int, int]] = field(default_factory=list)
    size: int | None = 0
    sibling: tuple[int, int | None, int] | None = None
    placed: bool = False


class VariableFinder:
    """Finds variables unit by unit, until `budget` steps have been taken.

    Parameters
    ----------
    info, abbreviations, addresses : bytes
        The sections .debug_info, .debug_abbrev and .debug_addr.
    little : bool
        The byte order.
    budget : int
        Steps that may be taken, of all units together: entries passed over at once, and attributes
        of the others.
    """

    def __init__(
        self, info: bytes, abbreviations: Any, addresses: bytes, little: bool, budget: int
    ) -> None:
        self.info, self.addresses, self.left = info, addresses, budget
        self.abbreviations = abbreviations
        self.order: Literal["little", "big"] = "little" if little else "big"
        self.wide = self.reference = 4
        self.address_size, self.address_base, self.start = 4, 0, 0
        self._tables: dict[tuple[int, int, int, int], dict[int, _Kind]] = {}

    def unit(self, unit: Any, address_base: int) -> list[Found]:
        """Variables of one unit, in its order; fewer when the budget is spent.

        Raises
        ------
        ELFError, LookupError
            The unit is damaged.
        """
        self.wide, self.start = unit.structs.dwarf_format // 8, unit.cu_offset
        self.address_size, self.address_base = unit["address_size"], address_base
        self.reference = self.wide if unit["version"] > 2 else self.address_size
        end = self.start + unit.size
        if end > len(self.info) or self.address_size not in (2, 4, 8):
            raise ELFError("a unit ends behind its section")
        return self._walk(self._kinds(unit["debug_abbrev_offset"]), unit.cu_die_offset, end)

    def _walk(self, kinds: dict[int, _Kind], at: int, end: int) -> list[Found]:
        found: list[Found] = []
        data, inside = self.info, 0  # depth below something that is neither unit nor namespace
        open_ = 0  # depth of unit and namespaces
        while at < end and self.left > 0:
            self.left -= 1
            code = data[at]
            at += 1
            if code >= 0x80:
                code, at = uleb(data, at - 1)
            if code == 0:
                if inside:
                    inside -= 1
                else:
                    open_ -= 1
                    if open_ <= 0:
                        break
                continue
            kind = kinds[code]
            if kind.sibling and kind.children and open_ and (inside or kind.tag != _NAMESPACE):
                at = self._sibling(kind, kind.sibling, at, end)
                continue
            if kind.placed and not inside and kind.tag == _VARIABLE:
                self._add(found, kind, at)
                self.left -= len(kind.attributes)
            if kind.size is not None:
                at += kind.size
            else:
                at = self._pass(kind, at)
                self.left -= len(kind.attributes)
            if kind.children:
                if not inside and (kind.tag == _NAMESPACE or not open_):
                    open_ += 1
                else:
                    inside += 1
            elif not open_:
                break
        if at > end:
            raise ELFError("an entry ends behind its unit")
        return found

    # -- one entry ------------------------------------------------------------------------------

    def _add(self, found: list[Found], kind: _Kind, at: int) -> None:
        """Note a variable that has an address of its own."""
        address, file, origin = None, 0, -1
        for attribute, form in kind.attributes:
            after = self._after(form, at)
            if attribute == _LOCATION and form in _BLOCKS:
                address = self._address(self.info[self._block(form, at) : after])
            elif attribute == _DECL_FILE:
                file = self._number(form, at, after)
            elif attribute in (_ORIGIN, _SPECIFICATION):
                relative = 0 if form == _REF_ADDR else self.start
                origin = relative + self._number(form, at, after)
            at = after
        if address is not None:
            found.append(Found(address, file, origin))

    def _address(self, expression: bytes) -> int | None:
        """The address that a location is, if it is no more than that."""
        if not expression:
            return None
        if expression[0] == _ADDR and len(expression) == 1 + self.address_size:
            return int.from_bytes(expression[1:], self.order)
        if expression[0] in (_ADDRX, _GNU_ADDR_INDEX) and len(expression) > 1:
            index, after = uleb(expression, 1)
            at = self.address_base + index * self.address_size
            data = self.addresses[at : at + self.address_size]
            if after == len(expression) and len(data) == self.address_size:
                return int.from_bytes(data, self.order)
        return None

    def _number(self, form: int, at: int, after: int) -> int:
        if form in _NUMBERS:
            return uleb(self.info, at)[0]
        return self._plain(at, after - at)

    def _sibling(self, kind: _Kind, place: tuple[int, int | None, int], at: int, end: int) -> int:
        """Where the entry behind this one and its children begins."""
        index, offset, size = place
        begin, at = at, at + (offset or 0)
        if offset is None:
            self.left -= index
            for _, form in kind.attributes[:index]:
                at = self._after(form, at)
        target = self.start + self._plain(at, size)
        if not begin < target <= end:
            raise ELFError("an entry says that the next one lies elsewhere")
        return target

    def _pass(self, kind: _Kind, at: int) -> int:
        for _, form in kind.attributes:
            at = self._after(form, at)
        return at

    def _after(self, form: int, at: int) -> int:
        """Where a value ends."""
        size = _FIXED.get(form)
        if size is not None:
            return at + size
        if form in _OFFSETS:
            return at + self.wide
        if form in _NUMBERS:
            while self.info[at] & 0x80:
                at += 1
            return at + 1
        if form in _BLOCKS:
            start = self._block(form, at)
            width = _BLOCKS[form]
            return start + (self._plain(at, width) if width else uleb(self.info, at)[0])
        if form == 0x01:
            return at + self.address_size
        if form == _REF_ADDR:
            return at + self.reference
        if form == 0x08:
            return self.info.index(b"\0", at) + 1
        if form == _INDIRECT:
            inner, at = uleb(self.info, at)
            if inner in (_INDIRECT, _IMPLICIT_CONST):
                raise ELFError("an indirect form is indirect again")
            return self._after(inner, at)
        raise ELFError(f"form {form:#x} is not known")

    def _plain(self, at: int, size: int) -> int:
        return int.from_bytes(self.info[at : at + size], self.order)

    def _block(self, form: int, at: int) -> int:
        """Where the bytes of a block begin."""
        return at + _BLOCKS[form] if _BLOCKS[form] else uleb(self.info, at)[1]

    # -- abbreviations --------------------------------------------------------------------------

    def _kinds(self, offset: int) -> dict[int, _Kind]:
        key = (offset, self.wide, self.address_size, self.reference)
        if key not in self._tables:
            self._tables[key] = self._read_kinds(offset)
        return self._tables[key]

    def _read_kinds(self, at: int) -> dict[int, _Kind]:
        kinds: dict[int, _Kind] = {}
        data: bytes = self.abbreviations.data
        while True:
            begin = at
            code, at = uleb(data, at)
            if code == 0:
                return kinds
            tag, at = uleb(data, at)
            kind = _Kind(tag, data[at] == 1)
            at += 1
            while True:
                attribute, at = uleb(data, at)
                form, at = uleb(data, at)
                if form == _IMPLICIT_CONST:
                    _, at = uleb(data, at)
                if not attribute and not form:
                    break
                if attribute == _SIBLING and form in _REFERENCES:
                    kind.sibling = (len(kind.attributes), kind.size, _REFERENCES[form])
                kind.attributes.append((attribute, form))
                kind.placed |= attribute == _LOCATION and form in _BLOCKS
                size = self._fixed(form)
                kind.size = kind.size + size if kind.size is not None and size is not None else None
            self.abbreviations.spend(at - begin)
            kinds.setdefault(code, kind)

    def _fixed(self, form: int) -> int | None:
        if form in _OFFSETS:
            return self.wide
        if form == 0x01:
            return self.address_size
        return self.reference if form == _REF_ADDR else _FIXED.get(form)
