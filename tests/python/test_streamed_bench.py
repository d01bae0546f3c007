# SPDX-License-Identifier: Apache-2.0
"""bench/streamed.py: the hold on memory, the disk's speed, the floor; a run of a tiny model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import disk
import memory_limit
from memory_limit import Limit, hold
from needs import need

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "bench"
MIB = 1 << 20
TAKE = "import sys; block = bytearray(int(sys.argv[1])); print('took'); sys.stdin.read()"


def takes(limit: Limit, size: int) -> tuple[bool, int]:
    """Whether a process under the limit gets memory of that size, and its peak."""
    process = subprocess.Popen(
        [sys.executable, "-c", TAKE, str(size)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True, preexec_fn=limit.enter,
    )  # fmt: skip
    assert process.stdout is not None
    took = process.stdout.readline() == "took\n"
    peak = limit.peak(process.pid)
    process.communicate()
    return took, peak


def permitted(kind: memory_limit.Kind) -> list[Limit]:
    try:
        return [hold(160 * MIB, kind) for _ in range(2)]
    except PermissionError:
        return []


@pytest.mark.parametrize("kind", memory_limit.KINDS)
def test_a_process_is_held(kind: memory_limit.Kind) -> None:
    """By whatever this machine permits; RLIMIT_AS is always there."""
    limits = permitted(kind)
    if not limits:
        assert kind != "RLIMIT_AS"
        return
    took, peak = takes(limits[0], 64 * MIB)
    assert took
    assert 64 * MIB <= peak <= 160 * MIB
    assert not takes(limits[1], 256 * MIB)[0]
    for limit in limits:
        limit.close()
        assert limit.group is None or not limit.group.exists()


def test_rlimit_when_no_group_is_permitted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mounts").write_text(
        f"cgroup {tmp_path}/none cgroup rw,memory 0 0\ncgroup {tmp_path}/cpu cgroup rw,cpu 0 0\n"
    )
    monkeypatch.setattr(memory_limit, "MOUNTS", tmp_path / "mounts")
    assert hold(MIB).kind == "RLIMIT_AS"
    with pytest.raises(PermissionError, match="no cgroup v1 for memory"):
        hold(MIB, "cgroup v1")


def test_groups_of_both_versions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Files as the kernel documents them, in a folder that is none of the kernel's."""
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old, new):
        folder.mkdir()
    (new / "cgroup.controllers").write_text("cpu memory\n")
    (tmp_path / "mounts").write_text(f"x {old} cgroup rw,memory 0 0\nx {new} cgroup2 rw 0 0\n")
    monkeypatch.setattr(memory_limit, "MOUNTS", tmp_path / "mounts")
    first, second = hold(5 * MIB), hold(5 * MIB, "cgroup v1")
    assert (first.kind, second.kind) == ("cgroup v2", "cgroup v1")
    assert first.group is not None
    assert second.group is not None
    assert (first.group / "memory.max").read_text() == str(5 * MIB)
    assert (second.group / "memory.limit_in_bytes").read_text() == str(5 * MIB)
    (first.group / "memory.events").write_text("low 0\nhigh 0\nmax 17\noom 0\n")
    (second.group / "memory.failcnt").write_text("3\n")
    (second.group / "memory.max_usage_in_bytes").write_text("4096\n")
    assert (first.met(), second.met(), second.peak(1)) == (17, 3, 4096)
    first.enter()
    assert (first.group / "cgroup.procs").read_text() == "0"


def test_pieces_are_equal_blocks() -> None:
    assert disk.equal_pieces(3538944, 2 * MIB) == 1769472
    assert disk.equal_pieces(2 * MIB, 2 * MIB) == 2 * MIB
    assert disk.equal_pieces(2 * MIB + 1, 2 * MIB) == MIB + 4096
    assert disk.equal_pieces(5000, 2 * MIB) == 8192


def test_the_disk_is_read(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(4 * MIB))
    need(f"direct:{file}")
    measured = disk.Disk(file, MIB, 8 * MIB, (1, 2))
    assert measured.threads in (1, 2)
    assert measured.rate() > 0
    measured.close()
    disk.forget(file)


def test_read_ahead_is_put_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    place = tmp_path / "read_ahead_kb"
    place.write_text("8192\n")
    monkeypatch.setattr(disk, "read_ahead_file", lambda file: place)
    with disk.read_ahead(tmp_path, 128):
        assert place.read_text() == "128"
    assert place.read_text() == "8192\n"
    with disk.read_ahead(tmp_path, None):
        assert place.read_text() == "8192\n"


def told(read: int, wasted: int = 0) -> dict[str, Any]:
    return {"hits": 6, "misses": 2, "prefetched": 1, "bytes_read": read,
            "traced_bytes_read": read, "wasted_bytes": wasted}  # fmt: skip


@pytest.fixture
def streamed() -> Any:
    need("module:gguf")
    import streamed

    return streamed


def test_the_floor_by_hand(streamed: Any) -> None:
    """10 tokens in 4 s that had to read 3 GB, from a disk of 1 GB/s: 3 s at best."""
    turn = streamed.Turn(10, 4.0, told(3_500_000_000, 500_000_000), 1e9)
    assert turn.tok_s == 2.5
    assert turn.floor_tok_s == pytest.approx(10 / 3)
    idle = streamed.Turn(10, 4.0, told(0), 1e9)
    assert idle.floor_tok_s is None
    found = streamed._floor([turn, idle])
    assert found["share_of_floor"] == 0.75
    assert found["hit_rate"] == 0.75
    assert found["bytes_read_per_token"] == 175_000_000
    assert streamed._floor([idle])["floor_tok_s"] is None
    turn.told["traced_bytes_read"] += 1
    with pytest.raises(streamed.ColibriError, match="those of the trace"):
        streamed._floor([turn])


@pytest.mark.parametrize("words", [["--llama-cpp", "much"], ["--rounds", "0"],
                                   ["--held-by", "hope"]])  # fmt: skip
def test_words_that_mean_nothing(streamed: Any, words: list[str]) -> None:
    with pytest.raises(SystemExit):
        streamed.arguments(words)


@pytest.mark.parametrize("held", ["RLIMIT_AS", pytest.param(None, marks=pytest.mark.long)])
def test_a_whole_run(tmp_path: Path, streamed: Any, held: str | None) -> None:
    """A tiny model under RLIMIT_AS, and under the best hold that this machine permits."""
    (tmp_path / "file").write_bytes(bytes(4096))
    need(f"direct:{tmp_path / 'file'}")
    words = ["--rounds", "1", "--seconds", "0.01", "--warm", "0.01", "--routing", "uniform",
             "--llama-cpp", "no", "--threads", "1", "--context", "8", "--prefetch", "on", "--json",
             "--folder", str(tmp_path), *(["--held-by", held] if held else [])]  # fmt: skip
    config = ROOT / "tests" / "golden" / "olmoe" / "config.json"
    command = [sys.executable, str(BENCH / "streamed.py"), str(config), *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    each = json.loads(done.stdout)["routings"]["uniform"]
    assert list(each["programs"]) == ["colibri, prefetch on", "colibri, all in memory"]
    assert [told["failure"] for told in each["programs"].values()] == [None, None]
    assert all(told["tok_s"] > 0 for told in each["programs"].values())
    ours = each["programs"]["colibri, prefetch on"]
    assert held in (None, ours["held_by"])
    assert 0 < ours["peak_bytes"] <= ours["limit_bytes"] == 2 << 30
    assert each["routing"]["kind"] in ("uniform", "sticky")
