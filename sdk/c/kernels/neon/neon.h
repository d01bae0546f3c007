/* SPDX-License-Identifier: Apache-2.0 */
/* Operations that the three AArch64 tables share; they differ in products of quantised weights alone. */
#ifndef COLIBRI_NEON_H
#define COLIBRI_NEON_H

#include <stddef.h>

#include "colibri/kernels.h"

void colibri_neon_quantize(const float *x, uint32_t n, uint32_t group, int8_t *codes, float *scales);
void colibri_neon_rms_norm(const float *x, const float *weight, uint32_t n, float epsilon, float *out);
void colibri_neon_silu_gate(float *gate, const float *up, uint32_t n);
void colibri_neon_attend(const colibri_attend *a);

/* A product with f32, f16 or bf16 weights. */
void colibri_neon_matmul_float(const colibri_matmul *m, uint32_t row_begin, uint32_t row_end);

#endif
