# SPDX-License-Identifier: Apache-2.0
"""Weights that are not stored as plain floats, one by one, under the expected names."""

from __future__ import annotations

import json
import tracemalloc
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import checkpoints as ck
from colibri.codings import E2M1, E4M3, mxfp4
from colibri.errors import CheckpointError
from colibri.families import describe
from colibri.pack import pack
from colibri.tensor_file import Tensor, read_safetensors

HERE = Path("config.json")


def refused(text: str) -> Any:
    return pytest.raises(CheckpointError, match=text)


def e4m3(code: int) -> float:
    """The definition, with fractions: (-1)^s * 2^(e - 7) * 1.mmm, or 2^-6 * 0.mmm."""
    bits = f"{code:08b}"
    sign, exponent, fraction = int(bits[0]), int(bits[1:5], 2), Fraction(int(bits[5:], 2), 8)
    if exponent == 15 and fraction == Fraction(7, 8):
        return float("nan")
    power = Fraction(2) ** (exponent - 7) if exponent else Fraction(1, 64)
    size = float(power * (fraction + 1 if exponent else fraction))
    return -size if sign else size


FP4 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]  # OCP Microscaling Formats 1.0, table 5


def fp4(code: int) -> float:
    return -FP4[code - 8] if code > 7 else FP4[code]


def read(path: Path, name: str, elements: int = 1 << 20) -> np.ndarray:
    return np.concatenate(list(read_safetensors(path)[name].rows(elements)))


def write_file(folder: Path, **tensors: np.ndarray) -> dict[str, Tensor]:
    path = folder / "a.safetensors"
    path.write_bytes(ck.safetensors_bytes(tensors))
    return read_safetensors(path)


def values(tensor: Tensor, elements: int = 1 << 20) -> np.ndarray:
    return np.concatenate(list(tensor.rows(elements)))


def image(checkpoint: Path, target: Path) -> bytes:
    pack(checkpoint, target, quant="f32", selftest=ck.no_selftest)
    return target.read_bytes()


def same_image(tmp_path: Path, one: Path, other: Path) -> bool:
    """Whether two checkpoints, in folders of the same name, become the same image."""
    assert one.name == other.name
    return image(one, tmp_path / "one.img") == image(other, tmp_path / "other.img")


