/* SPDX-License-Identifier: Apache-2.0 */
/* Products with f32, f16 and bf16 weights: sixteen partial sums in four registers. */
#include "../../src/convert.h"
#include "../../src/options.h"
#include "colibri/image.h"
#include "neon.h"
#include "sums.h"
#include "unroll.h"

COLIBRI_INLINE float32x4_t load(const uint8_t *row, uint32_t type, uint32_t i)
{
    const uint16_t *half = (const uint16_t *)(const void *)row + i;
    if (COLIBRI_WITH_F16 && type == COLIBRI_F16)
        return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(half)));
    if (COLIBRI_WITH_BF16 && type == COLIBRI_BF16)
        return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(half), 16));
    return vld1q_f32((const float *)(const void *)row + i);
}

static float element(const uint8_t *row, uint32_t type, uint32_t i)
{
    uint32_t half = type == COLIBRI_F32 ? 0 : ((const uint16_t *)(const void *)row)[i];
    if (COLIBRI_WITH_F16 && type == COLIBRI_F16)
        return colibri_f16_to_float(half);
    if (COLIBRI_WITH_BF16 && type == COLIBRI_BF16)
        return colibri_float_from_bits(half << 16);
    return ((const float *)(const void *)row)[i];
}

COLIBRI_INLINE float row_dot(const uint8_t *row, uint32_t type, const float *x, uint32_t n)
{
    colibri_neon_sums sums = colibri_neon_sums_zero();
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        COLIBRI_UNROLL
        for (uint32_t k = 0; k < 4; k++) {
            float32x4_t product = vmulq_f32(load(row, type, i + 4 * k), vld1q_f32(x + i + 4 * k));
            sums.part[k] = vaddq_f32(sums.part[k], product);
        }
    }
    if (i == n)
        return colibri_neon_tree(&sums);
    colibri_sums s = colibri_neon_spill(&sums);
    for (; i < n; i++)
        s.part[i % 16] = s.part[i % 16] + element(row, type, i) * x[i];
    return colibri_sums_tree(&s);
}

/* The type is a constant in each of these loops. */
static float any_row(const colibri_matrix *w, uint32_t r, const float *x)
{
    const uint8_t *row = w->codes + (size_t)r * w->stride;
    if (COLIBRI_WITH_F16 && w->type == COLIBRI_F16)
        return row_dot(row, COLIBRI_F16, x, w->columns);
    if (COLIBRI_WITH_BF16 && w->type == COLIBRI_BF16)
        return row_dot(row, COLIBRI_BF16, x, w->columns);
    return row_dot(row, COLIBRI_F32, x, w->columns);
}

/* Rows outside, so that a row is read from memory once for all tokens. */
void colibri_neon_matmul_float(const colibri_matmul *m, uint32_t row_begin, uint32_t row_end)
{
    for (uint32_t r = row_begin; r < row_end; r++) {
        for (uint32_t t = 0; t < m->tokens; t++) {
            uint32_t in_row = m->in_rows != NULL ? m->in_rows[t] : t;
            uint32_t out_row = m->out_rows != NULL ? m->out_rows[t] : t;
            float sum = any_row(m->weight, r, m->values + (size_t)in_row * m->value_stride);
            m->out[(size_t)out_row * m->out_stride + r] = m->bias != NULL ? sum + m->bias[r] : sum;
        }
    }
}
