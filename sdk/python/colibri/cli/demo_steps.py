# SPDX-License-Identifier: Apache-2.0
"""What `colibri demo` does, step after step; `demo.py` shows it.

Each step is a public call that a user would make.  The first run sets the tokens and the checksum
that every later machine must repeat.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from colibri._data import data_path
from colibri.boards import Board, list_boards, load_board
from colibri.engine import Engine
from colibri.errors import BuildError
from colibri.fit.verdict import judge
from colibri.generate import Generation, Request, generate
from colibri.image import Image
from colibri.pack import pack
from colibri.planner import plan
from colibri.sampling import Sampling
from colibri_emulator.build_firmware import build_firmware, load_firmware
from colibri_emulator.cpu import cpu_report, mailbox_request
from colibri_emulator.machine import pick_machine
from colibri_emulator.report import EmulationReport
from colibri_emulator.twin import run_twin

PROMPT = "hummingbird (noun):"
NEW_TOKENS = 24
CONTEXT, KV = 128, "f16"  # with these the RP2350's SRAM holds everything but the weights
SAMPLING = Sampling(temperature=0.7, top_p=0.9, seed=5)
SMALL_BOARD, LARGE_BOARD = "pimoroni-pico-plus-2", "qemu-virt-aarch64-2gb"
_EXTRAS = {"ziglang": "cross", "unicorn": "cpu"}


def check_extras() -> None:
    """BuildError, with what to install, when a part of the demo could not run."""
    missing = {module: extra for module, extra in _EXTRAS.items() if find_spec(module) is None}
    if missing:
        raise BuildError(
            f"the demo needs {' and '.join(missing)}, which this Python has not",
            hint=f'pip install "colibri-sdk[{",".join(missing.values())}]"',
        )


@dataclass(frozen=True)
class Step:
    """A row of the table."""

    what: str
    where: str
    result: str
    bytes: int | None = None
    same_tokens: bool | None = None
    ok: bool = True
    seconds: float = 0.0  # measured, on this machine

    def to_json(self) -> dict[str, Any]:
        """All fields, by name."""
        return asdict(self)


class Demo:
    """One demo in a folder.

    Parameters
    ----------
    folder : Path
        Gets the two images and the firmware; made when missing.
    """

    prompt = PROMPT

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.done: list[Step] = []
        self.reference = Generation(0)
        self.text = ""
        self._q4, self._f32 = folder / "demo-q4.colibri", folder / "demo-f32.colibri"
        self._firmware = folder / f"firmware-{SMALL_BOARD}"
        self.plan_of_steps: list[Callable[[], Step]] = [
            partial(self._pack, "f32", self._f32),
            partial(self._pack, "q4", self._q4),
            self._inspect,
            *(partial(self._plan, board) for board in self._boards()),
            partial(self._run, "auto"),
            partial(self._run, "ref"),
            partial(self._twin, LARGE_BOARD),
            partial(self._twin, SMALL_BOARD),
            self._build,
            self._execute,
            self._size,
        ]

    @property
    def ok(self) -> bool:
        """Whether all that was done is well."""
        return all(step.ok and step.same_tokens is not False for step in self.done)

    def steps(self) -> Iterator[Step]:
        """Runs everything, one step at a time."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for action in self.plan_of_steps:
            began = time.perf_counter()
            step = action()
            timed = Step(**{**asdict(step), "seconds": round(time.perf_counter() - began, 3)})
            self.done.append(timed)
            yield timed

    @staticmethod
    def _boards() -> list[str]:
        """The two that are emulated last, so that their plans stand next to what follows."""
        emulated = (LARGE_BOARD, SMALL_BOARD)
        return [board for board in list_boards() if board not in emulated] + list(emulated)

    def _pack(self, quant: str, image: Path) -> Step:
        packed = pack(data_path("models", "demo-moe"), image, quant=quant)
        result = f"{packed.parameters / 1e6:.1f} M weights, {packed.bits_per_weight:.2f} bits each"
        return Step("pack", quant, result, packed.bytes)

    def _inspect(self) -> Step:
        image = Image(self._q4)
        image.verify()
        config = image.config
        result = f"{config['experts']} experts, {config['top_k']} a token; checksums hold"
        return Step("inspect", self._q4.name, result, image.bytes)

    def _plan(self, name: str) -> Step:
        made = plan(self._q4, name, context=CONTEXT, kv=KV)
        if not made.fits:
            return Step("plan", name, f"does not fit: {made.advice[0]}", ok=False)
        return Step("plan", name, f"fits, context up to {made.max_context:,}", made.total_bytes)

    def _request(self, image: Image) -> Request:
        return Request(image.tokenizer.encode(PROMPT), SAMPLING, NEW_TOKENS)

    def _run(self, kernels: str) -> Step:
        image = Image(self._q4)
        engine = Engine(image, CONTEXT, kv=KV, kernels=kernels)
        made = generate(engine, self._request(image))
        rate = made.decode_steps / made.decode_seconds
        result = f"{len(made.tokens)} tokens, {rate:,.0f} tok/s measured"
        same = None
        if self.reference.tokens:
            same = self._same(made.tokens, made.logits_crc32)
        else:
            self.reference, self.text = made, image.tokenizer.decode(made.tokens)
        return Step("run", f"this machine, {engine.kernels}", result, image.bytes, same)

    def _twin(self, name: str) -> Step:
        image, board = Image(self._q4), load_board(name)
        made = plan(image, board, context=CONTEXT, kv=KV)
        report = run_twin(image, board, self._request(image), made)
        assert report.predicted is not None
        assert report.predicted.decode_tok_s is not None
        return self._emulated(report, f"{report.predicted.decode_tok_s.text('tok/s')} predicted")

    def _build(self) -> Step:
        board = load_board(SMALL_BOARD)
        made = build_firmware(board, self._q4, self._firmware, kv=(KV,))
        return Step("build", SMALL_BOARD, f"{made.toolchain} for {made.target}", made.bytes["code"])

    def _execute(self) -> Step:
        image, board = Image(self._q4), load_board(SMALL_BOARD)
        made, request = plan(image, board, context=CONTEXT, kv=KV), self._request(image)
        machine, firmware = pick_machine(board, "unicorn"), load_firmware(self._firmware)
        result = machine.run(firmware, mailbox_request(image, request, made))
        report = cpu_report(image, board, request, made, result)
        assert report.counted is not None
        millions = (report.counted.instructions or 0) / 1e6
        counts = f"{millions:,.0f} M instructions, stack {report.counted.stack_high_water:,} B"
        return self._emulated(report, counts)

    def _emulated(self, report: EmulationReport, good: str) -> Step:
        where = f"{report.board}, {'twin' if report.machine == 'native' else 'CPU'}"
        same = self._same(report.tokens, report.logits_crc32)
        fine = report.fits and not report.fault
        return Step("emulate", where, report.fault or good, report.high_water, same, ok=fine)

    def _size(self) -> Step:
        board: Board = load_board(SMALL_BOARD)
        elf = self._firmware / "firmware.elf"
        verdict = judge(elf, board, self._firmware / "model.colibri")
        usages = [usage for usage in verdict.map.usages if usage.used]
        shares = ", ".join(f"{usage.region.name} {usage.percent} %" for usage in usages)
        used = sum(usage.used for usage in usages)
        return Step(
            "size", SMALL_BOARD, f"{verdict.verdict}: {shares}", used, ok=not verdict.exit_code
        )

    def _same(self, tokens: list[int], crc: str | None) -> bool:
        return (tokens, crc) == (self.reference.tokens, self.reference.logits_crc32)
