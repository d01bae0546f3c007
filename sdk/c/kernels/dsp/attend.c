/* SPDX-License-Identifier: Apache-2.0 */
/* Attention with sixteen sums in the registers of the FPU, where the reference keeps them in memory, and f16
 * widened by its own instruction. Every step is the reference's (docs/numerics.md sections 2 and 6). */
#include <stddef.h>

#include "../../src/options.h"
#include "../ref/ref.h"
#include "../ref/sums.h"
#include "colibri/image.h"
#include "dsp.h"

#define BLOCK 16u /* elements: as many as there are sums */
#define INLINE static inline __attribute__((always_inline))

#if defined(__ARM_FP)

/* Two neighbours of a vector in the cache. Not q8, which is left to the reference. */
struct two {
    float first, second;
};

INLINE struct two two_elements(uint32_t kv, const uint8_t *vector, uint32_t i)
{
    typedef float __attribute__((may_alias)) word;
    struct two t;
#if COLIBRI_WITH_KV_F16
    if (kv == COLIBRI_F16) {
        float halves = *(const word *)(const void *)(vector + (size_t)i * 2);
        __asm__("vcvtb.f32.f16 %0, %1" : "=t"(t.first) : "t"(halves));
        __asm__("vcvtt.f32.f16 %0, %1" : "=t"(t.second) : "t"(halves));
        return t;
    }
#endif
    const word *elements = (const word *)(const void *)(vector + (size_t)i * 4);
    (void)kv;
    t.first = elements[0];
    t.second = elements[1];
    return t;
}

#define EACH_TWO(STEP) STEP(0) STEP(2) STEP(4) STEP(6) STEP(8) STEP(10) STEP(12) STEP(14)

INLINE float score(uint32_t kv, const float *query, const uint8_t *key, uint32_t n)
{
    colibri_sums s = {{0}};
    for (uint32_t i = 0; i < n; i += BLOCK) {
#define ADD_PRODUCTS(J)                                             \
    {                                                               \
        struct two t = two_elements(kv, key, i + (J));              \
        s.part[J] = s.part[J] + query[i + (J)] * t.first;           \
        s.part[(J) + 1] = s.part[(J) + 1] + query[i + (J) + 1] * t.second; \
    }
        EACH_TWO(ADD_PRODUCTS)
    }
    return colibri_sums_tree(&s);
}

/* Sixteen elements of the output. */
INLINE void weighted_sum(uint32_t kv, const colibri_attend *a, uint32_t i, float inverse)
{
    colibri_sums s = {{0}};
    const uint8_t *value = a->values;
    for (const float *weight = a->scores, *end = weight + a->positions; weight < end; weight++, value += a->stride) {
#define ADD_VALUES(J)                                               \
    {                                                               \
        struct two t = two_elements(kv, value, i + (J));            \
        s.part[J] = s.part[J] + *weight * t.first;                  \
        s.part[(J) + 1] = s.part[(J) + 1] + *weight * t.second;     \
    }
        EACH_TWO(ADD_VALUES)
    }
    for (uint32_t j = 0; j < BLOCK; j++)
        a->out[i + j] = s.part[j] * inverse;
}

INLINE void attend(uint32_t kv, const colibri_attend *a)
{
    for (uint32_t p = 0; p < a->positions; p++)
        a->scores[p] = score(kv, a->query, a->keys + (size_t)p * a->stride, a->head_size) * a->scale;
    float inverse = colibri_ref_soften(a->scores, a->positions, a->sink);
    for (uint32_t i = 0; i < a->value_size; i += BLOCK)
        weighted_sum(kv, a, i, inverse);
}

void colibri_dsp_attend(const colibri_attend *a)
{
    if ((a->head_size | a->value_size) % BLOCK != 0 || a->kv == COLIBRI_Q8)
        colibri_ref_attend(a);
#if COLIBRI_WITH_KV_F16
    else if (a->kv == COLIBRI_F16)
        attend(COLIBRI_F16, a);
#endif
    else
        attend(COLIBRI_F32, a);
}

#else

void colibri_dsp_attend(const colibri_attend *a)
{
    colibri_ref_attend(a);
}

#endif
