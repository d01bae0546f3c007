# SPDX-License-Identifier: Apache-2.0
"""The request and the results of a firmware run: the mirror of ``emulator/firmware/mailbox.h``."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from colibri._core import MAX_BUFFERS, MAX_REGIONS
from colibri.engine import POLICIES
from colibri.errors import EmulateError

MAGIC = 0x4D42434C
VERSION = 3
TOKENS = 1024

GENERATE, SELFTEST = 1, 2
WAITING, RUNNING, DONE, FAULT = range(4)
STAGES = ("", "request", "open", "plan", "init", "infer", "sample", "selftest", "end",
          "cores")  # fmt: skip
STACK_PAINT = 0xC0113B21  # start_common.c
KV_TYPES = {"f32": 1, "f16": 2, "q8": 4}

_u32, _u64, _f32 = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_float


class Buffer(ctypes.LittleEndianStructure):
    """One buffer of the plan."""

    _fields_: ClassVar = [
        ("kind", _u32), ("region", _u32), ("offset", _u64), ("bytes", _u64),
    ]  # fmt: skip


class Mailbox(ctypes.LittleEndianStructure):
    """``colibri_mailbox_layout``."""

    _fields_: ClassVar = [
        ("magic", _u32), ("version", _u32), ("command", _u32),
        ("context", _u32), ("batch", _u32), ("workers", _u32), ("kv", _u32),
        ("prompt_count", _u32), ("max_new", _u32), ("ignore_eos", _u32),
        ("temperature", _f32), ("top_k", _u32), ("top_p", _f32), ("bytes", _u32),
        ("expert_slots", _u32), ("policy", _u32),
        ("seed", _u64),
        ("state", _u32), ("stage", _u32), ("status", _u32), ("error_where", _u32),
        ("error_have", _u64), ("error_need", _u64),
        ("generated", _u32), ("logits_crc32", _u32), ("region_count", _u32),
        ("buffer_count", _u32), ("total_bytes", _u64),
        ("used", _u64 * MAX_REGIONS), ("high_water", _u64 * MAX_REGIONS),
        ("buffers", Buffer * MAX_BUFFERS),
        ("stack_bytes", _u64), ("stack_high_water", _u64), ("cores", _u32),
        ("slots", _u32), ("slots_per_layer", _u32), ("slots_policy", _u32),
        ("hits", _u64), ("misses", _u64), ("bytes_read", _u64), ("retries", _u64),
        ("fault_cause", _u64), ("fault_address", _u64), ("fault_pc", _u64),
        ("tokens", _u32 * TOKENS),
    ]  # fmt: skip


@dataclass(frozen=True)
class Request:
    """What a machine is asked to run.  Zeros are the runtime's defaults.

    Parameters
    ----------
    prompt : sequence of int
        Token ids; empty only for a self-test.
    kv : {"f32", "f16", "q8"}
        How the KV cache stores its numbers.
    selftest : bool
        Run the image's golden vector instead of generating.
    weights : {"mapped", "streamed", "streamed-mapped"}
        Where they are; firmware without a system is built for one of them.
    expert_slots, policy
        Of streamed experts, as the plan has them.
    """

    prompt: Sequence[int] = ()
    max_new_tokens: int = 32
    ignore_eos: bool = False
    context: int = 0
    batch: int = 0
    workers: int = 1
    kv: str = "f32"
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    selftest: bool = False
    weights: str = "mapped"
    expert_slots: int = 0
    policy: str = "auto"

    def pack(self) -> bytes:
        """The mailbox as the firmware finds it."""
        if len(self.prompt) + self.max_new_tokens > TOKENS:
            room = TOKENS - len(self.prompt)
            raise EmulateError(
                f"{len(self.prompt)} prompt tokens and {self.max_new_tokens} new ones exceed the "
                f"firmware's mailbox of {TOKENS}",
                field="max_new_tokens" if room > 0 else "prompt",
                hint=f"at most {room} new tokens for this prompt"
                if room > 0
                else f"at most {TOKENS} together; --machine native has no such limit",
            )
        bad = [token for token in self.prompt if not 0 <= token < 2**32]
        if bad:
            raise EmulateError(f"{bad[0]} is not a token id", field="tokens", hint="0 or above")
        box = Mailbox(
            magic=MAGIC, version=VERSION, command=SELFTEST if self.selftest else GENERATE,
            context=self.context, batch=self.batch, workers=self.workers, kv=KV_TYPES[self.kv],
            prompt_count=len(self.prompt), max_new=self.max_new_tokens,
            ignore_eos=int(self.ignore_eos), temperature=self.temperature, top_k=self.top_k,
            top_p=self.top_p, bytes=ctypes.sizeof(Mailbox), seed=self.seed,
            expert_slots=self.expert_slots, policy=POLICIES[self.policy],
        )  # fmt: skip
        box.tokens[: len(self.prompt)] = list(self.prompt)
        return bytes(box)
