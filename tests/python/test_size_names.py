# SPDX-License-Identifier: Apache-2.0
"""C++ and Rust names in plain: known ones, real ones, and names that would explode."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import random
import re
import subprocess
from pathlib import Path

import pytest

from colibri.cli import main
from colibri.errors import SizeError
from colibri.fit import demangle, judge
from colibri.fit.demangle import demangled, is_small, most_letters
from colibri.fit.symbol_names import fits
from elf_writer import AX, FUNC, ElfWriter
from needs import need
from size_support import FLASH, board, codes, said

LEGACY = [
    ("_ZN4core3fmt9Formatter3pad17h0123456789abcdefE", "core::fmt::Formatter::pad"),
    (
        "_ZN45_$LT$T$u20$as$u20$board..Driver$LT$U$GT$$GT$4into17h05af221e174051e8E.llvm.12AB",
        "",  # the first length is wrong: 44 letters are its part
    ),
    (
        "_ZN44_$LT$T$u20$as$u20$board..Driver$LT$U$GT$$GT$4into17h05af221e174051e8E.llvm.12AB",
        "<T as board::Driver<U>>::into",
    ),
    ("_ZN4main28_$u7b$$u7b$closure$u7d$$u7d$17h05af221e174051e8E", "main::{{closure}}"),
    ("_ZN3foo17h05af221e174051eXE", None),  # no hash: C++
]
BY_LIBRARY = [
    ("_ZN4uart4sendEPKhj", "uart::send(unsigned char const*, unsigned int)"),
    ("_Z3maxIiET_S0_S0_", "int max<int>(int, int)"),
    ("_ZTV4Uart", "vtable for Uart"),
    ("_ZN4UartC2Ev.isra.0", "Uart::Uart() (.isra.0)"),
    ("__ZN4UartC2Ev", "Uart::Uart()"),
    (
        "_ZNSt6vectorISt4pairINSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEiESaIS6_EE17"
        "_M_realloc_insertIJS6_EEEvN9__gnu_cxx17__normal_iteratorIPS6_S8_EEDpOT_",
        None,  # many references, a pack: long, but not too long
    ),
    ("_RNvC6_123foo3bar", "123foo::bar"),
    ("_RINvNtCs8NwYtU1Mohg_4core3ptr9drop_glueNtB4_4CellEB4_", None),
]


@pytest.mark.parametrize(("mangled", "plain"), LEGACY)
def test_legacy_rust_needs_no_library(mangled: str, plain: str | None) -> None:
    if plain is not None:
        assert demangled(mangled) == plain


@pytest.mark.parametrize(("mangled", "plain"), BY_LIBRARY)
def test_known_names(mangled: str, plain: str | None) -> None:
    need("module:pycxxfilt")
    assert demangled(mangled) == plain if plain is not None else demangled(mangled)


@pytest.mark.parametrize(
    "name", ["", "main", "_Z", "_R", "_ZQQ", "_Zé", "_Z1f\x00", "_RNvC", "__Z"]
)
def test_what_is_no_name_stays(name: str) -> None:
    assert demangled(name) == ""


def _doubling(levels: int) -> str:
    """Each level's argument is the one before, three times; S_ is `A`, S0_ its first use."""
    name = "_Z1fN1A1BE"
    for level in range(levels):
        last = "S_" if level == 0 else f"S{_base36(2 * level - 1)}_"
        name += f"1CI{last}{last}{last}E"
    return name


def _base36(number: int) -> str:
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    text = ""
    while True:
        number, digit = divmod(number, 36)
        text = digits[digit] + text
        if not number:
            return text


def _nested_functions(levels: int) -> str:
    """Each level's function has the one before three times: as an argument, and by `T_`."""
    name = "i"
    for _ in range(levels):
        name = f"XadL_Z1gI{name}EvT_T_EE"
    return f"_Z1fI{name}EvT_"


def _nested_packs(levels: int) -> str:
    inner = "DpT_"
    for _ in range(levels):
        inner = f"Dp1AIT_J{inner}EE"
    return f"_Z1fIJ{'i' * 10}EEv{inner}"


@pytest.mark.parametrize(
    "name",
    [
        _doubling(60),
        _nested_packs(8),
        _nested_functions(40),
        "_Z4SZZ_" + _doubling(60).removeprefix("_Z1f"),  # an identifier that looks like a part
        "_RNvC1a" + "INtB2_1bB2_B2_E" * 40,
    ],
    ids=["references", "packs", "arguments", "identifiers", "rust"],
)
def test_names_that_explode_are_left_alone(name: str) -> None:
    assert len(name) < 1024
    assert not is_small(name)
    assert demangled(name) == ""


def _type(chance: random.Random, depth: int) -> str:
    """A random type of the grammar, with references, arguments and packs in it."""
    kind = chance.randrange(10) if depth > 0 else 0
    if kind < 2:
        return chance.choice("imcvjbx")
    if kind < 5:
        back = [f"S{n}_" for n in ("", *range(8))]
        return chance.choice([*back, "T_", "T0_", "Ss", "Sa", "St1x"])
    if kind < 7:
        return chance.choice(["P", "R", "K", "Dp", "A3_"]) + _type(chance, depth - 1)
    name = chance.choice(["1A", "2S0", "2T_", "3S1_", "4SZZ_", "1B"])
    return name + _arguments(chance, depth - 1)


