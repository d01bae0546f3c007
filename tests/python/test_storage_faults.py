# SPDX-License-Identifier: Apache-2.0
"""Files that go bad while experts are streamed from them: what is said, and that it can go on."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from colibri import DoesNotFitError, Engine, Image, ImageError, cli
from colibri.engine import MemoryRegion
from colibri.pack import pack
from colibri.placement import LayoutName, Placement
from native import SANITIZERS, program
from test_image_rules import sealed

GOLDEN = Path(__file__).parents[1] / "golden"
THREADS = "thread"
STORAGE, CORRUPT, CHECKSUM = 60, 62, 44
SLOTS, CONTEXT = 4, 24
TOKENS = [7919 * i % 300 for i in range(CONTEXT)]
LAYOUTS: tuple[LayoutName, ...] = ("monolithic", "sharded", "hybrid")
Spoil = Callable[[Path], object]


def packed(folder: Path, layout: LayoutName) -> Image:
    """A small mixture, read and never mapped."""
    folder.mkdir(parents=True, exist_ok=True)
    where = Placement.of(layout, shard_bytes=1 << 17 if layout == "sharded" else None)
    path = pack(GOLDEN / "mixtral", folder / "m.colibri", quant="q4", placement=where).image
    return Image(path, map=False)


def streamed(image: Image) -> Engine:
    return Engine(image, CONTEXT, weights="streamed", expert_slots=SLOTS)


@pytest.fixture(params=LAYOUTS)
def image(request: pytest.FixtureRequest, tmp_path: Path) -> Image:
    return packed(tmp_path, request.param)


@pytest.fixture
def one(tmp_path: Path) -> Image:
    return packed(tmp_path, "monolithic")


@contextmanager
def changed(path: Path, spoil: Spoil) -> Iterator[None]:
    """The file, open as it is, with other bytes for a while."""
    content = path.read_bytes()
    spoil(path)
    try:
        yield
    finally:
        with path.open("r+b") as file:
            file.write(content)


def shrink(path: Path) -> None:
    os.truncate(path, 100)


def shorter(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def flip_all(path: Path) -> None:
    """Every byte behind the first block, in place."""
    content = bytearray(path.read_bytes())
    with path.open("r+b") as file:
        file.write(content[:64] + bytes(byte ^ 1 for byte in content[64:]))


@contextmanager
def failing(path: Path) -> Iterator[None]:
    """Every descriptor of the file reads from nowhere: EIO."""
    name, found = str(path.resolve()), []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the listing's own
            if str(entry.readlink()) == name:
                found.append(int(entry.name))
    kept = [(number, os.dup(number)) for number in found]
    assert kept
    nowhere = os.open("/proc/self/mem", os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="Input/output error"):
            os.pread(nowhere, 1, 0)
        for number, _ in kept:
            os.dup2(nowhere, number)
        yield
    finally:
        for number, copy in kept:
            os.dup2(copy, number)
            os.close(copy)
        os.close(nowhere)


def told(image: Image, error: ImageError, code: int) -> Path:
    """The file of the record that the message is about; all that it says is true."""
    found = re.fullmatch(
        r"(?P<file>.+): layer (?P<layer>\d+), expert (?P<expert>\d+): .*"
        r"offset (?P<offset>0x[0-9a-f]+).*; run again; if it stays, .*copy the file again",
        str(error),
    )
    assert found, str(error)
    row = image.expert_layers.index(int(found["layer"])) * image.config["experts"]
    record = image.experts[row + int(found["expert"])]
    assert record.offset == int(found["offset"], 16)
    assert f"{record.bytes:,} bytes" in str(error)
    assert error.status is not None
    assert error.status.code == code
    assert error.exit_code == 2
    assert Path(found["file"]) == image.paths[record.file] == Path(error.file or "")
    return Path(found["file"])


def fails_and_goes_on(
    image: Image, spoiled: Callable[[Path], AbstractContextManager[None]], code: int
) -> None:
    """A file is spoiled before each token of a text; the text is the same as ever."""
    expected = Engine(Image(image.paths[0]), CONTEXT).infer(TOKENS, all_logits=True)
    files = sorted({image.paths[record.file] for record in image.experts})
    engine, failed = streamed(image), set()
    for at, token in enumerate(TOKENS):
        with spoiled(files[at % len(files)]):
            try:
                logits = engine.infer([token])  # all its experts may be in memory
            except ImageError as error:
                failed.add(told(image, error, code))
                logits = None
        if logits is None:
            assert engine.length() == at
            logits = engine.infer([token])
        assert np.array_equal(logits, expected[at])
    assert failed == set(files)


def test_files_that_lose_their_end(image: Image) -> None:
    """What is mapped would be a SIGBUS here."""
    fails_and_goes_on(image, lambda path: changed(path, shrink), STORAGE)


def test_files_that_change(image: Image) -> None:
    fails_and_goes_on(image, lambda path: changed(path, flip_all), CORRUPT)


def test_files_that_cannot_be_read(image: Image) -> None:
    fails_and_goes_on(image, failing, STORAGE)


def test_files_that_are_replaced(image: Image) -> None:
    """A file that is written to another name and renamed leaves the open one as it was."""
    engine = streamed(image)
    for path in image.paths:
        other = path.with_suffix(".new")
        other.write_bytes(b"something else")
        other.replace(path)
    again = packed(image.paths[0].parent / "again", "monolithic").path
    expected = Engine(Image(str(again)), CONTEXT).infer(TOKENS)
    assert np.array_equal(engine.infer(TOKENS), expected)


def test_an_engine_from_a_path_maps_nothing(one: Image) -> None:
    """Header and tables too are in memory, whatever becomes of the file."""
    path = one.paths[0]
    engine = Engine(path, CONTEXT, weights="streamed", expert_slots=SLOTS)
    assert str(path) not in Path("/proc/self/maps").read_text()
    with changed(path, shrink), pytest.raises(ImageError, match="expert"):
        engine.infer(TOKENS)
    assert len(engine.infer(TOKENS)) == one.vocabulary


@pytest.mark.parametrize("threads", [0, 2])
def test_dense_parts_that_are_not_what_was_packed(one: Image, threads: int) -> None:
    if threads:
        one.read_ahead(threads, time_limit=60)
    path = one.paths[0]
    with changed(path, shrink), pytest.raises(ImageError) as lost:
        streamed(one)
    dense = next(s for s in one.sections if s.name == "weights")
    where = f"{path}: reading failed at offset {dense.offset:#x} ({dense.bytes:,} bytes); run again"
    assert str(lost.value).startswith(where)
    with changed(path, flip_all), pytest.raises(ImageError) as wrong:
        streamed(one)
    assert str(wrong.value).startswith(f"{path}: tensor attention_norm of layer 0 has checksum ")
    assert [e.value.status.code for e in (lost, wrong)] == [STORAGE, CHECKSUM]  # type: ignore[union-attr]
    assert len(streamed(one).infer(TOKENS)) == one.vocabulary


def test_time_limits_out_of_range_are_refused(one: Image) -> None:
    for limit in (0, -1, float("nan"), 1e9):
        with pytest.raises(ImageError, match=r"time_limit is .*; use 0\.001 \.\. 86,400"):
            one.read_ahead(2, time_limit=limit)


# The command line


def run(
    capsys: pytest.CaptureFixture[str], path: Path, *words: str
) -> tuple[int, dict[str, str], str]:
    """Exit code, the JSON's error, and what a person reads."""
    command = ["run", str(path), "--tokens", "1,2,3", "--expert-slots", "4", *words]
    code = cli.main([*command, "--json"])
    printed = capsys.readouterr()
    return code, dict(json.loads(printed.out)["error"]), printed.err


