# SPDX-License-Identifier: Apache-2.0
"""The native twin: the host's runtime inside the memory, storage and time of a board.

>>> report = run_twin(image, load_board("pimoroni-pico-plus-2"), request)     # doctest: +SKIP
>>> report.fits, report.high_water, report.predicted.decode_tok_s             # doctest: +SKIP

First the plan: what does not fit is said before anything runs.  Then the engine is given regions
of exactly the planned sizes and places (`memory`), runs the request, and its trace drives the
clock (`clock`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypedDict

from colibri.accelerator import FakeNpu
from colibri.arena import MemoryRegion
from colibri.board_memory import IN_PLACE, reads_storage
from colibri.boards import Accelerator, Board
from colibri.engine import Engine
from colibri.errors import ColibriError, EmulateError
from colibri.experts.pins import Pin
from colibri.generate import Generation, Request, generate
from colibri.image import Image
from colibri.image_format import Order
from colibri.planner import Plan
from colibri.status import READ_ERRORS
from colibri.weight_order import order_of_core, order_of_image
from colibri_emulator.clock import Charge, Clock, Placement, predict
from colibri_emulator.faults import NO_FAULTS, Faults
from colibri_emulator.memory import GuardedRegion, Side
from colibri_emulator.report import (
    AcceleratorUse,
    EmulationReport,
    Machine,
    Prediction,
    RegionUse,
    Shortfall,
)
from colibri_emulator.storage import Medium, boot_medium, file_medium


def run_twin(
    image: Image,
    board: Board,
    request: Request,
    plan: Plan,
    *,
    kernels: str = "auto",
    side: Side = "end",
    bound: tuple[tuple[int, int], ...] = (),
    pins: Sequence[Pin] = (),
    faults: Faults = NO_FAULTS,
    on_token: Callable[[int], None] | None = None,
) -> EmulationReport:
    """Runs a request inside a board.

    Parameters
    ----------
    image, board : Image, Board
        What runs where.
    request : Request
        What to generate.
    plan : Plan
        `colibri.plan` of the two; when it does not fit, nothing runs.
    kernels : str
        A kernel table of the host; all give the same bits.
    side : {"end", "start"}
        The edge of each region that touches a guard page.
    bound : tuple of (layer, expert)
        Experts that the board's accelerator computes; `colibri.accelerator.bound_experts`.
    pins : sequence of (layer, expert)
        Streamed experts that stay, as `Engine` takes them.
    faults : Faults
        Reads of streamed weights that go wrong. What the runtime cannot mend by reading again ends
        the run; the report's `fault` is its error.
    on_token : callable, optional
        Gets each token as it is drawn.
    """
    if faults and plan.weights == "mapped":
        raise EmulateError("nothing is read while the model runs, so no read can go wrong",
                           field="--faults", hint="stream experts: --expert-slots")  # fmt: skip
    if not plan.fits:
        return unfit_report(image, plan, "native")
    device = _accelerator(board) if bound else None
    load = _load_bytes(board, image, plan)
    medium = _medium(board, image, plan, load)
    order = order_of_image(image)
    meter = _Meter(_clock(board, image, plan, medium, device, order, faults), load)
    regions = _guarded_regions(plan, side)
    engine = Engine(
        image,
        plan.limits["context"],
        plan.limits["workers"],
        plan.limits["batch"],
        plan.limits["kv"],
        kernels,
        profile=plan.limits["profile"],
        memory=[
            MemoryRegion(region.name, region.base, region.size, free.rank)
            for region, free in zip(regions, plan.memory.regions, strict=True)
        ],
        trace=True,
        accelerator=FakeNpu(bound, device.memory_bytes) if device else None,
        pins=pins,
        faults=faults.outcomes(),
        weights=plan.weights,
        **slots_of(plan),
        **_reading_and_routing(plan),
    )
    meter.bound(engine)
    run = _Run(image, engine, meter, on_token)
    run.generate(request)
    uses = [_region_use(plan, engine, index, region) for index, region in enumerate(regions)]
    return EmulationReport(
        image=image.name,
        board=board.id,
        machine="native",
        engine=f"the runtime's host build, {engine.kernels} kernels",
        notes=_notes(
            board,
            plan,
            order,
            unpriced=medium is None and (bool(load) or reads_storage(image, plan.weights)),
            device=device.name if device else None,
        ),
        fits=True,
        fault=run.failure or _memory_fault(regions, uses),
        tokens=run.done.tokens,
        prompt_tokens=run.done.prompt_tokens,
        text=image.tokenizer.decode(run.done.tokens) if image.has_tokenizer else None,
        stop_reason=None if run.failure else run.done.stop_reason,
        logits_crc32=None if run.failure else run.done.logits_crc32,
        total_bytes=plan.total_bytes,
        max_context=plan.max_context,
        high_water=sum(use.high_water for use in uses),
        regions=uses,
        accelerator=_accelerator_use(device, len(bound), engine) if device else None,
        experts=engine.experts._asdict() if plan.experts else None,
        predicted=meter.prediction(run.done),
    )


def unfit_report(image: Image, plan: Plan, machine: Machine) -> EmulationReport:
    """The report of a run that cannot be: which buffer, how much is missing, what would fit."""
    regions = [
        RegionUse(name=free.name, size=free.size, used=0, high_water=0)
        for free in plan.memory.regions
    ]
    return EmulationReport(
        image=image.name,
        board=plan.board,
        machine=machine,
        engine="nothing was run",
        fits=False,
        shortfall=_shortfall(plan),
        total_bytes=plan.total_bytes,
        max_context=plan.max_context,
        high_water=0,
        regions=regions,
    )


def arena_used(plan: Plan, name: str) -> int:
    """Bytes of a region that the engine takes: without firmware, system and image."""
    fixed = sum(row.bytes for row in plan.memory.rows if row.region == name)
    return plan.region(name).used - fixed


class _Run:
    """One request: what came out, or how far it got and why no further."""

    def __init__(
        self, image: Image, engine: Engine, meter: _Meter, on_token: Callable[[int], None] | None
    ) -> None:
        self.done = Generation(0)
        self.failure: str | None = None
        self._image, self._engine, self._meter, self._on_token = image, engine, meter, on_token

    def generate(self, request: Request) -> None:
        """Runs it; a read that cannot be had ends it, any other error is the caller's."""
        self.done = Generation(len(request.prompt))
        try:
            self.done = generate(self._engine, request, on_token=self._step)
        except ColibriError as error:
            if error.status is None or error.status.code not in READ_ERRORS:
                raise
            self.failure = str(error)

    def _step(self, token: int) -> None:
        self._meter.step(self._engine)
        self.done.tokens.append(token)
        if self._on_token:
            self._on_token(token)


