# SPDX-License-Identifier: Apache-2.0
"""The project file: every key, what it refuses and how it says so, budgets over budgets."""

from __future__ import annotations

import copy
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

import board_text
from colibri import cli
from colibri.errors import BoardError, ProjectError
from colibri.project import load_project
from colibri.project.loader import LoadedProject
from colibri.project.model import Limits, Model, Project, ProjectBoard, Ratchet, Run, Symbols
from colibri.project.schema import project_schema, schema_text
from colibri.project.start import write_start

ROOT = Path(__file__).resolve().parents[2]
SCHEMA_FILE = ROOT / "sdk" / "python" / "colibri" / "project" / "project.schema.json"
PICO = "pimoroni-pico-plus-2"
SMALL = f"""
schema_version = 1
name = "small"
[model]
image = "a.colibri"
[boards.{PICO}]
build = false
"""
#: Every key of every table, once.
WHOLE = """
schema_version = 1
name = "whole-1"
[model]
checkpoint = "models/ä b"
quant = "q4"
group = 64
recipe = "r.toml"
calibrate = "t.txt"
layout = "sharded"
shard_size = "1 MiB"
block = 4096
heat = "h.trace"
pin = "p.trace"
[limits]
context = 128
batch = 8
workers = 2
kv = "f16"
memory = "64 MiB"
expert_slots = 4
policy = "lru"
prefetch = true
[run]
prompt = "hello"
max_new_tokens = 4
temperature = 0.5
top_k = 3
top_p = 0.9
seed = 7
[application]
SRAM = "4 KiB"
PSRAM = 100
[groups]
runtime = ["symbol:colibri_*"]
"my drivers" = ["*/drivers/*", "libhal.a"]
[symbols]
forbidden = ["*_debug"]
allowed = ["_sbrk"]
required = { Reset_Handler = "FLASH", main = "" }
no_writable = ["libcodec.a"]
may_need = ["mem*"]
[stack]
limit = "4 KiB"
warn = 2048
fpu = true
interrupt_frame = 32
calls = { f = ["g"] }
groups = { a = ["b"] }
frames = { f = "1 KiB" }
recursion = { f = 3 }
entries = { main = {}, irq = { priority = 1, limit = "1 KiB" } }
[ratchet]
file = "f.json"
tolerance = { "region.*" = "2 %", code = "1 KiB", image = 5 }
[budgets]
image_bytes = { warn = 1, limit = 2 }
stack_bytes = "8 KiB"
stack_depth = { limit = "90 %" }
code_bytes = 100
arena_bytes = 100
tok_s = { warn = 8, limit = 4.5 }
first_token_s = 1
deadline_s = 2.5
regions.SRAM = "90 %"
spans.FLASH = "1 MiB"
groups.runtime = "64 KiB"
[boards.one]
board = "pimoroni-pico-plus-2"
build = true
toolchain = "zig"
kernels = "auto"
weights = "mapped"
emulate = ["native", "cpu"]
[boards.one.limits]
context = 64
[boards.one.application]
SRAM = 1
[boards.one.symbols]
forbidden = ["x"]
[boards.one.budgets]
regions.PSRAM = "50 %"
[boards.two]
board = "pimoroni-pico-plus-2"
elf = "fw.elf"
map = "fw.map"
su = ["build"]
emulate = []
"""


def load(folder: Path, text: str) -> LoadedProject:
    file = folder / "colibri.toml"
    file.write_text(text, encoding="utf-8")
    return load_project(file)


def refused(folder: Path, text: str) -> str:
    with pytest.raises(ProjectError) as caught:
        load(folder, text)
    assert caught.value.exit_code == 2
    said = str(caught.value)
    assert "colibri.toml" in said
    return said


def mark(budgets: Any, table: str, name: str) -> tuple[Any, Any]:
    return tuple(getattr(budgets, table)[name].marks(1000))


# --- what a file may say -------------------------------------------------------------------------


