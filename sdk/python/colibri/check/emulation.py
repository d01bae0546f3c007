# SPDX-License-Identifier: Apache-2.0
"""The step that runs a request: in the native twin, which predicts time, or as firmware."""

from __future__ import annotations

from typing import TYPE_CHECKING

from colibri.check.rows import BoardResult
from colibri.check.sheet import Sheet
from colibri.errors import ProjectError, TokenizerError
from colibri.fit.budgets import Figure
from colibri.project.loader import LoadedProject, Target
from colibri.project.model import Engine

if TYPE_CHECKING:
    from colibri.generate import Request
    from colibri.image import Image
    from colibri_emulator.report import EmulationReport, Range

_STEP = "emulate"


def emulate(
    sheet: Sheet, loaded: LoadedProject, target: Target, result: BoardResult, engine: Engine
) -> None:
    """Rows of one engine; the report goes to ``result.reports``."""
    from colibri.image import Image

    assert result.image is not None
    image = Image(result.image)
    request = _request(image, loaded)
    run = _twin if engine == "native" else _firmware
    report = run(image, target, result, request)
    result.reports[engine] = report
    failed = report.fault or ("" if report.fits else "does not fit")
    what = f"{len(report.tokens)} tokens, logits {report.logits_crc32}, by {report.engine}"
    sheet.say(_STEP, f"emulate.{engine}", what, "over" if failed else "ok", failed)
    if not failed and engine == "native":
        _speeds(sheet, report)
    elif not failed:
        _counts(sheet, report, result)


def _request(image: Image, loaded: LoadedProject) -> Request:
    from colibri.generate import Request
    from colibri.sampling import Sampling

    run = loaded.project.run
    tokens = run.tokens
    if tokens is None:
        if run.prompt is None:
            raise ProjectError("nothing is said of what to generate", file=loaded.file,
                               field="run", hint="give prompt, or tokens")  # fmt: skip
        if not image.has_tokenizer:
            raise TokenizerError("is text, and the image has no tokenizer", file=loaded.file,
                                 field="run.prompt", hint="give run.tokens")  # fmt: skip
        tokens = image.tokenizer.encode(run.prompt)
    sampling = Sampling(run.temperature, run.top_k, run.top_p, run.seed)
    return Request(tokens, sampling, run.max_new_tokens)


def _twin(image: Image, target: Target, result: BoardResult, request: Request) -> EmulationReport:
    from colibri_emulator.twin import run_twin

    return run_twin(image, target.board, request, result.plan)


def _firmware(
    image: Image, target: Target, result: BoardResult, request: Request
) -> EmulationReport:
    from colibri_emulator.cpu import cpu_report, mailbox_request
    from colibri_emulator.machine import pick_machine

    machine = pick_machine(target.board, workers=target.limits.workers)
    ran = machine.run(result.firmware, mailbox_request(image, request, result.plan))
    return cpu_report(image, target.board, request, result.plan, ran)


def _speeds(sheet: Sheet, report: EmulationReport) -> None:
    if report.predicted is None:  # nothing was generated
        return
    rate, first = report.predicted.decode_tok_s, report.predicted.first_token_s
    _predicted(sheet, "tok_s", "tokens generated a second", "tok/s", rate, at_least=True)
    _predicted(sheet, "first_token_s", "first token after", "s", first)
    last = first
    if rate is not None:
        more = len(report.tokens) - 1
        last = first.model_copy(update={
            "low": first.low + more / rate.high, "mid": first.mid + more / rate.mid,
            "high": first.high + more / rate.low,
        })  # fmt: skip
    _predicted(sheet, "deadline_s", f"last of {len(report.tokens)} tokens after", "s", last)


def _predicted(
    sheet: Sheet, name: str, what: str, unit: str, value: Range | None, *, at_least: bool = False
) -> None:
    interval = (value.low, value.high) if value is not None else None
    detail = f"predicted, {value.low:,.4g} to {value.high:,.4g} {unit}" if value else ""
    sheet.held(_STEP, name, what, value.mid if value is not None else None, name, unit=unit,
               kind="predicted", at_least=at_least, interval=interval, detail=detail)  # fmt: skip


def _counts(sheet: Sheet, report: EmulationReport, result: BoardResult) -> None:
    counted = report.counted
    if counted is not None and counted.instructions is not None:
        done = Figure("instructions", "instructions", counted.instructions, "", unit="")
        sheet.figure(_STEP, done)
    if counted is None or counted.stack_high_water is None:
        return
    used = counted.stack_high_water
    sheet.figure(_STEP, Figure("stack_used", "stack that was used", used, "",
                               capacity=counted.stack_bytes))  # fmt: skip
    stack = result.size.stack if result.size is not None else None
    if stack is not None and stack.complete and stack.bytes < used:
        detail = f"{used:,} B were used, the bound is {stack.bytes:,} B: please report it"
        sheet.say(_STEP, "stack_bound", "stack within its bound", "over", detail)


def same_tokens(sheet: Sheet, result: BoardResult) -> None:
    """A row when both engines ran."""
    if len(result.reports) < 2:
        return
    native, firmware = result.reports["native"], result.reports["cpu"]
    one, other = native.logits_crc32, firmware.logits_crc32
    same = (native.tokens, one) == (firmware.tokens, other)
    detail = "" if same else f"logits {one} and {other}"
    what = "twin and firmware give the same tokens"
    sheet.say(_STEP, "same_tokens", what, "ok" if same else "over", detail)
