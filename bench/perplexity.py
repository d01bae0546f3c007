# SPDX-License-Identifier: Apache-2.0
"""The table of docs/quantisation.md: what each type of weights costs in perplexity.

    python bench/perplexity.py                          # every row, the demo model's held-out texts
    python bench/perplexity.py --only "q4 g64" --json   # rows whose name has these words in it
    python bench/perplexity.py --llama-cpp PYTHON       # a row more: Q4_0 made by llama.cpp itself

PYTHON is an interpreter that has llama-cpp-python.  Windows of 512 tokens; in each, tokens 2 and
on are predicted by the C runtime.  Needs the `dev` extra (gguf).
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from gguf import GGMLQuantizationType as Ggml
from numpy.typing import NDArray

from colibri import Engine, Image, Tokenizer
from colibri.compensate import Factor
from colibri.families import describe
from colibri.image_format import Type, align
from colibri.pack import pack
from colibri.quantize import Encoded, encode, pack_nibbles, to_f16
from colibri.sources import open_source

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "models/demo-moe"
WINDOW = 512
sys.path.insert(0, str(ROOT / "tests/python"))

Make = Callable[[Path], Path]


def nearest(rows: NDArray[np.float32], kind: Type, group: int, *_: Any) -> Encoded:
    """Round to nearest with the scale that reaches the largest magnitude; no search."""
    if not group:
        return encode(rows, kind, group)
    most = 127 if kind is Type.Q8 else 7
    padded = np.zeros((len(rows), align(rows.shape[1], group)), np.float32)
    padded[:, : rows.shape[1]] = rows
    groups = padded.reshape(len(rows), -1, group)
    scales = to_f16(np.abs(groups).max(-1) / np.float32(most))
    step = scales.astype(np.float32)[..., None]
    ratio = np.divide(groups, step, out=np.zeros_like(groups), where=step != 0)
    codes = np.clip(np.rint(ratio), -most, most).astype(np.int8)
    packed = codes if kind is Type.Q8 else pack_nibbles(codes)
    return Encoded(packed.tobytes(), scales.astype("<f2").tobytes())


def column_weights(moments: NDArray[np.float64]) -> NDArray[np.float64]:
    """In the place of Factor.of: the search is weighted, but nothing is compensated."""
    return np.diagonal(moments).copy()


def variants(source: Path, calibration: Path) -> dict[str, Make]:
    """Rows of the table: name -> what writes the image into a folder."""

    def packed(quant: str, group: int = 32, *patches: Any, text: Path | None = None) -> Make:
        def make(folder: Path) -> Path:
            with ExitStack() as stack:
                for patch in patches:
                    stack.enter_context(patch)
                return pack(source, folder / "image", quant=quant, group=group,
                            calibration_text=text, selftest=lambda *_: (0, 0, 0)).image  # fmt: skip

        return make

    rounded = mock.patch("colibri.pack.encode", nearest)
    weighted = mock.patch.object(Factor, "of", column_weights)
    rows = {"f32": packed("f32"), "q8 g32, nearest": packed("q8", 32, rounded),
            "q8 g32, searched": packed("q8")}  # fmt: skip
    for group in (32, 64, 128):
        rows[f"q4 g{group}, nearest"] = packed("q4", group, rounded)
        rows[f"q4 g{group}, searched"] = packed("q4", group)
        rows[f"q4 g{group}, weighted"] = packed("q4", group, weighted, text=calibration)
        rows[f"q4 g{group}, compensated"] = packed("q4", group, text=calibration)
    return rows


def as_q4_0(name: str, values: NDArray[Any]) -> tuple[NDArray[Any], Ggml]:
    """A tensor as llama.cpp stores it in a Q4_0 file, but the embedding in Q8_0 as ours."""
    from gguf_files import as_type

    return as_type(Ggml.Q8_0 if name == "token_embd.weight" else Ggml.Q4_0)(name, values)


def q4_0(source: Path, python: str | None) -> Make:
    """An image with the very codes and scales of Q4_0: its blocks are q4 groups of 32.

    By llama.cpp's own quantiser when there is an interpreter that has it, else by that of the
    gguf package.  llama.cpp itself cannot run the demo model: it does not normalise the weights of
    the chosen experts in this architecture.  So the file is packed, and the C runtime runs it.
    """

    def make(folder: Path) -> Path:
        from gguf_files import write

        file = folder / "model.gguf"
        if python is None:
            write(file, "qwen2_moe", source, quantise=as_q4_0)
        else:
            write(folder / "f32.gguf", "qwen2_moe", source)
            script = Path(__file__).with_name("llama_quantize.py")
            subprocess.run([python, script, folder / "f32.gguf", file], check=True,
                           stderr=subprocess.DEVNULL)  # fmt: skip
        with settings_of(source):
            exact = pack(file, folder / "exact", quant="f32", selftest=lambda *_: (0, 0, 0)).image
            image = pack(file, folder / "image", quant="q4", selftest=lambda *_: (0, 0, 0)).image
        check_same(exact, image)
        return image

    return make


def settings_of(source: Path) -> Any:
    """A GGUF file of this architecture does not say whether the experts' weights are normalised."""
    checkpoint = open_source(source)
    known = describe(checkpoint.config, checkpoint.config_file, checkpoint.adapt).settings
    return mock.patch(
        "colibri.pack.describe", lambda *given: replace(describe(*given), settings=known)
    )


