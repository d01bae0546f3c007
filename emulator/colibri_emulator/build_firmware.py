# SPDX-License-Identifier: Apache-2.0
"""``colibri build``: runtime + runner application + board → ELF, model file, map and library.

For a bare-metal board (``os = "none"``) the ELF holds the code and the model file goes to the
address that the link fixed; for a Linux board it is a static executable that opens the model file.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from elftools.elf.constants import SH_FLAGS
from elftools.elf.elffile import ELFFile

from colibri._data import data_path
from colibri.application import checked_application
from colibri.board_memory import Weights, reads_storage, refuse_companions, streamed_weights
from colibri.boards import Board
from colibri.errors import BuildError, DoesNotFitError
from colibri.image import Image
from colibri.limits import Limits
from colibri.units import format_bytes
from colibri_emulator.code_size import code_reserve
from colibri_emulator.image_needs import ImageNeeds, image_needs
from colibri_emulator.kernel_tables import REF, KernelTable, pick_table
from colibri_emulator.layout import EngineRegion, Layout, board_layout
from colibri_emulator.linker import board_source, linker_script
from colibri_emulator.toolchain import (
    COMMON,
    Gcc,
    Source,
    ToolchainName,
    Zig,
    compile_all,
    find_toolchain,
)

SCHEMA = 1
_RECORD = "build.json"
_NAMES = ("status_names.c", "plan_names.c")  # text for people, which firmware does not print
ALL_KV = ("f32", "f16", "q8")
WeightsChoice = Literal["auto", "mapped", "streamed"]


@dataclass(frozen=True)
class Firmware:
    """A finished build.

    `layout` is None for a Linux executable.  `bytes` are counted from the files: code (with
    constants), data, bss, model, library.  `application` is what was declared of the rest of the
    program, by region: the layout leaves it room, and it is not in the ELF.
    """

    board: str
    target: str
    toolchain: str
    kernels: str
    elf: Path
    model: Path
    map: Path
    library: Path
    layout: Layout | None
    bytes: dict[str, int]
    weights: Weights = "mapped"
    application: dict[str, int] | None = None

    def to_json(self) -> dict[str, Any]:
        """The record of the build, and what ``colibri build --json`` prints."""
        fields = asdict(self)
        fields.update({key: str(fields[key]) for key in ("elf", "model", "map", "library")})
        return {"schema": SCHEMA, **fields}


def load_firmware(folder: str | Path) -> Firmware:
    """A build that ``colibri build`` wrote to a folder."""
    folder = Path(folder)
    try:
        record = json.loads((folder / _RECORD).read_text("utf-8"))
        layout = record["layout"]
        if layout is not None:
            layout["regions"] = tuple(EngineRegion(**region) for region in layout["regions"])
        return Firmware(
            board=record["board"],
            target=record["target"],
            toolchain=record["toolchain"],
            kernels=record["kernels"],
            elf=folder / record["elf"],
            model=folder / record["model"],
            map=folder / record["map"],
            library=folder / record["library"],
            layout=Layout(**layout) if layout is not None else None,
            bytes=record["bytes"],
            weights=record["weights"],
            application=record["application"],
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BuildError(
            "is not a build folder", file=folder, hint="make one with: colibri build ... -o DIR"
        ) from error


def build_firmware(
    board: Board,
    image: str | Path,
    output: str | Path,
    *,
    toolchain: ToolchainName = "auto",
    target: str | None = None,
    kv: Sequence[str] = ALL_KV,
    kernels: str = "auto",
    optimise: str | None = None,
    copy_model: bool = True,
    weights: WeightsChoice = "auto",
    application: Mapping[str, int | str] | None = None,
    code: int | None = None,
    parts: Collection[str] | None = None,
) -> Firmware:
    """Builds everything for one board and one image into a folder.

    Parameters
    ----------
    board : Board
        Where it will run.
    image : path
        The packed image.
    output : path
        Folder to make; an earlier build there is replaced.
    toolchain : {"auto", "zig", "gcc"}
        The compiler; auto takes zig when it is installed.
    target : str, optional
        Another target than the board's own, for CPUs that an emulator lacks.
    kv : sequence of str
        KV types that the firmware can be asked for; f32 is always in.
    kernels : str
        Kernel table by name; auto takes the fastest that the board's first core can run.
    optimise : str, optional
        One level for everything.  Default: kernels -O2, the rest -Os.
    copy_model : bool
        False refers to the image where it is.
    weights : {"auto", "mapped", "streamed"}
        Mapped: used in place. Streamed: the firmware can read experts when they are needed, from
        mapped flash that holds the image, or else from a storage of the board. Auto streams where
        the image does not fit the board's memory for it.
    application, code
        As `colibri.limits.Limits` has them. The engine is not given what the application takes.
    parts : collection of str, optional
        Parts of the runtime to compile in, instead of those that the image needs: to count them.

    Returns
    -------
    Firmware

    Raises
    ------
    BuildError
        When code and constants outgrow what is kept for them, with the value that works.
    """
    image, output = Path(image), Path(os.path.realpath(output))  # behind links; "." by its name
    unknown = sorted(set(kv) - set(ALL_KV))
    if unknown:
        raise BuildError(f"no KV type '{unknown[0]}'", field="--kv", hint="one of f32, f16, q8")
    opened = Image(image)
    limits = Limits(application=checked_application(board, application), code=code)
    placed = _weights(board, opened, weights, limits)
    if placed == "mapped":
        refuse_companions(opened, "firmware takes one")
    needs = image_needs(opened, kv, streaming=placed != "mapped")
    if parts is not None:
        needs = replace(needs, parts={name: name in parts for name in needs.parts})
    target = target or board.firmware.target
    compiler = find_toolchain(target, toolchain)
    with _new_folder(output) as folder:
        layout = _layout(board, opened, placed, limits) if board.os == "none" else None
        table = pick_table(target, board.cores[0], kernels, compiler=compiler.name)
        build = _Build(board, needs, compiler, folder, table, optimise, placed)
        if layout is not None:
            build.bare_metal(layout)
            _check_code(folder / "firmware.elf", board, layout)
        else:
            build.hosted()
        for path in folder.glob("*.o"):
            path.unlink()
        if copy_model:
            shutil.copyfile(image, folder / "model.colibri")
            for companion in opened.paths[1:]:
                shutil.copyfile(companion, folder / companion.name)
        made = Firmware(
            board=board.id,
            target=target,
            toolchain=compiler.name,
            kernels=table.name,
            elf=Path("firmware.elf"),
            model=Path("model.colibri") if copy_model else image.resolve(),
            map=Path("firmware.map"),
            library=Path("libcolibri.a"),
            layout=layout,
            bytes=_count(folder, needs),
            weights=placed,
            application=checked_application(board, application),
        )
        (folder / _RECORD).write_text(json.dumps(made.to_json(), indent=2) + "\n", "utf-8")
    return load_firmware(output)


def _weights(board: Board, image: Image, asked: WeightsChoice, limits: Limits) -> Weights:
    """Where the weights are; streamed ones where the board's flash or storage is."""
    if asked == "auto" and board.os == "none":
        try:
            _layout(board, image, "mapped", limits)
        except DoesNotFitError as error:
            if not any(not storage.xip for storage in board.storage):
                raise error from None
            return "streamed"
    return streamed_weights(board, image, limits) if asked == "streamed" else "mapped"


