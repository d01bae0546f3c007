# SPDX-License-Identifier: Apache-2.0
"""What an emulation found: one model, shown as tables or as JSON.

Both machines, the native twin and the emulated CPU, fill the same `EmulationReport`.  Every
figure says what it is: *planned* (computed before), *counted* (read back, exact) or *predicted*
(from board figures, with an interval).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from colibri.cli.common import table
from colibri.report.bars import Bar, Piece, terminal_bar
from colibri.units import format_bytes

Machine = Literal["native", "cpu"]
_TRAFFIC = {
    "dense": "attention, router, embedding, output",
    "shared": "shared expert",
    "routed": "routed experts",
    "kv": "KV cache",
    "bound": "bound experts, in the accelerator's memory",
}


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, populate_by_name=True, extra="forbid")


class Range(_Model):
    """Three numbers, smallest first: the likely value and the interval around it."""

    low: float
    mid: float
    high: float

    def text(self, unit: str) -> str:
        """``12.3 tok/s (8.1 to 15.4)``"""
        return f"{_short(self.mid)} {unit} ({_short(self.low)} to {_short(self.high)})"


class Input(_Model):
    """A number that a prediction rests on."""

    name: str
    value: float
    unit: str
    cls: str = Field(serialization_alias="class")
    source: str


class DevicePrediction(_Model):
    """An accelerator during generation (of the prompt, when nothing was generated)."""

    busy_share: float  # of the whole time
    hidden_share: float  # of its own time: the CPU was at work meanwhile


class StoragePrediction(_Model):
    """Reads of streamed experts during generation (of the prompt, when nothing was generated)."""

    name: str
    compute_s: Range  # a token, without waiting
    waiting_s: Range  # a token: the CPU waits for bytes, or copies them itself
    hidden_share: float  # of the storage's time: the CPU was at work meanwhile


class Prediction(_Model):
    """Speeds that the board would show.  Never a measurement."""

    prefill_tok_s: Range
    decode_tok_s: Range | None  # None: nothing was decoded
    first_token_s: Range  # from open to the first token, loading included
    load_s: Range
    limits: dict[str, str | None]  # what sets the pace of each phase
    decode_shares: dict[str, float]
    bytes_per_token: dict[str, int]
    inputs: list[Input]
    device: DevicePrediction | None = None
    storage: StoragePrediction | None = None


class AcceleratorUse(_Model):
    """The device that experts were bound to."""

    name: str
    experts: int  # bound
    size: int
    used: int  # counted: their weights, and working space
    calls: int  # counted
    copied: int  # counted: bytes over DMA, weights included


class RegionUse(_Model):
    """One region of the board during the run."""

    name: str
    size: int
    used: int  # planned
    high_water: int  # counted: what the engine took
    written: int | None = None  # counted: end of the last byte that changed, by reading back

    def bar(self, buffers: tuple[Piece, ...] = ()) -> Bar:
        """What the engine took, in `buffers`; where that is not the plan, the plan is a mark."""
        note = f"planned {self.used:,} B"
        if self.written is not None:
            note += f"; written up to byte {self.written:,} (counted)"
        pieces = buffers or (Piece("engine, high water", "work", self.high_water),)
        limit = self.used if self.used != self.high_water else None
        return Bar(f"{self.name}, the engine's", None, self.size, pieces, limit=limit, note=note)


class Counts(_Model):
    """What an emulated CPU counts; the twin has none of it."""

    instructions: int | None = None
    stack_high_water: int | None = None
    stack_bytes: int | None = None


class Shortfall(_Model):
    """Why it does not fit, and what would."""

    region: str
    buffer: str
    buffer_bytes: int
    have: int
    need: int
    missing: int
    max_context: int
    advice: list[str]


class EmulationReport(_Model):
    """The result of `colibri emulate`."""

    image: str
    board: str
    machine: Machine
    engine: str  # what ran it: kernel table of the host, or CPU emulator and core
    notes: list[str] = []
    fits: bool
    shortfall: Shortfall | None = None
    prompt_tokens: int = 0
    tokens: list[int] = []
    text: str | None = None
    stop_reason: str | None = None
    logits_crc32: str | None = None
    total_bytes: int
    max_context: int
    high_water: int
    regions: list[RegionUse]
    accelerator: AcceleratorUse | None = None
    experts: dict[str, Any] | None = None  # counted, by the names of `colibri.engine.ExpertStats`
    predicted: Prediction | None = None
    counted: Counts | None = None
    fault: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Fields in reading order, as JSON types."""
        return self.model_dump(mode="json", by_alias=True)

    def tables(self) -> Iterator[RenderableType]:
        """The report for people, one block after another."""
        if self.shortfall:
            yield self._unfit(self.shortfall)
            return
        yield self._head()
        yield self._memory()
        if self.predicted:
            yield _speed_table(self.predicted)
            yield _input_table(self.predicted)
        if self.notes:
            yield Text("\n".join(f"note: {note}" for note in self.notes), style="dim")

    def _head(self) -> Table:
        rows = table(f"{self.board} · {self.machine}", "", "")
        rows.show_header = False
        rows.add_row("ran on", self.engine)
        if self.fault:
            rows.add_row("fault", Text(self.fault, style="bold red"))
        if self.logits_crc32:
            count = f"{len(self.tokens)} tokens after {self.prompt_tokens}"
            rows.add_row("tokens", f"{count}, stopped by {self.stop_reason}  (counted)")
            rows.add_row("logits CRC-32", f"{self.logits_crc32}  (counted)")
        for name, value in self._counts():
            rows.add_row(name, f"{value}  (counted)")
        for name, value in self._accelerator(self.accelerator) if self.accelerator else ():
            rows.add_row(name, value)
        for name, value in _expert_rows(self.experts) if self.experts else ():
            rows.add_row(name, value)
        return rows

    def _unfit(self, short: Shortfall) -> Table:
        rows = table(f"{self.board} · does not fit, nothing was run", "", "")
        rows.show_header = False
        size = format_bytes(short.buffer_bytes, exact=True)
        rows.add_row("buffer", f"{short.buffer} takes {size}")
        rows.add_row("region", f"{short.region} has {short.have:,} B, {short.need:,} B would do")
        rows.add_row("missing", Text(f"{short.missing:,} B", style="bold red"))
        for number, line in enumerate(short.advice[1:]):
            rows.add_row("" if number else "what fits", line)
        return rows

    def _counts(self) -> Iterator[tuple[str, str]]:
        counted = self.counted
        if counted and counted.instructions is not None:
            yield "instructions", f"{counted.instructions:,}"
        if counted and counted.stack_high_water is not None:
            limit = f" of {format_bytes(counted.stack_bytes)}" if counted.stack_bytes else ""
            yield "stack", f"{counted.stack_high_water:,} B{limit}"

    def _accelerator(self, use: AcceleratorUse) -> Iterator[tuple[str, str]]:
        size = f"{use.used:,} of {use.size:,} B"
        yield use.name, f"{use.experts} experts bound in {size}, {use.calls:,} calls  (counted)"
        device = self.predicted.device if self.predicted else None
        if device:
            hidden = f"{device.hidden_share:.0%} of that beside the CPU"
            busy = f"{device.busy_share:.0%} of the time"
            yield f"{use.name} at work", f"{busy}, {hidden}  (predicted)"

    def _memory(self) -> Table:
        columns = ("region", ">size", ">planned", ">high water", ">written", "")
        rows = table("Memory", *columns, caption="B: the engine's buffers, high water")
        for use in self.regions:
            rows.add_row(
                use.name,
                format_bytes(use.size),
                f"{use.used:,} B",
                f"{use.high_water:,} B",
                "–" if use.written is None else f"{use.written:,} B",
                terminal_bar(use.bar(), 16),
            )
        return rows


