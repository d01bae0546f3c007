/* SPDX-License-Identifier: Apache-2.0 */
/* Products with weights in tiles: VNNI leaves the integer dots of sixteen rows in the sixteen lanes of a register, so
 * the float step of a group is one multiply and one add for all of them. Several tokens pass over a tile together:
 * its bytes are loaded and unpacked once for all. Other orders and types are those of other files. */
#include "../ref/ref.h"
#include "avx2.h"
#include "avx512.h"
#include "tile_pass.h"

#define EACH(t) _Pragma("GCC unroll 12") for (uint32_t t = 0; t < tokens; t++)

static inline __m512i four_codes(const int8_t *x)
{
    return _mm512_broadcastd_epi32(_mm_loadu_si32(x));
}

/* sums[t] += 64 bytes of q4: eight columns of sixteen rows. */
static inline __attribute__((always_inline)) void
block_q4(const uint8_t *codes, const struct colibri_pass *p, uint32_t at, uint32_t tokens, __m512i *sums)
{
    const __m512i mask = _mm512_set1_epi8(15);
    __m512i bytes = _mm512_loadu_si512(codes);
    __m512i low = _mm512_and_si512(bytes, mask), high = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), mask);
    EACH(t) sums[t] = _mm512_dpbusd_epi32(sums[t], low, four_codes(p->x[t] + at));
    EACH(t) sums[t] = _mm512_dpbusd_epi32(sums[t], high, four_codes(p->x[t] + at + 4));
}

/* 64 bytes of q8: four columns. dpbusd takes one side unsigned: the weight plus 128. */
static inline __attribute__((always_inline)) void
block_q8(const uint8_t *codes, const struct colibri_pass *p, uint32_t at, uint32_t tokens, __m512i *sums)
{
    __m512i bytes = _mm512_xor_si512(_mm512_loadu_si512(codes), _mm512_set1_epi8(-128));
    EACH(t) sums[t] = _mm512_dpbusd_epi32(sums[t], bytes, four_codes(p->x[t] + at));
}

/* Sixteen rows from `row` on. */
static inline __attribute__((always_inline)) void
tile(const struct colibri_pass *p, uint32_t row, uint32_t type, uint32_t tokens)
{
    const colibri_matrix *w = p->w;
    uint32_t per_block = type == COLIBRI_Q4 ? 8 : 4, group = w->group;
    const uint8_t *codes = colibri_group_codes(w, row, p->first_group);
    const uint16_t *scales = w->scales + (size_t)row * w->groups + p->first_group * COLIBRI_TILE_ROWS;
    __m512 acc[COLIBRI_PASS_TOKENS];
    EACH(t) acc[t] = p->first_group == 0 ? _mm512_setzero_ps() : _mm512_loadu_ps(p->out[t] + row);
    for (uint32_t g = 0; g < p->groups; g++, scales += COLIBRI_TILE_ROWS) {
        __m512i sums[COLIBRI_PASS_TOKENS];
        EACH(t) sums[t] = _mm512_set1_epi32(p->start[t][g]);
        for (uint32_t at = g * group; at < (g + 1) * group; at += per_block, codes += COLIBRI_TILE_BYTES) {
            _mm_prefetch((const char *)codes + COLIBRI_AHEAD, _MM_HINT_T1);
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

static void tiles(const struct colibri_pass *p, uint32_t begin, uint32_t end)
{
    switch (p->tokens) {
        COLIBRI_PASS_CASE(1);
        COLIBRI_PASS_CASE(2);
        COLIBRI_PASS_CASE(4);
        COLIBRI_PASS_CASE(8);
        COLIBRI_PASS_CASE(12);
    }
}

static uint32_t pass_tokens(uint32_t left)
{
    return left >= 12 ? 12 : left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

static const struct colibri_tile_kernel kernel = {tiles, pass_tokens, colibri_ref_matmul, 128};

void colibri_avx512_matmul(const colibri_matmul *m, uint32_t row_begin, uint32_t row_end)
{
    if (m->weight->groups == 0)
        colibri_avx512_matmul_floats(m, row_begin, row_end);
    else if (m->weight->order == COLIBRI_ORDER_TILES)
        colibri_tile_product(m, row_begin, row_end, &kernel);
    else
        colibri_avx2_matmul(m, row_begin, row_end);
}
