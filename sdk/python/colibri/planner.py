# SPDX-License-Identifier: Apache-2.0
"""Image + board + limits → where every byte lies.

Sizes and placement of the engine's buffers are the C planner's. This file only says which memory
a board has for them, and adds the rows that are not the engine's: firmware, system, image.

>>> plan("demo.colibri", board="pimoroni-pico-plus-2", context=128).fits    # doctest: +SKIP
True
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

from colibri import _core
from colibri.application import ROW
from colibri.board_memory import BoardMemory, FreeRegion, Weights, board_memory, streamed_weights
from colibri.boards import Board, load_board
from colibri.engine import KV_TYPES, PREFETCH, check_pages, policy_name
from colibri.errors import DoesNotFitError, ImageError, Lack, PlanError
from colibri.experts.pins import Pin, pinned
from colibri.image import Image
from colibri.limits import LimitOptions, Limits
from colibri.routing import routing_options
from colibri.status import LIMITS

SCHEMA = 1
ALIGNMENT = 64  # of a free region's first byte
_KV_NAMES = {number: name for name, number in KV_TYPES.items()}


@dataclass(frozen=True)
class Buffer:
    """A row of the memory map; `offset` counts from the start of the board's region."""

    name: str
    offset: int
    bytes: int
    why: str


@dataclass(frozen=True)
class PlanRegion:
    """A region of the board: its size, what is used, and by what."""

    name: str
    size: int
    used: int
    buffers: tuple[Buffer, ...] = ()


@dataclass(frozen=True)
class Plan:
    """An exact memory plan.

    Parameters
    ----------
    fits : bool
        Whether everything has a place.
    total_bytes : int
        What the engine takes, without image, firmware and system.
    max_context : int
        The longest context that fits with these limits, 0 when none does.
    regions : tuple of PlanRegion
        The memory map.
    advice : tuple of str
        When it does not fit: what was missing, then what would have to change.
    unplaced : tuple of Buffer
        When it does not fit: the engine's buffers, which have sizes but no place.
    lack : Lack, optional
        When it does not fit: the part, its region, and the bytes there are and would do.
    limits : dict
        Limits in effect.
    experts : dict, optional
        When they are streamed: slots, slots a layer (0: shared by all), bytes of a slot, policy,
        whether it reads on a guess, how many are pinned, and why it is so.
    table_bytes : int
        Of the image's tables when experts are streamed, else 0: they are in memory beside the
        engine.
    routing : dict, optional
        What changes the choice of experts (`colibri.routing`).
    weights : str
        Where they are, as `Engine` takes it.
    """

    board: str
    fits: bool
    total_bytes: int
    max_context: int
    regions: tuple[PlanRegion, ...]
    limits: dict[str, Any]
    alignment: int
    memory: BoardMemory = field(repr=False)
    advice: tuple[str, ...] = ()
    unplaced: tuple[Buffer, ...] = ()
    lack: Lack | None = None
    experts: dict[str, Any] | None = None
    table_bytes: int = 0
    routing: dict[str, Any] | None = None
    weights: Weights = "mapped"

    def require(self) -> Plan:
        """The plan itself, or DoesNotFitError with the advice."""
        if not self.fits:
            raise DoesNotFitError(self.advice[0], file=self.board, hint="; ".join(self.advice[1:]))
        return self

    def region(self, name: str) -> PlanRegion:
        """A region by name."""
        return next(region for region in self.regions if region.name == name)

    def to_json(self) -> dict[str, Any]:
        """What ``colibri plan --json`` prints."""
        return {
            "schema": SCHEMA,
            "fits": self.fits,
            "total_bytes": self.total_bytes,
            "max_context": self.max_context,
            "regions": [_region_json(region) for region in self.regions],
            "board": self.board,
            "limits": self.limits,
            "weights": self.weights,
            "experts": self.experts,
            "table_bytes": self.table_bytes,
            "routing": self.routing,
            "application": self.memory.application,
            "code": self.memory.code_json(),
            "alignment": self.alignment,
            "advice": list(self.advice),
            "unplaced": [vars(buffer) for buffer in self.unplaced],
        }


