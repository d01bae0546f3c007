# SPDX-License-Identifier: Apache-2.0
"""Static libraries: members of GNU, BSD and thin archives.

Layout: `ar(5)` of GNU and BSD. A header of 60 bytes of text before each member, data padded to
even offsets. GNU keeps long names in a member ``//`` and refers to them as ``/OFFSET``; BSD puts
them before the data (``#1/LENGTH``). A thin archive has only paths, relative to its own folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from colibri.errors import SizeError

MAGIC, THIN_MAGIC = b"!<arch>\n", b"!<thin>\n"
_HEADER = 60
_END = b"`\n"
#: What a thin archive may bring in: it can name one large file many times.
MAX_THIN_BYTES = 1 << 30
#: Symbol indices of GNU, BSD and Microsoft: no members.
_INDICES = ("/", "/SYM64/", "__.SYMDEF", "__.SYMDEF SORTED", "__.SYMDEF_64", "__.SYMDEF_64 SORTED")
_NAMES = "//"


@dataclass(frozen=True, slots=True)
class Member:
    """One object of an archive."""

    name: str
    data: bytes


def read_members(path: Path) -> Iterator[Member]:
    """Every member that is not an index, in file order.

    Raises
    ------
    SizeError
        The archive is damaged or truncated, or a thin one names a file that is not there.
    """
    try:
        with path.open("rb") as stream:
            yield from _Archive(path, stream).members()
    except OSError as error:
        raise SizeError(f"cannot be read: {error.strerror}", file=path) from error


class _Archive:
    def __init__(self, path: Path, stream: BinaryIO) -> None:
        self.path, self.stream = path, stream
        self.size = path.stat().st_size
        self.thin = stream.read(len(MAGIC)) == THIN_MAGIC
        self.long_names = b""
        self.thin_bytes = 0

    def bad(self, at: int, what: str) -> SizeError:
        return SizeError(
            what,
            file=self.path,
            field=f"member header at byte {at}",
            hint="the archive is damaged or truncated, make it again",
        )

    def members(self) -> Iterator[Member]:
        at = len(MAGIC)
        while at < self.size:
            name, size = self.header(at)
            start, stored = at + _HEADER, not self.thin or name in (*_INDICES, _NAMES)
            if stored and start + size > self.size:
                raise self.bad(at, f"ends at byte {start + size} of a {self.size} byte file")
            if name == _NAMES:
                self.long_names = self.read(start, size)
            elif name not in _INDICES:
                member = self.member(at, name, start, size)
                if member.name not in _INDICES:
                    yield member
            at = start + (size + size % 2 if stored else 0)

    def header(self, at: int) -> tuple[str, int]:
        """The name field and the size of the member at ``at``."""
        raw = self.read(at, _HEADER)
        if len(raw) < _HEADER or raw[58:] != _END:
            raise self.bad(at, f"does not end with 60 0a (has {raw[58:].hex(' ') or 'nothing'})")
        digits = raw[48:58].strip()
        if not digits.isdigit():
            raise self.bad(at, f"has size {digits.decode('ascii', 'replace')!r}, not a number")
        return raw[:16].decode("utf-8", "replace").rstrip(" "), int(digits)

    def member(self, at: int, name: str, start: int, size: int) -> Member:
        if name.startswith("#1/"):  # BSD: the name comes before the data
            length = self.number(at, name[3:])
            if length > size:
                raise self.bad(at, f"has a name of {length} bytes in a member of {size}")
            text = self.read(start, length).rstrip(b"\0").decode("utf-8", "replace")
            return Member(text, self.read(start + length, size - length))
        origin = 0
        if name.startswith("/"):  # GNU: /OFFSET, in a nested thin archive /OFFSET:ORIGIN
            offset, _, nested = name[1:].partition(":")
            origin = self.number(at, nested) if nested else 0
            name = self.long_name(at, self.number(at, offset))
        name = name.removesuffix("/")
        return (
            Member(name, self.elsewhere(at, name, origin, size))
            if self.thin
            else Member(name, self.read(start, size))
        )

    def number(self, at: int, text: str) -> int:
        if not (text.isascii() and text.isdigit()):
            raise self.bad(at, f"has {text!r} where a number belongs in its name")
        return int(text)

    def long_name(self, at: int, offset: int) -> str:
        if offset >= len(self.long_names):
            raise self.bad(at, f"names entry {offset} of {len(self.long_names)} bytes of names")
        return self.long_names[offset:].split(b"\n", 1)[0].decode("utf-8", "replace")

    def elsewhere(self, at: int, name: str, origin: int, size: int) -> bytes:
        """The file that a thin archive names; ``origin`` is its header in a nested archive."""
        file = self.path.parent / name
        if not file.is_file():
            raise self.bad(at, f"names {name}, and {file} is not a regular file")
        self.thin_bytes += size
        if self.thin_bytes > MAX_THIN_BYTES:
            raise self.bad(at, f"brings the members to more than {MAX_THIN_BYTES:,} B")
        with file.open("rb") as stream:
            stream.seek(origin + _HEADER if origin else 0)
            data = stream.read(size + 1)
        if len(data) < size or (not origin and len(data) != size):
            raise self.bad(at, f"says that {name} has {size} bytes; it has others")
        return data[:size]

    def read(self, offset: int, size: int) -> bytes:
        self.stream.seek(offset)
        return self.stream.read(size)
