/* SPDX-License-Identifier: Apache-2.0 */
/* Mamba, the first form (arXiv 2312.00752; transformers modeling_jamba.py, JambaMambaMixer): each channel keeps a
 * vector S, token by token. x is what the filter gives, through silu; step, B and C are projections of it:
 *   S = S * exp(-exp(rate) * step) + (step * x) * B; y = S C + skip * x, times silu(gate) */
#include "../kernels/ref/sums.h"
#include "engine_state.h"
#include "float_math.h"
#include "options.h"
#include "size.h"
#include "state.h"
#include "step_tokens.h"

#if COLIBRI_WITH_MAMBA
enum { CHANNELS = 64 }; /* an item's share */

struct mamba {
    const struct engine *engine;
    float *state;        /* of sequence 0: the filter's inputs, then a vector a channel */
    size_t state_stride; /* to the next sequence's */
    uint32_t channels;
    uint32_t size;       /* of a channel's state */
    uint32_t rank;
    uint32_t stride;     /* of a token's row: values, gates, steps, the step's rank, B, C */
    float *rows;
    const float *step_bias;
    const float *rate;   /* channels x size */
    const float *skip;
    const float *step_norm; /* or NULL, as the next two */
    const float *b_norm;
    const float *c_norm;
};

static void activate_token(void *arg, uint32_t token, uint32_t worker)
{
    const struct mamba *m = arg;
    (void)worker;
    colibri_silu(m->rows + (size_t)token * m->stride, m->channels);
}

static void norm_part(const struct mamba *m, const float *weight, uint32_t n, float *x)
{
    const struct engine *e = m->engine;
    if (weight != NULL)
        e->kernels->rms_norm(x, weight, n, e->image->config.norm_epsilon, x);
}

static void norm_token(void *arg, uint32_t token, uint32_t worker)
{
    const struct mamba *m = arg;
    float *selected = m->rows + (size_t)token * m->stride + (size_t)m->channels * 3;
    (void)worker;
    norm_part(m, m->step_norm, m->rank, selected);
    norm_part(m, m->b_norm, m->size, selected + m->rank);
    norm_part(m, m->c_norm, m->size, selected + m->rank + m->size);
}

/* One token of one channel; x becomes y. */
static void advance(const struct mamba *m, uint32_t channel, float *row, float *state, bool first)
{
    const float *b = row + (size_t)m->channels * 3 + m->rank, *c = b + m->size;
    const float *rate = m->rate + (size_t)channel * m->size;
    float *x = row + channel;
    float step = colibri_softplus(row[m->channels * 2 + channel] + m->step_bias[channel]);
    float write = step * *x;
    for (uint32_t i = 0; i < m->size; i++) {
        float old = first ? 0.0f : state[i] * colibri_exp(-(colibri_exp(rate[i]) * step));
        state[i] = old + write * b[i];
    }
    *x = colibri_dot(state, c, m->size) + m->skip[channel] * *x;
}

/* Tokens in order, so that several of one sequence see each other. */
static void advance_channels(void *arg, uint32_t item, uint32_t worker)
{
    const struct mamba *m = arg;
    const struct engine *e = m->engine;
    uint32_t begin = item * CHANNELS, end = m->channels - begin < CHANNELS ? m->channels : begin + CHANNELS;
    size_t filter = (size_t)(e->image->config.conv_size - 1) * m->channels;
    (void)worker;
    for (uint32_t t = 0; t < e->tokens; t++) {
        float *state = m->state + m->state_stride * colibri_sequences(e)[t] + filter;
        for (uint32_t i = begin; i < end; i++)
            advance(m, i, m->rows + (size_t)t * m->stride, state + (size_t)i * m->size,
                    colibri_positions(e)[t] == 0);
    }
}

static void finish_token(void *arg, uint32_t token, uint32_t worker)
{
    const struct mamba *m = arg;
    float *row = m->rows + (size_t)token * m->stride;
    (void)worker;
    m->engine->kernels->silu_gate(row + m->channels, row, m->channels);
}

static void set_up(struct mamba *m, uint32_t layer)
{
    const struct engine *e = m->engine;
    const colibri_config *c = &e->image->config;
    m->channels = c->linear_values;
    m->size = c->linear_key_size;
    m->rank = c->linear_rank;
    m->stride = m->channels * 3 + m->rank + m->size * 2;
    m->rows = colibri_floats(e, COLIBRI_BUFFER_WORK);
    m->step_bias = colibri_vector_of(e, layer, COLIBRI_ROLE_LINEAR_STEP_BIAS);
    m->rate = colibri_vector_of(e, layer, COLIBRI_ROLE_LINEAR_STATE_DECAY);
    m->skip = colibri_vector_of(e, layer, COLIBRI_ROLE_LINEAR_SKIP);
    m->step_norm = colibri_vector_of(e, layer, COLIBRI_ROLE_LINEAR_STEP_NORM);
    m->b_norm = colibri_vector_of(e, layer, COLIBRI_ROLE_LINEAR_KEY_NORM);
    m->c_norm = colibri_vector_of(e, layer, COLIBRI_ROLE_LINEAR_QUERY_NORM);
    m->state = colibri_state_of(e, layer, &m->state_stride);
}

/* A part of the rows as the input of a product. */
static struct activations part(const struct mamba *m, const struct activations *like, uint32_t at, uint32_t columns)
{
    struct activations a = *like;
    a.values = m->rows + at;
    a.columns = columns;
    a.stride = m->stride;
    a.group = 0;
    return a;
}

void colibri_mamba(const struct engine *e, uint32_t layer, struct activations *normed)
{
    struct mamba m = {.engine = e};
    set_up(&m, layer);
    uint32_t n = m.channels;
    struct activations values = part(&m, normed, 0, n), steps = part(&m, normed, n * 3, m.rank);
    struct activations out = part(&m, normed, n, n);
    colibri_linear(e, layer, COLIBRI_ROLE_LINEAR_IN, 0, normed, m.rows, m.stride);
    colibri_linear(e, layer, COLIBRI_ROLE_LINEAR_GATE, 0, normed, m.rows + n, m.stride);
    colibri_filter(e, layer, colibri_vector_of(e, layer, COLIBRI_ROLE_LINEAR_CONV),
                   colibri_vector_of(e, layer, COLIBRI_ROLE_LINEAR_CONV_BIAS), m.rows, n, m.stride);
    colibri_run(e, e->tokens, activate_token, &m);
    colibri_linear(e, layer, COLIBRI_ROLE_LINEAR_SELECT, 0, &values, m.rows + n * 3, m.stride);
    colibri_run(e, e->tokens, norm_token, &m);
    colibri_linear(e, layer, COLIBRI_ROLE_LINEAR_STEP_UP, 0, &steps, m.rows + n * 2, m.stride);
    colibri_run(e, colibri_divide_up(n, CHANNELS), advance_channels, &m);
    colibri_trace(e, COLIBRI_EVENT_ATTEND, layer, 0, e->tokens, (uint64_t)e->tokens * n * m.size * 8u,
                  (uint64_t)e->tokens * n * m.size * 4u);
    colibri_run(e, e->tokens, finish_token, &m);
    colibri_linear(e, layer, COLIBRI_ROLE_LINEAR_OUT, 0, &out, normed->values, e->image->config.hidden);
}
#else
typedef int colibri_mamba_left_out;
#endif
