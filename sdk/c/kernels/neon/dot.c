/* SPDX-License-Identifier: Apache-2.0 */
/* AArch64 with FEAT_DotProd (Cortex-A55, A75 and later). */
#define COLIBRI_TILE_TOKENS 4
#include "dot.h"

COLIBRI_INLINE void tile_q8(const uint8_t *codes, const int8_t *const x[], uint32_t group, int tokens,
                            int32x4_t dot[][4])
{
    dot_tile_q8(codes, x, group, tokens, dot);
}

COLIBRI_INLINE void tile_q4(const uint8_t *codes, const int8_t *const x[], uint32_t group, int tokens,
                            int32x4_t dot[][4])
{
    dot_tile_q4(codes, x, group, tokens, dot);
}

#include "products.h"

const colibri_kernels colibri_kernels_neon_dot = COLIBRI_NEON_TABLE("neon-dot");
