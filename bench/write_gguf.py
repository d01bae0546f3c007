# SPDX-License-Identifier: Apache-2.0
"""The GGUF file of an image of random weights: the same codes and scales, so the same model.

A tensor of such an image has one scale, which is why its codes fit any block format of GGUF:

=====  ============================================================================
Q4_0   d = scale, nibble = code + 8
Q8_0   d = scale, code
Q4_K   d = dmin = scale, sub-block scales 1 and minima 8, so that the value is
       scale * nibble - 8 * scale
Q6_K   d = scale, sub-block scales 1
=====  ============================================================================

q8 codes are rounded to 6 or 4 bits where llama.cpp's own quantiser stores fewer. Which tensor has
which type is what llama-quantize gives: `types_of`.  Block layouts: ggml-common.h of llama.cpp.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
from numpy.typing import NDArray

from colibri import Image
from colibri.errors import PackError
from colibri.image import Tensor
from colibri.image_format import TILE_ROWS, Order

Codes = NDArray[np.int8]
Kind = gguf.GGMLQuantizationType
FILE_TYPES = {"Q4_0": gguf.LlamaFileType.MOSTLY_Q4_0, "Q4_K_M": gguf.LlamaFileType.MOSTLY_Q4_K_M}
NAMES = {
    "embedding": "token_embd", "output": "output", "output_norm": "output_norm",
    "attention_norm": "blk.{}.attn_norm", "query": "blk.{}.attn_q", "key": "blk.{}.attn_k",
    "value": "blk.{}.attn_v", "attention_out": "blk.{}.attn_output",
    "query_norm": "blk.{}.attn_q_norm", "key_norm": "blk.{}.attn_k_norm",
    "ffn_norm": "blk.{}.ffn_norm", "router": "blk.{}.ffn_gate_inp",
    "expert_gate": "blk.{}.ffn_gate_exps", "expert_up": "blk.{}.ffn_up_exps",
    "expert_down": "blk.{}.ffn_down_exps",
}  # fmt: skip
ARCHITECTURES = ("granitemoe", "olmoe")


class Stored(NamedTuple):
    """A tensor of the GGUF file: its name, type, and the experts' or its own matrices."""

    name: str
    kind: Kind
    tensor: Tensor
    offsets: list[int]


