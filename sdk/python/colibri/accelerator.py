# SPDX-License-Identifier: Apache-2.0
"""The fake accelerator of sdk/c/ports/fake_npu, and which experts are bound to it.

>>> npu = FakeNpu(bound_experts(image, "0-3"), memory=1 << 20)     # doctest: +SKIP
>>> Engine(image, accelerator=npu).infer([1, 2, 3])                # doctest: +SKIP
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from colibri.errors import EngineError
from colibri.image import Image

_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?", re.ASCII)
_MOE = 2  # bit of a layer's feed-forward kind


@dataclass(frozen=True)
class FakeNpu:
    """A device with memory of its own that computes chosen experts, bit for bit as the CPU.

    Parameters
    ----------
    experts : tuple of (layer, expert)
        What is bound; see `bound_experts`.
    memory : int
        Bytes of the device: weights of the bound experts, and working space of one command.
    threaded : bool
        Computes on a thread of its own instead of when it is waited for.
    """

    experts: tuple[tuple[int, int], ...]
    memory: int
    threaded: bool = False

    def checked(self, image: Image) -> list[tuple[int, int]]:
        """The experts in order; EngineError for one that the image lacks, or that comes twice."""
        known = set(image_experts(image))
        for layer, expert in self.experts:
            if (layer, expert) not in known:
                raise EngineError(
                    f"layer {layer} has no expert {expert} to bind", file=image.name,
                    hint=_layers_hint(image),
                )  # fmt: skip
        if len(set(self.experts)) != len(self.experts):
            raise EngineError("an expert is bound twice", file=image.name, hint="bind it once")
        if not 0 <= self.memory < 2**62:
            raise EngineError(f"accelerator memory is {self.memory}", hint="use 0 to 2^62 - 1")
        return sorted(self.experts)


def image_experts(image: Image) -> list[tuple[int, int]]:
    """Every (layer, expert) with weights of its own, in order."""
    layers = [n for n, layer in enumerate(image.core.layers()) if layer[1] & _MOE]
    count = image.config["experts"] - image.config["identities"]
    return [(layer, expert) for layer in layers for expert in range(int(count))]


def bound_experts(image: Image, text: str) -> tuple[tuple[int, int], ...]:
    """The experts that ``EXPERTS[@LAYERS]`` names: ``"0-3"``, ``"0,5@1-2"``, ``"all"``.

    Without layers: in every layer that has experts.  EngineError for what cannot be read, or is
    not in the image.
    """
    experts, _, layers = text.partition("@")
    every = image_experts(image)
    wanted_experts = _numbers(image, text, experts, {expert for _, expert in every})
    wanted_layers = _numbers(image, text, layers or "all", {layer for layer, _ in every})
    return tuple(pair for pair in every if pair[0] in wanted_layers and pair[1] in wanted_experts)


def _numbers(image: Image, whole: str, text: str, known: set[int]) -> set[int]:
    if text == "all":
        return known
    found: set[int] = set()
    for word in text.split(","):
        match = _RANGE.fullmatch(word.strip())
        if not match:
            raise EngineError(
                f"'{whole[:80]}' does not name experts",
                hint="write EXPERTS or EXPERTS@LAYERS, as in 0-3 or 0,5@1-2 or all",
            )
        first = int(match[1])
        numbers = range(first, int(match[2] or first) + 1)
        if not numbers or not known.issuperset(numbers):
            raise EngineError(
                f"'{word.strip()}' in '{whole[:80]}' is not in the image", file=image.name,
                hint=_layers_hint(image),
            )  # fmt: skip
        found.update(numbers)
    return found


def _layers_hint(image: Image) -> str:
    every = image_experts(image)
    if not every:
        return "the model has no experts"
    layers = sorted({layer for layer, _ in every})
    count = len(every) // len(layers)
    return f"experts 0 .. {count - 1} of layers {', '.join(map(str, layers))}"
