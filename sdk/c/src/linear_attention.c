/* SPDX-License-Identifier: Apache-2.0 */
/* Linear attention: each head of values keeps a matrix S (value x key) a sequence, decays it, writes to it and reads it
 * with the query, token by token.
 *   DELTA  (gated delta rule, arXiv 2412.06464): S = S * decay; S += (v - S k) * beta * k^T; y = S q,
 *          q and k of unit length
 *   MAMBA2 (arXiv 2405.21060): S = S * decay + (step * x) * B^T; y = S C + skip * x, with C, B, x as q, k, v
 * step = softplus(input + bias), decay = exp(-exp(rate) * step).
 *   LIGHTNING (arXiv 2401.04658; transformers modeling_minimax.py): as MAMBA2, step 1, decay = exp(-rate), no skip */
#include "../kernels/ref/sums.h"
#include "engine_state.h"
#include "float_math.h"
#include "options.h"
#include "state.h"
#include "step_tokens.h"

#if COLIBRI_WITH_LINEAR
struct linear {
    const struct engine *engine;
    float *state;        /* of sequence 0: the filter's inputs, then a matrix a head */
    size_t state_stride; /* to the next sequence's */
    bool delta;
    bool lightning;
    uint32_t keys;     /* floats of all queries, of all keys */
    uint32_t values;
    uint32_t stride;   /* of a token's row: queries, keys, values, gates, steps, betas */
    float *rows;
    const float *step_bias;
    const float *rate;
    const float *skip;
    const float *norm;
};

/* One token of one head: its matrix row by row, so that a row is read once. */
static void advance(const struct linear *a, uint32_t head, float *row, float *state, bool first)
{
    const colibri_config *c = &a->engine->image->config;
    uint32_t n = c->linear_key_size, key_head = head / (c->linear_values / c->linear_keys);
    const float *query = row + key_head * n, *key = row + a->keys + key_head * n;
    float *value = row + 2 * a->keys + head * c->linear_value_size;
    const float *heads = row + 2 * a->keys + 2 * a->values; /* steps, then betas */
    float step = a->lightning ? 1.0f : colibri_softplus(heads[head] + a->step_bias[head]);
    float decay = colibri_exp(-(a->lightning ? a->rate[head] : colibri_exp(a->rate[head]) * step));
    float q = 1.0f, k = 1.0f, beta = step;
    if (a->delta) {
        q = colibri_rsqrt(colibri_dot(query, query, n) + 1e-6f) * colibri_rsqrt((float)n);
        k = colibri_rsqrt(colibri_dot(key, key, n) + 1e-6f);
        beta = colibri_sigmoid(heads[c->linear_values + head]);
    }
    for (uint32_t j = 0; j < c->linear_value_size; j++, state += n) {
        for (uint32_t i = 0; i < n; i++)
            state[i] = first ? 0.0f : state[i] * decay;
        float write = (a->delta ? value[j] - colibri_dot(state, key, n) * k : value[j]) * beta * k;
        for (uint32_t i = 0; i < n; i++)
            state[i] = state[i] + write * key[i];
        float y = colibri_dot(state, query, n) * q;
        value[j] = a->skip == NULL ? y : y + a->skip[head] * value[j];
    }
}

/* Tokens in order, so that several of one sequence see each other. */
static void advance_head(void *arg, uint32_t head, uint32_t worker)
{
    const struct linear *a = arg;
    const struct engine *e = a->engine;
    const colibri_config *c = &e->image->config;
    size_t filter = a->lightning ? 0 : (size_t)(c->conv_size - 1) * (2 * a->keys + a->values);
    size_t size = (size_t)c->linear_value_size * c->linear_key_size;
    (void)worker;
    for (uint32_t t = 0; t < e->tokens; t++)
        advance(a, head, a->rows + (size_t)t * a->stride,
                a->state + a->state_stride * colibri_sequences(e)[t] + filter + size * head,
                colibri_positions(e)[t] == 0);
}

static void activate_token(void *arg, uint32_t token, uint32_t worker)
{
    const struct linear *a = arg;
    (void)worker;
    colibri_silu(a->rows + (size_t)token * a->stride, 2 * a->keys + a->values);
}

