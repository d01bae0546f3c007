/* SPDX-License-Identifier: Apache-2.0 */
/* The sixteen partial sums of ref/sums.h in one register, and the same tree. */
#ifndef COLIBRI_X86_AVX512_SUMS_H
#define COLIBRI_X86_AVX512_SUMS_H

#include "avx2_sums.h"

static inline float colibri_avx512_tree(__m512 sums)
{
    __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(sums), 1));
    return colibri_avx2_tree(_mm512_castps512_ps256(sums), high);
}

#endif
