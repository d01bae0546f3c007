/* SPDX-License-Identifier: Apache-2.0 */
/* The sixteen partial sums of ref/sums.h in four registers: register k holds parts 4k .. 4k + 3. */
#ifndef COLIBRI_NEON_SUMS_H
#define COLIBRI_NEON_SUMS_H

#include <arm_neon.h>

#include "../ref/sums.h"

typedef struct colibri_neon_sums {
    float32x4_t part[4];
} colibri_neon_sums;

static inline colibri_neon_sums colibri_neon_sums_zero(void)
{
    const float32x4_t zero = vdupq_n_f32(0.0f);
    return (colibri_neon_sums){{zero, zero, zero, zero}};
}

/* The same tree: i + (i + 8), then i + (i + 4), then i + (i + 2), then even + odd. */
static inline float colibri_neon_tree(const colibri_neon_sums *s)
{
    float32x4_t low = vaddq_f32(s->part[0], s->part[2]), high = vaddq_f32(s->part[1], s->part[3]);
    float32x4_t four = vaddq_f32(low, high);
    float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

static inline colibri_sums colibri_neon_spill(const colibri_neon_sums *s)
{
    colibri_sums out;
    vst1q_f32(out.part, s->part[0]);
    vst1q_f32(out.part + 4, s->part[1]);
    vst1q_f32(out.part + 8, s->part[2]);
    vst1q_f32(out.part + 12, s->part[3]);
    return out;
}

#endif