@pytest.mark.parametrize("layout", LAYOUTS)
def test_run_says_which_expert_and_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], layout: LayoutName
) -> None:
    image = packed(tmp_path, layout)
    last = image.paths[-1]
    with last.open("r+b") as file:
        for record in image.experts:
            if image.paths[record.file] == last:
                file.seek(record.offset)
                file.write(b"\xff" * 16)
    code, error, text = run(capsys, image.paths[0])
    assert code == 2
    assert (error["type"], error["file"]) == ("ImageError", str(last))
    assert re.match(r"layer \d+, expert \d+: the [\d,]+ bytes read at offset 0x", error["what"])
    assert error["hint"] == "run again; if it stays, copy the file again"
    assert error["message"] in text.replace("\n", "")


@pytest.mark.parametrize("layout", ["sharded", "hybrid"])
def test_run_says_which_file_is_missing_or_too_short(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], layout: LayoutName
) -> None:
    image = packed(tmp_path, layout)
    last, size = image.paths[-1], image.paths[-1].stat().st_size
    shorter(last)
    for what in ("is too short", "is not there, or cannot be read"):
        code, error, _ = run(capsys, image.paths[0])
        assert code == 2
        assert error["file"] == str(last)
        assert error["what"] == f"companion file {len(image.paths) - 1} {what}"
        assert error["hint"].startswith(f"put the file of {size:,} bytes beside the image")
        last.unlink(missing_ok=True)


