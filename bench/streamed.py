# SPDX-License-Identifier: Apache-2.0
"""A model larger than memory: tokens a second against what the disk allows, and llama.cpp.

Random weights at published dimensions are written once for each kind of routing. Each program
runs in a process of its own that is held to so many bytes (memory_limit.py). Colibri reads
missing experts past the page cache; llama.cpp maps its file, with the disk's read-ahead as told.
All take turns, and between any two turns the disk's own speed is measured, so that the floor is
of the same minute: bytes of missed experts / bytes a second of direct reads of the same size.

    python bench/streamed.py --folder /tmp                          # about 10 minutes
    python bench/streamed.py --llama-cpp no --memory 1GiB --json    # Colibri and its floor alone
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from colibri import Image
from colibri.bench.machine import busy, facts
from colibri.bench.synthetic import Synthetic, make_synthetic
from colibri.cli.common import console, emit_json, note, progress, table
from colibri.engine import KV_TYPES, POLICIES
from colibri.errors import ColibriError
from colibri.image import READERS
from colibri.placement import STREAM_BLOCK, Placement
from colibri.units import format_bytes, parse_size
from colibri.weight_order import HOST, order_of_target
from compare_llama_cpp import MODELS, environment
from disk import Disk, equal_pieces, forget, read_ahead, read_ahead_file
from memory_limit import KINDS, Limit, hold
from write_gguf import write_gguf

HERE = Path(__file__).resolve().parent
ROUTINGS = ("uniform", "sticky")
PIECE_MOST = 2 << 20  # of the POSIX port's reader


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser = argparse.ArgumentParser(description="A model larger than memory, held to a limit.")
    parser.add_argument("config", nargs="?", type=Path, default=MODELS["olmoe-1b-7b"])
    parser.add_argument("--memory", type=parse_size, default=2 << 30, help="limit of each process")
    parser.add_argument("--held-by", choices=KINDS, help="default: the first that is permitted")
    parser.add_argument("--routing", choices=ROUTINGS, nargs="+", default=list(ROUTINGS))
    parser.add_argument("--quant", default="q4")
    parser.add_argument("--layers", type=int, help="only the first layers, for a quick look")
    parser.add_argument("--policy", choices=POLICIES, default="auto")
    parser.add_argument("--prefetch", choices=("both", "off", "on"), default="both",
                        help="read ahead of the router")  # fmt: skip
    parser.add_argument("--kv", choices=KV_TYPES, default="f16")
    parser.add_argument("--readers", type=int, default=READERS, help="reads at once")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--context", type=int, default=64, help="most tokens of a turn")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each program")
    parser.add_argument("--seconds", type=float, default=2.5, help="of a turn, at least")
    parser.add_argument("--warm", type=float, default=15, help="seconds of the first turn")
    parser.add_argument(
        "--llama-cpp", metavar="KIB", default="8192,128",
        help="read-aheads of the disk to run llama.cpp with; no: without it",
    )  # fmt: skip
    parser.add_argument(
        "--environment", type=Path, default=cache / "colibri" / "llama-cpp",
        help="Python environment of llama-cpp-python; made when missing",
    )  # fmt: skip
    parser.add_argument(
        "--folder", type=Path, help="where the models are or go, and stay; default: a temporary one"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(words)
    try:
        none = given.llama_cpp == "no"
        given.read_aheads = [] if none else [int(kib) for kib in given.llama_cpp.split(",")]
    except ValueError:
        parser.error(f"--llama-cpp is {given.llama_cpp}; use KiB as in 8192,128, or no")
    if min(given.rounds, given.context, given.readers, given.threads) < 1:
        parser.error("--rounds, --context, --readers and --threads must be 1 or more")
    return given


@dataclass
class Turn:
    """What one program did between two measurements of the disk."""

    tokens: int
    seconds: float
    told: dict[str, Any]
    disk: float  # bytes a second, mean of before and after

    @property
    def tok_s(self) -> float:
        return self.tokens / self.seconds

    @property
    def floor_tok_s(self) -> float | None:
        """What the disk allows: nothing takes time but the reads that had to be."""
        needed: int = self.told["bytes_read"] - self.told["wasted_bytes"]
        return self.tokens * self.disk / needed if needed else None


@dataclass
class Player:
    """A program in a process that is held to a limit."""

    name: str
    job: dict[str, Any]
    limit: Limit
    python: Path
    kib: int | None = None  # read-ahead of the disk
    turns: list[Turn] = field(default_factory=list)
    failure: str | None = None
    about: dict[str, Any] = field(default_factory=dict)

    def start(self) -> None:
        """Opens the model and fills what memory there is."""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # until `end`
        command = [str(self.python), str(HERE / "run_streamed.py"), json.dumps(self.job)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
            preexec_fn=self.limit.enter, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )  # fmt: skip
        self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        code = self._process.wait()
        self._log.seek(0)
        said = self._log.read().decode(errors="replace").strip().splitlines()[-3:]
        raise ColibriError(f"{self.name} ended with {code}: {' '.join(said)}")

    def play(self, seconds: float, least: int = 2) -> dict[str, Any]:
        """Decodes for so long."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"seconds": seconds, "least": least}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def end(self) -> None:
        """Notes what the process took; ends it."""
        peak, met = self.limit.peak(self._process.pid), self.limit.met()
        assert self._process.stdin is not None
        if self._process.poll() is None and self.failure is None:
            self._process.stdin.close()
            self.about = self._answer()
        else:
            self._process.kill()
        self._process.wait()
        self._log.close()
        self.about |= {"limit_bytes": self.limit.bytes, "held_by": self.limit.kind,
                       "peak_bytes": peak, "limit_met": met}  # fmt: skip


