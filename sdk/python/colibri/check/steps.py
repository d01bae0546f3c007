# SPDX-License-Identifier: Apache-2.0
"""What is done for each board: pack → plan → build → size → emulate, each a public call.

A step that fails fills a row with what was wrong, and those that need its result are skipped, so
that one run shows everything there is to mend.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from colibri.boards import Budgets
from colibri.check.emulation import emulate, same_tokens
from colibri.check.rows import BoardResult
from colibri.check.sheet import BUDGETS, FIGURES, Sheet
from colibri.check.sizes import library, size
from colibri.fit.budgets import Figure
from colibri.project.loader import LoadedProject, Target
from colibri.project.model import Engine
from colibri.weight_order import order_of_core

if TYPE_CHECKING:
    from colibri.image import Image
    from colibri.image_format import Order
    from colibri.planner import Plan, PlanRegion

Say = Callable[[str, str], None]


class BoardCheck:
    """One board of a project.

    Parameters
    ----------
    loaded, target
        The project and the board in it.
    folder : Path
        Gets images and firmware.
    images : dict
        Images packed so far, by weight order; boards share them.
    say : callable
        Told of each step before it begins.
    """

    def __init__(
        self, loaded: LoadedProject, target: Target, folder: Path, images: dict[Any, Path], say: Say
    ) -> None:
        self.loaded, self.target, self.board = loaded, target, target.board
        self.folder, self.images, self._say = folder, images, say
        self.sheet = Sheet(target.name, target.board.budgets)
        self.result = BoardResult(target.name, target.board)

    def run(self) -> BoardResult:
        """All steps; the rows are in ``sheet``."""
        options, result = self.target.options, self.result
        has_model = self.loaded.project.model is not None
        builds = options.build and options.elf is None
        if has_model:
            self._step("pack", self._pack)
            self._step("plan", self._plan, needs=result.image)
        planned = result.plan is not None and result.plan.fits
        if has_model and builds:
            self._step("build", self._build, needs=planned)
        if options.elf is not None or builds:
            self._step("size", self._size, needs=options.elf or result.firmware)
        for engine in dict.fromkeys(options.emulate) if has_model else ():
            ready = planned if engine == "native" else result.firmware is not None
            self._step("emulate", lambda engine=engine: self._emulate(engine),  # type: ignore[misc]
                       needs=ready, name=f"emulate.{engine}")  # fmt: skip
        same_tokens(self.sheet, result)
        self.sheet.missing(self._asked(), self._left_out())
        return result

    def _asked(self) -> dict[str, bool]:
        """Figures that the project file holds, and whether this board's table does.

        Those of a board file hold where they apply.
        """
        regions = {region.name for region in self.board.regions}
        project, own = self.loaded.project.budgets, self.target.options.budgets
        return {name: budgets is own for budgets in (project, own)
                for name in _held(budgets, regions)}  # fmt: skip

    def _left_out(self) -> set[str]:
        """Steps that are turned off for this board and run for another."""
        others = [steps for target in self.loaded.targets for steps in _steps_of(target)]
        return set(others) - set(_steps_of(self.target))

    def _step(
        self, step: str, action: Callable[[], None], needs: object = True, name: str = ""
    ) -> None:
        self._say(step, self.target.name)
        self.sheet.step(step, name or step, needs, action)

    def _pack(self) -> None:
        from colibri.image import Image

        model = self.loaded.project.model
        assert model is not None
        if model.image is not None:
            ready = self.loaded.path(model.image)
            Image(ready, map=False).verify()
        else:
            order = order_of_core(self.board.cores[0])
            if order not in self.images:
                self.images[order] = self._packed(order)
            ready = self.images[order]
        self.result.image = ready
        size = sum(file.bytes for file in Image(ready, map=False).files)
        self.sheet.held("pack", "image", "the image, all its files", size, "image_bytes")

    def _packed(self, order: Order) -> Path:
        from colibri.pack import pack
        from colibri.placement import Placement

        model, path = self.loaded.project.model, self.loaded.path
        assert model is not None
        assert model.checkpoint is not None
        target = self.folder / f"{self.loaded.project.name}-{order.name.lower()}.colibri"
        pack(
            path(model.checkpoint), target, quant=model.quant, group=model.group, order=order,
            recipe=path(model.recipe) if model.recipe else None,
            calibration_text=path(model.calibrate) if model.calibrate else None,
            placement=Placement.of(model.layout, model.block, model.shard_size),
            heat=path(model.heat) if model.heat else None,
            pin=path(model.pin) if model.pin else None, jobs=min(8, os.cpu_count() or 1),
        )  # fmt: skip
        return target

    def _plan(self) -> None:
        from colibri.image import Image

        assert self.result.image is not None
        self.result.plan = made = self._planned(Image(self.result.image, map=False))
        if not made.fits:
            self.sheet.say("plan", "fits", "a place for everything", "over", "; ".join(made.advice))
            return
        why = f"experts streamed: {made.experts['why']}" if made.experts else ""
        what = f"a place for everything, context up to {made.max_context:,}"
        self.sheet.say("plan", "fits", what, "ok", why)
        self.sheet.held("plan", "arena", "memory of the engine", made.total_bytes, "arena_bytes",
                        kind="planned")  # fmt: skip
        for region in made.regions:
            self._planned_region(region)
        if self.board.os == "none":
            declared = [f"{name} {size:,} B" for name, size in self.target.application.items()]
            what = f"application beside the engine: {', '.join(declared) or 'not given'}"
            self.sheet.say("plan", "application", what, "info")

    def _planned_region(self, region: PlanRegion) -> None:
        """All that will lie in a region, the engine included, against the region's budget.

        What programs may not use counts neither as used nor as capacity, as in the firmware's rows.
        """
        kept = sum(row.bytes for row in region.buffers if row.name in ("reserved", "os"))
        capacity = region.size - kept
        budget = self.board.budgets.regions.get(region.name)
        warn, limit = budget.marks(capacity) if budget is not None else (None, None)
        figure = Figure(
            f"planned.{region.name}", f"{region.name} with engine", region.used - kept,
            f"budgets.regions.{region.name}", kind="planned", warn=warn, limit=limit,
            capacity=capacity,
        )  # fmt: skip
        self.sheet.figure("plan", figure)

    def _planned(self, image: Image) -> Plan:
        from colibri.planner import plan, plan_or_stream

        limits = self.target.limits
        asked: dict[str, Any] = {
            "context": limits.context, "batch": limits.batch, "workers": limits.workers,
            "kv": limits.kv, "prefetch": limits.prefetch, **self._application(),
        }  # fmt: skip
        if not limits.streamed:
            return plan_or_stream(image, self.board, **asked)
        return plan(image, self.board, **asked, streamed=True, memory=limits.memory,
                    expert_slots=limits.expert_slots, policy=limits.policy)  # fmt: skip

    def _application(self) -> dict[str, Any]:
        return {"application": self.target.application} if self.target.application else {}

    def _build(self) -> None:
        from colibri_emulator.build_firmware import build_firmware

        options, limits = self.target.options, self.target.limits
        assert self.result.image is not None
        made = build_firmware(
            self.board, self.result.image, self.folder / self.target.name,
            toolchain=options.toolchain, kernels=options.kernels, weights=options.weights,
            kv=tuple(dict.fromkeys(("f32", limits.kv))), **self._application(),
        )  # fmt: skip
        self.result.firmware = made
        what = f"{made.target}, {made.toolchain}, {made.kernels} kernels"
        self.sheet.say("build", "build", what, "ok")
        library(self.sheet, self.result)

    def _size(self) -> None:
        self.result.size = size(self.sheet, self.loaded, self.target, self.result)

    def _emulate(self, engine: Engine) -> None:
        emulate(self.sheet, self.loaded, self.target, self.result, engine)


def _held(budgets: Budgets, regions: Container[str]) -> Iterator[str]:
    """Names of the figures that budgets hold on a board with these regions."""
    for name in FIGURES:
        if getattr(budgets, BUDGETS.get(name, name)) is not None:
            yield name
    yield from (f"region.{name}" for name in budgets.regions if name in regions)
    yield from (f"span.{name}" for name in budgets.spans if name in regions)
    yield from (f"group.{name}" for name in budgets.groups)


def _steps_of(target: Target) -> Iterator[str]:
    """Of the steps that a board may leave out, those that it does not."""
    if target.options.build or target.options.elf is not None:
        yield "size"
    if "native" in target.options.emulate:
        yield "emulate"
