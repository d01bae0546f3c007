/* SPDX-License-Identifier: Apache-2.0 */
/* The reference operations, so that other tables can borrow what they do not speed up. */
#ifndef COLIBRI_REF_H
#define COLIBRI_REF_H

#include <stddef.h>

#include "colibri/image.h"
#include "colibri/kernels.h"

void colibri_ref_quantize(const float *x, uint32_t n, uint32_t group, int8_t *codes, float *scales);
void colibri_ref_matmul(const colibri_matmul *m, uint32_t row_begin, uint32_t row_end);

/* For tables that multiply q8 and q4 weights in rows one token at a time: `token` is called for each with a
 * product of that token alone, without lists of rows. Other products are the reference's. */
static inline void colibri_ref_by_token(const colibri_matmul *m, uint32_t row_begin, uint32_t row_end,
                                        void (*token)(const colibri_matmul *one, uint32_t begin, uint32_t end))
{
    if (m->weight->groups == 0 || m->weight->order != COLIBRI_ORDER_ROWS) {
        colibri_ref_matmul(m, row_begin, row_end);
        return;
    }
    for (uint32_t t = 0; t < m->tokens; t++) {
        size_t in_row = m->in_rows != NULL ? m->in_rows[t] : t;
        size_t out_row = m->out_rows != NULL ? m->out_rows[t] : t;
        colibri_matmul one = *m;
        one.codes += in_row * m->code_stride;
        one.scales += in_row * m->scale_stride;
        one.out += out_row * m->out_stride;
        one.in_rows = one.out_rows = NULL;
        one.tokens = 1;
        token(&one, row_begin, row_end);
    }
}

void colibri_ref_rms_norm(const float *x, const float *weight, uint32_t n, float epsilon, float *out);
void colibri_ref_silu_gate(float *gate, const float *up, uint32_t n);
void colibri_ref_attend(const colibri_attend *a);

/* Scores become exp(score - maximum); returns one over their sum, the sink (or NULL) included. */
float colibri_ref_soften(float *scores, uint32_t n, const float *sink);

#endif
