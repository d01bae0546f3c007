# SPDX-License-Identifier: Apache-2.0
"""Images in huge pages: what the kernel says, what is reported, and what happens without them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from colibri import Engine, Image, plan
from colibri.cli import app
from colibri.errors import ImageError, PlanError

Packed = Callable[[str], Path]
THP = Path("/sys/kernel/mm/transparent_hugepage")
HUGE = 2 << 20

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="huge pages of Linux")


def anon_huge_bytes(address: int) -> int:
    """AnonHugePages of the mapping at an address: read here once more, by other code."""
    mapped = None
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = re.match(r"([0-9a-f]+)-([0-9a-f]+) [r-]", line)
        if head:
            mapped = int(head[1], 16) <= address < int(head[2], 16)
        elif mapped and line.startswith("AnonHugePages:"):
            return int(line.split()[1]) << 10
    raise AssertionError(f"nothing is mapped at {address:#x}")


@linux
def test_a_copy_has_the_files_bytes_and_says_where_they_are(demo_image: Packed) -> None:
    path = demo_image("q4")
    image, mapped = Image(path, pages="huge"), Image(path)
    assert image.read(0, image.bytes) == path.read_bytes()
    assert np.array_equal(Engine(image).infer([1, 2, 3]), Engine(mapped).infer([1, 2, 3]))
    image.verify()
    found = image.pages
    assert found.asked == "huge"
    if found.bytes == 0:
        assert found.reason
        return
    assert found.bytes % HUGE == 0
    assert 0 <= found.bytes - image.bytes < HUGE
    assert image.core.address % HUGE == 0
    assert found.huge_bytes == anon_huge_bytes(image.core.address)
    assert (found.reason is None) == (found.huge_bytes == found.bytes)


def test_a_mapped_file_has_no_memory_of_its_own(demo_image: Packed) -> None:
    found = Image(demo_image("q4")).pages
    assert (found.asked, found.bytes, found.huge_bytes, found.reason) == ("4k", 0, 0, None)


WITHOUT_MEMORY = """
import resource, sys
from colibri import Engine, Image
resource.setrlimit(resource.RLIMIT_DATA, (1 << 20, resource.RLIM_INFINITY))
image = Image(sys.argv[1], pages="huge")
resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY,) * 2)
print(image.pages.bytes, image.pages.reason)
print(Engine(image).infer([1, 2, 3]).argmax(), Engine(sys.argv[1]).infer([1, 2, 3]).argmax())
"""


@linux
def test_without_memory_the_file_is_mapped_and_the_reason_told(demo_image: Packed) -> None:
    command = [sys.executable, "-c", WITHOUT_MEMORY, str(demo_image("q4"))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert first == "0 this process may not have as much memory" or "[never]" in enabled()
    assert len(set(second.split())) == 1


def enabled() -> str:
    """The setting in force, in brackets."""
    path = THP / "enabled"
    return path.read_text() if path.exists() else "[never]"


def test_what_cannot_be_in_huge_pages_is_refused(demo_image: Packed) -> None:
    with pytest.raises(ImageError, match="use one of 4k, huge"):
        Image(demo_image("q4"), pages="1g")
    with pytest.raises(ImageError, match="give a path"):
        Image(demo_image("q4").read_bytes(), pages="huge")
    with pytest.raises(ImageError, match="leave map as it is"):
        Image(demo_image("q4"), map=False, pages="huge")
    with pytest.raises(ImageError, match=r"does not exist|No such file"):
        Image("nowhere.colibri", pages="huge")


def test_an_empty_file_is_no_image(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(ImageError):
        Image(tmp_path / "empty", pages="huge")


def test_run_tells_what_it_got(demo_image: Packed) -> None:
    words = ["run", str(demo_image("q4")), "--tokens", "1,2,3", "--max-new-tokens", "2", "--json"]
    huge, mapped = (
        json.loads(CliRunner().invoke(app, [*words, "--pages", pages]).stdout)
        for pages in ("huge", "4k")
    )
    assert huge["logits_crc32"] == mapped["logits_crc32"]
    assert mapped["pages"]["asked"] == "4k"
    assert huge["pages"]["asked"] == "huge"
    assert huge["pages"]["bytes"] or huge["pages"]["reason"]


def test_a_plan_counts_the_copy(demo_image: Packed) -> None:
    image = Image(demo_image("q4"))
    rows = {}
    for pages in ("4k", "huge"):
        made = plan(image, "ti-sk-am62", context=64, pages=pages)
        rows[pages] = next(row for row in made.region("DDR").buffers if row.name == "image")
    assert rows["4k"].bytes == image.bytes
    assert rows["huge"].bytes == -(-image.bytes // HUGE) * HUGE
    assert "mapped file" in rows["4k"].why
    assert "copy in huge pages" in rows["huge"].why


def test_firmware_has_no_pages_to_ask_for(demo_image: Packed) -> None:
    with pytest.raises(PlanError, match='os = "linux"'):
        plan(demo_image("q4"), "pimoroni-pico-plus-2", pages="huge")
    with pytest.raises(PlanError, match="use one of 4k, huge"):
        plan(demo_image("q4"), "ti-sk-am62", pages="2m")
