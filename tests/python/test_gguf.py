# SPDX-License-Identifier: Apache-2.0
"""GGUF files become the images that their checkpoints do; damaged ones become an error."""

from __future__ import annotations

import importlib
import struct
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import checkpoints as ck
import variants
from colibri.cli import main
from colibri.descriptors import families
from colibri.errors import CheckpointError
from colibri.gguf_file import read_gguf
from colibri.gguf_source import dialects
from colibri.pack import pack
from colibri.sources import open_source
from family_runs import distance, greedy, run
from needs import have, need

FAR = 1e-5
gf: Any = importlib.import_module("gguf_files") if have("module:gguf") else None
GOLDENS = ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe", "granitemoeshared",
           "deepseek_v1", "deepseek_v2", "deepseek_v2_lite", "deepseek_v3", "gpt_oss_mxfp4",
           "lfm2_moe")  # fmt: skip
#: Variants that GGUF can carry: other sizes, tied, biases, scalings of positions.
VARIANTS = (
    ("llama", "mqa_tied"), ("llama", "linear"), ("llama", "llama3"), ("qwen2", "mqa_tied"),
    ("qwen3", "mqa_tied"), ("qwen3", "yarn"), ("mixtral", "mqa_tied"),
    ("mixtral", "yarn_all_experts"), ("mixtral", "llama3_bf16"), ("qwen2_moe", "many_yarn"),
    ("qwen3_moe", "bias_many"), ("olmoe", "gqa_tied"), ("granitemoe", "bias_all_experts"),
    ("granitemoe", "llama3"), ("granitemoeshared", "many_long"),
    ("deepseek_v1", "all_experts_tied"), ("deepseek_v2", "greedy_lite"), ("deepseek_v2", "groups"),
    ("deepseek_v2", "yarn"), ("deepseek_v3", "moonlight"), ("deepseek_v3", "groups"),
    ("deepseek_v3", "yarn"), ("lfm2_moe", "no_bias"), ("lfm2_moe", "untied_many"),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _package() -> None:
    need("module:gguf")


@pytest.fixture
def no_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images without notes: with them goes what tells two sources apart."""
    monkeypatch.setattr("colibri.pack._notes_section", lambda *_: b"{}")


def image(source: Path, target: Path) -> bytes:
    pack(source, target, quant="f32", selftest=ck.no_selftest)
    return target.read_bytes()


def refused(text: str) -> Any:
    return pytest.raises(CheckpointError, match=text)


class TestResults:
    @pytest.mark.parametrize("name", GOLDENS)
    def test_golden(self, tmp_path: Path, name: str) -> None:
        """Logits and greedy tokens are the reference's, as with the checkpoint."""
        gf.write(tmp_path / "m.gguf", name)
        pack(tmp_path / "m.gguf", tmp_path / "i", quant="f32")
        with np.load(ck.GOLDEN / name / "reference.npz") as r:
            for row, ids in enumerate(r["input_ids"]):
                assert distance(run(tmp_path / "i", ids)[0], r["logits"][row]) < FAR
                tokens = greedy(tmp_path / "i", ids, r["greedy"].shape[1])
                assert tokens == r["greedy"][row].tolist()

    @pytest.mark.usefixtures("no_notes")
    @pytest.mark.parametrize("name", [n for n in GOLDENS if n != "deepseek_v2"])
    def test_the_image_is_that_of_the_checkpoint(self, tmp_path: Path, name: str) -> None:
        """To the byte. (deepseek_v2's mscale of 0.707 is not the same when a tenth of it is.)"""
        gf.write(tmp_path / "m.gguf", name)
        expected = image(ck.GOLDEN / name, tmp_path / "one")
        assert image(tmp_path / "m.gguf", tmp_path / "other") == expected

    @pytest.mark.parametrize(("family", "name"), VARIANTS, ids=[f"{f}-{n}" for f, n in VARIANTS])
    def test_variant(self, tmp_path: Path, family: str, name: str) -> None:
        variant, reference = variants.load(family)[name], variants.reference(family, name)
        source = variants.checkpoint(tmp_path / "checkpoint", variant)
        gf.write(tmp_path / "m.gguf", family, source)
        pack(tmp_path / "m.gguf", tmp_path / "i", quant="f32", selftest=ck.no_selftest)
        for row, ids in enumerate(reference["input_ids"]):
            logits = run(tmp_path / "i", ids)[0][variant["positions"]]
            assert distance(logits, reference["logits"][row]) < FAR

    @pytest.mark.usefixtures("no_notes")
    @pytest.mark.parametrize("name", ["deepseek_v2_lite", "deepseek_v3"])
    def test_kv_b_may_be_whole(self, tmp_path: Path, name: str) -> None:
        """As in files from before it was split."""
        gf.write(tmp_path / "a.gguf", name)
        gf.write(tmp_path / "b.gguf", name, split_kv=False)
        assert image(tmp_path / "a.gguf", tmp_path / "a") == image(
            tmp_path / "b.gguf", tmp_path / "b"
        )

    @pytest.mark.usefixtures("no_notes")
    def test_experts_may_be_one_by_one_or_gate_with_up(self, tmp_path: Path) -> None:
        def single(_: Any, tensors: dict[str, Any]) -> None:
            for layer in range(2):
                for part in ("gate", "up", "down"):
                    stacked = tensors.pop(f"blk.{layer}.ffn_{part}_exps.weight")
                    for e, values in enumerate(stacked):
                        tensors[f"blk.{layer}.ffn_{part}.{e}.weight"] = values

        def fused(_: Any, tensors: dict[str, Any]) -> None:
            for layer in range(2):
                pair = [tensors.pop(f"blk.{layer}.ffn_{p}_exps.weight") for p in ("gate", "up")]
                tensors[f"blk.{layer}.ffn_gate_up_exps.weight"] = np.concatenate(pair, 1)

        expected = image(ck.GOLDEN / "mixtral", tmp_path / "i")
        for change in (single, fused):
            gf.write(tmp_path / "m.gguf", "mixtral", change=change)
            assert image(tmp_path / "m.gguf", tmp_path / "i") == expected

    @pytest.mark.usefixtures("no_notes")
    def test_the_gate_of_the_shared_expert_may_be_a_vector(self, tmp_path: Path) -> None:
        def flat(_: Any, tensors: dict[str, Any]) -> None:
            names = [n for n in tensors if "ffn_gate_inp_shexp" in n]
            assert len(names) == 3
            tensors.update({n: tensors[n][0] for n in names})

        gf.write(tmp_path / "m.gguf", "qwen2_moe", change=flat)
        expected = image(ck.GOLDEN / "qwen2_moe", tmp_path / "i")
        assert image(tmp_path / "m.gguf", tmp_path / "i") == expected

    def test_stop_ids_and_notes(self, tmp_path: Path) -> None:
        gf.write(tmp_path / "m.gguf", "mixtral", change=lambda w, _: w.add_eot_token_id(7))
        source = open_source(tmp_path / "m.gguf")
        assert source.stop_ids(320) == [2, 7]
        assert source.tokenizer is None
        (note,) = source.notes
        assert "its tokenizer is not carried" in note
        with refused(r"m.gguf: eos_token_id: is \[2, 7\]"):
            source.stop_ids(5)

    def test_the_source_is_not_overwritten(self, tmp_path: Path) -> None:
        gf.write(tmp_path / "m.gguf", "mixtral")
        assert main(["pack", str(tmp_path / "m.gguf"), "-o", str(tmp_path / "m.gguf")]) == 2


class TestQuantised:
    @pytest.mark.usefixtures("no_notes")
    @pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
    @pytest.mark.parametrize("name", ["mixtral", "deepseek_v3", "gpt_oss_mxfp4"])
    def test_image_of_the_decoded_values(self, tmp_path: Path, name: str, kind: str) -> None:
        """The same file in F32, with the values that the codes stand for."""
        kinds = gf.GGMLQuantizationType
        coded = gf.as_type(kinds[kind])

        def decoded(tensor: str, values: Any) -> tuple[Any, Any]:
            data, found = coded(tensor, values)
            return gf.as_f32(tensor, gf.quants.dequantize(data, found))

        gf.write(tmp_path / "q.gguf", name, quantise=coded)
        gf.write(tmp_path / "f.gguf", name, quantise=decoded)
        assert kind in {t.dtype for t in read_gguf(tmp_path / "q.gguf").tensors.values()}
        one = image(tmp_path / "q.gguf", tmp_path / "i")
        assert one == image(tmp_path / "f.gguf", tmp_path / "i")

    def test_mxfp4_is_what_the_checkpoint_has(self, tmp_path: Path) -> None:
        """The golden weights are MXFP4 already, so nothing is lost in a file of that type."""
        kinds = gf.GGMLQuantizationType

        def experts(name: str, values: Any) -> tuple[Any, Any]:
            mxfp4 = name.endswith("exps.weight")
            return gf.as_type(kinds.MXFP4)(name, values) if mxfp4 else gf.as_f32(name, values)

        gf.write(tmp_path / "m.gguf", "gpt_oss_mxfp4", quantise=experts)
        image(tmp_path / "m.gguf", tmp_path / "i")
        with np.load(ck.GOLDEN / "gpt_oss_mxfp4" / "reference.npz") as r:
            for ids, expected in zip(r["input_ids"], r["logits"], strict=True):
                assert distance(run(tmp_path / "i", ids)[0], expected) < FAR
        assert "decoded: 6 of MXFP4" in open_source(tmp_path / "m.gguf").notes[1]

    def test_q8_0_and_q4_0_by_their_definition(self, tmp_path: Path) -> None:
        """d * code and d * (code - 8), the low half-bytes first."""
        scales = np.array([[0.5], [-2.0]], np.float16)
        codes = np.arange(-16, 48, dtype=np.int8).reshape(2, 32)
        nibbles = np.arange(32, dtype=np.uint8).reshape(2, 16) * 7
        raw = {8: np.concatenate([scales.view(np.uint8), codes.view(np.uint8)], 1),
               2: np.concatenate([scales.view(np.uint8), nibbles], 1)}  # fmt: skip
        expected = {8: scales.astype(np.float32) * codes}
        pairs = np.concatenate([nibbles & 15, nibbles >> 4], 1).astype(np.float32)
        expected[2] = scales.astype(np.float32) * (pairs - 8)
        for kind, data in raw.items():
            path = tmp_path / "a.gguf"
            path.write_bytes(header(tensors=[("t", (32, 2), kind, 0)], data=data.tobytes()))
            (rows,) = read_gguf(path).tensors["t"].rows(1 << 10)
            assert np.array_equal(rows, expected[kind])

    @pytest.mark.parametrize(
        "kind", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "IQ2_XXS", "TQ2_0"]
    )
    def test_blocks_of_256_in_parts(self, tmp_path: Path, kind: str) -> None:
        """Rows of a part, a few at a time, are those of the whole decoded at once."""
        number = gf.GGMLQuantizationType[kind]
        values, size = gf.quants.GGML_QUANT_SIZES[number]
        raw = np.random.default_rng(3).integers(0, 60, (4, 6, 2 * size), np.uint8)
        path = tmp_path / "a.gguf"
        path.write_bytes(header(tensors=[("t", (2 * values, 6, 4), int(number), 0)],
                                data=raw.tobytes()))  # fmt: skip
        tensor = read_gguf(path).tensors["t"]
        assert tensor.shape == (4, 6, 512)
        part = tensor.part(lambda x: x[2, ::2])
        assert part.shape == (3, 512)
        rows = np.concatenate([*part.rows(512)])
        assert np.array_equal(rows, gf.quants.dequantize(raw[2, ::2], number))
        assert np.abs(rows).max() > 0

    def test_a_type_that_has_no_decoder_is_refused_by_name(self, tmp_path: Path) -> None:
        path = tmp_path / "a.gguf"
        path.write_bytes(header(tensors=[("t", (32, 2), 26, 0)], data=bytes(256)))
        with refused("a.gguf: t: tensor has type I32"):
            list(read_gguf(path).tensors["t"].rows(64))

    def test_a_scale_that_is_no_number_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "a.gguf"
        path.write_bytes(header(tensors=[("t", (32,), 8, 0)], data=b"\0\x7c" + b"\1" * 32))
        with refused("t: weight inf"):
            list(read_gguf(path).tensors["t"].rows(64))

    def test_memory_is_bounded(self, tmp_path: Path) -> None:
        """17 MB of codes, 64 MB of floats; 64 K values at once cost a few times that."""
        path = tmp_path / "a.gguf"
        shape = (256, 1024, 64)
        data = bytes(64 * 1024 * 256 // 32 * 34)
        path.write_bytes(header(tensors=[("t", shape, 8, 0)], data=data))
        tensor = read_gguf(path).tensors["t"]
        tracemalloc.start()
        count = sum(
            p.size for e in range(64) for p in tensor.part(lambda x, e=e: x[e]).rows(1 << 16)
        )
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert count == 64 * 1024 * 256
        assert peak < 4 << 20


class TestMapping:
    """families/_gguf.toml against the descriptors."""

    @pytest.mark.parametrize("dialect", dialects(), ids=lambda d: d.family)
    def test_what_is_written_is_read(self, dialect: Any) -> None:
        """A key that the family does not look at would be replaced by a default in silence."""
        family = families()[dialect.family]
        read = {place for name, key in family.keys.items() for place in key.at or (name,)}
        given = {k for k in (*dialect.config, *dialect.set, *dialect.present) if "." not in k}
        dense = {"num_experts", "num_experts_per_tok"} if family.layer.experts == "False" else set()
        assert given - read - dense <= {"qkv_bias"}

    @pytest.mark.parametrize("dialect", dialects(), ids=lambda d: d.family)
    def test_what_is_not_written_may_be_a_default(self, dialect: Any) -> None:
        """Keys that GGUF does not carry: what llama.cpp computes is what the class default says."""
        family = families()[dialect.family]
        given = {*dialect.config, *dialect.set, *dialect.present, "tie_word_embeddings"}
        left = {name for name, key in family.keys.items() if not given & set(key.at or (name,))}
        assert left <= {
            "hidden_act", "mlp_bias", "layer_types", "sliding_window", "use_sliding_window",
            "max_window_layers", "decoder_sparse_step", "mlp_only_layers", "moe_layer_freq",
            "rope_interleave", "scoring_func", "topk_method", "conv_bias", "norm_topk_prob",
            "partial_rotary_factor", "rope_factor",
        }  # fmt: skip
        assert "norm_topk_prob" not in left or "norm_topk_prob" not in "".join(
            (family.settings["router_flags"], family.settings["router"])
        ) or dialect.family in ("GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM")  # fmt: skip

    @pytest.mark.parametrize("dialect", dialects(), ids=lambda d: d.family)
    def test_every_role_has_a_name(self, dialect: Any) -> None:
        assert set(families()[dialect.family].tensors) <= set(dialect.tensors)

    @pytest.mark.parametrize(("change", "text"), [
        (lambda w: w.add_sliding_window(64),
         r"llama.attention.sliding_window: is 64, and MixtralForCausalLM has no use for it"),
        (lambda w: w.add_causal_attention(False), "attention.causal: is False; valid is true"),
        (lambda w: w.add_rope_scaling_type(gf.RopeScalingType.LONGROPE),
         "llama.rope.scaling.type: is 'longrope'; valid is none, linear or yarn"),
        (lambda w: w.add_uint32("llama.rope.scaling.type", 3), "rope.scaling.type: is 3"),
        (lambda w: w.add_rope_scaling_yarn_ext_factor(0.5), "yarn_ext_factor: is 0.5; valid is 1"),
        (lambda w: w.add_expert_gating_func(gf.ExpertGatingFuncType.SIGMOID),
         r"expert_gating_func: is 2; valid is 1 \(softmax\)"),
        (lambda w: w.add_uint32("split.count", 3), "split.count: is 3: the model lies in several"),
    ])  # fmt: skip
    def test_what_is_not_carried_is_refused_by_name(
        self, tmp_path: Path, change: Callable[[Any], None], text: str
    ) -> None:
        gf.write(tmp_path / "m.gguf", "mixtral", change=lambda w, _: change(w))
        with refused(rf"m\.gguf: .*{text}"):
            open_source(tmp_path / "m.gguf")

    def test_positions_that_are_not_rotated_are_refused(self, tmp_path: Path) -> None:
        """Granite: finetuned says whether there is rotation at all."""

        def change(writer: Any, _: Any) -> None:
            writer.add_bool("granitemoe.rope.scaling.finetuned", False)

        gf.write(tmp_path / "m.gguf", "granitemoe", change=change)
        with refused("granitemoe.rope.scaling.finetuned: is False; valid is true"):
            open_source(tmp_path / "m.gguf")

    def test_two_scalings_are_refused(self, tmp_path: Path) -> None:
        def change(writer: Any, tensors: dict[str, Any]) -> None:
            writer.add_rope_scaling_type(gf.RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(2.0)
            tensors["rope_freqs.weight"] = np.ones(8, np.float32)

        gf.write(tmp_path / "m.gguf", "mixtral", change=change)
        with refused("rope_freqs.weight: is there beside another scaling"):
            open_source(tmp_path / "m.gguf")

    def test_partial_rotation_is_refused(self, tmp_path: Path) -> None:
        gf.write(tmp_path / "m.gguf", "qwen3_moe")
        data = bytearray((tmp_path / "m.gguf").read_bytes())
        at = data.index(b"qwen3moe.rope.dimension_count") + 29 + 4
        data[at : at + 4] = struct.pack("<I", 16)
        (tmp_path / "m.gguf").write_bytes(data)
        with refused(r"partial_rotary_factor: is 0\.5; valid is 1\.0"):
            pack(tmp_path / "m.gguf", tmp_path / "i")

    @pytest.mark.parametrize("name", ["blk.1.attn_q.weight", "output_norm.weight"])
    def test_missing_tensors_are_named_as_in_the_file(self, tmp_path: Path, name: str) -> None:
        gf.write(tmp_path / "m.gguf", "mixtral", change=lambda _, t: t.pop(name))
        with refused(rf"m\.gguf: tensors are missing: {name}"):
            pack(tmp_path / "m.gguf", tmp_path / "i")

    def test_tensors_left_over_are_an_error(self, tmp_path: Path) -> None:
        def change(_: Any, tensors: dict[str, Any]) -> None:
            tensors["blk.0.attn_q.bias"] = np.zeros(64, np.float32)

        gf.write(tmp_path / "m.gguf", "mixtral", change=change)
        with refused("no use for: blk.0.attn_q.bias"):
            pack(tmp_path / "m.gguf", tmp_path / "i")

    @pytest.mark.parametrize("key", ["block_count", "attention.head_count", "expert_used_count",
                                     "attention.layer_norm_rms_epsilon"])  # fmt: skip
    def test_what_is_required(self, tmp_path: Path, key: str) -> None:
        gf.write(tmp_path / "m.gguf", "mixtral")
        name = f"llama.{key}".encode()
        data = (tmp_path / "m.gguf").read_bytes().replace(name, b"other." + name[6:])
        (tmp_path / "m.gguf").write_bytes(data)
        with refused(rf"m\.gguf: llama\.{key}: is missing"):
            open_source(tmp_path / "m.gguf")

    @pytest.mark.parametrize("value", ["text", [4, 2], -1, 0, 1 << 31])
    def test_values_of_the_wrong_kind(self, tmp_path: Path, value: Any) -> None:
        path = tmp_path / "m.gguf"
        keys: dict[str, Any] = {"general.architecture": "llama", "llama.block_count": value,
                "llama.context_length": 16, "llama.embedding_length": 32,
                "llama.feed_forward_length": 32, "llama.attention.head_count": value,
                "llama.attention.layer_norm_rms_epsilon": 1e-5}  # fmt: skip
        path.write_bytes(header(keys))
        with refused(r"m\.gguf: .*(block_count|head_count|num_hidden_layers): .*is "):
            pack(path, tmp_path / "i")

    def test_an_unknown_architecture(self, tmp_path: Path) -> None:
        path = tmp_path / "m.gguf"
        path.write_bytes(header({"general.architecture": "rwkv7"}))
        with refused("general.architecture: is 'rwkv7'; supported are .*lfm2moe"):
            open_source(path)


def text(value: str) -> bytes:
    raw = value.encode(errors="surrogateescape")
    return struct.pack("<Q", len(raw)) + raw


Entry = tuple[str, tuple[int, ...], int, int]  # name, sizes as in the file, type, offset


def header(
    metadata: dict[str, Any] | None = None, tensors: Sequence[Entry] = (), data: bytes = b"",
    *, version: int = 3, counts: tuple[int, int] | None = None,
) -> bytes:  # fmt: skip
    """A file, byte by byte; a metadata value that is bytes stands there as it is."""
    out = b"GGUF" + struct.pack("<I", version)
    keys = metadata or {}
    out += struct.pack("<QQ", *(counts or (len(tensors), len(keys))))
    for key, value in keys.items():
        out += text(key) + _value(value)
    for name, sizes, kind, start in tensors:
        out += text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, start)
    return out + bytes(-len(out) % 32) + data


def _value(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    if isinstance(value, list):
        return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    return struct.pack("<Iq", 11, value)


def array(kind: int, count: int) -> bytes:
    return struct.pack("<IIQ", 9, kind, count)


HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "magic": (b"GGML" + bytes(60), "magic: starts with b'GGML', not with b'GGUF'"),
    "safetensors": (ck.safetensors_bytes({"a": np.zeros(2, np.float32)}), "magic: .*config.json"),
    "version 1": (header(version=1), "version: is 1; valid is 2 or 3"),
    "big endian": (b"GGUF" + struct.pack(">I", 3) + bytes(16), r"version: is .* \(big-endian\)"),
    "only a magic": (b"GGUF", "version: is cut short"),
    "tensor count": (header(counts=(1 << 60, 0)), "count of tensors: is cut short"),
    "metadata count": (header(counts=(0, 1 << 63)), "count of metadata: is cut short"),
    "key length": (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 62) + bytes(32), "key 0: is cut"),
    "key bytes": (header({"\udcff": 1}), "key 0: is not UTF-8"),
    "string length": (header({"k": struct.pack("<IQ", 8, 1 << 50)}), "k: is cut short"),
    "array length": (header({"k": array(4, 1 << 61)}), "k: is cut short"),
    "bytes in an array": (header({"k": array(0, 1 << 40)}), "k: is cut short"),
    "strings in an array": (header({"k": array(8, 1 << 40)}), "k: is cut short"),
    "string in an array": (header({"k": array(8, 1) + struct.pack("<Q", 1 << 40)}), "k: is cut"),
    "array of arrays": (header({"k": array(9, 1)}), "k: is an array of the unknown type 9"),
    "type of value": (header({"k": struct.pack("<I", 13)}), "k: has values of the unknown type 13"),
    "key twice": (header({"k": _value(1) + text("k") + _value(1)}, counts=(0, 2)),
                  "k: is there twice"),
    "alignment 0": (header({"general.alignment": 0}), "general.alignment: is 0; valid is a power"),
    "alignment 3": (header({"general.alignment": 3}), "general.alignment: is 3"),
    "alignment huge": (header({"general.alignment": 1 << 62}), "general.alignment: is"),
    "alignment text": (header({"general.alignment": "32"}), "general.alignment: is '32'"),
    "no axes": (header(tensors=[("t", (), 0, 0)]), "t: has 0 axes; valid is 1 to 4"),
    "axes": (header(tensors=[("t", (1,) * 5, 0, 0)], data=bytes(64)), "t: has 5 axes"),
    "zero size": (header(tensors=[("t", (4, 0), 0, 0)]), r"t: shape is \[0, 4\]"),
    "product": (header(tensors=[("t", (1 << 62, 1 << 62), 0, 0)]), "t: shape is"),
    "size": (header(tensors=[("t", (1 << 60,), 0, 0)]), "t: is cut short: ends at byte"),
    "tensor type": (header(tensors=[("t", (4,), 99, 0)]), "t: has the unknown type 99"),
    "blocks": (header(tensors=[("t", (33,), 8, 0)]),
               "t: rows of 33 values are no whole blocks of Q8_0"),
    "offset": (header(tensors=[("t", (4,), 0, 1 << 63)]), "t: is cut short"),
    "odd offset": (header(tensors=[("t", (4,), 0, 4)], data=bytes(64)), "t: begins at 4; valid"),
    "data": (header(tensors=[("t", (4,), 0, 0)], data=bytes(15)),
             "t: is cut short: ends at byte 16"),
    "tensor twice": (header(tensors=[("t", (4,), 0, 0)] * 2, data=bytes(64)), "t: is there twice"),
    "overlap": (header(tensors=[("t", (16,), 0, 0), ("u", (4,), 0, 32)], data=bytes(64)),
                "u: overlaps t"),
    "no architecture": (header(), "general.architecture: is None"),
    "architecture number": (header({"general.architecture": 5}), "general.architecture: is 5"),
}  # fmt: skip