def _layout(board: Board, image: Image, weights: Weights, limits: Limits) -> Layout:
    """The layout that `colibri.plan` reckons with."""
    code = code_reserve(board, [image], streaming=weights != "mapped", asked=limits.code)
    return board_layout(
        board,
        image.bytes,
        image.vocabulary,
        image.meta_bytes if weights == "streamed" else 0,
        code_bytes=code.bytes,
        application=checked_application(board, limits.application),
        device=reads_storage(image, weights),
    )


def _check_code(elf: Path, board: Board, layout: Layout) -> None:
    """BuildError when what is stored of the program is more than the layout keeps for it."""
    with elf.open("rb") as file:
        segments = [s for s in ELFFile(file).iter_segments("PT_LOAD") if s["p_filesz"]]
    end = max(s["p_paddr"] + s["p_filesz"] for s in segments)
    if end > layout.code_limit:
        need, have = end - layout.code_start, layout.code_limit - layout.code_start
        raise BuildError(
            f"code and constants take {need:,} bytes, {have:,} are kept for them",
            file=board.id,
            hint=f"--code {need} keeps enough ({format_bytes(need)}), for `colibri plan` too",
        )


@dataclass(frozen=True)
class _Build:
    board: Board
    needs: ImageNeeds
    compiler: Zig | Gcc
    folder: Path
    table: KernelTable
    optimise: str | None
    weights: Weights

    def bare_metal(self, layout: Layout) -> None:
        """ELF, map and library for the board's memory map."""
        firmware, smp = (
            data_path("emulator", "firmware"),
            data_path("sdk", "c", "ports", "baremetal"),
        )
        script = self.folder / "board.ld"
        script.write_text(linker_script(self.board, layout), "utf-8")
        generated = self.folder / "board.c"
        text = board_source(self.board, layout, self.needs, self.weights)
        generated.write_text(text, "utf-8")
        start = [Source(firmware / name, _start_flags(name)) for name in self.compiler.target.start]
        own = [Source(firmware / name) for name in ("start_common.c", "mem.c")]
        runner = Source(firmware / "runner.c", self._choice())
        sources = [*start, *own, runner, Source(generated), Source(smp / "smp_pool.c")]
        includes = [firmware, smp]
        if self.weights != "mapped":
            device = data_path("sdk", "c", "ports", "block_device")
            sources.append(Source(device / "block_device.c"))
            includes.append(device)
        objects, library = self._compile(sources, includes), self._runtime()
        self.compiler.link(objects, script, *self._outputs(), library)

    def hosted(self) -> None:
        """Static executable, map and library for Linux."""
        posix = data_path("sdk", "c", "ports", "posix")
        sources = [Source(path) for path in sorted(posix.glob("*.c"))]
        sources.append(Source(data_path("emulator", "firmware", "linux_main.c"), self._choice()))
        objects, library = self._compile(sources, [posix]), self._runtime()
        if not isinstance(self.compiler, Zig):
            raise BuildError("only zig brings a static C library for Linux boards")
        self.compiler.link_hosted(objects, *self._outputs(), library)

    def _outputs(self) -> tuple[Path, Path]:
        return self.folder / "firmware.elf", self.folder / "firmware.map"

    def _runtime(self) -> Path:
        """The runtime's library; kernels carry their folder's name, as many files share theirs."""
        root = data_path("sdk", "c")
        rest = [path for path in sorted((root / "src").glob("*.c")) if path.name not in _NAMES]
        defines = tuple(self.needs.defines())
        sources = [
            Source(
                path, ("-ffreestanding", "-O2", *defines, *flags), f"{path.parent.name}-{path.stem}"
            )
            for path, flags in self._kernels(root / "kernels")
        ]
        sources += [Source(path, ("-ffreestanding", "-Os", *defines)) for path in rest]
        library = self.folder / "libcolibri.a"
        self.compiler.archive(self._compile(sources, [root / "src"]), library)
        return library

    def _kernels(self, folder: Path) -> Iterator[tuple[Path, tuple[str, ...]]]:
        """Files of the reference and of the chosen table, with the flags that are their own."""
        for table in dict.fromkeys((REF, self.table)):
            flags = (table.gcc or ()) if isinstance(self.compiler, Gcc) else table.zig
            found = {f for pattern in table.files for f in (folder / table.folder).glob(pattern)}
            yield from ((path, flags) for path in sorted(found))

    def _choice(self) -> tuple[str, ...]:
        streams = ("-DCOLIBRI_RUNNER_STREAMS=1",) if self.weights != "mapped" else ()
        return (f"-DCOLIBRI_BOARD_KERNELS={self.table.symbol}", *streams)

    def _compile(self, sources: Sequence[Source], includes: Sequence[Path]) -> list[Path]:
        """Objects under plain names in the build's folder, for archive and link."""
        if self.optimise is not None:
            level = self.optimise
            sources = [
                replace(s, flags=tuple(level if f.startswith("-O") else f for f in s.flags))
                for s in sources
            ]
        flags: tuple[str, ...] = ("-Os", *COMMON)
        folders = [*includes, data_path("sdk", "c", "include")]
        if self.board.os == "none":
            flags = (*flags, "-ffreestanding")
            folders.append(data_path("emulator", "firmware", "include"))
        objects = []
        for source, cached in zip(
            sources, compile_all(self.compiler, sources, flags, folders), strict=True
        ):
            objects.append(self.folder / source.object_name)
            with objects[-1].open("xb") as file:  # a second one of that name is an error
                file.write(cached.read_bytes())
        return objects


