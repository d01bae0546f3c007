# SPDX-License-Identifier: Apache-2.0
"""Pictures of real output: runs the commands in a terminal and keeps what they printed as SVG.

.venv/bin/python docs/pictures/make.py        (make pictures)
"""

from __future__ import annotations

import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from fcntl import ioctl
from io import StringIO
from pathlib import Path
from termios import TIOCSWINSZ

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

HERE = Path(__file__).parent
WIDTH = 100
BOARD = "pimoroni-pico-plus-2"
IMAGE = "demo/demo-q4.colibri"
ASK = f"""colibri emulate {IMAGE} --board {BOARD} --context 128 --kv f16 \\
    --prompt "hummingbird (noun):" --max-new-tokens 24 --temperature 0.7 --top-p 0.9 --seed 5"""
PICTURES = {
    "demo": "colibri demo",
    "plan": f"colibri plan {IMAGE} --board {BOARD} --context 128 --kv f16",
    "twin": ASK,
    "cpu": f"{ASK} \\\n    --machine cpu",
    "size": f"colibri size demo/firmware-{BOARD}/firmware.elf --board {BOARD}",
    "check": "colibri check --init && colibri check",
}
#: A page, and how much of it a browser shows.
PAGE = f"""colibri size demo/firmware-{BOARD}/firmware.elf --board {BOARD} \\
    --map demo/firmware-{BOARD}/firmware.map --html size.html"""
PAGE_SIZE = (1000, 1600)
# The export's own template, without the web font it would fetch.
FORMAT = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace(
    "Fira Code", "DejaVu Sans Mono, Menlo, Consolas"
)


def output_of(command: str, folder: str) -> str:
    """What a command prints to a colour terminal; notes and progress (stderr) are left out."""
    ours, its = pty.openpty()
    ioctl(its, TIOCSWINSZ, struct.pack("HHHH", 50, WIDTH, 0, 0))
    bin_folder = str(Path(sys.executable).parent)
    clean = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "NO_COLOR")}
    path = f"{bin_folder}{os.pathsep}{os.environ['PATH']}"
    with subprocess.Popen(
        command, shell=True, cwd=folder, stdout=its, stderr=subprocess.DEVNULL,
        env={**clean, "PATH": path, "TERM": "xterm-256color", "COLORTERM": "truecolor"},
    ) as process:  # fmt: skip
        os.close(its)
        parts = []
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # Linux: the other side is closed
                break
            if not part:
                break
            parts.append(part)
    os.close(ours)
    if process.returncode:
        sys.exit(f"{command}: exit code {process.returncode}")
    return b"".join(parts).decode().replace("\r\n", "\n")


def picture(name: str, command: str, output: str) -> None:
    """Writes one SVG."""
    console = Console(record=True, width=WIDTH, file=StringIO(), force_terminal=True)
    console.print(Text(f"$ {command}", style="bold"))
    console.print(Text.from_ansi(output))
    svg = console.export_svg(
        title="Colibri SDK", theme=SVG_EXPORT_THEME, code_format=FORMAT, unique_id=name
    )
    (HERE / f"{name}.svg").write_text(svg, "utf-8")


def page_picture(folder: str) -> None:
    """A page as a browser without a window shows it."""
    browser = shutil.which("chromium")
    if browser is None:
        print("no chromium: size-page.png stays as it is", file=sys.stderr)
        return
    output_of(PAGE, folder)
    command = [
        browser, "--headless", "--no-sandbox", "--hide-scrollbars", "--virtual-time-budget=5000",
        f"--window-size={PAGE_SIZE[0]},{PAGE_SIZE[1]}", f"--screenshot={HERE / 'size-page.png'}",
        (Path(folder) / "size.html").as_uri(),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)


def main() -> None:
    """All pictures, in order: later commands use what the demo made."""
    with tempfile.TemporaryDirectory() as folder:
        outputs = {name: output_of(command, folder) for name, command in PICTURES.items()}
        page_picture(folder)
    for name, command in PICTURES.items():
        picture(name, command, outputs[name])


if __name__ == "__main__":
    main()
