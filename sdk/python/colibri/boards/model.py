# SPDX-License-Identifier: Apache-2.0
# `Bps` is bytes a second; in lower case it would be bits.
# ruff: noqa: N815
"""What a board file and a SoC file may say.

One class per TOML table.  Tables are strict: an unknown key or a value of another type is an
error.  A plain number is *declared* by the `source` of its table; a `Figure` says for itself
whether it was measured, declared or computed (theoretical).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    computed_field,
)

from colibri.boards.budgets import Budgets
from colibri.boards.scalars import Address, Id, Name, Number, Size, Text, Word, power_of_two
from colibri.errors import BoardError

SCHEMA_VERSION = 1

Isa = Literal[
    "armv6-m", "armv7-m", "armv7e-m", "armv8-m.base", "armv8-m.main", "armv8.1-m.main",
    "armv7-a", "armv8-a", "armv8.2-a", "armv9-a", "rv32imac", "rv32imafc", "rv32gc",
    "rv64imac", "rv64gc", "rv64gcv", "x86-64",
]  # fmt: skip
Feature = Literal[
    "fpu", "fpu-dp", "dsp", "mve", "mve-fp", "neon", "dotprod", "fp16", "i8mm", "bf16", "sve",
    "rvv", "lse", "crc", "crypto", "npu", "trustzone",
]  # fmt: skip
RegionKind = Literal["sram", "tcm", "dram", "psram", "nor", "mram", "rom"]
StorageKind = Literal["sd", "emmc", "nvme", "nor", "mram", "semihost"]
Access = Literal["r", "rw", "rx", "rwx"]
FigureClass = Literal["measured", "declared", "theoretical"]
Target = Literal[
    "cortex-m4", "cortex-m7", "cortex-m33", "cortex-m55", "aarch64", "riscv64",
    "aarch64-linux-musl",
]  # fmt: skip


class _Table(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Figure(_Table):
    """A number with its provenance."""

    value: Number
    cls: FigureClass
    source: Text

    def __float__(self) -> float:
        return float(self.value)


class Core(_Table):
    """A cluster of identical cores."""

    id: Id
    isa: Isa
    cpu: Word = Field(description="core name as compilers spell it, for example cortex-m33")
    features: list[Feature] = []
    count: int = Field(ge=1, le=1024)
    freq_hz: int = Field(ge=1, le=100_000_000_000)
    l1d_bytes: Size = Field(
        default=0, description="L1 data cache of one core; 0: none, or not known"
    )
    l2_bytes: Size = Field(default=0, description="L2 that one core can use; 0: none, or not known")
    l3_bytes: Size = Field(default=0, description="cache behind L2, shared; 0: none, or not known")
    line_bytes: Annotated[Size, AfterValidator(power_of_two)] = Field(
        description="cache line, or the bus width where there is no cache; a power of two"
    )
    source: Text


class Reserved(_Table):
    """A part of a region that programs may not use, and why."""

    offset: Size
    size: Size
    reason: Text
    source: Text | None = None


class Perf(_Table):
    """Speed of a region.  Time for `n` bytes: lines · latency_ns + n / read_Bps."""

    read_Bps: Figure | None = Field(default=None, description="sequential read, bytes a second")
    write_Bps: Figure | None = Field(default=None, description="sequential write, bytes a second")
    latency_ns: Figure | None = Field(
        default=None, description="fixed cost of a line, transfer excluded"
    )
    line_bytes: Figure | None = Field(default=None, description="bytes fetched by one miss")


class Region(_Table):
    """One physical memory; `aliases` are further addresses of the same bytes."""

    name: Name
    kind: RegionKind
    base: Address
    size: Size
    access: Access
    aliases: list[Address] = []
    reserved: list[Reserved] = []
    rank: int = Field(ge=0, le=100, description="speed rank, 0 is the fastest")
    perf: Perf = Perf()
    source: Text = Field(description="who declares base, size and access")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def usable(self) -> int:
        """Size minus the reserved parts."""
        return self.size - sum(part.size for part in self.reserved)

    @property
    def end(self) -> int:
        """First address behind the region."""
        return self.base + self.size

    @property
    def longest_piece(self) -> tuple[int, int]:
        """Offsets of the longest part without reserved bytes."""
        parts = sorted((part.offset, part.offset + part.size) for part in self.reserved)
        starts = [0, *(end for _, end in parts)]
        ends = [*(start for start, _ in parts), self.size]
        return max(zip(starts, ends, strict=True), key=lambda piece: piece[1] - piece[0])

    @property
    def writable(self) -> bool:
        """Whether buffers can live here."""
        return "w" in self.access and self.kind not in ("nor", "rom", "mram")


class CurvePoint(_Table):
    """Read speed at one block size."""

    block_bytes: Size
    read_Bps: Number
    cls: FigureClass
    source: Text


class Storage(_Table):
    """Where an image can be read from; `xip` storage is also a memory region."""

    name: Name
    kind: StorageKind
    xip: bool = False
    region: Name | None = Field(
        default=None, description="the region of xip storage; its name if absent"
    )
    points: list[CurvePoint] = Field(min_length=1, description="by rising block size")
    latency_us: Figure | None = Field(default=None, description="fixed cost of one read")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def curve(self) -> list[tuple[int, float]]:
        """Read bandwidth over block size: (block_bytes, bytes a second)."""
        return [(point.block_bytes, point.read_Bps) for point in self.points]


class Accelerator(_Table):
    """A device that experts can be bound to, with memory of its own.

    Time for a call: start_us + bytes / dma_Bps + the larger of weights / read_Bps and
    multiply-adds / macs_per_s.
    """

    name: Word = Field(description="as --bind calls it")
    memory_bytes: Size = Field(description="for weights of bound experts and working space")
    macs_per_s: Figure = Field(description="int8 multiply-adds a second, with the contract's bits")
    read_Bps: Figure = Field(description="what it reads of its own memory, bytes a second")
    dma_Bps: Figure = Field(description="between main memory and its own, bytes a second")
    start_us: Figure | None = Field(default=None, description="fixed cost of a call")
    source: Text = Field(description="who declares the device and its memory")


class Firmware(_Table):
    """How programs are built and placed; which keys apply depends on the board's `os`."""

    target: Target
    # os = "none"
    code_region: str = Field(default="", description="region that holds code and constants")
    code_offset: Size = Field(
        default=0, description="first byte of code, from the start of code_region"
    )
    data_region: str = Field(default="", description="region of static data and the stack")
    model_region: str = Field(default="", description="region that holds the image")
    stack_bytes: Size = 0
    reserve_bytes: Size = Field(default=0, description="static data of the runner: mailbox, logits")
    qemu_machine: Word | None = None
    unicorn_cpu: Word | None = None
    psci: Literal["hvc", "smc"] | None = Field(
        default=None,
        description="AArch64: the instruction that reaches PSCI, which switches cores on; "
        "without it firmware works on one core",
    )
    # os = "linux"
    os_reserve_bytes: Size = Field(default=0, description="RAM that the system keeps for itself")
    os_reserve_reason: str = ""
    os_reserve_cls: FigureClass = "declared"
    os_reserve_source: str = ""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def profile(self) -> Literal["small", "wide"]:
        """Kernel profile of the planner: small on Cortex-M, wide elsewhere."""
        return "small" if self.target.startswith("cortex-m") else "wide"


