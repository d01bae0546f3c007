# SPDX-License-Identifier: Apache-2.0
"""What reading on a guess brings: the table of docs/expert-cache.md, "Reading before the router".

    python bench/prefetch.py            # the demo model's validation texts, decoded token by token
    python bench/prefetch.py --tokens 300 --json

Reads and uses are counted in a run of the C runtime. Time is predicted from its trace: weights and
cache pass at one speed, one storage serves reads in the order of their starts at another, and a
wait ends when its read does. So it depends on nothing but the ratio of the two speeds. Checksums
are not in it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colibri import Engine, Image, _core
from colibri.pack import pack

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "models/demo-moe"
TEXTS = ("scripture", "dictionary", "code", "docs")
WINDOW = 512
SHARES = (1 / 48, 1 / 8, 1 / 4, 1 / 2)
RATIOS = (0.01, 0.03, 0.1, 0.3, 1.0)
READ, WAIT = _core.EVENTS["read"], _core.EVENTS["read_wait"]
WORK = [_core.EVENTS[name] for name in ("matmul", "attend", "expert", "vector")]


def time_of(trace: NDArray[Any], ratio: float) -> tuple[float, float]:
    """Seconds of a trace, and of its reads alone, at one byte of weights a second."""
    now = free = busy = 0.0
    done: dict[tuple[int, int], float] = {}
    kept = trace[np.isin(trace["kind"], [READ, WAIT, *WORK])]
    rows = zip(*(kept[name].tolist() for name in ("kind", "layer", "index", "bytes")), strict=True)
    for kind, layer, index, size in rows:
        if kind == READ:
            free = max(free, now) + size / ratio
            busy += size / ratio
            done[layer, index] = free
        elif kind == WAIT:
            now = max(now, done[layer, index])
        else:
            now += size
    return now, busy


def windows(image: Image, tokens: int | None) -> Iterator[NDArray[np.uint32]]:
    """The validation texts, cut."""
    for text in TEXTS:
        path = DEMO / f"reference/valid_{text}.txt"
        ids = np.array(image.tokenizer.encode(path.read_text("utf-8"))[:tokens], np.uint32)
        yield from np.split(ids, range(WINDOW, len(ids), WINDOW))


def decode(
    image: Image, parts: Sequence[NDArray[np.uint32]], slots: int, prefetch: bool
) -> dict[str, Any]:
    """Decodes the texts token by token."""
    engine = Engine(
        image, WINDOW, batch=1, weights="streamed", expert_slots=slots, policy="frequency",
        prefetch=prefetch, trace=True,
    )  # fmt: skip
    times = np.zeros((len(RATIOS), 2))
    for part in parts:
        engine.reset()
        engine.take_trace()
        engine.infer(part)
        trace = engine.take_trace()
        times += [time_of(trace, ratio) for ratio in RATIOS]
    tokens = sum(map(len, parts))
    stats = engine.experts._asdict()
    return stats | {"tokens": tokens, "time": times[:, 0].tolist(), "reads": times[:, 1].tolist()}


def row(image: Image, parts: Sequence[NDArray[np.uint32]], slots: int) -> dict[str, Any]:
    """One slot count without and with guesses."""
    off, on = (decode(image, parts, slots, prefetch) for prefetch in (False, True))
    asked = off["hits"] + off["misses"]
    return {
        "slots": slots,
        "policy": on["policy"],
        "hit_rate": [off["hits"] / asked, on["hits"] / asked],
        "used": on["prefetched_used"] / max(on["prefetched"], 1),
        "bytes_a_token": [each["bytes_read"] / each["tokens"] for each in (off, on)],
        "speed_up": dict(
            zip(map(str, RATIOS), np.divide(off["time"], on["time"]).tolist(), strict=True)
        ),
    }


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=int, help="no more than so many of each text")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        image = Image(pack(DEMO, Path(folder) / "q4.colibri", quant="q4").image)
        parts = list(windows(image, options.tokens))
        rows = [row(image, parts, round(len(image.experts) * share)) for share in SHARES]
    if options.json:
        print(json.dumps({"ratios": RATIOS, "rows": rows}, indent=1))
        return
    print(
        "slots  hits off  on     guesses used  bytes a token off  on     time off / on at", *RATIOS
    )
    for each in rows:
        off, on = each["hit_rate"]
        before, after = each["bytes_a_token"]
        ups = "  ".join(f"{up:.3f}" for up in each["speed_up"].values())
        print(f"{each['slots']:5}  {off:7.2%}  {on:7.2%}  {each['used']:7.2%}  "
              f"{before:12,.0f}  {after:12,.0f}  {ups}")  # fmt: skip


if __name__ == "__main__":
    main()
