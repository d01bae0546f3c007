# SPDX-License-Identifier: Apache-2.0
"""`colibri bench`: its contract, traced work, random images and their routing. No timings."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kernels as kernels_bench
from colibri import Engine, Image, _core, cli
from colibri.bench import machine, synthetic
from colibri.bench.machine import Bandwidth, Peak, huge_bytes_at, map_and_touch
from colibri.bench.measure import STARTS, Bench
from colibri.bench.synthetic import Synthetic, make_synthetic
from colibri.bench.trace import Work, routing_of, run_traced
from colibri.engine import EVENT
from colibri.errors import CheckpointError, EngineError, PackError
from colibri.families import describe
from colibri.image_format import Order
from colibri.pack import pack
from colibri.placement import Placement
from needs import need

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
MODELS = {file.stem: file for file in (ROOT / "bench" / "configs").glob("*.json")}
# one of each mixer, router and norm
FAMILIES = ("deepseek_v3", "flex_olmo", "gemma4_text", "gpt_oss", "granitemoehybrid", "jamba",
            "jetmoe", "lfm2_moe", "minimax", "minimax_m2", "olmoe", "phimoe",
            "qwen3_next")  # fmt: skip
TINY = ("--prompt", "6", "--new", "3", "--rounds", "2", "--probe", "4MiB", "--threads", "1,2")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `colibri bench`: exit code, stdout, stderr."""

    def run(*words: str | Path) -> tuple[int, str, str]:
        capsys.readouterr()
        code = cli.main(["bench", *map(str, words)])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def olmoe(tmp_path: Path) -> Path:
    """A config file on its own."""
    path = tmp_path / "config.json"
    path.write_text((GOLDEN / "olmoe" / "config.json").read_text())
    return path


# --- the command ------------------------------------------------------------------------------


def positive(value: Any, where: str = "") -> None:
    """Every number below is more than 0."""
    if isinstance(value, dict):
        for name, inner in value.items():
            positive(inner, f"{where}.{name}")
    elif isinstance(value, int | float):
        assert value > 0, where


