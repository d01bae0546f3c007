# SPDX-License-Identifier: Apache-2.0
"""Tokens in, logits out.

>>> engine = Engine(Image("demo.colibri"), context=256, workers=2)  # doctest: +SKIP
>>> engine.infer([48, 2858, 1135]).shape                            # doctest: +SKIP
(4096,)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from colibri import _core
from colibri.accelerator import FakeNpu
from colibri.arena import Arena, MemoryRegion
from colibri.errors import EngineError, ImageError, PlanError
from colibri.generate import DEFAULT_NEW_TOKENS, Generation, Request, generate
from colibri.image import Image
from colibri.routing import routing_options
from colibri.sampling import Sampler, Sampling

#: One trace event, as colibri_event lies in memory.
EVENT = np.dtype(
    [("kind", "<u4"), ("layer", "<u4"), ("index", "<u4"), ("count", "<u4"),
     ("bytes", "<u8"), ("work", "<u8")]
)  # fmt: skip


class ExpertStats(NamedTuple):
    """Streamed experts: slots, and what became of the experts of all steps, counted.

    A step asks once for each expert that any of its tokens chose; a hit is in memory or on its way
    by then.  `slots_per_layer` is 0 when all layers share the slots; `pinned` of the engine's pins
    had room; everything is 0 when nothing is streamed.  `prefetched` reads were begun before their
    layer's router had spoken; of them, `prefetched_used` were of experts that it then chose, and
    the others are wasted bytes.
    """

    slots: int
    slots_per_layer: int
    policy: str
    hits: int
    misses: int
    bytes_read: int
    retries: int
    pinned: int
    prefetched: int = 0
    prefetched_used: int = 0
    prefetched_wasted_bytes: int = 0


class Step(NamedTuple):
    """A generated token and the row of logits that it was drawn from."""

    token: int
    logits: NDArray[np.float32]


def named(kind: str, table: dict[str, int], name: str) -> int:
    """The number of a name such as a KV type; PlanError that lists the names."""
    if name not in table:
        raise PlanError(f"{kind} '{name}' is unknown", hint=f"use one of {', '.join(table)}")
    return table[name]


#: Which expert makes room for another; "auto": what the library finds best for that many slots.
POLICIES = {"auto": 0, **_core.POLICIES}
MOST_MEMORY = 2**62  # bytes; no address space has them
PREFETCH = {None: 0, False: 1, True: 2}
KV_TYPES = {name: _core.TYPES[name] for name in ("f32", "f16", "q8")}


def policy_name(number: int) -> str:
    """What `POLICIES` calls a number."""
    return next(name for name, value in POLICIES.items() if value == number)


def _prefetch(value: object) -> int:
    if value is None or isinstance(value, bool):
        return PREFETCH[value]
    raise PlanError(f"limit 'prefetch' is {value!r}", hint="use True, False or None")


def check_faults(faults: Sequence[tuple[int, str]]) -> list[tuple[int, int]]:
    """Numbers of reads and of kinds; PlanError for a read that there cannot be."""
    for read, _ in faults:
        if not 1 <= read < 2**64:
            raise PlanError(f"a fault of read {read}", hint="count reads from 1, to 2^64 - 1")
    return [(read, named("fault", _core.READ_FAULTS, kind)) for read, kind in faults]


def make_limits(
    *,
    context: int | None = None,
    batch: int | None = None,
    workers: int | None = None,
    kv: str = "f32",
    sequences: int = 1,
    profile: str = "wide",
    weights: str = "mapped",
    expert_slots: int | None = None,
    policy: str = "auto",
    prefetch: bool | None = None,
    balance: int | None = None,
    prefer_cached: float | None = None,
) -> _core.Limits:
    """The C library's limits; None asks for its default."""
    sizes = {
        "context": context, "batch": batch, "workers": workers, "sequences": sequences,
        "expert_slots": expert_slots, "balance": balance,
    }  # fmt: skip
    for name, value in sizes.items():
        if value is not None and not 1 <= value < 2**32:
            hint = "use 1 or more" if value < 1 else "at most 2^32 - 1"
            if name == "expert_slots":
                hint = "leave it out for as many as fit"
            raise PlanError(f"limit '{name}' is {value}", hint=hint)
    if prefer_cached is not None and not 0.001 <= prefer_cached <= 1:
        raise PlanError(f"limit 'prefer_cached' is {prefer_cached}", hint="use 0.001 .. 1")
    return _core.Limits(
        sequences=sequences,
        context=context or 0,
        batch=batch or 0,
        workers=workers or 0,
        kv=named("KV type", KV_TYPES, kv),
        profile=named("kernel profile", _core.PROFILES, profile),
        weights=named("weight placement", _core.WEIGHTS, weights),
        expert_slots=expert_slots or 0,
        policy=named("policy", POLICIES, policy),
        prefetch=_prefetch(prefetch),
        balance=balance or 0,
        prefer_cached=round((prefer_cached or 0) * 1000),
    )


