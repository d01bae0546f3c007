# SPDX-License-Identifier: Apache-2.0
"""`colibri trace` and `colibri cache-study`: what is recorded, the file, the contract."""

from __future__ import annotations

import hashlib
import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import variants
from colibri import Engine, Image, _core, cli
from colibri.errors import EngineError, TraceError
from colibri.experts.study import POLICIES, SHARINGS
from colibri.experts.trace import ExpertTrace, Text, image_id, record
from colibri.experts.trace_file import read_trace, write_trace
from colibri.pack import pack

Run = Callable[..., tuple[int, str, str]]
PROMPT = "lantern, lamp (noun):"


@pytest.fixture
def colibri(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command in this process: exit code, stdout, stderr."""

    def run(*words: str | Path) -> tuple[int, str, str]:
        capsys.readouterr()
        code = cli.main([str(word) for word in words])
        return code, *capsys.readouterr()

    return run


@pytest.fixture(scope="session")
def q4(demo_image: Callable[[str], Path]) -> Path:
    return demo_image("q4")


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Callable[[str], Image]:
    """A golden checkpoint as an image; none has a tokenizer."""
    folder = tmp_path_factory.mktemp("golden")

    def packed(name: str) -> Image:
        path = folder / f"{name}.colibri"
        if not path.exists():
            pack(root / "tests" / "golden" / name, path, quant="f32")
        return Image(path)

    return packed


@pytest.fixture(scope="session")
def ids(demo: Path, q4: Path) -> list[int]:
    """150 tokens of a text."""
    text = (demo / "reference" / "valid_docs.txt").read_text("utf-8")
    return Image(q4).tokenizer.encode(text)[:150]


# --- what is recorded -----------------------------------------------------------------------------


def test_choices_are_those_of_decoding(q4: Path, ids: list[int]) -> None:
    """Token by token, an engine's own events: the order, the counts, the bytes."""
    image = Image(q4)
    trace = record(image, Text.of_ids(ids), context=64)
    engine = Engine(image, 64, trace=True)
    heat = np.zeros((6, 16), int)
    for position, token in enumerate(ids):
        if position % 64 == 0:
            engine.reset()
        engine.infer([token])
        events = engine.take_trace()
        routes = events[events["kind"] == _core.EVENTS["route"]]
        assert routes["layer"].tolist() == sorted(routes["layer"].tolist())
        assert trace.choices[position].ravel().tolist() == routes["index"].tolist()
        used = events[events["kind"] == _core.EVENTS["expert"]]
        np.add.at(heat, (used["layer"], used["index"]), used["count"])
        assert set(used["bytes"].tolist()) == set(trace.record_bytes)
    assert trace.heat == heat.tolist()
    first, second = np.sort(trace.choices[0, :2]).tolist()
    assert trace.steps[:2] == [first, [16 + expert for expert in second]]


def test_workers_and_kernels_change_nothing(q4: Path, ids: list[int]) -> None:
    image, text = Image(q4), Text.of_ids(ids[:70])
    one = record(image, text)
    other = record(image, text, workers=2, kernels="ref")
    assert (one.choices == other.choices).all()
    assert one.routing == other.routing


def test_layers_without_experts_are_left_out(golden: Callable[[str], Image]) -> None:
    image = golden("deepseek_v3")
    trace = record(image, Text.of_ids(range(20)))
    dense = [i for i, kind in enumerate(image.core.layers()) if kind[1] != 2]
    assert dense
    assert not set(dense) & set(trace.layers)
    assert trace.choices.shape == (20, len(trace.layers), trace.top_k)


def test_identities_are_recorded_without_heat(golden: Callable[[str], Image]) -> None:
    image = golden("longcat_flash")
    trace = record(image, Text.of_ids(range(60)))
    assert trace.identities == image.config["identities"] > 0
    assert trace.experts + trace.identities == image.config["experts"]
    assert (trace.choices >= trace.experts).any()
    weighted = int((trace.choices < trace.experts).sum())
    assert sum(map(sum, trace.heat)) == weighted == sum(map(len, trace.steps))


def test_routers_of_attention_experts_are_not_mixed_in(golden: Callable[[str], Image]) -> None:
    trace = record(golden("jetmoe"), Text.of_ids(range(10)))
    assert trace.choices.shape[:2] == (10, len(trace.layers))


def test_a_dense_model_is_refused(tmp_path: Path) -> None:
    variant = next(iter(variants.load("llama").values()))
    pack(variants.checkpoint(tmp_path / "checkpoint", variant), tmp_path / "dense", quant="f32")
    with pytest.raises(TraceError, match="no experts"):
        record(Image(tmp_path / "dense"), Text.of_ids([1, 2]))


def test_what_the_model_does_not_have_is_refused(q4: Path) -> None:
    image = Image(q4)
    for ids, context, words in (([4096], None, "0 to 4095"), ([], None, "at least one"),
                                ([1], 1025, "up to 1024")):  # fmt: skip
        with pytest.raises(EngineError, match=words):
            record(image, Text(tuple(ids), "ids", ""), context=context)


# --- the file -------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def traced(q4: Path, ids: list[int]) -> ExpertTrace:
    return record(Image(q4), Text.of_ids(ids))


@pytest.fixture
def file(traced: ExpertTrace, tmp_path: Path) -> Path:
    path = tmp_path / "trace.json"
    write_trace(traced, path)
    return path


def test_a_trace_comes_back_as_it_was(traced: ExpertTrace, file: Path) -> None:
    found = read_trace(file)
    assert (found.choices == traced.choices).all()
    for name in vars(traced):
        if name not in ("choices", "heat", "steps"):
            assert getattr(found, name) == getattr(traced, name), name
    assert [path.name for path in file.parent.iterdir()] == ["trace.json"]


def test_heat_is_in_the_file_as_counts(traced: ExpertTrace, file: Path, q4: Path) -> None:
    found = json.loads(file.read_text())
    assert (found["schema"], found["kind"]) == (1, "expert-trace")
    assert found["heat"] == {"layers": traced.heat}
    assert sum(map(sum, traced.heat)) == 150 * 6 * 2
    assert found["tokenizer"] == hashlib.sha256(Image(q4).section_bytes("tokenizer")).hexdigest()
    assert found["text"]["sha256"] == hashlib.sha256(
        np.array(found["ids"], "<u4").tobytes()).hexdigest()  # fmt: skip


def _without(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda fields: fields.pop(name)


def _with(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda fields: fields.update({name: value})


def _choice(value: Any) -> Callable[[dict[str, Any]], None]:
    def change(fields: dict[str, Any]) -> None:
        fields["choices"][7][3][1] = value

    return change


def _twice(fields: dict[str, Any]) -> None:
    fields["choices"][7][3] = [5, 5]


def _other_heat(fields: dict[str, Any]) -> None:
    fields["heat"]["layers"][2][1] += 1


BROKEN = {
    "kind": (_with("kind", "memory"), "kind", "expert-trace"),
    "no kind": (_without("kind"), "kind", "colibri trace"),
    "schema": (_with("schema", 2), "schema", "reads 1"),
    "missing": (_without("top_k"), "top_k", "colibri trace"),
    "a word": (_with("experts", "16"), "experts", "valid is 1 to 4096"),
    "a truth": (_with("experts", True), "experts", "valid is 1 to 4096"),
    "too many choices": (_with("top_k", 17), "top_k", "valid is 1 to 16"),
    "no layers": (_with("layer_numbers", []), "layer_numbers", "in order"),
    "layers fall": (_with("layer_numbers", [0, 2, 1, 3, 4, 5]), "layer_numbers", "in order"),
    "layers are no list": (_with("layer_numbers", 6), "layer_numbers", "whole numbers"),
    "too few records": (_with("record_bytes", [4]), "record_bytes", "must have 6"),
    "empty record": (_with("record_bytes", [9, 9, 0, 9, 9, 9]), "record_bytes[2]", "valid is 1"),
    "too few ids": (_with("tokens", 151), "ids", "must have 151"),
    "no tokens": (_with("tokens", 0), "tokens", "valid is 1"),
    "an id": (lambda f: f["ids"].__setitem__(3, -1), "ids[3]", "valid is 0"),
    "image id": (_with("image", "xyz"), "image", "32 hexadecimal"),
    "tokenizer": (_with("tokenizer", 5), "tokenizer", "64 hexadecimal"),
    "text": (_with("text", []), "text", "colibri trace"),
    "source": (_with("text", {"source": "web"}), "text.source", "'ids'"),
    "sha256": (_with("text", {"source": "ids", "sha256": "0"}), "text.sha256", "64 hexadecimal"),
    "routing": (_with("routing", None), "routing", "colibri trace"),
    "no choices": (_with("choices", []), "choices", "150 tokens"),
    "choices of text": (_with("choices", "abc"), "choices", "150 tokens"),
    "ragged": (lambda f: f["choices"][7][3].append(1), "choices", "150 tokens of 6 layers of 2"),
    "fraction": (_choice(1.5), "choices", "whole numbers"),
    "negative": (_choice(-1), "choices[7][3][1]", "valid is 0 to 15"),
    "too high": (_choice(16), "choices[7][3][1]", "valid is 0 to 15"),
    "too large": (_choice(10**30), "choices", "whole numbers"),
    "nothing": (_choice(None), "choices", "whole numbers"),
    "twice": (_twice, "choices[7][3]", "once"),
    "heat": (_other_heat, "heat.layers", "again"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_trace_is_refused_by_field(name: str, file: Path) -> None:
    change, field, hint = BROKEN[name]
    fields = json.loads(file.read_text())
    change(fields)
    file.write_text(json.dumps(fields))
    with pytest.raises(TraceError) as caught:
        read_trace(file)
    assert (caught.value.file, caught.value.field) == (str(file), field)
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000, b"NaN", b"{}"])
def test_what_is_no_trace_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "no.json"
    path.write_bytes(content)
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert caught.value.file == str(path)
    assert "colibri trace" in (caught.value.hint or "")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    for path, words in ((tmp_path / "no.json", "does not exist"), (tmp_path, "is a folder")):
        with pytest.raises(TraceError, match=words):
            read_trace(path)


# --- colibri trace --------------------------------------------------------------------------------


def test_trace_of_a_prompt_a_file_and_ids_is_the_same(
    colibri: Run, q4: Path, tmp_path: Path
) -> None:
    tokens = Image(q4).tokenizer.encode(PROMPT)
    (tmp_path / "p.txt").write_text(PROMPT)
    (tmp_path / "p.json").write_text(json.dumps(tokens))
    ways = {"prompt": ("--prompt", PROMPT), "file": ("--text", tmp_path / "p.txt"),
            "ids": ("--tokens", ",".join(map(str, tokens))),
            "list": ("--text", tmp_path / "p.json")}  # fmt: skip
    found = {}
    for name, way in ways.items():
        code, out, _ = colibri("trace", q4, *way, "-o", tmp_path / name, "--json")
        assert code == 0
        found[name] = json.loads(out)
        assert found[name].pop("trace") == str(tmp_path / name)
    assert found["prompt"] == found["file"]
    assert found["ids"] == found["list"]
    assert found["prompt"]["text"] == {
        "source": "text", "sha256": hashlib.sha256(PROMPT.encode()).hexdigest()}  # fmt: skip
    assert found["prompt"]["heat"] == found["ids"]["heat"]
    assert found["prompt"]["tokens"] == len(tokens)
    assert (tmp_path / "prompt").read_text() == (tmp_path / "file").read_text()


def test_json_of_trace(colibri: Run, q4: Path, tmp_path: Path) -> None:
    code, out, _ = colibri("trace", q4, "--prompt", PROMPT, "--first", "3", "-o",
                           tmp_path / "t.json", "--json")  # fmt: skip
    found = json.loads(out)
    assert code == 0
    assert list(found) == ["schema", "kind", "trace", "image", "text", "tokens", "window", "layers",
                           "experts", "top_k", "uses", "record_bytes", "routing",
                           "balance_router", "heat"]  # fmt: skip
    assert (found["schema"], found["kind"], found["tokens"]) == (1, "counted", 3)
    assert found["uses"] == sum(map(sum, found["heat"]["layers"])) == 3 * 6 * 2
    assert found["image"] == image_id(Image(q4))


def test_trace_shows_who_is_hot(colibri: Run, q4: Path, tmp_path: Path) -> None:
    code, out, _ = colibri("trace", q4, "--prompt", PROMPT, "-o", tmp_path / "t.json")
    assert code == 0
    for words in ("Expert use, counted", "hottest", "entropy", "cache-study"):
        assert words in out


def test_an_image_without_tokenizer_takes_ids(
    colibri: Run, golden: Callable[[str], Image], tmp_path: Path
) -> None:
    path = golden("qwen2_moe").path
    assert path is not None
    code, _, err = colibri("trace", path, "--prompt", "x", "-o", tmp_path / "t.json")
    assert code == 2
    assert "--tokens" in err
    assert colibri("trace", path, "--tokens", "1,2,3", "-o", tmp_path / "t.json")[0] == 0
    assert read_trace(tmp_path / "t.json").tokenizer is None


def test_trace_does_not_write_over_what_it_reads(colibri: Run, q4: Path, tmp_path: Path) -> None:
    image, text = tmp_path / "a.colibri", tmp_path / "ids.json"
    image.write_bytes(q4.read_bytes())
    text.write_text("[48, 2858]")
    for output in (image, text):
        before = output.read_bytes()
        code, _, err = colibri("trace", image, "--text", text, "-o", output)
        assert code == 2
        assert "is an input of this trace; give another file" in " ".join(err.split())
        assert output.read_bytes() == before


def test_trace_refuses_bad_input(colibri: Run, q4: Path, tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "word.json").write_text('["a"]')
    output = ("-o", tmp_path / "t.json")
    for words, said in (
        (output, "exactly one"),
        ((*output, "--prompt", "a", "--tokens", "1"), "exactly one"),
        ((*output, "--text", tmp_path / "no.txt"), "does not exist"),
        ((*output, "--text", tmp_path), "is a folder"),
        ((*output, "--text", tmp_path / "latin.txt"), "UTF-8 at byte 3"),
        ((*output, "--text", tmp_path / "word.json"), "[1, 2, 3]"),
        ((*output, "--text", tmp_path / "empty.txt"), "at least one"),
        ((*output, "--tokens", "4096"), "0 to 4095"),
        (("-o", tmp_path / "no" / "t.json", "--tokens", "1"), "cannot be written"),
    ):
        code, _, err = colibri("trace", q4, *words)
        assert code == 2, words
        assert said in err, (words, err)
    assert not (tmp_path / "t.json").exists()


# --- colibri cache-study --------------------------------------------------------------------------


def test_json_of_a_study(colibri: Run, file: Path) -> None:
    code, out, _ = colibri("cache-study", file, "--slots", "4,50%", "--json")
    found = json.loads(out)
    assert code == 0
    assert list(found) == ["schema", "kind", "trace", "pin", "rows", "best", "automatic",
                           "prediction"]  # fmt: skip
    assert (found["schema"], found["kind"], found["prediction"]) == (1, "counted", None)
    every = [(r["slots_per_layer"], r["sharing"], r["policy"]) for r in found["rows"]]
    assert every == [(n, s, p) for n in (4, 8) for s in SHARINGS for p in POLICIES]
    for row in found["rows"]:
        assert row["uses"] == 150 * 6 * 2
        assert row["uses"] - row["hits"] == sum(row["misses"])
        assert row["hit_rate"] == round(row["hits"] / row["uses"], 6)
        size = np.array(row["misses"]) @ np.array(found["trace"]["record_bytes"])
        assert row["bytes_read"] == size
        assert row["bytes_read_per_token"] == round(size / 150, 3)
        assert row["slots"] == 6 * row["slots_per_layer"]
        assert row["points_from_belady"] >= 0
        assert row["predicted"] is None
    for best in found["best"]:
        rows = [r for r in found["rows"] if r["slots_per_layer"] == best["slots_per_layer"]
                and r["policy"] not in ("belady", "pinned")]  # fmt: skip
        assert best["hit_rate"] == max(r["hit_rate"] for r in rows)


def test_study_with_a_board_predicts(colibri: Run, file: Path, q4: Path) -> None:
    words = ("cache-study", file, "--slots", "4", "--per-layer", "--image", q4, "--board",
             "raspberry-pi-zero-2w")  # fmt: skip
    code, out, _ = colibri(*words, "--json")
    found = json.loads(out)
    assert code == 0
    assert {row["sharing"] for row in found["rows"]} == {"per-layer"}
    prediction = found["prediction"]
    assert (prediction["kind"], prediction["storage"]) == ("predicted", "SD")
    assert {each["class"] for each in prediction["inputs"]} >= {"declared", "assumed"}
    compute = prediction["compute_seconds_per_token"]["mid"]
    for row in found["rows"]:
        time = row["predicted"]["seconds_per_token"]
        reading = row["predicted"]["reading_seconds_per_token"]
        assert time["low"] < time["mid"] < time["high"]
        assert time["mid"] == pytest.approx(compute + reading["mid"])
    ordered = sorted(found["rows"], key=lambda r: r["bytes_read"])
    times = [r["predicted"]["seconds_per_token"]["mid"] for r in ordered]
    assert times == sorted(times)
    code, out, err = colibri(*words)
    assert "predicted" in out
    assert "predicted" in err


def test_study_says_what_is_best(colibri: Run, file: Path) -> None:
    code, out, err = colibri("cache-study", file, "--slots", "25%", "--shared")
    assert code == 0
    assert "24 slots for all layers (25 % of the experts), shared" in out
    assert "best is " in out
    assert "Belady is " in out
    assert "counted" in err
    assert "per-layer" not in out


@pytest.mark.parametrize("suffix", [".svg", ".html"])
def test_plot(suffix: str, colibri: Run, file: Path, tmp_path: Path) -> None:
    path = tmp_path / f"study{suffix}"
    code, _, err = colibri("cache-study", file, "--pin", file, "-o", path)
    assert code == 0
    assert str(path) in err.replace("\n", "")
    text = path.read_text().removeprefix("<!doctype html>\n").replace('<meta charset="utf-8">', "")
    root = ET.fromstring(text)
    lines = list(root.iter("{http://www.w3.org/2000/svg}polyline"))
    assert len(lines) == len(POLICIES) * 2
    for line in lines:
        heights = [float(point.split(",")[1]) for point in line.attrib["points"].split()]
        assert heights == sorted(heights, reverse=True)  # more slots, more hits, on this trace
    if suffix == ".html":
        assert len(list(root.iter("tr"))) == 1 + len(POLICIES) * 2 * 3


def test_study_refuses_bad_input(colibri: Run, file: Path, q4: Path, tmp_path: Path) -> None:
    for words, said in (
        ((tmp_path / "no.json",), "does not exist"),
        ((file, "--slots", "1"), "valid is 2 to 16"),
        ((file, "--slots", "four"), "4,8 or 25%,50%"),
        ((file, "--image", q4), "takes both"),
        ((file, "--board", "ti-sk-am62"), "takes both"),
        ((file, "--storage", "SD"), "is for a --board"),
        ((file, "-o", tmp_path / "x.png"), ".svg or .html"),
        ((file, "-o", tmp_path / "no" / "x.svg"), "cannot be written"),
        ((file, "--image", q4, "--board", "ti-sk-am62", "--storage", "x"), "has no storage 'x'"),
    ):
        code, _, err = colibri("cache-study", *words)
        assert code == 2, words
        assert said in err, (words, err)
