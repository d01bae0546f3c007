# SPDX-License-Identifier: Apache-2.0
"""The native twin: the host's runtime inside the memory, storage and time of a board.

>>> report = run_twin(image, load_board("pimoroni-pico-plus-2"), request)     # doctest: +SKIP
>>> report.fits, report.high_water, report.predicted.decode_tok_s             # doctest: +SKIP

First the plan: what does not fit is said before anything runs.  Then the engine is given regions
of exactly the planned sizes and places (`memory`), runs the request, and its trace drives the
clock (`clock`).
"""

from __future__ import annotations

from collections.abc import Callable

from colibri.accelerator import FakeNpu
from colibri.arena import MemoryRegion
from colibri.boards import Accelerator, Board
from colibri.engine import Engine
from colibri.errors import EmulateError
from colibri.generate import Generation, Request, generate
from colibri.image import Image
from colibri.image_format import Order
from colibri.planner import Plan
from colibri.weight_order import order_of_core, order_of_image
from colibri_emulator.clock import Charge, Clock, Placement, predict
from colibri_emulator.memory import GuardedRegion, Side
from colibri_emulator.report import (
    AcceleratorUse,
    EmulationReport,
    Machine,
    Prediction,
    RegionUse,
    Shortfall,
)
from colibri_emulator.storage import Medium, boot_medium

_IN_PLACE = ("nor", "rom", "mram")  # memories that hold an image without power


def run_twin(
    image: Image,
    board: Board,
    request: Request,
    plan: Plan,
    *,
    kernels: str = "auto",
    side: Side = "end",
    bound: tuple[tuple[int, int], ...] = (),
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
    on_token : callable, optional
        Gets each token as it is drawn.
    """
    if not plan.fits:
        return unfit_report(image, plan, "native")
    device = _accelerator(board) if bound else None
    load = _load_bytes(board, image, plan)
    medium = boot_medium(board) if load else None
    order = order_of_image(image)
    meter = _Meter(_clock(board, plan, medium, device, order), load)
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
    )
    meter.bound(engine)

    def step(token: int) -> None:
        meter.step(engine)
        if on_token:
            on_token(token)

    done = generate(engine, request, on_token=step)
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
            unpriced=bool(load) and medium is None,
            device=device.name if device else None,
        ),
        fits=True,
        fault=_memory_fault(regions, uses),
        tokens=done.tokens,
        prompt_tokens=done.prompt_tokens,
        text=image.tokenizer.decode(done.tokens) if image.has_tokenizer else None,
        stop_reason=done.stop_reason,
        logits_crc32=done.logits_crc32,
        total_bytes=plan.total_bytes,
        max_context=plan.max_context,
        high_water=sum(use.high_water for use in uses),
        regions=uses,
        accelerator=_accelerator_use(device, len(bound), engine) if device else None,
        predicted=meter.prediction(done),
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


class _Meter:
    """Turns the trace of each step into time, and times into a prediction."""

    def __init__(self, clock: Clock, load_bytes: int) -> None:
        self._clock = clock
        self._load = clock.charge_read(load_bytes)
        self._prefill: Charge | None = None
        self._decode = Charge()

    def bound(self, engine: Engine) -> None:
        """Charges the weights that went to the accelerator when the engine was made."""
        self._load.add(self._clock.charge_binding(engine.take_trace()))

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
    board: Board, plan: Plan, medium: Medium | None, device: Accelerator | None, order: Order
) -> Clock:
    placement = Placement(
        weights=_image_region(plan),
        kv=_region_of(plan, "kv_cache"),
        work=_region_of(plan, "hidden"),
    )
    workers = plan.limits["workers"]
    return Clock(board, placement, workers=workers, medium=medium, accelerator=device, order=order)


def _region_of(plan: Plan, buffer: str) -> str:
    for region in plan.regions:
        if any(row.name == buffer for row in region.buffers):
            return region.name
    raise EmulateError(f"the plan has no buffer '{buffer}'", file=plan.board)


def _image_region(plan: Plan) -> str:
    return next(row.region for row in plan.memory.rows if row.name == "image")


def _load_bytes(board: Board, image: Image, plan: Plan) -> int:
    """What must be read before the first token: nothing when the image lies in flash."""
    return 0 if board.region(_image_region(plan)).kind in _IN_PLACE else image.total_bytes


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