def write_gguf(image: Image, config: Path, file: Path, quant: str = "Q4_0") -> None:
    """Writes the model of an image that `colibri bench --config CONFIG --keep` made."""
    architecture = image.notes.get("model_type")
    if architecture not in ARCHITECTURES or "synthetic" not in image.notes:
        hint = f"random weights of {' or '.join(ARCHITECTURES)} can be written"
        raise PackError(f"is {architecture}", file=image.name, hint=hint)
    writer = gguf.GGUFWriter(file, architecture)
    _metadata(writer, image.config, json.loads(config.read_text()), quant)
    tensors = list(_tensors(image, quant))
    for stored in tensors:
        shape = _shape(stored)
        size = _bytes(stored.kind, int(np.prod(shape)))
        # float32 says that the shape counts elements; raw_dtype is the type
        writer.add_tensor_info(stored.name, shape, np.dtype(np.float32), size, stored.kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for stored in tensors:
        writer.write_tensor_data(np.concatenate(list(_data(image, stored, architecture))))
    writer.close()


def types_of(image: Image, role: str, layer: int, quant: str) -> Kind:
    """The type that llama-quantize gives a matrix: `llama_tensor_get_type` of llama.cpp."""
    layers = image.config["layers"]
    last = role == "output" or (role == "embedding" and image.config["tied"])
    if quant == "Q4_0":
        return Kind.Q6_K if last else Kind.Q4_0
    more = layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
    return Kind.Q6_K if last or (more and role in ("value", "expert_down")) else Kind.Q4_K


def _metadata(
    writer: gguf.GGUFWriter, settings: dict[str, Any], config: dict[str, Any], quant: str
) -> None:
    writer.add_file_type(FILE_TYPES[quant])
    writer.add_tokenizer_model("no_vocab")
    writer.add_vocab_size(settings["vocabulary"])
    writer.add_block_count(settings["layers"])
    writer.add_context_length(settings["context"])
    writer.add_embedding_length(settings["hidden"])
    writer.add_feed_forward_length(settings["expert_size"])
    writer.add_head_count(settings["heads"])
    writer.add_head_count_kv(settings["kv_heads"])
    writer.add_layer_norm_rms_eps(settings["norm_epsilon"])
    writer.add_rope_freq_base(float(config["rope_theta"]))
    writer.add_rope_dimension_count(settings["rope_size"])
    writer.add_expert_count(settings["experts"])
    writer.add_expert_used_count(settings["top_k"])
    if writer.arch == "granitemoe":
        writer.add_attention_scale(settings["attention_scale"])
        writer.add_embedding_scale(settings["embedding_scale"])
        writer.add_residual_scale(settings["residual_scale"])
        writer.add_logit_scale(1 / settings["logits_scale"])


def _tensors(image: Image, quant: str) -> Iterator[Stored]:
    per_layer = image.config["experts"]
    for tensor in image.tensors:
        if tensor.name not in NAMES:
            continue  # rope: llama.cpp computes it
        name = NAMES[tensor.name].format(tensor.layer) + ".weight"
        offsets = [tensor.offset]
        if tensor.is_expert:  # every layer has experts in these architectures
            records = image.experts[tensor.layer * per_layer :][:per_layer]
            offsets = [record.offset + tensor.offset for record in records]
        coded = tensor.type_name in ("q4", "q8")
        kind = types_of(image, tensor.name, tensor.layer, quant) if coded else Kind.F32
        yield Stored(name, kind, tensor, offsets)


def _shape(stored: Stored) -> list[int]:
    tensor = stored.tensor
    if tensor.rows == 1:
        return [tensor.columns]
    matrix = [tensor.rows, tensor.columns]
    return [len(stored.offsets), *matrix] if tensor.is_expert else matrix


def _bytes(kind: Kind, elements: int) -> int:
    block, size = gguf.GGML_QUANT_SIZES[kind]
    return int(elements // block * size)


def _data(image: Image, stored: Stored, architecture: str) -> Iterator[NDArray[Any]]:
    tensor = stored.tensor
    for offset in stored.offsets:
        if stored.kind is Kind.F32:
            yield np.frombuffer(image.read(offset, tensor.bytes), "<f4")
            continue
        codes, scale = _codes(image, tensor, offset)
        if architecture == "granitemoe" and tensor.name in ("query", "key"):
            codes = _in_pairs(codes, image.config["head_size"])
        if tensor.type_name == "q8":
            codes, scale = _rounded(codes, scale, stored.kind)
        yield PACKERS[stored.kind](codes, scale).reshape(-1)


def _codes(image: Image, tensor: Tensor, offset: int) -> tuple[Codes, np.float16]:
    """Codes, rows x columns, and the scale that all of them share."""
    data = np.frombuffer(image.read(offset, tensor.bytes), np.uint8)
    count = tensor.rows * tensor.columns
    if tensor.columns % tensor.group:
        raise PackError(f"has {tensor.columns} columns", field=tensor.name,
                        hint=f"a multiple of {tensor.group} can be written")  # fmt: skip
    bits = 8 if tensor.type_name == "q8" else 4
    stored = data[: count * bits // 8].reshape(tensor.rows, -1)
    tiled = tensor.rows // TILE_ROWS * TILE_ROWS if tensor.order == Order.TILES else 0
    codes = np.concatenate([
        _of_tiles(stored[:tiled], bits).reshape(tiled, tensor.columns),
        _of_rows(stored[tiled:], bits, tensor.group).reshape(-1, tensor.columns),
    ])  # fmt: skip
    scales = data[-2 * tensor.rows * (tensor.columns // tensor.group) :].view("<f2")
    if (scales != scales[0]).any():
        raise PackError("has more than one scale", field=tensor.name,
                        hint="only images of random weights can be written")  # fmt: skip
    return codes.reshape(tensor.rows, tensor.columns), scales[0]


def _of_rows(stored: NDArray[np.uint8], bits: int, group: int) -> Codes:
    """Codes of order 0."""
    if bits == 8:
        return stored.view(np.int8)
    pairs = stored.reshape(-1, 1, group // 2)
    return np.concatenate([pairs & 15, pairs >> 4], axis=1).astype(np.int8) - np.int8(8)


def _of_tiles(stored: NDArray[np.uint8], bits: int) -> Codes:
    """Codes of order 1: blocks of 16 rows x 4 bytes."""
    blocks = stored.reshape(-1, TILE_ROWS, stored.shape[1]).reshape(
        len(stored) // TILE_ROWS, stored.shape[1] // 4, TILE_ROWS, 4
    )
    rows = blocks.swapaxes(1, 2)  # tile, row, block, byte
    if bits == 8:
        return np.ascontiguousarray(rows).view(np.int8)
    return np.stack([rows & 15, rows >> 4], axis=3).astype(np.int8) - np.int8(8)


def _in_pairs(codes: Codes, head_size: int) -> Codes:
    """Rows of each head in the order of llama.cpp, whose RoPE turns neighbours in this family."""
    heads = codes.reshape(-1, 2, head_size // 2, codes.shape[-1])
    return np.ascontiguousarray(heads.swapaxes(1, 2)).reshape(codes.shape)


def _rounded(codes: Codes, scale: np.float16, kind: Kind) -> tuple[Codes, np.float16]:
    """8-bit codes in the bits that the type has."""
    bits = {Kind.Q8_0: 8, Kind.Q6_K: 6}.get(kind, 4)
    step, most = 1 << (8 - bits), (1 << (bits - 1)) - 1
    fewer = np.minimum(np.round(codes / np.float32(step)), most).astype(np.int8)
    return fewer, np.float16(scale * np.float16(step))


def _blocks(codes: Codes, size: int) -> NDArray[np.int16]:
    if codes.shape[-1] % size:
        raise PackError(f"{codes.shape[-1]} columns do not make blocks of {size}",
                        hint="use --llama-quant Q4_0, or a wider model")  # fmt: skip
    return codes.astype(np.int16).reshape(-1, size)


def _filled(count: int, *values: Any) -> NDArray[np.uint8]:
    """The same bytes for every block."""
    row = np.frombuffer(b"".join(np.asarray(v).tobytes() for v in values), np.uint8)
    return np.broadcast_to(row, (count, row.size))


def _q4_0(codes: Codes, scale: np.float16) -> NDArray[np.uint8]:
    x = (_blocks(codes, 32) + 8).astype(np.uint8)
    return np.concatenate([_filled(len(x), scale), x[:, :16] | x[:, 16:] << 4], axis=1)


def _q8_0(codes: Codes, scale: np.float16) -> NDArray[np.uint8]:
    x = _blocks(codes, 32).astype(np.int8).view(np.uint8)
    return np.concatenate([_filled(len(x), scale), x], axis=1)


def _q4_k(codes: Codes, scale: np.float16) -> NDArray[np.uint8]:
    x = (_blocks(codes, 256) + 8).astype(np.uint8).reshape(-1, 4, 2, 32)
    packed = np.array([1] * 4 + [8] * 4 + [0x81] * 4, np.uint8)  # 8 scales of 1, 8 minima of 8
    nibbles = (x[:, :, 0] | x[:, :, 1] << 4).reshape(-1, 128)
    return np.concatenate([_filled(len(x), scale, scale, packed), nibbles], axis=1)


def _q6_k(codes: Codes, scale: np.float16) -> NDArray[np.uint8]:
    x = (_blocks(codes, 256) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low = np.concatenate([x[:, :, :2] & 15 | (x[:, :, 2:] & 15) << 4], axis=2).reshape(-1, 128)
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    high = np.bitwise_or.reduce((x >> 4) << shifts, axis=2).reshape(-1, 64)
    tail = _filled(len(x), np.ones(16, np.int8), scale)
    return np.concatenate([low, high, tail], axis=1)


Packer = Callable[[Codes, np.float16], NDArray[np.uint8]]
PACKERS: dict[Kind, Packer] = {Kind.Q4_0: _q4_0, Kind.Q8_0: _q8_0, Kind.Q4_K: _q4_k,
                               Kind.Q6_K: _q6_k}  # fmt: skip
