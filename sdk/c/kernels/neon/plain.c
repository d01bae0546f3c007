/* SPDX-License-Identifier: Apache-2.0 */
/* AArch64 as every core has it (Cortex-A53, A72): products in 16 bits, added into 32 before they overflow. */
#define COLIBRI_TILE_TOKENS 2
#include <arm_neon.h>
#include <stdbool.h>

#include "ahead.h"
#include "unroll.h"

/* Four activations, four times. */
#define COLUMNS(eight, lane) \
    vreinterpretq_s8_s32(vdupq_lane_s32(vreinterpret_s32_s8(eight), lane))

/* Eight columns a step: two products of +-127 * 127 fit 16 bits. sum[t][2r], [2r + 1]: two rows each, two
 * lanes a row. */
COLIBRI_INLINE void tile_q8(const uint8_t *codes, const int8_t *const x[], uint32_t group, int tokens,
                            int32x4_t dot[][4])
{
    int32x4_t sum[COLIBRI_TILE_TOKENS][8];
    COLIBRI_UNROLL
    for (int i = 0; i < 8 * tokens; i++)
        sum[i / 8][i % 8] = vdupq_n_s32(0);
    for (uint32_t i = 0; i < group; i += 8, codes += 128) {
        int8x16_t a[COLIBRI_TILE_TOKENS], b[COLIBRI_TILE_TOKENS];
        COLIBRI_UNROLL
        for (int t = 0; t < tokens; t++) {
            int8x8_t eight = vld1_s8(x[t] + i);
            a[t] = COLUMNS(eight, 0);
            b[t] = COLUMNS(eight, 1);
        }
        COLIBRI_AHEAD(codes)
        COLIBRI_AHEAD(codes + 64)
        COLIBRI_UNROLL
        for (int r = 0; r < 4; r++) {
            int8x16_t v = vld1q_s8((const int8_t *)codes + 16 * r);
            int8x16_t w = vld1q_s8((const int8_t *)codes + 64 + 16 * r);
            COLIBRI_UNROLL
            for (int t = 0; t < tokens; t++) {
                int16x8_t low = vmull_s8(vget_low_s8(v), vget_low_s8(a[t]));
                int16x8_t high = vmull_high_s8(v, a[t]);
                low = vmlal_s8(low, vget_low_s8(w), vget_low_s8(b[t]));
                high = vmlal_high_s8(high, w, b[t]);
                sum[t][2 * r] = vpadalq_s16(sum[t][2 * r], low);
                sum[t][2 * r + 1] = vpadalq_s16(sum[t][2 * r + 1], high);
            }
        }
    }
    COLIBRI_UNROLL
    for (int i = 0; i < 4 * tokens; i++) {
        const int32x4_t *rows = &sum[i / 4][i % 4 * 2];
        dot[i / 4][i % 4] = vaddq_s32(dot[i / 4][i % 4], vpaddq_s32(rows[0], rows[1]));
    }
}

/* The first of thirty-two columns starts a sum, the others add to it. */
COLIBRI_INLINE int16x8_t add_low(bool first, int16x8_t sum, int8x16_t w, int8x16_t x)
{
    return first ? vmull_s8(vget_low_s8(w), vget_low_s8(x)) : vmlal_s8(sum, vget_low_s8(w), vget_low_s8(x));
}

COLIBRI_INLINE int16x8_t add_high(bool first, int16x8_t sum, int8x16_t w, int8x16_t x)
{
    return first ? vmull_high_s8(w, x) : vmlal_high_s8(sum, w, x);
}

/* Thirty-two columns at a time: a lane takes 8 products of 15 * 127, and two lanes together still fit. */
COLIBRI_INLINE void thirty_two_columns(const uint8_t *codes, const int8_t *const x[], uint32_t at, int tokens,
                                       int32x4_t dot[][4])
{
    int16x8_t sum[COLIBRI_TILE_TOKENS][8];
    COLIBRI_UNROLL
    for (uint32_t i = 0; i < 32; i += 8, codes += 64) {
        int8x16_t a[COLIBRI_TILE_TOKENS], b[COLIBRI_TILE_TOKENS];
        COLIBRI_UNROLL
        for (int t = 0; t < tokens; t++) {
            int8x8_t eight = vld1_s8(x[t] + at + i);
            a[t] = COLUMNS(eight, 0);
            b[t] = COLUMNS(eight, 1);
        }
        COLIBRI_AHEAD(codes)
        COLIBRI_UNROLL
        for (int r = 0; r < 4; r++) {
            uint8x16_t bytes = vld1q_u8(codes + 16 * r);
            int8x16_t v = vreinterpretq_s8_u8(vandq_u8(bytes, vdupq_n_u8(15)));
            int8x16_t w = vreinterpretq_s8_u8(vshrq_n_u8(bytes, 4));
            COLIBRI_UNROLL
            for (int t = 0; t < tokens; t++) {
                int16x8_t low = add_low(i == 0, sum[t][2 * r], v, a[t]);
                int16x8_t high = add_high(i == 0, sum[t][2 * r + 1], v, a[t]);
                sum[t][2 * r] = add_low(false, low, w, b[t]);
                sum[t][2 * r + 1] = add_high(false, high, w, b[t]);
            }
        }
    }
    COLIBRI_UNROLL
    for (int i = 0; i < 4 * tokens; i++) {
        const int16x8_t *rows = &sum[i / 4][i % 4 * 2];
        dot[i / 4][i % 4] = vpadalq_s16(dot[i / 4][i % 4], vpaddq_s16(rows[0], rows[1]));
    }
}

COLIBRI_INLINE void tile_q4(const uint8_t *codes, const int8_t *const x[], uint32_t group, int tokens,
                            int32x4_t dot[][4])
{
    for (uint32_t i = 0; i < group; i += 32)
        thirty_two_columns(codes + i * 8, x, i, tokens, dot);
}

COLIBRI_INLINE int32x4_t row_step(int32x4_t sum, int8x16_t w, int8x16_t x)
{
    sum = vpadalq_s16(sum, vmull_s8(vget_low_s8(w), vget_low_s8(x)));
    return vpadalq_s16(sum, vmull_high_s8(w, x));
}

#include "products.h"

const colibri_kernels colibri_kernels_neon = COLIBRI_NEON_TABLE("neon");
