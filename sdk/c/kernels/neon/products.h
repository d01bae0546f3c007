/* SPDX-License-Identifier: Apache-2.0 */
/* Products of q8 and q4 weights, all but the integer dots: those are given by the file that includes this,
 * before it does.
 *
 *   COLIBRI_TILE_TOKENS                        most tokens that meet a tile in one pass over it
 *   tile_q8, tile_q4(codes, x, group, tokens, dot)
 *       dot[t][r] gets, for rows 4r .. 4r + 3 of a tile and token t, the dot of one group added; q4 codes
 *       count as 0 .. 15. tokens is 1 or COLIBRI_TILE_TOKENS, a constant of the call.
 *   row_step(sum, w, x)                        sixteen products, in any order, added into four lanes
 */
#ifndef COLIBRI_NEON_PRODUCTS_H
#define COLIBRI_NEON_PRODUCTS_H

#include <arm_neon.h>
#include <stdbool.h>
#include <stddef.h>

#include "../../src/options.h"
#include "../../src/tiles.h"
#include "../ref/ref.h"
#include "colibri/image.h"
#include "neon.h"

enum {
    BAND_ROWS = 64,    /* rows whose weights stay in a cache while all tokens meet them */
    CHUNK_GROUPS = 64, /* groups whose activation sums are kept at a time */
};

/* Tokens that meet a tile together, and the groups of this pass. */
struct pass {
    const colibri_matmul *m;
    uint32_t first_group, end_group;
    const int8_t *x[COLIBRI_TILE_TOKENS];
    const float *d[COLIBRI_TILE_TOKENS];
    float *out[COLIBRI_TILE_TOKENS];
    int32_t eights[COLIBRI_TILE_TOKENS][CHUNK_GROUPS]; /* q4: -8 * sum of a group's activation codes */
};

/* acc + float(dot) * (weight scale * activation scale), a row a lane. */
COLIBRI_INLINE void add_group(const uint16_t *scales, const float *const d[], uint32_t g, int tokens,
                              int32x4_t dot[][4], float32x4_t sum[][4])
{
    float32x4_t scale[4];
    COLIBRI_UNROLL
    for (int k = 0; k < 2; k++) {
        float16x8_t half = vreinterpretq_f16_u16(vld1q_u16(scales + 8 * k));
        scale[2 * k] = vcvt_f32_f16(vget_low_f16(half));
        scale[2 * k + 1] = vcvt_high_f32_f16(half);
    }
    COLIBRI_UNROLL
    for (int i = 0; i < 4 * tokens; i++) {
        int t = i / 4, r = i % 4;
        float32x4_t product = vmulq_f32(vcvtq_f32_s32(dot[t][r]), vmulq_n_f32(scale[r], d[t][g]));
        sum[t][r] = vaddq_f32(sum[t][r], product);
    }
}

COLIBRI_INLINE void load_sums(const struct pass *p, uint32_t row, int tokens, float32x4_t sum[][4])
{
    COLIBRI_UNROLL
    for (int i = 0; i < 4 * tokens; i++) {
        const float *out = p->out[i / 4] + row + i % 4 * 4;
        sum[i / 4][i % 4] = p->first_group == 0 ? vdupq_n_f32(0.0f) : vld1q_f32(out);
    }
}

COLIBRI_INLINE void store_sums(const struct pass *p, uint32_t row, int tokens, float32x4_t sum[][4])
{
    const float *bias = p->end_group == p->m->weight->groups ? p->m->bias : NULL;
    COLIBRI_UNROLL
    for (int i = 0; i < 4 * tokens; i++) {
        uint32_t at = row + (uint32_t)i % 4 * 4;
        float32x4_t total = sum[i / 4][i % 4];
        vst1q_f32(p->out[i / 4] + at, bias != NULL ? vaddq_f32(total, vld1q_f32(bias + at)) : total);
    }
}

/* One tile of sixteen rows; sums of an earlier chunk of groups wait in out. */
COLIBRI_INLINE void tile(const struct pass *p, uint32_t type, int tokens, uint32_t row)
{
    const colibri_matrix *w = p->m->weight;
    const uint32_t first = p->first_group, groups = p->end_group - first, group = w->group;
    const uint32_t bytes = COLIBRI_TILE_ROWS * group / (type == COLIBRI_Q4 ? 2 : 1);
    const uint8_t *codes = w->codes + (size_t)row * w->stride + (size_t)first * bytes;
    const uint16_t *scales = w->scales + (size_t)row * w->groups + (size_t)first * COLIBRI_TILE_ROWS;
    const int8_t *x[COLIBRI_TILE_TOKENS];
    const float *d[COLIBRI_TILE_TOKENS];
    float32x4_t sum[COLIBRI_TILE_TOKENS][4];
    COLIBRI_UNROLL
    for (int t = 0; t < tokens; t++) {
        x[t] = p->x[t] + (size_t)first * group;
        d[t] = p->d[t] + first;
    }
    load_sums(p, row, tokens, sum);
    for (uint32_t g = 0; g < groups; g++, codes += bytes, scales += COLIBRI_TILE_ROWS) {
        int32x4_t dot[COLIBRI_TILE_TOKENS][4];
        COLIBRI_UNROLL
        for (int i = 0; i < 4 * tokens; i++)
            dot[i / 4][i % 4] = vdupq_n_s32(type == COLIBRI_Q4 ? p->eights[i / 4][g] : 0);
        if (type == COLIBRI_Q4)
            tile_q4(codes, x, group, tokens, dot);
        else
            tile_q8(codes, x, group, tokens, dot);
        COLIBRI_UNROLL
        for (int t = 0; t < tokens; t++)
            x[t] += group;
        add_group(scales, d, g, tokens, dot, sum);
    }
    store_sums(p, row, tokens, sum);
}

