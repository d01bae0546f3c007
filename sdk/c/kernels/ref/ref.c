/* SPDX-License-Identifier: Apache-2.0 */
#include "ref.h"

const colibri_kernels colibri_kernels_ref = {
    .struct_bytes = sizeof(colibri_kernels),
    .name = "ref",
    .quantize = colibri_ref_quantize,
    .matmul = colibri_ref_matmul,
    .rms_norm = colibri_ref_rms_norm,
    .silu_gate = colibri_ref_silu_gate,
    .attend = colibri_ref_attend,
};