class _Meter:
    """Turns the trace of each step into time, and times into a prediction."""

    def __init__(self, clock: Clock, load_bytes: int) -> None:
        self._clock = clock
        self._load = clock.charge_read(load_bytes)
        self._prefill: Charge | None = None
        self._decode = Charge()

    def bound(self, engine: Engine) -> None:
        """Charges what went to memory or to the accelerator when the engine was made."""
        events = engine.take_trace()
        self._load.add(self._clock.charge_binding(events))
        self._load.add(self._clock.charge(events))

    def step(self, engine: Engine) -> None:
        """Charges what the engine just did; the first step is the prompt."""
        charge = self._clock.charge(engine.take_trace())
        if self._prefill is None:
            self._prefill = charge
        else:
            self._decode.add(charge)

    def prediction(self, done: Generation) -> Prediction | None:
        """None when nothing ran."""
        if self._prefill is None:
            return None
        return predict(
            self._clock,
            load=self._load,
            prefill=self._prefill,
            prompt=done.prompt_tokens,
            decode=self._decode,
            steps=done.decode_steps,
        )


def _accelerator(board: Board) -> Accelerator:
    if board.accelerator is None:
        raise EmulateError(
            "the board has no accelerator to bind experts to",
            file=board.id,
            hint="add a table [accelerator] to a board file of yours (docs/boards.md)",
        )
    return board.accelerator


def _accelerator_use(device: Accelerator, experts: int, engine: Engine) -> AcceleratorUse:
    state = engine.core.npu_state()
    assert state is not None
    return AcceleratorUse(
        name=device.name,
        experts=experts,
        size=device.memory_bytes,
        used=state["needed"],
        calls=state["commands"],
        copied=state["copied"],
    )


def _clock(
    board: Board,
    image: Image,
    plan: Plan,
    medium: Medium | None,
    device: Accelerator | None,
    order: Order,
    faults: Faults,
) -> Clock:
    streamed = plan.weights == "streamed"
    return Clock(
        board,
        Placement(
            weights=_region_of(plan, "weights") if streamed else _image_region(plan),
            kv=_region_of(plan, "kv_cache"),
            work=_region_of(plan, "hidden"),
            slots=_region_of(plan, "expert_slots") if plan.experts else None,
        ),
        workers=plan.limits["workers"],
        medium=medium,
        accelerator=device,
        order=order,
        copies=plan.weights != "mapped" and not reads_storage(image, plan.weights),
        faults=faults,
    )