static int32_t minus_eights(const int8_t *x, uint32_t group)
{
    int16x8_t sum = vdupq_n_s16(0); /* a lane takes at most 2 * 8 codes */
    for (uint32_t i = 0; i < group; i += 16)
        sum = vpadalq_s8(sum, vld1q_s8(x + i));
    return -8 * vaddlvq_s16(sum);
}

/* The type and the number of tokens are constants here, so that each kind gets its own loop. */
COLIBRI_INLINE void pass_of(struct pass *p, uint32_t type, int tokens, uint32_t row_begin, uint32_t row_end)
{
    const colibri_matrix *w = p->m->weight;
    for (uint32_t g = 0; g < w->groups; g = p->end_group) {
        p->first_group = g;
        p->end_group = w->groups - g < CHUNK_GROUPS ? w->groups : g + CHUNK_GROUPS;
        for (int t = 0; type == COLIBRI_Q4 && t < tokens; t++)
            for (uint32_t k = g; k < p->end_group; k++)
                p->eights[t][k - g] = minus_eights(p->x[t] + (size_t)k * w->group, w->group);
        for (uint32_t row = row_begin; row < row_end; row += COLIBRI_TILE_ROWS)
            tile(p, type, tokens, row);
    }
}

#if COLIBRI_WITH_Q4 || COLIBRI_WITH_Q8
static void tiles_one(struct pass *p, uint32_t row_begin, uint32_t row_end)
{
    if (COLIBRI_WITH_Q4 && p->m->weight->type == COLIBRI_Q4)
        pass_of(p, COLIBRI_Q4, 1, row_begin, row_end);
    else if (COLIBRI_WITH_Q8)
        pass_of(p, COLIBRI_Q8, 1, row_begin, row_end);
}

static void tiles_many(struct pass *p, uint32_t row_begin, uint32_t row_end)
{
    if (COLIBRI_WITH_Q4 && p->m->weight->type == COLIBRI_Q4)
        pass_of(p, COLIBRI_Q4, COLIBRI_TILE_TOKENS, row_begin, row_end);
    else if (COLIBRI_WITH_Q8)
        pass_of(p, COLIBRI_Q8, COLIBRI_TILE_TOKENS, row_begin, row_end);
}

/* All tokens against a band of whole tiles. More than half a pass of tokens is worth a whole one: its
 * places are filled up with the last token, whose outputs are the same each time. */
static void band(const colibri_matmul *m, uint32_t row_begin, uint32_t row_end)
{
    struct pass p = {.m = m};
    for (uint32_t t = 0, taken; t < m->tokens; t += taken) {
        uint32_t left = m->tokens - t;
        taken = left > COLIBRI_TILE_TOKENS ? COLIBRI_TILE_TOKENS : left;
        bool many = taken > COLIBRI_TILE_TOKENS / 2;
        taken = many ? taken : 1;
        for (uint32_t k = 0; k < COLIBRI_TILE_TOKENS; k++) {
            uint32_t token = t + (k < taken ? k : taken - 1);
            uint32_t in_row = m->in_rows != NULL ? m->in_rows[token] : token;
            uint32_t out_row = m->out_rows != NULL ? m->out_rows[token] : token;
            p.x[k] = m->codes + (size_t)in_row * m->code_stride;
            p.d[k] = m->scales + (size_t)in_row * m->scale_stride;
            p.out[k] = m->out + (size_t)out_row * m->out_stride;
        }
        if (many)
            tiles_many(&p, row_begin, row_end);
        else
            tiles_one(&p, row_begin, row_end);
    }
}

/* A row in the order of the reference: four partial sums of one group's dot. */
COLIBRI_INLINE int32x4_t row_group(uint32_t type, const uint8_t *codes, const int8_t *x, uint32_t group)
{
    int32x4_t sum = vdupq_n_s32(0);
    if (type == COLIBRI_Q8) {
        for (uint32_t i = 0; i < group; i += 16)
            sum = row_step(sum, vld1q_s8((const int8_t *)codes + i), vld1q_s8(x + i));
        return sum;
    }
    const int8x16_t eight = vdupq_n_s8(8);
    for (uint32_t i = 0; i < group / 2; i += 16) {
        uint8x16_t bytes = vld1q_u8(codes + i);
        int8x16_t low = vreinterpretq_s8_u8(vandq_u8(bytes, vdupq_n_u8(15)));
        int8x16_t high = vreinterpretq_s8_u8(vshrq_n_u8(bytes, 4));
        sum = row_step(sum, vsubq_s8(low, eight), vld1q_s8(x + i));
        sum = row_step(sum, vsubq_s8(high, eight), vld1q_s8(x + group / 2 + i));
    }
    return sum;
}

