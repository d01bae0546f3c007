# SPDX-License-Identifier: Apache-2.0
"""Sizes have one meaning, everything else is refused with the text that would work."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colibri.errors import ColibriError, UnitError
from colibri.units import format_bytes, parse_percent, parse_size, percent_of


@pytest.mark.parametrize(
    ("given", "size"),
    [(0, 0), (7, 7), ("7", 7), ("64 KiB", 65536), ("8MiB", 8 << 20), ("2 GiB", 2 << 30)],
)
def test_sizes(given: object, size: int) -> None:
    assert parse_size(given) == size


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("64KB", "'64 KiB'"),
        ("64 K", "'64 KiB'"),
        ("1 MB", "'1 MiB'"),
        ("2 gb", "'2 GiB'"),
        ("64 kib", "'64 KiB'"),
        ("1.5 GiB", "'1536 MiB'"),
        ("0.5 KiB", "write 512"),
        (" 64 KiB", "'64 KiB'"),
        ("-1", "0 or more"),
        ("-4 KB", "0 or more"),
        ("0x40", "such as"),
        ("٣ KiB", "such as"),
        ("", "such as"),
        ("9" * 30, "such as"),
        (str(2**64), "such as"),
        (-1, "0 or more"),
        (1.0, "such as"),
        (True, "such as"),
        (None, "such as"),
    ],
)
def test_sizes_with_two_meanings_are_refused(given: object, hint: str) -> None:
    with pytest.raises(UnitError) as caught:
        parse_size(given)
    assert caught.value.hint is not None
    assert hint in caught.value.hint


@given(st.one_of(st.text(), st.integers(), st.floats(), st.booleans(), st.none()))
def test_parse_size_returns_a_size_or_its_own_error(value: object) -> None:
    try:
        size = parse_size(value)
    except UnitError:
        return
    assert 0 <= size < 2**64


@given(st.integers(0, 2**40), st.sampled_from(["KiB", "MiB", "GiB"]))
def test_what_is_formatted_exactly_parses_back(count: int, unit: str) -> None:
    size = parse_size(f"{count % 2**20} {unit}")
    assert "." in format_bytes(size) or parse_size(format_bytes(size).removesuffix(" B")) == size


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (532480, "520 KiB"), (-2048, "-2 KiB")],
)
def test_format(size: int, text: str) -> None:
    assert format_bytes(size) == text


def test_exact_format_shows_bytes_and_binary_units() -> None:
    assert format_bytes(128_000, exact=True) == "128,000 B (125 KiB)"


@pytest.mark.parametrize("text", ["0 %", "101 %", "90", "nan %", "-1 %", "1e2 %", "٩ %"])
def test_percentages(text: str) -> None:
    assert parse_percent("12.5%") == 12.5
    with pytest.raises(UnitError):
        parse_percent(text)


def test_shares_are_exact() -> None:
    assert int(1000 * 32.3 / 100) == 322  # what floats make of it
    assert percent_of(1000, 32.3) == 323
    assert percent_of(11.25, 2.0) == Fraction(225, 1000)


def test_unit_errors_are_of_the_tree_and_suit_validators() -> None:
    assert issubclass(UnitError, ColibriError)
    assert issubclass(UnitError, ValueError)
