# SPDX-License-Identifier: Apache-2.0
"""The C runtime as it is; numbers are those of sdk/c/include/colibri."""

import builtins
from collections.abc import Sequence
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

TYPES: dict[str, int]
PROFILES: dict[str, int]
WEIGHTS: dict[str, int]
SECTIONS: dict[str, int]
ROLES: dict[str, int]
EVENTS: dict[str, int]
GLOBAL_LAYER: int
IMAGE_VERSION: int
MAX_REGIONS: int
MAX_BUFFERS: int
MAX_WORKERS: int
MAX_BATCH: int

Region = tuple[str, int, int, int]

def version() -> str: ...
def built_with() -> list[str]: ...
def kernels() -> list[str]: ...
def status_name(status: int) -> str: ...
def buffer_name(kind: int) -> str: ...
def buffer_purpose(kind: int) -> str: ...
def crc32(data: bytes, crc: int = 0) -> int: ...

class Image:
    def __init__(self, source: str | bytes, map: bool, name: str) -> None: ...
    @property
    def bytes(self) -> int: ...
    @property
    def meta_bytes(self) -> int: ...
    @property
    def address(self) -> int: ...
    def config(self) -> dict[str, int | float]: ...
    def sections(self) -> list[tuple[int, int, int, int, int, int]]: ...
    def tensors(self) -> list[tuple[int, int, int, int, int, int, int, int, int, int]]: ...
    def experts(self) -> list[tuple[int, int, int, int]]: ...
    def stop_ids(self) -> list[int]: ...
    def layers(self) -> list[tuple[int, int, int, int, int, int]]: ...
    def read(self, offset: int, bytes: int, file: int = 0) -> builtins.bytes: ...
    def verify(self) -> None: ...

class Limits:
    def __init__(
        self,
        sequences: int = 1,
        context: int = 0,
        batch: int = 0,
        workers: int = 0,
        kv: int = 0,
        profile: int = 0,
        weights: int = 0,
    ) -> None: ...
    @property
    def sequences(self) -> int: ...
    @property
    def context(self) -> int: ...
    @property
    def batch(self) -> int: ...
    @property
    def workers(self) -> int: ...
    @property
    def kv(self) -> int: ...
    @property
    def profile(self) -> int: ...
    @property
    def weights(self) -> int: ...

class PlanResult(TypedDict):
    shortage: tuple[int, int, int] | None
    alignment: int
    total_bytes: int
    used: list[int]
    buffers: list[tuple[int, int, int, int, int]]
    limits: Limits

def plan(image: Image, limits: Limits, regions: Sequence[Region]) -> PlanResult: ...
def plan_max_context(image: Image, limits: Limits, regions: Sequence[Region]) -> int: ...

class Engine:
    def __init__(
        self,
        image: Image,
        limits: Limits,
        regions: Sequence[Region] | None,
        kernels: str,
        threads: int,
        trace: bool,
    ) -> None: ...
    @property
    def limits(self) -> Limits: ...
    @property
    def regions(self) -> list[Region]: ...
    @property
    def kernels(self) -> str: ...
    def infer(
        self,
        tokens: NDArray[np.uint32],
        sequences: NDArray[np.uint32] | None = None,
        want: NDArray[np.uint8] | None = None,
    ) -> NDArray[np.float32]: ...
    def reset(self, sequence: int) -> None: ...
    def length(self, sequence: int) -> int: ...
    def high_water(self, region: int) -> int: ...
    def selftest(self) -> None: ...
    def take_trace(self) -> bytes: ...

def sample(
    logits: NDArray[np.float32], temperature: float, top_k: int, top_p: float, state: int
) -> tuple[int, int]: ...
def route_topk(
    scores: NDArray[np.float32],
    top_k: int,
    router: int = 1,
    flags: int = 0,
    selection: NDArray[np.float32] | None = None,
    groups: int = 0,
    groups_kept: int = 0,
    scale: float = 1.0,
    epsilon: float = 0.0,
) -> tuple[NDArray[np.uint16], NDArray[np.float32]]: ...

class Kernels:
    def __init__(self, name: str) -> None: ...
    def conformance(self, level: int) -> tuple[list[int], list[list[int]]]: ...
    @property
    def name(self) -> str: ...
    def quantize(
        self, x: NDArray[np.float32], group: int
    ) -> tuple[NDArray[np.int8], NDArray[np.float32]]: ...
    def matmul(
        self,
        data: bytes,
        type: int,
        group: int,
        rows: int,
        x: NDArray[np.float32],
        bias: NDArray[np.float32] | None,
        in_rows: NDArray[np.uint16] | None,
        out_rows: NDArray[np.uint16] | None,
        out_count: int,
        row_begin: int,
        row_end: int,
        order: int = 0,
    ) -> NDArray[np.float32]: ...
    def rms_norm(
        self, x: NDArray[np.float32], weight: NDArray[np.float32], epsilon: float
    ) -> NDArray[np.float32]: ...
    def silu_gate(
        self, gate: NDArray[np.float32], up: NDArray[np.float32]
    ) -> NDArray[np.float32]: ...
    def attend(
        self,
        query: NDArray[np.float32],
        keys: NDArray[np.uint8],
        values: NDArray[np.uint8],
        kv: int,
        scale: float,
    ) -> NDArray[np.float32]: ...
