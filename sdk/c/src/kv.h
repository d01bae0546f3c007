/* SPDX-License-Identifier: Apache-2.0 */
/* The KV cache: layer, sequence, plane, position. A plane is a row of vectors: keys and values of each
 * KV head, or the latent with its rotated key. f32, f16: a vector's elements. q8: an f32 scale, then int8 codes. */
#ifndef COLIBRI_KV_H
#define COLIBRI_KV_H

#include <stdbool.h>
#include <stddef.h>

#include "colibri/plan.h"
#include "options.h"

struct engine;

static inline bool colibri_kv_built(uint32_t kv)
{
    return kv == COLIBRI_F32 || (COLIBRI_WITH_KV_F16 && kv == COLIBRI_F16) ||
           (COLIBRI_WITH_KV_Q8 && kv == COLIBRI_Q8);
}

/* Bytes of a vector: a multiple of 4 */
static inline uint32_t colibri_kv_stride(uint32_t kv, uint32_t elements)
{
    uint32_t bytes = kv == COLIBRI_F32 ? elements * 4 : kv == COLIBRI_F16 ? elements * 2 : elements + 4;
    return (bytes + 3u) & ~3u;
}

/* Bytes that one position takes in layers before `layer` (layers: in all). */
uint64_t colibri_kv_position_bytes(const colibri_image *image, uint32_t kv, uint32_t layer);

/* A layer's part of the cache. */
struct colibri_kv {
    uint8_t *base;
    size_t plane;    /* bytes */
    uint32_t planes; /* of a sequence */
    uint32_t stride; /* bytes of a vector */
};
struct colibri_kv colibri_kv_of(const struct engine *e, uint32_t layer);

/* Vector of a position in a plane: 2 * head for keys and 2 * head + 1 for values, or 0 for the latent. */
static inline uint8_t *colibri_kv_at(const struct colibri_kv *kv, uint32_t sequence, uint32_t plane,
                                     uint32_t position)
{
    return kv->base + ((size_t)sequence * kv->planes + plane) * kv->plane + (size_t)position * kv->stride;
}

/* Writes one vector in the cache's type. */
void colibri_kv_store(const struct engine *e, const float *x, uint32_t elements, uint8_t *vector);

/* First position that a token at `position` attends to. */
uint32_t colibri_kv_first(const colibri_layer *layer, uint32_t position);

#endif
