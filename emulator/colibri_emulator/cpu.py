# SPDX-License-Identifier: Apache-2.0
"""`colibri emulate --machine cpu`: the board's firmware on an emulated CPU, as a report."""

from __future__ import annotations

from colibri.board_memory import reads_storage
from colibri.boards import Board
from colibri.errors import EmulateError
from colibri.generate import Request, StopReason
from colibri.image import Image
from colibri.planner import Plan
from colibri.status import READ_ERRORS, error_from
from colibri_emulator import mailbox
from colibri_emulator.faults import NO_FAULTS, Faults
from colibri_emulator.machine import EngineName, Result, run_on_cpu
from colibri_emulator.report import Counts, EmulationReport, RegionUse
from colibri_emulator.twin import arena_used, slots_of, streaming_notes, unfit_report


def run_cpu(
    image: Image,
    board: Board,
    request: Request,
    plan: Plan,
    *,
    prefer: EngineName | None = None,
    faults: Faults = NO_FAULTS,
) -> EmulationReport:
    """Builds the firmware and runs a request on an emulated CPU.

    `faults` are those of the block device, which streamed experts come from where the board's flash
    does not hold the image.

    Raises
    ------
    EmulateError
        When no engine is installed that can run the board.
    ColibriError
        When the firmware reports an error of the runtime.
    """
    if not plan.fits:
        return unfit_report(image, plan, "cpu")
    if image.path is None:
        raise EmulateError("an image in memory cannot be put into firmware", hint="give a file")
    if faults and (board.os == "linux" or not reads_storage(image, plan.weights)):
        raise EmulateError("this firmware reads nothing from a block device, which could go wrong",
                           field="--faults", hint="--machine native")  # fmt: skip
    asked = mailbox_request(image, request, plan)
    memory = plan.memory
    _, result = run_on_cpu(
        board, image.path, asked, prefer=prefer, faults=faults,
        application=memory.application, code=memory.code.bytes if memory.code else None,
    )  # fmt: skip
    return cpu_report(image, board, request, plan, result)


def cpu_report(
    image: Image, board: Board, request: Request, plan: Plan, result: Result
) -> EmulationReport:
    """What a firmware run found: faults and lost reads are reported, other errors raised."""
    failure = str(result.fault) if result.fault else None
    if result.status and not result.fault:
        error = error_from(f"{result.engine}, {result.stage}", result.status, *result.error)
        if result.stage != "infer" or result.status not in READ_ERRORS:
            raise error
        failure = str(error)
    tokens = list(result.tokens)
    return EmulationReport(
        image=image.name,
        board=board.id,
        machine="cpu",
        engine=result.engine,
        notes=[
            *result.notes,
            *streaming_notes(plan),
            *plan.memory.application_notes(),
            "time is predicted by the twin: --machine native",
        ],
        fits=True,
        fault=failure or _plan_fault(plan, result),
        tokens=tokens,
        prompt_tokens=len(request.prompt),
        text=image.tokenizer.decode(tokens) if image.has_tokenizer else None,
        stop_reason=None if failure else _stop_reason(request, image, tokens),
        logits_crc32=result.logits_crc32 if tokens or not failure else None,
        total_bytes=result.total_bytes,
        max_context=plan.max_context,
        high_water=sum(result.high_water.values()),
        regions=[
            RegionUse(
                name=free.name,
                size=free.size,
                used=result.used.get(free.name, 0),
                high_water=result.high_water.get(free.name, 0),
            )
            for free in plan.memory.regions
        ],
        experts=result.experts._asdict() if result.experts else None,
        counted=Counts(
            instructions=result.instructions,
            stack_bytes=result.stack_bytes or None,  # 0: the engine does not see the stack
            stack_high_water=result.stack_high_water or None,
        ),
    )


def mailbox_request(image: Image, request: Request, plan: Plan) -> mailbox.Request:
    """The request as the firmware takes it, with the limits of the plan."""
    limits, sampling = plan.limits, request.sampling
    checked = request.checked(
        vocabulary=image.vocabulary, context=limits["context"], longest=image.context
    )
    return mailbox.Request(
        prompt=checked.prompt,
        max_new_tokens=checked.max_new_tokens,
        ignore_eos=checked.ignore_eos,
        context=limits["context"],
        batch=limits["batch"],
        workers=limits["workers"],
        kv=limits["kv"],
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        seed=sampling.seed,
        weights=plan.weights,
        **slots_of(plan),
    )


def _stop_reason(request: Request, image: Image, tokens: list[int]) -> StopReason:
    if tokens and not request.ignore_eos and tokens[-1] in image.stop_ids:
        return "stop"
    return "context" if len(tokens) < request.max_new_tokens else "length"


def _plan_fault(plan: Plan, result: Result) -> str | None:
    """Host and firmware must have made the same plan, and the firmware must have kept to it."""
    for free in plan.memory.regions:
        planned = arena_used(plan, free.name)
        for what, found in (("planned", result.used), ("took", result.high_water)):
            if found.get(free.name) != planned:
                return (
                    f"the firmware {what} {found.get(free.name)} bytes of {free.name}, "
                    f"the host planned {planned}"
                )
    return None