/* Four such rows of one token, so that a group's sums become one register. */
COLIBRI_INLINE float32x4_t four_rows(const colibri_matrix *w, uint32_t type, uint32_t row, const int8_t *x,
                                     const float *d)
{
    float32x4_t sum = vdupq_n_f32(0.0f);
    const uint8_t *codes = w->codes + (size_t)row * w->stride;
    const uint16_t *scales = w->scales + (size_t)row * w->groups;
    uint32_t bytes = type == COLIBRI_Q4 ? w->group / 2 : w->group;
    for (uint32_t g = 0; g < w->groups; g++, codes += bytes, x += w->group, scales++) {
        int32x4_t part[4];
        uint16_t half[4];
        COLIBRI_UNROLL
        for (uint32_t r = 0; r < 4; r++) {
            part[r] = row_group(type, codes + (size_t)r * w->stride, x, w->group);
            half[r] = scales[(size_t)r * w->groups];
        }
        int32x4_t dot = vpaddq_s32(vpaddq_s32(part[0], part[1]), vpaddq_s32(part[2], part[3]));
        float32x4_t scale = vmulq_n_f32(vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(half))), d[g]);
        sum = vaddq_f32(sum, vmulq_f32(vcvtq_f32_s32(dot), scale));
    }
    return sum;
}

/* Rows that lie one after the other; the last ones, fewer than four, are the reference's. */
static void rows(const colibri_matmul *m, uint32_t row_begin, uint32_t row_end)
{
    const colibri_matrix *w = m->weight;
    uint32_t r = row_begin;
    for (; row_end - r >= 4; r += 4) {
        for (uint32_t t = 0; t < m->tokens; t++) {
            uint32_t in_row = m->in_rows != NULL ? m->in_rows[t] : t;
            uint32_t out_row = m->out_rows != NULL ? m->out_rows[t] : t;
            const int8_t *x = m->codes + (size_t)in_row * m->code_stride;
            const float *d = m->scales + (size_t)in_row * m->scale_stride;
            float *out = m->out + (size_t)out_row * m->out_stride + r;
            bool q4 = COLIBRI_WITH_Q4 && (!COLIBRI_WITH_Q8 || w->type == COLIBRI_Q4);
            float32x4_t sum = q4 ? four_rows(w, COLIBRI_Q4, r, x, d) : four_rows(w, COLIBRI_Q8, r, x, d);
            vst1q_f32(out, m->bias != NULL ? vaddq_f32(sum, vld1q_f32(m->bias + r)) : sum);
        }
    }
    colibri_ref_matmul(m, r, row_end);
}

static uint32_t at_most(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Part of a tile: the reference; whole tiles in bands; then the rows that fill no tile. */
static void matmul_tiles(const colibri_matmul *m, uint32_t row_begin, uint32_t row_end)
{
    const struct colibri_tile_cut cut = colibri_cut_tiles(m->weight, row_begin, row_end);
    const uint32_t step = m->tokens > COLIBRI_TILE_TOKENS ? BAND_ROWS : cut.part - cut.whole;
    if (row_begin < cut.whole)
        colibri_ref_matmul(m, row_begin, cut.whole);
    for (uint32_t begin = cut.whole; begin < cut.part; begin += step)
        band(m, begin, at_most(cut.part, begin + step));
    if (cut.part < cut.plain)
        colibri_ref_matmul(m, cut.part, cut.plain);
    if (cut.plain < row_end)
        rows(m, cut.plain, row_end);
}
#endif

static void matmul(const colibri_matmul *m, uint32_t row_begin, uint32_t row_end)
{
#if COLIBRI_WITH_Q4 || COLIBRI_WITH_Q8
    if (COLIBRI_WITH_TILES && m->weight->groups != 0 && m->weight->order == COLIBRI_ORDER_TILES)
        matmul_tiles(m, row_begin, row_end);
    else if (m->weight->groups != 0)
        rows(m, row_begin, row_end);
    else
#endif
        colibri_neon_matmul_float(m, row_begin, row_end);
}

#define COLIBRI_NEON_TABLE(title)                                                                  \
    {                                                                                              \
        .struct_bytes = sizeof(colibri_kernels), .name = title,                                    \
        .quantize = colibri_neon_quantize, .matmul = matmul, .rms_norm = colibri_neon_rms_norm,    \
        .silu_gate = colibri_neon_silu_gate, .attend = colibri_neon_attend,                        \
    }

#endif
