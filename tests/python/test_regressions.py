# SPDX-License-Identifier: Apache-2.0
"""Faults that were found from outside; each test is named after one."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import colibri
from board_text import WHOLE, changed, write
from checkpoints import CONFIG, no_selftest, random_tensors
from checkpoints import write as write_checkpoint
from colibri import cli
from colibri.errors import (
    ColibriError,
    EngineError,
    PlanError,
)  # fmt: skip
from colibri.pack import pack
from colibri_emulator.build_firmware import build_firmware
from colibri_emulator.mailbox import TOKENS, Request
from needs import need


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A small model."""
    return write_checkpoint(tmp_path / "checkpoint", CONFIG, random_tensors(CONFIG))


@pytest.fixture
def image(checkpoint: Path, tmp_path: Path) -> Path:
    pack(checkpoint, tmp_path / "small.colibri")
    return tmp_path / "small.colibri"


def run(*words: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, which must end soon."""
    command = [sys.executable, "-c", "import sys; from colibri.cli import main; sys.exit(main())"]
    options = {"capture_output": True, "text": True, "timeout": 60, **options}
    return subprocess.run([*command, *map(str, words)], check=False, **options)


@contextmanager
def refused(*words: str) -> Iterator[None]:
    """What runs inside is refused, with all of the words in the message."""
    with pytest.raises(ColibriError) as caught:
        yield
    for word in words:
        assert word in str(caught.value)


# --- output that takes the place of something -------------------------------------------------


def test_pack_does_not_replace_a_device(checkpoint: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with refused("is a pipe or a device"):
        pack(checkpoint, tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()


def test_pack_does_not_replace_its_input(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text('quant = "q8"')
    for name in ("model.safetensors", "config.json", "../recipe.toml"):
        path = checkpoint / name
        before = path.read_bytes()
        recipe = tmp_path / "recipe.toml"
        with refused("is an input"):
            pack(checkpoint, path, recipe=recipe)
        assert path.read_bytes() == before


def test_pack_writes_through_a_link(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("real.colibri")
    with refused("broken link"):
        pack(checkpoint, tmp_path / "link")
    (tmp_path / "real.colibri").write_bytes(b"old")
    pack(checkpoint, tmp_path / "link", selftest=no_selftest)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real.colibri").stat().st_size > 1000


def test_pack_names_the_image_when_it_cannot_be_made(checkpoint: Path, tmp_path: Path) -> None:
    target = tmp_path / ("x" * 255)  # a temporary name, longer still, does not exist
    with refused(f"{target}: cannot be written"):
        pack(checkpoint, target)


def test_build_in_the_current_folder_and_through_links(
    image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("module:ziglang")
    board = colibri.load_board("pimoroni-pico-plus-2")
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    with refused("is the current folder"):
        build_firmware(board, image, ".")
    assert not list(tmp_path.rglob(".*"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("here")
    build_firmware(board, image, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (here / "firmware.elf").exists()
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".")]


def test_build_blames_the_output_for_a_full_disk(
    image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("module:ziglang")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", str(image))

    monkeypatch.setattr("shutil.copyfile", full)
    board = colibri.load_board("pimoroni-pico-plus-2")
    with refused(f"{tmp_path / 'out'}: cannot"):
        build_firmware(board, image, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# --- input that never ends, or is no text -----------------------------------------------------


@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "tokenizer.json", "generation_config.json"]
)
def test_a_pipe_in_a_checkpoint_does_not_hang(checkpoint: Path, tmp_path: Path, name: str) -> None:
    (checkpoint / name).unlink(missing_ok=True)
    os.mkfifo(checkpoint / name)
    done = run("pack", checkpoint, "-o", tmp_path / "x.colibri")
    assert (done.returncode, "is a pipe or a device" in done.stderr) == (2, True)


def test_a_recipe_that_never_ends_does_not_hang(checkpoint: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "deep").write_text("x = " + "[" * 100_000)
    (tmp_path / "long").write_text("#" * (2 << 20))
    for recipe in (tmp_path / "pipe", Path("/dev/zero"), tmp_path / "deep", tmp_path / "long"):
        done = run("pack", checkpoint, "-o", tmp_path / "x.colibri", "--recipe", recipe)
        assert (done.returncode, str(recipe) in done.stderr) == (2, True)
        assert "internal error" not in done.stderr


def test_group_0_is_not_the_default(checkpoint: Path, tmp_path: Path) -> None:
    with refused("group: is 0; valid is 32, 64, 128"):
        pack(checkpoint, tmp_path / "x", group=0)


def test_paths_that_are_not_utf8(checkpoint: Path, tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff.colibri")
    with refused("not UTF-8", "rename"):
        pack(checkpoint, tmp_path / name)
    with refused("not UTF-8", "rename"):
        colibri.Image(tmp_path / name)
    folder = checkpoint.rename(tmp_path / os.fsdecode(b"check\xff"))
    pack(folder, tmp_path / "x.colibri")
    assert colibri.Image(tmp_path / "x.colibri").notes["checkpoint"] == "check?"


def test_a_lone_surrogate_in_config_json(tmp_path: Path) -> None:
    config = CONFIG | {"model_type": "\ud800"}
    folder = write_checkpoint(tmp_path / "checkpoint", config, random_tensors(config))
    pack(folder, tmp_path / "x.colibri")
    assert colibri.Image(tmp_path / "x.colibri").notes["model_type"] == "?"


@pytest.mark.parametrize(
    "change", [{"hidden_size": 1}, {"num_attention_heads": 2**31}, {"rope_theta": 1e-320}]
)
def test_config_values_that_break_arithmetic(tmp_path: Path, change: dict[str, Any]) -> None:
    folder = write_checkpoint(tmp_path / "checkpoint", CONFIG | change, random_tensors(CONFIG))
    with refused("config.json: ", "valid is"):
        pack(folder, tmp_path / "x")


def test_a_model_that_does_not_run_is_named_by_its_image(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG)
    tensors["model.layers.0.mlp.shared_expert.up_proj.weight"][:] = 3e38
    folder = write_checkpoint(tmp_path / "checkpoint", CONFIG, tensors)
    with refused(f"{tmp_path / 'x'}: the model does"):
        pack(folder, tmp_path / "x", quant="f32")
    assert not list(tmp_path.glob(".*"))


def test_messages_stay_short() -> None:
    assert len(str(ColibriError("x" * 10**6, field="y" * 10**6, hint="z" * 10**6))) < 30_000


# --- output that nobody, or a terminal, reads -------------------------------------------------


@pytest.mark.parametrize("json_option", [[], ["--json"]])
def test_stdout_that_is_full(json_option: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = run(
            "boards", *json_option, stdout=full, stderr=subprocess.PIPE, capture_output=False
        )
    assert (done.returncode, "No space left" in done.stderr) == (2, True)
    assert "Traceback" not in done.stderr


def test_stdout_that_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert cli.main(["boards", "--json"]) == 0


def test_stdout_that_has_no_such_characters(image: Path) -> None:
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = run("plan", image, "--board", "pimoroni-pico-plus-2", env=ascii_only)
    assert (done.returncode, "fits" in done.stdout) == (0, True)


def test_no_text_steers_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    from colibri.cli.common import console, table

    monkeypatch.setattr(sys, "stdout", io.StringIO())
    rows = table("title\x1b[31m", "head")
    rows.add_row("cell \x1b]0;x\x07 \ud800")
    console().print(rows)
    shown = sys.stdout.getvalue()
    assert "cell" in shown
    assert not [
        char for char in shown if char != "\n" and not (" " <= char < "\x7f" or char == "\ufffd")
    ]


# --- a board's last bytes ---------------------------------------------------------------------


def grown(text: str, region: str, size: int) -> str:
    """The board with a region of `size` bytes."""
    old = {"SRAM": 'size = "64 KiB"', "FLASH": 'size = "1 MiB"'}[region]
    assert old in text
    return text.replace(old, f"size = {size}")


IN_RAM = changed('model_region = "FLASH"', 'model_region = "SRAM"')
EXACT: dict[str, tuple[str, str, int, str | None]] = {
    # what is short: board, region that grows, size to start from, part that is named first
    "engine": (WHOLE, "SRAM", 9000, None),
    "image": (WHOLE, "FLASH", 60 << 10, "image"),
    "code": (WHOLE, "FLASH", 20 << 10, "code"),
    "image in RAM": (
        changed('model_region = "FLASH"', 'model_region = "SRAM"'),
        "SRAM",
        9000,
        "image",
    ),
}


@pytest.mark.parametrize("case", EXACT)
def test_the_reported_shortfall_is_exact(image: Path, tmp_path: Path, case: str) -> None:
    """Memory grows by what is missing; each part is asked for once, and then it fits."""
    from colibri_emulator.twin import unfit_report

    text, region, size, first = EXACT[case]
    parts: list[str] = []
    opened = colibri.Image(image)
    for _ in range(4):
        made = colibri.plan(opened, write(tmp_path, grown(text, region, size)))
        if made.fits:
            break
        short = unfit_report(opened, made, "native").shortfall
        assert short is not None
        assert (short.region, short.need - short.have) == (region, short.missing)
        assert f"{short.missing:,} " in "".join(made.advice)
        parts.append(short.buffer)
        size += short.missing
    assert made.fits
    assert len(parts) == len(set(parts)) > 0
    assert first is None or parts[0] == first
    assert not colibri.plan(opened, write(tmp_path, grown(text, region, size - 64))).fits


def test_ram_that_is_used_up_is_called_by_its_name(image: Path, tmp_path: Path) -> None:
    text = changed('model_region = "FLASH"', 'model_region = "SRAM"')
    size = 8192 + colibri.Image(image).bytes
    done = run(
        "emulate", image, "--board", write(tmp_path, grown(text, "SRAM", size)), "--tokens", "1",
        "--json",
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert (done.returncode, found["fits"]) == (1, False)
    assert (found["shortfall"]["region"], found["shortfall"]["have"]) == ("SRAM", 0)


def test_a_system_that_fits_no_piece_of_memory(image: Path, tmp_path: Path) -> None:
    """os_reserve_bytes below the sum of all DRAM, above each of its pieces."""
    text = LINUX.format(reserved='reserved = [{ offset = "1 MiB", size = 4096, reason = "hole" }]')
    made = colibri.plan(image, write(tmp_path, text))
    assert (made.fits, made.lack and made.lack.part) == (False, "os")


LINUX = """
schema_version = 1
id = "bench"
name = "Bench"
vendor = "Us"
os = "linux"

[[cores]]
id = "a53"
isa = "armv8-a"
cpu = "cortex-a53"
count = 1
freq_hz = 100_000_000
line_bytes = 64
source = "datasheet"

[[regions]]
name = "DDR"
kind = "dram"
base = 0x80000000
size = "2 MiB"
access = "rwx"
rank = 0
source = "datasheet"
{reserved}

[firmware]
target = "aarch64-linux-musl"
os_reserve_bytes = 1_500_000
os_reserve_reason = "kernel"
os_reserve_source = "none"
"""


# --- requests ---------------------------------------------------------------------------------


def test_max_new_tokens_below_0_is_refused(image: Path) -> None:
    engine = colibri.Engine(image)
    for bad in (-1, 1.5, True):
        with refused("max_new_tokens: is"):
            engine.generate([1], max_new_tokens=bad)


def test_a_sequence_that_is_not_there_is_an_engine_error(image: Path) -> None:
    engine = colibri.Engine(image)
    calls: list[Callable[[int], object]] = [
        engine.reset, engine.length, lambda s: engine.infer([1], sequence=s),
    ]  # fmt: skip
    for call in calls:
        for bad in (-1, 1, 2**40):
            with pytest.raises(EngineError, match=rf"sequence {bad} is unknown; use 0 \.\. 0"):
                call(bad)


def test_no_hint_that_does_not_work(image: Path) -> None:
    """A context longer than the model's own, an option that there is not, -1 tokens."""
    engine = colibri.Engine(image, context=8)
    with refused("or give a --context of 20"):
        engine.generate([1] * 20)
    with pytest.raises(EngineError) as caught:
        engine.generate([1] * 65)
    assert "--context" not in str(caught.value)
    with refused(f"at most {TOKENS} together"):
        Request(prompt=[1] * TOKENS, max_new_tokens=3).pack()
    with pytest.raises(EngineError) as caught:
        colibri.sample([float("nan")])
    assert "--verify" not in str(caught.value)
    with pytest.raises(PlanError, match=r"at most 2\^32 - 1"):
        colibri.Engine(image, context=2**32)


# --- emulated CPUs ----------------------------------------------------------------------------

CORTEX_M = changed(
    'target = "cortex-m33"', 'target = "cortex-m33"\nunicorn_cpu = "cortex-m33"'
).replace('reserve_bytes = "4 KiB"', 'reserve_bytes = "16 KiB"')


def emulated(image: Path, board: Path, *words: str) -> dict[str, Any]:
    done = run("emulate", image, "--board", board, "--tokens", "1", "--max-new-tokens", "1",
               "--machine", "cpu", "--kv", "q8", "--batch", "1", "--json", *words)  # fmt: skip
    assert "internal error" not in done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found | {"code": done.returncode}


def test_a_region_over_the_system_control_block(image: Path, tmp_path: Path) -> None:
    need("module:ziglang", "module:unicorn")
    text = (
        CORTEX_M
        + """
[[regions]]
name = "X"
kind = "sram"
base = 0xE0000000
size = "1 MiB"
access = "rw"
rank = 2
source = "none"
"""
    )
    found = emulated(image, write(tmp_path, text))
    assert (found["code"], "system control block" in found["error"]["message"]) == (2, True)


def test_a_stack_overflow_is_called_so(image: Path, tmp_path: Path) -> None:
    need("module:ziglang", "module:unicorn")
    text = CORTEX_M.replace('stack_bytes = "4 KiB"', "stack_bytes = 512")
    found = emulated(image, write(tmp_path, text))
    assert (found["code"], found["logits_crc32"]) == (1, None)
    assert "stack overflow: firmware.stack_bytes" in found["fault"]


def test_ctrl_c_stops_an_emulated_cpu(demo_image: Callable[[str], Path]) -> None:
    need("module:ziglang", "module:unicorn")
    from colibri.planner import plan
    from colibri.sampling import Sampling
    from colibri_emulator.cpu import run_cpu

    board = colibri.load_board("pimoroni-pico-plus-2")
    image = colibri.Image(demo_image("q4"))
    request = colibri.generate.Request([1] * 400, Sampling(), 400)
    made = plan(image, board)
    threading.Timer(3.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_cpu(image, board, request, made)
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    ("board", "tools"),
    [("pimoroni-pico-plus-2", ["module:unicorn"]), ("raspberry-pi-5-2gb", ["qemu-aarch64"])],
)
def test_firmware_stops_at_every_stop_id(tmp_path: Path, board: str, tools: list[str]) -> None:
    """The runners kept the first 16, or 64, ids of a long list and went on after the others."""
    need("module:ziglang", *tools)
    config = CONFIG | {"vocab_size": 400, "eos_token_id": list(range(400))}
    folder = write_checkpoint(tmp_path / "checkpoint", config, random_tensors(config))
    pack(folder, tmp_path / "small.colibri")
    words = ["--board", board, "--max-new-tokens", "5", "--temperature", "100", "--json"]
    found = []
    for machine in ("native", "cpu"):
        for token in ("1", "2", "3"):
            where = ["--tokens", token, "--machine", machine]
            done = run("emulate", tmp_path / "small.colibri", *where, *words)
            report = json.loads(done.stdout)
            found.append((machine, report["tokens"], report["stop_reason"]))
    half = len(found) // 2
    assert [row[1:] for row in found[:half]] == [row[1:] for row in found[half:]]
    assert all(row[1][0] >= 64 for row in found)
    assert all(row[2] == "stop" and len(row[1]) == 1 for row in found)
