# SPDX-License-Identifier: Apache-2.0
"""`colibri cache-study`: replay a trace of expert use over cache policies and slot counts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from colibri.cli.common import (
    JsonOption,
    WorkersOption,
    bar,
    command,
    console,
    emit_json,
    note,
    progress,
    table,
)
from colibri.units import format_bytes

if TYPE_CHECKING:
    from rich.table import Table

    from colibri.experts.study import Outcome, Sharing, Study
    from colibri_emulator.miss_time import MissTime
    from colibri_emulator.report import Range

app = command("Replay a trace over expert cache policies and slot counts.")

PICTURES = (".svg", ".html")


@app.command()
def cache_study(
    trace: Annotated[
        Path, typer.Argument(metavar="TRACE", help="What `colibri trace` has written.")
    ],
    slots: Annotated[
        str | None,
        typer.Option(
            "--slots",
            metavar="4,8,50%",
            help="Slots per layer, or shares of its experts. Default: twice what a token needs, "
            "25 %, 50 % and 75 %.",
        ),
    ] = None,
    per_layer: Annotated[
        bool, typer.Option("--per-layer", help="Only caches of one layer each. Default: both.")
    ] = False,
    shared: Annotated[
        bool, typer.Option("--shared", help="Only a cache that all layers share.")
    ] = False,
    pin: Annotated[
        Path | None,
        typer.Option(
            "--pin",
            metavar="TRACE",
            help="Whose heat says what 'pinned' pins. Default: the trace itself, which flatters.",
        ),
    ] = None,
    image: Annotated[
        Path | None,
        typer.Option("--image", metavar="IMAGE", help="The traced image, with --board."),
    ] = None,
    board: Annotated[
        str | None,
        typer.Option("--board", metavar="ID", help="Predict the time per token on this board."),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option("--storage", metavar="NAME", help="Of the board. Default: its first."),
    ] = None,
    workers: WorkersOption = 1,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="A plot: .svg, or .html with table."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Replay a trace over expert cache policies and slot counts.

    Hits and bytes are counted from the trace, caches starting empty. Times are predicted.
    """
    from colibri.experts.study import POLICIES, SHARINGS, Study
    from colibri.experts.trace_file import read_trace

    _check(image, board, storage, output)
    study = Study(read_trace(trace), read_trace(pin) if pin else None)
    counts = study.slots_of(slots) if slots else study.default_slots
    chosen: list[Sharing] = [
        sharing
        for sharing, only in zip(SHARINGS, (per_layer, shared), strict=True)
        if only or per_layer == shared
    ]
    timing = _timing(study, image, board, storage, workers)
    outcomes: list[Outcome] = []
    with progress("replaying") as begin:
        step = begin(len(counts) * len(chosen) * len(POLICIES))
        for count in counts:
            for sharing in chosen:
                for policy in POLICIES:
                    outcomes.append(study.replay(policy, sharing, count))
                    step(1)
    view = View(study, outcomes, chosen, counts, timing, trace, pin)
    if output is not None:
        view.write(output)
    if as_json:
        emit_json(view.fields())
    else:
        view.show()
        if output is not None:
            note(f"written: {output}", markup=False)


def _check(image: Path | None, board: str | None, storage: str | None, output: Path | None) -> None:
    if (image is None) != (board is None):
        raise typer.BadParameter(
            "a prediction takes both: the image computes, the board's storage reads",
            param_hint="--image / --board",
        )
    if storage is not None and board is None:
        raise typer.BadParameter("is for a --board", param_hint="--storage")
    if output is not None and output.suffix not in PICTURES:
        raise typer.BadParameter(
            f"'{output.suffix}' is not written; name it {' or '.join(PICTURES)}",
            param_hint="--output",
        )


def _timing(
    study: Study, image: Path | None, board: str | None, storage: str | None, workers: int
) -> MissTime | None:
    if image is None or board is None:
        return None
    from colibri.boards import load_board
    from colibri.image import Image
    from colibri_emulator.miss_time import MissTime

    return MissTime(load_board(board), Image(image), study.trace, storage=storage, workers=workers)