/* DELTA: norm of each head, then the gate; MAMBA2: the gate, then a norm of each group of heads.
 * LIGHTNING: norm of all heads at once, then the gate, which is a plain sigmoid. */
static void finish_token(void *arg, uint32_t token, uint32_t worker)
{
    const struct linear *a = arg;
    const struct engine *e = a->engine;
    const colibri_config *c = &e->image->config;
    float *value = a->rows + (size_t)token * a->stride + 2 * a->keys, *gate = value + a->values;
    uint32_t part = a->delta ? c->linear_value_size : a->values / c->linear_keys;
    (void)worker;
    if (a->lightning) {
        e->kernels->rms_norm(value, a->norm, a->values, c->latent_epsilon, value);
        for (uint32_t i = 0; i < a->values; i++)
            value[i] = value[i] * colibri_sigmoid(gate[i]);
        return;
    }
    colibri_silu(gate, a->values);
    for (uint32_t i = 0; !a->delta && i < a->values; i++)
        value[i] = value[i] * gate[i];
    for (uint32_t i = 0; i < a->values; i += part)
        e->kernels->rms_norm(value + i, a->delta ? a->norm : a->norm + i, part, c->norm_epsilon, value + i);
    for (uint32_t i = 0; a->delta && i < a->values; i++)
        value[i] = value[i] * gate[i];
}

void colibri_linear_attention(const struct engine *e, uint32_t layer, struct activations *normed)
{
    const colibri_config *c = &e->image->config;
    struct linear a = {.engine = e, .rows = colibri_floats(e, COLIBRI_BUFFER_WORK)};
    struct activations out = *normed;
    colibri_layer kind;
    colibri_image_layer(e->image, layer, &kind);
    a.delta = kind.mixer == COLIBRI_MIXER_DELTA;
    a.lightning = kind.mixer == COLIBRI_MIXER_LIGHTNING;
    a.keys = c->linear_keys * c->linear_key_size;
    a.values = c->linear_values * c->linear_value_size;
    a.stride = 2 * a.keys + 2 * a.values + 2 * c->linear_values;
    a.step_bias = colibri_vector_of(e, layer, COLIBRI_ROLE_LINEAR_STEP_BIAS);
    a.rate = colibri_vector_of(e, layer, COLIBRI_ROLE_LINEAR_DECAY);
    a.skip = colibri_vector_of(e, layer, COLIBRI_ROLE_LINEAR_SKIP);
    a.norm = colibri_vector_of(e, layer, COLIBRI_ROLE_LINEAR_NORM);
    a.state = colibri_state_of(e, layer, &a.state_stride);
    float *gates = a.rows + 2 * a.keys + a.values, *steps = gates + a.values;
    colibri_linear(e, layer, COLIBRI_ROLE_LINEAR_IN, 0, normed, a.rows, a.stride);
    colibri_linear(e, layer, COLIBRI_ROLE_LINEAR_GATE, 0, normed, gates, a.stride);
    if (!a.lightning)
        colibri_linear(e, layer, COLIBRI_ROLE_LINEAR_STEP, 0, normed, steps, a.stride);
    if (a.delta)
        colibri_linear(e, layer, COLIBRI_ROLE_LINEAR_BETA, 0, normed, steps + c->linear_values, a.stride);
    if (!a.lightning)
        colibri_filter(e, layer, colibri_vector_of(e, layer, COLIBRI_ROLE_LINEAR_CONV),
                       colibri_vector_of(e, layer, COLIBRI_ROLE_LINEAR_CONV_BIAS), a.rows,
                       2 * a.keys + a.values, a.stride);
    colibri_run(e, e->tokens, activate_token, &a);
    colibri_run(e, c->linear_values, advance_head, &a);
    colibri_trace(e, COLIBRI_EVENT_ATTEND, layer, 0, e->tokens,
                  (uint64_t)e->tokens * a.values * c->linear_key_size * 8u,
                  (uint64_t)e->tokens * a.values * c->linear_key_size * 4u);
    colibri_run(e, e->tokens, finish_token, &a);
    out.values = a.rows + 2 * a.keys;
    out.columns = a.values;
    out.stride = a.stride;
    out.group = 0;
    colibri_linear(e, layer, COLIBRI_ROLE_LINEAR_OUT, 0, &out, normed->values, c->hidden);
}
#else
typedef int colibri_linear_left_out;
#endif
