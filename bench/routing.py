# SPDX-License-Identifier: Apache-2.0
"""What routing options cost: the table of docs/expert-cache.md, "Routing options".

    python bench/routing.py                         # every row, the demo model's validation texts
    python bench/routing.py --only "prefer 0.1"     # rows whose name has these words in it
    python bench/routing.py --tokens 600 --json

The texts are decoded token by token in windows of 512 with a quarter and a half of the experts in
memory; tokens 2 and on of a window are predicted. Perplexity is over all texts, as a ratio to
the exact router's; hits are counted. Everything follows from the image and the texts.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colibri import Engine, Image
from colibri.pack import pack
from prefetch import DEMO, WINDOW, windows

SHARES = (1 / 4, 1 / 2)
POLICY = "frequency"  # the best of the three for this model
BALANCE = (1, 2, 3, 4, 8)
PREFER = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
ROWS: dict[str, dict[str, Any]] = {
    "exact": {},
    **{f"balance {n}": {"balance": n} for n in BALANCE},
    **{f"prefer {part}": {"prefer_cached": part} for part in PREFER},
    "balance 3 prefer 0.1": {"balance": 3, "prefer_cached": 0.1},
}


def surprise(logits: NDArray[np.float32], ids: NDArray[np.uint32]) -> float:
    """Sum of -log p of tokens 2 and on."""
    rows = logits[:-1].astype(np.float64)
    rows -= rows.max(1, keepdims=True)
    chosen = rows[np.arange(len(rows)), ids[1:]]
    return float((np.log(np.exp(rows).sum(1)) - chosen).sum())


def measure(
    image: Image, parts: Sequence[NDArray[np.uint32]], slots: int, options: dict[str, Any]
) -> dict[str, float]:
    """Perplexity and hit rate of one row."""
    engine = Engine(image, WINDOW, batch=1, weights="streamed", expert_slots=slots,
                    policy=POLICY, **options)  # fmt: skip
    total = 0.0
    for part in parts:
        engine.reset()
        total += surprise(engine.infer(part, all_logits=True), part)
    stats = engine.experts
    return {
        "perplexity": math.exp(total / sum(len(part) - 1 for part in parts)),
        "hit_rate": stats.hits / (stats.hits + stats.misses),
        "bytes_a_token": stats.bytes_read / sum(map(len, parts)),
    }


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=int, help="no more than so many of each text")
    parser.add_argument("--only", default="", help="rows with these words, and the exact one")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    wanted = [name for name in ROWS if name == "exact" or options.only in name]
    found: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        image = Image(pack(DEMO, Path(folder) / "q4.colibri", quant="q4").image)
        parts = list(windows(image, options.tokens))
        slots = [round(len(image.experts) * share) for share in SHARES]
        if not options.json:
            print(f"{'router':22}", *(f"{n:3} slots: perplexity  hits     " for n in slots))
        for name in wanted:
            found[name] = [measure(image, parts, n, ROWS[name]) for n in slots]
            if not options.json:
                print(f"{name:22}", *map(_cells, found[name], found["exact"]), flush=True)
    if options.json:
        print(json.dumps({"slots": slots, "rows": found}, indent=1))


def _cells(row: dict[str, float], exact: dict[str, float]) -> str:
    above = row["perplexity"] / exact["perplexity"] - 1
    return f"           {above:+8.2%}  {row['hit_rate']:7.2%}  "


if __name__ == "__main__":
    main()