def golden(name: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Config and tensors of a golden checkpoint, as float32 (or as they are: bytes)."""
    folder = ck.GOLDEN / name
    tensors = {}
    for tensor in read_safetensors(folder / "model.safetensors").values():
        if tensor.dtype == "U8":
            tensors[tensor.name] = np.frombuffer(tensor.raw, np.uint8).reshape(tensor.shape)
        else:
            tensors[tensor.name] = values(tensor).reshape(tensor.shape)
    return json.loads((folder / "config.json").read_text()), tensors


class TestCodes:
    def test_every_e4m3_code(self) -> None:
        assert np.array_equal(E4M3, [e4m3(code) for code in range(256)], equal_nan=True)
        assert (E4M3[0x38], E4M3[0x7E], E4M3[0x01], E4M3[0xC0]) == (1.0, 448.0, 2.0**-9, -2.0)
        assert np.signbit(E4M3[0x80])

    def test_every_fp4_code(self) -> None:
        assert E2M1.tolist() == [fp4(code) for code in range(16)]
        assert np.signbit(E2M1[8])

    def test_every_mxfp4_scale(self) -> None:
        """Scales 0 to 254 are powers of two, down to subnormal floats; 255 is not a number."""
        scales = np.arange(256, dtype=np.uint8)[:, None]
        blocks = np.full((256, 1, 16), 0x2D, np.uint8)  # low 13: -3, high 2: 1
        decoded = mxfp4(blocks, scales).rows(0, 256)
        assert decoded.shape == (256, 32)
        powers = np.array([2.0 ** (scale - 127) for scale in range(255)])
        with np.errstate(over="ignore"):
            assert np.array_equal(decoded[:255, 0], np.float32(-3 * powers))
            assert np.array_equal(decoded[:255, 31], np.float32(powers))
        assert np.isnan(decoded[255]).all()

    def test_the_low_half_of_a_byte_comes_first(self) -> None:
        block = np.arange(16, dtype=np.uint8)[None, None]  # byte i: code i, then code 0
        decoded = mxfp4(block, np.full((1, 1), 128, np.uint8)).rows(0, 1)
        expected = [v for code in range(16) for v in (2 * fp4(code), 0.0)]
        assert decoded[0].tolist() == expected


class TestFp8:
    """mlx-lm 1224, unsloth 6978, Automodel 2682: scales dropped, weights 200 times off."""

    def test_scales_multiply_blocks_the_last_ones_ragged_mlx_lm_1224(self, tmp_path: Path) -> None:
        codes = np.full((130, 257), 0x38, np.uint8)  # 1.0
        scales = np.array([[1, 2, 4], [8, 16, 32]], np.float32)
        found = write_file(tmp_path, w=codes.view("V1"), s=scales)
        got = values(found["w"].with_fp8_scales(found["s"], (128, 128)), 1000)
        expected = np.empty((130, 257), np.float32)
        expected[:128, :128], expected[:128, 128:256], expected[:128, 256:] = 1, 2, 4
        expected[128:, :128], expected[128:, 128:256], expected[128:, 256:] = 8, 16, 32
        assert np.array_equal(got, expected)

    def test_parts_keep_their_scales(self, tmp_path: Path) -> None:
        """Cut, turned and reshaped after the fact is the same as before it."""
        rng = np.random.default_rng(5)
        codes = rng.integers(0, 127, (3, 10, 12), np.uint8)
        scales = rng.random((3, 3, 3)).astype(np.float32)
        found = write_file(tmp_path, w=codes.view("V1"), s=scales)
        tensor = found["w"].with_fp8_scales(found["s"], (4, 5))
        plain = E4M3[codes] * scales.repeat(4, 1).repeat(5, 2)[:, :10, :12]
        for pick in (
            lambda x: x[2, 3:], lambda x: x[1].T, lambda x: x[0, ::2, 1:],
            lambda x: x.reshape(5, 6, 12).transpose(0, 2, 1).reshape(60, 6),
        ):  # fmt: skip
            assert np.array_equal(values(tensor.part(pick), 20), pick(plain))

    @pytest.mark.parametrize("block", [None, [24, 20]])
    def test_a_whole_checkpoint_mlx_lm_1224(self, tmp_path: Path, block: list[int] | None) -> None:
        """Every matrix of a DeepSeek-V3 in fp8: the image is that of the decoded weights."""
        config, tensors = golden("deepseek_v3")
        rng = np.random.default_rng(7)
        coded, plain = dict(tensors), dict(tensors)
        table = np.array([e4m3(code) for code in range(256)], np.float32)
        rows, columns = block or (128, 128)
        for name, tensor in tensors.items():
            if not name.endswith("_proj.weight"):
                continue
            codes = rng.integers(0, 127, tensor.shape, np.uint8)
            codes |= rng.integers(0, 2, tensor.shape, np.uint8) << 7
            down, across = np.arange(len(codes)) // rows, np.arange(codes.shape[1]) // columns
            shape = (down[-1] + 1, across[-1] + 1)
            scales = rng.uniform(1e-4, 1e-3, shape).astype(np.float32)
            coded[name], coded[f"{name}_scale_inv"] = codes.view("V1"), scales
            plain[name] = table[codes] * scales[down][:, across]
        quantization = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
        if block:
            quantization |= {"weight_block_size": block}
        one = ck.write(tmp_path / "a" / "m", config, coded, quantization_config=quantization)
        other = ck.write(tmp_path / "b" / "m", config, plain)
        assert len(coded) > len(plain) + 100
        assert same_image(tmp_path, one, other)

    @staticmethod
    def checkpoint(folder: Path, **changes: np.ndarray | None) -> Path:
        config, name = ck.CONFIG, "model.layers.1.self_attn.q_proj.weight"
        tensors = ck.random_tensors(config)
        tensors[name] = np.full((32, 32), 0x38, np.uint8).view("V1")
        tensors[f"{name}_scale_inv"] = np.ones((1, 1), np.float32)
        for suffix, array in changes.items():
            if array is None:
                del tensors[name + suffix]
            else:
                tensors[name + suffix] = array
        return ck.write(folder, config, tensors)

    def test_a_missing_scale_is_an_error_unsloth_6978(self, tmp_path: Path) -> None:
        image(self.checkpoint(tmp_path / "good"), tmp_path / "good.img")
        with refused(r"layers\.1\.self_attn\.q_proj\.weight: is F8_E4M3 and has no scales.*"
                     r"must have layers\.1\.self_attn\.q_proj\.weight_scale_inv"):  # fmt: skip
            image(self.checkpoint(tmp_path / "bad", _scale_inv=None), tmp_path / "bad.img")
        assert not (tmp_path / "bad.img").exists()

    def test_a_scale_of_nothing_is_an_error(self, tmp_path: Path) -> None:
        tensors = ck.random_tensors(ck.CONFIG)
        tensors["model.layers.0.self_attn.q_proj.weight_scale_inv"] = np.ones((1, 1), np.float32)
        with refused("no use for: model.layers.0.self_attn.q_proj.weight_scale_inv"):
            image(ck.write(tmp_path / "c", ck.CONFIG, tensors), tmp_path / "i")

    def test_scales_of_another_shape(self, tmp_path: Path) -> None:
        bad = self.checkpoint(tmp_path / "bad", _scale_inv=np.ones((1, 2), np.float32))
        with refused(r"scale_inv: shape is \[1, 2\], expected \[1, 1\]"):
            image(bad, tmp_path / "i")

    @pytest.mark.parametrize("what", ["code", "scale"])
    def test_numbers_that_are_none(self, tmp_path: Path, what: str) -> None:
        codes, scales = np.zeros((32, 32), np.uint8), np.ones((1, 1), np.float32)
        if what == "code":
            codes[3, 5] = 0xFF
        else:
            scales[:] = np.inf
        bad = self.checkpoint(tmp_path / "c", **{"": codes.view("V1"), "_scale_inv": scales})
        with refused(
            r"weight nan at index \[3, 5\]" if what == "code" else r"scale_inv: weight inf"
        ):
            image(bad, tmp_path / "i")

    def test_scales_may_be_bf16(self, tmp_path: Path) -> None:
        one = self.checkpoint(tmp_path / "a" / "m", _scale_inv=np.array([[0x3F80]], np.uint16))
        assert same_image(tmp_path, one, self.checkpoint(tmp_path / "b" / "m"))

    @pytest.mark.parametrize("bad", [[128], [0, 128], "128", [128.0, 128.0]])
    def test_block_sizes_are_checked(self, tmp_path: Path, bad: Any) -> None:
        folder = self.checkpoint(tmp_path / "c")
        ck.change_config(
            folder, quantization_config={"quant_method": "fp8", "weight_block_size": bad}
        )
        with refused("weight_block_size"):
            image(folder, tmp_path / "i")


class TestMxfp4:
    def test_the_golden_experts_are_those_of_a_float_checkpoint(self, tmp_path: Path) -> None:
        """MXFP4 has rows first, the float layout columns first; both become one image."""
        config, coded = golden("gpt_oss_mxfp4")
        plain = {n: t for n, t in coded.items() if t.dtype != np.uint8}
        for name in [n for n in coded if n.endswith("_blocks")]:
            blocks, scales = coded[name], coded[name.replace("_blocks", "_scales")]
            experts, rows, count, _ = blocks.shape
            decoded = np.empty((experts, count * 32, rows), np.float32)
            for place in np.ndindex(blocks.shape):
                e, row, block, byte = place
                scale = 2.0 ** (int(scales[e, row, block]) - 127)
                for half, code in enumerate((blocks[place] % 16, blocks[place] // 16)):
                    decoded[e, block * 32 + 2 * byte + half, row] = fp4(int(code)) * scale
            plain[name.removesuffix("_blocks")] = decoded
        one = ck.write(tmp_path / "a" / "m", config, coded)
        other = ck.write(tmp_path / "b" / "m", config, plain, quantization_config=None)
        assert same_image(tmp_path, one, other)

    @pytest.mark.parametrize(("scales", "text"), [
        (None, "down_proj_blocks: is U8 and has no scales.*down_proj_scales"),
        (np.zeros((8, 64, 3), np.uint8), r"_proj_scales: shape is \[8, 64, 3\], expected .* 2\]"),
        (np.full((8, 64, 2), 255, np.uint8), "down_proj_blocks: weight nan"),
        (np.zeros((8, 64, 2), np.float32), "mxfp4 blocks are U8"),
    ])  # fmt: skip
    def test_wrong_scales(self, tmp_path: Path, scales: np.ndarray | None, text: str) -> None:
        config, tensors = golden("gpt_oss_mxfp4")
        name = "model.layers.1.mlp.experts.down_proj_scales"
        del tensors[name]
        if scales is not None:
            tensors[name] = scales
        with refused(text):
            image(ck.write(tmp_path / "c", config, tensors), tmp_path / "i")

    def test_memory_is_bounded(self, tmp_path: Path) -> None:
        """16 MB of codes, 128 MB of floats; 64 K values at once cost no more than a few of them."""
        blocks = np.zeros((64, 2048, 8, 16), np.uint8)
        found = write_file(tmp_path, b=blocks, s=np.full(blocks.shape[:3], 127, np.uint8))
        tensor = found["b"].with_mxfp4_scales(found["s"])
        assert tensor.shape == (64, 2048, 256)
        tracemalloc.start()
        count = sum(
            part.size
            for e in range(64)
            for part in tensor.part(lambda x, e=e: x[e, ::2]).rows(1 << 16)
        )
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert count == 64 * 1024 * 256
        assert peak < 4 << 20

    def test_fp8_memory_is_bounded(self, tmp_path: Path) -> None:
        codes = np.zeros((32, 1024, 512), np.uint8)
        found = write_file(tmp_path, w=codes.view("V1"), s=np.ones((32, 8, 4), np.float32))
        tensor = found["w"].with_fp8_scales(found["s"], (128, 128))
        tracemalloc.start()
        count = sum(
            part.size for e in range(32) for part in tensor.part(lambda x, e=e: x[e]).rows(1 << 16)
        )
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert count == codes.size
        assert peak < 4 << 20


class TestLayouts:
    """Experts fused or one by one (colibri 238, unsloth 6754)."""

    def test_fused_rows_unsloth_6754(self, tmp_path: Path) -> None:
        single = ck.random_tensors(ck.CONFIG)
        fused = {n: t for n, t in single.items() if ".experts." not in n}
        for layer in range(2):
            prefix = f"model.layers.{layer}.mlp.experts"
            gate, up, down = (
                np.stack([single[f"{prefix}.{e}.{name}_proj.weight"] for e in range(4)])
                for name in ("gate", "up", "down")
            )
            fused |= {
                f"{prefix}.gate_up_proj": np.concatenate([gate, up], 1),
                f"{prefix}.down_proj": down,
            }
        one = ck.write(tmp_path / "a" / "m", ck.CONFIG, single)
        assert same_image(tmp_path, one, ck.write(tmp_path / "b" / "m", ck.CONFIG, fused))

    def test_fused_of_another_shape_is_refused(self, tmp_path: Path) -> None:
        config, tensors = golden("llama4_text")
        name = "model.layers.0.feed_forward.experts.gate_up_proj"
        tensors[name] = np.ascontiguousarray(tensors[name].transpose(0, 2, 1))
        with refused(r"gate_up_proj: shape is \[8, 128, 64\], expected \[8, 64, 128\]"):
            image(ck.write(tmp_path / "c", config, tensors), tmp_path / "i")

    def test_phimoe_fused(self, tmp_path: Path) -> None:
        config, single = golden("phimoe")
        fused = {n: t for n, t in single.items() if "block_sparse_moe" not in n}
        for layer in range(3):
            old, new = f"model.layers.{layer}.block_sparse_moe", f"model.layers.{layer}.mlp"
            w1, w2, w3 = (
                np.stack([single[f"{old}.experts.{e}.w{i}.weight"] for e in range(8)])
                for i in (1, 2, 3)
            )
            fused |= {f"{new}.experts.gate_up_proj": np.concatenate([w1, w3], 1),
                      f"{new}.experts.down_proj": w2,
                      f"{new}.router.weight": single[f"{old}.gate.weight"]}  # fmt: skip
        one = ck.write(tmp_path / "a" / "m", config, single)
        assert same_image(tmp_path, one, ck.write(tmp_path / "b" / "m", config, fused))

    @pytest.mark.parametrize(("name", "dropped", "added"), [
        ("phimoe", "model.", ""), ("phimoe", "", "language_model."),
        ("phimoe", "model.", "language_model.model."), ("dbrx", "transformer.", ""),
    ])  # fmt: skip
    def test_prefixes_llama_cpp_9211(
        self, tmp_path: Path, name: str, dropped: str, added: str
    ) -> None:
        config, tensors = golden(name)
        renamed = {added + n.removeprefix(dropped): t for n, t in tensors.items()}
        one = ck.write(tmp_path / "a" / "m", config, tensors)
        assert same_image(tmp_path, one, ck.write(tmp_path / "b" / "m", config, renamed))

    def test_a_norm_without_bias_gets_zeros(self, tmp_path: Path) -> None:
        """DBRX: LayerNorm has no bias in the checkpoint, the runtime's has one."""
        config, tensors = golden("dbrx")
        pack(ck.write(tmp_path / "c", config, tensors), tmp_path / "i", quant="f32")
        import colibri

        roles = [t for t in colibri.Image(tmp_path / "i").tensors if t.role in (6, 29, 36)]
        assert len(roles) == 2 * 3 + 1


class TestOtherMethods:
    @pytest.mark.parametrize(("table", "text"), [
        ({"quant_method": "gptq", "bits": 4}, "GPTQ"),
        ({"quant_method": "awq", "bits": 4}, "AWQ"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
        ({"load_in_8bit": True}, "bitsandbytes"),
        ({"quant_method": "compressed-tensors"}, "the method 'compressed-tensors'"),
        ({"bits": 4}, "the method None"),
    ])  # fmt: skip
    def test_are_refused_by_name(self, table: dict[str, Any], text: str) -> None:
        with refused(rf"quantization_config.quant_method: weights are quantised with {text}.*"
                     "fp8 and mxfp4 are read"):  # fmt: skip
            describe({**ck.CONFIG, "quantization_config": table}, HERE)

    def test_null_is_none(self) -> None:
        describe({**ck.CONFIG, "quantization_config": None}, HERE)


class TestPredictionLayers:
    """Layers after the last are for multi-token prediction (llama.cpp 16361)."""

    @pytest.mark.parametrize("name", ["deepseek_v3", "glm4_moe_lite"])
    def test_are_left_out_when_the_config_has_them_llama_cpp_16361(
        self, tmp_path: Path, name: str
    ) -> None:
        config, tensors = golden(name)
        more = {f"model.layers.3.{n}": np.ones((2, 2), np.float32)
                for n in ("eh_proj.weight", "mlp.experts.0.up_proj.weight")}  # fmt: skip
        one = ck.write(tmp_path / "a" / "m", config, tensors)
        other = ck.write(tmp_path / "b" / "m", config, tensors | more, num_nextn_predict_layers=1)
        assert same_image(tmp_path, one, other)
        with refused("no use for: model.layers.3.eh_proj.weight"):
            image(ck.write(tmp_path / "c", config, tensors | more), tmp_path / "i")

    def test_a_layer_beyond_those_is_an_error(self, tmp_path: Path) -> None:
        config, tensors = golden("deepseek_v3")
        tensors["model.layers.4.eh_proj.weight"] = np.ones((2, 2), np.float32)
        with refused("no use for: model.layers.4.eh_proj.weight"):
            image(
                ck.write(tmp_path / "c", config, tensors, num_nextn_predict_layers=1),
                tmp_path / "i",
            )


class TestConfigs:
    """Keys that are absent, null, or of a kind that is not carried."""

    @staticmethod
    def described(name: str, **changes: Any) -> Any:
        config = json.loads((ck.GOLDEN / name / "config.json").read_text()) | changes
        return describe({k: v for k, v in config.items() if v is not ...}, HERE)

    def test_a_missing_correction_bias_is_an_error_sglang_10440(self, tmp_path: Path) -> None:
        config, tensors = golden("deepseek_v3")
        del tensors["model.layers.2.mlp.gate.e_score_correction_bias"]
        with refused(r"missing: layers\.2\.mlp\.gate\.e_score_correction_bias"):
            image(ck.write(tmp_path / "c", config, tensors), tmp_path / "i")

    def test_null_is_not_absent(self) -> None:
        assert self.described("deepseek_v2", q_lora_rank=None).settings.query_latent == 0
        assert self.described("deepseek_v2", q_lora_rank=...).settings.query_latent == 1536
        assert self.described("gpt_oss", layer_types=...).layers[0].window == 8
        assert self.described("gpt_oss", sliding_window=...).layers[0].window == 128
        with refused("sliding_window"):
            self.described("gpt_oss", sliding_window=None)
        whole = self.described("llama4_text", layer_types=..., attention_chunk_size=None)
        assert [layer.chunk for layer in whole.layers] == [0, 0, 0, 0]
        absent = self.described("llama4_text", attention_chunk_size=...)
        assert [layer.chunk for layer in absent.layers] == [8192, 8192, 8192, 0]

    @pytest.mark.parametrize(("p", "flags"), [(1.0, 1), (2.0, 4), (None, 0), (..., 1)])
    def test_dbrx_norm_of_the_weights(self, p: Any, flags: int) -> None:
        ffn = json.loads((ck.GOLDEN / "dbrx" / "config.json").read_text())["ffn_config"]
        ffn["moe_normalize_expert_weights"] = p
        ffn = {k: v for k, v in ffn.items() if v is not ...}
        assert self.described("dbrx", ffn_config=ffn).settings.router_flags == flags

    def test_dbrx_theta_of_published_checkpoints(self) -> None:
        published = {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 500000}
        first = self.described("dbrx").ropes["rope"]
        second = self.described("dbrx", rope_parameters=..., attn_config=published)
        assert np.array_equal(second.ropes["rope"], first)
        assert second.settings.clip == 8.0
        with refused("rope_theta"):
            self.described("dbrx", attn_config={**published, "rope_theta": 10000})

    def test_gpt_oss_scaling_of_a_config_without_one(self) -> None:
        given = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                 "truncate": False, "original_max_position_embeddings": 4096}  # fmt: skip
        absent = self.described("gpt_oss", rope_scaling=None).ropes["rope"]
        assert np.array_equal(absent, self.described("gpt_oss", rope_scaling=given).ropes["rope"])

    @pytest.mark.parametrize(("name", "key", "value"), [
        ("deepseek_v2", "scoring_func", "sigmoid"), ("deepseek_v2", "topk_method", "noaux_tc"),
        ("deepseek_v2", "mlp_bias", True), ("deepseek_v2", "moe_layer_freq", 2),
        ("deepseek_v2", "num_key_value_heads", 2), ("deepseek_v3", "scoring_func", "softmax"),
        ("deepseek_v3", "n_group", 3), ("deepseek_v3", "topk_group", 5),
        ("deepseek_v3", "num_experts_per_tok", 9), ("glm4_moe_lite", "mlp_layer_types", ["dense"]),
        ("phimoe", "num_experts_per_tok", 3), ("dbrx", "tie_word_embeddings", True),
        ("llama4_text", "no_rope_layers", [1]), ("gpt_oss", "hidden_act", "gelu"),
    ])  # fmt: skip
    def test_what_is_not_carried_is_refused_by_name(self, name: str, key: str, value: Any) -> None:
        reported = "topk_group" if key == "num_experts_per_tok" and name == "deepseek_v3" else key
        with refused(f"{reported}: is .*valid is"):
            self.described(name, **{key: value})

    def test_deepseek_groups_that_change_nothing_are_not_written(self) -> None:
        for n, kept, groups in ((1, 1, 0), (4, 4, 0), (4, 2, 4)):
            settings = self.described("deepseek_v3", n_group=n, topk_group=kept).settings
            assert settings.router_groups == groups
            assert bool(settings.router_flags & 16) is (groups > 0)

    def test_llama_4_scout_scaling(self) -> None:
        """Its low and high factors are equal: nothing lies between them."""
        table = {"factor": 16.0, "high_freq_factor": 1.0, "low_freq_factor": 1.0,
                 "rope_type": "llama3", "original_max_position_embeddings": 8192}  # fmt: skip
        model = self.described(
            "llama4_text", rope_parameters=None, rope_scaling=table, rope_theta=5e5
        )
        plain = self.described("llama4_text", rope_parameters=None, rope_theta=5e5)
        ratio = plain.ropes["rope"] / model.ropes["rope"]
        assert set(ratio.tolist()) == {1.0, 16.0}

    def test_scaling_goes_by_the_context_before_it_is_cut(self) -> None:
        """longrope without a factor: 262144 / 4096, though an image has 131072 at most."""
        table = {"rope_type": "longrope", "short_factor": [1.0] * 16, "long_factor": [1.0] * 16,
                 "original_max_position_embeddings": 4096}  # fmt: skip
        model = self.described("gpt_oss", max_position_embeddings=1 << 18, rope_scaling=table)
        assert model.settings.rope_scale == pytest.approx((1 + 6 / 12) ** 0.5, rel=1e-6)
        assert model.settings.context == 4096
