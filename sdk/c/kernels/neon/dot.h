/* SPDX-License-Identifier: Apache-2.0 */
/* Integer dots with SDOT: four products a lane in one instruction. What products.h asks for. */
#ifndef COLIBRI_NEON_DOT_H
#define COLIBRI_NEON_DOT_H

#include <arm_neon.h>

#include "unroll.h"

/* Sixteen rows x four columns of signed bytes meet lane `lane` of each token's activations. The lane is
 * a constant of the instruction, so this is a macro; w(r): rows 4r .. 4r + 3. */
#define COLIBRI_DOT_COLUMNS(w, a, lane)                                                            \
    COLIBRI_UNROLL                                                                                 \
    for (int r = 0; r < 4; r++) {                                                                  \
        int8x16_t codes_ = (w);                                                                    \
        COLIBRI_UNROLL                                                                             \
        for (int t = 0; t < tokens; t++)                                                           \
            dot[t][r] = vdotq_laneq_s32(dot[t][r], codes_, (a)[t], lane);                          \
    }

COLIBRI_INLINE void dot_tile_q8(const uint8_t *codes, const int8_t *const x[], uint32_t group, int tokens,
                                int32x4_t dot[][4])
{
    for (uint32_t i = 0; i < group; i += 16, codes += 256) {
        int8x16_t a[4];
        COLIBRI_UNROLL
        for (int t = 0; t < tokens; t++)
            a[t] = vld1q_s8(x[t] + i);
        const int8_t *w = (const int8_t *)codes;
        COLIBRI_DOT_COLUMNS(vld1q_s8(w + 16 * r), a, 0)
        COLIBRI_AHEAD(codes)
        COLIBRI_DOT_COLUMNS(vld1q_s8(w + 64 + 16 * r), a, 1)
        COLIBRI_AHEAD(codes + 64)
        COLIBRI_DOT_COLUMNS(vld1q_s8(w + 128 + 16 * r), a, 2)
        COLIBRI_AHEAD(codes + 128)
        COLIBRI_DOT_COLUMNS(vld1q_s8(w + 192 + 16 * r), a, 3)
        COLIBRI_AHEAD(codes + 192)
    }
}

/* Four rows' bytes hold columns of two lanes: the low and the high nibble. */
#define COLIBRI_DOT_NIBBLES(w, a, low_lane, high_lane)                                             \
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
    for (uint32_t i = 0; i < group; i += 16, codes += 128) {
        int8x16_t a[4];
        COLIBRI_UNROLL
        for (int t = 0; t < tokens; t++)
            a[t] = vld1q_s8(x[t] + i);
        COLIBRI_DOT_NIBBLES(codes, a, 0, 1)
        COLIBRI_AHEAD(codes)
        COLIBRI_DOT_NIBBLES(codes + 64, a, 2, 3)
        COLIBRI_AHEAD(codes + 64)
    }
}

COLIBRI_INLINE int32x4_t row_step(int32x4_t sum, int8x16_t w, int8x16_t x)
{
    return vdotq_s32(sum, w, x);
}

#endif
