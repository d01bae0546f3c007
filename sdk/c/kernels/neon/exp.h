/* SPDX-License-Identifier: Apache-2.0 */
/* colibri_exp on four lanes: the same operations in the same order. */
#ifndef COLIBRI_NEON_EXP_H
#define COLIBRI_NEON_EXP_H

#include <arm_neon.h>

#include "../../src/float_math.h"

static inline float32x4_t colibri_neon_step(float32x4_t y, float32x4_t r, float c)
{
    return vaddq_f32(vmulq_f32(y, r), vdupq_n_f32(c));
}

static inline float32x4_t colibri_neon_exp(float32x4_t x)
{
    const float32x4_t magic = vdupq_n_f32(COLIBRI_ROUND_MAGIC);
    uint32x4_t zero = vcltq_f32(x, vdupq_n_f32(COLIBRI_EXP_LOW));
    x = vminq_f32(x, vdupq_n_f32(COLIBRI_EXP_HIGH)); /* a NaN stays */
    float32x4_t t = vaddq_f32(vmulq_f32(x, vdupq_n_f32(COLIBRI_LOG2_E)), magic);
    uint32x4_t n = vsubq_u32(vreinterpretq_u32_f32(t), vdupq_n_u32(COLIBRI_ROUND_BITS));
    t = vsubq_f32(t, magic);
    float32x4_t r = vsubq_f32(x, vmulq_f32(t, vdupq_n_f32(COLIBRI_LN2_HIGH)));
    r = vsubq_f32(r, vmulq_f32(t, vdupq_n_f32(COLIBRI_LN2_LOW)));
    float32x4_t y = colibri_neon_step(vdupq_n_f32(COLIBRI_EXP_0), r, COLIBRI_EXP_1);
    y = colibri_neon_step(y, r, COLIBRI_EXP_2);
    y = colibri_neon_step(y, r, COLIBRI_EXP_3);
    y = colibri_neon_step(y, r, COLIBRI_EXP_4);
    y = colibri_neon_step(y, r, COLIBRI_EXP_5);
    y = vaddq_f32(vmulq_f32(y, vmulq_f32(r, r)), r);
    y = vaddq_f32(y, vdupq_n_f32(1.0f));
    uint32x4_t power = vshlq_n_u32(vaddq_u32(n, vdupq_n_u32(127)), 23);
    y = vmulq_f32(y, vreinterpretq_f32_u32(power));
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(y), zero));
}

#endif
