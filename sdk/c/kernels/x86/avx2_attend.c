/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of one head: vectors over the head's elements, scores softened eight positions at a time. */
#include "../../src/convert.h"
#include "../ref/ref.h"
#include "avx2.h"
#include "avx2_exp.h"
#include "avx2_sums.h"
#include "colibri/image.h"

static inline float vector_scale(uint32_t kv, const uint8_t *vector)
{
    return kv == COLIBRI_Q8 ? *(const float *)(const void *)vector : 1.0f;
}

static inline __m256 load(uint32_t kv, const uint8_t *vector, float scale, uint32_t i)
{
    if (kv == COLIBRI_F32)
        return _mm256_loadu_ps((const float *)(const void *)vector + i);
    if (kv == COLIBRI_F16)
        return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(vector + i * 2)));
    __m128i codes = _mm_loadl_epi64((const __m128i *)(const void *)(vector + 4 + i));
    return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)), _mm256_set1_ps(scale));
}

static float score(const colibri_attend *a, uint32_t position)
{
    const uint8_t *key = a->keys + (size_t)position * a->stride;
    float scale = vector_scale(a->kv, key);
    __m256 low = _mm256_setzero_ps(), high = _mm256_setzero_ps();
    for (uint32_t i = 0; i < a->head_size; i += 16) {
        low = _mm256_add_ps(low, _mm256_mul_ps(_mm256_loadu_ps(a->query + i), load(a->kv, key, scale, i)));
        high = _mm256_add_ps(high, _mm256_mul_ps(_mm256_loadu_ps(a->query + i + 8),
                                                 load(a->kv, key, scale, i + 8)));
    }
    return colibri_avx2_tree(low, high) * a->scale;
}

float colibri_avx2_soften(float *scores, uint32_t n, const float *sink)
{
    float maximum = sink != NULL ? *sink : scores[0];
    for (uint32_t p = 0; p < n; p++)
        maximum = scores[p] > maximum ? scores[p] : maximum;
    __m256 low = _mm256_setzero_ps(), high = _mm256_setzero_ps(), top = _mm256_set1_ps(maximum);
    uint32_t p = 0;
    for (; p + 16 <= n; p += 16) {
        __m256 a = colibri_avx2_exp(_mm256_sub_ps(_mm256_loadu_ps(scores + p), top));
        __m256 b = colibri_avx2_exp(_mm256_sub_ps(_mm256_loadu_ps(scores + p + 8), top));
        _mm256_storeu_ps(scores + p, a);
        _mm256_storeu_ps(scores + p + 8, b);
        low = _mm256_add_ps(low, a);
        high = _mm256_add_ps(high, b);
    }
    colibri_sums s;
    colibri_avx2_spill(&s, low, high);
    for (; p < n; p++) {
        scores[p] = colibri_exp(scores[p] - maximum);
        s.part[p % 16] = s.part[p % 16] + scores[p];
    }
    float sum = colibri_sums_tree(&s);
    if (sink != NULL)
        sum = sum + colibri_exp(*sink - maximum);
    return 1.0f / sum;
}

/* Sixteen elements of the output at a time, all positions in order. */
static void gather(const colibri_attend *a, uint32_t i, __m256 inverse)
{
    __m256 low = _mm256_setzero_ps(), high = _mm256_setzero_ps();
    const uint8_t *value = a->values;
    for (uint32_t p = 0; p < a->positions; p++, value += a->stride) {
        float scale = vector_scale(a->kv, value);
        __m256 weight = _mm256_set1_ps(a->scores[p]);
        low = _mm256_add_ps(low, _mm256_mul_ps(weight, load(a->kv, value, scale, i)));
        high = _mm256_add_ps(high, _mm256_mul_ps(weight, load(a->kv, value, scale, i + 8)));
    }
    _mm256_storeu_ps(a->out + i, _mm256_mul_ps(low, inverse));
    _mm256_storeu_ps(a->out + i + 8, _mm256_mul_ps(high, inverse));
}

void colibri_avx2_attend(const colibri_attend *a)
{
    if (a->head_size % 16 != 0 || a->value_size % 16 != 0) {
        colibri_ref_attend(a);
        return;
    }
    for (uint32_t p = 0; p < a->positions; p++)
        a->scores[p] = score(a, p);
    __m256 inverse = _mm256_set1_ps(colibri_avx2_soften(a->scores, a->positions, a->sink));
    for (uint32_t i = 0; i < a->value_size; i += 16)
        gather(a, i, inverse);
}
