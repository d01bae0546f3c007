/* SPDX-License-Identifier: Apache-2.0 */
/* Gated short convolution (LFM2): y = C * filter(B * x), channel by channel, over the last conv_size tokens of the
 * sequence. The state holds B * x of the conv_size - 1 tokens before; at position 0 it counts as zero. */
#include "engine_state.h"
#include "options.h"
#include "size.h"
#include "step_tokens.h"

#if COLIBRI_WITH_CONV
enum { CHANNELS = 64 }; /* an item's share */

struct conv {
    const struct engine *engine;
    const float *filter; /* hidden x taps */
    float *rows;         /* tokens x 3 hidden: B, C, x; the result replaces B */
    float *state;        /* of the layer: sequence, tap, channel */
};

static float next(const struct conv *v, float *state, uint32_t channel, float input, bool first)
{
    const colibri_config *c = &v->engine->image->config;
    const float *filter = v->filter + (size_t)channel * c->conv_size;
    float sum = 0.0f;
    for (uint32_t i = 0; i + 1 < c->conv_size; i++) {
        float *tap = state + (size_t)i * c->hidden + channel;
        float old = first ? 0.0f : *tap;
        *tap = i + 2 < c->conv_size ? (first ? 0.0f : tap[c->hidden]) : input;
        sum = sum + filter[i] * old;
    }
    return sum + filter[c->conv_size - 1] * input;
}

/* Tokens in order, so that several of one sequence see each other. */
static void filter_channels(void *arg, uint32_t item, uint32_t worker)
{
    const struct conv *v = arg;
    const struct engine *e = v->engine;
    uint32_t n = e->image->config.hidden, taps = e->image->config.conv_size - 1;
    uint32_t begin = item * CHANNELS, end = n - begin < CHANNELS ? n : begin + CHANNELS;
    (void)worker;
    for (uint32_t t = 0; t < e->tokens; t++) {
        float *row = v->rows + (size_t)t * n * 3;
        float *state = v->state + (size_t)colibri_sequences(e)[t] * taps * n;
        for (uint32_t i = begin; i < end; i++)
            row[i] = row[n + i] * next(v, state, i, row[i] * row[2 * n + i], colibri_positions(e)[t] == 0);
    }
}

/* Layers with a state before this one. */
static uint32_t ordinal(const colibri_image *image, uint32_t layer)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < layer; i++) {
        colibri_layer l;
        colibri_image_layer(image, i, &l);
        count += l.mixer == COLIBRI_MIXER_CONV;
    }
    return count;
}

void colibri_conv(const struct engine *e, uint32_t layer, struct activations *normed)
{
    const colibri_config *c = &e->image->config;
    size_t state = (size_t)e->limits.sequences * (c->conv_size - 1) * c->hidden;
    struct conv v = {e, colibri_vector_of(e, layer, COLIBRI_ROLE_CONV),
                     colibri_floats(e, COLIBRI_BUFFER_WORK),
                     colibri_floats(e, COLIBRI_BUFFER_RECURRENT) + state * ordinal(e->image, layer)};
    struct activations out = *normed;
    colibri_linear(e, layer, COLIBRI_ROLE_CONV_IN, 0, normed, v.rows, c->hidden * 3);
    colibri_run(e, colibri_divide_up(c->hidden, CHANNELS), filter_channels, &v);
    colibri_trace(e, COLIBRI_EVENT_VECTOR, layer, COLIBRI_ROLE_CONV, e->tokens,
                  (uint64_t)e->tokens * c->hidden * (c->conv_size + 3u) * 4, 0);
    out.values = v.rows;
    out.stride = c->hidden * 3;
    out.group = 0;
    colibri_linear(e, layer, COLIBRI_ROLE_CONV_OUT, 0, &out, normed->values, c->hidden);
}
#else
typedef int colibri_conv_left_out;
#endif
