# SPDX-License-Identifier: Apache-2.0
"""What `colibri size` costs on very large inputs: CPU seconds and peak memory of a process.

    python bench/size_inputs.py                                # every input, some minutes to make
    python bench/size_inputs.py dwarf-5 symbols --folder /tmp/large --keep --json
    python bench/size_inputs.py sections --board st-stm32n6570-dk

CPU seconds, not time on the clock: other work on the machine does not count. The process is the
command itself, so starting Python is in the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from large_inputs import INPUTS

RUN = "import sys; from colibri.cli import main; sys.exit(main())"
COMMAND = (sys.executable, "-c", RUN, "size")


@dataclass(frozen=True)
class Row:
    """One run of the command; `result` is the verdict, or the message of a refusal."""

    input: str
    bytes: int
    board: str | None
    cpu_s: float
    peak_bytes: int
    exit_code: int
    result: str


def measure(name: str, file: Path, words: Sequence[str], board: str | None) -> Row:
    """Run `colibri size FILE` and ask the system what it took."""
    command = [*COMMAND, str(file), *words, "--json"]
    command += ["--board", board] if board else []
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = subprocess.Popen(command, stdout=out, stderr=err)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        text, said = out.read(), err.read()
    result = json.loads(text).get("verdict") if text else None
    return Row(
        input=name,
        bytes=file.stat().st_size,
        board=board,
        cpu_s=round(used.ru_utime + used.ru_stime, 2),
        peak_bytes=used.ru_maxrss << 10,
        exit_code=child.returncode,
        result=result or " ".join(said.split()),
    )


def made(name: str, folder: Path) -> Path:
    """The input, made now or kept from an earlier run."""
    place = folder / name
    note = place / "made"
    if note.exists():
        return place / note.read_text()
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    file = INPUTS[name][0](place)
    note.write_text(file.name)
    return file


def main() -> None:
    parser = argparse.ArgumentParser(description="What `colibri size` costs on large inputs.")
    parser.add_argument("inputs", nargs="*", choices=[*INPUTS, []], help="default: all")
    parser.add_argument("--board", help="board id; default: without one")
    parser.add_argument("--folder", type=Path, help="where the inputs are made")
    parser.add_argument("--keep", action="store_true", help="leave them there")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="size_inputs-"))
    rows = []
    for name in options.inputs or INPUTS:
        file = made(name, folder)
        row = measure(name, file, INPUTS[name][1], options.board)
        rows.append(row)
        if not options.json:
            print(
                f"{name:15} {row.bytes / 1e6:7.1f} MB {row.cpu_s:7.2f} s of CPU "
                f"{row.peak_bytes / 1e6:7.0f} MB at most  {row.result[:200]}",
                flush=True,
            )
        if not options.keep:
            shutil.rmtree(folder / name)
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))


if __name__ == "__main__":
    main()
