/* SPDX-License-Identifier: Apache-2.0 */
/* Integer dots with SDOT: four products a lane in one instruction. What products.h asks for. */
#ifndef COLIBRI_NEON_DOT_H
#define COLIBRI_NEON_DOT_H

#include <arm_neon.h>

#include "ahead.h"
#include "unroll.h"

/* Sixteen rows x four columns of signed bytes meet lane `lane` of each token's activations. The lane is
 * a constant of the instruction, so this is a macro. */
#define COLIBRI_DOT_COLUMNS(w, a, lane)                                                            \
    COLIBRI_AHEAD(w)                                                                               \
    COLIBRI_UNROLL                                                                                 \
    for (int r = 0; r < 4; r++) {                                                                  \
        int8x16_t four = vld1q_s8((w) + 16 * r);                                                   \
        COLIBRI_UNROLL                                                                             \
        for (int t = 0; t < tokens; t++)                                                           \
            dot[t][r] = vdotq_laneq_s32(dot[t][r], four, (a)[t], lane);                            \
    }

COLIBRI_INLINE void dot_tile_q8(const uint8_t *codes, const int8_t *const x[], uint32_t group, int tokens,
                                int32x4_t dot[][4])
{
    for (uint32_t i = 0; i < group; i += 16, codes += 256) {
        const int8_t *w = (const int8_t *)codes;
        int8x16_t a[4];
        COLIBRI_UNROLL
        for (int t = 0; t < tokens; t++)
            a[t] = vld1q_s8(x[t] + i);
        COLIBRI_DOT_COLUMNS(w, a, 0)
        COLIBRI_DOT_COLUMNS(w + 64, a, 1)
        COLIBRI_DOT_COLUMNS(w + 128, a, 2)
        COLIBRI_DOT_COLUMNS(w + 192, a, 3)
    }
}

/* Four rows' bytes hold columns of two lanes: the low and the high nibble. */
#define COLIBRI_DOT_NIBBLES(w, a, low_lane, high_lane)                                             \
    COLIBRI_AHEAD(w)                                                                               \
    COLIBRI_UNROLL                                                                                 \
    for (int r = 0; r < 4; r++) {                                                                  \
        uint8x16_t bytes = vld1q_u8((w) + 16 * r);                                                 \
        int8x16_t low = vreinterpretq_s8_u8(vandq_u8(bytes, vdupq_n_u8(15)));                      \
        int8x16_t high = vreinterpretq_s8_u8(vshrq_n_u8(bytes, 4));                                \
        COLIBRI_UNROLL                                                                             \
        for (int t = 0; t < tokens; t++) {                                                         \
            dot[t][r] = vdotq_laneq_s32(dot[t][r], low, (a)[t], low_lane);                         \
            dot[t][r] = vdotq_laneq_s32(dot[t][r], high, (a)[t], high_lane);                       \
        }                                                                                          \
    }

COLIBRI_INLINE void dot_tile_q4(const uint8_t *codes, const int8_t *const x[], uint32_t group, int tokens,
                                int32x4_t dot[][4])
{
    for (uint32_t i = 0; i < group; i += 32, codes += 256) {
        int8x16_t a[4], b[4];
        COLIBRI_UNROLL
        for (int t = 0; t < tokens; t++) {
            a[t] = vld1q_s8(x[t] + i);
            b[t] = vld1q_s8(x[t] + i + 16);
        }
        COLIBRI_DOT_NIBBLES(codes, a, 0, 1)
        COLIBRI_DOT_NIBBLES(codes + 64, a, 2, 3)
        COLIBRI_DOT_NIBBLES(codes + 128, b, 0, 1)
        COLIBRI_DOT_NIBBLES(codes + 192, b, 2, 3)
    }
}

COLIBRI_INLINE int32x4_t row_step(int32x4_t sum, int8x16_t w, int8x16_t x)
{
    return vdotq_s32(sum, w, x);
}

#endif