def test_json_of_an_image(bench: Run, demo_image: Callable[[str], Path]) -> None:
    code, out, _ = bench(demo_image("q4"), *TINY, "--kv", "f16", "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["schema"], found["kind"]) == (1, "measured")
    assert list(found["threads"]) == ["1", "2"]
    for each in found["threads"].values():
        assert set(each) == {"decode", "prefill"}
        assert set(each["decode"]) == {"tok_s", "tok_s_least", "tok_s_most", "gb_s",
                                       "share_of_read_bandwidth"}  # fmt: skip
        assert set(each["prefill"]) == {"tok_s", "tok_s_least", "tok_s_most", "gmac_s",
                                        "share_of_int8_peak"}  # fmt: skip
        positive(each)
    for reading in found["machine"]["read_bandwidth"].values():
        assert reading.pop("prefetch_bytes") in machine.AHEAD  # 0 may be the best
    for name in ("read_bandwidth", "int8_peak", "cores"):
        positive(found["machine"][name], name)
    positive(found["start"])
    assert found["settings"]["context"] == 9
    assert found["settings"]["batch"] == 6
    assert found["settings"]["tokens"] == "greedy"
    assert found["image"]["synthetic"] is None
    assert found["machine"]["read_probe"]["bytes"] == 4 << 20


def test_pages_are_asked_for(bench: Run, demo_image: Callable[[str], Path]) -> None:
    code, out, _ = bench(demo_image("q4"), *TINY, "--pages", "huge", "--json")
    assert code == 0
    assert json.loads(out)["settings"]["pages"] == "huge"


def test_traced_work_of_the_demo(bench: Run, demo_image: Callable[[str], Path]) -> None:
    """By hand from the tensor table: every matrix once, top_k experts, the KV cache."""
    path = demo_image("q4")
    code, out, _ = bench(path, *TINY, "--kv", "f16", "--json")
    assert code == 0
    image, found = Image(path), json.loads(out)["traced"]
    config = image.config
    dense = [t for t in image.tensors if t.rows > 1 and not t.is_expert]
    assert config["tied"]  # the embedding is read once, as the output
    weights = sum(t.bytes for t in dense)
    macs = sum(t.rows * t.columns for t in dense)
    shared = [t for t in image.tensors if t.name == "shared_router"]
    weights += sum(t.bytes for t in shared)
    macs += sum(t.columns for t in shared)
    experts = config["layers"] * config["top_k"]
    weights += experts * image.experts[0].bytes
    macs += experts * 3 * config["hidden"] * config["expert_size"]
    positions = np.mean([6 + i + 1 for i in range(3)])
    row = config["kv_heads"] * config["head_size"]
    weights += config["layers"] * positions * 2 * row * 2
    macs += config["layers"] * positions * config["heads"] * config["head_size"] * 2
    assert found["decode_bytes_per_token"] == round(weights)
    assert found["decode_macs_per_token"] == round(macs)


def test_table_says_measured(bench: Run, olmoe: Path) -> None:
    code, out, err = bench("--config", olmoe, *TINY, "--routing", "sticky")
    assert code == 0
    for words in (
        "Speed, measured",
        "GB/s",
        "GMAC/s",
        "The machine, measured",
        "sticky",
        "(traced)",
    ):
        assert words in out, words
    assert str(olmoe) in out
    assert "last-level cache" in err or not machine.last_level_cache()


def test_random_image_is_removed(bench: Run, olmoe: Path, tmp_path: Path,
                                 monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code, out, _ = bench("--config", olmoe, *TINY, "--json")
    found = json.loads(out)["image"]
    assert code == 0
    assert (found["file"], found["config"]) == (None, str(olmoe))
    assert list(tmp_path.iterdir()) == [olmoe]


def test_keep_uses_the_same_image_again(bench: Run, olmoe: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept.colibri"
    words = ("--config", olmoe, *TINY, "--keep", kept, "--layers", "2", "--quant", "q8")
    assert bench(*words)[0] == 0
    first = kept.stat()
    assert bench(*words)[0] == 0
    assert kept.stat().st_mtime_ns == first.st_mtime_ns
    assert Image(kept).config["layers"] == 2
    code, _, err = bench(*words, "--seed", "1")
    assert code == 2
    assert "another model" in err
    assert kept.stat().st_mtime_ns == first.st_mtime_ns


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give exactly one of the two"),
        (("--quant", "q3"), "q4"),
        (("--threads", "0"), "as in 1,2"),
        (("--threads", "1,x"), "as in 1,2"),
        (("--threads", "65"), "64"),
        (("--probe", "lots"), "64 KiB"),
        (("--group", "48"), "32, 64, 128"),
        (("--layers", "9"), "valid is 1 to 3"),
        (("--prompt", "300"), "the context holds 256"),
        (("--context", "5", "--prompt", "6"), "the context holds 5"),
        (("--kernels", "none"), "ref"),
    ],
)  # fmt: skip
def test_bad_words(bench: Run, olmoe: Path, words: tuple[str, ...], said: str) -> None:
    source = ("--config", olmoe) if words else ()
    code, _, err = bench(*source, "--new", "2", "--rounds", "1", "--probe", "1MiB", *words)
    assert code == 2
    assert said in err
    assert "internal error" not in err


def test_bad_sources(bench: Run, olmoe: Path, tmp_path: Path,
                     demo_image: Callable[[str], Path]) -> None:  # fmt: skip
    code, _, err = bench(demo_image("q4"), "--routing", "sticky")
    assert code == 2
    assert "--config" in err
    olmoe.write_text("{")
    assert bench("--config", olmoe)[0] == 2
    olmoe.write_text('{"architectures": ["NoSuchModel"]}')
    code, out, err = bench("--config", olmoe, "--json")
    assert code == 2
    assert json.loads(out)["error"]["field"] == "architectures"
    code, _, err = bench("--config", tmp_path / "none.json")
    assert code == 2
    assert "none.json" in err


def test_no_room(bench: Run, olmoe: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(synthetic.shutil, "disk_usage", lambda path: usage)
    code, _, err = bench("--config", olmoe, "--keep", tmp_path / "x.colibri")
    assert code == 2
    assert "has 1,000" in err
    assert list(tmp_path.iterdir()) == [olmoe]


# --- random images ----------------------------------------------------------------------------


def made(name: str, folder: Path, **wish: Any) -> Image:
    path = folder / f"{name}-{len(list(folder.iterdir()))}.colibri"
    return make_synthetic(Synthetic(GOLDEN / name / "config.json", **wish), path)


def routing_kind(image: Image) -> Any:
    engine = Engine(image, context=96, batch=16, trace=True)
    prompt = np.random.default_rng(0).integers(image.vocabulary, size=48, dtype=np.uint32)
    return run_traced(engine, prompt, 48, "random", 0).routing


@pytest.mark.parametrize("name", FAMILIES)
def test_random_images_of_families(name: str, tmp_path: Path) -> None:
    """Valid, as large as a packed checkpoint tensor by tensor, finite, and routed as asked."""
    order = Order.TILES if FAMILIES.index(name) % 2 else Order.ROWS
    uniform = made(name, tmp_path, order=order)
    uniform.verify()
    engine = Engine(uniform)
    engine.selftest()
    logits = engine.infer([1, 2, 3], all_logits=True)
    assert np.isfinite(logits).all()
    assert 0.1 < logits.std() < 10
    pack(GOLDEN / name, tmp_path / "packed", quant="q4", order=order,
         selftest=lambda *_: (0, 0, 0))  # fmt: skip
    packed = Image(tmp_path / "packed")
    assert uniform.config == packed.config
    shapes = [[t[:7] for t in image.tensors] for image in (uniform, packed)]  # up to columns
    assert shapes[0] == shapes[1]
    even, sticky = (
        routing_kind(uniform),
        routing_kind(made(name, tmp_path, routing="sticky", order=order)),
    )
    assert (even.kind, sticky.kind) == ("uniform", "sticky")
    assert abs(even.same_as_previous - even.same_by_chance) < 0.1
    assert sticky.same_as_previous > even.same_as_previous + 0.2
    assert sticky.entropy_bits < even.entropy_bits


@pytest.mark.parametrize(("quant", "group"), [("f32", None), ("f16", None), ("bf16", None),
                                              ("q8", 128), ("q4", 64), ("q4", 128)])  # fmt: skip
def test_types_of_random_weights(quant: str, group: int | None, tmp_path: Path) -> None:
    image = made("olmoe", tmp_path, quant=quant, group=group)
    image.verify()
    assert np.isfinite(Engine(image).infer([3, 1])).all()
    for tensor in image.tensors:
        if tensor.type_name not in ("q8", "q4") or tensor.is_expert:
            continue
        assert tensor.group == group
        codes = codes_of(image, tensor)
        least = {"q8": -127, "q4": -7}[tensor.type_name]
        assert codes.min() == least
        assert codes.max() == -least
        assert not codes[:, tensor.columns :].any()  # hidden is 64: half a group of 128 is padding


def codes_of(image: Image, tensor: Any) -> Any:
    """As docs/spec.md has them, section 4."""
    if tensor.order == Order.TILES:
        return codes_of_tiles(image, tensor)
    groups = -(-tensor.columns // tensor.group)
    data = np.frombuffer(image.read(tensor.offset, tensor.bytes), np.uint8)
    if tensor.type_name == "q8":
        stored = data[: tensor.rows * groups * tensor.group].view(np.int8)
        return stored.reshape(tensor.rows, groups * tensor.group)
    pairs = data[: tensor.rows * groups * tensor.group // 2].reshape(-1, tensor.group // 2)
    codes = np.concatenate([pairs & 15, pairs >> 4], axis=1).astype(np.int8) - 8
    return codes.reshape(tensor.rows, groups * tensor.group)


def codes_of_tiles(image: Image, tensor: Any) -> Any:
    """Byte by byte; rows after the last whole tile lie as in order 0."""
    per_byte = 1 if tensor.type_name == "q8" else 2
    stride = -(-tensor.columns // tensor.group) * tensor.group // per_byte
    data = image.read(tensor.offset, tensor.rows * stride)
    tiled = tensor.rows // 16 * 16
    rest = tensor._replace(order=0, rows=tensor.rows - tiled, bytes=len(data) - tiled * stride,
                           offset=tensor.offset + tiled * stride)  # fmt: skip
    codes = np.zeros((tensor.rows, stride * per_byte), np.int8)
    codes[tiled:] = codes_of(image, rest)
    tiles = np.frombuffer(data, np.uint8)[: tiled * stride].reshape(tiled // 16, -1, 16, 4)
    for j in range(4):  # tiles: tile, block, row, byte
        byte = tiles[..., j].swapaxes(1, 2).reshape(tiled, -1)
        if per_byte == 1:
            codes[:tiled, j::4] = byte.view(np.int8)
        else:
            codes[:tiled, j::8] = (byte & 15).astype(np.int8) - 8
            codes[:tiled, 4 + j :: 8] = (byte >> 4).astype(np.int8) - 8
    return codes


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("hidden", [32, 96])
def test_padding_within_half_a_group(
    hidden: int, order: Order, tmp_path: Path, olmoe: Path
) -> None:
    """Groups of 128: a byte holds columns j and j + 64, of which one, both or none are there."""
    config = json.loads(olmoe.read_text()) | {"hidden_size": hidden}
    olmoe.write_text(json.dumps(config))
    image = make_synthetic(Synthetic(olmoe, "q4", 128, order=order), tmp_path / "image")
    query = next(t for t in image.tensors if t.name == "query")
    codes = codes_of(image, query)
    assert codes.shape == (hidden, 128)
    assert not codes[:, hidden:].any()
    assert (codes[:, :hidden] != 0).mean() > 0.8


def test_seed_decides_the_bytes(tmp_path: Path) -> None:
    first, same, other = (made("mixtral", tmp_path, seed=seed) for seed in (5, 5, 6))
    whole = [image.read(0, image.bytes) for image in (first, same, other)]
    assert whole[0] == whole[1]
    assert whole[0] != whole[2]
    assert first.notes["synthetic"] == {
        "routing": "uniform",
        "seed": 5,
        "order": "rows",
        "layers": 2,
    }


def test_records_at_blocks(tmp_path: Path) -> None:
    """Laid out for streaming: another image, even where the files are as long."""
    blocks = Placement.of("monolithic", 4096)
    image = made("olmoe", tmp_path, placement=blocks)
    image.verify()
    assert not any(expert.offset % 4096 for expert in image.experts)
    wish = Synthetic(GOLDEN / "olmoe" / "config.json", placement=blocks)
    assert image.path is not None
    assert make_synthetic(wish, image.path).bytes == image.bytes
    with pytest.raises(PackError, match="another model"):
        make_synthetic(Synthetic(wish.config), image.path)


def test_layers_are_cut(tmp_path: Path) -> None:
    image = made("olmoe", tmp_path, layers=1)
    assert {t.layer for t in image.tensors} == {0, _core.GLOBAL_LAYER}
    with pytest.raises(CheckpointError, match="valid is 1 to 3"):
        made("olmoe", tmp_path, layers=4)


def test_something_else_in_the_way(tmp_path: Path, olmoe: Path) -> None:
    (tmp_path / "text").write_text("not an image")
    with pytest.raises(PackError, match="no image"):
        make_synthetic(Synthetic(olmoe), tmp_path / "text")
    assert (tmp_path / "text").read_text() == "not an image"


@pytest.mark.parametrize(("name", "billions", "active"), [("granite-3.0-1b-a400m", 1.3, 0.4),
                                                          ("olmoe-1b-7b", 6.9, 1.3)])  # fmt: skip
def test_published_dimensions(name: str, billions: float, active: float) -> None:
    """The configs of the comparison are as large as their authors say."""
    model = describe(json.loads(MODELS[name].read_text()), MODELS[name])
    total = used = 0
    for wanted in model.tensors:
        if wanted.role.name == "output" and model.settings.tied:
            continue
        size = wanted.role.rows(model.settings) * wanted.role.columns(model.settings)
        total += size
        share = model.settings.top_k / model.settings.experts if wanted.expert is not None else 1
        used += size * share
    assert total / 1e9 == pytest.approx(billions, abs=0.05)
    assert used / 1e9 == pytest.approx(active, abs=0.05)


# --- work and routing from events -------------------------------------------------------------


def events(*rows: tuple[str, int, int, int, int, int]) -> Any:
    return np.array([(_core.EVENTS[kind], *rest) for kind, *rest in rows], EVENT)


def test_work_counts_what_is_read_and_multiplied() -> None:
    found = Work.of(events(("step", 0, 0, 1, 7, 7), ("matmul", 0, 17, 1, 10, 100),
                           ("expert", 0, 3, 1, 20, 200), ("attend", 0, 0, 1, 40, 400),
                           ("vector", 0, 0, 1, 80, 800), ("read", 0, 0, 1, 160, 0)))  # fmt: skip
    assert found == Work(70, 700)


def test_routing_by_hand() -> None:
    """Two of four experts; tokens choose 01, 02 in one step, then 02, in one layer."""
    found = routing_of(events(
        ("step", 0, 0, 2, 0, 0),
        ("route", 0, 0, 0 << 16 | 0, 0, 0), ("route", 0, 1, 1 << 16 | 0, 0, 0),
        ("route", 0, 2, 0 << 16 | 1, 0, 0), ("route", 0, 0, 1 << 16 | 1, 0, 0),
        ("step", 0, 0, 1, 0, 0),
        ("route", 0, 0, 0 << 16 | 0, 0, 0), ("route", 0, 2, 1 << 16 | 0, 0, 0),
    ), 4)  # fmt: skip
    assert found is not None
    assert found.tokens == 3
    assert found.same_as_previous == pytest.approx((0.5 + 1) / 2)
    assert found.same_by_chance == 0.5
    assert found.entropy_bits == pytest.approx(0.5 + np.log2(6) / 6 + np.log2(3) / 3)
    assert found.kind == "sticky"
    assert routing_of(events(("step", 0, 0, 1, 0, 0)), 0) is None


def test_timed_calls_are_the_same_calls(demo_image: Callable[[str], Path]) -> None:
    engines = [Engine(demo_image("q4"), context=16) for _ in range(2)]
    tokens = np.arange(1, 9, dtype=np.uint32)
    seconds = engines[0].core.time_infer(tokens, 2)
    assert seconds.shape == (4,)
    assert (seconds > 0).all()
    engines[1].infer(tokens)
    assert engines[0].length() == engines[1].length() == 8
    assert np.array_equal(engines[0].infer([9]), engines[1].infer([9]))
    for step in (0, 3):
        with pytest.raises(ValueError, match="multiple of step"):
            engines[0].core.time_infer(tokens, step)
    with pytest.raises(EngineError):  # the context is full after one of them
        engines[0].core.time_infer(tokens, 7 + 1)


# --- the machine ------------------------------------------------------------------------------


def test_probes_give_figures() -> None:
    bandwidth = Bandwidth(1 << 20, (1, 2))
    for threads in (1, 2):
        assert all(reading.gb_s > 0 for reading in bandwidth.by_pages(threads))
    peak = Peak(0.001)
    assert peak.sample(2) > 0
    assert peak.instruction == _core.int8_kernel()
    seconds, macs = _core.int8_run(3, 1000)
    assert seconds > 0
    assert macs % 3000 == 0
    for bad in (0, 2000):
        with pytest.raises(ValueError, match="1 to 1024"):
            _core.int8_run(bad, 1)
    with pytest.raises(ValueError, match="1 or more"):
        _core.ReadProbe(0, False)


def test_a_kernel_alone_gives_figures(capsys: pytest.CaptureFixture[str],
                                      monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    words = ["--quant=q4", "--group=64", "--tokens=2", "--rounds=2", "--probe=4MiB", "--json"]
    monkeypatch.setattr(sys, "argv", ["kernels.py", *words])
    kernels_bench.main()
    rows = json.loads(capsys.readouterr().out)["measured"]
    assert [row["tokens"] for row in rows] in ([1, 2], [1, 1, 2])
    assert {row["kernels"] for row in rows} == {_core.kernels()[-1]}
    assert all(0 < row["least"] <= row["share"] <= row["most"] for row in rows)
    assert all(row["measured"] > 0 and row["floor"] > 0 for row in rows)


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"type": 0}, "type must"), ({"group": 48}, "group must"), ({"order": 2}, "order must"),
     ({"rows": 24}, "rows must"), ({"columns": 96}, "rows must"), ({"tokens": 0}, "rows must")],
)  # fmt: skip
def test_products_that_no_kernel_takes(changes: dict[str, int], said: str) -> None:
    sizes = {"type": _core.TYPES["q8"], "group": 64, "rows": 32, "columns": 128, "tokens": 1,
             "order": 1}  # fmt: skip
    assert _core.MatmulProbe("ref", **sizes, huge=False).bytes == 32 * 128 + 32 * 2 * 2
    with pytest.raises(ValueError, match=said):
        _core.MatmulProbe("ref", **{**sizes, **changes}, huge=False)


def test_small_pages_when_the_system_gives_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "huge_bytes_at", lambda address: 0)
    assert {r.pages for r in Bandwidth(1 << 20, (1,)).by_pages(1)} == {"4 KiB"}


def test_huge_pages_are_those_of_the_mapping(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "1000-3000 rw-p 00000000 00:00 0\nSize: 8 kB\nAnonHugePages:   0 kB\n"
        "200000-600000 rw-p 00000000 00:00 0\nAnonHugePages:   4096 kB\nFilePmdMapped: 0 kB\n"
    )
    monkeypatch.setattr(machine, "_text", lambda file: text)
    assert [huge_bytes_at(a) for a in (0x1000, 0x3FFFFF, 0x600000)] == [0, 4 << 20, 0]


def test_a_busy_machine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {}
    for load in (0.1, 7.0):
        monkeypatch.setattr(machine.os, "getloadavg", lambda load=load: (load, 0, 0))
        said[load] = machine.busy(machine.facts() | {"cores": 2})
    assert said[0.1] is None
    assert "7 programs were running on 2 cores" in str(said[7.0])


def test_map_and_touch(olmoe: Path) -> None:
    assert map_and_touch(olmoe) > 0


def test_steps_of_the_bar(demo_image: Callable[[str], Path]) -> None:
    from colibri.bench.measure import measure

    bench = Bench(prompt=2, new=2, threads=(1,), rounds=1, probe_bytes=1 << 20)
    done: list[int] = []
    measure(demo_image("q4"), bench, "random", done.append)
    assert sum(done) == bench.steps == 2 + STARTS + 2


# --- the comparison with llama.cpp ------------------------------------------------------------


@pytest.mark.parametrize(("quant", "order"), [("Q4_0", Order.ROWS), ("Q4_K_M", Order.TILES)])
@pytest.mark.parametrize("name", MODELS)
def test_gguf_holds_the_same_weights(name: str, quant: str, order: Order, tmp_path: Path) -> None:
    need("module:gguf")
    import gguf

    import write_gguf

    config = json.loads(MODELS[name].read_text()) | {
        "hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4,
        "num_key_value_heads": 4, "vocab_size": 300, "num_hidden_layers": 9, "num_experts": 8,
        "num_local_experts": 8,
    }  # fmt: skip
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    image = make_synthetic(Synthetic(file, order=order), tmp_path / "image")
    assert {t.order for t in image.tensors if t.type_name in ("q8", "q4")} == {order}
    write_gguf.write_gguf(image, file, tmp_path / "gguf", quant)
    stored = {t.name: t for t in gguf.GGUFReader(tmp_path / "gguf").tensors}
    assert len(stored) == len([t for t in image.tensors if t.name != "rope"])
    values = {n: gguf.dequantize(t.data, t.tensor_type) for n, t in stored.items()}
    for tensor in (t for t in image.tensors if t.type_name in ("q8", "q4")):
        found = values[write_gguf.NAMES[tensor.name].format(tensor.layer) + ".weight"]
        expected = weights_of(image, tensor)
        if config["model_type"] == "granitemoe" and tensor.name in ("query", "key"):
            expected = np.concatenate([  # rows 2i, 2i + 1: element i of both halves
                expected[64 * h + half * 32 + i][None]
                for h in range(4) for i in range(32) for half in (0, 1)
            ])  # fmt: skip
        largest = np.abs(expected).max()
        # q8 becomes 6 or 4 bits, everything else stays what it is
        within = {"q4": 0.0, "q8": 0.14}[tensor.type_name]
        assert np.abs(found - expected).max() <= within * largest, tensor.name
        assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.99
    last = stored["output.weight" if "output.weight" in stored else "token_embd.weight"]
    assert last.tensor_type.name == "Q6_K"
    finer = [i for i in range(9) if stored[f"blk.{i}.attn_v.weight"].tensor_type.name == "Q6_K"]
    assert finer == ([] if quant == "Q4_0" else [0, 3, 6, 7, 8])  # an eighth at both ends, a third


def weights_of(image: Image, tensor: Any) -> Any:
    """Values of a tensor; of an expert's role those of all experts of the layer."""
    offsets = [tensor.offset]
    if tensor.is_expert:
        count = image.config["experts"]
        offsets = [e.offset + tensor.offset for e in image.experts[tensor.layer * count :][:count]]
    parts = []
    for offset in offsets:
        at = tensor._replace(offset=offset)
        scales = image.read(offset + tensor.bytes - 2, 2)
        parts.append(codes_of(image, at) * np.frombuffer(scales, "<f2").astype(np.float32))
    return np.stack(parts) if tensor.is_expert else parts[0]


def test_gguf_of_other_images_is_refused(tmp_path: Path, demo_image: Callable[[str], Path]) -> None:
    need("module:gguf")
    import write_gguf

    with pytest.raises(PackError, match="granitemoe or olmoe"):
        write_gguf.write_gguf(Image(demo_image("q4")), tmp_path / "c", tmp_path / "gguf")
