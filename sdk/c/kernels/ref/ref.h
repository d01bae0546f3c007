/* SPDX-License-Identifier: Apache-2.0 */
/* The reference operations, so that other tables can borrow what they do not speed up. */
#ifndef COLIBRI_REF_H
#define COLIBRI_REF_H

#include "colibri/kernels.h"

void colibri_ref_quantize(const float *x, uint32_t n, uint32_t group, int8_t *codes, float *scales);
void colibri_ref_matmul(const colibri_matmul *m, uint32_t row_begin, uint32_t row_end);
void colibri_ref_rms_norm(const float *x, const float *weight, uint32_t n, float epsilon, float *out);
void colibri_ref_silu_gate(float *gate, const float *up, uint32_t n);
void colibri_ref_attend(const colibri_attend *a);

/* Scores become exp(score - maximum); returns one over their sum, the sink (or NULL) included. */
float colibri_ref_soften(float *scores, uint32_t n, const float *sink);

#endif