def test_every_key_arrives(tmp_path: Path) -> None:
    loaded = load(tmp_path, WHOLE)
    project = loaded.project
    assert project.name == "whole-1"
    assert project.model is not None
    assert loaded.path(project.model.checkpoint or Path()) == tmp_path / "models/ä b"
    assert project.model.packing == {
        "quant": "q4", "group": 64, "recipe": Path("r.toml"), "calibrate": Path("t.txt"),
        "layout": "sharded", "shard_size": 1 << 20, "block": 4096, "heat": Path("h.trace"),
        "pin": Path("p.trace"),
    }  # fmt: skip
    assert project.limits == Limits(context=128, batch=8, workers=2, kv="f16", memory=64 << 20,
                                    expert_slots=4, policy="lru", prefetch=True)  # fmt: skip
    assert project.limits.streamed
    assert (project.run.prompt, project.run.seed, project.run.top_p) == ("hello", 7, 0.9)
    assert project.ratchet is not None
    assert project.ratchet.tolerance == {"region.*": "2 %", "code": 1024, "image": 5}
    one, two = loaded.targets
    assert one.limits == Limits(context=64)  # the whole table, not laid over
    assert (one.application, two.application) == ({"SRAM": 1}, {"SRAM": 4096, "PSRAM": 100})
    assert (one.symbols.forbidden, two.symbols.forbidden) == (["x"], ["*_debug"])
    assert two.options.elf == Path("fw.elf")


def test_the_whole_example_has_every_key() -> None:
    """So that the test above stays complete."""
    raw = tomllib.loads(WHOLE)
    for found, model in (
        (raw, Project), (raw["model"], Model), (raw["limits"], Limits), (raw["run"], Run),
        (raw["symbols"], Symbols), (raw["ratchet"], Ratchet),
        (raw["boards"]["one"] | raw["boards"]["two"], ProjectBoard),
    ):  # fmt: skip
        instead = {Model: {"image"}, Run: {"tokens"}}.get(model, set())
        assert set(found) | instead == set(model.model_fields), model
    budgets, stack = Project.model_fields["budgets"].default, Project.model_fields["stack"]
    assert set(raw["budgets"]) == set(type(budgets).model_fields)
    assert stack.default is None
    assert {"when"} | set(raw["stack"]) == set(
        Project.model_json_schema()["$defs"]["StackTable"]["properties"]
    )


def test_defaults(tmp_path: Path) -> None:
    loaded = load(tmp_path, SMALL)
    (target,) = loaded.targets
    assert not target.limits.streamed
    assert target.options.emulate == ["native"]
    assert (loaded.project.run.max_new_tokens, loaded.project.run.temperature) == (24, 0)
    assert target.board.id == PICO
    assert target.board.budgets == target.own_budgets  # nothing laid over


def test_a_folder_stands_for_the_file_in_it(tmp_path: Path) -> None:
    load(tmp_path, SMALL)
    assert load_project(tmp_path).file == tmp_path / "colibri.toml"


