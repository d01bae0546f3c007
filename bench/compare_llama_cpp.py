# SPDX-License-Identifier: Apache-2.0
"""Colibri against llama.cpp: the same model, the same tokens, the same threads, one run.

A model of random weights at published dimensions is written once for each program, with the same
codes and scales (write_gguf.py). Then the programs take turns, each measurement in a process of
its own with the files in the page cache, and medians of the ratios are told: the machine's own
speed wanders, so nothing else can be compared.

    python bench/compare_llama_cpp.py                       # both models, some minutes
    python bench/compare_llama_cpp.py granite-3.0-1b-a400m --llama-quant Q4_K_M --json
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

import numpy as np

from colibri import Engine, Image
from colibri.bench.machine import busy, facts
from colibri.bench.measure import Bench
from colibri.bench.synthetic import Synthetic, make_synthetic
from colibri.bench.trace import run_traced
from colibri.cli.common import console, emit_json, note, progress, table
from colibri.errors import ColibriError, PackError
from colibri.units import format_bytes
from colibri.weight_order import HOST, order_of_target
from write_gguf import FILE_TYPES, write_gguf

HERE = Path(__file__).resolve().parent
MODELS = {file.stem: file for file in sorted((HERE / "configs").glob("*.json"))}
PACKAGE = "llama-cpp-python"
Runs = dict[int, dict[str, list[dict[str, Any]]]]  # threads -> program -> measurements


def arguments() -> argparse.Namespace:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser = argparse.ArgumentParser(description="Colibri against llama.cpp, in one run.")
    parser.add_argument("models", nargs="*", help=f"default: {' '.join(MODELS)}")
    parser.add_argument("--llama-quant", choices=FILE_TYPES, default="Q4_0")
    parser.add_argument("--routing", choices=("uniform", "sticky"), default="uniform")
    parser.add_argument("--layers", type=int, help="only the first layers, for a quick look")
    parser.add_argument("--prompts", type=_numbers, default=[128, 512])
    parser.add_argument(
        "--new", type=int, default=64, help="tokens of decode, after the first prompt"
    )
    parser.add_argument("--threads", type=_numbers, default=list(Bench.default_threads()))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kernels", default="auto", help="Colibri's")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--environment", type=Path, default=cache / "colibri" / "llama-cpp",
                        help=f"Python environment of {PACKAGE}; made when missing")  # fmt: skip
    parser.add_argument("--folder", type=Path, help="where the models go; default: a temporary one")
    parser.add_argument("--keep", action="store_true", help="leave the models in --folder")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    unknown = [name for name in given.models if name not in MODELS]
    if unknown:
        parser.error(f"no model {unknown[0]}; there are {', '.join(MODELS)}")
    if given.new < 2 or given.rounds < 1:
        parser.error("--new must be 2 or more, --rounds 1 or more")
    if given.keep and not given.folder:
        parser.error("--keep needs --folder")
    return given


def _numbers(text: str) -> list[int]:
    numbers = [int(word) for word in text.split(",")]
    if min(numbers) < 1:
        raise ValueError(text)
    return numbers


def environment(folder: Path) -> Path:
    """The Python of an environment with llama.cpp built for this processor; made when missing."""
    python = folder / "bin" / "python"
    works = [str(python), "-c", "import llama_cpp"]
    if python.exists() and subprocess.run(works, capture_output=True).returncode == 0:
        return python
    note(f"building {PACKAGE} in {folder}: some minutes")
    venv.create(folder, with_pip=True)
    flags = f"{os.environ.get('CMAKE_ARGS', '')} -DGGML_NATIVE=ON"
    subprocess.run(
        [str(python), "-m", "pip", "install", "--quiet", "--no-binary", PACKAGE, PACKAGE, "numpy"],
        check=True, env={**os.environ, "CMAKE_ARGS": flags.strip()}, stdout=sys.stderr,
    )  # fmt: skip
    return python


def make_models(name: str, given: argparse.Namespace, folder: Path) -> tuple[Path, Path]:
    """The model's image and its GGUF file."""
    wish = Synthetic(MODELS[name], "q4", 32, given.routing, given.layers, given.seed,
                     order_of_target(HOST))  # fmt: skip
    ours, theirs = folder / f"{name}.colibri", folder / f"{name}-{given.llama_quant}.gguf"
    with progress(f"{name}: random weights") as bar:
        image = make_synthetic(wish, ours, bar)
    free = shutil.disk_usage(folder).free
    if free < image.bytes:
        what = f"takes about {image.bytes:,} bytes, and {folder} has {free:,}"
        raise PackError(what, file=theirs, hint="give another --folder")
    with progress(f"{name}: {given.llama_quant}"):
        write_gguf(image, MODELS[name], theirs, given.llama_quant)
    return ours, theirs


