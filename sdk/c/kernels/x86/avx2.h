/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLIBRI_X86_AVX2_H
#define COLIBRI_X86_AVX2_H

#include "colibri/kernels.h"

extern const colibri_kernels colibri_avx2_table;

void colibri_avx2_quantize(const float *x, uint32_t n, uint32_t group, int8_t *codes, float *scales);
void colibri_avx2_rms_norm(const float *x, const float *weight, uint32_t n, float epsilon, float *out);
void colibri_avx2_silu_gate(float *gate, const float *up, uint32_t n);
void colibri_avx2_matmul(const colibri_matmul *m, uint32_t row_begin, uint32_t row_end);
void colibri_avx2_matmul_tiles(const colibri_matmul *m, uint32_t row_begin, uint32_t row_end);
void colibri_avx2_attend(const colibri_attend *a);
uint32_t colibri_avx2_crc32(uint32_t crc, const void *data, uint64_t bytes);

/* Scores become exp(score - maximum); returns one over their sum, the sink included. */
float colibri_avx2_soften(float *scores, uint32_t n, const float *sink);

#endif
