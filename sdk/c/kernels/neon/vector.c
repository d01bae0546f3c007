/* SPDX-License-Identifier: Apache-2.0 */
/* Element-wise operations in NEON, without fused multiply-add: every float operation is the reference's. */
#include "../ref/ref.h"
#include "exp.h"
#include "neon.h"
#include "sums.h"

/* Largest magnitude of a multiple of eight elements; NaN is passed over. */
static float largest_magnitude(const float *x, uint32_t n)
{
    float32x4_t top[2] = {vdupq_n_f32(0.0f), vdupq_n_f32(0.0f)};
    for (uint32_t i = 0; i < n; i += 8) {
        float32x4_t a = vabsq_f32(vld1q_f32(x + i)), b = vabsq_f32(vld1q_f32(x + i + 4));
        top[0] = vbslq_f32(vcgtq_f32(a, top[0]), a, top[0]);
        top[1] = vbslq_f32(vcgtq_f32(b, top[1]), b, top[1]);
    }
    return vmaxvq_f32(vmaxq_f32(top[0], top[1]));
}

/* To nearest, ties to even; a NaN becomes -127. */
static inline int32x4_t codes4(const float *x, float inverse)
{
    float32x4_t t = vmulq_n_f32(vld1q_f32(x), inverse);
    t = vminnmq_f32(vmaxnmq_f32(t, vdupq_n_f32(-127.0f)), vdupq_n_f32(127.0f));
    return vcvtnq_s32_f32(t);
}

static void quantize_group(const float *x, uint32_t group, int8_t *codes, float *scale)
{
    float amax = largest_magnitude(x, group);
    if (amax < 0x1p-64f) { /* zero or very small */
        colibri_ref_quantize(x, group, group, codes, scale);
        return;
    }
    float inverse = 127.0f / amax;
    *scale = amax / 127.0f;
    for (uint32_t i = 0; i < group; i += 8) {
        int16x4_t low = vmovn_s32(codes4(x + i, inverse));
        int16x4_t high = vmovn_s32(codes4(x + i + 4, inverse));
        vst1_s8(codes + i, vmovn_s16(vcombine_s16(low, high)));
    }
}

void colibri_neon_quantize(const float *x, uint32_t n, uint32_t group, int8_t *codes, float *scales)
{
    uint32_t whole = group % 8 == 0 ? n / group : 0;
    for (uint32_t g = 0; g < whole; g++)
        quantize_group(x + (size_t)g * group, group, codes + (size_t)g * group, scales + g);
    colibri_ref_quantize(x + (size_t)whole * group, n - whole * group, group,
                         codes + (size_t)whole * group, scales + whole);
}

void colibri_neon_rms_norm(const float *x, const float *weight, uint32_t n, float epsilon, float *out)
{
    colibri_neon_sums sums = colibri_neon_sums_zero();
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (uint32_t k = 0; k < 4; k++) {
            float32x4_t a = vld1q_f32(x + i + 4 * k);
            sums.part[k] = vaddq_f32(sums.part[k], vmulq_f32(a, a));
        }
    colibri_sums s = colibri_neon_spill(&sums);
    for (; i < n; i++)
        s.part[i % 16] = s.part[i % 16] + x[i] * x[i];
    float r = colibri_rsqrt(colibri_sums_tree(&s) / (float)n + epsilon);
    for (i = 0; i + 4 <= n; i += 4)
        vst1q_f32(out + i, vmulq_f32(vmulq_n_f32(vld1q_f32(x + i), r), vld1q_f32(weight + i)));
    for (; i < n; i++)
        out[i] = (x[i] * r) * weight[i];
}

void colibri_neon_silu_gate(float *gate, const float *up, uint32_t n)
{
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4) {
        float32x4_t g = vld1q_f32(gate + i);
        float32x4_t under = vaddq_f32(vdupq_n_f32(1.0f), colibri_neon_exp(vnegq_f32(g)));
        vst1q_f32(gate + i, vmulq_f32(vdivq_f32(g, under), vld1q_f32(up + i)));
    }
    colibri_ref_silu_gate(gate + i, up + i, n - i);
}