def _start_flags(name: str) -> tuple[str, ...]:
    """What runs before the MMU may not use unaligned accesses."""
    return ("-mstrict-align",) if name == "mmu_aarch64.c" else ()


def _count(folder: Path, needs: ImageNeeds) -> dict[str, int]:
    """Bytes of what was built."""
    total = {"code": 0, "data": 0, "bss": 0}
    with (folder / "firmware.elf").open("rb") as file:
        for section in ELFFile(file).iter_sections():
            flags = section["sh_flags"]
            if not flags & SH_FLAGS.SHF_ALLOC:
                continue
            if section["sh_type"] == "SHT_NOBITS":
                total["bss"] += section["sh_size"]
            else:
                total["data" if flags & SH_FLAGS.SHF_WRITE else "code"] += section["sh_size"]
    library = (folder / "libcolibri.a").stat().st_size
    return {**total, "model": needs.bytes, "library": library}


@contextmanager
def _new_folder(output: Path) -> Iterator[Path]:
    """A folder that appears under its name when everything in it is written."""
    if output == Path.cwd():
        raise BuildError(
            "is the current folder, which cannot be renewed", file=output, hint="give another"
        )
    if output.exists() and not (output / _RECORD).exists() and not _is_empty_folder(output):
        raise BuildError(
            "exists and is not a build folder", file=output, hint="give a new folder with -o"
        )
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=output.parent, prefix=f".{output.name}-"))
    except OSError as error:
        raise BuildError(f"cannot be written: {error.strerror}", file=output.parent) from error
    old = temporary.with_name(temporary.name + "-old")
    try:
        yield temporary
        temporary.chmod(0o755)
        if output.exists():
            output.replace(old)
        temporary.replace(output)
    except OSError as error:
        raise BuildError(f"cannot be written: {error.strerror}", file=output) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())
