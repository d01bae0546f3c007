/* SPDX-License-Identifier: Apache-2.0 */
/* The AVX-512 table: products and attention of its own, the rest is that of AVX2. */
#include "avx512.h"

#include "avx2.h"

const colibri_kernels colibri_avx512_table = {
    .struct_bytes = sizeof(colibri_kernels),
    .name = "avx512",
    .quantize = colibri_avx2_quantize,
    .matmul = colibri_avx512_matmul,
    .rms_norm = colibri_avx2_rms_norm,
    .silu_gate = colibri_avx2_silu_gate,
    .attend = colibri_avx512_attend,
    .crc32 = colibri_avx2_crc32,
};
