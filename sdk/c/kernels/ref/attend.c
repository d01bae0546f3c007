/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of one head of one token over its cache (docs/numerics.md section 6). */
#include <stddef.h>

#include "../../src/convert.h"
#include "../../src/float_math.h"
#include "../../src/options.h"
#include "colibri/image.h"
#include "ref.h"
#include "sums.h"

/* A q8 vector starts with its f32 scale; the other types have none. */
static float vector_scale(uint32_t kv, const void *vector)
{
    return COLIBRI_WITH_KV_Q8 && kv == COLIBRI_Q8 ? *(const float *)vector : 1.0f;
}

static float element(uint32_t kv, const void *vector, float scale, uint32_t i)
{
#if COLIBRI_WITH_KV_F16
    if (kv == COLIBRI_F16)
        return colibri_f16_to_float(((const uint16_t *)vector)[i]);
#endif
#if COLIBRI_WITH_KV_Q8
    if (kv == COLIBRI_Q8)
        return (float)((const int8_t *)vector)[4 + i] * scale;
#endif
    (void)kv;
    (void)scale;
    return ((const float *)vector)[i];
}

static float score(const colibri_attend *a, uint32_t position)
{
    const void *key = a->keys + (size_t)position * a->stride;
    float scale = vector_scale(a->kv, key);
    colibri_sums s = {{0}};
    for (uint32_t i = 0; i < a->head_size; i++)
        s.part[i % 16] = s.part[i % 16] + a->query[i] * element(a->kv, key, scale, i);
    return colibri_sums_tree(&s) * a->scale;
}

float colibri_ref_soften(float *scores, uint32_t n, const float *sink)
{
    float maximum = sink != NULL ? *sink : scores[0];
    for (uint32_t p = 0; p < n; p++)
        maximum = scores[p] > maximum ? scores[p] : maximum;
    colibri_sums s = {{0}};
    for (uint32_t p = 0; p < n; p++) {
        scores[p] = colibri_exp(scores[p] - maximum);
        s.part[p % 16] = s.part[p % 16] + scores[p];
    }
    float sum = colibri_sums_tree(&s);
    if (sink != NULL)
        sum = sum + colibri_exp(*sink - maximum);
    return 1.0f / sum;
}

/* out may be the query: it is written after the last score. */
void colibri_ref_attend(const colibri_attend *a)
{
    for (uint32_t p = 0; p < a->positions; p++)
        a->scores[p] = score(a, p);
    float inverse = colibri_ref_soften(a->scores, a->positions, a->sink);
    for (uint32_t i = 0; i < a->value_size; i++)
        a->out[i] = 0.0f;
    for (uint32_t p = 0; p < a->positions; p++) {
        const void *value = a->values + (size_t)p * a->stride;
        float scale = vector_scale(a->kv, value);
        for (uint32_t i = 0; i < a->value_size; i++)
            a->out[i] = a->out[i] + a->scores[p] * element(a->kv, value, scale, i);
    }
    for (uint32_t i = 0; i < a->value_size; i++)
        a->out[i] = a->out[i] * inverse;
}