class Soc(_Table):
    """A chip: its cores and its on-chip regions."""

    schema_version: Literal[1]
    id: Id
    name: Text
    vendor: Text
    cores: list[Core] = Field(min_length=1)
    regions: list[Region] = []


class Board(_Table):
    """A board, its SoC merged in."""

    schema_version: Literal[1]
    id: Id
    name: Text
    vendor: Text
    os: Literal["linux", "none"]
    soc: Text | None = Field(
        default=None, description="SoC id, or a TOML file beside the board file"
    )
    cores: list[Core] = Field(min_length=1)
    regions: list[Region] = Field(min_length=1)
    storage: list[Storage] = []
    accelerator: Accelerator | None = None
    firmware: Firmware
    budgets: Budgets = Budgets()

    _warnings: tuple[str, ...] = PrivateAttr(())

    @property
    def warnings(self) -> tuple[str, ...]:
        """What looks unlikely but is not an error, for example a 512 MiB SRAM."""
        return self._warnings

    @property
    def firmware_cores(self) -> int:
        """Cores that bare-metal firmware can use; each has a stack."""
        return self.cores[0].count if self.firmware.psci else 1

    def region(self, name: str) -> Region:
        """The region called `name`."""
        for region in self.regions:
            if region.name == name:
                return region
        known = ", ".join(region.name for region in self.regions)
        raise BoardError(f"board {self.id} has no region '{name}'", hint=f"it has {known}")
