# SPDX-License-Identifier: Apache-2.0
"""The block device of ``sdk/c/ports/block_device``: what its registers do, for any CPU emulator.

It knows nothing of time: a read is done when the doorbell rings, and how long it would have taken
is the twin's to predict.  A late one is busy for a while, one that never comes for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from colibri.image import Image
from colibri_emulator.faults import Faults

ID = 0x4B4C4243
DESCRIPTORS = 16
BYTES = 0x80
_ID, _FILE, _DOORBELL, _CANCEL, _STATUS = 0x00, 0x04, 0x1C, 0x20, 0x40
_BUSY, _DONE, _FAILED = 1, 2, 3
_LOOKS = 100  # at the status of a late read, before it changes


class BlockDevice:
    """Registers in front of files.

    Parameters
    ----------
    model : Path
        The image; its companions lie beside it.
    store : callable
        Puts bytes at an address; False when there is no memory that the device may write.
    faults : Faults
        By the number of the read, as in the twin: reads of weights, not of tables and headers.
    """

    def __init__(self, model: Path, store: Callable[[int, bytes], bool], faults: Faults) -> None:
        image = Image(model, map=False)
        weights = image.section("weights")
        assert weights is not None
        self._weights = {(weights.file, weights.offset)}
        self._weights |= {(expert.file, expert.offset) for expert in image.experts}
        self._files = [path.open("rb") for path in image.paths]
        self._store, self._faults = store, faults
        self._words = [0] * 6  # file .. bytes
        self._status = [0] * DESCRIPTORS
        self._looks: dict[int, int] = {}  # left for a late read
        self.reads = 0

    def load(self, offset: int) -> int:
        """The CPU reads a register."""
        if offset == _ID:
            return ID
        if _FILE <= offset < _DOORBELL:
            return self._words[(offset - _FILE) // 4]
        if _STATUS <= offset < BYTES:
            return self._look((offset - _STATUS) // 4)
        return 0

    def write(self, offset: int, value: int) -> None:
        """The CPU writes a register; what is not there is lost."""
        if _FILE <= offset < _DOORBELL:
            self._words[(offset - _FILE) // 4] = value
        elif offset == _DOORBELL and value < DESCRIPTORS:
            self._looks.pop(value, None)
            self._status[value] = self._read(value)
        elif offset == _CANCEL and value < DESCRIPTORS:
            self._looks.pop(value, None)
            self._status[value] = _FAILED

    def close(self) -> None:
        """Closes the files."""
        for file in self._files:
            file.close()

    def _look(self, descriptor: int) -> int:
        if descriptor in self._looks:
            self._looks[descriptor] -= 1
            if not self._looks[descriptor]:
                del self._looks[descriptor]
                self._status[descriptor] = _DONE
        return self._status[descriptor]

    def _read(self, descriptor: int) -> int:
        """Does a read; its status."""
        number, low, high, to_low, to_high, size = self._words
        offset = high << 32 | low
        if number >= len(self._files):
            return _FAILED
        file = self._files[number]
        file.seek(offset)
        data = file.read(size)
        if len(data) != size:
            return _FAILED
        fault = None
        if (number, offset) in self._weights:
            self.reads += 1
            fault = self._faults.at(self.reads)
        outcome = fault.outcome if fault else None
        if fault and (fault.kind == "never" or (fault.kind == "late" and outcome)):
            return _BUSY
        if outcome == "short":
            data = data[: size // 2]
        elif outcome == "corrupt":
            middle = size // 2
            data = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        if outcome == "fail" or not self._store(to_high << 32 | to_low, data):
            return _FAILED
        if fault and fault.kind == "late":
            self._looks[descriptor] = _LOOKS
            return _BUSY
        return _FAILED if outcome == "short" else _DONE
