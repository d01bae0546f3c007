# SPDX-License-Identifier: Apache-2.0
"""One measurement of Colibri in a process of its own; prints JSON. See compare_llama_cpp.py."""

from __future__ import annotations

import json
import sys
import time

import numpy as np

from colibri import Engine
from process_memory import status_bytes


def main() -> None:
    job = json.loads(sys.argv[1])
    random = np.random.default_rng(job["seed"])
    longest = max(job["prompts"])
    before = status_bytes("RssAnon")
    begin = time.perf_counter()
    engine = Engine(job["model"], longest + job["new"], job["threads"], longest, "f16",
                    job["kernels"])  # fmt: skip
    tokens = random.integers(engine.vocabulary, size=longest + job["new"], dtype=np.uint32)
    engine.infer(tokens[:1])
    first = time.perf_counter() - begin
    engine.reset()
    engine.infer(tokens[:longest])  # every page is there now
    prefill, decode, logits = {}, 0.0, np.zeros(0, np.float32)
    for prompt in job["prompts"]:
        engine.reset()
        prefill[prompt] = engine.core.time_infer(tokens[:prompt], prompt).sum()
        if prompt == job["prompts"][0]:
            decode = engine.core.time_infer(tokens[prompt : prompt + job["new"] - 1], 1).sum()
            logits = engine.infer(tokens[prompt + job["new"] - 1 :][:1])
    if job["logits"]:
        np.save(job["logits"], logits)
    print(json.dumps({
        "first_token_s": first, "decode_tok_s": (job["new"] - 1) / decode,
        "prefill_tok_s": {str(n): n / seconds for n, seconds in prefill.items()},
        "own_memory_bytes": status_bytes("RssAnon") - before,
        "peak_rss_bytes": status_bytes("VmHWM"), "finite": bool(np.isfinite(logits).all()),
        "program": f"kernels {engine.kernels}",
    }))  # fmt: skip


if __name__ == "__main__":
    main()
