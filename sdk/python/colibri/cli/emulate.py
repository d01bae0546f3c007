# SPDX-License-Identifier: Apache-2.0
"""`colibri emulate`: run an image inside a board."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from colibri.cli.common import (
    BatchOption,
    BoardOption,
    ContextOption,
    HtmlOption,
    ImageArgument,
    JsonOption,
    KvOption,
    WorkersOption,
    check_html,
    command,
    console,
    emit_json,
    progress,
    write_html,
)
from colibri.cli.requests import (
    IgnoreEosOption,
    KernelsOption,
    MaxNewOption,
    PromptOption,
    SeedOption,
    TemperatureOption,
    TokensOption,
    TopKOption,
    TopPOption,
    build_request,
)
from colibri.cli.reserves import (
    ApplicationOption,
    CodeOption,
    parse_application,
    parse_code,
)
from colibri.cli.streaming import (
    BalanceOption,
    MemoryOption,
    PinOption,
    PolicyOption,
    PreferOption,
    PrefetchOption,
    SlotsOption,
    memory_bytes,
    pins_for,
    wants_prefetch,
    wants_streaming,
)
from colibri.errors import EXIT_DOES_NOT_FIT
from colibri.generate import DEFAULT_NEW_TOKENS

if TYPE_CHECKING:
    from colibri.boards import Board
    from colibri.image import Image
    from colibri.limits import LimitOptions
    from colibri.planner import Plan

app = command("Run an image inside a board's memory, storage and time.")

MachineOption = Annotated[
    Literal["native", "cpu"],
    typer.Option(
        "--machine", help="native: this machine's runtime in the board's memory. cpu: its firmware."
    ),
]
EngineOption = Annotated[
    Literal["auto", "unicorn", "qemu"],
    typer.Option("--engine", help="What emulates the CPU, with --machine cpu."),
]
BindOption = Annotated[
    list[str] | None,
    typer.Option(
        "--bind",
        metavar="NAME=EXPERTS[@LAYERS]",
        help="Experts for the board's accelerator, as in npu=0-3 or npu=0,5@1-2 or npu=all.",
    ),
]
FaultsOption = Annotated[
    str | None,
    typer.Option(
        "--faults",
        metavar="READ:KIND,...",
        help="Reads of streamed experts that go wrong, as in 3:eio,7-9:short,12:late=250ms,"
        "20:never,31:corrupt.",
    ),
]


@app.command()
def emulate(
    image: ImageArgument,
    board: BoardOption,
    prompt: PromptOption = None,
    tokens: TokensOption = None,
    machine: MachineOption = "native",
    engine: EngineOption = "auto",
    max_new_tokens: MaxNewOption = DEFAULT_NEW_TOKENS,
    ignore_eos: IgnoreEosOption = False,
    temperature: TemperatureOption = 0.0,
    top_k: TopKOption = 0,
    top_p: TopPOption = 1.0,
    seed: SeedOption = 0,
    workers: WorkersOption = 1,
    kernels: KernelsOption = "auto",
    bind: BindOption = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check every weight: always done.")
    ] = True,
    context: ContextOption = None,
    batch: BatchOption = None,
    kv: KvOption = "f32",
    memory: MemoryOption = None,
    expert_slots: SlotsOption = None,
    policy: PolicyOption = "auto",
    pin: PinOption = None,
    prefetch: PrefetchOption = "auto",
    balance_router: BalanceOption = None,
    prefer_cached: PreferOption = None,
    faults: FaultsOption = None,
    application: ApplicationOption = None,
    code: CodeOption = None,
    html: HtmlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run an image inside a board's memory, storage and time.

    Exit code 0: it ran, 1: it does not fit or it faulted, 2: that could not be told.
    """
    from colibri.boards import load_board
    from colibri.image import Image
    from colibri_emulator.cpu import run_cpu
    from colibri_emulator.faults import NO_FAULTS, parse_faults
    from colibri_emulator.twin import run_twin

    check_html(html)
    _refuse_contradiction(machine, engine)
    if machine == "cpu":
        _refuse_for_firmware(
            {
                "--bind": bool(bind),
                "--pin": pin not in (None, "none"),
                "--kernels": kernels != "auto",
                "--prefetch": prefetch == "on",
                "--balance-router": balance_router is not None,
                "--prefer-cached": prefer_cached is not None,
            }
        )
    injected = parse_faults(faults) if faults is not None else NO_FAULTS
    opened, loaded = Image(image, map=False), load_board(board)
    bound = _bound(opened, loaded, bind or [])
    request = build_request(
        opened,
        prompt=prompt,
        tokens=tokens,
        max_new_tokens=max_new_tokens,
        ignore_eos=ignore_eos,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
    )
    pins = pins_for(opened, pin) if machine == "native" else []
    limits: LimitOptions = {
        "batch": batch,
        "workers": workers,
        "kv": kv,
        "pins": pins,
        "prefetch": wants_prefetch(prefetch),
        "balance": balance_router,
        "prefer_cached": prefer_cached,
        "application": parse_application(application),
        "code": parse_code(code),
    }
    if wants_streaming(memory, expert_slots, policy, prefetch, pin=pin):
        limits |= {"streamed": True, "expert_slots": expert_slots, "policy": policy}
        limits["memory"] = memory_bytes(memory)
    planned = _plan(opened, loaded, context, limits, machine)
    opened.verify()
    if planned.weights != "streamed":  # they are used where the file is mapped
        opened = Image(image)
    with progress(f"{loaded.id} ({machine})") as begin:
        if machine == "cpu":
            prefer = None if engine == "auto" else engine
            report = run_cpu(opened, loaded, request, planned, prefer=prefer, faults=injected)
        else:
            step = begin(max_new_tokens)
            report = run_twin(
                opened,
                loaded,
                request,
                planned,
                kernels=kernels,
                bound=bound,
                pins=pins if planned.experts else (),
                faults=injected,
                on_token=lambda _: step(1),
            )
    if html is not None:
        from colibri.report.page import Page
        from colibri_emulator.pictures import emulation_section

        write_html(html, Page.of(emulation_section(report, planned, loaded)))
    if as_json:
        emit_json(report.to_json())
    else:
        for part in report.tables():
            console().print(part, "")
        if report.text:
            console().print(report.text, markup=False)
    if report.fault or not report.fits:
        raise typer.Exit(EXIT_DOES_NOT_FIT)


