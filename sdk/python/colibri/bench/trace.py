# SPDX-License-Identifier: Apache-2.0
"""Bytes, multiply-adds and routing of a run, read off the events of the runtime.

There is no formula of a model here: the runtime says what it reads and multiplies
(`colibri_event` in platform.h), and this adds it up.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from colibri import _core
from colibri.engine import Engine

Feed = Literal["random", "greedy"]
#: Bit of an event's layer that tells the router of attention experts from the layer's own.
ATTENTION = 0x10000
_WORK = [_core.EVENTS[name] for name in ("matmul", "expert", "attend")]


@dataclass(frozen=True)
class Work:
    """Bytes of weights and KV cache that were read or written, and multiply-adds."""

    bytes: int
    macs: int

    @classmethod
    def of(cls, events: NDArray[np.void]) -> Work:
        """The sum over the events of a run."""
        counted = events[np.isin(events["kind"], _WORK)]
        return cls(int(counted["bytes"].sum()), int(counted["work"].sum()))


@dataclass(frozen=True)
class Routing:
    """How tokens of a run choose experts, averaged over the layers.

    Attributes
    ----------
    kind : str
        ``"sticky"`` when it is a third of the way or more from chance to always the same.
    same_as_previous : float
        Share of a token's experts which the token before it chose too.
    same_by_chance : float
        The same if every token chose at random: top_k / experts.
    entropy_bits, entropy_most_bits : float
        Of the experts over all tokens, and when all are chosen equally often.
    """

    kind: str
    tokens: int
    same_as_previous: float
    same_by_chance: float
    entropy_bits: float
    entropy_most_bits: float

    def as_dict(self) -> dict[str, Any]:
        return {k: round(v, 4) if isinstance(v, float) else v for k, v in asdict(self).items()}


@dataclass(frozen=True)
class Traced:
    """A prompt and the tokens after it, run once with every event recorded."""

    prompt: NDArray[np.uint32]
    new: NDArray[np.uint32]
    prefill: Work
    decode: Work
    routing: Routing | None


def run_traced(
    engine: Engine, prompt: NDArray[np.uint32], new: int, feed: Feed, seed: int
) -> Traced:
    """Runs a prompt and `new` tokens after it in an engine made with `trace`.

    Parameters
    ----------
    feed : {"random", "greedy"}
        Tokens after the prompt: drawn at random, or the model's own.
    """
    engine.reset()
    engine.take_trace()
    logits = engine.infer(prompt)
    parts = [engine.take_trace()]
    tokens = np.random.default_rng(seed + 1).integers(engine.vocabulary, size=new, dtype=np.uint32)
    for i in range(new):
        if feed == "greedy":
            tokens[i] = int(np.argmax(logits))
        logits = engine.infer(tokens[i : i + 1])
        parts.append(engine.take_trace())
    decode = Work.of(np.concatenate(parts[1:]))
    routing = routing_of(np.concatenate(parts), engine.image.config["experts"])
    return Traced(prompt, tokens, Work.of(parts[0]), decode, routing)


class Choices(NamedTuple):
    """Every expert that a router chose in sequence 0: one element a choice, in the order of events.

    `token` counts over all steps; `layer` has a bit above the number in the attention's routers
    (`ATTENTION`); `rank` is 0 for the first choice of a token.
    """

    token: NDArray[np.int64]
    layer: NDArray[np.int64]
    rank: NDArray[np.int64]
    expert: NDArray[np.int64]


def choices_of(events: NDArray[np.void]) -> Choices:
    """The routing events of a run, whatever its steps were."""
    routes = events["kind"] == _core.EVENTS["route"]
    of_step = np.where(events["kind"] == _core.EVENTS["step"], events["count"], 0)
    before = np.cumsum(of_step) - of_step  # right at the start of a step, too many inside it
    before = np.maximum.accumulate(np.where(of_step, before, 0))
    chosen = {name: events[name][routes].astype(np.int64) for name in ("layer", "index", "count")}
    token = before[routes].astype(np.int64) + (chosen["count"] & 0xFFFF)
    return Choices(token, chosen["layer"], chosen["count"] >> 16, chosen["index"])


def routing_of(events: NDArray[np.void], experts: int) -> Routing | None:
    """The routing of a run in sequence 0 from its events; None for a dense model."""
    choices = choices_of(events)
    if not choices.token.size:
        return None
    same, chance, entropy = [], 0.0, []
    for place in np.unique(choices.layer):
        here = choices.layer == place
        chosen = np.zeros((int(choices.token.max()) + 1, experts), bool)
        chosen[choices.token[here], choices.expert[here]] = True
        top_k = chosen.sum(axis=1).max()
        same.append((chosen[1:] & chosen[:-1]).sum() / top_k / max(1, len(chosen) - 1))
        chance = float(top_k) / experts
        share = chosen.sum(axis=0) / chosen.sum()
        entropy.append(-(share[share > 0] * np.log2(share[share > 0])).sum())
    mean = float(np.mean(same))
    kind = "uniform" if mean < chance + (1 - chance) / 3 else "sticky"
    return Routing(
        kind, len(chosen), mean, chance, float(np.mean(entropy)), float(np.log2(experts))
    )
