/* SPDX-License-Identifier: Apache-2.0 */
#include "state.h"

#include "image_rules.h"
#include "options.h"
#include "size.h"
#include "step_tokens.h"

static uint32_t channels_of(const colibri_config *c, const colibri_layer *l)
{
    if (l->mixer == COLIBRI_MIXER_CONV)
        return c->hidden;
    if (!colibri_layer_filters(l))
        return 0;
    if (l->mixer == COLIBRI_MIXER_MAMBA)
        return c->linear_values;
    return 2 * c->linear_keys * c->linear_key_size + c->linear_values * c->linear_value_size;
}

uint64_t colibri_state_floats(const colibri_image *image, uint32_t layer)
{
    const colibri_config *c = &image->config;
    uint64_t floats = 0; /* 1024 layers of at most 63 * 2^19 + 2^17 * 1024 */
    for (uint32_t i = 0; i < layer; i++) {
        colibri_layer l;
        colibri_image_layer(image, i, &l);
        if (colibri_layer_attends(&l))
            continue;
        floats += (uint64_t)(c->conv_size - 1) * channels_of(c, &l);
        if (l.mixer >= COLIBRI_MIXER_DELTA)
            floats += (uint64_t)c->linear_values * c->linear_value_size * c->linear_key_size;
    }
    return floats;
}

float *colibri_state_of(const struct engine *e, uint32_t layer, size_t *stride)
{
    *stride = (size_t)colibri_state_floats(e->image, e->image->config.layers);
    return colibri_floats(e, COLIBRI_BUFFER_RECURRENT) + (size_t)colibri_state_floats(e->image, layer);
}

#if COLIBRI_WITH_CONV || COLIBRI_WITH_LINEAR || COLIBRI_WITH_MAMBA
enum { CHANNELS = 64 }; /* an item's share */

struct filter {
    const struct engine *engine;
    float *state;        /* of sequence 0 */
    size_t state_stride; /* to the next sequence's */
    const float *taps;
    const float *bias;
    float *rows;
    uint32_t channels;
    uint32_t stride;
};

/* Tap i of the state is the input i + 1 - conv_size tokens ago. */
static float next(const struct filter *f, float *state, uint32_t channel, float input, bool first)
{
    uint32_t size = f->engine->image->config.conv_size;
    const float *taps = f->taps + (size_t)channel * size;
    float sum = 0.0f;
    for (uint32_t i = 0; i + 1 < size; i++) {
        float *slot = state + (size_t)i * f->channels + channel;
        float old = first ? 0.0f : *slot;
        sum = sum + taps[i] * old;
        *slot = i + 2 == size ? input : first ? 0.0f : slot[f->channels];
    }
    sum = sum + taps[size - 1] * input;
    return f->bias != NULL ? sum + f->bias[channel] : sum;
}

static void filter_channels(void *arg, uint32_t item, uint32_t worker)
{
    const struct filter *f = arg;
    const struct engine *e = f->engine;
    uint32_t begin = item * CHANNELS, end = f->channels - begin < CHANNELS ? f->channels : begin + CHANNELS;
    (void)worker;
    for (uint32_t t = 0; t < e->tokens; t++) {
        float *row = f->rows + (size_t)t * f->stride;
        float *state = f->state + f->state_stride * colibri_sequences(e)[t];
        for (uint32_t i = begin; i < end; i++)
            row[i] = next(f, state, i, row[i], colibri_positions(e)[t] == 0);
    }
}

void colibri_filter(const struct engine *e, uint32_t layer, const float *filter, const float *bias,
                    float *rows, uint32_t channels, uint32_t stride)
{
    struct filter f = {.engine = e, .taps = filter, .bias = bias, .rows = rows,
                       .channels = channels, .stride = stride};
    f.state = colibri_state_of(e, layer, &f.state_stride);
    colibri_run(e, colibri_divide_up(channels, CHANNELS), filter_channels, &f);
    colibri_trace(e, COLIBRI_EVENT_VECTOR, layer, 0, e->tokens,
                  (uint64_t)e->tokens * channels * (e->image->config.conv_size + 1u) * 4, 0);
}
#endif
