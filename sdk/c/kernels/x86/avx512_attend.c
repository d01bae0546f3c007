/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of one head, sixteen elements a register. Four positions are scored together and up to eight registers of
 * the output gathered together, so that additions which must follow one another do not wait for each other. */
#include <stddef.h>

#include "../../src/float_math.h"
#include "../ref/ref.h"
#include "avx2.h"
#include "avx512.h"
#include "avx512_sums.h"
#include "colibri/image.h"

enum { TOGETHER = 4, WIDTH = 8 };

static inline float vector_scale(uint32_t kv, const uint8_t *vector)
{
    return kv == COLIBRI_Q8 ? *(const float *)(const void *)vector : 1.0f;
}

static inline __m512 load(uint32_t kv, const uint8_t *vector, float scale, uint32_t i)
{
    if (kv == COLIBRI_F32)
        return _mm512_loadu_ps((const float *)(const void *)vector + i);
    if (kv == COLIBRI_F16)
        return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(vector + i * 2)));
    __m128i codes = _mm_loadu_si128((const __m128i *)(const void *)(vector + 4 + i));
    return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes)), _mm512_set1_ps(scale));
}

static inline __attribute__((always_inline)) void
score(const colibri_attend *a, uint32_t kv, uint32_t position, uint32_t count)
{
    const uint8_t *key = a->keys + (size_t)position * a->stride;
    __m512 sums[TOGETHER];
    for (uint32_t j = 0; j < count; j++)
        sums[j] = _mm512_setzero_ps();
    for (uint32_t i = 0; i < a->head_size; i += 16) {
        __m512 query = _mm512_loadu_ps(a->query + i);
        for (uint32_t j = 0; j < count; j++) {
            const uint8_t *vector = key + (size_t)j * a->stride;
            __m512 elements = load(kv, vector, vector_scale(kv, vector), i);
            sums[j] = _mm512_add_ps(sums[j], _mm512_mul_ps(query, elements));
        }
    }
    for (uint32_t j = 0; j < count; j++)
        a->scores[position + j] = colibri_avx512_tree(sums[j]) * a->scale;
}

/* `width` registers of the output from element i on, all positions in order. */
static inline __attribute__((always_inline)) void
gather(const colibri_attend *a, uint32_t kv, uint32_t i, uint32_t width, __m512 inverse)
{
    __m512 sums[WIDTH];
    const uint8_t *value = a->values;
    for (uint32_t j = 0; j < width; j++)
        sums[j] = _mm512_setzero_ps();
    for (uint32_t p = 0; p < a->positions; p++, value += a->stride) {
        __m512 weight = _mm512_set1_ps(a->scores[p]);
        float scale = vector_scale(kv, value);
        for (uint32_t j = 0; j < width; j++)
            sums[j] = _mm512_add_ps(sums[j], _mm512_mul_ps(weight, load(kv, value, scale, i + 16 * j)));
    }
    for (uint32_t j = 0; j < width; j++)
        _mm512_storeu_ps(a->out + i + 16 * j, _mm512_mul_ps(sums[j], inverse));
}

static inline __attribute__((always_inline)) void attend(const colibri_attend *a, uint32_t kv)
{
    uint32_t p = 0, i = 0;
    for (; a->positions - p >= TOGETHER; p += TOGETHER)
        score(a, kv, p, TOGETHER);
    for (; p < a->positions; p++)
        score(a, kv, p, 1);
    __m512 inverse = _mm512_set1_ps(colibri_avx2_soften(a->scores, a->positions, a->sink));
    for (; a->value_size - i >= 16 * WIDTH; i += 16 * WIDTH)
        gather(a, kv, i, WIDTH, inverse);
    for (; a->value_size - i >= 64; i += 64)
        gather(a, kv, i, 4, inverse);
    for (; i < a->value_size; i += 16)
        gather(a, kv, i, 1, inverse);
}

void colibri_avx512_attend(const colibri_attend *a)
{
    if (a->head_size % 16 != 0 || a->value_size % 16 != 0)
        colibri_ref_attend(a);
    else if (a->kv == COLIBRI_F32)
        attend(a, COLIBRI_F32);
    else if (a->kv == COLIBRI_F16)
        attend(a, COLIBRI_F16);
    else
        attend(a, COLIBRI_Q8);
}