def as_tokens(tokens: ArrayLike) -> NDArray[np.uint32]:
    """Token ids as the C library takes them; EngineError for what is not a list of ids."""
    array = np.asarray(tokens)
    if not array.size:
        raise EngineError("there are no tokens", hint="give at least one")
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise EngineError(
            f"tokens are {array.dtype} of shape {array.shape}", hint="give a flat list of integers"
        )
    bad = np.flatnonzero((array < 0) | (array >= 2**32))
    if bad.size:
        raise EngineError(
            f"token {array[bad[0]]} at index {bad[0]} is not in the vocabulary",
            hint="use 0 to 2^32 - 1",
        )
    return np.ascontiguousarray(array, dtype=np.uint32)


def check_memory(memory: object) -> None:
    """PlanError for sizes that are none, and for no regions."""
    if isinstance(memory, int) and not 0 <= memory <= MOST_MEMORY:
        raise PlanError(f"memory is {memory:,} bytes", hint=f"use 0 .. {MOST_MEMORY:,}")
    if isinstance(memory, Sequence) and not memory:
        raise PlanError("memory has no regions", hint="give one or more, or leave it out")


def check_pages(pages: str, streamed: bool) -> None:
    """PlanError for huge pages of a file that is not mapped."""
    if streamed and pages == "huge":
        raise PlanError(
            "pages are 'huge' and experts are streamed",
            hint="leave pages out: only a mapped file is copied into huge pages",
        )


def check_pins(image: Image, pins: Sequence[tuple[int, int]], weights: str) -> None:
    """PlanError for pins that are not experts of the image, or that nothing is read for."""
    if pins and not weights.startswith("streamed"):
        raise PlanError("only streamed experts can be pinned", hint="use weights='streamed'")
    each = image.config["experts"] - image.config["identities"]
    for layer, expert in pins:
        if layer not in image.expert_layers or not 0 <= expert < each:
            layers = ", ".join(map(str, image.expert_layers))
            hint = f"experts are 0 .. {each - 1} of layers {layers}" if each else "pin nothing"
            raise PlanError(f"pin ({layer}, {expert}) is no expert", file=image.name, hint=hint)


