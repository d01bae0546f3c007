# SPDX-License-Identifier: Apache-2.0
"""Colibri SDK: Mixture-of-Experts language models on small boards.

>>> import colibri                                                          # doctest: +SKIP
>>> image = colibri.Image("demo.colibri")                                   # doctest: +SKIP
>>> plan = colibri.plan(image, board="pimoroni-pico-plus-2", context=128)   # doctest: +SKIP
>>> engine = colibri.Engine(image, context=256, workers=2)                  # doctest: +SKIP
>>> logits = engine.infer(image.tokenizer.encode("lantern, lamp (noun):"))  # doctest: +SKIP

The C library computes; this package opens files, names numbers and prints.
"""

from colibri._core import built_with, kernels, version
from colibri.arena import Arena, MemoryRegion
from colibri.boards import Board, list_boards, load_board
from colibri.engine import Engine
from colibri.errors import (
    BoardError,
    BuildError,
    CheckpointError,
    ColibriError,
    DoesNotFitError,
    EmulateError,
    EngineError,
    ImageError,
    PlanError,
    SizeError,
    TokenizerError,
    TraceError,
)
from colibri.generate import Generation
from colibri.image import Image
from colibri.joint_plan import JointPlan, plan_together
from colibri.planner import Plan, plan
from colibri.sampling import Sampling, sample
from colibri.tokenizer import Tokenizer

__version__ = "0.1.0"

__all__ = [
    "Arena",
    "Board",
    "BoardError",
    "BuildError",
    "CheckpointError",
    "ColibriError",
    "DoesNotFitError",
    "EmulateError",
    "Engine",
    "EngineError",
    "Generation",
    "Image",
    "ImageError",
    "JointPlan",
    "MemoryRegion",
    "Plan",
    "PlanError",
    "Sampling",
    "SizeError",
    "Tokenizer",
    "TokenizerError",
    "TraceError",
    "__version__",
    "built_with",
    "kernels",
    "list_boards",
    "load_board",
    "plan",
    "plan_together",
    "sample",
    "version",
]
