# SPDX-License-Identifier: Apache-2.0
"""What the commands share: options with one spelling, JSON, tables, progress.

Results go to stdout, everything else (progress, notes, errors) to stderr, so that output can be
piped.  With ``--json`` stdout carries exactly one object whose first key is ``schema``.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from colibri.placement import LayoutName, Placement
from colibri.units import parse_size

if TYPE_CHECKING:
    from colibri.report.page import Page

JSON_SCHEMA = 1
WIDTH = 100
VERBATIM = False  # text that may hold brackets must not be read as rich markup

Kv = Literal["f32", "f16", "q8"]

ImageArgument = Annotated[Path, typer.Argument(metavar="IMAGE", help="A packed image.")]
BoardOption = Annotated[
    str, typer.Option("--board", metavar="ID", help="Board id, or path of a board file.")
]
ContextOption = Annotated[
    int | None,
    typer.Option("--context", min=1, help="Tokens a sequence may hold. Default: the model's own."),
]
BatchOption = Annotated[
    int | None, typer.Option("--batch", min=1, help="Tokens per step of the prompt. Default: 16.")
]
WorkersOption = Annotated[
    int, typer.Option("--workers", min=1, help="Threads that share the work.")
]
PagesOption = Annotated[
    Literal["4k", "huge"],
    typer.Option(
        "--pages",
        help="4k: map the file. huge: copy it into huge pages (Linux): faster to read, but the "
        "file is read first and takes RAM of its size.",
    ),
]
KvOption = Annotated[Kv, typer.Option("--kv", help="How the KV cache stores its numbers.")]
LayoutOption = Annotated[
    Literal["monolithic", "sharded", "hybrid"],
    typer.Option(
        "--layout",
        help="Where experts go. monolithic: into the image. sharded: into files beside it, none "
        "larger than --shard-size. hybrid: into one file beside it.",
    ),
]
ShardSizeOption = Annotated[
    str | None,
    typer.Option(
        "--shard-size",
        metavar="SIZE",
        help="Most bytes of a file of experts. Default: what FAT32 takes, a byte less than 4 GiB.",
    ),
]
BlockOption = Annotated[
    str | None,
    typer.Option(
        "--block",
        metavar="SIZE",
        help="Experts begin at multiples of it, 64 to 64 KiB. Default: 64, or 4 KiB where they "
        "have files of their own.",
    ),
]
HeatOption = Annotated[
    Path | None,
    typer.Option(
        "--heat",
        metavar="FILE",
        help="A trace (`colibri trace`) of a text: experts that it used most lie first.",
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on stdout instead of text.")
]
HtmlOption = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Also write one HTML page; it needs no network."),
]


def command(help_text: str) -> typer.Typer:
    """A `typer.Typer` for one command, set up like all others."""
    return typer.Typer(add_completion=False, help=help_text, rich_markup_mode=None)


_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def printable(text: str) -> str:
    """Text without what could steer a terminal, or cannot be encoded."""
    return _UNPRINTABLE.sub(_REPLACEMENT, text)


class _Console(Console):
    """Models, checkpoints, ELFs and board files get into texts: none may steer the terminal."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            clean = segment.control or not _UNPRINTABLE.search(segment.text)
            yield segment if clean else segment._replace(text=printable(segment.text))


def console(*, stderr: bool = False) -> Console:
    """A console of today's stdout or stderr; piped output is 100 columns wide, without colours."""
    file = sys.stderr if stderr else sys.stdout
    return _Console(file=file, highlight=False, width=None if file.isatty() else WIDTH)


def note(text: str, *, style: str = "", markup: bool = True) -> None:
    """Says something beside the result."""
    console(stderr=True).print(text, style=style, markup=markup, soft_wrap=True)


def emit_json(fields: Mapping[str, Any]) -> None:
    """Prints the command's one object, ``schema`` first.  NaN and infinity are refused."""
    text = json.dumps({"schema": JSON_SCHEMA, **fields}, indent=2, allow_nan=False)
    sys.stdout.write(text + "\n")


@contextmanager
def progress(description: str) -> Iterator[Callable[[int], Callable[[int], None]]]:
    """A bar on stderr while something long runs; a pipe sees nothing of it.

    Yields ``begin(total)``, which returns ``advance(n)``; until it is called the bar only moves.
    """
    err = console(stderr=True)
    columns = [TextColumn("{task.description}"), BarColumn(bar_width=30), TaskProgressColumn()]
    with Progress(
        *columns, TimeElapsedColumn(), console=err, transient=True, disable=not err.is_terminal
    ) as bars:
        task = bars.add_task(description, total=None)

        def begin(total: int) -> Callable[[int], None]:
            bars.update(task, total=total)
            return lambda done: bars.advance(task, done)

        yield begin


def placement_of(layout: LayoutName, shard_size: str | None, block: str | None) -> Placement:
    """What --layout, --shard-size and --block mean together."""
    sizes = [None if size is None else parse_size(size) for size in (block, shard_size)]
    return Placement.of(layout, *sizes)


def files_table(files: Iterable[tuple[Path, int]]) -> Table:
    """The files of an image that was written."""
    made = table("Files", "file", ">bytes")
    for path, size in files:
        made.add_row(str(path), f"{size:,}")
    return made


def check_html(file: Path | None) -> None:
    """Before long work: whether what --html needs is there, and its file is no other's."""
    if file is not None:
        from colibri.report.html import require_html, require_new

        require_html()
        require_new(file)


def write_html(file: Path, page: Page) -> None:
    """What --html asked for."""
    from colibri.report.html import write_page

    write_page(file, page)
    note(f"wrote {file}", markup=VERBATIM)


def table(title: str, *columns: str, caption: str | None = None) -> Table:
    """An empty table in the house style.  A column named ``>x`` is right-aligned, head ``x``."""
    made = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        caption=caption,
        caption_justify="left",
        header_style="dim",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    for name in columns:
        right = name.startswith(">")
        made.add_column(
            name.lstrip(">"),
            justify="right" if right else "left",
            no_wrap=right,
            overflow="fold",
        )
    return made


def bar(used: int, size: int, width: int = 24) -> Text:
    """Used of size as blocks; anything used shows, and only a full region shows full."""
    if size <= 0:
        return Text("no capacity", style="dim")
    filled = min(width, used * width // size)
    if used and not filled:
        filled = 1
    colour = "red" if used > size else "yellow" if used * 10 > size * 9 else "green"
    return Text("█" * filled, style=colour) + Text("░" * (width - filled), style="dim")


def percent(used: int, size: int) -> str:
    """Share in percent, or a dash where there is no capacity."""
    return f"{100 * used / size:.1f} %" if size else "–"