def _plan(
    image: Image, board: Board, context: int | None, limits: LimitOptions, machine: str
) -> Plan:
    """Experts are streamed where that is asked for, or where nothing else fits."""
    from colibri.planner import plan, plan_or_stream
    from colibri_emulator.twin import slots_of

    if not limits.get("streamed"):
        return plan_or_stream(image, board, context, **limits)
    made = plan(image, board, context, **limits)
    if machine == "cpu" and made.fits and limits.get("memory") is not None:
        # Firmware knows its regions, not how much of them it may take: it is told the slots.
        told: LimitOptions = {**limits, "memory": None, **slots_of(made)}
        return plan(image, board, context, **told)
    return made


def _bound(image: Image, board: Board, options: list[str]) -> tuple[tuple[int, int], ...]:
    """The experts of all --bind options, each once."""
    from colibri.accelerator import bound_experts

    found: set[tuple[int, int]] = set()
    for option in options:
        name, equals, experts = option.partition("=")
        device = board.accelerator
        if not equals:
            raise typer.BadParameter("write NAME=EXPERTS, as in npu=0-3", param_hint="--bind")
        if device is None or device.name != name:
            has = f"its accelerator is '{device.name}'" if device else "it has no accelerator"
            raise typer.BadParameter(
                f"board {board.id} has no '{name[:40]}': {has}", param_hint="--bind"
            )
        found.update(bound_experts(image, experts))
    return tuple(sorted(found))


def _refuse_contradiction(machine: str, engine: str) -> None:
    """Options of the other machine would be ignored; that must not go unsaid."""
    if machine == "native" and engine != "auto":
        raise typer.BadParameter("is for --machine cpu", param_hint="--engine")


#: Why firmware takes no such option.
_FIRMWARE = {
    "--bind": "firmware binds no experts",
    "--pin": "the runner of firmware pins no experts",
    "--kernels": "firmware has the kernels of its target",
    "--prefetch": "the runner of firmware reads nothing on a guess",
    "--balance-router": "the runner of firmware routes as the model says",
    "--prefer-cached": "the runner of firmware routes as the model says",
}


def _refuse_for_firmware(given: dict[str, bool]) -> None:
    for option, is_given in given.items():
        if is_given:
            raise typer.BadParameter(
                f"is for --machine native; {_FIRMWARE[option]}", param_hint=option
            )