class Slots(TypedDict, total=False):
    """Keywords of engines, plans and the mailbox."""

    expert_slots: int
    policy: str


def slots_of(plan: Plan) -> Slots:
    """The slots that the plan chose and their policy, as engines and firmware are told."""
    experts = plan.experts
    return {"expert_slots": experts["slots"], "policy": experts["policy"]} if experts else {}


def _reading_and_routing(plan: Plan) -> dict[str, Any]:
    """What the plan says of reads on a guess and of routers, as engines take it."""
    routing = plan.routing or {}
    return {
        "prefetch": plan.experts["prefetch"] if plan.experts else None,
        "balance": routing.get("balance_router"),
        "prefer_cached": routing.get("prefer_cached"),
    }


def streaming_notes(plan: Plan) -> list[str]:
    """That experts are streamed, and why it is so."""
    return [f"experts are streamed: {plan.experts['why']}"] if plan.experts else []


def _medium(board: Board, image: Image, plan: Plan, load: int) -> Medium | None:
    """What the image is read from, or None where nothing is read or nothing is known."""
    if reads_storage(image, plan.weights):
        return file_medium(board)
    return boot_medium(board) if load else None


def _region_of(plan: Plan, buffer: str) -> str:
    for region in plan.regions:
        if any(row.name == buffer for row in region.buffers):
            return region.name
    raise EmulateError(f"the plan has no buffer '{buffer}'", file=plan.board)


def _image_region(plan: Plan) -> str:
    return next(row.region for row in plan.memory.rows if row.name == "image")


def _load_bytes(board: Board, image: Image, plan: Plan) -> int:
    """What must be read before the engine is made: nothing when the image lies in flash."""
    if plan.weights == "streamed":
        return image.meta_bytes
    return 0 if board.region(_image_region(plan)).kind in IN_PLACE else image.total_bytes


def _guarded_regions(plan: Plan, side: Side) -> list[GuardedRegion]:
    return [
        GuardedRegion(
            free.name,
            free.size,
            alignment=plan.alignment,
            planned=arena_used(plan, free.name),
            side=side,
            seed=1 if side == "end" else 2,
        )
        for free in plan.memory.regions
    ]


def _region_use(plan: Plan, engine: Engine, index: int, region: GuardedRegion) -> RegionUse:
    return RegionUse(
        name=region.name,
        size=region.size,
        used=arena_used(plan, region.name),
        high_water=engine.high_water(index),
        written=region.high_water(),
    )


def _memory_fault(regions: list[GuardedRegion], uses: list[RegionUse]) -> str | None:
    """The first broken promise about memory, or None."""
    for region, use in zip(regions, uses, strict=True):
        outside = region.overrun()
        if outside:
            return (
                f"wrote outside region {use.name} of {use.size:,} bytes: "
                f"offsets {outside.first:,} to {outside.last:,}"
            )
        if use.high_water != use.used:
            return f"took {use.high_water:,} bytes of {use.name}, the plan says {use.used:,}"
        if use.written is not None and use.written > use.used:
            return f"wrote {use.written:,} bytes of {use.name}, the plan says {use.used:,}"
    return None


def _notes(
    board: Board, plan: Plan, order: Order, *, unpriced: bool, device: str | None
) -> list[str]:
    workers, cores = plan.limits["workers"], board.cores[0].count
    notes = ["times are predicted, not measured: no board was involved (docs/emulator.md)"]
    notes += [*streaming_notes(plan), *plan.memory.application_notes()]
    if plan.routing:
        notes.append(plan.routing["note"])
    if workers < cores:
        notes.append(f"{workers} of {cores} cores at work; --workers {cores} uses them all")
    best = order_of_core(board.cores[0])
    if order is not best:
        notes.append(
            f"weights lie in {order.name.lower()}; pack --target {board.id} lays them out in "
            f"{best.name.lower()}, which this CPU reads faster"
        )
    if device:
        notes.append(
            f"{device}: the example device of sdk/c/ports/fake_npu at the board file's speeds"
        )
    if unpriced:
        notes.append("the board file names no storage: loading the image is not in the prediction")
    return notes


def _shortfall(plan: Plan) -> Shortfall:
    lack = plan.lack
    assert lack is not None
    sizes = {row.name: row.bytes for row in plan.unplaced}
    return Shortfall(
        region=lack.region,
        buffer=lack.part,
        buffer_bytes=sizes.get(lack.part, lack.need),
        have=max(lack.have, 0),
        need=max(lack.have, 0) + lack.need - lack.have,
        missing=lack.need - lack.have,
        max_context=plan.max_context,
        advice=list(plan.advice),
    )
