/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products in plain C: the definition (docs/numerics.md section 4). */
#include <stddef.h>

#include "../../src/convert.h"
#include "../../src/options.h"
#include "../../src/tiles.h"
#include "colibri/image.h"
#include "ref.h"
#include "sums.h"

#if COLIBRI_WITH_Q8
static int32_t dot_q8(const uint8_t *codes, const int8_t *x, uint32_t group)
{
    int32_t sum = 0;
    for (uint32_t i = 0; i < group; i++)
        sum += (int8_t)codes[i] * x[i];
    return sum;
}
#endif

#if COLIBRI_WITH_Q4
/* The nibble is the code + 8, so the eight is taken off once for the group. */
static int32_t dot_q4(const uint8_t *codes, const int8_t *x, uint32_t group)
{
    uint32_t half = group / 2;
    int32_t sum = 0, ones = 0;
    for (uint32_t j = 0; j < half; j++) {
        int32_t low = x[j], high = x[half + j];
        sum += (int32_t)(codes[j] & 15u) * low + (int32_t)(codes[j] >> 4) * high;
        ones += low + high;
    }
    return sum - 8 * ones;
}
#endif

#if COLIBRI_WITH_TILES && COLIBRI_WITH_Q8
static int32_t tile_dot_q8(const uint8_t *codes, const int8_t *x, uint32_t group)
{
    int32_t sum = 0;
    for (uint32_t i = 0; i < group; i++)
        sum += (int8_t)codes[i / 4 * COLIBRI_TILE_BYTES + i % 4] * x[i];
    return sum;
}
#endif

#if COLIBRI_WITH_TILES && COLIBRI_WITH_Q4
/* Four bytes hold eight columns: the first four low, the others high. */
static int32_t tile_dot_q4(const uint8_t *codes, const int8_t *x, uint32_t group)
{
    int32_t sum = 0;
    for (uint32_t i = 0; i < group / 2; i++) {
        uint32_t byte = codes[i / 4 * COLIBRI_TILE_BYTES + i % 4], at = i / 4 * 8 + i % 4;
        sum += ((int32_t)(byte & 15u) - 8) * x[at] + ((int32_t)(byte >> 4) - 8) * x[at + 4];
    }
    return sum;
}
#endif

#if COLIBRI_WITH_Q8 || COLIBRI_WITH_Q4
static int32_t group_dot(const colibri_matrix *w, uint32_t row, uint32_t g, const int8_t *x)
{
    const uint8_t *codes = colibri_group_codes(w, row, g);
#if COLIBRI_WITH_TILES && COLIBRI_WITH_Q8
    if (colibri_in_tile(w, row) && w->type == COLIBRI_Q8)
        return tile_dot_q8(codes, x, w->group);
#endif
#if COLIBRI_WITH_TILES && COLIBRI_WITH_Q4
    if (colibri_in_tile(w, row) && w->type == COLIBRI_Q4)
        return tile_dot_q4(codes, x, w->group);
#endif
#if COLIBRI_WITH_Q4
    if (w->type == COLIBRI_Q4)
        return dot_q4(codes, x, w->group);
#endif
#if COLIBRI_WITH_Q8
    if (w->type == COLIBRI_Q8)
        return dot_q8(codes, x, w->group);
#endif
    return 0;
}

static float row_quantised(const colibri_matmul *m, uint32_t row, uint32_t in_row)
{
    const colibri_matrix *w = m->weight;
    const int8_t *x = m->codes + (size_t)in_row * m->code_stride;
    const float *d = m->scales + (size_t)in_row * m->scale_stride;
    float sum = 0.0f;
    for (uint32_t g = 0; g < w->groups; g++, x += w->group) {
        float scale = colibri_f16_to_float(colibri_group_scale(w, row, g)) * d[g];
        sum = sum + (float)group_dot(w, row, g, x) * scale;
    }
    return sum;
}
#endif

static float element(const void *row, uint32_t type, uint32_t i)
{
#if COLIBRI_WITH_F16
    if (type == COLIBRI_F16)
        return colibri_f16_to_float(((const uint16_t *)row)[i]);
#endif
#if COLIBRI_WITH_BF16
    if (type == COLIBRI_BF16)
        return colibri_float_from_bits((uint32_t)((const uint16_t *)row)[i] << 16);
#endif
    (void)type;
    return ((const float *)row)[i];
}

static float row_float(const colibri_matmul *m, uint32_t row, uint32_t in_row)
{
    const colibri_matrix *w = m->weight;
    const uint8_t *codes = w->codes + (size_t)row * w->stride;
    const float *x = m->values + (size_t)in_row * m->value_stride;
    colibri_sums s = {{0}};
    for (uint32_t i = 0; i < w->columns; i++)
        s.part[i % 16] = s.part[i % 16] + element(codes, w->type, i) * x[i];
    return colibri_sums_tree(&s);
}

void colibri_ref_matmul(const colibri_matmul *m, uint32_t row_begin, uint32_t row_end)
{
    for (uint32_t t = 0; t < m->tokens; t++) {
        uint32_t in_row = m->in_rows != NULL ? m->in_rows[t] : t;
        uint32_t out_row = m->out_rows != NULL ? m->out_rows[t] : t;
        float *out = m->out + (size_t)out_row * m->out_stride;
        for (uint32_t r = row_begin; r < row_end; r++) {
            float sum;
#if COLIBRI_WITH_Q8 || COLIBRI_WITH_Q4
            if (m->weight->groups != 0)
                sum = row_quantised(m, r, in_row);
            else
#endif
                sum = row_float(m, r, in_row);
            out[r] = m->bias != NULL ? sum + m->bias[r] : sum;
        }
    }
}