class View:
    """What a study shows: JSON, tables, a picture."""

    def __init__(
        self,
        study: Study,
        outcomes: list[Outcome],
        sharings: list[Sharing],
        counts: list[int],
        timing: MissTime | None,
        file: Path,
        pin: Path | None,
    ) -> None:
        self.study, self.outcomes, self.timing = study, outcomes, timing
        self.sharings, self.counts, self.file, self.pin = sharings, counts, file, pin

    def fields(self) -> dict[str, Any]:
        """The object of --json."""
        trace, timing = self.study.trace, self.timing
        return {
            "kind": "counted",
            "trace": {
                "file": str(self.file),
                "image": trace.image,
                "text": {"source": trace.text.source, "sha256": trace.text.sha256},
                "tokens": trace.tokens,
                "layers": len(trace.layers),
                "experts": trace.experts,
                "top_k": trace.top_k,
                "record_bytes": list(trace.record_bytes),
                "balance_router": trace.balance_router,
            },
            "pin": str(self.pin) if self.pin else None,
            "rows": [self._row_fields(each) for each in self.outcomes],
            "best": [
                self._chosen_fields(self.study.best(self.sharings, count)) for count in self.counts
            ],
            "automatic": [self._chosen_fields(self.study.automatic(c)) for c in self.counts],
            "prediction": None if timing is None else {
                "kind": "predicted",
                "storage": timing.medium.name,
                "memory": timing.region,
                "compute_seconds_per_token": timing.compute.model_dump(),
                "inputs": [each.model_dump(by_alias=True) for each in timing.inputs],
            },
        }  # fmt: skip

    def show(self) -> None:
        """Tables and what they come to, on stdout."""
        out = console()
        for count in self.counts:
            for sharing in self.sharings:
                out.print(self._group(count, sharing), "")
        for line in self.notes():
            note(line, style="dim", markup=False)
        for count in self.counts:
            out.print(self.recommendation(count), soft_wrap=True)

    def _group(self, slots: int, sharing: Sharing) -> Table:
        """The policies at one slot count."""
        percent = 100 * slots / self.study.trace.experts
        where = f"{slots} slots in each layer" if sharing == "per-layer" else (
            f"{slots * len(self.study.trace.layers)} slots for all layers")  # fmt: skip
        head = ("policy", ">", *(f">{name}" for name in self._head))
        rows = table(f"{where} ({percent:.0f} % of the experts), {sharing}", *head)
        for each in self.outcomes:
            if (each.slots, each.sharing) == (slots, sharing):
                rows.add_row(each.policy, bar(each.hits, each.uses, 10), *self._figures(each))
        return rows

    def write(self, file: Path) -> None:
        """The plot; TraceError when it cannot be written."""
        from colibri.errors import TraceError
        from colibri.experts.plot import page, svg
        from colibri.text_files import write_text

        picture = svg(self.outcomes, self.study.trace.experts, self._title())
        if file.suffix == ".html":
            said = [*map(self.recommendation, self.counts), *self.notes()]
            picture = page(picture, self._title(), said, *self.table())
        write_text(file, picture, TraceError)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Head and rows as text, for a page."""
        rows = [[str(each.slots), f"{each.policy}, {each.sharing}", *self._figures(each)]
                for each in self.outcomes]  # fmt: skip
        return ["slots per layer", "policy", *self._head], rows

    @property
    def _head(self) -> list[str]:
        head = ["hit rate", "below Belady", "misses/token", "read/token"]
        return [*head, "time/token, predicted"] if self.timing else head

    def _figures(self, outcome: Outcome) -> list[str]:
        row = [
            f"{100 * outcome.hit_rate:.2f} %",
            f"{self.study.points_from_belady(outcome):.2f}",
            f"{outcome.misses_per_token:.3f}",
            format_bytes(round(outcome.bytes_per_token)),
        ]
        return [*row, _ms(self.timing.per_token(outcome))] if self.timing else row

    def notes(self) -> list[str]:
        """What the figures are."""
        from colibri.experts.study import AUTOMATIC

        trace = self.study.trace
        lines = [
            f"counted: {trace.tokens:,} tokens, {len(trace.layers)} layers, {trace.top_k} of "
            f"{trace.experts} experts each, records of {format_bytes(max(trace.record_bytes))}; "
            "caches start empty; belady knows the future",
            f"pinned: the hottest of {self.pin} in half of the slots, {AUTOMATIC} in the others"
            if self.pin else
            f"pinned: the hottest of this same trace in half of the slots, {AUTOMATIC} in the "
            "others; nobody knows them beforehand, so never called best; --pin takes another trace",
        ]  # fmt: skip
        if trace.balance_router is not None:
            lines.append(f"choices are those of a load-balancing router ({trace.balance_router} "
                         "in a row), not the model's own")  # fmt: skip
        if self.timing is not None:
            lines.append(
                f"time predicted, likely (interval): {_ms(self.timing.compute)} with all weights "
                f"in {self.timing.region}, and a read from {self.timing.medium.name} for each "
                "miss, which nothing overlaps"
            )
        return lines

    def recommendation(self, slots: int) -> str:
        """The best with so many slots, what the planner takes, and what is left to win."""
        best = self.study.best(self.sharings, slots)
        percent = 100 * slots / self.study.trace.experts
        text = (
            f"{slots} slots per layer ({percent:.0f} %): best is {best.policy}, {best.sharing}, "
            f"with {100 * best.hit_rate:.1f} % hits; "
            f"Belady is {self.study.points_from_belady(best):.1f} points above"
        )
        lru = self.study.replay("lru", best.sharing, slots)
        if best.policy != "lru" and best.bytes_read < lru.bytes_read:
            text += f"; LRU reads {100 * lru.bytes_read / best.bytes_read - 100:.0f} % more"
        if "per-layer" not in self.sharings:
            return text
        taken = self.study.automatic(slots)
        if (taken.policy, taken.sharing) == (best.policy, best.sharing):
            return text + "; it is what the planner takes"
        left = self.study.points_from_belady(taken)
        return text + (
            f". The planner takes {taken.policy}, {taken.sharing}: {100 * taken.hit_rate:.1f} %, "
            f"Belady {left:.1f} points above"
        )

    def _title(self) -> str:
        return f"Expert cache over {self.file.name}"

    def _row_fields(self, outcome: Outcome) -> dict[str, Any]:
        fields = {
            "policy": outcome.policy,
            "sharing": outcome.sharing,
            "slots_per_layer": outcome.slots,
            "slots": outcome.slots * len(self.study.trace.layers),
            "uses": outcome.uses,
            "hits": outcome.hits,
            "hit_rate": round(outcome.hit_rate, 6),
            "points_from_belady": round(self.study.points_from_belady(outcome), 4),
            "misses": list(outcome.misses),
            "misses_per_token": round(outcome.misses_per_token, 6),
            "bytes_read": outcome.bytes_read,
            "bytes_read_per_token": round(outcome.bytes_per_token, 3),
            "predicted": None,
        }
        if self.timing is not None:
            fields["predicted"] = {
                "seconds_per_token": self.timing.per_token(outcome).model_dump(),
                "reading_seconds_per_token": self.timing.reading(outcome).model_dump(),
            }
        return fields

    def _chosen_fields(self, outcome: Outcome) -> dict[str, Any]:
        return {
            "slots_per_layer": outcome.slots,
            "policy": outcome.policy,
            "sharing": outcome.sharing,
            "hit_rate": round(outcome.hit_rate, 6),
            "points_from_belady": round(self.study.points_from_belady(outcome), 4),
        }


def _ms(seconds: Range) -> str:
    mid, low, high = (f"{1e3 * each:.3g}" for each in (seconds.mid, seconds.low, seconds.high))
    return f"{mid} ms ({low} to {high})"
