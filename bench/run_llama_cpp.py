# SPDX-License-Identifier: Apache-2.0
"""One measurement of llama.cpp in a process of its own; prints JSON. See compare_llama_cpp.py.

Runs in the environment that has llama-cpp-python, through its low-level interface: batches of
given ids into llama_decode, no sampling.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from typing import Any

import llama_cpp
import numpy as np

from process_memory import status_bytes


class Llama:
    """A model and a context with the defaults of llama.cpp but for what the comparison fixes.

    mapped: weights stay in the mapped file and steps are short, so that memory can be short too.
    """

    def __init__(self, job: dict[str, Any], context: int, mapped: bool = False) -> None:
        self._log = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self._log, ctypes.c_void_p())
        llama_cpp.llama_backend_init()
        how = llama_cpp.llama_model_default_params()
        if mapped:
            how.load_mode = llama_cpp.LLAMA_LOAD_MODE_MMAP
            how.use_extra_bufts = False  # else weights are copied into an order of its own
        self.model = llama_cpp.llama_model_load_from_file(job["model"].encode(), how)
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {job['model']}")
        wanted = llama_cpp.llama_context_default_params()
        wanted.n_ctx = context
        wanted.n_batch = 16 if mapped else max(512, context)
        wanted.n_ubatch = 16 if mapped else 512
        wanted.n_threads = wanted.n_threads_batch = job["threads"]
        self.context = llama_cpp.llama_init_from_model(self.model, wanted)
        if not self.context:
            raise SystemExit("llama.cpp cannot make a context")
        vocabulary = llama_cpp.llama_model_get_vocab(self.model)
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(vocabulary)

    def reset(self) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)

    def infer(self, tokens: np.ndarray[Any, Any]) -> Any:
        """Continues the sequence; the last token's logits, when they are there."""
        ids = (llama_cpp.llama_token * len(tokens))(*tokens.tolist())
        status = llama_cpp.llama_decode(
            self.context, llama_cpp.llama_batch_get_one(ids, len(tokens))
        )
        if status != 0:
            raise SystemExit(f"llama_decode failed with {status}")
        return llama_cpp.llama_get_logits_ith(self.context, -1)


def main() -> None:
    job = json.loads(sys.argv[1])
    random = np.random.default_rng(job["seed"])
    longest = max(job["prompts"])
    before = status_bytes("RssAnon")
    begin = time.perf_counter()
    llama = Llama(job, longest + job["new"])
    tokens = random.integers(llama.vocabulary, size=longest + job["new"], dtype=np.uint32)
    llama.infer(tokens[:1])
    first = time.perf_counter() - begin
    llama.reset()
    llama.infer(tokens[:longest])  # every page is there now
    prefill, decode, logits = {}, 0.0, np.zeros(0, np.float32)
    for prompt in job["prompts"]:
        llama.reset()
        begin = time.perf_counter()
        llama.infer(tokens[:prompt])
        prefill[prompt] = time.perf_counter() - begin
        if prompt == job["prompts"][0]:
            begin = time.perf_counter()
            for i in range(prompt, prompt + job["new"] - 1):
                llama.infer(tokens[i : i + 1])
            decode = time.perf_counter() - begin
            last = llama.infer(tokens[prompt + job["new"] - 1 :][:1])
            logits = np.ctypeslib.as_array(last, (llama.vocabulary,)).copy()
    if job["logits"]:
        np.save(job["logits"], logits)
    print(json.dumps({
        "first_token_s": first, "decode_tok_s": (job["new"] - 1) / decode,
        "prefill_tok_s": {str(n): n / seconds for n, seconds in prefill.items()},
        "own_memory_bytes": status_bytes("RssAnon") - before,
        "peak_rss_bytes": status_bytes("VmHWM"), "finite": bool(np.isfinite(logits).all()),
        "program": f"llama-cpp-python {llama_cpp.__version__}, "
                   + llama_cpp.llama_print_system_info().decode().strip(),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
