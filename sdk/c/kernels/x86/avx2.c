/* SPDX-License-Identifier: Apache-2.0 */
/* The AVX2 table: element-wise operations here, products in avx2_matmul.c, attention in avx2_attend.c.
 * Compiled without FMA: every float operation is the reference's. */
#include "avx2.h"

#include "../ref/ref.h"
#include "avx2_exp.h"
#include "avx2_sums.h"

/* One whole group of a multiple of eight elements; the rest is the reference's. */
static void quantize_group(const float *x, uint32_t group, int8_t *codes, float *scale)
{
    const __m256 sign = _mm256_set1_ps(-0.0f), limit = _mm256_set1_ps(127.0f);
    __m256 largest = _mm256_setzero_ps();
    for (uint32_t i = 0; i < group; i += 8) /* max(a, b) gives b when a is NaN: NaN is passed over */
        largest = _mm256_max_ps(_mm256_andnot_ps(sign, _mm256_loadu_ps(x + i)), largest);
    float lanes[8], amax = 0.0f;
    _mm256_storeu_ps(lanes, largest);
    for (int i = 0; i < 8; i++)
        amax = lanes[i] > amax ? lanes[i] : amax;
    if (amax < 0x1p-64f) { /* zero or very small */
        colibri_ref_quantize(x, group, group, codes, scale);
        return;
    }
    const __m256 inverse = _mm256_set1_ps(127.0f / amax);
    *scale = amax / 127.0f;
    for (uint32_t i = 0; i < group; i += 8) {
        __m256 t = _mm256_mul_ps(_mm256_loadu_ps(x + i), inverse);
        t = _mm256_min_ps(_mm256_max_ps(t, _mm256_sub_ps(_mm256_setzero_ps(), limit)), limit);
        __m256i n = _mm256_cvtps_epi32(t); /* to nearest, ties to even */
        __m128i pair = _mm_packs_epi32(_mm256_castsi256_si128(n), _mm256_extracti128_si256(n, 1));
        _mm_storel_epi64((__m128i *)(void *)(codes + i), _mm_packs_epi16(pair, pair));
    }
}

void colibri_avx2_quantize(const float *x, uint32_t n, uint32_t group, int8_t *codes, float *scales)
{
    uint32_t whole = group % 8 == 0 ? n / group : 0;
    for (uint32_t g = 0; g < whole; g++)
        quantize_group(x + (size_t)g * group, group, codes + (size_t)g * group, scales + g);
    colibri_ref_quantize(x + (size_t)whole * group, n - whole * group, group,
                         codes + (size_t)whole * group, scales + whole);
}

void colibri_avx2_rms_norm(const float *x, const float *weight, uint32_t n, float epsilon, float *out)
{
    __m256 low = _mm256_setzero_ps(), high = _mm256_setzero_ps();
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + i + 8);
        low = _mm256_add_ps(low, _mm256_mul_ps(a, a));
        high = _mm256_add_ps(high, _mm256_mul_ps(b, b));
    }
    colibri_sums s;
    colibri_avx2_spill(&s, low, high);
    for (; i < n; i++)
        s.part[i % 16] = s.part[i % 16] + x[i] * x[i];
    float r = colibri_rsqrt(colibri_sums_tree(&s) / (float)n + epsilon);
    __m256 scale = _mm256_set1_ps(r);
    for (i = 0; i + 8 <= n; i += 8)
        _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + i), scale),
                                                _mm256_loadu_ps(weight + i)));
    for (; i < n; i++)
        out[i] = (x[i] * r) * weight[i];
}

void colibri_avx2_silu_gate(float *gate, const float *up, uint32_t n)
{
    const __m256 one = _mm256_set1_ps(1.0f), sign = _mm256_set1_ps(-0.0f);
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 g = _mm256_loadu_ps(gate + i);
        __m256 under = _mm256_add_ps(one, colibri_avx2_exp(_mm256_xor_ps(g, sign)));
        _mm256_storeu_ps(gate + i, _mm256_mul_ps(_mm256_div_ps(g, under), _mm256_loadu_ps(up + i)));
    }
    colibri_ref_silu_gate(gate + i, up + i, n - i);
}

const colibri_kernels colibri_avx2_table = {
    .struct_bytes = sizeof(colibri_kernels),
    .name = "avx2",
    .quantize = colibri_avx2_quantize,
    .matmul = colibri_avx2_matmul,
    .rms_norm = colibri_avx2_rms_norm,
    .silu_gate = colibri_avx2_silu_gate,
    .attend = colibri_avx2_attend,
    .crc32 = colibri_avx2_crc32,
};
