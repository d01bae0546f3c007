# SPDX-License-Identifier: Apache-2.0
"""Experts that stay in memory: from a trace or from the image, as many as have room."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from colibri import Image, TraceError, cli, plan
from colibri.convert import convert
from colibri.errors import PackError
from colibri.experts.pins import pins_of_image, pins_of_trace
from colibri.experts.trace import Text, image_id, record
from colibri.experts.trace_file import read_trace, write_trace
from colibri.pack import pack
from colibri.placement import Placement


@pytest.fixture(scope="module")
def demo(demo_image: Callable[[str], Path]) -> Image:
    return Image(demo_image("q4"))


@pytest.fixture(scope="module")
def trace_file(demo: Image, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("trace") / "trace.json"
    write_trace(record(demo, Text.of_ids([i * 7919 % 4096 for i in range(300)])), file)
    return file


def test_pins_of_a_trace(
    demo: Image, trace_file: Path, invoke: Callable[..., dict[str, Any]]
) -> None:
    options = ("--context", 64, "--expert-slots", 27, "--pin", trace_file)
    ran = invoke("run", demo.path, "--tokens", "1,2,3", *options)
    plain = invoke("run", demo.path, "--tokens", "1,2,3", "--context", 64)
    assert ran["logits_crc32"] == plain["logits_crc32"]
    assert set(ran["experts"]) >= {"slots", "hits", "misses", "bytes_read"}
    made = invoke("plan", demo.path, "--board", "raspberry-pi-zero-2w", *options)
    assert made["experts"]["pinned"] == ran["experts"]["pinned"] == 12
    assert "the 12 hottest are pinned" in made["experts"]["why"]
    # the hottest two of each layer
    heat = read_trace(trace_file).heat
    pins = pins_of_trace(demo, trace_file)
    for layer in range(6):
        own = [expert for at, expert in pins if at == layer]
        assert own == sorted(range(16), key=lambda x: (-heat[layer][x], x))[: len(own)]
    shared = plan(demo, "raspberry-pi-zero-2w", 64, streamed=True, expert_slots=8, pins=pins)
    assert shared.experts is not None
    assert shared.experts["pinned"] == 4


def test_pins_without_room_are_said(
    demo: Image, trace_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pinned = [
        "run",
        str(demo.path),
        "--tokens",
        "1,2",
        "--max-new-tokens",
        "1",
        "--pin",
        str(trace_file),
    ]
    for slots, said in ((2, True), (24, False)):
        assert cli.main([*pinned, "--expert-slots", str(slots)]) == 0
        assert ("nothing is pinned" in "".join(capsys.readouterr())) is said


def test_a_trace_is_of_weights_not_of_a_layout(
    demo: Image, trace_file: Path, tmp_path: Path
) -> None:
    """The same model in another layout, and with its records in another order, takes its pins."""
    moved = tmp_path / "hybrid.colibri"
    convert(demo.name, moved, Placement.of("hybrid"))
    ordered = tmp_path / "pinned.colibri"
    pack(Path(__file__).parents[2] / "models" / "demo-moe", ordered, quant="q4", pin=trace_file)
    for other in (Image(moved), Image(ordered)):
        assert image_id(other) == image_id(demo)
        assert pins_of_trace(other, trace_file) == pins_of_trace(demo, trace_file)


def test_a_trace_of_another_image_is_refused(
    demo: Image, demo_image: Callable[[str], Path], trace_file: Path, tmp_path: Path
) -> None:
    other = Image(demo_image("q8"))
    with pytest.raises(TraceError) as caught:
        pins_of_trace(other, trace_file)
    assert image_id(demo) in str(caught.value)
    assert image_id(other) in str(caught.value)
    fields = json.loads(trace_file.read_text())
    fields |= {"image": image_id(demo), "layer_numbers": [1, 2, 3, 4, 5, 6]}
    (tmp_path / "shape.json").write_text(json.dumps(fields))
    with pytest.raises(TraceError, match="layers of 16 experts"):
        pins_of_trace(demo, tmp_path / "shape.json")


def test_pins_that_the_image_brings(
    demo: Image, trace_file: Path, tmp_path: Path, invoke: Callable[..., dict[str, Any]]
) -> None:
    """`pack --pin`: the records lie hottest first, and a run pins those in front."""
    made = tmp_path / "pinned.colibri"
    checkpoint = Path(__file__).parents[2] / "models" / "demo-moe"
    pack(checkpoint, made, quant="q4", pin=trace_file)
    hot = pins_of_image(Image(made))
    assert hot[: len(pins_of_trace(demo, trace_file))] == pins_of_trace(demo, trace_file)
    assert pins_of_image(demo) == []
    options = ("--tokens", "1,2,3", "--context", 64, "--expert-slots", 24)
    assert invoke("run", made, *options)["experts"]["pinned"] == 12
    assert invoke("run", made, *options, "--pin", "none")["experts"]["pinned"] == 0
    assert invoke("run", demo.path, *options)["experts"]["pinned"] == 0
    with pytest.raises(PackError, match="not both"):
        pack(checkpoint, made, quant="q4", pin=trace_file, heat=trace_file)