def models(given: argparse.Namespace, routing: str, folder: Path) -> tuple[Path, Path]:
    """The image and, when it is wanted, the GGUF file of the same weights; made when missing."""
    stem = folder / f"{given.config.stem.split('-')[0]}_{routing}"
    ours, theirs = stem.with_suffix(".colibri"), stem.with_suffix(".gguf")
    placement = Placement.of("monolithic", STREAM_BLOCK)  # slots are filled without a copy
    wish = Synthetic(given.config, given.quant, 32, routing, given.layers, given.seed,  # type: ignore[arg-type]
                     order_of_target(HOST), placement)  # fmt: skip
    with progress(f"{ours.name}: random weights") as bar:
        image = make_synthetic(wish, ours, bar)
    if given.read_aheads and not theirs.exists():
        with progress(f"{theirs.name}: the same weights"):
            unfinished = theirs.with_suffix(".part")
            write_gguf(image, given.config, unfinished)
            unfinished.rename(theirs)
    return ours, theirs


def player_of(
    given: argparse.Namespace, name: str, program: str, model: Path, python: Path,
    limit: Limit | None = None, kib: int | None = None, **more: Any,
) -> Player:  # fmt: skip
    """A program that is held to the limit, or to one of its own."""
    limit = limit or hold(given.memory, given.held_by)
    job = {"program": program, "model": str(model), "limit": limit.bytes, "held": limit.kind,
           "context": given.context, "threads": given.threads, "seed": given.seed, "kv": given.kv,
           "policy": given.policy, "readers": given.readers, "more": more}  # fmt: skip
    return Player(name, job, limit, python, kib)


@contextlib.contextmanager
def started(player: Player, given: argparse.Namespace) -> Iterator[None]:
    """With its memory full; one that cannot start takes no turns."""
    file = Path(player.job["model"])
    forget(file)  # what is in the page cache already would cost nothing
    try:
        try:
            with read_ahead(file, player.kib):
                player.start()
                player.play(given.warm, 1)
        except (ColibriError, OSError) as error:
            player.failure = str(error)
        yield
    finally:
        player.end()


def take_turns(those: list[Player], given: argparse.Namespace, disk: Disk, advance: Any) -> None:
    """Every round each program once, and the disk before and after it."""
    rate = disk.rate()
    for _ in range(given.rounds):
        for player in those:
            if player.failure is None:
                with read_ahead(Path(player.job["model"]), player.kib):
                    told = player.play(given.seconds)
                before, rate = rate, disk.rate()
                tokens, seconds = told.pop("tokens"), told.pop("seconds")
                player.turns.append(Turn(tokens, seconds, told, (before + rate) / 2))
            advance(1)


