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

/* Rows of a matrix in tiles, cut where kernels change: up to `whole` they are part of a tile, up to `part`
 * whole tiles, up to `plain` part of a tile again, and from there on in no tile. Each may be empty. */
struct colibri_tile_cut {
    uint32_t whole, part, plain;
};

static inline struct colibri_tile_cut colibri_cut_tiles(const colibri_matrix *m, uint32_t row_begin,
                                                        uint32_t row_end)
{
    uint32_t tiled = m->rows & ~15u, up = (row_begin + 15u) & ~15u;
    struct colibri_tile_cut cut = {.plain = row_end < tiled ? row_end : tiled};
    if (cut.plain < row_begin)
        cut.plain = row_begin;
    cut.whole = up < cut.plain ? up : cut.plain;
    cut.part = (cut.plain & ~15u) > cut.whole ? cut.plain & ~15u : cut.whole;
    return cut;
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
