/* SPDX-License-Identifier: Apache-2.0 */
/* Products with tiles, whatever the width of the vectors: cuts rows into whole tiles, tokens into passes, and wide
 * matrices into parts of their columns. A table brings what one pass does with some tiles. */
#ifndef COLIBRI_X86_TILE_PASS_H
#define COLIBRI_X86_TILE_PASS_H

#include <immintrin.h>

#include "../../src/tiles.h"

enum { COLIBRI_PASS_TOKENS = 12, COLIBRI_PASS_GROUPS = 256, COLIBRI_AHEAD = 4096 /* bytes fetched ahead */ };

/* Tokens that pass over tiles together, and some groups of the columns. */
struct colibri_pass {
    const colibri_matrix *w;
    uint32_t first_group;
    uint32_t groups;
    uint32_t tokens;
    const int8_t *x[COLIBRI_PASS_TOKENS]; /* from the first group on */
    const float *d[COLIBRI_PASS_TOKENS];
    float *out[COLIBRI_PASS_TOKENS];      /* row 0 */
    /* What a group's integer sums start from: codes are taken with an offset that makes them unsigned, so a sum is
     * too large by the offset times the sum of the activation's codes, the same for every row. */
    int32_t start[COLIBRI_PASS_TOKENS][COLIBRI_PASS_GROUPS];
};

/* A table's part: tiles of rows begin .. end - 1, and how many of `left` tokens a pass takes. */
struct colibri_tile_kernel {
    void (*tiles)(const struct colibri_pass *p, uint32_t begin, uint32_t end);
    uint32_t (*tokens)(uint32_t left);
    void (*rest)(const colibri_matmul *m, uint32_t row_begin, uint32_t row_end);
    int32_t q8_offset;
};

/* Sum of a group of a multiple of 32 codes. */
static inline int32_t colibri_code_sum(const int8_t *x, uint32_t group)
{
    const __m256i ones8 = _mm256_set1_epi8(1), ones16 = _mm256_set1_epi16(1);
    __m256i sum = _mm256_setzero_si256();
    for (uint32_t i = 0; i < group; i += 32) {
        __m256i codes = _mm256_loadu_si256((const __m256i *)(const void *)(x + i));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(ones8, codes), ones16));
    }
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xB1)));
}

static inline void colibri_pass_set(struct colibri_pass *p, const colibri_matmul *m, uint32_t token, int32_t offset)
{
    const colibri_matrix *w = p->w;
    for (uint32_t t = 0; t < p->tokens; t++) {
        uint32_t in = m->in_rows != NULL ? m->in_rows[token + t] : token + t;
        uint32_t out = m->out_rows != NULL ? m->out_rows[token + t] : token + t;
        p->x[t] = m->codes + (size_t)in * m->code_stride + (size_t)p->first_group * w->group;
        p->d[t] = m->scales + (size_t)in * m->scale_stride + p->first_group;
        p->out[t] = m->out + (size_t)out * m->out_stride;
        for (uint32_t g = 0; g < p->groups; g++)
            p->start[t][g] = offset == 0 ? 0 : -offset * colibri_code_sum(p->x[t] + (size_t)g * w->group, w->group);
    }
}

/* Whole tiles of rows begin .. end - 1, all tokens. */
static inline void colibri_tile_rows(const colibri_matmul *m, uint32_t begin, uint32_t end,
                                     const struct colibri_tile_kernel *k)
{
    struct colibri_pass p;
    p.w = m->weight;
    for (uint32_t token = 0; token < m->tokens; token += p.tokens) {
        p.tokens = k->tokens(m->tokens - token);
        p.first_group = 0;
        do { /* once for a matrix without columns too: its product is +0 */
            uint32_t left = p.w->groups - p.first_group;
            p.groups = left < COLIBRI_PASS_GROUPS ? left : COLIBRI_PASS_GROUPS;
            colibri_pass_set(&p, m, token, p.w->type == COLIBRI_Q4 ? 8 : k->q8_offset);
            k->tiles(&p, begin, end);
            p.first_group += p.groups;
        } while (p.first_group < p.w->groups);
        for (uint32_t t = 0; m->bias != NULL && t < p.tokens; t++)
            for (uint32_t r = begin; r < end; r++)
                p.out[t][r] = p.out[t][r] + m->bias[r];
    }
}

static inline void colibri_tile_product(const colibri_matmul *m, uint32_t row_begin, uint32_t row_end,
                                        const struct colibri_tile_kernel *k)
{
    const struct colibri_tile_cut cut = colibri_cut_tiles(m->weight, row_begin, row_end);
    if (row_begin < cut.whole)
        k->rest(m, row_begin, cut.whole);
    if (cut.whole < cut.part)
        colibri_tile_rows(m, cut.whole, cut.part, k);
    if (cut.part < row_end)
        k->rest(m, cut.part, row_end);
}

/* All tiles of a pass of `count` tokens, as a case of a switch over tokens. `tile(p, row, type, tokens)` is the table's:
 * the compiler must know type and tokens to keep its sums in registers. */
#define COLIBRI_PASS_CASE(count)                                                \
    case count:                                                                 \
        for (uint32_t row = begin; row < end; row += COLIBRI_TILE_ROWS) {       \
            if (p->w->type == COLIBRI_Q4)                                       \
                tile(p, row, COLIBRI_Q4, count);                                \
            else                                                                \
                tile(p, row, COLIBRI_Q8, count);                                \
        }                                                                       \
        break

#endif
