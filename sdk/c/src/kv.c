/* SPDX-License-Identifier: Apache-2.0 */
#include "kv.h"

#include <string.h>

#include "convert.h"
#include "engine_state.h"
#include "image_rules.h"

struct shape {
    uint32_t planes;
    uint32_t elements;
};

static struct shape shape_of(const colibri_image *image, uint32_t layer)
{
    const colibri_config *c = &image->config;
    colibri_layer l;
    colibri_image_layer(image, layer, &l);
    if (l.mixer == COLIBRI_MIXER_LATENT)
        return (struct shape){1, c->latent_size + c->rope_size};
    if (!colibri_layer_attends(&l))
        return (struct shape){0, 0};
    return (struct shape){l.kv_heads * 2, l.head_size};
}

uint64_t colibri_kv_position_bytes(const colibri_image *image, uint32_t kv, uint32_t layer)
{
    uint64_t bytes = 0; /* at most 1024 layers of 2048 planes of 4 * 9216 bytes */
    for (uint32_t l = 0; l < layer; l++) {
        struct shape s = shape_of(image, l);
        bytes += (uint64_t)s.planes * colibri_kv_stride(kv, s.elements);
    }
    return bytes;
}

struct colibri_kv colibri_kv_of(const struct engine *e, uint32_t layer)
{
    struct shape s = shape_of(e->image, layer);
    struct colibri_kv kv = {.planes = s.planes, .stride = colibri_kv_stride(e->limits.kv, s.elements)};
    size_t before = (size_t)colibri_kv_position_bytes(e->image, e->limits.kv, layer);
    kv.plane = (size_t)kv.stride * e->limits.context;
    kv.base = e->buffers[COLIBRI_BUFFER_KV] + before * e->limits.sequences * e->limits.context;
    return kv;
}

#if COLIBRI_WITH_KV_F16
/* An outlier must not turn a whole row of scores into NaN. */
static float within_half(float x)
{
    x = x > 65504.0f ? 65504.0f : x;
    return x < -65504.0f ? -65504.0f : x;
}
#endif

void colibri_kv_store(const struct engine *e, const float *x, uint32_t elements, uint8_t *vector)
{
    (void)e; /* with f32 alone */
#if COLIBRI_WITH_KV_F16
    if (e->limits.kv == COLIBRI_F16) {
        for (uint32_t i = 0; i < elements; i++)
            ((uint16_t *)(void *)vector)[i] = colibri_float_to_f16(within_half(x[i]));
        return;
    }
#endif
#if COLIBRI_WITH_KV_Q8
    if (e->limits.kv == COLIBRI_Q8) {
        e->kernels->quantize(x, elements, elements, (int8_t *)vector + 4, (float *)(void *)vector);
        return;
    }
#endif
    memcpy(vector, x, elements * sizeof *x);
}

uint32_t colibri_kv_first(const colibri_layer *layer, uint32_t position)
{
    if (layer->chunk != 0)
        return position - position % layer->chunk;
    return layer->window != 0 && position >= layer->window ? position + 1 - layer->window : 0;
}
