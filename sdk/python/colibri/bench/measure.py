# SPDX-License-Identifier: Apache-2.0
"""Speed of a model by threads, against the machine's own speed in the same rounds.

A machine's speed wanders, so a round takes every figure once (read bandwidth, decode, int8 peak,
prefill, for each number of threads), shares are of one round, and what is told is the median
over the rounds.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from colibri import _core
from colibri.bench.machine import Bandwidth, Peak, Reading, facts, huge_bytes_at, map_and_touch
from colibri.bench.machine import probe_bytes as default_probe_bytes
from colibri.bench.trace import Feed, Traced, run_traced
from colibri.engine import Engine
from colibri.errors import EngineError
from colibri.image import Image

STARTS = 3
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Bench:
    """What is measured.

    Attributes
    ----------
    prompt, new : int
        Tokens of the prefill, and generated after it.
    context, batch : int, optional
        Tokens that the sequence may hold (default: prompt and new), tokens a step of the prefill
        (default: the whole prompt).
    threads : tuple of int
        Thread counts.
    rounds : int
        Measurements of each figure.
    probe_bytes : int, optional
        Memory that the bandwidth probe reads.
    pages : {"4k", "huge"}
        Of the weights, as in `colibri.Image`.
    """

    prompt: int = 128
    new: int = 32
    context: int | None = None
    kv: str = "f32"
    batch: int | None = None
    kernels: str = "auto"
    threads: tuple[int, ...] = (1,)
    rounds: int = 5
    seed: int = 0
    probe_bytes: int | None = None
    pages: str = "4k"

    @classmethod
    def default_threads(cls) -> tuple[int, ...]:
        """One thread, and all cores."""
        return tuple(sorted({1, min(os.cpu_count() or 1, _core.MAX_WORKERS)}))

    def engine(self, image: Image, threads: int, trace: bool = False) -> Engine:
        """An engine for these settings."""
        context = self.context or self.prompt + self.new
        most, wanted = min(context, image.context), self.prompt + self.new
        if wanted > most:
            raise EngineError(
                f"{self.prompt} tokens of prompt and {self.new} new ones are {wanted}",
                file=image.name, hint=f"the context holds {most}",
            )  # fmt: skip
        batch = self.batch or min(self.prompt, _core.MAX_BATCH)
        return Engine(image, context, threads, batch, self.kv, self.kernels, trace=trace)

    @property
    def steps(self) -> int:
        """Pieces of work that `measure` reports as it goes."""
        return 2 + STARTS + len(self.threads) * (1 + self.rounds)


@dataclass
class _Samples:
    """What the rounds of one thread count gave."""

    readings: list[Reading] = field(default_factory=list)
    peaks: list[float] = field(default_factory=list)
    prefill: list[float] = field(default_factory=list)  # seconds
    decode: list[float] = field(default_factory=list)


def measure(image: Path, bench: Bench, feed: Feed, advance: Progress) -> dict[str, Any]:
    """All figures of one image, in the form of the command's JSON.

    Parameters
    ----------
    feed : {"random", "greedy"}
        The tokens after the prompt.
    advance : callable
        Called with 1 after each of `bench.steps` pieces of work.
    """
    opened, machine = Image(image, pages=bench.pages), facts()
    traced = _trace(opened, bench, feed)
    advance(1)
    bandwidth = Bandwidth(bench.probe_bytes or default_probe_bytes(), bench.threads)
    peak = Peak()
    advance(1)
    samples = _rounds(opened, bench, traced, bandwidth, peak, advance)
    return {
        "kind": "measured",
        "image": {"file": str(image), "bytes": opened.total_bytes,
                  "family": opened.notes.get("family"), "recipe": opened.notes.get("recipe"),
                  "synthetic": opened.notes.get("synthetic")},
        "settings": _settings(opened, bench, feed),
        "machine": {**machine, **_machine(bandwidth, peak, samples),
                    "weights_in_huge_pages_bytes": huge_bytes_at(opened.core.address)},
        "traced": {"decode_bytes_per_token": round(traced.decode.bytes / bench.new),
                   "decode_macs_per_token": round(traced.decode.macs / bench.new),
                   "prefill_bytes": traced.prefill.bytes, "prefill_macs": traced.prefill.macs},
        "routing": traced.routing.as_dict() if traced.routing else None,
        "threads": {str(n): _figures(s, bench, traced) for n, s in samples.items()},
        "start": _start(image, bench, traced, advance),
    }  # fmt: skip


def _trace(image: Image, bench: Bench, feed: Feed) -> Traced:
    engine = bench.engine(image, max(bench.threads), trace=True)
    random = np.random.default_rng(bench.seed)
    prompt = random.integers(image.vocabulary, size=bench.prompt, dtype=np.uint32)
    return run_traced(engine, prompt, bench.new, feed, bench.seed)


def _settings(image: Image, bench: Bench, feed: Feed) -> dict[str, Any]:
    engine = bench.engine(image, 1)
    limits = engine.core.limits
    chosen = {"context": limits.context, "batch": limits.batch, "kernels": engine.kernels,
              "threads": list(bench.threads), "tokens": feed}  # fmt: skip
    return {k: v for k, v in asdict(bench).items() if k != "probe_bytes"} | chosen


def _rounds(
    image: Image, bench: Bench, traced: Traced, bandwidth: Bandwidth, peak: Peak, advance: Progress
) -> dict[int, _Samples]:
    """Every figure once a round, after a round that is not counted."""
    engines = {count: bench.engine(image, count) for count in bench.threads}
    samples = {count: _Samples() for count in bench.threads}
    for round_number in range(-1, bench.rounds):
        for count, engine in engines.items():
            into = samples[count] if round_number >= 0 else _Samples()
            engine.reset()
            into.peaks.append(peak.sample(count))
            into.prefill.append(float(engine.core.time_infer(traced.prompt, bench.prompt).sum()))
            into.readings.append(bandwidth.sample(count))
            into.decode.append(float(engine.core.time_infer(traced.new, 1).sum()))
            advance(1)
    return samples


def _figures(samples: _Samples, bench: Bench, traced: Traced) -> dict[str, Any]:
    gb_s = [traced.decode.bytes / seconds / 1e9 for seconds in samples.decode]
    gmac_s = [traced.prefill.macs / seconds / 1e9 for seconds in samples.prefill]
    read = [reading.gb_s for reading in samples.readings]
    return {
        "decode": _rates(bench.new, samples.decode)
        | {"gb_s": _median(gb_s), "share_of_read_bandwidth": _share(gb_s, read)},
        "prefill": _rates(bench.prompt, samples.prefill)
        | {"gmac_s": _median(gmac_s), "share_of_int8_peak": _share(gmac_s, samples.peaks)},
    }


def _rates(tokens: int, seconds: list[float]) -> dict[str, float]:
    rates = [tokens / one for one in seconds]
    return {"tok_s": _median(rates), "tok_s_least": _short(min(rates)),
            "tok_s_most": _short(max(rates))}  # fmt: skip


def _machine(bandwidth: Bandwidth, peak: Peak, samples: dict[int, _Samples]) -> dict[str, Any]:
    return {
        "read_bandwidth": {
            str(count): {
                "gb_s": _median([r.gb_s for r in s.readings]),
                "gb_s_most": _short(max(r.gb_s for r in s.readings)),
                "pages": statistics.mode(r.pages for r in s.readings),
                "prefetch_bytes": statistics.mode(r.ahead for r in s.readings),
            } for count, s in samples.items()
        },
        "read_probe": {"bytes": bandwidth.bytes, "loads": _core.read_kernel(),
                       "huge_bytes": bandwidth.huge_bytes["2 MiB"]},
        "int8_peak": {
            str(count): {"gmac_s": _median(s.peaks), "gmac_s_most": _short(max(s.peaks))}
            for count, s in samples.items()
        },
        "int8_instruction": peak.instruction,
    }  # fmt: skip


def _start(image: Path, bench: Bench, traced: Traced, advance: Progress) -> dict[str, Any]:
    """A warm file: until the first token is there, and until all of it is mapped and touched."""
    opening, mapping = [], []
    for _ in range(STARTS):
        mapping.append(map_and_touch(image))
        begin = time.perf_counter()
        bench.engine(Image(image, pages=bench.pages), max(bench.threads)).infer(traced.prompt[:1])
        opening.append(time.perf_counter() - begin)
        advance(1)
    return {"open_to_first_token_s": _median(opening), "map_and_touch_s": _median(mapping),
            "threads": max(bench.threads)}  # fmt: skip


def _share(parts: Sequence[float], wholes: Sequence[float]) -> float:
    return _median([part / whole for part, whole in zip(parts, wholes, strict=True)])


def _median(values: Sequence[float]) -> float:
    return _short(statistics.median(values))


def _short(value: float) -> float:
    """Five digits: more would not mean anything."""
    return float(f"{value:.5g}")
