# SPDX-License-Identifier: Apache-2.0
"""Virtual time: how long the board would take for what the runtime just did.

The runtime's trace events carry what was moved and what was computed.  Each event costs the
larger of the two, and a little for getting started::

    seconds = max(bytes / read speed + first access, multiply-adds / compute rate) + dispatch

Every speed is an `Input` with its class, and the class decides how far the truth may lie from it
(`SPREAD`).  So a prediction is three numbers, and never shown as one.  docs/emulator.md says where
the spreads come from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from colibri.boards import Accelerator, Board, Core, Region
from colibri.image_format import Order
from colibri_emulator.compute_rate import ComputeRate, checksum_cycles, compute_rate
from colibri_emulator.device_time import (
    BACKEND_COPY,
    BACKEND_START,
    DeviceSpeed,
    device_time,
)
from colibri_emulator.faults import NO_FAULTS, Faults
from colibri_emulator.report import (
    DevicePrediction,
    Input,
    Prediction,
    Range,
    StoragePrediction,
)
from colibri_emulator.storage import STREAM_BLOCK, Medium, piece_of
from colibri_emulator.storage_time import READ, READ_WAIT, ReadTime, StorageTime

Seconds = npt.NDArray[np.float64]
Events = npt.NDArray[Any]  # structured: kind, layer, index, count, bytes, work (platform.h)
Scenario = Literal["slow", "mid", "fast"]
SCENARIOS: tuple[Scenario, ...] = ("slow", "mid", "fast")

STEP, LAYER, MATMUL, ATTEND, EXPERT, ROUTE, VECTOR = range(1, 8)
_SHARED_ROLES = range(50, 54)  # COLIBRI_ROLE_SHARED_GATE .. _ROUTER

# Real speed over the stated one: slow, mid, fast.
SPREAD: Mapping[str, tuple[float, float, float]] = {
    "measured": (0.75, 1.0, 1.25),
    "declared": (0.5, 0.8, 1.0),
    "theoretical": (0.15, 0.4, 1.0),
    # Bus rate and the cost of each line are both known, or the memory is on the chip.
    "theoretical, with latency": (0.5, 0.8, 1.0),
    "assumed": (0.5, 1.0, 2.0),
}

# Set-up of one operation, and of handing it to workers and waiting for them.
_CYCLES_ALONE = 400
_CYCLES_SHARED = 4000


@dataclass(frozen=True)
class Placement:
    """Names of the regions that traffic goes to; experts lie with the weights or in slots."""

    weights: str
    kv: str
    work: str
    slots: str | None = None

    @property
    def experts(self) -> str:
        """Where experts are when they are computed."""
        return self.slots or self.weights


@dataclass(frozen=True)
class _Speed:
    """What one byte, and one first access, cost in a region."""

    second_per_byte: float
    first_access: float


@dataclass
class Charge:
    """Time and traffic of some events."""

    seconds: dict[Scenario, float] = field(default_factory=lambda: dict.fromkeys(SCENARIOS, 0.0))
    terms: dict[str, float] = field(default_factory=dict)  # mid seconds by what set the pace
    traffic: dict[str, int] = field(default_factory=dict)
    device: float = 0.0  # mid seconds that an accelerator worked ...
    waited: float = 0.0  # ... and that the CPU waited for it
    reads: dict[Scenario, ReadTime] = field(default_factory=dict)  # of streamed experts

    def add(self, other: Charge) -> None:
        """Puts another charge on top."""
        for name in SCENARIOS:
            self.seconds[name] += other.seconds[name]
        for term, seconds in other.terms.items():
            self.terms[term] = self.terms.get(term, 0.0) + seconds
        for kind, size in other.traffic.items():
            self.traffic[kind] = self.traffic.get(kind, 0) + size
        self.device += other.device
        self.waited += other.waited
        for name, reads in other.reads.items():
            self.reads[name] = self.reads.get(name, ReadTime()) + reads

    def per_second(self, count: int) -> Range:
        """`count` things in this time, as a rate."""
        slow, mid, fast = (count / self.seconds[name] for name in SCENARIOS)
        return Range(low=slow, mid=mid, high=fast)

    @property
    def limit(self) -> str | None:
        """What set the pace for most of the time."""
        return max(self.terms, key=self.terms.__getitem__) if self.terms else None

    def shares(self) -> dict[str, float]:
        """Share of the time by what set the pace, largest first."""
        total = sum(self.terms.values())
        ordered = sorted(self.terms.items(), key=lambda item: -item[1])
        return {term: round(seconds / total, 4) for term, seconds in ordered if total}


class Clock:
    """The board's time.

    Parameters
    ----------
    board : Board
        Cores, regions and their speeds.
    placement : Placement
        Where weights, KV cache and activations lie.
    workers : int
        Workers of the plan; more than the board has cores share them.
    medium : Medium, optional
        What `READ` events and the loading of the image are charged to.
    accelerator : Accelerator, optional
        What calls of bound experts are charged to.
    order : Order
        Of the image's weights.
    copies : bool
        Experts are copied by the CPU, from where the weights lie.
    faults : Faults
        Reads that go wrong, and what that costs.
    """

    def __init__(
        self,
        board: Board,
        placement: Placement,
        *,
        workers: int,
        medium: Medium | None,
        accelerator: Accelerator | None = None,
        order: Order = Order.ROWS,
        copies: bool = False,
        faults: Faults = NO_FAULTS,
    ) -> None:
        self.inputs: list[Input] = []
        self._placement, self._medium = placement, medium
        self._core, self._shared = board.cores[0], workers > 1
        self._cores = min(workers, self._core.count)
        self._macs = self._compute_rate(compute_rate(board, order))
        self._dispatch = self._dispatch_seconds()
        self._speeds: dict[str, dict[Scenario, _Speed]] = {}
        places = (placement.weights, placement.kv, placement.work, placement.experts)
        for name in dict.fromkeys(places):
            self._speeds[name] = self._region_speed(board.region(name))
        if medium is not None:
            self._add_medium(medium)
        if placement.slots is not None:
            text = "colibri_crc32: instructions counted in emulation"
            each = checksum_cycles(self._core)
            self._note("checksum of what is read", each, "cycles/byte", "assumed", text)
        self._device = self._add_accelerator(accelerator) if accelerator is not None else {}
        self._device_name = accelerator.name if accelerator is not None else ""
        self._copies = copies
        self._storage = {name: self._storage_time(name, faults) for name in SCENARIOS}

    def charge(self, events: Events) -> Charge:
        """Time and traffic of a piece of the trace."""
        charge = Charge(traffic=_traffic(events))
        for kind, region, what in self._kinds():
            chosen = events[events["kind"] == kind]
            if chosen.size:
                charge.add(self._charge_kind(chosen, region, what))
        if np.isin(events["kind"], (READ, READ_WAIT)).any():
            charge.add(self._charge_storage(events))
        if self._device:
            charge.add(self._charge_device(events))
        return charge

    def charge_binding(self, events: Events) -> Charge:
        """Time to copy the weights of bound experts to the accelerator, before the first token."""
        chosen = (events["kind"] == BACKEND_COPY) & (events["count"] == 0)
        size, charge = int(events["bytes"][chosen].sum()), Charge()
        for name, speed in self._device.items() if size else ():
            source = self._speeds[self._placement.weights][name]
            charge.seconds[name] = size * max(speed.dma, source.second_per_byte)
        if size:
            charge.terms = {f"copying experts to {self._device_name}": charge.seconds["mid"]}
        return charge

    def charge_read(self, size: int, block: int = STREAM_BLOCK) -> Charge:
        """Time to read `size` bytes from the storage; none when no storage is known."""
        if self._medium is None or not size:
            return Charge()
        times = {name: self._read_seconds(name, size, block) for name in SCENARIOS}
        return Charge(seconds=times, terms={f"reading {self._medium.name}": times["mid"]})

    def _kinds(self) -> tuple[tuple[int, str, str], ...]:
        """What the CPU does: kind of event, the region that it goes to, and what lies there."""
        return (
            (MATMUL, self._placement.weights, "weights"),
            (EXPERT, self._placement.experts, "weights"),
            (ATTEND, self._placement.kv, "KV cache"),
            (VECTOR, self._placement.work, "activations"),
        )

    def _costs(self, events: Events, region: str, name: Scenario) -> tuple[Seconds, Seconds]:
        """Seconds of moving and of computing, event by event."""
        size, work = events["bytes"].astype(np.float64), events["work"].astype(np.float64)
        speed = self._speeds[region][name]
        return size * speed.second_per_byte + speed.first_access, work / self._macs[name]

    def _cpu_seconds(self, events: Events, name: Scenario) -> Seconds:
        """What each event costs the CPU."""
        cpu = np.zeros(len(events))
        for kind, region, _ in self._kinds():
            which = events["kind"] == kind
            cpu[which] = np.maximum(*self._costs(events[which], region, name))
            cpu[which] += self._dispatch[name]
        return cpu

    def _charge_storage(self, events: Events) -> Charge:
        """What reads cost the CPU: waiting or copying, and checksums."""
        charge = Charge()
        for name in SCENARIOS:
            found = self._storage[name].advance(events, self._cpu_seconds(events, name))
            charge.reads[name] = found
            charge.seconds[name] = found.loading + found.waited + found.copying + found.checking
        reads, source = charge.reads["mid"], self.source
        charge.terms = {
            f"reading {source}": reads.loading,
            f"waiting for {source}": reads.waited,
            f"copying experts from {source}": reads.copying,
            "checksums of what was read": reads.checking,
        }
        return charge

    @property
    def source(self) -> str:
        """What streamed experts come from."""
        if self._copies or self._medium is None:
            return self._placement.weights
        return self._medium.name

    def _storage_time(self, name: Scenario, faults: Faults) -> StorageTime:
        """Reads by the medium, or copies by the CPU, which load from one place and store to one."""
        places = (self._placement.weights, self._placement.experts)
        copy = sum(self._speeds[region][name].second_per_byte for region in places)

        def read(size: int, block: int) -> float:
            return size * copy if self._copies else self._read_seconds(name, size, block)

        factor = dict(zip(SCENARIOS, SPREAD["assumed"], strict=True))[name]
        return StorageTime(
            lambda size: read(size, piece_of(size)),
            lambda size: read(size, STREAM_BLOCK),
            check=checksum_cycles(self._core) / self._core.freq_hz / factor,
            copies=self._copies,
            faults=faults,
        )

    def _read_seconds(self, name: Scenario, size: int, block: int) -> float:
        """Of a read of the storage; none when no storage is known."""
        if self._medium is None:
            return 0.0
        return self._medium.seconds(size, block) / SPREAD[self._medium.cls][SCENARIOS.index(name)]

    def _charge_device(self, events: Events) -> Charge:
        """What bound experts cost the CPU: beginning their calls, and waiting for them."""
        calls = events["kind"] == BACKEND_START
        charge = Charge()
        if not calls.any():
            return charge
        for name in SCENARIOS:
            cpu = self._cpu_seconds(events, name)
            cpu[calls] = self._dispatch[name]
            found = device_time(events, cpu, self._device[name])
            begun = self._dispatch[name] * int(calls.sum())
            charge.seconds[name] = found.waited + begun
            if name == "mid":
                charge.terms = {f"waiting for {self._device_name}": found.waited, "dispatch": begun}
                charge.device, charge.waited = found.working, found.waited
        return charge

    def _charge_kind(self, events: Events, region: str, what: str) -> Charge:
        charge = Charge()
        for name in SCENARIOS:
            moving, computing = self._costs(events, region, name)
            dispatch = self._dispatch[name] * len(events)
            charge.seconds[name] = float(np.maximum(moving, computing).sum()) + dispatch
            if name == "mid":
                bound = moving > computing
                charge.terms = {
                    f"{what} from {region}": float(moving[bound].sum()),
                    f"compute on {self._core.cpu}": float(computing[~bound].sum()),
                    "dispatch": dispatch,
                }
        return charge

    def _compute_rate(self, one: ComputeRate) -> dict[Scenario, float]:
        core: Core = self._core
        self._note("core clock", core.freq_hz, "Hz", "declared", core.source)
        self._note("cores at work", self._cores, f"of {core.count}", "declared", core.source)
        self._note(
            f"multiply-adds a cycle on {core.cpu}",
            one.per_cycle,
            "1/cycle",
            "assumed",
            one.source,
        )
        rate = core.freq_hz * self._cores * one.per_cycle
        return {name: rate * SPREAD["assumed"][i] for i, name in enumerate(SCENARIOS)}

    def _dispatch_seconds(self) -> dict[Scenario, float]:
        cycles = _CYCLES_SHARED if self._shared else _CYCLES_ALONE
        text = "call, split and join of an operation"
        self._note("cycles per operation", cycles, "cycles", "assumed", text)
        seconds = cycles / self._core.freq_hz
        return {name: seconds / SPREAD["assumed"][i] for i, name in enumerate(SCENARIOS)}

    def _region_speed(self, region: Region) -> dict[Scenario, _Speed]:
        """Bandwidth and latency of a region, both with their class."""
        read, latency = region.perf.read_Bps, region.perf.latency_ns
        if read is None:
            return self._unknown_speed(region)
        self._note(f"{region.name} read speed", float(read), "B/s", read.cls, read.source)
        each = 1.0 / float(read)
        first = float(latency) * 1e-9 if latency else 0.0
        if latency:
            self._note(f"{region.name} latency", float(latency), "ns", latency.cls, latency.source)
        # A serial memory has no prefetch: every line waits. A measured speed includes that wait.
        serial = region.kind in ("nor", "psram") and read.cls != "measured"
        line = region.perf.line_bytes
        if serial and latency and line:
            self._note(f"{region.name} line", float(line), "B", line.cls, line.source)
            each, first = each + first / float(line), 0.0
        on_chip = region.kind in ("sram", "tcm")
        known = read.cls == "theoretical" and (on_chip or (serial and latency and line))
        spread = SPREAD["theoretical, with latency" if known else read.cls]
        return {
            name: _Speed(each / spread[i], first / spread[i]) for i, name in enumerate(SCENARIOS)
        }

    def _unknown_speed(self, region: Region) -> dict[Scenario, _Speed]:
        """No figure: as fast as the core can load, which is the least that is certain."""
        per_cycle = 4
        speed = float(self._core.freq_hz * per_cycle)
        text = f"the board file has no read speed of {region.name}: 4 bytes a core cycle"
        self._note(f"{region.name} read speed", speed, "B/s", "assumed", text)
        spread = SPREAD["theoretical"]
        return {name: _Speed(1 / (speed * spread[i]), 0.0) for i, name in enumerate(SCENARIOS)}

    def _add_medium(self, medium: Medium) -> None:
        for point in medium.storage.points:
            name = f"{medium.name} in blocks of {point.block_bytes} B"
            self._note(name, point.read_Bps, "B/s", point.cls, point.source)

    def _add_accelerator(self, device: Accelerator) -> dict[Scenario, DeviceSpeed]:
        figures = (
            ("multiply-adds", device.macs_per_s, "1/s"),
            ("read speed of its memory", device.read_Bps, "B/s"),
            ("DMA speed", device.dma_Bps, "B/s"),
            ("fixed cost of a call", device.start_us, "us"),
        )
        for what, figure, unit in figures:
            if figure is not None:
                name = f"{device.name} {what}"
                self._note(name, float(figure), unit, figure.cls, figure.source)
        return {
            name: DeviceSpeed.of(device, {cls: row[i] for cls, row in SPREAD.items()})
            for i, name in enumerate(SCENARIOS)
        }

    def _note(self, name: str, value: float, unit: str, cls: str, source: str) -> None:
        self.inputs.append(Input(name=name, value=value, unit=unit, cls=cls, source=source))


def _traffic(events: Events) -> dict[str, int]:
    """Bytes by what they were read for."""
    kind, role, size = events["kind"], events["index"], events["bytes"]
    matmul = kind == MATMUL
    shared = matmul & np.isin(role, _SHARED_ROLES)
    chosen = {
        "dense": matmul & ~shared,
        "shared": shared,
        "routed": kind == EXPERT,
        "kv": kind == ATTEND,
    }
    if (kind == BACKEND_START).any():
        chosen["bound"] = kind == BACKEND_START
    return {name: int(size[which].sum()) for name, which in chosen.items()}


def predict(
    clock: Clock, *, load: Charge, prefill: Charge, prompt: int, decode: Charge, steps: int
) -> Prediction:
    """Speeds of a run: `prompt` tokens at once, then `steps` tokens one at a time.

    Bytes per token are those of decoding; of the prompt when nothing was decoded.
    """
    first = {name: load.seconds[name] + prefill.seconds[name] for name in SCENARIOS}
    traffic, count = (decode.traffic, steps) if steps else (prefill.traffic, prompt)
    return Prediction(
        prefill_tok_s=prefill.per_second(prompt),
        decode_tok_s=decode.per_second(steps) if steps else None,
        first_token_s=Range(low=first["fast"], mid=first["mid"], high=first["slow"]),
        load_s=Range(low=load.seconds["fast"], mid=load.seconds["mid"], high=load.seconds["slow"]),
        limits={"load": load.limit, "prefill": prefill.limit, "decode": decode.limit},
        decode_shares=(decode if steps else prefill).shares(),
        bytes_per_token={kind: round(size / count) for kind, size in traffic.items()},
        inputs=clock.inputs,
        device=_device_prediction(decode if steps else prefill),
        storage=_storage_prediction(clock, decode if steps else prefill, count),
    )


def _storage_prediction(clock: Clock, charge: Charge, count: int) -> StoragePrediction | None:
    if not charge.reads:
        return None

    def range_of(part: Callable[[Scenario], float]) -> Range:
        low, mid, high = sorted(part(name) / count for name in SCENARIOS)
        return Range(low=low, mid=mid, high=high)

    reads = charge.reads["mid"]
    moving = reads.working + reads.copying
    return StoragePrediction(
        name=clock.source,
        compute_s=range_of(lambda name: charge.seconds[name] - _waiting(charge.reads[name])),
        waiting_s=range_of(lambda name: _waiting(charge.reads[name])),
        hidden_share=round(1 - _waiting(reads) / moving, 4) if moving else 0.0,
    )


def _waiting(reads: ReadTime) -> float:
    """Seconds that the CPU has for nothing but the bytes of experts."""
    return reads.waited + reads.copying


def _device_prediction(charge: Charge) -> DevicePrediction | None:
    if not charge.device:
        return None
    return DevicePrediction(
        busy_share=round(charge.device / charge.seconds["mid"], 4),
        hidden_share=round(1 - charge.waited / charge.device, 4),
    )
