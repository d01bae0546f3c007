# SPDX-License-Identifier: Apache-2.0
"""Small programs on emulated CPUs: words in, words out, instructions counted.

A program is C with ``void firmware_run(void)`` (``emulator/firmware/program.h``): it reads
`colibri_arguments`, writes `colibri_results`.  The same source runs bare-metal on Cortex-M and as a
Linux executable on AArch64 and RISC-V.

    cpu = CPUS["cortex-m55"]
    elf = build_program(cpu, [Source(Path("p.c"), ("-O2",)), *kernel_sources(cpu, table)], folder)
    one, two = (run_program(cpu, elf, [calls]) for calls in (1, 2))
    two.instructions - one.instructions    # of one call, exactly: start-up cancels
"""

from __future__ import annotations

import shutil
import signal
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from colibri._data import data_path
from colibri.errors import EXIT_DOES_NOT_FIT, EmulateError
from colibri_emulator.kernel_tables import REF, TABLES, KernelTable
from colibri_emulator.qemu_engine import counting, fault_of, read_count, run_bare
from colibri_emulator.symbols import Program
from colibri_emulator.toolchain import (
    COMMON,
    Gcc,
    Source,
    ToolchainName,
    Zig,
    compile_all,
    find_toolchain,
)

ARGUMENTS, RESULTS = 16, 64  # program.h
_STACK = 16 << 10
_APT = "apt-get install qemu-system-arm qemu-user"


@dataclass(frozen=True)
class Memory:
    """Where a bare-metal program lies: code from reset on, data in RAM."""

    code: int
    code_bytes: int
    data: int
    data_bytes: int


@dataclass(frozen=True)
class Cpu:
    """An emulated CPU: what to compile for, how to start it, which table features it has.

    `memory` is None for a Linux program, which runs in user mode.
    """

    name: str
    target: str
    qemu: tuple[str, ...]
    features: frozenset[str] = frozenset()
    memory: Memory | None = None

    @property
    def program(self) -> str:
        """The QEMU that has it."""
        return self.qemu[0]


class ProgramFaultError(EmulateError):
    """The program touched what it has no memory for, or was stopped by another rule of its CPU."""

    exit_code = EXIT_DOES_NOT_FIT