def take_turns(
    name: str, files: dict[str, Path], given: argparse.Namespace, python: Path, folder: Path
) -> Runs:
    """Both programs, one after the other, `rounds` times for each number of threads."""
    for file in files.values():
        with file.open("rb") as stream:
            while stream.read(1 << 24):
                pass
    programs = {"colibri": (Path(sys.executable), "run_colibri.py"),
                "llama.cpp": (python, "run_llama_cpp.py")}  # fmt: skip
    runs: Runs = {count: {program: [] for program in programs} for count in given.threads}
    with progress(f"{name}: measuring") as bar:
        advance = bar(len(programs) * given.rounds * len(given.threads))
        for round_number in range(given.rounds):
            for count in given.threads:
                turns = list(programs.items())[:: 1 if round_number % 2 == 0 else -1]
                for program, (interpreter, script) in turns:
                    logits = folder / f"{program}.npy" if round_number == 0 else None
                    job = {"model": str(files[program]), "threads": count, "seed": given.seed,
                           "prompts": given.prompts, "new": given.new, "kernels": given.kernels,
                           "logits": str(logits) if logits else None}  # fmt: skip
                    runs[count][program].append(_run(interpreter, script, job))
                    advance(1)
    return runs


def _run(python: Path, script: str, job: dict[str, Any]) -> dict[str, Any]:
    done = subprocess.run([str(python), str(HERE / script), json.dumps(job)],
                          capture_output=True, text=True)  # fmt: skip
    if done.returncode != 0:
        raise ColibriError(f"{script} failed: {done.stderr.strip()[-2000:]}")
    measured: dict[str, Any] = json.loads(done.stdout)
    if not measured["finite"]:
        raise ColibriError(f"{script}: logits are not finite", file=job["model"])
    return measured


def summary(
    name: str, files: dict[str, Path], given: argparse.Namespace, runs: Runs, folder: Path
) -> dict[str, Any]:
    """The figures of one model."""
    logits = {program: np.load(folder / f"{program}.npy").astype(np.float64) for program in files}
    ours, theirs = logits["colibri"], logits["llama.cpp"]
    first = runs[given.threads[0]]
    return {
        "model": name,
        "llama_quant": given.llama_quant,
        "layers": Image(files["colibri"]).config["layers"],
        "programs": {program: runs_of[0]["program"] for program, runs_of in first.items()},
        "file_bytes": {program: file.stat().st_size for program, file in files.items()},
        "routing": _routing(files["colibri"], given),
        "logits_correlation": round(float(np.corrcoef(ours, theirs)[0, 1]), 5),
        "threads": {str(count): _figures(both, given.prompts) for count, both in runs.items()},
    }


