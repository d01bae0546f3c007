/* SPDX-License-Identifier: Apache-2.0 */
/* Weight order 1 (docs/spec.md section 4): sixteen rows form a tile, in which every 64 bytes hold four (q8) or
 * eight (q4) columns of all sixteen, four bytes a row. Rows beyond the last whole tile lie as in order 0. */
#ifndef COLIBRI_TILES_H
#define COLIBRI_TILES_H

#include <stdbool.h>
#include <stddef.h>

#include "colibri/image.h"
#include "colibri/kernels.h"
#include "options.h"

enum { COLIBRI_TILE_ROWS = 16, COLIBRI_TILE_BYTES = 64 };

static inline bool colibri_in_tile(const colibri_matrix *m, uint32_t row)
{
    return COLIBRI_WITH_TILES && m->order == COLIBRI_ORDER_TILES && row < (m->rows & ~15u);
}

/* The codes of a row's group; in a tile, byte i of them is at (i / 4) * 64 + i % 4. */
static inline const uint8_t *colibri_group_codes(const colibri_matrix *m, uint32_t row, uint32_t g)
{
    size_t bytes = (size_t)g * (m->type == COLIBRI_Q4 ? m->group / 2 : m->group);
    if (colibri_in_tile(m, row))
        return m->codes + (size_t)(row & ~15u) * m->stride + bytes * COLIBRI_TILE_ROWS + (row & 15u) * 4;
    return m->codes + (size_t)row * m->stride + bytes;
}

static inline uint16_t colibri_group_scale(const colibri_matrix *m, uint32_t row, uint32_t g)
{
    if (colibri_in_tile(m, row))
        return m->scales[(size_t)(row & ~15u) * m->groups + g * COLIBRI_TILE_ROWS + (row & 15u)];
    return m->scales[(size_t)row * m->groups + g];
}

#endif
