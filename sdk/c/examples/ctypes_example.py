# SPDX-License-Identifier: Apache-2.0
"""Sixteen tokens through the shared library alone: no package, no compiler.

    python ctypes_example.py LIBRARY IMAGE TOKEN...

Any language with a C interface can do the same. Structs that the library owns are byte buffers
of ample size; those that the caller fills are spelled out as in include/colibri.
"""

import ctypes
import sys
from ctypes import POINTER, Structure, byref, c_char_p, c_float, c_uint32, c_uint64, c_void_p

ARENA_BYTES = 4 << 20


LIMITS = "struct_bytes", "sequences", "context", "batch", "workers", "kv", "profile", "weights"


class Limits(Structure):
    _fields_ = [(name, c_uint32) for name in LIMITS]


class Region(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("base", c_void_p),
        ("size", c_uint64),
        ("rank", c_uint32),
        ("reserved", c_uint32),
    ]


class Batch(Structure):
    _fields_ = [
        ("struct_bytes", c_uint32),
        ("count", c_uint32),
        ("tokens", POINTER(c_uint32)),
        ("sequences", c_void_p),
        ("want_logits", c_void_p),
        ("logits", POINTER(c_float)),
        ("logits_floats", c_uint64),
    ]


class Sampling(Structure):
    _fields_ = [("temperature", c_float), ("top_k", c_uint32), ("top_p", c_float)]


def main(library: str, path: str, *words: str) -> None:
    colibri = ctypes.CDLL(library)
    colibri.colibri_status_name.restype = c_char_p
    colibri.colibri_high_water.restype = c_uint64
    colibri.colibri_high_water.argtypes = [c_void_p, c_uint32]

    def check(status: int) -> None:
        if status:
            sys.exit(colibri.colibri_status_name(status).decode())

    file = (c_uint64 * 64)()  # colibri_posix_file; colibri_storage is its first member
    image = (c_uint64 * 128)()  # colibri_image; the vocabulary is its first word
    engine = (c_uint64 * 96)()  # colibri_engine, exactly
    if colibri.colibri_posix_open(byref(file), path.encode(), 0):
        sys.exit(f"cannot open {path}")
    check(colibri.colibri_image_open(byref(image), byref(file), None, c_uint32(0), None))
    vocabulary = image[0] & 0xFFFFFFFF

    memory = ctypes.create_string_buffer(ARENA_BYTES + 63)
    base = (ctypes.addressof(memory) + 63) // 64 * 64
    limits = Limits(struct_bytes=ctypes.sizeof(Limits), sequences=1, context=128)
    region = Region(b"arena", base, ARENA_BYTES, 0, 0)
    check(
        colibri.colibri_init(
            byref(engine), byref(image), byref(limits), byref(region), c_uint32(1), None, None
        )
    )

    logits = (c_float * vocabulary)()
    tokens = [int(word) for word in words]
    token, rng, greedy, out = c_uint32(), c_uint64(), Sampling(), []
    for _ in range(16):
        batch = Batch(
            ctypes.sizeof(Batch),
            len(tokens),
            (c_uint32 * len(tokens))(*tokens),
            None,
            None,
            logits,
            vocabulary,
        )
        check(colibri.colibri_infer(byref(engine), byref(batch), None))
        check(
            colibri.colibri_sample(
                logits, c_uint32(vocabulary), byref(greedy), byref(rng), byref(token)
            )
        )
        out.append(token.value)
        tokens = [token.value]
    print(",".join(map(str, out)))
    print(colibri.colibri_high_water(byref(engine), 0), "bytes of memory")


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit("usage: ctypes_example.py LIBRARY IMAGE TOKEN...")
    main(*sys.argv[1:])
