/* SPDX-License-Identifier: Apache-2.0 */
#include "mve.h"

#include "../dsp/dsp.h"
#include "../ref/ref.h"

const colibri_kernels colibri_kernels_mve = {
    .struct_bytes = sizeof(colibri_kernels),
    .name = "mve",
    .quantize = colibri_ref_quantize,
    .matmul = colibri_mve_matmul,
    .rms_norm = colibri_ref_rms_norm,
    .silu_gate = colibri_ref_silu_gate,
    .attend = colibri_dsp_attend,
};
