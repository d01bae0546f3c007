# SPDX-License-Identifier: Apache-2.0
"""What a disk gives: direct reads at random places of a file, and the device's read-ahead."""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

BLOCK = 4096
HUGE_PAGE = 2 << 20
THREADS = (1, 2, 4, 8)
TRIES = 2
MOST_READS = 1024  # of one measurement


class Disk:
    """Reads blocks of a file past the page cache into huge pages, several at once.

    How many at once is tried in the beginning: the fastest.  Memory is as large as what one
    measurement reads, so that no block goes where a cache still has the last one: as with the
    slots of experts.

    Parameters
    ----------
    file : Path
        At least as long as a block.
    block : int
        Bytes of one read, a multiple of 4096.
    sample : int
        Bytes of one measurement, less where it would take more than `MOST_READS` reads.
    threads : sequence of int
        Reads at once, to be tried.
    """

    def __init__(
        self, file: Path, block: int, sample: int = 256 << 20, threads: Sequence[int] = THREADS
    ) -> None:
        self.block = block
        self._descriptor = os.open(file, os.O_RDONLY | os.O_DIRECT)
        self._places = os.fstat(self._descriptor).st_size // BLOCK - block // BLOCK + 1
        count = max(1, min(sample // block, MOST_READS))
        memory = mmap.mmap(-1, count * block + HUGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):
                memory.madvise(mmap.MADV_HUGEPAGE)
        memory.write(bytes(len(memory)))
        whole = memoryview(memory)
        self._blocks = [whole[i * block : (i + 1) * block] for i in range(count)]
        self._random = random.Random(0)
        self.threads = max(threads, key=lambda n: max(self._measure(n) for _ in range(TRIES)))

    def rate(self) -> float:
        """Bytes a second of one measurement."""
        return self._measure(self.threads)

    def _measure(self, threads: int) -> float:
        waiting = iter([(block, self._random.randrange(self._places) * BLOCK)
                        for block in self._blocks])  # fmt: skip
        lock, short = threading.Lock(), []

        def work() -> None:
            while True:
                with lock:
                    block, place = next(waiting, (None, 0))
                if block is None:
                    return
                if os.preadv(self._descriptor, [block], place) != self.block:
                    short.append(place)

        workers = [threading.Thread(target=work) for _ in range(threads)]
        begin = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if short:
            raise OSError(f"a read of {self.block} bytes at {short[0]} was short")
        return len(self._blocks) * self.block / (time.perf_counter() - begin)

    def close(self) -> None:
        os.close(self._descriptor)


def equal_pieces(size: int, most: int) -> int:
    """Bytes of the pieces in which the reader of the POSIX port cuts a record."""
    each = -(-size // -(-size // most))
    return -(-each // BLOCK) * BLOCK


def read_ahead_file(file: Path) -> Path | None:
    """Where the kernel keeps the read-ahead of a file's disk, in KiB; None: it does not say."""
    device = file.stat().st_dev
    folder = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    for place in (folder, folder.parent):  # of a partition, its disk
        if (place / "queue/read_ahead_kb").is_file():
            return place / "queue/read_ahead_kb"
    return None


@contextlib.contextmanager
def read_ahead(file: Path, kib: int | None) -> Iterator[None]:
    """The disk's read-ahead is `kib` for a while; None leaves it as it is."""
    place = read_ahead_file(file)
    if kib is None or place is None:
        yield
        return
    before = place.read_text()
    place.write_text(str(kib))
    try:
        yield
    finally:
        place.write_text(before)


def forget(file: Path) -> None:
    """Drops a file's pages from the page cache, so that who reads it next pays for them."""
    descriptor = os.open(file, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