def _arguments(chance: random.Random, depth: int) -> str:
    inner = [_type(chance, depth) for _ in range(chance.randrange(1, 5))]
    pack = [_type(chance, depth - 1) for _ in range(chance.randrange(6))]
    return f"I{''.join(inner)}J{''.join(pack)}EE"


def test_the_bound_holds() -> None:
    """Of names that are made up, of real ones, and of those that grow as far as they may."""
    need("module:pycxxfilt")
    import pycxxfilt

    chance, names = random.Random(11), real_names()[::4]
    names += [made(levels) for made in (_doubling, _nested_packs) for levels in range(9)]
    for _ in range(6000):
        types = [_type(chance, chance.randrange(1, 5)) for _ in range(chance.randrange(1, 6))]
        names.append(f"_Z1f{_arguments(chance, chance.randrange(2, 5))}v{''.join(types)}")
    read = 0
    for name in filter(is_small, names):
        with contextlib.suppress(ValueError):
            plain = pycxxfilt.demangle(name) or ""
            read += bool(plain)
            assert len(plain) <= most_letters(name), name
    assert read > 2000


def real_names() -> list[str]:
    need("g++", "nm")
    say = subprocess.run(["g++", "-print-file-name=libstdc++.a"], capture_output=True, text=True)
    names = subprocess.run(["nm", say.stdout.strip()], capture_output=True, text=True).stdout
    return sorted(set(re.findall(r" (_Z\S+)$", names, re.MULTILINE)))


def test_thousands_of_real_names_against_cxxfilt() -> None:
    """The same but for what the two write in other words: short standard names, suffixes."""
    need("c++filt", "module:pycxxfilt")
    names = real_names()
    assert len(names) > 3000
    told = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True)
    other = told.stdout.splitlines()
    assert len(other) == len(names)
    ours = [demangled(name) for name in names]
    known = [(name, a, b) for name, a, b in zip(names, ours, other, strict=True) if a]
    assert len(known) > 0.97 * len(names)
    plain = [row for row in known if not re.search(r"S[siod]|\.|B5cxx11", row[0])]
    assert len(plain) > 0.5 * len(names)
    differ = [(n, a, b) for n, a, b in plain if a.replace(" ", "") != b.replace(" ", "")]
    assert len(differ) < 0.02 * len(plain), differ[:5]


def cxx_firmware(*names: str) -> ElfWriter:
    elf = ElfWriter()
    text = elf.section(".text", FLASH, b"\x01\xbf" * 8 * len(names), flags=AX)
    elf.load([text])
    for index, name in enumerate(names):
        elf.symbol(name, FLASH + 16 * index | 1, 16 - index, FUNC, section=text)
    return elf


def test_tables_json_groups_and_filters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    need("module:pycxxfilt")
    path = cxx_firmware("_ZN4uart4sendEPKh", "_RNvC6_123foo3bar", "main").write(tmp_path / "a.elf")
    assert (
        main(["size", str(path), "--filter", "uart::send(*", "--filter", "symbol:123foo::*"]) == 0
    )
    shown = capsys.readouterr().out
    assert "uart::send(unsigned char const*)" in shown
    assert "123foo::bar" in shown
    assert "2 / 3 symbols" in shown
    assert "31 / 45" in shown
    assert main(["size", str(path), "--json"]) == 0
    symbols = json.loads(capsys.readouterr().out)["symbols"]
    assert [s["demangled"] for s in symbols] == [
        "uart::send(unsigned char const*)", "123foo::bar", "",
    ]  # fmt: skip
    assert [s["name"] for s in symbols] == ["_ZN4uart4sendEPKh", "_RNvC6_123foo3bar", "main"]
    verdict = judge(path, board(), groups={"uart": ["symbol:uart::*"], "rest": ["symbol:*"]})
    assert {share.name: share.total for share in verdict.attribution.groups} == {
        "uart": 16, "rest": 29, "(unattributed)": 3,
    }  # fmt: skip
    assert fits("uart::send", "_ZN4uart4sendEPKh")
    assert fits("uart::send(unsigned char*", "_ZN4uart4sendEPKh")


def test_without_the_library_names_stay_and_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        demangle, "find_spec", lambda name: None if name == "pycxxfilt" else find(name)
    )
    demangled.cache_clear()
    path = cxx_firmware("_ZN4uart4sendEPKh", "main").write(tmp_path / "a.elf")
    verdict = judge(path, board())
    assert 'pip install "colibri-sdk[names]"' in said(verdict, "names")
    assert demangled("_ZN4uart4sendEPKh") == ""
    assert "names" not in codes(judge(cxx_firmware("main").write(path), board()))
    demangled.cache_clear()


def test_cxx_names_are_no_prefixes(tmp_path: Path) -> None:
    path = cxx_firmware("_ZN4uart4sendEPKh").write(tmp_path / "a.elf")
    judge(path, board(), groups={"g": ["uart::*"]})
    with pytest.raises(SizeError, match="nothing that a pattern"):
        judge(path, board(), groups={"g": ["uart:*"]})
