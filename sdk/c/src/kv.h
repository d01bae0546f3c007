/* SPDX-License-Identifier: Apache-2.0 */
/* One key or value vector in the cache. f32, f16: its elements. q8: an f32 scale, then int8 codes. */
#ifndef COLIBRI_KV_H
#define COLIBRI_KV_H

#include <stdbool.h>

#include "colibri/image.h"
#include "options.h"

static inline bool colibri_kv_built(uint32_t kv)
{
    return kv == COLIBRI_F32 || (COLIBRI_WITH_KV_F16 && kv == COLIBRI_F16) ||
           (COLIBRI_WITH_KV_Q8 && kv == COLIBRI_Q8);
}

/* Bytes of a vector: a multiple of 4 */
static inline uint32_t colibri_kv_stride(uint32_t kv, uint32_t head_size)
{
    uint32_t bytes = kv == COLIBRI_F32 ? head_size * 4 : kv == COLIBRI_F16 ? head_size * 2 : head_size + 4;
    return (bytes + 3u) & ~3u;
}

#endif
