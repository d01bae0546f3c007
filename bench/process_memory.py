# SPDX-License-Identifier: Apache-2.0
"""Memory of a process, from /proc/PROCESS/status. Nothing but the standard library."""

from __future__ import annotations

import re
from pathlib import Path


def status_bytes(name: str, process: int | str = "self") -> int:
    """A size such as RssAnon (memory of its own) or VmHWM (the peak); 0 when it is not there."""
    try:
        text = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    found = re.search(rf"^{name}:\s+(\d+) kB", text, re.M)
    return int(found[1]) << 10 if found else 0
