# SPDX-License-Identifier: Apache-2.0
"""The quantised product of a kernel table alone, against what the machine can do at best.

    python bench/kernels.py [--kernels avx512] [--quant q4] [--group 32] [--json]

One token: weights that no cache holds, bytes read a second over those of a loop that only loads,
from the same kind of pages. Many tokens: weights that a cache holds, multiply-adds over the int8
peak. Kernel and floor take turns; figures are medians of the rounds, shares are of one round.
One thread.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass

from colibri import _core
from colibri.bench.machine import PAGES, TRIES, Bandwidth, Peak, busy, facts
from colibri.bench.machine import probe_bytes as default_probe_bytes
from colibri.image_format import Order
from colibri.units import parse_size

COLUMNS = 2048  # of the weights that are read
SQUARE = 1024  # rows and columns of the weights that many tokens meet
CALLS = 4  # of the product of many tokens in a measurement


@dataclass(frozen=True)
class Row:
    """Medians over the rounds of one kind of product."""

    kernels: str
    quant: str
    group: int
    pages: str  # of the weights; "cache" where a cache holds them
    tokens: int
    measured: float  # GB/s for one token, GMAC/s for more
    floor: float
    share: float
    least: float
    most: float


def alternate(rounds: int, kernel: Callable[[], float], floor: Callable[[], float]) -> list[float]:
    """Medians of both and of their ratio, and its least and most, taking turns."""
    kernel()
    pairs = [(kernel(), floor()) for _ in range(rounds)]
    shares = [mine / best for mine, best in pairs]
    columns = [statistics.median(column) for column in zip(*pairs, strict=True)]
    return [*columns, statistics.median(shares), min(shares), max(shares)]


def reading(asked: argparse.Namespace, quant: str, group: int, band: Bandwidth) -> list[Row]:
    """One token, from each kind of page that the system gives."""
    rows = []
    row_bytes = COLUMNS * (4 if quant == "q4" else 8) // 8 + COLUMNS // group * 2
    count = max(16, band.bytes // row_bytes // 16 * 16)
    for pages in [reading.pages for reading in band.by_pages(1)]:
        product = _core.MatmulProbe(
            asked.kernels, _core.TYPES[quant], group, count, COLUMNS, 1, Order.TILES, PAGES[pages]
        )

        def kernel(product: _core.MatmulProbe = product) -> float:
            return product.bytes / min(product.run(1) for _ in range(TRIES)) / 1e9

        def floor(pages: str = pages) -> float:
            return next(found.gb_s for found in band.by_pages(1) if found.pages == pages)

        found = alternate(asked.rounds, kernel, floor)
        rows.append(Row(product.kernels, quant, group, pages, 1, *found))
    return rows


def multiplying(asked: argparse.Namespace, quant: str, group: int, peak: Peak) -> Row:
    """Many tokens against weights that stay in a cache."""
    tokens: int = asked.tokens
    product = _core.MatmulProbe(
        asked.kernels, _core.TYPES[quant], group, SQUARE, SQUARE, tokens, Order.TILES, False
    )
    macs = CALLS * SQUARE * SQUARE * tokens

    def kernel() -> float:
        return macs / min(product.run(CALLS) for _ in range(TRIES)) / 1e9

    found = alternate(asked.rounds, kernel, lambda: peak.sample(1))
    return Row(product.kernels, quant, group, "cache", tokens, *found)


def main() -> None:
    """Prints a table or JSON."""
    parser = argparse.ArgumentParser(description="quantised products alone")
    parser.add_argument("--kernels", default="auto", help=f"of {', '.join(_core.kernels())}")
    parser.add_argument("--quant", choices=["q4", "q8"], action="append", help="default: both")
    parser.add_argument("--group", type=int, choices=[32, 64, 128], action="append",
                        help="default: 32 and 128")  # fmt: skip
    parser.add_argument("--tokens", type=int, default=128, help="of the product of many tokens")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--probe", default=None, help="memory to read; default: beyond the caches")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    machine = facts()
    if (said := busy(machine)) is not None:
        print(said, file=sys.stderr)
    size = parse_size(asked.probe) if asked.probe else default_probe_bytes()
    band, peak = Bandwidth(size, (1,)), Peak()
    rows: list[Row] = []
    for quant in asked.quant or ["q4", "q8"]:
        for group in asked.group or [32, 128]:
            rows += [*reading(asked, quant, group, band), multiplying(asked, quant, group, peak)]
    if asked.json:
        print(json.dumps({"schema": 1, "machine": machine, "int8_instruction": peak.instruction,
                          "measured": [asdict(row) for row in rows]}, indent=1))  # fmt: skip
        return
    print("kernels  type group pages  tokens  measured     floor  share (least - most)")
    for row in rows:
        unit = "GB/s" if row.tokens == 1 else "GMAC/s"
        print(f"{row.kernels:8} {row.quant:4} {row.group:5} {row.pages:6} {row.tokens:6} "
              f"{row.measured:9.1f} {row.floor:9.1f}  {row.share:.2f} ({row.least:.2f} - "
              f"{row.most:.2f})  {unit}")  # fmt: skip


if __name__ == "__main__":
    main()