def check_same(exact: Path, image: Path) -> None:
    """Packing a Q4_0 file as q4 must change no weight."""
    from image_reader import walk

    one, other = walk(exact).tensors, walk(image).tensors
    changed = [key for key in one if not np.array_equal(one[key], other[key])]
    if changed:
        raise SystemExit(f"{len(changed)} tensors are not those of the GGUF file: {changed[:3]}")


def perplexity(image: Path, texts: list[list[int]]) -> float:
    """Perplexity of all texts together."""
    engine = Engine(Image(image), context=WINDOW, batch=128)
    total, count = 0.0, 0
    for ids in texts:
        for window in (np.array(ids[at : at + WINDOW]) for at in range(0, len(ids), WINDOW)):
            if len(window) < 2:
                break
            engine.reset(0)
            rows = engine.infer(window, all_logits=True)[:-1]
            top = rows.max(-1, keepdims=True)
            normal = np.log(np.exp(rows - top).sum(-1, dtype=np.float64)) + top[:, 0]
            total += float((normal - rows[np.arange(len(rows)), window[1:]]).sum())
            count += len(rows)
    return math.exp(total / count)


def bits(image: Path) -> float:
    """Bits of a weight in quantised tensors other than embedding and output."""
    chosen = [t for t in Image(image).tensors if t.name not in ("embedding", "output")]
    chosen = [t for t in chosen if t.group] or [t for t in chosen if t.rows > 1]
    return 8 * sum(t.bytes for t in chosen) / sum(t.rows * t.columns for t in chosen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkpoint", nargs="?", type=Path, default=DEMO)
    parser.add_argument("--texts", nargs="+", type=Path, help="default: the demo model's own")
    parser.add_argument("--calibrate", type=Path, help="default: the demo model's own text")
    parser.add_argument("--only", default="", help="words in the rows' names")
    parser.add_argument("--llama-cpp", metavar="PYTHON", help="has llama-cpp-python")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    reference = given.checkpoint / "reference"
    files = given.texts or sorted(reference.glob("valid_*.txt"))
    tokenizer = Tokenizer((given.checkpoint / "tokenizer.json").read_bytes())
    texts = [tokenizer.encode(file.read_bytes().decode()) for file in files]
    rows = variants(given.checkpoint, given.calibrate or reference / "calibration.txt")
    rows["Q4_0, gguf package"] = q4_0(given.checkpoint, None)
    if given.llama_cpp:
        rows["Q4_0, llama.cpp"] = q4_0(given.checkpoint, given.llama_cpp)
    base = 0.0
    for name, make in rows.items():
        if name != "f32" and given.only not in name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            image = make(Path(folder))
            found, size = perplexity(image, texts), bits(image)
        base = base or found
        above = 100 * (found / base - 1)
        if given.json:
            row = {"row": name, "bits": size, "perplexity": found, "percent_above_f32": above}
            print(json.dumps(row), flush=True)
        else:
            print(f"{name:24} {size:6.3f} bits {found:9.4f} {above:+.3f} %", flush=True)


if __name__ == "__main__":
    main()
