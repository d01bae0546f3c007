# SPDX-License-Identifier: Apache-2.0
"""The command line: its contract (JSON, exit codes) and what it says to bad input."""

from __future__ import annotations

import ast
import json
import re
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colibri import Engine, Image, cli, plan
from colibri.cli.common import WIDTH
from needs import need

PICO = "pimoroni-pico-plus-2"
Packed = Callable[[str], Path]
Colibri = Callable[..., "Outcome"]


class Outcome:
    """What a command left behind."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        assert next(iter(found)) == "schema"
        assert found["schema"] == 1
        return found


@pytest.fixture
def colibri(capsys: pytest.CaptureFixture[str]) -> Colibri:
    """Runs the command in this process."""

    def run(*words: str | Path) -> Outcome:
        capsys.readouterr()
        code = cli.main([str(word) for word in words])
        return Outcome(code, *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def q4(demo_image: Packed) -> Path:
    return demo_image("q4")


@pytest.fixture(scope="session")
def mute(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Path:
    """An image without a tokenizer."""
    from colibri.pack import pack

    path = tmp_path_factory.mktemp("mute") / "mute.colibri"
    pack(root / "tests" / "golden" / "qwen2_moe", path, quant="f32")
    return path


# --- run ----------------------------------------------------------------------------------------


def test_run_repeats_the_reference(
    colibri: Colibri, demo_image: Packed, prompts: list[dict[str, Any]]
) -> None:
    for prompt in prompts[:2]:
        ids, expected = prompt["ids"], prompt["greedy_ids"]
        done = colibri(
            "run", demo_image("f32"), "--tokens", ",".join(map(str, ids)),
            "--max-new-tokens", str(len(expected)), "--ignore-eos", "--json",
        )  # fmt: skip
        assert done.code == 0
        assert done.json["tokens"] == expected


def test_run_contract(colibri: Colibri, q4: Path) -> None:
    """The checksum is that of the rows that the tokens were chosen from, in order."""
    found = colibri("run", q4, "--tokens", "48, 2858,1135", "--max-new-tokens", "5", "--json").json
    engine, feed, crc, tokens = Engine(Image(q4)), [48, 2858, 1135], 0, []
    for _ in range(5):
        row = engine.infer(feed)
        crc = zlib.crc32(row.astype("<f4").tobytes(), crc)
        feed = [int(np.argmax(row))]
        tokens += feed
    assert found["tokens"] == tokens
    assert found["logits_crc32"] == f"{crc:08x}"
    assert found["text"] == Image(q4).tokenizer.decode(tokens)
    assert found["stop_reason"] == "length"
    assert found["measured"]["decode_tok_s"] > 0


def test_run_is_the_same_with_every_kernel_worker_and_batch(colibri: Colibri, q4: Path) -> None:
    words = ("run", q4, "--prompt", "lantern, lamp (noun):", "--max-new-tokens", "6", "--json")
    variants = (["--kernels", "ref"], ["--workers", "3"], ["--batch", "2"], ["--verify"])
    expected = colibri(*words).json
    for variant in variants:
        found = colibri(*words, *variant).json
        for key in ("tokens", "text", "logits_crc32"):
            assert found[key] == expected[key], variant


def test_run_stops_at_a_stop_id_unless_told_not_to(colibri: Colibri, q4: Path) -> None:
    words = ("run", q4, "--tokens", "0,48", "--max-new-tokens", "20", "--temperature", "1",
             "--json")  # fmt: skip
    stopped = next(
        (seed, found)
        for seed in range(200)
        if (found := colibri(*words, "--seed", str(seed)).json)["stop_reason"] == "stop"
    )
    seed, found = stopped
    assert found["tokens"][-1] in Image(q4).stop_ids
    assert len(found["tokens"]) < 20
    longer = colibri(*words, "--seed", str(seed), "--ignore-eos").json
    assert len(longer["tokens"]) == 20
    assert longer["tokens"][: len(found["tokens"])] == found["tokens"]


def test_run_ends_with_a_full_context(colibri: Colibri, q4: Path) -> None:
    found = colibri("run", q4, "--tokens", "1,2,3", "--context", "5", "--json").json
    assert found["stop_reason"] == "context"
    assert len(found["tokens"]) == 3  # two fed back, and one that needs no place
    assert len(colibri("run", q4, "--tokens", "1,2,3", "--context", "3", "--json").json["tokens"])


def test_run_of_no_new_tokens(colibri: Colibri, q4: Path) -> None:
    found = colibri("run", q4, "--tokens", "1", "--max-new-tokens", "0", "--json").json
    assert (found["tokens"], found["text"], found["logits_crc32"]) == ([], "", "00000000")


def test_run_streams_text_to_stdout_and_the_rest_to_stderr(colibri: Colibri, q4: Path) -> None:
    words = ("run", q4, "--prompt", "lantern, lamp (noun):", "--max-new-tokens", "12")
    done, found = colibri(*words), colibri(*words, "--json").json
    assert done.out == found["text"] + "\n"
    assert "measured" in done.err
    assert found["logits_crc32"] in done.err


def test_an_image_without_tokenizer_takes_tokens(colibri: Colibri, mute: Path) -> None:
    found = colibri("run", mute, "--tokens", "1,2", "--max-new-tokens", "3", "--json").json
    assert found["text"] is None
    assert len(found["tokens"]) == 3
    shown = colibri("run", mute, "--tokens", "1,2", "--max-new-tokens", "3")
    assert shown.out == ",".join(map(str, found["tokens"])) + "\n"
    refused = colibri("run", mute, "--prompt", "hello", "--json")
    assert refused.code == 2
    assert "--tokens" in refused.json["error"]["message"]


# --- plan and emulate ---------------------------------------------------------------------------


def test_plan_contract(colibri: Colibri, q4: Path) -> None:
    done = colibri("plan", q4, "--board", PICO, "--context", "128", "--kv", "f16", "--json")
    found = done.json
    assert done.code == 0
    assert list(found)[1:5] == ["fits", "total_bytes", "max_context", "regions"]
    made = plan(q4, PICO, context=128, kv="f16")
    assert found["total_bytes"] == made.total_bytes
    sram = next(region for region in found["regions"] if region["name"] == "SRAM")
    assert sram["size"] == 520 * 1024
    assert sram["used"] == sum(buffer["bytes"] for buffer in sram["buffers"])
    ends = 0
    for buffer in sram["buffers"]:
        assert buffer["offset"] >= ends
        ends = buffer["offset"] + buffer["bytes"]
    assert next(b for b in sram["buffers"] if b["name"] == "kv_cache")["bytes"] == 192 * 1024


def test_plan_as_text_names_every_buffer(colibri: Colibri, q4: Path) -> None:
    done = colibri("plan", q4, "--board", PICO, "--context", "128", "--kv", "f16")
    for word in ("SRAM", "PSRAM", "FLASH", "kv_cache", "196,608", "image", "longest context"):
        assert word in done.out
    assert max(map(len, done.out.splitlines())) <= WIDTH


def test_what_does_not_fit_exits_1_and_says_what_would(colibri: Colibri, q4: Path) -> None:
    words = (q4, "--board", PICO, "--batch", "4096")
    done = colibri("plan", *words)
    assert done.code == 1
    assert "does not fit" in done.out
    assert "--batch" in done.out
    found = colibri("plan", *words, "--json")
    assert found.code == 1
    assert found.json["fits"] is False
    assert found.json["advice"]
    batch = found.json["advice"][-1].split()[1]
    assert colibri("plan", q4, "--board", PICO, "--batch", batch).code == 0


def test_emulate_contract(colibri: Colibri, q4: Path) -> None:
    common = ("--tokens", "48,2858,1135", "--max-new-tokens", "6", "--context", "64",
              "--kv", "f16", "--json")  # fmt: skip
    done = colibri("emulate", q4, "--board", PICO, *common)
    found, host = done.json, colibri("run", q4, *common).json
    assert done.code == 0
    for key in ("tokens", "text", "logits_crc32", "stop_reason"):
        assert found[key] == host[key]
    assert found["fits"] is True
    assert found["machine"] == "native"
    assert found["high_water"] == found["total_bytes"]
    for speed in ("prefill_tok_s", "decode_tok_s"):
        assert found["predicted"][speed].keys() == {"low", "mid", "high"}
    assert all(item["class"] for item in found["predicted"]["inputs"])


def test_emulate_as_text_says_what_is_counted_and_what_predicted(
    colibri: Colibri, q4: Path
) -> None:
    done = colibri("emulate", q4, "--board", PICO, "--tokens", "1,2", "--max-new-tokens", "3")
    for word in ("counted", "predicted", "assumed", "theoretical", "high water"):
        assert word in done.out
    assert "measured" not in done.out.replace("not measured", "")
    assert max(map(len, done.out.splitlines())) <= WIDTH


def test_emulate_refuses_before_running(colibri: Colibri, q4: Path) -> None:
    done = colibri("emulate", q4, "--board", PICO, "--tokens", "1", "--batch", "4096", "--json")
    assert done.code == 1
    found = done.json
    assert found["fits"] is False
    assert found["tokens"] == []
    short = found["shortfall"]
    assert short["buffer"]
    assert short["missing"] == short["need"] - short["have"] > 0
    assert short["advice"]


def test_emulated_cpu_says_the_same_as_the_twin(colibri: Colibri, q4: Path) -> None:
    need("module:unicorn", "module:ziglang")
    words = ("emulate", q4, "--board", PICO, "--tokens", "48,2858", "--max-new-tokens", "2",
             "--context", "32", "--batch", "2", "--json")  # fmt: skip
    twin, done = colibri(*words).json, colibri(*words, "--machine", "cpu")
    assert done.code == 0, done.err
    cpu = done.json
    for key in ("tokens", "text", "logits_crc32", "stop_reason", "high_water", "total_bytes"):
        assert cpu[key] == twin[key]
    assert cpu["machine"] == "cpu"
    assert cpu["predicted"] is None
    assert cpu["counted"]["instructions"] > 1_000_000
    assert 0 < cpu["counted"]["stack_high_water"] <= cpu["counted"]["stack_bytes"]


# --- bad input ----------------------------------------------------------------------------------

TOKENS = ("--tokens", "1,2,3")
BAD_RUNS = {
    "no prompt": ((), "exactly one"),
    "two prompts": ((*TOKENS, "--prompt", "x"), "exactly one"),
    "empty prompt": (("--prompt", ""), "no tokens"),
    "prompt of lone surrogates": (("--prompt", "a\udcff"), "Unicode"),
    "empty tokens": (("--tokens", ""), "1,2,3"),
    "blank tokens": (("--tokens", " "), "1,2,3"),
    "hole in tokens": (("--tokens", "1,,2"), "position 1"),
    "word": (("--tokens", "1,two"), "'two' at position 1"),
    "fraction": (("--tokens", "1.5"), "1.5"),
    "exponent": (("--tokens", "1e3"), "1e3"),
    "negative token": (("--tokens", "-1,2"), "-1"),
    "other digits": (("--tokens", "１"), "position 0"),
    "underscore": (("--tokens", "1_0"), "1_0"),
    "token out of range": (("--tokens", "1,4096"), "0 to 4095"),
    "token beyond 32 bits": (("--tokens", "9999999999"), "0 to 4095"),
    "token without end": (("--tokens", "9" * 5000), "position 0"),
    "negative count": ((*TOKENS, "--max-new-tokens", "-1"), "max-new-tokens"),
    "count of words": ((*TOKENS, "--max-new-tokens", "many"), "max-new-tokens"),
    "temperature nan": ((*TOKENS, "--temperature", "nan"), "temperature"),
    "temperature inf": ((*TOKENS, "--temperature", "inf"), "temperature"),
    "temperature below 0": ((*TOKENS, "--temperature", "-1"), "temperature"),
    "top_p nan": ((*TOKENS, "--top-p", "nan"), "top_p"),
    "top_p below 0": ((*TOKENS, "--top-p", "-0.1"), "top_p"),
    "top_p above 1": ((*TOKENS, "--top-p", "95"), "top_p"),
    "top_k below 0": ((*TOKENS, "--top-k", "-1"), "top-k"),
    "seed below 0": ((*TOKENS, "--seed", "-1"), "seed"),
    "seed of 65 bits": ((*TOKENS, "--seed", str(2**64)), "seed"),
    "no workers": ((*TOKENS, "--workers", "0"), "workers"),
    "too many workers": ((*TOKENS, "--workers", "65"), "at most 64"),
    "no context": ((*TOKENS, "--context", "0"), "context"),
    "context beyond the model": ((*TOKENS, "--context", "1025"), "at most 1024"),
    "context beyond 32 bits": ((*TOKENS, "--context", str(2**32 + 1)), "context"),
    "no batch": ((*TOKENS, "--batch", "0"), "batch"),
    "batch beyond the limit": ((*TOKENS, "--batch", "4097"), "at most 4096"),
    "kv type": ((*TOKENS, "--kv", "q5"), "q8"),
    "kernels": ((*TOKENS, "--kernels", "none"), "ref"),
    "prompt beyond the context": ((*TOKENS, "--context", "2"), "3 tokens, the context holds 2"),
    "unknown option": ((*TOKENS, "--nope"), "--nope"),
}  # fmt: skip


def assert_refused(done: Outcome, message: str) -> None:
    """Exit 2, one object, one line of text for people, no traceback."""
    assert done.code == 2
    assert message in done.json["error"]["message"]
    assert done.err.startswith("error: ")
    assert message in done.err
    assert "Traceback" not in done.err
    assert "internal error" not in done.err


@pytest.mark.parametrize("case", BAD_RUNS)
def test_run_refuses(colibri: Colibri, q4: Path, case: str) -> None:
    words, message = BAD_RUNS[case]
    assert_refused(colibri("run", q4, *words, "--json"), message)


@pytest.mark.parametrize(
    "case", ["two prompts", "token out of range", "top_p nan", "prompt beyond the context"]
)
def test_emulate_refuses_the_same(colibri: Colibri, q4: Path, case: str) -> None:
    words, message = BAD_RUNS[case]
    assert_refused(colibri("emulate", q4, "--board", PICO, *words, "--json"), message)


@pytest.mark.parametrize("command", ["run", "plan", "emulate"])
@pytest.mark.parametrize(
    ("kind", "message"),
    [("missing", "No such file"), ("folder", "directory"), ("empty", "truncated"),
     ("text", "not a Colibri image"), ("cut", "truncated"), ("flipped", "checksum")],
)  # fmt: skip
def test_bad_images(
    colibri: Colibri, q4: Path, tmp_path: Path, command: str, kind: str, message: str
) -> None:
    data = bytearray(q4.read_bytes())
    data[70] ^= 1  # in the tables
    content = {
        "empty": b"", "text": b"GGUF" * 4096, "cut": q4.read_bytes()[:100_000],
        "flipped": bytes(data),
    }  # fmt: skip
    path = tmp_path if kind == "folder" else tmp_path / kind
    if kind in content:
        path.write_bytes(content[kind])
    words = {"run": TOKENS, "plan": ("--board", PICO), "emulate": ("--board", PICO, *TOKENS)}
    done = colibri(command, path, *words[command], "--json")
    assert done.code == 2
    assert str(path) in done.json["error"]["message"]
    assert message.lower() in done.json["error"]["message"].lower()
    assert "internal error" not in done.err


def test_a_damaged_weight_is_found_when_asked_for(
    colibri: Colibri, q4: Path, tmp_path: Path
) -> None:
    data = bytearray(q4.read_bytes())
    data[-5] ^= 1
    path = tmp_path / "damaged.colibri"
    path.write_bytes(data)
    assert_refused(colibri("run", path, *TOKENS, "--verify", "--json"), "checksum")
    assert_refused(colibri("emulate", path, "--board", PICO, *TOKENS, "--json"), "checksum")
    assert colibri("run", path, *TOKENS, "--max-new-tokens", "1").code in (0, 2)


@pytest.mark.parametrize(
    ("words", "message"),
    [(("--machine", "cpu", "--kernels", "ref"), "--kernels"), (("--engine", "qemu"), "--engine"),
     (("--machine", "gpu"), "--machine")],
)  # fmt: skip
def test_emulate_refuses_options_of_the_other_machine(
    colibri: Colibri, q4: Path, words: tuple[str, ...], message: str
) -> None:
    assert_refused(colibri("emulate", q4, "--board", PICO, *TOKENS, *words, "--json"), message)


def test_emulation_of_nothing_predicts_nothing(colibri: Colibri, q4: Path) -> None:
    words = ("emulate", q4, "--board", PICO, *TOKENS, "--max-new-tokens", "0")
    found = colibri(*words, "--json").json
    assert found["tokens"] == []
    assert found["predicted"] is None
    assert found["high_water"] == found["total_bytes"]
    assert colibri(*words).code == 0


@pytest.mark.parametrize(
    ("board", "message"),
    [("pimoroni-pico", "did you mean 'pimoroni-pico-plus-2'"), ("nowhere.toml", "No such file"),
     ("", "unknown board"), ("../" * 40, "folder")],
)  # fmt: skip
@pytest.mark.parametrize("command", ["plan", "emulate"])
def test_bad_boards(colibri: Colibri, q4: Path, command: str, board: str, message: str) -> None:
    words = TOKENS if command == "emulate" else ()
    done = colibri(command, q4, "--board", board, *words, "--json")
    assert_refused(done, message)


def test_a_board_given_as_a_path(colibri: Colibri, q4: Path, root: Path) -> None:
    path = root / "board_configs" / "boards" / f"{PICO}.toml"
    by_path = colibri("plan", q4, "--board", path, "--json").json
    assert by_path == colibri("plan", q4, "--board", PICO, "--json").json


@pytest.mark.parametrize(
    ("words", "message"),
    [(("plann",), "did you mean 'plan'"), (("plan",), "IMAGE"), (("run", "--json"), "IMAGE"),
     (("emulate", "x"), "--board"), (("emulate", "x", "--board", "y", "--machine", "z"), "cpu")],
)  # fmt: skip
def test_usage_errors(colibri: Colibri, words: tuple[str, ...], message: str) -> None:
    done = colibri(*words)
    assert done.code == 2
    assert message in done.err
    assert "Traceback" not in done.err


def test_an_error_of_our_own_is_no_verdict(
    colibri: Colibri, q4: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python would exit 1 for a bug, which means "does not fit" here."""

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr("colibri.planner.plan", broken)
    done = colibri("plan", q4, "--board", PICO, "--json")
    assert done.code == 2
    assert "internal error" in done.json["error"]["message"]
    assert "boom" in done.err