def test_boards_beside_the_file_and_their_socs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative to the project file, wherever the command runs; the SoC beside the board."""
    folder = tmp_path / "pröj e"
    (folder / "hw").mkdir(parents=True)
    text = board_text.WHOLE.split("[[regions]]", 1)
    soc = 'schema_version = 1\nid = "chip"\nname = "Chip"\nvendor = "Us"\n'
    (folder / "hw" / "soc.toml").write_text(soc + text[0][text[0].index("[[cores]]") :])
    head = text[0][: text[0].index("[[cores]]")] + 'soc = "soc.toml"\n'
    (folder / "hw" / "mine.toml").write_text(head + "[[regions]]" + text[1])
    monkeypatch.chdir("/")
    loaded = load(folder, SMALL.replace(PICO, "mine") + 'board = "hw/mine.toml"\n')
    assert loaded.targets[0].board.soc == "soc.toml"
    assert loaded.targets[0].name == "mine"


def test_the_start_file_loads(tmp_path: Path) -> None:
    file = tmp_path / "new.toml"
    write_start(file)
    assert load_project(file).targets[0].name == PICO
    with pytest.raises(ProjectError, match=r"is there already; give the name of a new file"):
        write_start(file)


# --- what it refuses -----------------------------------------------------------------------------

UNKNOWN = {
    "model": ('image = "a', 'imagge = "b"\nimage = "a', "'imagge'; did you mean 'image'?"),
    "top": ("[model]", "[limit]\n[model]", "'limit'; did you mean 'limits'?"),
    "board": ("build = false", "emulat = []", "'emulat'; did you mean 'emulate'?"),
    "budgets": ("[model]", "[budgets]\narena = 1\n[model]", "did you mean 'arena_bytes'?"),
    "budget": ("[model]", "[budgets]\ntok_s = { lim = 1 }\n[model]", "did you mean 'limit'?"),
    "board budgets": ("build = false", "budgets.toks = 1", "did you mean 'tok_s'?"),
    "limits": ("[model]", "[limits]\ncontex = 1\n[model]", "did you mean 'context'?"),
    "run": ("[model]", "[run]\npromt = 'x'\n[model]", "did you mean 'prompt'?"),
    "ratchet": ("[model]", "[ratchet]\ntolerances = {}\n[model]", "did you mean 'tolerance'?"),
    "symbols": ("[model]", "[symbols]\nforbid = []\n[model]", "did you mean 'forbidden'?"),
    "stack": ("[model]", "[stack]\nframe = {}\n[model]", "did you mean 'frames'?"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_key_names_the_nearest(tmp_path: Path, name: str) -> None:
    old, new, said = UNKNOWN[name]
    assert old in SMALL
    found = refused(tmp_path, SMALL.replace(old, new, 1))
    assert "unknown key" in found
    assert said in found
    assert "valid keys: " in found


WRONG = {
    # [table of] key = value: the place and what would work
    "name = 'A b'": ("name", "lower-case letters"),
    "schema_version = 2": ("schema_version", "one of 1"),
    "model = 3": ("model", "3 is not a table"),
    "model.image = 3": ("model.image", "'3' is not a path; write it in quotes"),
    "model.image = ''": ("model.image", "is not a path"),
    "model.quant = 'q5'": ("model.quant", "one of f32, f16, bf16, q8, q4"),
    "model.group = 33": ("model.group", "32"),
    "model.layout = 'shard'": ("model.layout", "did you mean 'sharded'?"),
    "model.shard_size = '1 MB'": ("model.shard_size", "write '1 MiB'"),
    "limits.context = 0": ("limits.context", "at least 1"),
    "limits.context = '128'": ("limits.context", "is not an integer"),
    "limits.context = true": ("limits.context", "true is not an integer"),
    "limits.kv = 'f8'": ("limits.kv", "one of f32, f16, q8"),
    "limits.memory = -1": ("limits.memory", "negative"),
    "limits.prefetch = 1": ("limits.prefetch", "1 is not true or false"),
    "run.prompt = ''": ("run.prompt", "at least 1 character"),
    "run.tokens = []": ("run.tokens", "is empty; write at least one"),
    "run.tokens = [-1]": ("run.tokens[0]", "at least 0"),
    "run.tokens = ['a']": ("run.tokens[0]", "'a' is not an integer"),
    "run.temperature = inf": ("run.temperature", "finite"),
    "run.top_p = 0": ("run.top_p", "greater than 0"),
    "run.seed = 9999999999999999999999": ("run.seed", "out of range"),
    "application.SRAM = '1 kb'": ("application.SRAM", "write '1 KiB'"),
    "application.SRM = 1": ("application", "no region 'SRM'; did you mean 'SRAM'?"),
    "groups.a = 'x'": ("groups.a", "'x' is not a list"),
    "groups.a = [3]": ("groups.a[0]", "3 is not a string"),
    "groups.\"a\\u0007\" = ['x']": ("groups", "printable"),
    "symbols.required = ['a']": ("symbols.required", "is not a table"),
    "symbols.required = { a = 'FLSH' }": ("symbols.required.a", "did you mean 'FLASH'?"),
    "stack.limit = '4 KB'": ("stack.limit", "write '4 KiB'"),
    "ratchet.tolerance = { code = '200 %' }": ("ratchet.tolerance.code", "up to 100 %"),
    "ratchet.tolerance = { code = 'much' }": ("ratchet.tolerance.code", "is not a size"),
    "budgets.arena_bytes = '10 %'": ("budgets.arena_bytes", "write a size"),
    "budgets.arena_bytes = { warn = 2, limit = 1 }": ("budgets.arena_bytes.warn", "above limit"),
    "budgets.tok_s = { warn = 1, limit = 2 }": ("budgets.tok_s.warn", "below limit"),
    "budgets.deadline_s = 0": ("budgets.deadline_s", "above 0"),
    "budgets.deadline_s = nan": ("budgets.deadline_s", "finite number"),
    "budgets.tok_s = '8'": ("budgets.tok_s", "not a number"),
    "budgets.regions.SRAM = '0 %'": ("budgets.regions.SRAM", "more than 0 %"),
    "budgets.regions.SRAM = { warn = '90 %', limit = '80 %' }": (
        "budgets.regions.SRAM.warn", "above limit"),
    "budgets.regions.SRAM = { warn = '600 KiB', limit = '100 %' }": (
        "budgets.regions.SRAM.warn", "above limit"),
    "budgets.regions.RAM = 1": ("budgets.regions", "did you mean 'SRAM'?"),
    "budgets.spans.FLAH = 1": ("budgets.spans", "did you mean 'FLASH'?"),
    "budgets.groups.a = 1": ("budgets.groups", "no group 'a'"),
    "boards.pimoroni-pico-plus-2.emulate = ['qemu']": (".emulate[0]", "one of native, cpu"),
    "boards.pimoroni-pico-plus-2.emulate = ['cpu']": (".emulate", "leave build out"),
    "boards.pimoroni-pico-plus-2.map = 'm'": (".map", "is the map of an elf"),
    "boards.pimoroni-pico-plus-2.budgets.regions.RAM = 1": (
        f"boards.{PICO}.budgets.regions", "did you mean 'SRAM'?"),
    "boards.pimoroni-pico-plus-2.budgets.regions.SRAM = { warn = 2, limit = 1 }": (
        f"boards.{PICO}.budgets.regions.SRAM.warn", "above limit"),
    "boards.pimoroni-pico-plus-2.application = { RAM = 1 }": (
        f"boards.{PICO}.application", "did you mean 'SRAM'?"),
    "boards.pimoroni-pico-plus-2.board = 'nix.toml'": (f"boards.{PICO}.board", "No such file"),
    "boards.pimoroni-pico = {}": ("boards.pimoroni-pico", f"did you mean '{PICO}'?"),
    "boards.\"../x\" = { board = 'pimoroni-pico-plus-2' }": ("boards.../x", "no '/'"),
    "boards.\"check.json\" = { board = 'pimoroni-pico-plus-2' }": (
        "boards.check.json", "name of a report"),
    "boards.\"a/b\" = { board = 'pimoroni-pico-plus-2' }": ("boards.a/b", "no '/'"),
    "boards.'a\\b' = { board = 'pimoroni-pico-plus-2' }": ("boards.a\\b", "no '/'"),
    "boards.'.' = { board = 'pimoroni-pico-plus-2' }": ("boards..", "no '/'"),
}  # fmt: skip


def changed(line: str) -> str:
    """The small project with one value set, as TOML would by a dotted key on top of the file."""
    raw = tomllib.loads(SMALL)
    _overlay(raw, tomllib.loads(line))
    return to_toml(raw)


def _overlay(under: dict[str, Any], over: dict[str, Any]) -> None:
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(under.get(key), dict):
            _overlay(under[key], value)
        else:
            under[key] = value


def to_toml(raw: dict[str, Any]) -> str:
    """TOML of a dictionary, one inline value a key."""
    return "".join(f"{json.dumps(key)} = {_value(value)}\n" for key, value in raw.items())


def _value(value: Any) -> str:
    if isinstance(value, dict):
        inner = ", ".join(f"{json.dumps(str(k))} = {_value(v)}" for k, v in value.items())
        return f"{{ {inner} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, float):
        return {"Infinity": "inf", "-Infinity": "-inf", "NaN": "nan"}.get(
            text := json.dumps(value), text
        )
    return json.dumps(value).replace("\x7f", "\\u007f")


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_value_says_where_and_what_works(tmp_path: Path, line: str) -> None:
    where, said = WRONG[line]
    found = refused(tmp_path, changed(line))
    assert where in found
    assert said in found


CONTRADICTIONS = {
    "both sources": (SMALL.replace("[boards", 'checkpoint = "c"\n[boards', 1),
                     "exactly one of checkpoint and image"),
    "no source": (SMALL.replace('image = "a.colibri"', ""), "exactly one of checkpoint and image"),
    "packing of an image": (SMALL.replace("[boards", 'quant = "q4"\nblock = 64\n[boards', 1),
                            "quant, block: is for packing"),
    "prompt and tokens": (SMALL + '[run]\nprompt = "x"\ntokens = [1]\n', "one of prompt and t"),
    "nothing to check": (re.sub(r"\[model\]\nimage.*\n", "", SMALL), "give elf"),
    "own firmware on a CPU": (SMALL + 'elf = "f"\nemulate = ["cpu"]\n', "leave elf out"),
    "no boards": (SMALL.split("[boards")[0], "missing key 'boards'"),
    "empty boards": (SMALL.split("[boards")[0] + "[boards]\n", "boards: is empty; write at"),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_contradictions(tmp_path: Path, name: str) -> None:
    text, said = CONTRADICTIONS[name]
    assert said in refused(tmp_path, text)


def test_every_problem_is_told_at_once(tmp_path: Path) -> None:
    text = SMALL.replace('"small"', '"S"').replace("build = false", "build = 1\nelff = 'x'")
    found = refused(tmp_path, text)
    assert found.startswith("3 problems:")
    assert len(found.splitlines()) == 4


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "missing key 'schema_version'"),
        (b"\xff\xfe", "is not UTF-8 text (byte 0); project files are TOML"),
        (b"a = " + b"[" * 50_000, "is nested too deeply"),
        (b"a." * 50_000 + b"a = 1", "is nested too deeply"),  # took minutes
        (b"['a' . " + b"'b'\t.c ." * 50_000 + b"a]", "is nested too deeply"),
        (b"x = " + b"9" * 5000, "is not valid TOML"),
        (b'a = "' + b"x" * (1 << 20) + b'"', "larger than 1048576 bytes"),
        (b"[model", "is not valid TOML"),
        (b"a = 1\na = 2", "is not valid TOML"),
        (b"schema_version = 1979-05-27", "schema_version"),
    ],
)
def test_hostile_files(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "colibri.toml"
    file.write_bytes(content)
    with pytest.raises(ProjectError) as caught:
        load_project(file)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 10_000


def test_no_file_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(ProjectError, match="colibri check --init writes one"):
        load_project(tmp_path)
    with pytest.raises(ProjectError, match="not a file"):
        load_project("/dev/null")


def test_a_bad_board_file_says_which_board_asked_for_it(tmp_path: Path) -> None:
    (tmp_path / "b.toml").write_text("schema_version = 1\nfoo = 2\n")
    found = refused(tmp_path, SMALL.replace(PICO, "mine") + 'board = "b.toml"\n')
    assert "boards.mine.board: " in found
    assert "b.toml: missing key 'regions'" in found
    assert "unknown key 'foo'" in found


# --- budgets over budgets ------------------------------------------------------------------------


def own_board(folder: Path, budgets: str) -> str:
    (folder / "own.toml").write_text(board_text.WHOLE + budgets)
    return 'schema_version = 1\nname = "b"\n[model]\nimage = "i"\n'


def test_marks_are_laid_over_one_by_one(tmp_path: Path) -> None:
    head = own_board(
        tmp_path,
        "[budgets]\ncode_bytes = { warn = 1, limit = 9 }\ntok_s = 5\n"
        '[budgets.regions]\nSRAM = { warn = 100, limit = "90 %" }\nFLASH = 7\n',
    )
    project = '[budgets]\ncode_bytes = { warn = 2 }\nregions.SRAM = { limit = "80 %" }\n'
    board = '[boards.b]\nboard = "own.toml"\n[boards.b.budgets]\ncode_bytes = 8\n'
    board += "regions.FLASH = 6\n"
    (target,) = load(tmp_path, head + project + board).targets
    budgets = target.board.budgets
    assert budgets.marks("code_bytes") == (2, 8)
    assert budgets.marks("tok_s") == (None, 5)
    assert mark(budgets, "regions", "SRAM") == (100, 800)
    assert mark(budgets, "regions", "FLASH") == (None, 6)
    assert target.own_budgets.marks("code_bytes") == (1, 9)  # the board's stay as they were


def test_a_limit_may_be_laid_below_a_warning_but_not_the_other_way(tmp_path: Path) -> None:
    head = own_board(tmp_path, '[budgets.regions]\nSRAM = { warn = "80 %", limit = "90 %" }\n')
    board = '[boards.b]\nboard = "own.toml"\n'
    (target,) = load(tmp_path, head + board + 'budgets.regions.SRAM = "50 %"\n').targets
    assert mark(target.board.budgets, "regions", "SRAM") == (800, 500)
    found = refused(tmp_path, head + board + 'budgets.regions.SRAM = { warn = "95 %" }\n')
    assert "boards.b.budgets.regions.SRAM.warn: is above limit" in found
    found = refused(tmp_path, head + '[budgets]\nregions.SRAM = { warn = "95 %" }\n' + board)
    assert "colibri.toml: budgets.regions.SRAM.warn: is above limit" in found


def test_group_names_with_dots(tmp_path: Path) -> None:
    groups = '[groups]\n"a.b" = ["x"]\n[budgets.groups]\n"a.b" = { warn = 2, limit = 1 }\n'
    assert "budgets.groups.a.b.warn: is above limit" in refused(tmp_path, SMALL + groups)


def test_percentages_are_of_what_is_not_reserved(tmp_path: Path) -> None:
    """FLASH of this board has 1 MiB, 16 KiB of it reserved."""
    head = own_board(tmp_path, "") + '[boards.b]\nboard = "own.toml"\n'
    limit = (1 << 20) - (16 << 10)
    fine = f'budgets.regions.FLASH = {{ warn = {limit}, limit = "100 %" }}\n'
    assert load(tmp_path, head + fine)
    assert "above limit" in refused(tmp_path, head + fine.replace(str(limit), str(limit + 1)))


def test_regions_that_one_board_has_are_no_error(tmp_path: Path) -> None:
    two = SMALL + "[boards.raspberry-pi-zero-2w]\nbuild = false\n"
    text = two + '[application]\nPSRAM = 64\n[budgets]\nregions.SDRAM = "50 %"\n'
    pico, zero = load(tmp_path, text).targets
    assert (pico.application, zero.application) == ({"PSRAM": 64}, {})


# --- schema --------------------------------------------------------------------------------------


def test_published_schema_is_up_to_date() -> None:
    assert SCHEMA_FILE.read_text(encoding="utf-8") == schema_text(), (
        f"run: colibri check --schema > {SCHEMA_FILE.relative_to(ROOT)}"
    )


def test_schema_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out) == project_schema()
    assert cli.main(["check", "--schema", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"schema": 1, "json_schema": project_schema()}


def test_schema_takes_what_the_loader_takes(tmp_path: Path) -> None:
    Draft202012Validator.check_schema(project_schema())
    validator = Draft202012Validator(project_schema())
    write_start(tmp_path / "start.toml")
    for text in (SMALL, WHOLE, (tmp_path / "start.toml").read_text()):
        assert not list(validator.iter_errors(tomllib.loads(text)))


#: What a schema cannot know: boards, regions, groups, order of marks, keys that exclude others.
BEYOND_A_SCHEMA = re.compile(
    r"no (region|group)|above limit|below limit|known board|No such file|no '/'|is the map of|"
    r"leave build out|finite|did you mean 'pimoroni|name of a report"
)


@pytest.mark.parametrize("line", WRONG)
def test_schema_refuses_what_the_loader_refuses(tmp_path: Path, line: str) -> None:
    found = refused(tmp_path, changed(line))
    if BEYOND_A_SCHEMA.search(found) or "'200 %'" in line or "'much'" in line or "'0 %'" in line:
        return
    raw = tomllib.loads(changed(line))
    assert list(Draft202012Validator(project_schema()).iter_errors(raw)), line


@pytest.mark.parametrize("page", ["check.md", "ci.md"])
def test_examples_in_the_docs_hold(tmp_path: Path, page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    found = [t for t in re.findall(r"```toml\n(.*?)```", text, re.S) if "schema_version" in t]
    assert found
    (tmp_path / "boards").mkdir()
    (tmp_path / "boards" / "reader-v2.toml").write_text(board_text.WHOLE)
    for example in found:
        assert not list(Draft202012Validator(project_schema()).iter_errors(tomllib.loads(example)))
        assert load(tmp_path, example).targets


def test_the_page_names_every_key() -> None:
    text = (ROOT / "docs" / "check.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    for model in (Model, Limits, Run, Symbols, Ratchet, ProjectBoard):
        for key in model.model_fields:
            assert any(f"`{key}`" in row for row in rows), (model, key)
    for key in type(Project.model_fields["budgets"].default).model_fields:
        assert any(row.startswith((f"| `{key}`", f"| `{key}.")) for row in rows), key


# --- anything ------------------------------------------------------------------------------------

_VALUES = st.one_of(
    st.none().map(lambda _: {}), st.booleans(), st.integers(-(2**70), 2**70), st.floats(),
    st.text(max_size=20), st.lists(st.integers(-2, 300), max_size=3),
    st.sampled_from(["90 %", "64 KiB", "native", ["cpu"], "q4", "SRAM", "../x", "\x1b[2J", {}]),
    st.dictionaries(st.text(max_size=8), st.integers(), max_size=2),
)  # fmt: skip


def _places(raw: Any, before: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not isinstance(raw, dict):
        return []
    below = [place for key, value in raw.items() for place in _places(value, (*before, key))]
    return [(*before, key) for key in raw] + below


@settings(max_examples=60, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
@given(data=st.data())
def test_mutations_are_refused_or_taken(tmp_path: Path, data: st.DataObject) -> None:
    """Whatever a key is set to, renamed to or added: a project, or an error of ours."""
    raw = tomllib.loads(WHOLE)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.sampled_from(_places(raw)))
        table = raw
        for key in place[:-1]:
            table = table[key]
        kind = data.draw(st.sampled_from(["set", "remove", "add", "rename"]))
        old = table.get(place[-1])
        if kind in ("remove", "rename"):
            del table[place[-1]]
        if kind == "set":
            table[place[-1]] = data.draw(_VALUES)
        elif kind in ("add", "rename"):
            name = data.draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=8))
            table[name] = copy.deepcopy(old) if kind == "rename" else data.draw(_VALUES)
    said = ""
    try:
        loaded = load(tmp_path, to_toml(raw))
    except (ProjectError, BoardError) as error:
        said = str(error)
    assert "colibri.toml" in said if said else loaded.targets
    assert len(said) < 50_000


@settings(max_examples=60, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
@given(at=st.integers(0, len(WHOLE.encode()) - 1), byte=st.integers(0, 255), cut=st.booleans())
def test_damaged_bytes_are_refused_or_taken(tmp_path: Path, at: int, byte: int, cut: bool) -> None:
    content = bytearray(WHOLE.encode())
    content[at] = byte
    file = tmp_path / "colibri.toml"
    file.write_bytes(content[:at] if cut else content)
    try:
        loaded = load_project(file)
    except (ProjectError, BoardError):
        return
    assert loaded.targets
