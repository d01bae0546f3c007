# SPDX-License-Identifier: Apache-2.0
"""All boards of a project, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from colibri.boards.checks import closest
from colibri.check.rows import CheckResult
from colibri.check.steps import BoardCheck, Say
from colibri.errors import ProjectError
from colibri.project.loader import LoadedProject


def check(
    loaded: LoadedProject,
    folder: Path,
    boards: Sequence[str] = (),
    say: Say = lambda step, board: None,
) -> CheckResult:
    """Check a project.

    Parameters
    ----------
    loaded : LoadedProject
        As `colibri.project.load_project` gives it.
    folder : Path
        For images and firmware; made when missing.
    boards : sequence of str
        Only these, by their keys in the project file.
    say : callable
        Gets step and board before each step.

    Raises
    ------
    ProjectError
        A board that the project has not, or a folder that cannot be used. What is wrong with the
        project's model and firmware is in the rows instead.
    """
    names = [target.name for target in loaded.targets]
    for name in boards:
        if name not in names:
            hint = f"{closest(name, names)}there are: {', '.join(names)}"
            raise ProjectError(f"no board '{name}'", file=loaded.file, field="--board", hint=hint)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ProjectError(f"cannot be made: {error.strerror}", file=folder) from error
    result = CheckResult(loaded.project.name, loaded.file)
    if boards:
        result.left_out = frozenset(names) - frozenset(boards)
    images: dict[Any, Path] = {}
    for target in loaded.targets:
        if target.name in result.left_out:
            continue
        checked = BoardCheck(loaded, target, folder, images, say)
        result.boards.append(checked.run())
        result.rows += checked.sheet.rows
    return result
