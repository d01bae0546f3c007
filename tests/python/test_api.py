# SPDX-License-Identifier: Apache-2.0
"""`import colibri`: images, engines, plans, samplers, and what they say when something is wrong."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import colibri
from colibri import _core
from colibri.arena import MemoryRegion
from colibri.engine import EVENT
from colibri.status import _RULES, error_from

PackedAs = Callable[[str], Path]
TOKENS = [48, 2858, 1135, 221, 17, 21, 17]


@pytest.fixture(scope="module")
def image(demo_image: PackedAs) -> colibri.Image:
    return colibri.Image(demo_image("q4"))


class TestImage:
    def test_says_what_is_inside(self, image: colibri.Image) -> None:
        assert image.config["experts"] == 16
        assert image.config["top_k"] == 2
        assert (image.vocabulary, image.context, image.stop_ids) == (4096, 1024, (0,))
        assert len(image.experts) == 6 * 16
        types = {tensor.name: tensor.type_name for tensor in image.tensors}
        assert (types["embedding"], types["query"], types["router"]) == ("q8", "q4", "f32")
        assert image.notes["architecture"] == "Qwen2MoeForCausalLM"
        assert [section.name for section in image.sections][:3] == ["config", "layers", "tensors"]

    def test_path_string_bytes_and_unmapped_are_the_same_image(self, demo_image: PackedAs) -> None:
        path = demo_image("q4")
        views = [
            colibri.Image(path),
            colibri.Image(str(path)),
            colibri.Image(path.read_bytes()),
            colibri.Image(path, map=False),
            colibri.Image(path.read_bytes(), map=False),
        ]
        for view in views:
            view.verify()
            assert view.tensors == views[0].tensors
            assert view.read(64, 100) == path.read_bytes()[64:164]

    def test_sections_carry_the_bytes_of_the_file(self, image: colibri.Image) -> None:
        tokenizer = image.section("tokenizer")
        assert tokenizer is not None
        assert zlib.crc32(image.section_bytes("tokenizer") or b"") == tokenizer.crc32
        assert image.section("files") is None

    def test_verify_names_the_broken_block(self, image: colibri.Image) -> None:
        tensor = next(t for t in image.tensors if (t.layer, t.name) == (3, "query"))
        expert = image.experts[2 * 16 + 5]
        tokenizer = image.section("tokenizer")
        assert tokenizer is not None
        for offset, name in (
            (tensor.offset, "tensor query of layer 3"),
            (expert.offset + expert.bytes - 1, "expert 5 of layer 2"),
            (tokenizer.offset, "the tokenizer"),
        ):
            data = bytearray(image.read(0, image.bytes))
            data[offset] ^= 1
            for mapped in (True, False):
                with pytest.raises(colibri.ImageError, match=name):
                    colibri.Image(bytes(data), map=mapped).verify()

    def test_read_stays_inside(self, image: colibri.Image) -> None:
        assert image.read(image.bytes, 0) == b""
        for offset, size in ((image.bytes, 1), (0, image.bytes + 1), (-1, 1), (2**63, 2**63)):
            with pytest.raises(colibri.ImageError, match=str(image.bytes)):
                image.read(offset, size)

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            (b"", "truncated at 0 bytes"),
            (b"GGUF" + bytes(100), "not a Colibri image"),
        ],
    )
    def test_what_is_no_image_is_refused(self, tmp_path: Path, content: bytes, words: str) -> None:
        path = tmp_path / "bad.colibri"
        path.write_bytes(content)
        for source in (path, content):
            with pytest.raises(colibri.ImageError, match=words):
                colibri.Image(source)

    def test_files_that_cannot_be_opened(self, tmp_path: Path) -> None:
        with pytest.raises(colibri.ImageError, match=r"nowhere.*No such file"):
            colibri.Image(tmp_path / "nowhere")
        with pytest.raises(colibri.ImageError, match="directory"):
            colibri.Image(tmp_path)
        with pytest.raises(colibri.ImageError, match="zero byte"):
            colibri.Image("a\0b")
        with pytest.raises(colibri.ImageError, match="int is not a path"):
            colibri.Image(3)  # type: ignore[arg-type]

    def test_a_damaged_header_carries_the_numbers(self, image: colibri.Image) -> None:
        data = bytearray(image.read(0, image.bytes))
        data[8] = 9
        with pytest.raises(colibri.ImageError, match="image version 9") as caught:
            colibri.Image(bytes(data))
        assert caught.value.status is not None
        assert (caught.value.status.have, caught.value.status.need) == (9, _core.IMAGE_VERSION)


class TestEngine:
    def test_the_reference_continuation(
        self, demo_image: PackedAs, prompts: list[dict[str, Any]]
    ) -> None:
        engine = colibri.Engine(demo_image("f32"), context=256)
        for prompt in prompts[:3]:
            made = engine.generate(prompt["ids"], 24, ignore_eos=True)
            assert made.tokens == prompt["greedy_ids"][:24]

    def test_shapes_and_continuation(self, image: colibri.Image) -> None:
        engine = colibri.Engine(image, context=32)
        rows = engine.infer(TOKENS, all_logits=True)
        assert rows.shape == (len(TOKENS), image.vocabulary)
        assert rows.dtype == np.float32
        assert engine.length() == len(TOKENS)
        engine.reset()
        assert engine.length() == 0
        for token, row in zip(TOKENS, rows, strict=True):
            one = engine.infer(np.array([token]))
            assert one.shape == (image.vocabulary,)
            assert np.array_equal(one, row)

    @pytest.mark.parametrize("kv", ["f32", "f16", "q8"])
    def test_bits_do_not_depend_on_how(self, image: colibri.Image, kv: str) -> None:
        def run(**how: Any) -> str:
            engine = colibri.Engine(image, context=64, kv=kv, **how)
            return engine.generate(TOKENS, 8).logits_crc32

        expected = run()
        hows: list[dict[str, Any]] = [{"kernels": name} for name in colibri.kernels()]
        hows += [{"workers": n} for n in (2, 3, 8)] + [{"batch": n} for n in (1, 2, 5)]
        hows += [{"workers": 4, "threads": 1}, {"profile": "small"}, {"weights": "loaded"}]
        assert {str(how): run(**how) for how in hows} == {str(how): expected for how in hows}

    def test_an_unmapped_image_is_loaded(self, image: colibri.Image) -> None:
        assert image.path is not None
        unmapped = colibri.Image(image.path, map=False)
        with pytest.raises(colibri.ColibriError, match="weights='loaded'"):
            colibri.Engine(unmapped, context=32)
        loaded = colibri.Engine(unmapped, context=32, weights="loaded")
        mapped = colibri.Engine(image, context=32)
        assert np.array_equal(loaded.infer(TOKENS), mapped.infer(TOKENS))
        assert loaded.high_water() - mapped.high_water() >= image.bytes

    def test_the_whole_context_in_one_call_and_not_one_more(self, image: colibri.Image) -> None:
        engine = colibri.Engine(image, context=40)
        engine.infer([1] * 40)
        with pytest.raises(colibri.EngineError, match="context 41") as caught:
            engine.infer([1])
        assert caught.value.status is not None
        assert caught.value.status.need == 41
        assert engine.length() == 40
        engine.reset()
        with pytest.raises(colibri.EngineError, match="context"):
            engine.infer([1] * 41)
        assert engine.length() == 0

    def test_sequences_do_not_meet(self, image: colibri.Image) -> None:
        engine = colibri.Engine(image, context=32, sequences=2)
        alone = colibri.Engine(image, context=32)
        expected = [alone.infer(TOKENS), None]
        alone.reset()
        expected[1] = alone.infer(TOKENS[::-1])
        mixed = [token for pair in zip(TOKENS, TOKENS[::-1], strict=True) for token in pair]
        want = [False] * (len(mixed) - 2) + [True] * 2
        rows = engine.infer_batch(mixed, [0, 1] * len(TOKENS), want)
        assert np.array_equal(rows[0], expected[0])
        assert np.array_equal(rows[1], expected[1])
        engine.reset(0)
        assert (engine.length(0), engine.length(1)) == (0, len(TOKENS))
        with pytest.raises(colibri.EngineError, match="sequence 2"):
            engine.infer([1], sequence=2)

    @pytest.mark.parametrize(
        ("tokens", "words"),
        [
            ([4096], "4096"),
            ([-1], "token -1 at index 0"),
            ([1, 2**32], "at index 1"),
            ([[1, 2]], "shape"),
            ([1.5], "flat list of integers"),
            (["a"], "flat list of integers"),
            ([], "no tokens"),
        ],
    )
    def test_bad_tokens(self, image: colibri.Image, tokens: Any, words: str) -> None:
        engine = colibri.Engine(image, context=32)
        with pytest.raises(colibri.EngineError, match=words):
            engine.infer(tokens)
        assert engine.length() == 0

    def test_bad_limits_say_what_would_work(self, image: colibri.Image) -> None:
        for limits, words in (
            ({"context": 1025}, "'context' is 1025; at most 1024"),
            ({"context": 0}, "'context' is 0; use 1 or more"),
            ({"batch": 5000}, "'batch' is 5000; at most 4096"),
            ({"workers": 65}, "'workers' is 65; at most 64"),
            ({"kv": "q4"}, "one of f32, f16, q8"),
            ({"profile": "huge"}, "one of small, wide"),
        ):
            with pytest.raises(colibri.PlanError, match=words):
                colibri.Engine(image, **{"context": 32, **limits})  # type: ignore[arg-type]
        with pytest.raises(colibri.EngineError, match="it has auto, ref"):
            colibri.Engine(image, context=32, kernels="cuda")

    def test_memory_of_the_caller_to_the_byte(self, image: colibri.Image) -> None:
        need = colibri.Engine(image, context=32).high_water()
        memory = np.zeros(need + 64, np.uint8)
        base = (memory.ctypes.data + 63) // 64 * 64
        engine = colibri.Engine(image, context=32, memory=[MemoryRegion("m", base, need)])
        assert engine.high_water() == need
        with pytest.raises(colibri.DoesNotFitError, match=f"{need:,}") as caught:
            colibri.Engine(image, context=32, memory=[MemoryRegion("m", base, need - 8)])
        assert caught.value.status is not None
        assert caught.value.status.need == need
        with pytest.raises(colibri.PlanError, match="multiple of 64"):
            colibri.Engine(image, context=32, memory=[MemoryRegion("m", base + 8, need)])

    def test_selftest(self, image: colibri.Image) -> None:
        for kv in ("f32", "f16", "q8"):
            colibri.Engine(image, context=64, kv=kv).selftest()
        selftest = image.section("selftest")
        assert selftest is not None
        data = bytearray(image.read(0, image.bytes))
        data[selftest.offset] ^= 1
        meta = data[:60] + data[64 : image.meta_bytes]
        data[60:64] = zlib.crc32(meta).to_bytes(4, "little")
        with pytest.raises(colibri.EngineError, match="self-test"):
            colibri.Engine(bytes(data), context=64).selftest()  # type: ignore[arg-type]

    def test_trace_is_an_array_of_events(self, image: colibri.Image) -> None:
        engine = colibri.Engine(image, context=32, trace=True)
        engine.infer(TOKENS)
        events = engine.take_trace()
        assert events.dtype == EVENT
        kinds = events["kind"]
        assert np.count_nonzero(kinds == _core.EVENTS["step"]) == 1
        assert np.count_nonzero(kinds == _core.EVENTS["layer"]) == 6
        routes = events[kinds == _core.EVENTS["route"]]
        assert len(routes) == 6 * len(TOKENS) * 2
        assert routes["index"].max() < 16
        assert len(engine.take_trace()) == 0
        assert len(colibri.Engine(image, context=32).take_trace()) == 0

    def test_the_gil_is_free_while_it_works(self, image: colibri.Image) -> None:
        engine = colibri.Engine(image, context=512, kernels="ref")
        done = threading.Event()

        def work() -> None:
            engine.infer([1] * 200)
            done.set()

        thread = threading.Thread(target=work)
        thread.start()
        turns = 0
        while not done.wait(0.001):
            turns += 1
        thread.join()
        assert turns > 3

    def test_generate_stops(self, image: colibri.Image) -> None:
        engine = colibri.Engine(image, context=32)
        length = engine.generate(TOKENS, 4)
        assert (len(length.tokens), length.stop_reason) == (4, "length")
        full = engine.generate(TOKENS, 1000, ignore_eos=True)
        assert full.stop_reason == "context"
        assert len(full.tokens) == 32 - len(TOKENS) + 1
        assert full.tokens[:4] == length.tokens
        seen: list[int] = []
        engine.generate(TOKENS, 4, on_token=seen.append)
        assert seen == length.tokens

    def test_streaming_is_lazy_and_checksums_add_up(self, image: colibri.Image) -> None:
        engine = colibri.Engine(image, context=32)
        stream = engine.stream(TOKENS)
        crc, tokens = 0, []
        for _ in range(3):
            step = next(stream)
            tokens.append(step.token)
            crc = zlib.crc32(step.logits.tobytes(), crc)
        assert engine.length() == len(TOKENS) + 2
        made = engine.generate(TOKENS, 3)
        assert (made.tokens, made.logits_crc32) == (tokens, f"{crc:08x}")


class TestSampling:
    def test_greedy_takes_the_lowest_of_equals(self) -> None:
        assert colibri.sample([0, 3, 1, 3]) == 1

    def test_seeded_and_within_top_k(self) -> None:
        logits = np.linspace(0, 1, 50)
        draws = [colibri.sample(logits, temperature=1.0, top_k=5, seed=s) for s in range(200)]
        assert set(draws) == {45, 46, 47, 48, 49}
        assert draws == [
            colibri.sample(logits, temperature=1.0, top_k=5, seed=s) for s in range(200)
        ]

    @pytest.mark.parametrize(
        "bad",
        [
            {"temperature": -1},
            {"temperature": float("nan")},
            {"top_p": float("nan")},
            {"top_p": 1.5},
            {"top_k": -1},
            {"seed": -1},
        ],
    )
    def test_bad_settings_are_named(self, bad: dict[str, Any]) -> None:
        with pytest.raises(colibri.EngineError, match=next(iter(bad))):
            colibri.sample([0.0, 1.0], **bad)

    def test_logits_that_are_not_numbers(self) -> None:
        for row in ([np.nan, 1.0], [np.inf, 1.0], [-np.inf]):
            with pytest.raises(colibri.EngineError, match="NaN or infinity"):
                colibri.sample(row)


class TestCore:
    def test_versions(self) -> None:
        assert colibri.version() == colibri.__version__
        assert {"f32", "q4", "kv_q8"} <= set(colibri.built_with())

    def test_crc32_is_zlibs(self) -> None:
        data = bytes(range(256)) * 7
        for cut in (0, 1, 7, 64, len(data)):
            crc = _core.crc32(data[cut:], _core.crc32(data[:cut]))
            assert crc == zlib.crc32(data)

    def test_numbers_are_those_of_the_headers(self, root: Path) -> None:
        """Every status has its own sentence, every role and section its name."""
        text = "".join(path.read_text() for path in (root / "sdk/c/include/colibri").glob("*.h"))
        for prefix, table in (
            ("COLIBRI_ROLE_", _core.ROLES),
            ("COLIBRI_SECTION_", _core.SECTIONS),
            ("COLIBRI_EVENT_", _core.EVENTS),
        ):
            words = text.replace(",", " ").split()
            in_header = {
                words[i].removeprefix(prefix).lower(): int(words[i + 2])
                for i, word in enumerate(words)
                if word.startswith(prefix) and words[i + 1] == "="
            }
            assert in_header == dict(table)
        codes = [
            int(line.split("=")[1].split(",")[0].split("/")[0])
            for line in text.splitlines()
            if line.strip().startswith("COLIBRI_ERR_") and "=" in line
        ]
        assert sorted(codes) == sorted(_RULES)

    def test_every_status_is_a_sentence(self) -> None:
        for code in _RULES:
            for numbers in ((0, 0, 0), (3, 5, 7), (2**32 - 1, 2**64 - 1, 2**64 - 1)):
                error = error_from("x.colibri", code, *numbers)
                assert str(error).startswith("x.colibri: ")
                assert error.status is not None
                assert error.status.code == code

    def test_unsupported_parts_are_told_apart(self) -> None:
        for where, words in (
            (12, "--layout monolithic"),
            (17, "layer 0, query has type 5"),
            (3 << 16 | 64, "layer 3, expert_gate has type 5"),
            (0xFFFF << 16 | 1, ": embedding has type 5"),
            (0x240, "offset 0x240"),
        ):
            assert words in str(error_from("x", 47, where, 5, 0))

    def test_image_outlives_its_name(self, demo_image: PackedAs) -> None:
        engine = colibri.Engine(colibri.Image(demo_image("q4")), context=16)
        core = engine.core
        del engine
        assert core.infer(np.array([1], np.uint32)).shape == (1, 4096)


class TestTokenizer:
    def test_the_reference_ids(self, image: colibri.Image, prompts: list[dict[str, Any]]) -> None:
        tokenizer = image.tokenizer
        assert tokenizer.vocabulary == image.vocabulary
        for prompt in prompts:
            assert tokenizer.encode(prompt["prompt"]) == prompt["ids"]
            text = tokenizer.decode(prompt["greedy_ids"], special=True)
            assert text == prompt["greedy_text"]
            assert "".join(tokenizer.pieces(prompt["greedy_ids"])) == text.replace(
                "<|endoftext|>", ""
            )

    def test_pieces_keep_characters_whole(self, image: colibri.Image) -> None:
        text = "naïve 🐦 日本"
        ids = image.tokenizer.encode(text)
        pieces = image.tokenizer.pieces(ids)
        assert len(pieces) == len(ids)
        assert "".join(pieces) == text
        assert not any("\ufffd" in piece for piece in pieces)

    @pytest.mark.parametrize("data", [b"", b"{}", b"\xff\xfe", b"[" * 100_000])
    def test_what_is_no_tokenizer_is_refused(self, data: bytes) -> None:
        with pytest.raises(colibri.TokenizerError, match=r"not a tokenizer\.json"):
            colibri.Tokenizer(data)

    def test_lone_surrogates(self, image: colibri.Image) -> None:
        with pytest.raises(colibri.TokenizerError, match="Unicode"):
            image.tokenizer.encode("\ud800")


class TestKernels:
    """The binding's own checks; the tables are held to the same bits in the conformance tests."""

    def test_bad_shapes_never_reach_a_kernel(self) -> None:
        ref = _core.Kernels("ref")
        x = np.ones((1, 32), np.float32)
        none = (None, None, None)
        with pytest.raises(ValueError, match="shorter than the matrix"):
            ref.matmul(bytes(10), _core.TYPES["f32"], 0, 1, x, *none, 1, 0, 1)
        data = bytes(32 * 4)
        with pytest.raises(ValueError, match="row_end <= rows"):
            ref.matmul(data, _core.TYPES["f32"], 0, 1, x, *none, 1, 0, 2)
        rows = np.array([1], np.uint16)
        with pytest.raises(ValueError, match="in_rows"):
            ref.matmul(data, _core.TYPES["f32"], 0, 1, x, None, rows, None, 1, 0, 1)
        with pytest.raises(ValueError, match="differ in length"):
            ref.silu_gate(np.ones(3, np.float32), np.ones(2, np.float32))

    def test_matmul_is_a_product(self) -> None:
        rng = np.random.default_rng(1)
        weight = rng.standard_normal((5, 40), np.float32)
        x = rng.standard_normal((3, 40), np.float32)
        ref = _core.Kernels("ref")
        out = ref.matmul(weight.tobytes(), _core.TYPES["f32"], 0, 5, x, None, None, None, 3, 0, 5)
        assert np.allclose(out, x @ weight.T, atol=1e-5)

    def test_routing(self) -> None:
        scores = np.log(np.array([0.1, 0.4, 0.2, 0.3], np.float32))
        ids, weights = _core.route_topk(scores, 2)
        assert ids.tolist() == [1, 3]
        assert np.allclose(weights, [0.4, 0.3])
        assert np.allclose(_core.route_topk(scores, 2, flags=1)[1], [4 / 7, 3 / 7])
