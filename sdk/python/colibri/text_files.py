# SPDX-License-Identifier: Apache-2.0
"""Text files that are whole or not there."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from colibri.errors import ColibriError


def write_text(file: Path, text: str, error: type[ColibriError] = ColibriError) -> None:
    """Writes UTF-8 under a temporary name, then gives the file its own; `error` when it cannot."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(file)
    except OSError as problem:
        raise error(f"cannot be written: {problem.strerror}", file=file) from problem
    finally:
        with contextlib.suppress(OSError):  # what could not be made cannot be removed either
            temporary.unlink()
