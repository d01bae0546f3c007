/* SPDX-License-Identifier: Apache-2.0 */
/* AArch64 with FEAT_I8MM (Cortex-A510, A710, X2, Neoverse V1, N2): several tokens by SMMLA, which takes
 * two rows and two tokens of eight columns; one token by SDOT. */
#define COLIBRI_TILE_TOKENS 4
#include "dot.h"

/* Rows 4r .. 4r + 3: a register of four columns and one of the next four become two of two rows. */
COLIBRI_INLINE void four_rows_mmla(int8x16_t first, int8x16_t next, const int8x16_t pair[2], int r,
                                   int32x4_t sum[2][8])
{
    int32x4_t a = vreinterpretq_s32_s8(first), b = vreinterpretq_s32_s8(next);
    int8x16_t upper = vreinterpretq_s8_s32(vzip1q_s32(a, b));
    int8x16_t lower = vreinterpretq_s8_s32(vzip2q_s32(a, b));
    COLIBRI_UNROLL
    for (int p = 0; p < 2; p++) {
        sum[p][2 * r] = vmmlaq_s32(sum[p][2 * r], upper, pair[p]);
        sum[p][2 * r + 1] = vmmlaq_s32(sum[p][2 * r + 1], lower, pair[p]);
    }
}

/* Eight columns of two tokens each. */
COLIBRI_INLINE void load_pairs(const int8_t *const x[], uint32_t i, int8x16_t pair[2])
{
    COLIBRI_UNROLL
    for (int p = 0; p < 2; p++)
        pair[p] = vcombine_s8(vld1_s8(x[2 * p] + i), vld1_s8(x[2 * p + 1] + i));
}

/* Sums of two rows x two tokens, four rows of one token a register. */
COLIBRI_INLINE void by_token(int32x4_t sum[2][8], int32x4_t dot[][4])
{
    COLIBRI_UNROLL
    for (int p = 0; p < 2; p++) {
        COLIBRI_UNROLL
        for (int r = 0; r < 4; r++) {
            int32x4_t a = sum[p][2 * r], b = sum[p][2 * r + 1];
            dot[2 * p][r] = vaddq_s32(dot[2 * p][r], vuzp1q_s32(a, b));
            dot[2 * p + 1][r] = vaddq_s32(dot[2 * p + 1][r], vuzp2q_s32(a, b));
        }
    }
}

COLIBRI_INLINE void clear(int32x4_t sum[2][8])
{
    COLIBRI_UNROLL
    for (int i = 0; i < 16; i++)
        sum[i / 8][i % 8] = vdupq_n_s32(0);
}

COLIBRI_INLINE void tile_q8(const uint8_t *codes, const int8_t *const x[], uint32_t group, int tokens,
                            int32x4_t dot[][4])
{
    if (tokens == 1) {
        dot_tile_q8(codes, x, group, 1, dot);
        return;
    }
    int32x4_t sum[2][8];
    clear(sum);
    for (uint32_t i = 0; i < group; i += 8, codes += 128) {
        const int8_t *w = (const int8_t *)codes;
        int8x16_t pair[2];
        load_pairs(x, i, pair);
        COLIBRI_UNROLL
        for (int r = 0; r < 4; r++)
            four_rows_mmla(vld1q_s8(w + 16 * r), vld1q_s8(w + 64 + 16 * r), pair, r, sum);
    }
    by_token(sum, dot);
}

COLIBRI_INLINE void tile_q4(const uint8_t *codes, const int8_t *const x[], uint32_t group, int tokens,
                            int32x4_t dot[][4])
{
    if (tokens == 1) {
        dot_tile_q4(codes, x, group, 1, dot);
        return;
    }
    int32x4_t sum[2][8];
    clear(sum);
    for (uint32_t i = 0; i < group; i += 8, codes += 64) {
        int8x16_t pair[2];
        load_pairs(x, i, pair);
        COLIBRI_UNROLL
        for (int r = 0; r < 4; r++) {
            uint8x16_t bytes = vld1q_u8(codes + 16 * r);
            int8x16_t low = vreinterpretq_s8_u8(vandq_u8(bytes, vdupq_n_u8(15)));
            four_rows_mmla(low, vreinterpretq_s8_u8(vshrq_n_u8(bytes, 4)), pair, r, sum);
        }
    }
    by_token(sum, dot);
}

#include "products.h"

const colibri_kernels colibri_kernels_neon_i8mm = COLIBRI_NEON_TABLE("neon-i8mm");
