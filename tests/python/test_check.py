# SPDX-License-Identifier: Apache-2.0
"""`colibri check`: steps, rows, statuses, exit codes, and the files that it writes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

import board_text
import colibri
from colibri import cli
from colibri.check import CheckResult, Row, check
from colibri.check.emulation import same_tokens
from colibri.check.junit import junit
from colibri.check.markdown import markdown
from colibri.check.rows import STATUSES, BoardResult, counts
from colibri.check.sheet import Sheet
from colibri.check.table import tables
from colibri.cli.common import console
from colibri.fit.budgets import Figure
from colibri.pack import pack
from colibri.project import load_project
from colibri.project.loader import REPORT_FILES
from elf_writer import AX, FUNC, WA, ElfWriter
from needs import need

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
PICO, ZERO = "pimoroni-pico-plus-2", "raspberry-pi-zero-2w"
FLASH, SRAM = 0x0800_4000, 0x2000_0000
PUSH_POP = bytes.fromhex("80b500bf80bd00bf")  # push {r7, lr}; nop; pop {r7, pc}; nop: 8 B of stack
RUN = "[run]\ntokens = [1, 2, 3]\nmax_new_tokens = 4\n"


class Checked:
    """What `colibri check` left behind."""

    def __init__(self, code: int, out: str, err: str, folder: Path) -> None:
        self.code, self.out, self.err, self.folder = code, out, err, folder

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "check.json").read_text())
        return found

    def row(self, name: str, board: str | None = None) -> dict[str, Any]:
        rows = [r for r in self.json["rows"] if r["name"] == name and board in (None, r["board"])]
        assert rows, (name, [r["name"] for r in self.json["rows"]])
        found: dict[str, Any] = rows[-1]
        return found

    @property
    def steps(self) -> list[tuple[str, str, str]]:
        return [(r["step"], r["name"], r["status"]) for r in self.json["rows"]]


Check = Callable[..., Checked]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Check:
    """Writes a project file and checks it."""

    def checked(text: str, *words: str, output: str = "out") -> Checked:
        (tmp_path / "colibri.toml").write_text(text, encoding="utf-8")
        capsys.readouterr()
        code = cli.main(["check", str(tmp_path), "-o", str(tmp_path / output), *words])
        return Checked(code, *capsys.readouterr(), tmp_path / output)

    return checked


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack(GOLDEN / "qwen2_moe", tmp_path_factory.mktemp("i") / "a.colibri", quant="q8").image


@pytest.fixture
def small(image: Path) -> Callable[..., str]:
    """A project of the image on one board, planned and predicted."""

    def text(more: str = "", board: str = "", name: str = PICO) -> str:
        head = f'schema_version = 1\nname = "small"\n[model]\nimage = "{image}"\n'
        return f"{head}{RUN}{more}\n[boards.{name}]\nbuild = false\n{board}"

    return text


@pytest.fixture
def firmware(tmp_path: Path) -> Callable[..., str]:
    """A project of a firmware alone, on a board of its own: 16 B of code, 256 B of RAM."""
    elf = ElfWriter()
    text = elf.section(".text", FLASH, PUSH_POP * 2, flags=AX, align=4)
    bss = elf.section(".bss", SRAM, 0x100, flags=WA)
    elf.load([text])
    elf.load([bss])
    elf.symbol("main", FLASH | 1, 8, FUNC, section=text)
    elf.symbol("uart_send", FLASH + 8 | 1, 8, FUNC, section=text)
    elf.symbol("__stack_bottom", SRAM + 0xF000)
    elf.symbol("__stack_top", SRAM + 0xF800)
    content = bytearray(elf.build())
    content[24:28] = (FLASH | 1).to_bytes(4, "little")  # e_entry
    (tmp_path / "fw ü.elf").write_bytes(content)
    (tmp_path / "bench.toml").write_text(board_text.WHOLE)

    def project(more: str = "", board: str = "") -> str:
        head = 'schema_version = 1\nname = "fw"\n[groups]\ndrivers = ["symbol:uart_*"]\n'
        return f'{head}{more}\n[boards.bench]\nboard = "bench.toml"\nelf = "fw ü.elf"\n{board}'

    return project


# --- steps ---------------------------------------------------------------------------------------


def test_rows_of_a_planned_board(run: Check, small: Callable[..., str], image: Path) -> None:
    done = run(small())
    assert done.code == 0, done.out + done.err
    assert done.steps == [
        ("pack", "image", "info"), ("plan", "fits", "ok"), ("plan", "arena", "info"),
        ("plan", "planned.SRAM", "ok"), ("plan", "planned.FLASH", "ok"),
        ("plan", "planned.PSRAM", "info"), ("plan", "application", "info"),
        ("emulate", "emulate.native", "ok"), ("emulate", "tok_s", "info"),
        ("emulate", "first_token_s", "info"), ("emulate", "deadline_s", "info"),
    ]  # fmt: skip
    assert done.row("image")["value"] == image.stat().st_size
    assert done.row("arena")["value"] == colibri.plan(colibri.Image(image), PICO).total_bytes
    assert [done.row(n)["kind"] for n in ("image", "arena", "tok_s")] == [
        "counted", "planned", "predicted"
    ]  # fmt: skip
    predicted = done.json["boards"][0]["emulate"]["native"]["predicted"]
    assert done.row("tok_s")["value"] == predicted["decode_tok_s"]["mid"]
    assert done.row("tok_s")["at_least"] is True
    first, rate = predicted["first_token_s"]["mid"], predicted["decode_tok_s"]["mid"]
    assert done.row("deadline_s")["value"] == pytest.approx(first + 3 / rate)
    assert re.search(r"~[\d.,]+ tok/s", done.out)
    assert done.out.rstrip().endswith("fits: small, 1 board, 4 ok")


def test_rows_of_a_firmware_alone(run: Check, firmware: Callable[..., str]) -> None:
    done = run(firmware())
    assert done.code == 0, done.out + done.err
    assert {step for step, _, _ in done.steps} == {"size"}
    figures = {r["name"]: r["value"] for r in done.json["rows"] if r["value"] is not None}
    assert figures["region.FLASH"] == figures["code"] == figures["span.FLASH"] == 16
    assert figures["region.SRAM"] == 0x100 + 0x800
    assert (figures["group.drivers"], figures["stack"]) == (8, 0x800)
    assert done.row("region.FLASH")["capacity"] == (1 << 20) - (16 << 10)
    assert done.row("verdict")["status"] == "ok"


@pytest.mark.parametrize("layout", ["sharded", "hybrid"])
def test_packed_for_the_board_and_streamed(run: Check, layout: str) -> None:
    """From a checkpoint, in several files; `image` counts them all."""
    done = run(
        f'schema_version = 1\nname = "s"\n[model]\ncheckpoint = "{GOLDEN / "qwen2_moe"}"\n'
        f'quant = "q8"\nlayout = "{layout}"\n[limits]\nexpert_slots = 4\npolicy = "lru"\n{RUN}'
        f"[boards.{ZERO}]\nbuild = false\n"
    )
    assert done.code == 0, done.out + done.err
    files = [path for path in done.folder.iterdir() if path.name not in REPORT_FILES]
    assert len(files) > 1
    assert done.row("image")["value"] == sum(path.stat().st_size for path in files)
    assert "streamed" in done.row("fits")["detail"]


def test_boards_of_one_weight_order_share_an_image(run: Check, tmp_path: Path) -> None:
    head = f'schema_version = 1\nname = "s"\n[model]\ncheckpoint = "{GOLDEN / "qwen2_moe"}"\n'
    boards = "".join(
        f'[boards.{name}]\nboard = "{board}"\nbuild = false\nemulate = []\n'
        for name, board in (("a", PICO), ("b", "raspberry-pi-5-2gb"), ("c", PICO), ("d", ZERO))
    )
    done = run(head + boards)
    assert done.code == 0
    images = [board["image"] for board in done.json["boards"]]
    assert images[0] == images[2]
    assert images[1] != images[0]
    assert len(set(images)) == len(list(done.folder.glob("s-*.colibri")))


def test_runs_from_any_folder(
    run: Check, firmware: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    assert run(firmware()).code == 0
    monkeypatch.chdir(tmp_path)
    assert cli.main(["check"]) == 0
    assert {path.name for path in (tmp_path / "colibri-check").iterdir()} >= set(REPORT_FILES[:3])


# --- statuses and exit codes ---------------------------------------------------------------------

#: Budget and the row that it holds; {} is the mark.
OF_MODEL = {
    "image_bytes": "image", "arena_bytes": "arena", "tok_s": "tok_s",
    "first_token_s": "first_token_s", "deadline_s": "deadline_s",
}  # fmt: skip
OF_FIRMWARE = {
    "regions.SRAM": "region.SRAM", "spans.FLASH": "span.FLASH", "groups.drivers": "group.drivers",
    "code_bytes": "code", "stack_bytes": "stack", "stack_depth": "stack_depth",
}  # fmt: skip


def held(project: Callable[..., str], budget: str, value: object) -> str:
    return project(f"[budgets]\n{budget} = {value}")


@pytest.mark.parametrize("budget", ["image_bytes", "arena_bytes", *OF_FIRMWARE])
def test_equal_fits_and_a_byte_less_is_over(
    run: Check, small: Callable[..., str], firmware: Callable[..., str], budget: str
) -> None:
    if budget == "stack_depth":
        need("module:capstone")
    project = small if budget in OF_MODEL else firmware
    if project is small:  # the byte counts here, not the twin
        project = lambda more="", board="": small(more, board + "emulate = []\n")  # noqa: E731
    name = {**OF_MODEL, **OF_FIRMWARE}[budget]
    value = int(run(held(project, budget, '"1 GiB"')).row(name)["value"])
    assert value > 0
    equal = run(held(project, budget, value))
    assert (equal.code, equal.row(name)["status"], equal.row(name)["limit"]) == (0, "ok", value)
    over = run(held(project, budget, value - 1))
    row = over.row(name)
    assert (over.code, row["status"]) == (1, "over")
    assert f"1 B more than budgets.{budget} limit = {value - 1:,} B" in row["detail"]
    assert row["detail"] in " ".join(over.out.split("\n"))
    warns = run(held(project, budget, f"{{ warn = {value - 1}, limit = {value} }}"))
    assert (warns.code, warns.row(name)["status"]) == (0, "warning")
    assert "warning mark" in warns.row(name)["detail"]


@pytest.mark.parametrize("budget", ["tok_s", "first_token_s", "deadline_s"])
def test_predictions_are_held_by_their_likely_value(
    run: Check, small: Callable[..., str], budget: str
) -> None:
    row = run(small()).row(budget)
    value = row["value"]
    low, high = (
        float(part.replace(",", ""))
        for part in re.findall(r"predicted, ([\d.,e+-]+) to ([\d.,e+-]+) ", row["detail"])[0]
    )
    assert low < value < high
    worse = 1.0001 if budget == "tok_s" else 0.9999
    far = low * 0.99 if budget == "tok_s" else high * 1.01
    over = run(held(small, budget, value * worse))
    assert (over.code, over.row(budget)["status"]) == (1, "over")
    near = run(held(small, budget, value / worse))
    assert (near.code, near.row(budget)["status"]) == (0, "warning")
    assert "interval's end" in near.row(budget)["detail"]
    fits = run(held(small, budget, far))
    assert (fits.code, fits.row(budget)["status"]) == (0, "ok")


@pytest.mark.parametrize("budget", [*OF_MODEL, *(b for b in OF_FIRMWARE if "regions" not in b)])
def test_a_budget_without_a_figure_is_unknown(
    run: Check, small: Callable[..., str], firmware: Callable[..., str], budget: str
) -> None:
    """Planned alone there is no firmware, and firmware alone has no model."""
    group = '[groups]\ndrivers = ["x"]\n'
    if budget in OF_MODEL:
        done, name = run(held(firmware, budget, 1)), OF_MODEL[budget]
    else:
        text = small(f"{group}[budgets]\n{budget} = 1", "emulate = []")
        done, name = run(text), OF_FIRMWARE[budget]
    assert done.code == 2
    assert done.row(name)["status"] == "unknown"
    assert f"budgets.{budget}" in done.row(name)["what"] + done.row(name)["detail"]
    assert "would" in done.row(name)["detail"]


def test_a_region_s_budget_holds_what_is_planned(run: Check, small: Callable[..., str]) -> None:
    """With the engine, the firmware's reserve and the application, before there is firmware."""
    value = int(run(small(board="emulate = []\n")).row("planned.SRAM")["value"])
    for limit, code in ((value, 0), (value - 1, 1)):
        done = run(small(f"[budgets]\nregions.SRAM = {{ warn = 9, limit = {limit} }}",
                         "emulate = []\n"))  # fmt: skip
        assert done.code == code
        assert "region.SRAM" not in {r["name"] for r in done.json["rows"]}
    more = run(small("[application]\nSRAM = 65536", "emulate = []\n"))
    assert more.row("planned.SRAM")["value"] >= value + 65536


