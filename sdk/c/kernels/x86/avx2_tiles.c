/* SPDX-License-Identifier: Apache-2.0 */
/* Products with weights in tiles, in halves of eight rows: as avx512_matmul.c, with pairwise products in 16 bits. */
#include "../ref/ref.h"
#include "avx2.h"
#include "tile_pass.h"

enum { TOKENS = 4 };

#define EACH(t) _Pragma("GCC unroll 4") for (uint32_t t = 0; t < tokens; t++)

static inline __m256i four_codes(const int8_t *x)
{
    return _mm256_broadcastd_epi32(_mm_loadu_si32(x));
}

/* sums[t] += 32 columns of eight rows, four blocks. Nibbles are at most 15: eight pairs fit in 16 bits. */
static inline __attribute__((always_inline)) void
columns_q4(const uint8_t *codes, const struct colibri_pass *p, uint32_t at, uint32_t tokens, __m256i *sums)
{
    const __m256i mask = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
    __m256i pairs[TOKENS];
    EACH(t) pairs[t] = _mm256_setzero_si256();
    for (uint32_t b = 0; b < 4; b++, codes += COLIBRI_TILE_BYTES, at += 8) {
        __m256i bytes = _mm256_loadu_si256((const __m256i *)(const void *)codes);
        __m256i low = _mm256_and_si256(bytes, mask), high = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), mask);
        EACH(t) {
            pairs[t] = _mm256_add_epi16(pairs[t], _mm256_maddubs_epi16(low, four_codes(p->x[t] + at)));
            pairs[t] = _mm256_add_epi16(pairs[t], _mm256_maddubs_epi16(high, four_codes(p->x[t] + at + 4)));
        }
    }
    EACH(t) sums[t] = _mm256_add_epi32(sums[t], _mm256_madd_epi16(pairs[t], ones));
}

/* Likewise eight blocks of q8: |w| * (x with w's sign), where one pair alone fits. */
static inline __attribute__((always_inline)) void
columns_q8(const uint8_t *codes, const struct colibri_pass *p, uint32_t at, uint32_t tokens, __m256i *sums)
{
    const __m256i ones = _mm256_set1_epi16(1);
    for (uint32_t b = 0; b < 8; b++, codes += COLIBRI_TILE_BYTES, at += 4) {
        __m256i w = _mm256_loadu_si256((const __m256i *)(const void *)codes), size = _mm256_sign_epi8(w, w);
        EACH(t) {
            __m256i x = _mm256_sign_epi8(four_codes(p->x[t] + at), w);
            sums[t] = _mm256_add_epi32(sums[t], _mm256_madd_epi16(_mm256_maddubs_epi16(size, x), ones));
        }
    }
}

/* acc += the sums of group g and eight rows, times both scales. */
static inline __attribute__((always_inline)) void
scale_up(const struct colibri_pass *p, uint32_t g, const uint16_t *scales, uint32_t tokens, const __m256i *sums,
         __m256 *acc)
{
    __m256 scale = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)scales));
    EACH(t) {
        __m256 both = _mm256_mul_ps(scale, _mm256_set1_ps(p->d[t][g]));
        acc[t] = _mm256_add_ps(acc[t], _mm256_mul_ps(_mm256_cvtepi32_ps(sums[t]), both));
    }
}

/* Sixteen rows from `row` on, the two halves in step: every line of the tile is read once. */
static inline __attribute__((always_inline)) void
tile(const struct colibri_pass *p, uint32_t row, uint32_t type, uint32_t tokens)
{
    const colibri_matrix *w = p->w;
    uint32_t group = w->group, step = COLIBRI_TILE_BYTES * (type == COLIBRI_Q4 ? 4 : 8);
    const uint8_t *codes = colibri_group_codes(w, row, p->first_group);
    const uint16_t *scales = w->scales + (size_t)row * w->groups + p->first_group * COLIBRI_TILE_ROWS;
    __m256 low[TOKENS], high[TOKENS];
    EACH(t) low[t] = p->first_group == 0 ? _mm256_setzero_ps() : _mm256_loadu_ps(p->out[t] + row);
    EACH(t) high[t] = p->first_group == 0 ? _mm256_setzero_ps() : _mm256_loadu_ps(p->out[t] + row + 8);
    for (uint32_t g = 0; g < p->groups; g++, scales += COLIBRI_TILE_ROWS) {
        __m256i first[TOKENS], second[TOKENS];
        EACH(t) first[t] = second[t] = _mm256_set1_epi32(p->start[t][g]);
        for (uint32_t at = g * group; at < (g + 1) * group; at += 32, codes += step) {
            for (uint32_t line = 0; line < step; line += COLIBRI_TILE_BYTES)
                _mm_prefetch((const char *)codes + line + COLIBRI_AHEAD, _MM_HINT_T1);
            if (type == COLIBRI_Q4) {
                columns_q4(codes, p, at, tokens, first);
                columns_q4(codes + 32, p, at, tokens, second);
            } else {
                columns_q8(codes, p, at, tokens, first);
                columns_q8(codes + 32, p, at, tokens, second);
            }
        }
        scale_up(p, g, scales, tokens, first, low);
        scale_up(p, g, scales + 8, tokens, second, high);
    }
    EACH(t) _mm256_storeu_ps(p->out[t] + row, low[t]);
    EACH(t) _mm256_storeu_ps(p->out[t] + row + 8, high[t]);
}

static void tiles(const struct colibri_pass *p, uint32_t begin, uint32_t end)
{
    switch (p->tokens) {
        COLIBRI_PASS_CASE(1);
        COLIBRI_PASS_CASE(2);
        COLIBRI_PASS_CASE(4);
    }
}

static uint32_t pass_tokens(uint32_t left)
{
    return left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

static const struct colibri_tile_kernel kernel = {tiles, pass_tokens, colibri_ref_matmul, 0};

void colibri_avx2_matmul_tiles(const colibri_matmul *m, uint32_t row_begin, uint32_t row_end)
{
    colibri_tile_product(m, row_begin, row_end, &kernel);
}