def _region_json(region: PlanRegion) -> dict[str, Any]:
    return {**vars(region), "buffers": [vars(buffer) for buffer in region.buffers]}


def plan(
    image: Image | str | Path,
    board: Board | str | Path,
    context: int | None = None,
    **limits: Unpack[LimitOptions],
) -> Plan:
    """Plans an image on a board.

    Parameters
    ----------
    image : Image or path
        The model.
    board : Board, str or Path
        A board, its id, or a board file.
    context, **limits
        The fields of `colibri.limits.Limits`: batch, workers, kv, pages, streamed, memory,
        expert_slots, policy, pins, prefetch, balance, prefer_cached, application, code.

    Raises
    ------
    ImageError, BoardError, PlanError
        When there is nothing to plan. A model that does not fit is a plan that says so.
    """
    asked = Limits(context, **limits)
    opened = image if isinstance(image, Image) else Image(image)
    target = board if isinstance(board, Board) else load_board(board)
    check_pages(asked.pages, asked.streamed)
    weights = streamed_weights(target, opened, asked) if asked.streamed else "mapped"
    core = asked.core(target.firmware.profile, weights)
    there = board_memory(target, opened, asked, weights=weights)
    tables = opened.meta_bytes if weights == "streamed" else 0
    if asked.memory is not None:
        there = at_most(max(asked.memory - tables, 0), there)
    planner = _Planner(opened, target, there, core, asked.pins)
    return replace(planner.plan(asked.memory), weights=weights, table_bytes=tables)


def plan_or_stream(
    image: Image, board: Board, context: int | None = None, **limits: Unpack[LimitOptions]
) -> Plan:
    """A plan with all weights in memory; with streamed experts where only that fits.

    `context` and `limits` are those of `plan`. The reason is the last part of ``experts["why"]``.
    """
    streaming: LimitOptions = {**limits, "streamed": True}
    try:
        resident = plan(image, board, context, **limits)
    except ImageError as refused:  # an image in several files, where only a storage has files
        streamed = plan(image, board, context, **streaming)
        return _because(streamed, str(refused.what))
    if resident.fits:
        return resident
    try:
        streamed = plan(image, board, context, **streaming)
    except PlanError:  # the board has no storage
        return resident
    if not streamed.fits or streamed.experts is None:
        return resident
    return _because(streamed, f"with all weights {resident.advice[0]}")


def _because(streamed: Plan, reason: str) -> Plan:
    experts = streamed.experts or {}
    why = f"{experts.get('why', '')}; streamed because {reason}"
    return replace(streamed, experts=experts | {"why": why} if experts else None)


def at_most(size: int, memory: BoardMemory) -> BoardMemory:
    """The free regions cut to `size` bytes in all, fast ones first."""
    left = size
    given = {}
    for region in sorted(memory.regions, key=lambda region: region.rank):
        given[region.name] = min(left, region.size)
        left -= given[region.name]
    cut = tuple(region._replace(size=given[region.name]) for region in memory.regions)
    return replace(memory, regions=cut)