class Engine:
    """An image ready to run, in memory of exactly the planned size.

    Parameters
    ----------
    image : Image or path
        The model.
    context : int, optional
        Tokens that a sequence may hold. Default: the model's own context.
    workers : int
        Threads that share the work. Results do not depend on it.
    batch : int, optional
        Tokens per step of a prompt. Default: the library's (16). Results do not depend on it.
    kv : {"f32", "f16", "q8"}
        How the KV cache stores its numbers.
    kernels : str
        ``"auto"`` or one of `colibri.kernels()`. Results do not depend on it.
    sequences : int
        Independent contexts.
    profile, weights : str
        Kernel profile (``"small"``, ``"wide"``) and weight placement (``"mapped"``, ``"loaded"``,
        ``"streamed"``, ``"streamed-mapped"``: experts are read when they are needed, and only the
        rest is loaded or mapped).
    memory : int, Arena or sequence of MemoryRegion, optional
        Bytes that the engine's own memory may have, streamed: with the image's tables, which are
        always in memory; or memory to use instead of it: an arena, beside the engines there, or
        regions that the caller keeps alive.
    expert_slots : int, optional
        Streamed: experts in memory at once. Default: as many as fit `memory`, which in an arena
        is all that is left. Results do not depend on it.
    policy : {"auto", "lru", "frequency", "least-stale"}
        Streamed: which expert makes room for another. Results do not depend on it.
    pins : sequence of (layer, expert)
        Streamed: experts that stay once they have been read, the hottest first. Half of a layer's
        slots may be pinned (of all, when layers share them), and what a token uses must fit
        beside them; `experts` tells how many had room.
    prefetch : bool, optional
        Streamed: behind a layer's last read, begin those that the next router is likely to choose.
        Default: the library's (no). Results do not depend on it.
    balance : int, optional
        Changes results: the probability of an expert that was chosen more than so many times in a
        row is halved with each choice more. Only its choice goes by that, not its weight.
    prefer_cached : float, optional
        Streamed, changes results: experts in memory gain this part (0.001 to 1) of the range of a
        token's scores. What is chosen then depends on slots, policy, prefetching, batch and what
        ran before.
    threads : int, optional
        Threads of the pool when they shall differ from `workers`; 1: no pool.
    trace : bool
        Record events for `take_trace`.
    accelerator : FakeNpu, optional
        Computes the experts that are bound to it.  Results do not depend on it.
    faults : sequence of (int, {"fail", "short", "corrupt"})
        Reads of the storage that go wrong, by number: 1 is the first that the engine asks for.
    recorder : _core.Recorder, optional
        Gets the activations that meet each weight matrix (`colibri.calibrate`); one worker only.

    Raises
    ------
    PlanError, DoesNotFitError, EngineError
        With the value that would work.
    """

    def __init__(
        self,
        image: Image | str | Path,
        context: int | None = None,
        workers: int = 1,
        batch: int | None = None,
        kv: str = "f32",
        kernels: str = "auto",
        *,
        sequences: int = 1,
        profile: str = "wide",
        weights: str = "mapped",
        memory: int | Arena | Sequence[MemoryRegion] | None = None,
        expert_slots: int | None = None,
        policy: str = "auto",
        pins: Sequence[tuple[int, int]] = (),
        prefetch: bool | None = None,
        balance: int | None = None,
        prefer_cached: float | None = None,
        threads: int | None = None,
        trace: bool = False,
        accelerator: FakeNpu | None = None,
        faults: Sequence[tuple[int, str]] = (),
        recorder: _core.Recorder | None = None,
    ) -> None:
        in_place = weights != "streamed"  # what is not mapped cannot vanish from under the engine
        self.image = image if isinstance(image, Image) else Image(image, map=in_place)
        limits = make_limits(
            context=context, batch=batch, workers=workers, kv=kv, sequences=sequences,
            profile=profile, weights=weights, expert_slots=expert_slots, policy=policy,
            prefetch=prefetch, balance=balance, prefer_cached=prefer_cached,
        )  # fmt: skip
        check_memory(memory)
        check_pins(self.image, pins, weights)
        most = memory if isinstance(memory, int) else MOST_MEMORY
        if weights.startswith("streamed"):
            self.image.read_ahead()
        npu = None
        if accelerator is not None:
            experts = accelerator.checked(self.image)
            npu = (experts, accelerator.memory, accelerator.threaded)

        def make(
            regions: Sequence[MemoryRegion] | None, beside: _core.Engine | None = None
        ) -> _core.Engine:
            return _core.Engine(
                self.image.core, limits, regions, kernels, threads or workers, trace, npu, recorder,
                [layer << 16 | expert for layer, expert in pins], most, beside,
                check_faults(faults),
            )  # fmt: skip

        try:
            if isinstance(memory, Arena):
                self.core = memory.place(self.image.core, make)
            else:
                regions = None if memory is None or isinstance(memory, int) else memory
                self.core = make(regions and [MemoryRegion(*region) for region in regions])
        except ImageError as error:
            raise self.image.named(error) from None
        except (ValueError, RuntimeError) as error:
            raise EngineError(str(error)) from None
        except MemoryError:
            raise EngineError(
                "this machine has not that much memory", hint="ask for less"
            ) from None
        self.memory = memory  # lives as long as the engine
        self.context = context or self.image.context
        self.vocabulary = self.image.vocabulary

    @property
    def kernels(self) -> str:
        """Name of the kernel table in use."""
        return self.core.kernels

    def infer(
        self, token_ids: ArrayLike, all_logits: bool = False, *, sequence: int = 0
    ) -> NDArray[np.float32]:
        """Continues a sequence.

        Parameters
        ----------
        token_ids : array of int
            At least one; the whole context may be filled in one call.
        all_logits : bool
            A row for every token instead of only the last.

        Returns
        -------
        numpy.ndarray
            float32, ``(vocabulary,)``, or ``(tokens, vocabulary)`` with `all_logits`.
        """
        tokens = as_tokens(token_ids)
        self._check_sequence(sequence)
        sequences = None if sequence == 0 else np.full(tokens.size, sequence, np.uint32)
        want = np.ones(tokens.size, np.uint8) if all_logits else None
        with self.image.named_errors():
            logits = self.core.infer(tokens, sequences, want)
        return logits if all_logits else logits[0]

    def infer_batch(
        self, token_ids: ArrayLike, sequences: ArrayLike, want: ArrayLike
    ) -> NDArray[np.float32]:
        """Tokens of several sequences at once: one row per true element of `want`, in order."""
        wanted = np.ascontiguousarray(np.asarray(want, dtype=bool), dtype=np.uint8)
        try:
            with self.image.named_errors():
                return self.core.infer(as_tokens(token_ids), as_tokens(sequences), wanted)
        except ValueError as error:
            raise EngineError(str(error)) from None

    def reset(self, sequence: int | None = None) -> None:
        """Forgets one sequence, or all of them."""
        every = range(self.core.limits.sequences)
        for one in every if sequence is None else [self._check_sequence(sequence)]:
            self.core.reset(one)

    def length(self, sequence: int = 0) -> int:
        """Tokens that a sequence holds."""
        return self.core.length(self._check_sequence(sequence))

    def _check_sequence(self, sequence: int) -> int:
        count = self.core.limits.sequences
        if not 0 <= sequence < count:
            raise EngineError(f"sequence {sequence} is unknown", file=self.image.name,
                              hint=f"use 0 .. {count - 1}")  # fmt: skip
        return sequence

    def high_water(self, region: int = 0) -> int:
        """Bytes that the engine took of a memory region; equals the plan's."""
        return self.core.high_water(region)

    @property
    def experts(self) -> ExpertStats:
        """What streaming has cost since the engine was made."""
        stats = self.core.expert_stats()
        return ExpertStats(
            stats["slots"], stats["slots_per_layer"], policy_name(stats["policy"]), stats["hits"],
            stats["misses"], stats["bytes_read"], stats["retries"], stats["pinned"],
            stats["prefetched"],
            stats["prefetched_used"], stats["prefetched_wasted_bytes"],
        )  # fmt: skip

    @property
    def routing(self) -> dict[str, Any] | None:
        """What changes the choice of experts (`colibri.routing`); None: the model's own router."""
        return routing_options(self.core.limits)

    def selftest(self) -> None:
        """Runs the image's golden vector through the model's own router.

        EngineError when the numbers differ.
        """
        with self.image.named_errors():
            self.core.selftest()

    def take_trace(self) -> NDArray[np.void]:
        """Events since the last call, as an array of dtype `EVENT`."""
        return np.frombuffer(self.core.take_trace(), dtype=EVENT)

    def stream(
        self, token_ids: ArrayLike, sampling: Sampling | None = None, *, sequence: int = 0
    ) -> Iterator[Step]:
        """Continues a sequence with `token_ids`, then with what it drew, until the context is full.

        Nothing is computed ahead: a caller that stops has spent nothing on the next token.
        """
        sampler = Sampler(sampling or Sampling())
        logits = self.infer(token_ids, sequence=sequence)
        while True:
            token = sampler(logits)
            yield Step(token, logits)
            if self.length(sequence) >= self.context:
                return
            logits = self.infer([token], sequence=sequence)

    def generate(
        self,
        token_ids: Sequence[int],
        max_new_tokens: int = DEFAULT_NEW_TOKENS,
        sampling: Sampling | None = None,
        *,
        ignore_eos: bool = False,
        on_token: Callable[[int], None] | None = None,
    ) -> Generation:
        """Forgets sequence 0, gives it `token_ids` and lets the model go on.

        Ends at one of the image's stop ids unless `ignore_eos`; `on_token` gets each token as it
        is drawn.
        """
        prompt = [int(token) for token in as_tokens(token_ids)]
        request = Request(prompt, sampling or Sampling(), max_new_tokens, ignore_eos)
        self.reset(0)
        return generate(self, request, on_token=on_token)
