# SPDX-License-Identifier: Apache-2.0
"""Holds a process to so many bytes: by a control group where this is permitted, else by RLIMIT_AS.

>>> limit = hold(2 << 30)                                           # doctest: +SKIP
>>> subprocess.Popen(command, preexec_fn=limit.enter)               # doctest: +SKIP

A control group counts what is resident (memory of the process, page cache that it filled, the
kernel's own for it), RLIMIT_AS the address space.  Control groups: Linux kernel documentation,
admin-guide/cgroup-v2 and cgroup-v1/memory.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from process_memory import status_bytes

Kind = Literal["cgroup v2", "cgroup v1", "RLIMIT_AS", "none"]
KINDS: tuple[Kind, ...] = ("cgroup v2", "cgroup v1", "RLIMIT_AS")
MOUNTS = Path("/proc/self/mounts")
_number = itertools.count()


class _Files(NamedTuple):
    """Names of a group's files."""

    limit: str
    swap: str  # limited too, so that what is held is memory
    peak: str
    refused: str  # how often the limit was met


_FILES = {
    "cgroup v1": _Files("memory.limit_in_bytes", "memory.memsw.limit_in_bytes",
                        "memory.max_usage_in_bytes", "memory.failcnt"),
    "cgroup v2": _Files("memory.max", "memory.swap.max", "memory.peak", "memory.events"),
}  # fmt: skip


class Limit:
    """A limit for one process and its children.

    Attributes
    ----------
    kind : str
        What holds it; "none": nothing does.
    bytes : int
        The limit.
    """

    def __init__(self, kind: Kind, size: int, group: Path | None = None) -> None:
        self.kind = kind
        self.bytes = size
        self.group = group

    def enter(self) -> None:
        """Puts the calling process under the limit: what a child does before it executes."""
        if self.kind == "RLIMIT_AS":
            resource.setrlimit(resource.RLIMIT_AS, (self.bytes, self.bytes))
        if self.group is not None:
            (self.group / "cgroup.procs").write_text("0")

    def peak(self, process: int) -> int:
        """Most bytes so far of what the limit counts; 0 where the kernel does not tell."""
        if self.group is None:
            return status_bytes("VmPeak", process) if self.kind == "RLIMIT_AS" else 0
        return _figure(self.group / _FILES[self.kind].peak)

    def met(self) -> int | None:
        """How often the limit was reached, so that something had to go; None: nobody counts."""
        return None if self.group is None else _figure(self.group / _FILES[self.kind].refused)

    def close(self) -> None:
        """Removes the group; its processes must have ended."""
        if self.group is not None:
            self.group.rmdir()


def hold(size: int, kind: Kind | None = None) -> Limit:
    """A limit of that kind, or of the first that is permitted.

    Raises
    ------
    PermissionError
        When `kind` is not to be had here.
    """
    for one in KINDS if kind is None else (kind,):
        if one == "RLIMIT_AS":
            return Limit(one, size)
        for group in _groups(one):
            with contextlib.suppress(OSError):
                return _made(one, size, group)
    raise PermissionError(f"no {kind} for memory can be made here")


def _groups(kind: Kind) -> Iterator[Path]:
    """Mounted hierarchies that may limit memory."""
    for line in MOUNTS.read_text().splitlines():
        _, folder, system, options, *_ = line.split()
        if kind == "cgroup v1" and system == "cgroup" and "memory" in options.split(","):
            yield Path(folder)
        controllers = Path(folder) / "cgroup.controllers"
        if kind == "cgroup v2" and system == "cgroup2" and "memory" in _text(controllers).split():
            yield Path(folder)


def _made(kind: Kind, size: int, parent: Path) -> Limit:
    files = _FILES[kind]
    if kind == "cgroup v2":
        (parent / "cgroup.subtree_control").write_text("+memory")
    group = parent / f"colibri-bench-{os.getpid()}-{next(_number)}"
    group.mkdir()
    try:
        (group / files.limit).write_text(str(size))
        with contextlib.suppress(OSError):  # a kernel without swap accounting
            (group / files.swap).write_text(str(size) if kind == "cgroup v1" else "0")
    except OSError:
        group.rmdir()
        raise
    return Limit(kind, size, group)


def _figure(file: Path) -> int:
    """The number in a group's file; of memory.events that behind "max"."""
    found = re.search(r"^(?:max )?(\d+)$", _text(file), re.M)
    return int(found[1]) if found else 0


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