_MIB = 1 << 20
_A64, _RV64 = "aarch64-linux-musl", "riscv64-linux-musl"
_ALL = (
    Cpu("cortex-m33", "cortex-m33", ("qemu-system-arm", "-M", "mps2-an505"),
        frozenset({"dsp"}), Memory(0x10000000, 4 * _MIB, 0x38000000, 4 * _MIB)),
    Cpu("cortex-m4", "cortex-m4", ("qemu-system-arm", "-M", "mps2-an386"),
        frozenset({"dsp"}), Memory(0, 4 * _MIB, 0x20000000, 4 * _MIB)),
    Cpu("cortex-m7", "cortex-m7", ("qemu-system-arm", "-M", "mps2-an500"),
        frozenset({"dsp"}), Memory(0, 4 * _MIB, 0x20000000, 4 * _MIB)),
    Cpu("cortex-m55", "cortex-m55", ("qemu-system-arm", "-M", "mps3-an547"),
        frozenset({"dsp", "mve"}), Memory(0, _MIB // 2, 0x21000000, 2 * _MIB)),
    Cpu("cortex-a53", _A64, ("qemu-aarch64", "-cpu", "cortex-a53"), frozenset({"neon"})),
    Cpu("cortex-a76", _A64, ("qemu-aarch64", "-cpu", "cortex-a76"),
        frozenset({"neon", "dotprod"})),
    Cpu("aarch64-max", _A64, ("qemu-aarch64", "-cpu", "max"),
        frozenset({"neon", "dotprod", "i8mm"})),
    Cpu("rv64", _RV64, ("qemu-riscv64", "-cpu", "rv64")),
    Cpu("rv64-v128", _RV64, ("qemu-riscv64", "-cpu", "rv64,v=true,vlen=128"), frozenset({"rvv"})),
    Cpu("rv64-v256", _RV64, ("qemu-riscv64", "-cpu", "rv64,v=true,vlen=256"), frozenset({"rvv"})),
    Cpu("rv64-v512", _RV64, ("qemu-riscv64", "-cpu", "rv64,v=true,vlen=512"), frozenset({"rvv"})),
)  # fmt: skip
CPUS = {cpu.name: cpu for cpu in _ALL}


@dataclass(frozen=True)
class ProgramResult:
    """What a program wrote; `instructions` is None where they cannot be counted."""

    results: tuple[int, ...]
    instructions: int | None


def cpu_tables(cpu: Cpu) -> list[KernelTable]:
    """Kernel tables that a CPU can run."""
    isa = cpu.target.removesuffix("-linux-musl")
    return [
        table
        for table in TABLES
        if table is REF
        or ({cpu.target, isa} & set(table.targets) and set(table.features) <= cpu.features)
    ]


def kernel_sources(
    cpu: Cpu, table: KernelTable = REF, *, toolchain: ToolchainName = "auto"
) -> list[Source]:
    """Files of a kernel table, of the reference that it borrows from, and what both call."""
    root = data_path("sdk", "c")
    gcc = isinstance(find_toolchain(cpu.target, toolchain), Gcc)
    sources = [Source(root / "src" / name, ("-O2",)) for name in ("float_math.c", "crc32.c")]
    for part in dict.fromkeys((REF, table)):
        flags = ("-O2", *((part.gcc or ()) if gcc else part.zig))
        found = {
            f for pattern in part.files for f in (root / "kernels" / part.folder).glob(pattern)
        }
        sources += [Source(path, flags) for path in sorted(found)]
    return sources


def build_program(
    cpu: Cpu,
    sources: Sequence[Source],
    folder: Path,
    *,
    includes: Sequence[Path] = (),
    toolchain: ToolchainName = "auto",
) -> Path:
    """Compiles and links a program.

    Parameters
    ----------
    cpu : Cpu
        Where it will run.
    sources : sequence of Source
        The program and what it calls; each with its own flags.
    folder : path
        An existing folder for the ELF and its map.
    includes : sequence of path, optional
        Folders beside the runtime's own headers.
    toolchain : {"auto", "zig", "gcc"}
        The compiler; Linux programs need zig.

    Returns
    -------
    path
        The ELF.
    """
    compiler = find_toolchain(cpu.target, toolchain)
    firmware = data_path("emulator", "firmware")
    names: tuple[str, ...] = ("program_linux.c",)
    flags: tuple[str, ...] = ("-Os", *COMMON)
    folders = [firmware, data_path("sdk", "c", "include"), data_path("sdk", "c", "src"), *includes]
    if cpu.memory is not None:
        names = ("start_common.c", "program_bare.c", "mem.c", *compiler.target.start)
        flags = (*flags, "-ffreestanding")
        folders.append(firmware / "include")
    own = [Source(firmware / name) for name in names]
    objects = compile_all(compiler, [*own, *sources], flags, folders)
    elf, link_map = folder / "program.elf", folder / "program.map"
    if cpu.memory is not None:
        script = folder / "program.ld"
        script.write_text(_linker_script(cpu.name, cpu.memory), "utf-8")
        compiler.link(objects, script, elf, link_map)
    else:
        assert isinstance(compiler, Zig)  # the only one that brings musl
        compiler.link_hosted(objects, elf, link_map)
    return elf


def _linker_script(name: str, memory: Memory) -> str:
    """The boards' linker script with two regions, no model and no logits."""
    template = Template(data_path("emulator", "firmware", "linker.ld.in").read_text("utf-8"))
    data_end = memory.data + memory.data_bytes
    return template.substitute(
        board=name,
        memory=(
            f"  CODE (rx) : ORIGIN = {memory.code:#x}, LENGTH = {memory.code_bytes:#x}\n"
            f"  DATA (rw) : ORIGIN = {memory.data:#x}, LENGTH = {memory.data_bytes:#x}"
        ),
        code="CODE",
        data="DATA",
        data_load=" AT> CODE",
        code_start=f"{memory.code:#x}",
        code_limit=f"{memory.code + memory.code_bytes:#x}",
        stack_bytes=f"{_STACK:#x}",
        core_stacks_bytes=0,
        firmware_limit=f"{data_end:#x}",
        model_base=0,
        model_bytes=0,
        logits="DATA",
        logits_base=f"{data_end:#x}",
        tables="",
    )


def run_program(
    cpu: Cpu, elf: Path, arguments: Sequence[int] = (), *, timeout: float = 600.0
) -> ProgramResult:
    """Runs a program to its end.

    Raises
    ------
    ProgramFaultError
        When the program faults.
    EmulateError
        When the CPU's emulator is missing, or the program does not end in time.
    """
    if len(arguments) > ARGUMENTS:
        raise EmulateError(f"a program takes at most {ARGUMENTS} arguments, not {len(arguments)}")
    if shutil.which(cpu.program) is None:
        raise EmulateError(f"{cpu.program} is not installed", hint=_APT)
    if cpu.memory is None:
        return _run_linux(cpu, elf, arguments, timeout)
    program = Program(elf)
    words = [*arguments, *[0] * (ARGUMENTS - len(arguments))]
    run = run_bare(
        cpu.qemu,
        program,
        {program.address("colibri_arguments"): struct.pack(f"<{ARGUMENTS}I", *words)},
        code=(cpu.memory.code, cpu.memory.code + cpu.memory.code_bytes),
        timeout=timeout,
        symbol="colibri_results",
    )
    fault = fault_of(run.box, program)
    if fault is not None:
        raise ProgramFaultError(f"{cpu.name}: {fault}", file=elf)
    return ProgramResult(struct.unpack(f"<{RESULTS}I", run.memory), run.instructions)


def _run_linux(cpu: Cpu, elf: Path, arguments: Sequence[int], timeout: float) -> ProgramResult:
    with tempfile.TemporaryDirectory(prefix="cq-") as name:
        log = Path(name) / "log"
        words = [f"{argument:08x}" for argument in arguments]
        command = [*cpu.qemu, *counting(cpu.program, log), str(elf), *words]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired:
            raise EmulateError(f"{cpu.name}: no result after {timeout:.0f} s", file=elf) from None
        words = done.stdout.split()
        told = done.stderr.strip()[-400:]
        if done.returncode < 0:
            number = signal.Signals(-done.returncode).name
            raise ProgramFaultError(f"{cpu.name}: ended by {number}. {told}", file=elf)
        if done.returncode or len(words) != RESULTS:
            raise EmulateError(f"{cpu.name}: {told or f'exit code {done.returncode}'}", file=elf)
        return ProgramResult(tuple(int(word, 16) for word in words), read_count(log))
