/* SPDX-License-Identifier: Apache-2.0 */
/* Products of float weights: the sixteen partial sums of docs/numerics.md are the lanes of one register. Four rows go
 * together, because one sum alone would wait for its own additions. */
#include <stddef.h>

#include "../ref/ref.h"
#include "avx512.h"
#include "avx512_sums.h"
#include "colibri/image.h"

enum { ROWS = 4 };

/* Elements i .. i + 15, or as many as mask says. */
static inline __m512 load(const uint8_t *row, uint32_t type, uint32_t i, __mmask16 mask)
{
    const uint16_t *half = (const uint16_t *)(const void *)row + i;
    if (type == COLIBRI_F32)
        return _mm512_maskz_loadu_ps(mask, (const float *)(const void *)row + i);
    __m256i bits = _mm256_maskz_loadu_epi16(mask, half);
    if (type == COLIBRI_F16)
        return _mm512_cvtph_ps(bits);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

static inline __attribute__((always_inline)) void
rows_of(const colibri_matrix *w, uint32_t type, uint32_t row, uint32_t rows, const float *x, float *out)
{
    const uint8_t *at[ROWS];
    __m512 sums[ROWS];
    for (uint32_t r = 0; r < rows; r++) {
        at[r] = w->codes + (size_t)(row + r) * w->stride;
        sums[r] = _mm512_setzero_ps();
    }
    uint32_t i = 0;
    for (; i + 16 <= w->columns; i += 16) {
        __m512 values = _mm512_loadu_ps(x + i);
        for (uint32_t r = 0; r < rows; r++)
            sums[r] = _mm512_add_ps(sums[r], _mm512_mul_ps(load(at[r], type, i, 0xFFFF), values));
    }
    __mmask16 tail = (__mmask16)((1u << (w->columns - i)) - 1u); /* an absent term adds nothing */
    __m512 values = _mm512_maskz_loadu_ps(tail, x + i);
    for (uint32_t r = 0; r < rows; r++) {
        __m512 products = _mm512_mul_ps(load(at[r], type, i, tail), values);
        out[row + r] = colibri_avx512_tree(_mm512_mask_add_ps(sums[r], tail, sums[r], products));
    }
}

static inline __attribute__((always_inline)) void
token(const colibri_matrix *w, uint32_t type, const float *x, uint32_t begin, uint32_t end, float *out)
{
    uint32_t row = begin;
    for (; end - row >= ROWS; row += ROWS)
        rows_of(w, type, row, ROWS, x, out);
    for (; row < end; row++)
        rows_of(w, type, row, 1, x, out);
}

void colibri_avx512_matmul_floats(const colibri_matmul *m, uint32_t row_begin, uint32_t row_end)
{
    const colibri_matrix *w = m->weight;
    for (uint32_t t = 0; t < m->tokens; t++) {
        uint32_t in = m->in_rows != NULL ? m->in_rows[t] : t, to = m->out_rows != NULL ? m->out_rows[t] : t;
        const float *x = m->values + (size_t)in * m->value_stride;
        float *out = m->out + (size_t)to * m->out_stride;
        if (w->type == COLIBRI_F32)
            token(w, COLIBRI_F32, x, row_begin, row_end, out);
        else if (w->type == COLIBRI_F16)
            token(w, COLIBRI_F16, x, row_begin, row_end, out);
        else
            token(w, COLIBRI_BF16, x, row_begin, row_end, out);
        for (uint32_t r = row_begin; m->bias != NULL && r < row_end; r++)
            out[r] = out[r] + m->bias[r];
    }
}
