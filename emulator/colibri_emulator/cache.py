# SPDX-License-Identifier: Apache-2.0
"""Things that were built once and are used again: named by the hash of what they came from."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from colibri.errors import BuildError


def cache_folder() -> Path:
    """``$COLIBRI_CACHE``, or ``colibri`` in the user's cache folder."""
    own = os.environ.get("COLIBRI_CACHE")
    if own:
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "colibri"


def digest(parts: Iterable[str | bytes]) -> str:
    """One hash over all parts, each with its length."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "little"))
        total.update(data)
    return total.hexdigest()[:32]


def cached(name: str, make: Callable[[Path], None]) -> Path:
    """The file `name` of the cache; `make` writes it when it is not there."""
    path = cache_folder() / name
    if path.exists():
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=path.suffix)
    except OSError as error:
        raise BuildError(
            f"cannot write the cache: {error.strerror}",
            file=path.parent,
            hint="set COLIBRI_CACHE to a folder that can be written",
        ) from error
    os.close(handle)
    try:
        make(Path(temporary))
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)
    return path
