/* SPDX-License-Identifier: Apache-2.0 */
/* Types, sizes and rows of weight tensors (docs/spec.md section 4). */
#include "tensor.h"

#include "colibri/engine.h"

#include "convert.h"
#include "options.h"
#include "size.h"
#include "tiles.h"

bool colibri_type_valid(uint32_t type, uint32_t group)
{
    if (colibri_type_quantised(type))
        return type <= COLIBRI_Q4 && (group == 32 || group == 64 || group == 128);
    return type >= COLIBRI_F32 && group == 0;
}

bool colibri_type_built(uint32_t type)
{
    return colibri_built_with() >> (type - 1u) & 1u;
}

static uint32_t row_stride(const colibri_tensor *t)
{
    uint32_t padded = t->group == 0 ? t->columns : colibri_divide_up(t->columns, t->group) * t->group;
    switch (t->type) {
    case COLIBRI_F32: return padded * 4;
    case COLIBRI_Q8: return padded;
    case COLIBRI_Q4: return padded / 2;
    default: return padded * 2;
    }
}

bool colibri_tensor_bytes(const colibri_tensor *t, uint64_t *bytes)
{
    uint64_t scales;
    if (t->columns > 1u << 28 || !colibri_mul(t->rows, row_stride(t), bytes))
        return false;
    if (!colibri_type_quantised(t->type))
        return true;
    return colibri_align(*bytes, 64, bytes) &&
           colibri_mul(t->rows, colibri_divide_up(t->columns, t->group) * 2u, &scales) &&
           colibri_add(*bytes, scales, bytes);
}

void colibri_matrix_init(colibri_matrix *m, const colibri_tensor *t, const void *data)
{
    m->codes = data;
    m->scales = NULL;
    m->type = t->type;
    m->rows = t->rows;
    m->columns = t->columns;
    m->group = t->group;
    m->groups = 0;
    m->stride = row_stride(t);
    m->order = t->order;
    if (colibri_type_quantised(t->type)) {
        /* open has checked that the tensor's bytes exist, so these fit in memory */
        size_t codes = ((size_t)t->rows * m->stride + 63u) & ~(size_t)63u;
        m->groups = colibri_divide_up(t->columns, t->group);
        m->scales = (const uint16_t *)(const void *)(m->codes + codes);
    }
}

static float quantised_value(const colibri_matrix *m, uint32_t row, uint32_t column)
{
    uint32_t group = column / m->group, j = column % m->group;
    const uint8_t *codes = colibri_group_codes(m, row, group);
    float scale = colibri_f16_to_float(colibri_group_scale(m, row, group));
    bool tiled = colibri_in_tile(m, row);
    uint32_t half = tiled ? 4 : m->group / 2; /* a byte of q4 holds elements j and j + half */
    uint32_t at = m->type == COLIBRI_Q8 ? j : j / (2 * half) * half + j % half;
    uint32_t byte = codes[tiled ? at / 4 * COLIBRI_TILE_BYTES + at % 4 : at];
    if (m->type == COLIBRI_Q8)
        return (float)(int8_t)byte * scale;
    return (float)((int32_t)(j % (2 * half) < half ? byte & 15u : byte >> 4) - 8) * scale;
}

void colibri_row_values(const colibri_matrix *m, uint32_t row, float *out)
{
    const void *start = m->codes + (size_t)row * m->stride;
    for (uint32_t c = 0; c < m->columns; c++) {
        if (colibri_type_quantised(m->type))
            out[c] = quantised_value(m, row, c);
        else if (m->type == COLIBRI_F32)
            out[c] = ((const float *)start)[c];
        else if (m->type == COLIBRI_F16)
            out[c] = colibri_f16_to_float(((const uint16_t *)start)[c]);
        else
            out[c] = colibri_float_from_bits((uint32_t)((const uint16_t *)start)[c] << 16);
    }
}
