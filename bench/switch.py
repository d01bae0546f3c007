# SPDX-License-Identifier: Apache-2.0
"""What switching from one image to another costs, in one memory.

    python bench/switch.py A.colibri B.colibri

*resident*: both engines are side by side in one arena, and the next call goes to the other one.
Told is a token of A right after a token of A, the same after a token of B, and their difference:
what the other image's use of the processor's caches costs, as the switch itself is no call.
*again*: the arena is cleared and the other image planned and initialised in it, with its file open
already; weights mapped, loaded, or streamed.  All figures are medians of rounds that take turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from colibri import Arena, Engine, Image
from colibri.units import format_bytes

CONTEXT = 64
PROMPT = list(range(1, 9))
PLACES = ("mapped", "loaded", "streamed")
Times = defaultdict[str, list[float]]


@contextmanager
def timed(times: Times, name: str) -> Iterator[None]:
    begin = time.perf_counter()
    yield
    times[name].append(time.perf_counter() - begin)


def resident(images: list[Image], rounds: int, times: Times) -> int:
    """Tokens of A after A and after B; returns the bytes of both engines."""
    arena = Arena(sum(Engine(image, CONTEXT).high_water() for image in images))
    a, b = (Engine(image, CONTEXT, memory=arena) for image in images)
    for _ in range(rounds):
        for engine in (a, b):
            engine.reset()
            engine.infer(PROMPT)
        a.infer([1])
        for _ in range(4):
            with timed(times, "token of A after A"):
                a.infer([1])
            with timed(times, "token of B after A"):
                b.infer([1])
            with timed(times, "token of A after B"):
                a.infer([1])
            with timed(times, "token of A after A"):
                a.infer([1])
    return arena.used


def again(images: list[Image], rounds: int, times: Times) -> None:
    """A and B in turn in the memory of the larger."""
    for weights in PLACES:
        slots = None
        if weights == "streamed":
            slots = max(image.config["top_k"] for image in images)
        sizes = [
            Engine(image, CONTEXT, weights=weights, expert_slots=slots).high_water()
            for image in images
        ]
        arena = Arena(max(sizes))
        for turn in range(2 * rounds + 2):
            measured = times if turn > 1 else defaultdict(list)  # memory touched for the first time
            with timed(measured, f"{weights}: init"):
                arena.clear()
                engine = Engine(
                    images[turn % 2], CONTEXT, weights=weights, expert_slots=slots, memory=arena
                )
            with timed(measured, f"{weights}: first token"):
                engine.infer([1])
            with timed(measured, f"{weights}: second token"):
                engine.infer([2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("images", nargs=2, metavar="IMAGE")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    images = [Image(path) for path in options.images]
    times: Times = defaultdict(list)
    both = resident(images, options.rounds, times)
    again(images, options.rounds, times)
    median = {name: statistics.median(values) for name, values in times.items()}
    median["resident: switch"] = median["token of A after B"] - median["token of A after A"]
    if options.json:
        print(json.dumps({"schema": 1, "resident_bytes": both, "measured_s": median}, indent=2))
        return
    for image in images:
        print(f"{image.name}: {format_bytes(image.total_bytes)}")
    print(f"both resident: {both:,} bytes (counted)\nmeasured, medians of {options.rounds} rounds:")
    for name, seconds in median.items():
        print(f"  {name:24} {seconds * 1e6:12,.1f} us")


if __name__ == "__main__":
    main()
