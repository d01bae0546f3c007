# SPDX-License-Identifier: Apache-2.0
"""Every input that `colibri size` takes, told apart by content, as one record.

Linked ELF, objects and archives, Intel HEX, S-records, raw bytes with an address, linker maps:
all become an :class:`~colibri.fit.elf.Elf`, so that what follows has one thing to place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from colibri.errors import SizeError
from colibri.fit.elf import IMAGE_FORMATS, Elf, read_elf
from colibri.fit.images import join_images, read_image, read_raw
from colibri.fit.link_map import looks_like_map, read_map
from colibri.fit.map_elf import elf_of_map
from colibri.fit.objects import is_archive, read_objects

_HEAD = 4096


def read_input(paths: Sequence[str | Path], base: int | None = None) -> Elf:
    """Read one firmware, or several objects, archives or images that belong together.

    Parameters
    ----------
    paths : sequence of path
        One linked ELF, map or raw binary; or objects and archives; or HEX and S-record files.
    base : int, optional
        Address of the first byte of a raw binary, of which there is one.

    Raises
    ------
    SizeError
        A file cannot be read, is damaged, or does not go with the others.
    """
    files = [_regular(Path(path)) for path in paths]
    if not files:
        raise SizeError("no file was given", hint="give the path of a linked firmware ELF")
    try:
        formats = [told_apart(file, base) for file in files]
    except OSError as error:
        raise SizeError(f"cannot be read: {error.strerror}", file=error.filename) from error
    if set(formats) == {"archive"} or (len(files) > 1 and set(formats) <= {"elf", "archive"}):
        return read_objects(files)
    if len(files) == 1:
        return _read_one(files[0], formats[0], base)
    if set(formats) <= IMAGE_FORMATS - {"raw"}:
        return join_images([_read_one(f, k, base) for f, k in zip(files, formats, strict=True)])
    listed = ", ".join(f"{f.name} ({k})" for f, k in zip(files, formats, strict=True))
    raise SizeError(
        f"{listed} do not add up to one firmware",
        hint="give one linked file; or objects and archives; or Intel HEX and S-record files",
    )


def told_apart(path: Path, base: int | None = None) -> str:
    """The format of a file by its first bytes; what is unknown is raw when ``base`` is given."""
    with path.open("rb") as stream:
        head = stream.read(_HEAD)
    if head.startswith(b"\x7fELF"):
        format = "elf"
    elif is_archive(head):
        format = "archive"
    elif base is not None:
        return "raw"
    elif head.startswith(b":"):
        return "intel-hex"
    elif head[:1] == b"S" and head[1:2].isdigit() and head[2:4].isalnum():
        return "srec"
    elif looks_like_map(head):
        return "map"
    else:
        return "elf"  # whose reader says what it probably is
    if base is not None:
        raise SizeError(
            f"is {format}, which has its own addresses",
            file=path,
            field="--base",
            hint="give --base with a raw binary only",
        )
    return format


def _read_one(path: Path, format: str, base: int | None) -> Elf:
    if format == "raw":
        assert base is not None
        return read_raw(path, base)
    if format in IMAGE_FORMATS:
        return read_image(path, format)
    if format == "map":
        return elf_of_map(read_map(path))
    elf = read_elf(path)
    if elf.kind != "relocatable":
        return elf
    return replace(
        elf,
        sections=tuple(replace(s, member=path.name) for s in elf.sections),
        symbols=tuple(s if s.section else s._replace(member=path.name) for s in elf.symbols),
    )


def _regular(path: Path) -> Path:
    if not path.is_file():
        what = "is not a regular file" if path.exists() else "does not exist"
        raise SizeError(what, file=path, hint="give the path of a linked firmware ELF")
    return path
