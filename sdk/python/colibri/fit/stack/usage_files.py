# SPDX-License-Identifier: Apache-2.0
"""What GCC says of stack use: ``.su`` (-fstack-usage) and ``.ci`` (-fcallgraph-info=su) files.

Frames of functions, and with ``.ci`` also the calls.  Clang's .su files read the same.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from colibri.errors import SizeError

_MOST_BYTES = 256 << 20
_MOST_FILES = 100_000
_SU = re.compile(r"(.+?):(\d+):(?:(\d+):)?(.*)\t(\d+)\t(static|dynamic|dynamic,bounded)")
_NODE = re.compile(r'node: \{ title: "([^"]*)" label: "([^"]*)"')
_EDGE = re.compile(r'edge: \{ sourcename: "([^"]*)" targetname: "([^"]*)"')
_BYTES = re.compile(r"\\n(\d+) bytes \((static|dynamic|dynamic,bounded)\)")
INDIRECT = "__indirect_call"


@dataclass(frozen=True, slots=True)
class Usage:
    """One function's frame as the compiler has it; ``bounded``: no alloca without a limit."""

    file: str
    bytes: int
    bounded: bool


@dataclass(slots=True)
class UsageFiles:
    """Frames by function name, and calls by name where there were .ci files."""

    frames: dict[str, list[Usage]] = field(default_factory=lambda: defaultdict(list))
    calls: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    has_calls: bool = False

    def frame(self, names: Sequence[str]) -> Usage | None:
        """The largest of the functions with one of these names: static ones may share it."""
        found = [usage for name in names for usage in self.frames.get(name, ())]
        return max(found, key=lambda usage: (not usage.bounded, usage.bytes), default=None)


def read_usage(paths: Sequence[Path]) -> UsageFiles:
    """Reads files, and all files of folders.

    Raises
    ------
    SizeError
        There is none, or one is not what its name says.
    """
    usage, left = UsageFiles(), _MOST_BYTES
    files = [file for path in paths for file in _files(path)]
    if not files:
        raise SizeError(
            "has no .su or .ci file",
            file=paths[0] if paths else None,
            field="--su",
            hint="compile with -fstack-usage, or -fcallgraph-info=su",
        )
    for file in files[:_MOST_FILES]:
        left -= file.stat().st_size
        if left < 0:
            raise SizeError(f"more than {_MOST_BYTES:,} bytes of .su and .ci files", file=file)
        lines = file.read_text("utf-8", "replace").splitlines()
        (_read_ci if file.suffix == ".ci" else _read_su)(usage, file, lines)
    return usage


def _files(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from sorted(p for p in path.rglob("*") if p.suffix in (".su", ".ci") and p.is_file())
    elif path.is_file():
        yield path
    else:
        raise SizeError("is neither a file nor a folder", file=path, field="--su")


def _read_su(usage: UsageFiles, file: Path, lines: list[str]) -> None:
    for number, line in enumerate(lines, 1):
        match = _SU.fullmatch(line)
        if match is None:
            raise SizeError(
                f"line {number} is no line of stack usage: {line[:80]!r}",
                file=file,
                hint="file:line:column:function, bytes, static or dynamic, with tabs between",
            )
        _add(usage, match[4], Usage(match[1], int(match[5]), match[6] != "dynamic"))


def _read_ci(usage: UsageFiles, file: Path, lines: list[str]) -> None:
    if not lines or not lines[0].startswith("graph:"):
        raise SizeError("is no call graph of gcc: it does not begin with 'graph:'", file=file)
    usage.has_calls = True
    for line in lines:
        if (node := _NODE.search(line)) is not None:
            size = _BYTES.search(node[2])
            if size is not None:
                name = _name(node[1])
                _add(usage, name, Usage(node[1], int(size[1]), size[2] != "dynamic"))
                usage.calls[name]
        elif (edge := _EDGE.search(line)) is not None:
            usage.calls[_name(edge[1])].add(_name(edge[2]))


def _add(usage: UsageFiles, name: str, one: Usage) -> None:
    """A .ci file says again what the .su file beside it says."""
    if all((u.bytes, u.bounded) != (one.bytes, one.bounded) for u in usage.frames[name]):
        usage.frames[name].append(one)


def _name(title: str) -> str:
    """Static functions are called ``file.c:name``."""
    return title.rsplit(":", 1)[1] if ":" in title else title
