/* SPDX-License-Identifier: Apache-2.0 */
/* Products with weights in tiles: VNNI leaves the integer dots of sixteen rows in the sixteen lanes of a register, so
 * the float step of a group is one multiply and one add for all of them. Several tokens pass over a tile together:
 * its bytes are loaded and unpacked once for all. Other orders and types are those of other files. */
#include "../../src/tiles.h"
#include "../ref/ref.h"
#include "avx2.h"
#include "avx512.h"
#include "tile_sums.h"

enum { TOKENS = 12, AHEAD = 4096 }; /* tokens a pass: their sums stay in registers; bytes fetched ahead */

/* Tokens of one pass over some groups of the columns. */
struct pass {
    const colibri_matrix *w;
    uint32_t first_group;
    uint32_t groups;
    const int8_t *x[TOKENS];  /* from the first group on */
    const float *d[TOKENS];
    float *out[TOKENS];       /* row 0 */
    int32_t offset[TOKENS][COLIBRI_PART_GROUPS];
};

#define EACH(t) _Pragma("GCC unroll 12") for (uint32_t t = 0; t < tokens; t++)

static inline __m512i four_codes(const int8_t *x)
{
    return _mm512_broadcastd_epi32(_mm_loadu_si32(x));
}

/* sums[t] += 64 bytes of q4: eight columns of sixteen rows. */
static inline __attribute__((always_inline)) void
block_q4(const uint8_t *codes, const struct pass *p, uint32_t at, uint32_t tokens, __m512i *sums)
{
    const __m512i mask = _mm512_set1_epi8(15);
    __m512i bytes = _mm512_loadu_si512(codes);
    __m512i low = _mm512_and_si512(bytes, mask), high = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), mask);
    _mm_prefetch((const char *)codes + AHEAD, _MM_HINT_T0);
    EACH(t) sums[t] = _mm512_dpbusd_epi32(sums[t], low, four_codes(p->x[t] + at));
    EACH(t) sums[t] = _mm512_dpbusd_epi32(sums[t], high, four_codes(p->x[t] + at + 4));
}

/* 64 bytes of q8: four columns. dpbusd takes one side unsigned: the weight plus 128. */
static inline __attribute__((always_inline)) void
block_q8(const uint8_t *codes, const struct pass *p, uint32_t at, uint32_t tokens, __m512i *sums)
{
    __m512i bytes = _mm512_xor_si512(_mm512_loadu_si512(codes), _mm512_set1_epi8(-128));
    _mm_prefetch((const char *)codes + AHEAD, _MM_HINT_T0);
    EACH(t) sums[t] = _mm512_dpbusd_epi32(sums[t], bytes, four_codes(p->x[t] + at));
}

/* Sixteen rows from `row` on. */
static inline __attribute__((always_inline)) void
tile(const struct pass *p, uint32_t row, uint32_t type, uint32_t tokens)
{
    const colibri_matrix *w = p->w;
    uint32_t per_block = type == COLIBRI_Q4 ? 8 : 4, group = w->group;
    const uint8_t *codes = colibri_group_codes(w, row, p->first_group);
    const uint16_t *scales = w->scales + (size_t)row * w->groups + p->first_group * COLIBRI_TILE_ROWS;
    __m512 acc[TOKENS];
    EACH(t) acc[t] = p->first_group == 0 ? _mm512_setzero_ps() : _mm512_loadu_ps(p->out[t] + row);
    for (uint32_t g = 0; g < p->groups; g++, scales += COLIBRI_TILE_ROWS) {
        __m512i sums[TOKENS];
        EACH(t) sums[t] = _mm512_set1_epi32(p->offset[t][g]);
        for (uint32_t at = g * group; at < (g + 1) * group; at += per_block, codes += COLIBRI_TILE_BYTES) {
            if (type == COLIBRI_Q4)
                block_q4(codes, p, at, tokens, sums);
            else
                block_q8(codes, p, at, tokens, sums);
        }
        __m512 scale = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)scales));
        EACH(t) {
            __m512 both = _mm512_mul_ps(scale, _mm512_set1_ps(p->d[t][g]));
            acc[t] = _mm512_add_ps(acc[t], _mm512_mul_ps(_mm512_cvtepi32_ps(sums[t]), both));
        }
    }
    EACH(t) _mm512_storeu_ps(p->out[t] + row, acc[t]);
}