# --- the program itself -------------------------------------------------------------------------

PROGRAM = (sys.executable, "-c", "import sys; from colibri.cli import main; sys.exit(main())")


def test_exit_codes_and_streams_of_the_program(q4: Path) -> None:
    done = subprocess.run(
        [*PROGRAM, "run", str(q4), "--tokens", "x", "--json"], capture_output=True, check=False
    )
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]
    assert done.stderr.decode().count("\n") == 1


def test_a_closed_pipe_is_quiet(q4: Path) -> None:
    line = f"'{PROGRAM[0]}' -c '{PROGRAM[2]}' run '{q4}' --tokens 1 --max-new-tokens 200 | true"
    done = subprocess.run(["bash", "-c", line], capture_output=True, check=False)
    assert b"Traceback" not in done.stderr
    assert b"Exception" not in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_no_unfinished_image(tmp_path: Path, number: int) -> None:
    checkpoint = Path(__file__).parents[2] / "models/demo-moe"
    command = [*PROGRAM, "pack", str(checkpoint), "-o", str(tmp_path / "image")]
    packing = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    until = time.monotonic() + 60
    while not any(tmp_path.iterdir()) and time.monotonic() < until:
        time.sleep(0.005)
    assert [path.suffix for path in tmp_path.iterdir()] == [".tmp"]
    packing.send_signal(number)
    _, err = packing.communicate(timeout=60)
    assert packing.returncode == 128 + number
    assert b"Traceback" not in err
    assert not list(tmp_path.iterdir())


