# SPDX-License-Identifier: Apache-2.0
"""The medium that an image is read from: what a read costs on the board.

Block size decides: an SD card that streams 85 MB/s gives 6 MB/s in blocks of 4 KiB.  The curve
comes from the board file and is followed on logarithmic axes between its points.  Nothing sleeps
here; the clock adds the cost to the board's time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from colibri.boards import Board, Storage

# What a reader that walks through a file asks for at once: Linux read-ahead, and a DMA transfer
# of firmware.
STREAM_BLOCK = 128 << 10
# A record of an expert is read at once, a larger one in equal pieces (colibri_posix_read_ahead).
_LARGEST_PIECE = 2 << 20


def piece_of(size: int) -> int:
    """Bytes that a record's read asks for at once."""
    return -(-size // -(-size // _LARGEST_PIECE)) if size else 0


@dataclass(frozen=True)
class Medium:
    """One storage of a board."""

    storage: Storage

    @property
    def name(self) -> str:
        """As the board file calls it."""
        return self.storage.name

    @property
    def cls(self) -> str:
        """The weakest class among the numbers of the curve."""
        order = ("measured", "declared", "theoretical")
        return max((point.cls for point in self.storage.points), key=order.index)

    def bandwidth(self, block: int) -> float:
        """Bytes a second when read in blocks of `block` bytes.

        Below the first point a read costs what the smallest known block costs; above the last
        the medium gets no faster.
        """
        points = self.storage.curve
        first_block, first_speed = points[0]
        if block <= first_block:
            return first_speed * block / first_block
        for (low, slow), (high, fast) in pairwise(points):
            if block <= high:
                way = math.log(block / low) / math.log(high / low)
                return float(slow * (fast / slow) ** way)
        return float(points[-1][1])

    def seconds(self, size: int, block: int = STREAM_BLOCK) -> float:
        """Time to read `size` bytes in blocks of `block`."""
        if size <= 0:
            return 0.0
        reads = -(-size // block)
        latency = float(self.storage.latency_us) * 1e-6 if self.storage.latency_us else 0.0
        return reads * latency + size / self.bandwidth(min(block, size))


def file_medium(board: Board) -> Medium | None:
    """The board's first storage that is no mapped memory, None where it has none."""
    return next((Medium(storage) for storage in board.storage if not storage.xip), None)


def boot_medium(board: Board) -> Medium | None:
    """Where the board reads an image from: its first storage, None where it has none."""
    return Medium(board.storage[0]) if board.storage else None