#define TILES_OF(type, tokens)                                   \
    for (uint32_t row = begin; row < end; row += COLIBRI_TILE_ROWS) \
        tile(p, row, type, tokens)

#define TILES(tokens)                          \
    case tokens:                               \
        if (p->w->type == COLIBRI_Q4)          \
            TILES_OF(COLIBRI_Q4, tokens);      \
        else                                   \
            TILES_OF(COLIBRI_Q8, tokens);      \
        break

static void tiles(const struct pass *p, uint32_t begin, uint32_t end, uint32_t tokens)
{
    switch (tokens) {
        TILES(1);
        TILES(2);
        TILES(4);
        TILES(8);
        TILES(12);
    }
}

/* Tokens that the next pass takes. */
static uint32_t pass_tokens(uint32_t left)
{
    return left >= 12 ? 12 : left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

static void set_up(struct pass *p, const colibri_matmul *m, uint32_t token, uint32_t tokens)
{
    const colibri_matrix *w = p->w;
    int32_t factor = w->type == COLIBRI_Q4 ? -8 : -128;
    for (uint32_t t = 0; t < tokens; t++) {
        uint32_t in = m->in_rows != NULL ? m->in_rows[token + t] : token + t;
        uint32_t out = m->out_rows != NULL ? m->out_rows[token + t] : token + t;
        p->x[t] = m->codes + (size_t)in * m->code_stride + (size_t)p->first_group * w->group;
        p->d[t] = m->scales + (size_t)in * m->scale_stride + p->first_group;
        p->out[t] = m->out + (size_t)out * m->out_stride;
        for (uint32_t g = 0; g < p->groups; g++)
            p->offset[t][g] = factor * colibri_code_sum(p->x[t] + (size_t)g * w->group, w->group);
    }
}

/* Whole tiles of rows begin .. end - 1. */
static void tile_rows(const colibri_matmul *m, uint32_t begin, uint32_t end)
{
    struct pass p;
    p.w = m->weight;
    for (uint32_t token = 0, tokens; token < m->tokens; token += tokens) {
        tokens = pass_tokens(m->tokens - token);
        for (p.first_group = 0; p.first_group < p.w->groups; p.first_group += p.groups) {
            uint32_t left = p.w->groups - p.first_group;
            p.groups = left < COLIBRI_PART_GROUPS ? left : COLIBRI_PART_GROUPS;
            set_up(&p, m, token, tokens);
            tiles(&p, begin, end, tokens);
        }
        for (uint32_t t = 0; m->bias != NULL && t < tokens; t++)
            for (uint32_t r = begin; r < end; r++)
                p.out[t][r] = p.out[t][r] + m->bias[r];
    }
}

void colibri_avx512_matmul(const colibri_matmul *m, uint32_t row_begin, uint32_t row_end)
{
    const colibri_matrix *w = m->weight;
    uint32_t whole = w->rows & ~15u, begin = (row_begin + 15u) & ~15u, end = row_end & ~15u;
    if (w->groups == 0) {
        colibri_avx512_matmul_floats(m, row_begin, row_end);
        return;
    }
    end = row_end > whole ? whole : end;
    if (w->order != COLIBRI_ORDER_TILES || begin >= end) {
        colibri_avx2_matmul(m, row_begin, row_end);
        return;
    }
    if (row_begin < begin)
        colibri_avx2_matmul(m, row_begin, begin);
    tile_rows(m, begin, end);
    if (end < row_end)
        colibri_avx2_matmul(m, end, row_end);
}
