# SPDX-License-Identifier: Apache-2.0
"""The command `colibri`.

One module per command: ``colibri.cli.NAME`` (with `_` for `-`) holds a `typer.Typer` called
``app`` with that one command (or with its sub-commands), and is imported only when it is asked
for.  Errors become text and exit codes here and nowhere else:

===  ====================================================
 0   ok
 1   does not fit, over budget, not the same tokens
 2   could not tell: bad input, a missing tool
===  ====================================================
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

import typer
from typer.core import TyperGroup

from colibri.cli.common import VERBATIM, emit_json, note
from colibri.errors import EXIT_BAD_INPUT, EXIT_OK, TRACEBACK, ColibriError, internal_error

COMMANDS = {
    "demo": "Pack, plan, run, emulate, build and size the shipped model, step by step.",
    "pack": "Turn a Hugging Face checkpoint into one deployable image.",
    "convert": "Write an image in another layout: experts inside it, or in files beside it.",
    "inspect": "Show what an image holds: header, config, sections, bytes per role.",
    "families": "Show which models the packer knows, and what they are made of.",
    "plan": "Show where every buffer lies in a board's memory, and what fits.",
    "run": "Run an image on this machine and print what it says.",
    "emulate": "Run an image inside a board's memory, storage and time.",
    "build": "Cross-compile the runtime and a runner for a board.",
    "size": "Judge an ELF against a board's memory and budgets.",
    "check": "Pack, plan, build, size and emulate a project; one verdict over its boards.",
    "bench": "Measure speed on this machine, against what the machine can do at best.",
    "trace": "Record which experts a model uses on a text.",
    "cache-study": "Replay a trace over expert cache policies and slot counts.",
    "kernels": "List kernel tables, and hold them to the reference bit for bit.",
    "boards": "List, show and check board files.",
}
EXIT_INTERRUPTED = 130
EXIT_SIGNAL = 128  # and the signal's number, as a shell has it


class LazyGroup(TyperGroup):
    """Knows every command by name and imports only the one that runs."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            near = difflib.get_close_matches(cmd_name, COMMANDS, n=1)
            meant = f"did you mean '{near[0]}'? " if near else ""
            raise typer.BadParameter(
                f"no command '{cmd_name}'; {meant}there are {', '.join(COMMANDS)}",
                param_hint="COMMAND",
            )
        module = importlib.import_module(f"colibri.cli.{cmd_name.replace('-', '_')}")
        command = typer.main.get_command(module.app)
        command.name = cmd_name
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


app = typer.Typer(
    cls=LazyGroup,
    add_completion=False,
    invoke_without_command=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _root(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and stop."),
) -> None:
    """Mixture-of-Experts language models on small boards."""
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"colibri {installed('colibri-sdk')}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(EXIT_BAD_INPUT)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code; every error ends here as text."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    _prepare_streams()
    try:
        command = typer.main.get_command(app)
        with _ends_cleanly():
            result = command.main(words, prog_name="colibri", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader went away (`colibri ... | head`): nobody is left to tell.
        _abandon_stdout()
        return EXIT_OK
    except (KeyboardInterrupt, typer.Abort):
        note("interrupted")
        return EXIT_INTERRUPTED
    except Exception as error:
        return _report(error, as_json="--json" in words)
    return result if isinstance(result, int) else EXIT_OK


@contextlib.contextmanager
def _ends_cleanly() -> Iterator[None]:
    """SIGTERM and SIGHUP end the command like an exception, so that no unfinished file is left.

    A second one ends it at once.  Signals that somebody handles or ignores (nohup) stay so.
    """

    def end(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise SystemExit(EXIT_SIGNAL + number)

    names = ("SIGTERM", "SIGHUP") if threading.current_thread() is threading.main_thread() else ()
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    ours = [number for number in numbers if signal.getsignal(number) == signal.SIG_DFL]
    for number in ours:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _prepare_streams() -> None:
    """Makes printing safe: a closed stream swallows, a character it cannot encode becomes `?`.

    On Windows a pipe or a file gets UTF-8, not the code page, which lacks most letters.
    """
    encoding = "utf-8" if os.name == "nt" else None
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, io.StringIO())
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding=encoding, errors="replace")


def _abandon_stdout() -> None:
    """What stdout did not take stays unwritten: a second try would fail in the same way."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report(error: Exception, *, as_json: bool) -> int:
    """One line for people, one object for programs, and the exit code."""
    described = _describe(error)
    try:
        if as_json:
            emit_json({"error": described})
        sys.stdout.flush()
    except OSError:
        _abandon_stdout()
    note(f"error: {described['message']}", style="bold red", markup=VERBATIM)
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error, file=sys.stderr)
    return error.exit_code if isinstance(error, ColibriError) else EXIT_BAD_INPUT


def _describe(error: Exception) -> dict[str, Any]:
    """The error as it stands in JSON."""
    described: dict[str, Any] = {"type": type(error).__name__}
    match error:
        case ColibriError():
            described |= {"message": str(error), "what": error.what, "file": error.file}
            described |= {"field": error.field, "hint": error.hint}
        case _ if hasattr(error, "format_message"):  # a usage error, whatever typer's version
            described["message"] = error.format_message()
        case OSError():
            reason = error.strerror or str(error)
            described["message"] = f"{error.filename}: {reason}" if error.filename else reason
        case MemoryError():
            described["message"] = "this machine has too little memory for that"
        case _:
            described["message"] = internal_error(error)
    return described