def figures(player: Player) -> dict[str, Any]:
    """One program's measurements."""
    fields: dict[str, Any] = {"failure": player.failure, "read_ahead_kib": player.kib,
                              **player.about}  # fmt: skip
    if not player.turns:
        return fields
    rates = [turn.tok_s for turn in player.turns]
    fields |= {"tok_s": _short(statistics.median(rates)), "tok_s_least": _short(min(rates)),
               "tok_s_most": _short(max(rates)), "turns": len(rates),
               "tokens": sum(turn.tokens for turn in player.turns)}  # fmt: skip
    if "bytes_read" in player.turns[0].told:
        fields |= _floor(player.turns)
    return fields


def _floor(turns: list[Turn]) -> dict[str, Any]:
    """Against the disk, turn by turn."""
    total = {key: sum(turn.told[key] for turn in turns)
             for key in ("hits", "misses", "prefetched", "wasted_bytes", "bytes_read",
                         "traced_bytes_read")}  # fmt: skip
    if total["bytes_read"] != total.pop("traced_bytes_read"):
        raise ColibriError("bytes read are not those of the trace")
    tokens = sum(turn.tokens for turn in turns)
    floors = [(turn.floor_tok_s, turn.tok_s) for turn in turns if turn.floor_tok_s]
    shares = [tok_s / floor for floor, tok_s in floors]
    return {
        **total,
        "bytes_read_per_token": round(total["bytes_read"] / tokens),
        "wasted_bytes_per_token": round(total["wasted_bytes"] / tokens),
        "hit_rate": _short(total["hits"] / max(1, total["hits"] + total["misses"])),
        "disk_bytes_s": round(statistics.median(turn.disk for turn in turns)),
        "floor_tok_s": _short(statistics.median(f for f, _ in floors)) if floors else None,
        "share_of_floor": _short(statistics.median(shares)) if floors else None,
        "share_of_floor_least": _short(min(shares)) if floors else None,
        "share_of_floor_most": _short(max(shares)) if floors else None,
    }  # fmt: skip


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def one_routing(
    given: argparse.Namespace, routing: str, folder: Path, python: Path
) -> dict[str, Any]:
    """All programs with one kind of routing."""
    files = models(given, routing, folder)
    image = Image(files[0], map=False)
    block = equal_pieces(max(expert.bytes for expert in image.experts), PIECE_MOST)
    disk = Disk(files[0], block)
    own = Path(sys.executable)
    wanted = {"off": ["off"], "on": ["on"], "both": ["off", "on"]}[given.prefetch]
    ours = [player_of(given, f"colibri, prefetch {how}", "colibri", files[0], own,
                      prefetch=how == "on") for how in wanted]  # fmt: skip
    free = player_of(given, "colibri, all in memory", "colibri", files[0], own,
                     Limit("none", 2 * image.total_bytes))  # fmt: skip
    theirs = [player_of(given, f"llama.cpp, read-ahead {kib} KiB", "llama.cpp", files[1], python,
                        kib=kib) for kib in given.read_aheads]  # fmt: skip
    with progress("measuring") as bar, contextlib.ExitStack() as stack:
        advance = bar((1 + len(theirs)) * (len(ours) + 1) * given.rounds)
        for player in (*ours, free, *theirs):
            stack.callback(player.limit.close)
        for player in ours:
            stack.enter_context(started(player, given))
        # one beside ours at a time: programs that map the same file share what is in memory of it
        for other in [free, *theirs]:
            with started(other, given):
                take_turns([*ours, other], given, disk, advance)
    disk.close()
    told = {player.name: figures(player) for player in (*ours, free, *theirs)}
    best = max((told[player.name].get("tok_s", 0) for player in theirs), default=0)
    for player in ours:
        told[player.name] |= _compared(player, free, best)
    return {"image_bytes": image.total_bytes, "disk_block_bytes": block,
            "disk_reads_at_once": disk.threads, "routing": ours[0].about.get("routing"),
            "programs": told}  # fmt: skip


