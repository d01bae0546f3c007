/* SPDX-License-Identifier: Apache-2.0 */
/* Products with f32, f16 and bf16 weights: sixteen partial sums in one register group. */
#include "../../src/options.h"
#include "colibri/image.h"
#include "lanes.h"
#include "rvv.h"

enum { LANES = COLIBRI_RVV_LANES };

static inline vfloat32m4_t load(const uint8_t *row, uint32_t type, uint32_t i, size_t n)
{
    const uint16_t *half = (const uint16_t *)(const void *)row + i;
    if (COLIBRI_WITH_F16 && type == COLIBRI_F16)
        return colibri_rvv_load_f16(half, n);
    if (COLIBRI_WITH_BF16 && type == COLIBRI_BF16)
        return colibri_rvv_load_bf16(half, n);
    return __riscv_vle32_v_f32m4((const float *)(const void *)row + i, n);
}

/* Lanes that the tail lacks stay as they are. */
static float row_dot(const colibri_matrix *w, uint32_t r, const float *x)
{
    const uint8_t *row = w->codes + (size_t)r * w->stride;
    vfloat32m4_t sums = __riscv_vfmv_v_f_f32m4(0.0f, LANES);
    for (uint32_t i = 0; i < w->columns; i += LANES) {
        size_t here = w->columns - i < LANES ? w->columns - i : LANES;
        vfloat32m4_t a = __riscv_vle32_v_f32m4(x + i, here);
        vfloat32m4_t product = __riscv_vfmul_vv_f32m4(load(row, w->type, i, here), a, here);
        sums = __riscv_vfadd_vv_f32m4_tu(sums, sums, product, here);
    }
    return colibri_rvv_tree(sums);
}

/* Rows outside, so that a row is read from memory once for all tokens. */
void colibri_rvv_matmul_float(const colibri_matmul *m, uint32_t row_begin, uint32_t row_end)
{
    for (uint32_t r = row_begin; r < row_end; r++) {
        for (uint32_t t = 0; t < m->tokens; t++) {
            uint32_t in_row = m->in_rows != NULL ? m->in_rows[t] : t;
            uint32_t out_row = m->out_rows != NULL ? m->out_rows[t] : t;
            float sum = row_dot(m->weight, r, m->values + (size_t)in_row * m->value_stride);
            m->out[(size_t)out_row * m->out_stride + r] = m->bias != NULL ? sum + m->bias[r] : sum;
        }
    }
}