# The threads of ports/posix (tests/c/reader.c)


@pytest.mark.parametrize("what", ["engines", "cut", "hang", "close"])
@pytest.mark.parametrize(
    "sanitize", ["", SANITIZERS, pytest.param(THREADS, marks=pytest.mark.long)]
)
def test_readers(tmp_path: Path, what: str, sanitize: str) -> None:
    image = packed(tmp_path, "sharded")
    assert program("reader", what, image.path, SLOTS, sanitize=sanitize) == "ok\n"


# Images and blocks


def test_records_that_overlap_are_found_when_they_are_read(one: Image) -> None:
    """One lies where another does, and its own bytes are nobody's: the lengths add up."""
    data = bytearray(one.read(0, one.bytes))
    table = next(s for s in one.sections if s.name == "experts")
    data[table.offset : table.offset + 8] = data[table.offset + 24 : table.offset + 32]
    image = Image(sealed(data), map=False)
    with pytest.raises(ImageError, match="has checksum"):
        image.verify()
    with pytest.raises(ImageError, match=r"layer 0, expert 0: .* do not match their checksum"):
        streamed(image).infer(TOKENS)


@pytest.mark.parametrize("block", [64, 4096, 65536])
def test_blocks_larger_than_the_memory(tmp_path: Path, block: int) -> None:
    """Slots begin at a multiple of the block, wherever the memory begins; what that takes is
    planned, and a byte less is refused with it."""
    path = tmp_path / "m.colibri"
    pack(GOLDEN / "mixtral", path, quant="q4", placement=Placement.of("monolithic", block))
    image = Image(path, map=False)
    expected = Engine(Image(path), CONTEXT).infer(TOKENS)
    with pytest.raises(DoesNotFitError) as caught:
        Engine(image, CONTEXT, weights="streamed", expert_slots=2, memory=block // 2)
    assert caught.value.status is not None
    need = caught.value.status.need
    with pytest.raises(DoesNotFitError, match=f"give it {need:,} bytes"):
        Engine(image, CONTEXT, weights="streamed", expert_slots=2, memory=need - 1)
    own = need - image.meta_bytes  # memory as a number counts the image's tables too
    memory = np.zeros(own + 2 * 65536, np.uint8)
    for shift in (64, 4096 + 64, 65536 - 64):
        address = -(-memory.ctypes.data // 65536) * 65536 + shift
        region = MemoryRegion("memory", address, own)
        engine = Engine(image, CONTEXT, weights="streamed", expert_slots=2, memory=[region])
        assert np.array_equal(engine.infer(TOKENS), expected)
        assert engine.high_water() == own
