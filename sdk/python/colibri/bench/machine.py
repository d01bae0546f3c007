# SPDX-License-Identifier: Apache-2.0
"""What this machine can do at best, measured; and what it is.

>>> Bandwidth(1 << 20, (1,)).sample(1).gb_s > 0
True
"""

from __future__ import annotations

import mmap
import os
import platform
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from colibri import _core

LEAST_PROBE_BYTES = 512 << 20
CACHES_BEYOND = 4  # the probe reads so many times the last-level cache
AHEAD = (0, 2048, 4096, 8192)  # bytes that the reading loop prefetches ahead
PEAK_SECONDS = 0.025
TRIES = 3  # of which the best counts: other work can only slow a probe down
BUSY_LOAD = 0.5  # programs a core that spoil a measurement
PAGES = {"4 KiB": False, "2 MiB": True}


@dataclass(frozen=True)
class Reading:
    """One measurement of the read bandwidth: the best way of reading at that moment."""

    gb_s: float
    pages: str
    ahead: int


class Bandwidth:
    """Reads memory that no cache holds.

    The first sample of a thread count tries every distance of the prefetch, later ones the best
    of each kind of page.

    Parameters
    ----------
    size : int
        Bytes to read.
    threads : iterable of int
        Thread counts that will be asked for.
    """

    def __init__(self, size: int, threads: Iterable[int]) -> None:
        self.bytes = size
        self._probes = {pages: _core.ReadProbe(size, huge) for pages, huge in PAGES.items()}
        self.huge_bytes = {p: huge_bytes_at(probe.address) for p, probe in self._probes.items()}
        if not self.huge_bytes["2 MiB"]:
            del self._probes["2 MiB"]  # the system gave none: these are small pages too
        self._ahead = {
            (count, pages): max(AHEAD, key=lambda a: self._read(count, pages, a))
            for count in threads for pages in self._probes
        }  # fmt: skip

    def sample(self, threads: int) -> Reading:
        """The better kind of page, now."""
        return max(self.by_pages(threads), key=lambda reading: reading.gb_s)

    def by_pages(self, threads: int) -> list[Reading]:
        """A measurement for each kind of page that the system gives."""
        chosen = [(pages, self._ahead[threads, pages]) for pages in self._probes]
        return [
            Reading(max(self._read(threads, pages, ahead) for _ in range(TRIES)), pages, ahead)
            for pages, ahead in chosen
        ]

    def _read(self, threads: int, pages: str, ahead: int) -> float:
        probe = self._probes[pages]
        return probe.bytes / probe.run(threads, ahead) / 1e9


class Peak:
    """Multiply-adds of int8 by int8 into int32, from registers."""

    def __init__(self, seconds: float = PEAK_SECONDS) -> None:
        self.instruction = _core.int8_kernel()
        self._rounds = 1000
        while (taken := _core.int8_run(1, self._rounds)[0]) < seconds / 2:
            self._rounds = int(self._rounds * min(10.0, seconds / max(taken, 1e-6)))

    def sample(self, threads: int) -> float:
        """GMAC/s of all threads together, the best of a few tries."""
        tries = [_core.int8_run(threads, self._rounds) for _ in range(TRIES)]
        return max(macs / seconds for seconds, macs in tries) / 1e9


def probe_bytes() -> int:
    """Bytes that the reading probe takes: beyond every cache, an eighth of free memory at most."""
    wanted = max(LEAST_PROBE_BYTES, CACHES_BEYOND * last_level_cache())
    free = _meminfo("MemAvailable")
    return min(wanted, free // 8) if free else wanted


def facts() -> dict[str, Any]:
    """The machine, as its system describes it; `load` is of the minute before."""
    return {"cpu": _cpu_name(), "cores": os.cpu_count() or 1,
            "last_level_cache_bytes": last_level_cache(),
            "load": round(os.getloadavg()[0], 2)}  # fmt: skip


def busy(machine: dict[str, Any]) -> str | None:
    """What to say when other work got in the way, by `facts` from before the measurement."""
    if machine["load"] < BUSY_LOAD * machine["cores"]:
        return None
    return (f"note: {machine['load']:g} programs were running on {machine['cores']} cores before "
            "the measurement: figures of several threads say little")  # fmt: skip


def last_level_cache() -> int:
    """Bytes of the largest cache, 0 where the system does not tell."""
    sizes = [0]
    for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        if found := re.fullmatch(r"(\d+)([KMG]?)\s*", _text(file)):
            sizes.append(int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2]])
    return max(sizes)


def huge_bytes_at(address: int) -> int:
    """Bytes in huge pages of the mapping around an address; 0 where the system does not tell."""
    inside = False
    total = 0
    for line in _text(Path("/proc/self/smaps")).splitlines():
        if span := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(span[1], 16) <= address < int(span[2], 16)
        elif inside and (kib := re.match(r"(?:AnonHugePages|FilePmdMapped): +(\d+) kB", line)):
            total += int(kib[1]) << 10
    return total


def map_and_touch(file: Path) -> float:
    """Seconds to map a file and to read a byte of each of its pages."""
    begin = time.perf_counter()
    with file.open("rb") as stream:
        view = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    pages = np.frombuffer(view, np.uint8)[:: mmap.PAGESIZE]
    int(pages.max())
    seconds = time.perf_counter() - begin
    del pages
    view.close()
    return seconds


def _cpu_name() -> str:
    named = re.search(r"^(?:model name|Model)\s*: (.*)$", _text(Path("/proc/cpuinfo")), re.M)
    return named[1].strip() if named else platform.processor() or platform.machine()


def _meminfo(name: str) -> int:
    found = re.search(rf"^{name}: +(\d+) kB", _text(Path("/proc/meminfo")), re.M)
    return int(found[1]) << 10 if found else 0


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