class _Planner:
    """One call of `plan`: the C planner asked once for the answer, more often for advice."""

    def __init__(
        self, image: Image, board: Board, memory: BoardMemory, limits: _core.Limits,
        pins: Sequence[Pin],
    ) -> None:  # fmt: skip
        self.image, self.board, self.memory = image, board, memory
        self.regions = memory.regions or (used_up(board),)
        self.limits, self.pins = limits, pins

    def plan(self, size: int | None) -> Plan:
        """`size`: what ``--memory`` gave."""
        result = _core.plan(self.image.core, self.limits, self.regions)
        shortage = result["shortage"]
        fits = shortage is None and not self.memory.problem
        asked, asked_policy = self.limits.expert_slots, self.limits.policy
        self.limits = result["limits"]
        longest = 0
        if not self.memory.problem:  # with other contexts, other slots may be what fits
            longest = self._max_context(_changed(self.limits, expert_slots=asked))
        buffers = tuple(buffer_of(row) for row in result["buffers"])
        lack = self.memory.lack or self._lack(shortage, buffers)
        return Plan(
            board=self.board.id,
            fits=fits,
            total_bytes=result["total_bytes"],
            max_context=longest,
            regions=tuple(self._map(result["buffers"] if fits else [])),
            limits=limits_json(self.limits),
            alignment=result["alignment"],
            memory=self.memory,
            advice=() if lack is None else tuple(self._advice(lack, longest, size)),
            unplaced=() if fits else buffers,
            lack=lack,
            experts=streamed_experts(self.image, result, asked_policy, self.pins),
            routing=routing_options(self.limits),
        )

    def _lack(
        self, shortage: tuple[int, int, int] | None, buffers: tuple[Buffer, ...]
    ) -> Lack | None:
        """The C planner's shortage in terms of the board."""
        if shortage is None:
            return None
        index, have, need = shortage
        name = self.regions[index].name
        if not self.memory.regions:  # room would begin at the next aligned address
            need += -self.board.region(name).end % ALIGNMENT
        return Lack(max(buffers, key=lambda row: row.bytes).name, name, have, need)

    def _max_context(self, limits: _core.Limits) -> int:
        return _core.plan_max_context(self.image.core, limits, self.regions)

    def _map(self, placed: list[tuple[int, int, int, int, int]]) -> Iterator[PlanRegion]:
        """Every region of the board with what is fixed in it and what the C planner put there."""
        for region in self.board.regions:
            rows = [
                Buffer(row.name, row.offset, row.bytes, row.why)
                for row in self.memory.rows
                if row.region == region.name
            ]
            for row in placed:
                arena = self.memory.regions[row[1]]
                if arena.name == region.name:
                    buffer = buffer_of(row)
                    origin = arena.address - region.base
                    rows.append(replace(buffer, offset=origin + buffer.offset))
            rows.sort(key=lambda row: row.offset)
            yield PlanRegion(region.name, region.size, sum(row.bytes for row in rows), tuple(rows))

    def _advice(self, lack: Lack, longest: int, size: int | None) -> Iterator[str]:
        """What is missing, then each single change that would do."""
        missing = lack.need - lack.have
        declared = (self.memory.application or {}).get(lack.region, 0)
        if self.memory.problem:
            yield self.memory.problem
            smaller = "pack the model smaller (--quant q4), or " if lack.part == "image" else ""
            if declared >= missing and lack.part != ROW:
                most = (declared - missing) // ALIGNMENT * ALIGNMENT
                smaller += f"leave the application {most:,} bytes of {lack.region} at most, or "
            yield f"{smaller}take a board with {missing:,} more bytes there"
            return
        beside = f" beside the application's {declared:,}" if declared else ""
        yield (
            f"{lack.region} has {lack.have:,} bytes for the engine{beside}, {lack.need:,} would do "
            f"({missing:,} more)"
        )
        if size is not None:
            tables = f", {self.image.meta_bytes:,} of them for the image's tables"
            yield f"--memory {self._enough(lack)} does, where the board has it{tables}"
        if longest:
            yield f"--context {longest} fits"
        yield from self._smaller_kv()
        yield from self._smaller_batch()
        yield from self._fewer_slots()

    def _enough(self, lack: Lack) -> int:
        """For ``--memory``: what would do, and the tables."""
        others = sum(region.size for region in self.regions if region.name != lack.region)
        return lack.need + others + self.image.meta_bytes

    def _smaller_kv(self) -> Iterator[str]:
        order = ("f32", "f16", "q8")
        for name in order[order.index(_KV_NAMES[self.limits.kv]) + 1 :]:
            longest = self._max_context(_changed(self.limits, kv=KV_TYPES[name]))
            if longest >= self.limits.context:
                yield f"--kv {name} fits"
            elif longest:
                yield f"--kv {name} fits with --context {longest}"

    def _smaller_batch(self) -> Iterator[str]:
        batch = self.limits.batch // 2
        while batch:
            limits = _changed(self.limits, batch=batch)
            if _core.plan(self.image.core, limits, self.regions)["shortage"] is None:
                yield f"--batch {batch} fits"
                return
            batch //= 2

    def _fewer_slots(self) -> Iterator[str]:
        if not self.limits.expert_slots:
            return
        left_out = _changed(self.limits, expert_slots=0)
        result = _core.plan(self.image.core, left_out, self.regions)
        if result["shortage"] is None:
            yield f"--expert-slots {result['limits'].expert_slots} fits"