def _compared(ours: Player, free: Player, best: float) -> dict[str, Any]:
    """Against the slower of disk and processor, in the turns beside `free`, and llama.cpp."""
    beside = list(zip(ours.turns, free.turns, strict=False))
    if not beside:
        return {}
    bounds = [min(mine.floor_tok_s or other.tok_s, other.tok_s) for mine, other in beside]
    shares = [mine.tok_s / bound for (mine, _), bound in zip(beside, bounds, strict=True)]
    median = statistics.median(turn.tok_s for turn in ours.turns)
    return {
        "bound_tok_s": _short(statistics.median(bounds)),
        "share_of_bound": _short(statistics.median(shares)),
        "times_best_llama_cpp": _short(median / best) if best else None,
    }  # fmt: skip


def show(result: dict[str, Any]) -> None:
    out = console()
    for routing, each in result["routings"].items():
        rows = table(
            f"{result['config']}, {routing} routing", "program", ">tok/s", ">least", ">most",
            ">floor", ">of the floor", ">MB/token", ">hits", ">peak MB", ">limit",
            caption=_caption(each),
        )  # fmt: skip
        for name, told in each["programs"].items():
            if "tok_s" not in told:
                rows.add_row(name, told["failure"] or "no turn")
                continue
            ours = told.get("floor_tok_s") is not None
            rows.add_row(
                name, *(f"{told[key]:.2f}" for key in ("tok_s", "tok_s_least", "tok_s_most")),
                f"{told['floor_tok_s']:.2f}" if ours else "",
                f"{100 * told['share_of_floor']:.1f} %" if ours else "",
                f"{told['bytes_read_per_token'] / 1e6:.1f}" if ours else "",
                f"{100 * told['hit_rate']:.1f} %" if ours else "",
                f"{(told['peak_bytes'] or told['peak_rss_bytes']) / 1e6:.1f}",
                "none" if told["held_by"] == "none" else f"{told['limit_bytes'] / 1e6:.1f}",
            )  # fmt: skip
        out.print(rows, "")
        for name, told in each["programs"].items():
            if "bound_tok_s" in told:
                out.print(_bounds(name, told), soft_wrap=True)
        out.print("")
    if said := busy(result["machine"]):
        note(said, style="yellow")


def _bounds(name: str, told: dict[str, Any]) -> str:
    times = told["times_best_llama_cpp"]
    return (
        f"{name}: {100 * told['share_of_bound']:.1f} % of what the slower of disk and processor "
        f"allows ({told['bound_tok_s']:.2f} tok/s)"
        + (f", {times:.2f} times llama.cpp's best" if times else "")
    )


def _caption(each: dict[str, Any]) -> str:
    ours, routing = next(iter(each["programs"].values())), each["routing"]
    if not routing or "tok_s" not in ours:
        return "measured"
    return (
        f"measured; held by {ours['held_by']}; {ours['slots']} slots for {ours['of_experts']} "
        f"experts of {format_bytes(each['image_bytes'])}, policy {ours['policy']}; disk "
        f"{ours['disk_bytes_s'] / 1e9:.2f} GB/s in direct reads of {each['disk_block_bytes']:,} "
        f"bytes; routing traced: {routing['kind']}, {100 * routing['same_as_previous']:.1f} % of "
        f"the experts of the token before ({100 * routing['same_by_chance']:.1f} % by chance), "
        f"entropy {routing['entropy_bits']:.2f} of {routing['entropy_most_bits']:.2f} bits"
    )


def main() -> None:
    given = arguments()
    python = environment(given.environment) if given.read_aheads else Path(sys.executable)
    machine = facts()
    with contextlib.ExitStack() as stack:
        folder = given.folder
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="colibri-bench-")))
        told = {routing: one_routing(given, routing, folder, python) for routing in given.routing}
        where = read_ahead_file(folder)
        told_ahead = where.read_text().strip() if where else None
    result = {
        "kind": "measured", "config": given.config.stem, "machine": machine,
        "read_ahead_kib_of_the_machine": told_ahead, "memory_bytes": given.memory,
        "settings": {key: getattr(given, key) for key in
                     ("quant", "layers", "policy", "kv", "readers", "threads", "context", "rounds",
                      "seconds", "warm", "seed")},
        "routings": told,
    }  # fmt: skip
    if given.json:
        emit_json(result)
    else:
        show(result)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # put back what was changed
    try:
        main()
    except ColibriError as error:
        sys.exit(str(error))