def _expert_rows(use: dict[str, Any]) -> Iterator[tuple[str, str]]:
    per_layer, again = use["slots_per_layer"], use["retries"]
    sharing = f"{per_layer} a layer" if per_layer else "shared by layers"
    yield "expert slots", f"{use['slots']} ({sharing}), {use['policy']} makes room"
    hits, misses = use["hits"], use["misses"]
    rate = f" ({hits / (hits + misses):.1%})" if hits + misses else ""
    told = f"{hits:,} hits{rate}, {misses:,} misses, {use['bytes_read']:,} B read"
    yield "experts asked for", told + (f", {again} read again" if again else "") + "  (counted)"
    if use["prefetched"]:
        wrong = f"{use['prefetched_wasted_bytes']:,} B for nothing"
        told = f"{use['prefetched']:,} reads, {use['prefetched_used']:,} of them right, {wrong}"
        yield "read on a guess", told + "  (counted)"


def _speed_table(predicted: Prediction) -> Table:
    rows = table("Speed, predicted", "", "likely (interval)", "set by")
    limits = predicted.limits
    if predicted.load_s.mid:
        rows.add_row("load the image", predicted.load_s.text("s"), limits["load"])
    rows.add_row("prompt", predicted.prefill_tok_s.text("tok/s"), limits["prefill"])
    if predicted.decode_tok_s:
        rows.add_row("generation", predicted.decode_tok_s.text("tok/s"), limits["decode"])
    rows.add_row("first token after", predicted.first_token_s.text("s"), "")
    if predicted.storage:
        storage = predicted.storage
        hidden = f"{storage.hidden_share:.0%} of its reading is beside the CPU"
        rows.add_row("a token computes", storage.compute_s.text("s"), "")
        rows.add_row(f"a token waits for {storage.name}", storage.waiting_s.text("s"), hidden)
    shown = ((term, share) for term, share in predicted.decode_shares.items() if share >= 0.01)
    shares = ", ".join(f"{term} {share:.0%}" for term, share in shown)
    rows.add_row("time goes to", shares, "")
    for kind, size in predicted.bytes_per_token.items():
        rows.add_row(f"bytes a token, {kind}", f"{size:,} B", _TRAFFIC[kind])
    return rows


def _input_table(predicted: Prediction) -> Table:
    rows = table("Predicted from", "figure", ">value", "class", "source")
    for item in predicted.inputs:
        rows.add_row(item.name, f"{item.value:,.12g} {item.unit}", item.cls, item.source)
    return rows


def _short(value: float) -> str:
    """Three significant digits, without exponent where people read it."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 0.001 else f"{value:.1e}"