def used_up(board: Board) -> FreeRegion:
    """Stands for the RAM of a board that is taken to the last byte: no bytes of its largest."""
    ram = [region for region in board.regions if region.writable]
    largest = max(ram, key=lambda region: region.usable)
    return FreeRegion(largest.name, 0, 0, largest.rank)


def _changed(limits: _core.Limits, **changes: int) -> _core.Limits:
    return _core.Limits(**{**{name: getattr(limits, name) for name in LIMITS[1:]}, **changes})


def limits_json(limits: _core.Limits) -> dict[str, Any]:
    profiles = {number: name for name, number in _core.PROFILES.items()}
    return {
        "context": limits.context,
        "batch": limits.batch,
        "workers": limits.workers,
        "sequences": limits.sequences,
        "kv": _KV_NAMES[limits.kv],
        "profile": profiles[limits.profile],
    }


def streamed_experts(
    image: Image, result: _core.PlanResult, asked: int, pins: Sequence[Pin]
) -> dict[str, Any] | None:
    """`asked`: the policy that was given, 0 for none."""
    limits, per_layer = result["limits"], result["slots_per_layer"]
    if not limits.expert_slots:
        return None
    policy = policy_name(limits.policy)
    kept = pinned(image, limits, per_layer, pins) if pins else 0
    return {
        "slots": limits.expert_slots,
        "slots_per_layer": per_layer,
        "slot_bytes": result["slot_bytes"],
        "policy": policy,
        "prefetch": limits.prefetch == PREFETCH[True],
        "pinned": kept,
        "why": "; ".join(_reasons(image, limits.expert_slots, per_layer, policy, asked, kept)),
    }


def _reasons(
    image: Image, slots: int, per_layer: int, policy: str, asked: int, kept: int
) -> Iterator[str]:
    """Why slots are shared or not, who makes room, and how many stay."""
    top_k, count = image.config["top_k"], len(image.experts)
    if slots == count:
        yield f"all {count} in memory, none makes room"
        return
    if per_layer:
        yield (
            f"{slots} of {count} in memory, {per_layer} or more a layer, of which a token uses "
            f"{top_k}: each layer has its own"
        )
    else:
        yield (
            f"{slots} of {count} in memory, fewer than the {top_k} a layer that a token uses: "
            "shared by all layers"
        )
    chosen = "as asked" if asked else "which missed no more than lru on every text measured"
    yield f"{policy} makes room, {chosen}"
    if kept:
        yield f"the {kept} hottest are pinned, half of the slots where a token fits beside them"


def buffer_of(row: tuple[int, int, int, int, int]) -> Buffer:
    """A row of the C planner, with the reason for its place: how often its bytes are touched."""
    kind, _, offset, size, touched = row
    times = touched / size
    often = f"{times:.1f}" if times < 10 else f"{times:.0f}"
    why = f"{_core.buffer_purpose(kind)} ({often}x a token)"
    return Buffer(_core.buffer_name(kind), offset, size, why)
