# SPDX-License-Identifier: Apache-2.0
"""TOML files that users write, read without surprises."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

FILE_BYTES_MAX = 1 << 20
#: A key of more parts than any file needs; the time of `tomllib` grows with their square.
_DEEP_KEY = re.compile(r"""(?<![\w"'.-])(?:[\w"'-]++[ \t]*+\.[ \t]*+){200}""")


def read_toml(path: Path, called: str) -> tuple[dict[str, Any] | None, str]:
    """The tables of a file, or None and the reason; `called` names such files: "board files"."""
    try:
        return _parse(path), ""
    except OSError as error:
        return None, f"cannot be read: {error.strerror}"
    except UnicodeDecodeError as error:
        return None, f"is not UTF-8 text (byte {error.start}); {called} are TOML"
    except RecursionError:
        return None, f"is nested too deeply; {called} are not"
    except ValueError as error:  # TOMLDecodeError, an integer too long, a NUL in the path
        return None, f"is not valid TOML: {error}"


def _parse(path: Path) -> dict[str, Any]:
    if path.exists() and not path.is_file():
        raise ValueError("it is a folder or a device, not a file")
    with path.open("rb") as file:
        data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise ValueError(f"it is larger than {FILE_BYTES_MAX} bytes")
    text = data.decode("utf-8")
    if _DEEP_KEY.search(text):
        raise RecursionError
    return tomllib.loads(text)
