/* SPDX-License-Identifier: Apache-2.0 */
/* The sixteen partial sums of ref/sums.h in two registers: low holds parts 0-7, high parts 8-15. */
#ifndef COLIBRI_X86_AVX2_SUMS_H
#define COLIBRI_X86_AVX2_SUMS_H

#include <immintrin.h>

#include "../ref/sums.h"

/* The same tree: i + (i + 8), then i + (i + 4), then i + (i + 2), then even + odd. */
static inline float colibri_avx2_tree(__m256 low, __m256 high)
{
    __m256 eight = _mm256_add_ps(low, high);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

static inline void colibri_avx2_spill(colibri_sums *s, __m256 low, __m256 high)
{
    _mm256_storeu_ps(s->part, low);
    _mm256_storeu_ps(s->part + 8, high);
}

#endif
