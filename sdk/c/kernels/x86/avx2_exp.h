/* SPDX-License-Identifier: Apache-2.0 */
/* colibri_exp on eight lanes: the same operations in the same order. */
#ifndef COLIBRI_X86_AVX2_EXP_H
#define COLIBRI_X86_AVX2_EXP_H

#include <immintrin.h>

#include "../../src/float_math.h"

static inline __m256 colibri_avx2_step(__m256 y, __m256 r, float c)
{
    return _mm256_add_ps(_mm256_mul_ps(y, r), _mm256_set1_ps(c));
}

static inline __m256 colibri_avx2_exp(__m256 x)
{
    const __m256 magic = _mm256_set1_ps(COLIBRI_ROUND_MAGIC);
    __m256 zero = _mm256_cmp_ps(x, _mm256_set1_ps(COLIBRI_EXP_LOW), _CMP_LT_OQ);
    x = _mm256_min_ps(_mm256_set1_ps(COLIBRI_EXP_HIGH), x); /* a NaN in x stays */
    __m256 t = _mm256_add_ps(_mm256_mul_ps(x, _mm256_set1_ps(COLIBRI_LOG2_E)), magic);
    __m256i n = _mm256_sub_epi32(_mm256_castps_si256(t), _mm256_set1_epi32((int)COLIBRI_ROUND_BITS));
    t = _mm256_sub_ps(t, magic);
    __m256 r = _mm256_sub_ps(x, _mm256_mul_ps(t, _mm256_set1_ps(COLIBRI_LN2_HIGH)));
    r = _mm256_sub_ps(r, _mm256_mul_ps(t, _mm256_set1_ps(COLIBRI_LN2_LOW)));
    __m256 y = colibri_avx2_step(_mm256_set1_ps(COLIBRI_EXP_0), r, COLIBRI_EXP_1);
    y = colibri_avx2_step(y, r, COLIBRI_EXP_2);
    y = colibri_avx2_step(y, r, COLIBRI_EXP_3);
    y = colibri_avx2_step(y, r, COLIBRI_EXP_4);
    y = colibri_avx2_step(y, r, COLIBRI_EXP_5);
    y = _mm256_add_ps(_mm256_mul_ps(y, _mm256_mul_ps(r, r)), r);
    y = _mm256_add_ps(y, _mm256_set1_ps(1.0f));
    __m256i power = _mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23);
    return _mm256_andnot_ps(zero, _mm256_mul_ps(y, _mm256_castsi256_ps(power)));
}

#endif
