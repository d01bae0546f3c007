# SPDX-License-Identifier: Apache-2.0
"""Where the package's data files are: in a wheel, or in a checkout."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

_SHARE = "_share"
_ROOT_MARK = "board_configs"


def data_path(*parts: str) -> Path:
    """Path of a data file or folder, named as in the repository.

    A wheel carries its data in ``colibri/_share``; a checkout has it at its root, which is the
    nearest folder above this file that holds ``board_configs``.

    Raises
    ------
    FileNotFoundError
        When neither place has it; the message names both.
    """
    package = Path(str(files("colibri")))
    packaged = package.joinpath(_SHARE, *parts)
    if packaged.exists():
        return packaged
    for folder in Path(__file__).resolve().parents:
        if (folder / _ROOT_MARK).is_dir() and folder.joinpath(*parts).exists():
            return folder.joinpath(*parts)
    name = "/".join(parts)
    raise FileNotFoundError(
        f"data '{name}' is neither in {package / _SHARE} nor in a checkout above {package}; "
        "reinstall colibri-sdk"
    )
