/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of one head: vectors over the head's elements, scores softened sixteen positions at a time. */
#include "../../src/options.h"
#include "../ref/ref.h"
#include "colibri/image.h"
#include "exp.h"
#include "neon.h"
#include "sums.h"
#include "unroll.h"

/* Sixteen elements, or sums of them: register k holds elements 4k .. 4k + 3. */
typedef colibri_neon_sums sixteen;

/* A q8 vector starts with its f32 scale; the other types have none. */
COLIBRI_INLINE float vector_scale(uint32_t kv, const uint8_t *vector)
{
    return kv == COLIBRI_Q8 ? *(const float *)(const void *)vector : 1.0f;
}

COLIBRI_INLINE float32x4_t widen(int16x4_t codes, float scale)
{
    return vmulq_n_f32(vcvtq_f32_s32(vmovl_s16(codes)), scale);
}

COLIBRI_INLINE sixteen load(uint32_t kv, const uint8_t *vector, float scale, uint32_t i)
{
    sixteen v;
    if (kv == COLIBRI_Q8) {
        int8x16_t codes = vld1q_s8((const int8_t *)vector + 4 + i);
        int16x8_t low = vmovl_s8(vget_low_s8(codes)), high = vmovl_high_s8(codes);
        v.part[0] = widen(vget_low_s16(low), scale);
        v.part[1] = widen(vget_high_s16(low), scale);
        v.part[2] = widen(vget_low_s16(high), scale);
        v.part[3] = widen(vget_high_s16(high), scale);
        return v;
    }
    COLIBRI_UNROLL
    for (uint32_t k = 0; k < 4; k++) {
        if (kv == COLIBRI_F16) {
            const uint16_t *half = (const uint16_t *)(const void *)vector + i + 4 * k;
            v.part[k] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(half)));
        } else {
            v.part[k] = vld1q_f32((const float *)(const void *)vector + i + 4 * k);
        }
    }
    return v;
}

COLIBRI_INLINE void score_all(const colibri_attend *a, uint32_t kv)
{
    const uint8_t *key = a->keys;
    for (uint32_t p = 0; p < a->positions; p++, key += a->stride) {
        float scale = vector_scale(kv, key);
        sixteen sums = colibri_neon_sums_zero();
        for (uint32_t i = 0; i < a->head_size; i += 16) {
            sixteen v = load(kv, key, scale, i);
            COLIBRI_UNROLL
            for (uint32_t k = 0; k < 4; k++) {
                float32x4_t product = vmulq_f32(vld1q_f32(a->query + i + 4 * k), v.part[k]);
                sums.part[k] = vaddq_f32(sums.part[k], product);
            }
        }
        a->scores[p] = colibri_neon_tree(&sums) * a->scale;
    }
}

/* Largest score; one that is no number does not count, as in the reference. */
static float largest(const float *scores, uint32_t n, float first)
{
    float32x4_t top = vdupq_n_f32(first);
    uint32_t p = 0;
    for (; p + 4 <= n; p += 4) {
        float32x4_t s = vld1q_f32(scores + p);
        top = vbslq_f32(vcgtq_f32(s, top), s, top);
    }
    float maximum = vmaxvq_f32(top);
    for (; p < n; p++)
        maximum = scores[p] > maximum ? scores[p] : maximum;
    return maximum;
}

/* Scores become exp(score - maximum); returns one over their sum, the sink included. */
static float soften(float *scores, uint32_t n, const float *sink)
{
    float maximum = largest(scores, n, sink != NULL ? *sink : scores[0]);
    sixteen sums = colibri_neon_sums_zero();
    uint32_t p = 0;
    for (; p + 16 <= n; p += 16) {
        for (uint32_t k = 0; k < 4; k++) {
            float *at = scores + p + 4 * k;
            float32x4_t e = colibri_neon_exp(vsubq_f32(vld1q_f32(at), vdupq_n_f32(maximum)));
            vst1q_f32(at, e);
            sums.part[k] = vaddq_f32(sums.part[k], e);
        }
    }
    colibri_sums s = colibri_neon_spill(&sums);
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
COLIBRI_INLINE void gather_all(const colibri_attend *a, uint32_t kv, float inverse)
{
    for (uint32_t i = 0; i < a->value_size; i += 16) {
        sixteen sums = colibri_neon_sums_zero();
        const uint8_t *value = a->values;
        for (uint32_t p = 0; p < a->positions; p++, value += a->stride) {
            sixteen v = load(kv, value, vector_scale(kv, value), i);
            COLIBRI_UNROLL
            for (uint32_t k = 0; k < 4; k++)
                sums.part[k] = vaddq_f32(sums.part[k], vmulq_n_f32(v.part[k], a->scores[p]));
        }
        COLIBRI_UNROLL
        for (uint32_t k = 0; k < 4; k++)
            vst1q_f32(a->out + i + 4 * k, vmulq_n_f32(sums.part[k], inverse));
    }
}

COLIBRI_INLINE void attend(const colibri_attend *a, uint32_t kv)
{
    score_all(a, kv);
    gather_all(a, kv, soften(a->scores, a->positions, a->sink));
}

/* The type is a constant in each of these calls. */
void colibri_neon_attend(const colibri_attend *a)
{
    if (a->head_size % 16 != 0 || a->value_size % 16 != 0)
        colibri_ref_attend(a);
#if COLIBRI_WITH_KV_F16
    else if (a->kv == COLIBRI_F16)
        attend(a, COLIBRI_F16);
#endif
#if COLIBRI_WITH_KV_Q8
    else if (a->kv == COLIBRI_Q8)
        attend(a, COLIBRI_Q8);
#endif
    else
        attend(a, COLIBRI_F32);
}