class TestHostile:
    @pytest.mark.parametrize("name", HOSTILE)
    def test_is_exit_2_with_file_and_field(
        self, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        data, words = HOSTILE[name]
        path = tmp_path / "bad.gguf"
        path.write_bytes(data)
        with refused(rf"bad\.gguf: .*{words}"):
            open_source(path)
        assert main(["pack", str(path), "-o", str(tmp_path / "i")]) == 2
        assert "bad.gguf" in capsys.readouterr().err.replace("\n", "")
        assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.gguf"]

    def test_every_length(self, tmp_path: Path) -> None:
        """A file that ends anywhere in its header, or in its data, is an error."""
        path = tmp_path / "m.gguf"
        gf.write(path, "mixtral")
        data = path.read_bytes()
        end = data.index(b"blk.1.ffn_norm.weight")
        for length in (*range(0, end, 7), *range(end, len(data) - 32, 50_021), len(data) - 33):
            path.write_bytes(data[:length])
            with refused(r"m\.gguf: "):
                open_source(path)

    def test_bytes_changed_at_random(self, tmp_path: Path) -> None:
        """Anything in the header may be wrong: an error or a model, nothing else, and soon."""
        path = tmp_path / "m.gguf"
        gf.write(path, "mixtral")
        data = path.read_bytes()
        end = data.index(b"blk.1.ffn_norm.weight") + 64
        rng = np.random.default_rng(5)
        refusals: list[str | None] = []
        count = 400
        for _ in range(count):
            changed = bytearray(data)
            for at in rng.integers(4, end, rng.integers(1, 4)):
                changed[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, changed[at] ^ 1])
            path.write_bytes(changed)
            try:
                pack(path, tmp_path / "i", selftest=ck.no_selftest)
            except CheckpointError as error:
                refusals.append(error.file)
        assert 0 < len(refusals) < count
        assert None not in refusals

    def test_without_the_package(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        gf.write(tmp_path / "m.gguf", "mixtral")
        (tmp_path / "other").write_bytes(b"other")
        monkeypatch.setitem(sys.modules, "gguf", None)
        from colibri import gguf_file

        gguf_file._kinds.cache_clear()
        with refused(r"need the gguf package; pip install 'colibri-sdk\[gguf\]'"):
            open_source(tmp_path / "m.gguf")
        with refused("magic: starts with b'othe'"):
            open_source(tmp_path / "other")
