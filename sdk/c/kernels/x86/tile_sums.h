/* SPDX-License-Identifier: Apache-2.0 */
/* What tiles need of the activations: -8 * sum of a group's codes. Nibbles hold code + 8, so the product with them is
 * too large by eight times that sum, which is the same for every row. */
#ifndef COLIBRI_X86_TILE_SUMS_H
#define COLIBRI_X86_TILE_SUMS_H

#include <immintrin.h>

/* Groups whose sums are kept at once, on the stack; wider matrices go through in parts. */
enum { COLIBRI_PART_GROUPS = 256 };

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

#endif
