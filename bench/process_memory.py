# SPDX-License-Identifier: Apache-2.0
"""Memory of this process, from /proc/self/status. Nothing but the standard library."""

from __future__ import annotations

import re
from pathlib import Path


def status_bytes(name: str) -> int:
    """A size of /proc/self/status, such as RssAnon (memory of its own) or VmHWM (the peak)."""
    found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.M)
    return int(found[1]) << 10 if found else 0
