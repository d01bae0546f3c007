# SPDX-License-Identifier: Apache-2.0
"""A program of streamed.py: opens its model, then decodes for a while each time it is told to.

Reads one JSON object a line, {"seconds": s, "least": n}, and answers with one.  Each turn starts
an empty sequence and takes the next random ids; what the program keeps of the weights stays.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from process_memory import status_bytes

SPARE = {"cgroup v1": 24 << 20, "cgroup v2": 24 << 20, "RLIMIT_AS": 256 << 20}
Decode = Callable[[int], float]  # one token; seconds


class Colibri:
    """Experts streamed past the page cache into the slots that the limit leaves room for."""

    def __init__(self, job: dict[str, Any]) -> None:
        from colibri import Engine, Image
        from colibri.bench.machine import huge_bytes_at

        counted = "VmSize" if job["held"] == "RLIMIT_AS" else "VmRSS"
        image = Image(job["model"], map=False)
        image.read_ahead(job["readers"], direct=True)
        self.outside = status_bytes(counted) + SPARE[job["held"]] if job["held"] != "none" else 0
        self.engine = Engine(
            image, job["context"], job["threads"], 1, job["kv"], weights="streamed",
            memory=job["limit"] - self.outside, policy=job["policy"], trace=True, **job["more"],
        )  # fmt: skip
        self.vocabulary = self.engine.vocabulary
        self._huge_bytes_at = huge_bytes_at
        self._routes: list[Any] = []
        self._read = 0  # bytes, traced
        self.begin()

    def begin(self) -> None:
        self.engine.reset()
        self._start = self.engine.experts
        self._took()
        self._read = 0

    def decode(self, token: int) -> float:
        return float(self.engine.core.time_infer(np.array([token], np.uint32), 1)[0])

    def facts(self) -> dict[str, Any]:
        self._took()
        start, now = self._start, self.engine.experts
        return {"hits": now.hits - start.hits, "misses": now.misses - start.misses,
                "bytes_read": now.bytes_read - start.bytes_read, "traced_bytes_read": self._read,
                "prefetched": now.prefetched - start.prefetched,
                "wasted_bytes": now.prefetched_wasted_bytes - start.prefetched_wasted_bytes,
                "retries": now.retries}  # fmt: skip

    def about(self) -> dict[str, Any]:
        from colibri.bench.trace import routing_of

        routing = routing_of(np.concatenate(self._routes), self.engine.image.config["experts"])
        region = self.engine.core.regions[0]
        experts = self.engine.experts
        return {
            "program": f"colibri, kernels {self.engine.kernels}",
            "slots": experts.slots, "of_experts": len(self.engine.image.experts),
            "policy": experts.policy, "engine_bytes": self.engine.high_water(),
            "outside_engine_bytes": self.outside, "huge_page_bytes": self._huge_bytes_at(region[1]),
            "routing": routing.as_dict() if routing else None,
        }  # fmt: skip

    def _took(self) -> None:
        """Keeps of the trace what routing needs, adds up what was read."""
        from colibri import _core

        events = self.engine.take_trace()
        kinds = events["kind"]
        kept = (kinds == _core.EVENTS["step"]) | (kinds == _core.EVENTS["route"])
        self._routes.append(events[kept].copy())
        self._read += int(events["bytes"][kinds == _core.EVENTS["read"]].sum())


class LlamaCpp:
    """The file mapped and used in place: no copy of weights in another order."""

    outside = 0

    def __init__(self, job: dict[str, Any]) -> None:
        from run_llama_cpp import Llama

        self.llama = Llama(job, job["context"], mapped=True)
        self.vocabulary = self.llama.vocabulary

    def begin(self) -> None:
        self.llama.reset()

    def decode(self, token: int) -> float:
        begin = time.perf_counter()
        self.llama.infer(np.array([token], np.uint32))
        return time.perf_counter() - begin

    def facts(self) -> dict[str, Any]:
        return {}

    def about(self) -> dict[str, Any]:
        import llama_cpp

        return {"program": f"llama-cpp-python {llama_cpp.__version__}"}


def turn(
    decode: Decode, tokens: Iterator[int], most: int, told: dict[str, Any]
) -> tuple[int, float]:
    """Decodes for so many seconds, `least` tokens or more: how many, and seconds of them."""
    count, taken = 0, 0.0
    while count < most and (count < told["least"] or taken < told["seconds"]):
        taken += decode(next(tokens))
        count += 1
    return count, taken


def main() -> None:
    job = json.loads(sys.argv[1])
    player = {"colibri": Colibri, "llama.cpp": LlamaCpp}[job["program"]](job)
    random = np.random.default_rng(job["seed"])
    tokens = iter(lambda: int(random.integers(player.vocabulary)), -1)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        player.begin()
        count, taken = turn(player.decode, tokens, job["context"], json.loads(line))
        answer = {"tokens": count, "seconds": taken, **player.facts()}
        print(json.dumps(answer), flush=True)
    print(json.dumps({**player.about(), "peak_rss_bytes": status_bytes("VmHWM")}), flush=True)


if __name__ == "__main__":
    main()