def test_planned_and_linked_rows_of_a_region_have_one_capacity(
    run: Check, image: Path, firmware: Callable[..., str], tmp_path: Path
) -> None:
    """Reserved parts, and on Linux what the system keeps, are neither used nor there."""
    text = firmware(f'[model]\nimage = "{image}"\n[budgets]\nregions.FLASH = "50 %"\n')
    large = board_text.WHOLE.replace("1 MiB", "2 MiB").replace("64 KiB", "1 MiB")
    (tmp_path / "bench.toml").write_text(large)
    linux = f'[boards.l]\nboard = "{ZERO}"\nelf = "fw ü.elf"\nemulate = []\n'
    done = run(text + "emulate = []\n" + linux)
    usable = (2 << 20) - (16 << 10)
    for name in ("planned.FLASH", "region.FLASH"):
        row = done.row(name, "bench")
        assert (row["capacity"], row["limit"]) == (usable, usable // 2)
    plan = done.json["boards"][0]["plan"]["regions"][1]
    assert done.row("planned.FLASH", "bench")["value"] == plan["used"] - (16 << 10)
    found = [done.row(name, "l")["capacity"] for name in ("planned.SDRAM", "region.SDRAM")]
    assert found[0] == found[1] < 512 << 20


def test_what_all_boards_are_held_to_is_skipped_where_a_step_is_turned_off(
    run: Check, firmware: Callable[..., str], image: Path
) -> None:
    """And only there: another board has it, and no table of this board asks."""
    quiet = f'[boards.quiet]\nboard = "{PICO}"\nbuild = false\nemulate = []\n'
    model = f'[model]\nimage = "{image}"\n{RUN}[budgets]\ncode_bytes = 16\ntok_s = 1\n'
    text = firmware(model, "emulate = []\n") + quiet
    done = run(text)
    assert done.row("code", "quiet")["status"] == "skipped"
    assert "turned off" in done.row("code", "quiet")["detail"]
    assert done.row("code", "bench")["status"] == "ok"
    assert done.row("tok_s", "quiet")["status"] == "unknown"  # no board has it
    assert done.json["boards"][1]["verdict"] == "unknown"
    own = run(text + "budgets.code_bytes = 17\n")
    assert own.row("code", "quiet")["status"] == "unknown"


def test_firmware_without_an_entry_has_no_stack_bound_but_sizes(
    run: Check, firmware: Callable[..., str], tmp_path: Path
) -> None:
    need("module:capstone")
    text, elf = firmware(), tmp_path / "fw ü.elf"
    content = bytearray(elf.read_bytes())
    content[24:28] = bytes(4)
    elf.write_bytes(bytes(content).replace(b"main\0", b"mine\0"))
    done = run(text)
    assert (done.code, done.row("stack_depth")["status"]) == (0, "info")
    assert "no entry point" in done.row("stack_depth")["detail"]
    assert done.row("code")["value"] == 16
    asked = run(text.replace("[boards", '[budgets]\nstack_depth = "100 %"\n[boards', 1))
    assert (asked.code, asked.row("size")["status"]) == (2, "unknown")
    asked = run(text + 'su = ["nothing"]\n')
    assert (asked.code, asked.row("size")["status"]) == (2, "unknown")


def test_marks_that_nothing_tells_are_unknown(
    run: Check, firmware: Callable[..., str], tmp_path: Path
) -> None:
    """A reserved stack without the linker's symbols, shares of it, owners without a map."""
    need("module:capstone")
    text, elf = firmware(), tmp_path / "fw ü.elf"
    elf.write_bytes(elf.read_bytes().replace(b"__stack_top", b"__staple_up"))
    done = run(text)
    assert (done.code, done.row("stack")["value"]) == (0, None)
    for name, budget, said in (
        ("stack", 'stack_bytes = "1 MiB"', "__stack_bottom and __stack_top"),
        ("stack_depth", 'stack_depth = { warn = "50 %" }', "__stack_bottom and __stack_top"),
        ("group.hal", 'groups.hal = "1 MiB"', "not known without a map"),
    ):
        held = text.replace("[boards", f"[budgets]\n{budget}\n[boards", 1)
        held = held.replace("[groups]", '[groups]\nhal = ["libhal.a"]')
        done = run(held)
        assert (done.code, done.row(name)["status"]) == (2, "unknown"), done.out
        assert said in done.row(name)["detail"]


def test_firmware_with_nothing_in_it_is_unknown(
    run: Check, firmware: Callable[..., str], tmp_path: Path
) -> None:
    text = firmware('[budgets]\nregions.FLASH = "1 MiB"\n')
    (tmp_path / "fw ü.elf").write_bytes(ElfWriter().build())
    done = run(text)
    assert (done.code, done.row("empty.fw ü.elf")["status"]) == (2, "unknown"), done.out
    assert done.row("verdict")["status"] == "unknown"


def test_code_is_not_known_without_sections(
    run: Check, firmware: Callable[..., str], tmp_path: Path
) -> None:
    text, elf = firmware(), tmp_path / "fw ü.elf"
    content = bytearray(elf.read_bytes())
    content[32:36], content[48:52] = bytes(4), bytes(4)  # e_shoff; e_shnum and e_shstrndx
    elf.write_bytes(content)
    assert run(text).row("code")["value"] is None
    done = run(text.replace("[boards", "[budgets]\ncode_bytes = 15\n[boards", 1))
    assert (done.code, done.row("code")["status"]) == (2, "unknown"), done.out


def test_an_image_tells_nothing_of_memory(
    run: Check, firmware: Callable[..., str], tmp_path: Path
) -> None:
    text = firmware().replace("fw ü.elf", "fw.hex")
    (tmp_path / "fw.hex").write_text(":020000040800F2\n:0440000080B500BFC8\n:00000001FF\n")
    done = run(text)
    assert (done.code, done.row("region.FLASH")["value"]) == (0, 4), done.out
    assert done.row("region.SRAM")["value"] is None
    done = run(text.replace("[boards", '[budgets]\nregions.SRAM = "1 KiB"\n[boards', 1))
    assert (done.code, done.row("region.SRAM")["status"]) == (2, "unknown")
    assert "an image tells what is stored" in done.row("region.SRAM")["detail"]


@pytest.mark.parametrize(
    ("rule", "code", "name", "status"),
    [
        ('{ limit = "1 KiB" }', 2, "symbols-unknown.stack.entries.mian", "unknown"),
        ("{ priority = 1 }", 0, "stack-entry.mian", "warning"),
    ],
)
def test_entries_that_no_function_has(
    run: Check, firmware: Callable[..., str], rule: str, code: int, name: str, status: str
) -> None:
    need("module:capstone")
    done = run(firmware(f"[stack.entries]\nmain = {{}}\nmian = {rule}\n"))
    assert (done.code, done.row(name)["status"]) == (code, status), done.out
    assert "no function is called 'mian'" in done.row(name)["detail"]


@pytest.mark.parametrize(
    ("table", "code", "status"), [("", 0, "warning"), ("main = { limit = 4096 }", 2, "unknown")]
)
def test_a_stack_that_is_not_known_says_so(
    run: Check, firmware: Callable[..., str], tmp_path: Path, table: str, code: int, status: str
) -> None:
    """Also where an entry has a limit and the whole stack none."""
    need("module:capstone")
    text, elf = firmware(f"[stack.entries]\n{table}\n"), tmp_path / "fw ü.elf"
    jump = bytes.fromhex("80b5984780bd00bf")  # push {r7, lr}; blx r3; pop {r7, pc}; nop
    elf.write_bytes(elf.read_bytes().replace(PUSH_POP, jump, 1))
    done = run(text)
    row = done.row("stack-unknown.main")
    assert (done.code, row["status"]) == (code, status), done.out
    assert "declare it in [stack.calls]" in row["detail"]


def test_rows_of_rules_name_the_symbol(run: Check, firmware: Callable[..., str]) -> None:
    rules = 'forbidden = ["uart_*"]\nrequired = { mian = "", main = "SRAM" }\n'
    done = run(firmware(f"[symbols]\n{rules}"))
    for name in ("forbidden.uart_send", "required.mian", "misplaced.main"):
        assert done.row(name)["status"] == "over"


def test_marks_of_the_board_file_hold_only_where_they_apply(
    run: Check, firmware: Callable[..., str], tmp_path: Path
) -> None:
    text = firmware()
    (tmp_path / "bench.toml").write_text(
        board_text.WHOLE + "[budgets]\ntok_s = 5\ncode_bytes = 15\n"
    )
    done = run(text)
    assert (done.code, done.row("code")["status"]) == (1, "over")
    assert "tok_s" not in {r["name"] for r in done.json["rows"]}


@pytest.mark.parametrize(
    ("budgets", "tokens"),
    [("tok_s = 4", 1), ("tok_s = 4\nfirst_token_s = 9", 0)],
)
def test_too_few_tokens_for_a_speed_are_unknown(
    run: Check, small: Callable[..., str], budgets: str, tokens: int
) -> None:
    text = small(f"[budgets]\n{budgets}").replace(
        "max_new_tokens = 4", f"max_new_tokens = {tokens}"
    )
    done = run(text)
    assert done.code == 2
    assert done.row("tok_s")["status"] == "unknown"


def test_a_step_that_fails_skips_those_that_need_it(
    run: Check, small: Callable[..., str], image: Path
) -> None:
    text = small("[budgets]\narena_bytes = 1\ntok_s = 1").replace(str(image), "nix.colibri")
    done = run(text)
    assert done.code == 2
    assert done.steps == [
        ("pack", "pack", "unknown"), ("plan", "plan", "skipped"),
        ("emulate", "emulate.native", "skipped"), ("budget", "arena", "skipped"),
        ("budget", "tok_s", "skipped"),
    ]  # fmt: skip
    assert "nix.colibri: cannot open: No such file" in done.row("pack")["detail"]
    assert done.out.count("nix.colibri") == 1
    assert "a step before it failed" in done.row("plan")["detail"]


def test_what_does_not_fit_the_board_is_over(run: Check, small: Callable[..., str]) -> None:
    done = run(small("[limits]\nbatch = 4096"))
    assert (done.code, done.row("fits")["status"]) == (1, "over")
    assert "--batch" in done.row("fits")["detail"]
    assert done.row("emulate.native")["status"] == "skipped"


def test_over_wins_over_unknown_and_boards_are_independent(
    run: Check, small: Callable[..., str]
) -> None:
    more = f'[boards.b]\nboard = "{ZERO}"\nelf = "nix.elf"\n[boards.b.budgets]\nimage_bytes = 1\n'
    done = run(small(board=more))
    assert done.code == 1
    by_board = {board["name"]: board["verdict"] for board in done.json["boards"]}
    assert by_board == {PICO: "fits", "b": "over"}
    assert done.row("size", "b")["status"] == "unknown"
    assert "nix.elf: does not exist" in done.row("size", "b")["detail"]
    assert done.json["verdict"] == "over"


BAD = {
    "checkpoint": ('image = "{image}"', 'checkpoint = "nix"', "pack", "is not a folder"),
    "no model in it": ('image = "{image}"', 'checkpoint = "."', "pack", "config.json"),
    "not an image": ("{image}", "colibri.toml", "pack", "not a Colibri image"),
    "no tokenizer": ("tokens = [1, 2, 3]", 'prompt = "x"', "emulate.native", "run.tokens"),
    "nothing to run": ("tokens = [1, 2, 3]\n", "", "emulate.native", "give prompt, or tokens"),
    "token": ("[1, 2, 3]", "[320]", "emulate.native", "ids of this image are 0 to 319"),
    "prompt too long": ("[1, 2, 3]", str([1] * 300), "emulate.native", "shorten it to 256"),
    "context": ("[run]", "[limits]\ncontext = 9999\n[run]", "plan", "at most 256"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_a_row_that_says_what_would_work(
    run: Check, small: Callable[..., str], image: Path, case: str
) -> None:
    old, new, name, said = BAD[case]
    text = small()
    old = old.replace("{image}", str(image))
    assert old in text
    done = run(text.replace(old, new))
    assert (done.code, done.row(name)["status"]) == (2, "unknown")
    assert said in done.row(name)["detail"]


def test_damaged_firmware_is_unknown(
    run: Check, firmware: Callable[..., str], tmp_path: Path
) -> None:
    text, elf = firmware(), tmp_path / "fw ü.elf"
    whole = elf.read_bytes()
    for damaged in (whole[:60], b"\x7fELF" + bytes(100), b"", whole[: len(whole) // 2]):
        elf.write_bytes(damaged)
        done = run(text)
        assert done.code == 2, damaged[:8]
        assert done.row("size")["status"] == "unknown"
        assert "fw ü.elf" in done.row("size")["detail"]


def test_firmware_of_another_cpu(run: Check, firmware: Callable[..., str]) -> None:
    done = run(firmware().replace('"bench.toml"', '"qemu-virt-aarch64-2gb"'))
    assert done.code == 1  # it lies outside every region of that board
    assert "the board runs AARCH64" in done.out


def test_firmware_of_another_cpu_at_the_board_s_addresses(
    run: Check, firmware: Callable[..., str], tmp_path: Path
) -> None:
    """All of it fits, and none of it would run."""
    text = firmware()
    elf = tmp_path / "fw ü.elf"
    data = bytearray(elf.read_bytes())
    data[18:20] = (243).to_bytes(2, "little")  # e_machine: RISC-V
    elf.write_bytes(data)
    done = run(text)
    assert (done.code, done.row("machine.fw ü.elf")["status"]) == (2, "unknown")


def test_same_tokens() -> None:
    def report(tokens: list[int], crc: str) -> SimpleNamespace:
        return SimpleNamespace(tokens=tokens, logits_crc32=crc)

    for other, status in ((report([1], "aa"), "ok"), (report([1], "ab"), "over"),
                          (report([2], "aa"), "over")):  # fmt: skip
        sheet = Sheet("b", SimpleNamespace())  # type: ignore[arg-type]
        result = BoardResult("b", None, reports={"native": report([1], "aa"), "cpu": other})
        same_tokens(sheet, result)
        assert [row.status for row in sheet.rows] == [status]


@pytest.mark.long
def test_the_page_s_example(tmp_path: Path, capsys: pytest.CaptureFixture[str], demo: Path) -> None:
    """docs/check.md's project as it stands there, with the demo model as its model."""
    need("module:ziglang", "module:unicorn", "module:capstone")
    page = (ROOT / "docs" / "check.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```toml\n(schema_version.*?)```", page, re.S)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "reader").symlink_to(demo)
    (tmp_path / "boards").mkdir()
    shipped = ROOT / "board_configs" / "boards" / f"{PICO}.toml"
    (tmp_path / "boards" / "reader-v2.toml").write_text(shipped.read_text())
    (tmp_path / "colibri.toml").write_text(example)
    assert cli.main(["check", str(tmp_path)]) == 0, capsys.readouterr().out
    done = Checked(0, *capsys.readouterr(), tmp_path / "colibri-check")
    names = {r["name"] for r in done.json["rows"]}
    known = set(re.findall(r"`([a-z_0-9.]+)`", page)) | {"emulate.native", "emulate.cpu"}
    for name in names:
        kind = name.split(".")[0]
        assert name in known or f"{kind}.NAME" in page, name
    assert done.row("same_tokens")["status"] == "ok"
    assert done.row("group.runtime", PICO)["value"] > 0
    assert done.row("group.start-up", PICO)["value"] > 0
    assert {path.name for path in done.folder.iterdir()} >= {*REPORT_FILES[:3], PICO}


# --- the command ---------------------------------------------------------------------------------


def test_only_some_boards(run: Check, small: Callable[..., str]) -> None:
    two = small(board=f"[boards.b]\nboard = '{PICO}'\nbuild = false\nemulate = []\n")
    done = run(two, "--board", "b")
    assert [board["name"] for board in done.json["boards"]] == ["b"]
    assert len(run(two, "--board", "b", "--board", PICO).json["boards"]) == 2
    refused = run(two, "--board", "pimoroni-pico-plus-3")
    assert refused.code == 2
    assert f"did you mean '{PICO}'? there are: {PICO}, b" in refused.err


def test_json_is_the_file(run: Check, small: Callable[..., str]) -> None:
    done = run(small(), "--json")
    assert done.code == 0
    assert json.loads(done.out) == done.json
    over = run(small("[budgets]\nimage_bytes = 1"), "--json")
    assert over.code == 1
    assert json.loads(over.out)["verdict"] == "over"


def test_json_keys_are_stable(run: Check, small: Callable[..., str]) -> None:
    """A key that goes or changes its meaning raises `schema`; docs/check.md names each."""
    found = run(small()).json
    assert list(found) == ["schema", "project", "file", "verdict", "counts", "rows", "boards"]
    assert found["schema"] == 1
    assert list(found["counts"]) == list(STATUSES)
    for row in found["rows"]:
        assert list(row) == [
            "board", "step", "name", "what", "status", "detail", "value", "unit", "kind", "warn",
            "limit", "capacity", "at_least",
        ]  # fmt: skip
        assert row["status"] in STATUSES
    assert list(found["boards"][0]) == [
        "name", "board", "verdict", "image", "plan", "firmware", "size", "emulate"
    ]  # fmt: skip
    page = (ROOT / "docs" / "check.md").read_text(encoding="utf-8")
    for key in (*found, *found["rows"][0], *found["boards"][0]):
        assert f"`{key}`" in page
    for status in STATUSES:
        assert f"| {status} |" in page


def test_output_folders(run: Check, small: Callable[..., str], tmp_path: Path) -> None:
    text = small(board="emulate = []\n")
    assert run(text, output="new/ä b/out").code == 0
    (tmp_path / "taken").write_text("x")
    refused = run(text, output="taken")
    assert (refused.code, (tmp_path / "taken").read_text()) == (2, "x")
    assert "taken: cannot be made" in refused.err
    (tmp_path / "blocked" / "summary.md").mkdir(parents=True)
    refused = run(text, output="blocked")
    assert refused.code == 2
    assert "summary.md: cannot be written: Is a directory" in refused.err


def test_the_project_s_own_folder_is_no_output(
    run: Check, small: Callable[..., str], tmp_path: Path
) -> None:
    """Reports are removed when a check begins, and these are the user's."""
    (tmp_path / "summary.md").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path)
    for output in (".", "link"):
        done = run(small(board="emulate = []\n"), output=output)
        assert (done.code, (tmp_path / "summary.md").read_text()) == (2, "mine")
        assert "--output: is the folder of the project file" in done.err


def test_an_exception_that_nobody_meant_leaves_the_other_boards(
    run: Check, small: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr("colibri.check.steps.BoardCheck._plan", broken)
    done = run(small(board="emulate = []\n"))
    assert done.code == 2
    assert done.row("plan")["status"] == "unknown"
    assert "please report it: ZeroDivisionError: by nothing" in done.row("plan")["detail"]


def test_reports_do_not_outlive_a_project_that_went_wrong(
    run: Check, small: Callable[..., str]
) -> None:
    assert run(small(board="emulate = []\n")).code == 0
    done = run(small(board="emulat = []\n"))
    assert (done.code, [name for name in REPORT_FILES if (done.folder / name).exists()]) == (2, [])


def test_reports_of_an_earlier_run_do_not_outlive_a_crash(
    run: Check, small: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else CI would upload a verdict of another time."""
    assert run(small(board="emulate = []\n")).code == 0

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("colibri.check.steps.BoardCheck.run", stop)
    done = run(small())
    assert done.code == cli.EXIT_INTERRUPTED
    assert not [name for name in REPORT_FILES if (done.folder / name).exists()]


def test_init_writes_a_file_to_start_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a b.toml"
    assert cli.main(["check", "--init", str(file)]) == 0
    assert load_project(file).targets
    assert cli.main(["check", "--init", str(tmp_path)]) == 0  # a folder, as `check` takes one
    assert load_project(tmp_path).project == load_project(file).project
    before = file.read_text()
    assert cli.main(["check", "--init", str(file)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert file.read_text() == before


def test_python_gets_the_same(small: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "colibri.toml").write_text(small())
    said: list[tuple[str, str]] = []
    result = check(load_project(tmp_path), tmp_path / "o", say=lambda *step: said.append(step))
    assert (result.verdict, result.exit_code) == ("fits", 0)
    assert said == [("pack", PICO), ("plan", PICO), ("emulate", PICO)]


# --- reports -------------------------------------------------------------------------------------

HOSTILE = "a|b\n<c> `d` *e* _f_ [g](h) \\ \x00\x07\x1b[2J\x85\udc80\ufffe\uffff &amp; ]]> é\u202e"


def hostile_result() -> CheckResult:
    rows = [Row(board, "size", HOSTILE, HOSTILE, status, HOSTILE, value, "B", "counted", limit=2)
            for board in (HOSTILE, "b|", "")
            for status in STATUSES for value in (None, 3.0)]  # fmt: skip
    return CheckResult(HOSTILE, Path("a|b.toml"), rows, [BoardResult(HOSTILE, None)])


def cells(line: str) -> int:
    """Cells of a Markdown table row; a backslash escapes what follows it."""
    return len(re.sub(r"\\.", "", line).split("|")) - 2


def test_markdown_tables_keep_their_shape() -> None:
    text = markdown(hostile_result())
    tables_of = re.findall(r"(?:^\|.*\|$\n?)+", text, re.M)
    assert len(tables_of) == 4
    for table in tables_of:
        widths = {cells(line) for line in table.splitlines()}
        assert len(widths) == 1
    assert "\x1b" not in text
    assert "<c>" not in text
    assert text.count("<details>") == text.count("</details>") == 3
    wrong = len([r for r in hostile_result().rows if r.status in ("over", "unknown", "warning")])
    assert len(tables_of[0].splitlines()) == wrong + 2


def test_markdown_says_what_is_wrong_before_all_else(run: Check, small: Callable[..., str]) -> None:
    done = run(small("[budgets]\nimage_bytes = 1"))
    text = (done.folder / "summary.md").read_text(encoding="utf-8")
    assert text.startswith("## small: does not fit\n\n1 board, 1 over, 4 ok\n")
    assert "more than budgets.image\\_bytes limit = 1 B" in text[: text.index("<details>")]
    assert "is predicted from figures of the board, not measured" in text


def assert_junit(text: str) -> ElementTree.Element:
    """The structure that readers of JUnit files agree on."""
    root = ElementTree.fromstring(text.encode("utf-8"))
    assert root.tag == "testsuites"
    kinds = {"failure": "failures", "error": "errors", "skipped": "skipped"}
    for suite in root:
        assert suite.tag == "testsuite"
        assert suite.get("name")
        names = [(case.get("classname"), case.get("name")) for case in suite]
        assert len(set(names)) == len(names)
        assert all(all(name) for name in names)
        assert suite.get("tests") == str(len(suite))
        for kind, attribute in kinds.items():
            assert suite.get(attribute) == str(len(suite.findall(f"testcase/{kind}")))
        for case in suite:
            assert case.tag == "testcase"
            assert [child.tag for child in case] in ([k] for k in (*kinds, "system-out"))
            assert all(child.get("message") for child in case if child.tag in kinds)
    for attribute in ("tests", *kinds.values()):
        assert root.get(attribute) == str(sum(int(suite.get(attribute, "")) for suite in root))
    return root


def test_junit_is_what_its_readers_expect(run: Check, small: Callable[..., str]) -> None:
    root = assert_junit(junit(hostile_result()))
    assert len(root) == 3
    done = run(small("[budgets]\nimage_bytes = 1\ncode_bytes = 1"))
    root = assert_junit((done.folder / "junit.xml").read_text(encoding="utf-8"))
    (failure,), (error,) = root.iter("failure"), root.iter("error")
    assert "budgets.image_bytes" in failure.get("message", "")
    assert "budgets.code_bytes" in error.get("message", "")
    classes = {case.get("classname") for case in root.iter("testcase")}
    assert f"{PICO}.pack" in classes


def test_terminal_takes_hostile_names(capsys: pytest.CaptureFixture[str]) -> None:
    for part in tables(hostile_result()):
        console().print(part)
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\x00" not in out


def test_a_row_s_status_and_bound() -> None:
    def row(value: float | None, **marks: Any) -> Row:
        return Row.of("b", "size", Figure("n", "w", value, "budgets.x", **marks))

    assert row(1).status == "info"
    assert (row(5, capacity=4).status, row(4, capacity=4).status) == ("over", "info")
    assert row(None, limit=1).status == "unknown"
    assert (row(3, limit=4).bound, row(3, warn=4).bound) == ("≤ 4 B", "≤ 4 B (warns)")
    assert row(3, limit=4, at_least=True, unit="tok/s").bound == "≥ 4 tok/s"
    assert row(3, capacity=4).bound == "of 4 B"
    assert counts([row(1), row(None, limit=1)]) == {**dict.fromkeys(STATUSES, 0), "info": 1,
                                                    "unknown": 1}  # fmt: skip