def _figures(runs: dict[str, list[dict[str, Any]]], prompts: list[int]) -> dict[str, Any]:
    """Medians of each program, and of the ratios of measurements that followed each other."""
    rates = {"decode_tok_s": [[r["decode_tok_s"] for r in each] for each in runs.values()]}
    for prompt in prompts:
        rates[f"prefill_{prompt}_tok_s"] = [
            [r["prefill_tok_s"][str(prompt)] for r in each] for each in runs.values()
        ]
    for key in ("first_token_s", "own_memory_bytes", "peak_rss_bytes"):
        rates[key] = [[r[key] for r in each] for each in runs.values()]
    found = {}
    for key, (ours, theirs) in rates.items():
        shown = int if key.endswith("bytes") else _short
        ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
        found[key] = {"colibri": shown(statistics.median(ours)),
                      "llama_cpp": shown(statistics.median(theirs)),
                      "ratio": _short(ratio)}  # fmt: skip
    return found


def _short(value: float) -> float:
    return float(f"{value:.5g}")


def _routing(file: Path, given: argparse.Namespace) -> dict[str, Any] | None:
    """Of the weights, which both programs have, on random ids as both get them."""
    prompt, longest = given.prompts[0], max(given.prompts)
    engine = Engine(file, prompt + given.new, max(given.threads), prompt, "f16", given.kernels,
                    trace=True)  # fmt: skip
    random = np.random.default_rng(given.seed)
    tokens = random.integers(engine.vocabulary, size=longest + given.new, dtype=np.uint32)
    routing = run_traced(engine, tokens[:prompt], given.new, "random", given.seed).routing
    return routing.as_dict() if routing else None


def show(model: dict[str, Any]) -> None:
    out = console()
    routing, sizes = model["routing"], model["file_bytes"]
    rows = table(
        f"{model['model']}, {model['layers']} layers, llama.cpp {model['llama_quant']}: measured",
        ">threads", "what", ">Colibri", ">llama.cpp", ">ratio",
    )  # fmt: skip
    for count, figures in model["threads"].items():
        for key, each in figures.items():
            pair = (each["colibri"], each["llama_cpp"])
            shown = [format_bytes(int(v)) if key.endswith("bytes") else f"{v:.4g}" for v in pair]
            rows.add_row(count, key.removesuffix("_bytes").replace("_", " "), *shown,
                         f"{each['ratio']:.3g}")  # fmt: skip
    out.print(rows, "")
    out.print(f"files: {format_bytes(sizes['colibri'])} and {format_bytes(sizes['llama.cpp'])}; "
              f"logits correlate {model['logits_correlation']}", soft_wrap=True)  # fmt: skip
    if routing:
        same = f"{100 * routing['same_as_previous']:.1f} %"
        out.print(f"routing of both (traced): {routing['kind']}, {same} of a token's experts are "
                  "the previous token's", soft_wrap=True)  # fmt: skip
    out.print("")


def main() -> int:
    given = arguments()
    if given.folder:
        given.folder.mkdir(parents=True, exist_ok=True)
    models: list[dict[str, Any]] = []
    machine = facts()
    try:
        python = environment(given.environment)
        for name in given.models or MODELS:
            with tempfile.TemporaryDirectory(prefix="colibri-compare-") as temporary:
                folder = given.folder or Path(temporary)
                ours, theirs = make_models(name, given, folder)
                files = {"colibri": ours, "llama.cpp": theirs}
                try:
                    runs = take_turns(name, files, given, python, Path(temporary))
                    models.append(summary(name, files, given, runs, Path(temporary)))
                finally:
                    if not given.keep:
                        ours.unlink()
                        theirs.unlink()
            if not given.json:
                show(models[-1])
    except (ColibriError, OSError, subprocess.CalledProcessError) as error:
        note(f"error: {error}", style="bold red", markup=False)
        return 2
    if said := busy(machine):
        note(said, style="yellow")
    if given.json:
        settings = {"prompts": given.prompts, "new": given.new, "rounds": given.rounds,
                    "seed": given.seed, "kv": "f16"}  # fmt: skip
        emit_json({"kind": "measured", "machine": machine, "settings": settings, "models": models})
    return 0


if __name__ == "__main__":
    sys.exit(main())