def test_signals_of_the_caller_stay(colibri: Colibri) -> None:
    def ours(number: int, frame: object) -> None:
        raise AssertionError

    before = signal.signal(signal.SIGTERM, ours)
    try:
        assert colibri("boards", "list").code == 0
        assert signal.getsignal(signal.SIGTERM) is ours
    finally:
        signal.signal(signal.SIGTERM, before)
    assert colibri("boards", "list").code == 0
    assert signal.getsignal(signal.SIGTERM) == before


def test_help_imports_no_command() -> None:
    code = (
        "import sys; from colibri.cli import main; code = main(['--help']); "
        "print(sorted(m for m in sys.modules if m.startswith('colibri.cli.')), file=sys.stderr); "
        "sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stderr.strip() == "['colibri.cli.common']"
    for name in cli.COMMANDS:
        assert name in done.stdout


# --- demo ---------------------------------------------------------------------------------------


def test_demo_says_what_to_install(
    colibri: Colibri, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("colibri.cli.demo_steps.find_spec", lambda _: None)
    done = colibri("demo", "-o", tmp_path / "demo", "--json")
    assert_refused(done, 'pip install "colibri-sdk[cross,cpu]"')
    assert not (tmp_path / "demo").exists()


def test_demo_notices_other_tokens(tmp_path: Path) -> None:
    from colibri.cli.demo_steps import Demo

    demo = Demo(tmp_path)
    pack, run = demo.plan_of_steps[1], demo.plan_of_steps[-7]
    demo.plan_of_steps = [pack, run, run]
    first, second, third = demo.steps()
    assert (first.same_tokens, second.same_tokens, third.same_tokens) == (None, None, True)
    assert demo.ok
    demo.reference.crc ^= 1
    demo.plan_of_steps = [run]
    assert next(demo.steps()).same_tokens is False
    assert not demo.ok


@pytest.mark.long
def test_demo_from_checkpoint_to_firmware(colibri: Colibri, tmp_path: Path) -> None:
    need("module:unicorn", "module:ziglang")
    done = colibri("demo", "-o", tmp_path / "demo", "--json")
    assert done.code == 0, done.err
    found = done.json
    assert found["ok"]
    compared = [step for step in found["steps"] if step["same_tokens"] is not None]
    assert len(compared) == 4
    assert all(step["same_tokens"] for step in compared)
    assert len(found["tokens"]) == 24


# --- walks --------------------------------------------------------------------------------------

PLACE = re.compile(r"`([\w./-]+\.(?:py|c|h|S|toml))(?::([\w.]+))?`")


@pytest.mark.parametrize("walk", ["follow-a-token", "follow-a-board", "follow-an-elf"])
def test_every_step_of_a_walk_is_in_the_code(root: Path, walk: str) -> None:
    text = (root / "docs" / f"{walk}.md").read_text("utf-8")
    numbers = [int(number) for number in re.findall(r"^(\d+)\. ", text, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    places = PLACE.findall(text)
    assert len(places) >= len(numbers) / 2
    for file, name in places:
        path = root / file
        assert path.is_file(), file
        if name:
            assert defined(path, name), f"{file}:{name}"


def defined(path: Path, name: str) -> bool:
    """Whether a file defines a function, a class, or a member of a class."""
    text = path.read_text("utf-8")
    if path.suffix != ".py":
        return re.search(rf"^[\w *]+\b{name}\([^;]*\)\s*\{{", text, re.MULTILINE) is not None
    body: list[ast.stmt] = ast.parse(text).body
    for part in name.split("."):
        kinds = (ast.FunctionDef, ast.ClassDef)
        found = [node for node in body if isinstance(node, kinds) and node.name == part]
        if not found:
            return False
        body = found[0].body
    return True
