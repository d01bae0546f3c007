/* SPDX-License-Identifier: Apache-2.0 */
/* Grouped-query attention (docs/numerics.md section 6). All tokens of a step enter the cache before
 * any of them attends, so a step may hold several tokens of one sequence. */
#include <string.h>

#include "../kernels/ref/sums.h"
#include "dispatch.h"
#include "float_math.h"
#include "kv.h"
#include "options.h"
#include "rope.h"
#include "step_tokens.h"

struct attention {
    const struct engine *engine;
    uint32_t layer;
    colibri_layer kind;
    struct colibri_kv kv;
    const float *query_norm;
    const float *key_norm;
    bool whole_norm; /* over all heads at once */
    const float *sinks;
};

#if COLIBRI_WITH_ATTENTION_EXTRAS
static void norm_heads(const struct attention *a, float *x, uint32_t heads, const float *weight)
{
    const colibri_config *c = &a->engine->image->config;
    uint32_t n = heads * a->kind.head_size, step = a->whole_norm ? n : a->kind.head_size;
    for (uint32_t i = 0; weight != NULL && i < n; i += step)
        a->engine->kernels->rms_norm(x + i, weight, step, c->norm_epsilon, x + i);
}

static void clamp(const colibri_config *c, float *x, uint32_t n)
{
    for (uint32_t i = 0; c->clip > 0.0f && i < n; i++) {
        x[i] = x[i] > c->clip ? c->clip : x[i];
        x[i] = x[i] < -c->clip ? -c->clip : x[i];
    }
}

/* Each head divided by its root mean square, without a weight. */
static void unit_heads(const struct attention *a, float *x, uint32_t heads)
{
    uint32_t n = a->kind.head_size;
    for (; heads != 0; heads--, x += n) {
        float r = colibri_rsqrt(colibri_dot(x, x, n) / (float)n + a->engine->image->config.norm_epsilon);
        for (uint32_t i = 0; i < n; i++)
            x[i] = x[i] * r;
    }
}

/* Queries grow with the logarithm of the position (llama4, layers without rotation). */
static void warm(const colibri_config *c, float *x, uint32_t n, uint32_t position)
{
    float blocks = (float)(uint32_t)(((float)position + 1.0f) / c->temperature_floor);
    float factor = colibri_log(blocks + 1.0f) * c->temperature_scale + 1.0f;
    for (uint32_t i = 0; i < n; i++)
        x[i] = x[i] * factor;
}

static void extras_before(const struct attention *a, float *query, float *key, float *value)
{
    const colibri_config *c = &a->engine->image->config;
    if (!(a->kind.flags & COLIBRI_LAYER_NORM_LAST)) {
        norm_heads(a, query, c->heads, a->query_norm);
        norm_heads(a, key, a->kind.kv_heads, a->key_norm);
    }
    if (a->kind.flags & COLIBRI_LAYER_UNIT_VALUES)
        unit_heads(a, value, a->kind.kv_heads);
    clamp(c, query, c->heads * a->kind.head_size);
    clamp(c, key, a->kind.kv_heads * a->kind.head_size);
    clamp(c, value, a->kind.kv_heads * a->kind.head_size);
}

static void extras_after(const struct attention *a, float *query, float *key, uint32_t position)
{
    const colibri_config *c = &a->engine->image->config;
    if (a->kind.flags & COLIBRI_LAYER_NORM_LAST) {
        norm_heads(a, query, c->heads, a->query_norm);
        norm_heads(a, key, a->kind.kv_heads, a->key_norm);
    }
    if (a->kind.flags & COLIBRI_LAYER_UNIT_KEYS) {
        unit_heads(a, query, c->heads);
        unit_heads(a, key, a->kind.kv_heads);
    }
    if (a->kind.flags & COLIBRI_LAYER_TEMPERATURE)
        warm(c, query, c->heads * a->kind.head_size, position);
}
#endif

/* Finishes a token's queries and keys and puts its keys and values into the cache. */
static void remember_token(void *arg, uint32_t token, uint32_t worker)
{
    const struct attention *a = arg;
    const struct engine *e = a->engine;
    const colibri_config *c = &e->image->config;
    uint32_t n = a->kind.head_size, heads = a->kind.kv_heads, keys = heads * n;
    uint32_t sequence = colibri_sequences(e)[token];
    float *query = colibri_floats(e, COLIBRI_BUFFER_WORK) + (size_t)token * c->heads * n;
    float *key = colibri_floats(e, COLIBRI_BUFFER_KEY_VALUE) + (size_t)token * keys * 2;
    uint32_t position = colibri_positions(e)[token];
    (void)worker;
    if (a->kind.flags & COLIBRI_LAYER_KEY_IS_VALUE)
        memcpy(key + keys, key, keys * sizeof *key);
#if COLIBRI_WITH_ATTENTION_EXTRAS
    extras_before(a, query, key, key + keys);
#endif
    for (uint32_t h = 0; a->kind.rope != 0 && h < c->heads; h++)
        colibri_rotate(c, a->kind.rope, colibri_rope_row(e, a->kind.rope, token), query + h * n);
    for (uint32_t h = 0; a->kind.rope != 0 && h < heads; h++)
        colibri_rotate(c, a->kind.rope, colibri_rope_row(e, a->kind.rope, token), key + h * n);
#if COLIBRI_WITH_ATTENTION_EXTRAS
    extras_after(a, query, key, position);
#endif
    for (uint32_t h = 0; h < heads; h++, key += n) {
        colibri_kv_store(e, key, n, colibri_kv_at(&a->kv, sequence, 2 * h, position));
        colibri_kv_store(e, key + keys, n, colibri_kv_at(&a->kv, sequence, 2 * h + 1, position));
    }
}

static void attend_head(void *arg, uint32_t item, uint32_t worker)
{
    const struct attention *a = arg;
    const struct engine *e = a->engine;
    const colibri_config *c = &e->image->config;
    uint32_t token = item % e->tokens, head = item / e->tokens; /* neighbours read the same part of the cache */
    bool repeated = a->kind.mixer == COLIBRI_MIXER_EXPERTS; /* each choice attends with all KV heads */
    uint32_t n = a->kind.head_size, group = c->heads / a->kind.kv_heads;
    uint32_t kv_head = repeated ? head % a->kind.kv_heads : head / group, sequence = colibri_sequences(e)[token];
    uint32_t position = colibri_positions(e)[token], first = colibri_kv_first(&a->kind, position);
    float *query = colibri_floats(e, COLIBRI_BUFFER_WORK) + ((size_t)token * c->heads + head) * n;
    colibri_attend attend = {
        .query = query,
        .keys = colibri_kv_at(&a->kv, sequence, 2 * kv_head, first),
        .values = colibri_kv_at(&a->kv, sequence, 2 * kv_head + 1, first),
        .stride = a->kv.stride,
        .kv = e->limits.kv,
        .head_size = n,
        .value_size = n,
        .positions = position + 1 - first,
        .scale = c->attention_scale,
        .sink = a->sinks != NULL ? &a->sinks[head] : NULL,
        .scores = colibri_floats(e, COLIBRI_BUFFER_SCORES) + (size_t)worker * e->limits.context,
        .out = query,
    };
    e->kernels->attend(&attend);
}

void colibri_trace_attention(const struct engine *e, uint32_t layer, uint32_t planes, uint32_t elements)
{
    const colibri_config *c = &e->image->config;
    uint64_t positions = 0;
    colibri_layer l;
    colibri_image_layer(e->image, layer, &l);
    for (uint32_t t = 0; t < e->tokens; t++)
        positions += colibri_positions(e)[t] + 1u - colibri_kv_first(&l, colibri_positions(e)[t]);
    colibri_trace(e, COLIBRI_EVENT_ATTEND, layer, 0, e->tokens,
                  positions * planes * colibri_kv_stride(e->limits.kv, elements),
                  positions * c->heads * 2u * elements);
}

#if COLIBRI_WITH_ATTENTION_EXTRAS
struct gate {
    const struct engine *engine;
    const float *gates;
    float *out;
    uint32_t columns;
};

static void gate_row(void *arg, uint32_t row, uint32_t worker)
{
    const struct gate *g = arg;
    size_t at = (size_t)row * g->columns;
    (void)worker;
    for (uint32_t i = 0; i < g->columns; i++)
        g->out[at + i] = g->out[at + i] * colibri_sigmoid(g->gates[at + i]);
}

/* The output times the sigmoid of a projection of the block's input; keys and values are in the cache by now. */
static void gate_output(const struct engine *e, uint32_t layer, struct activations *normed, float *out)
{
    colibri_matrix m;
    if (!colibri_matrix_of(e, layer, COLIBRI_ROLE_OUTPUT_GATE, &m))
        return;
    float *gates = colibri_floats(e, COLIBRI_BUFFER_KEY_VALUE);
    struct gate g = {e, gates, out, m.rows};
    colibri_linear(e, layer, COLIBRI_ROLE_OUTPUT_GATE, 0, normed, gates, m.rows);
    colibri_run(e, e->tokens, gate_row, &g);
}

static void find_extras(const struct engine *e, struct attention *a)
{
    colibri_tensor t;
    a->query_norm = colibri_vector_of(e, a->layer, COLIBRI_ROLE_QUERY_NORM);
    a->key_norm = colibri_vector_of(e, a->layer, COLIBRI_ROLE_KEY_NORM);
    a->sinks = colibri_vector_of(e, a->layer, COLIBRI_ROLE_SINKS);
    a->whole_norm = colibri_image_find(e->image, a->layer, COLIBRI_ROLE_QUERY_NORM, &t) == COLIBRI_OK &&
                    t.columns != a->kind.head_size;
}
#endif

#if COLIBRI_WITH_EXPERT_ATTENTION
/* Each choice's expert makes its queries of the block's input ... */
static colibri_status expert_queries(struct colibri_dispatch *d, struct activations *normed, float *queries)
{
    colibri_status status = colibri_dispatch_route(d, COLIBRI_ROLE_ATTENTION_ROUTER, normed);
    if (status == COLIBRI_OK)
        colibri_dispatch_product(d, COLIBRI_ROLE_EXPERT_QUERY, normed, d->token, queries, NULL);
    return status;
}

/* ... and carries the result of its heads back. */
static void expert_out(const struct colibri_dispatch *d, const struct attention *a, struct activations *work,
                       float *out)
{
    const struct engine *e = d->engine;
    float *outputs = colibri_floats(e, COLIBRI_BUFFER_EXPERT_OUT);
    work->columns = work->stride = a->kind.kv_heads * a->kind.head_size;
    work->rows = e->tokens * e->image->config.top_k;
    colibri_dispatch_product(d, COLIBRI_ROLE_EXPERT_ATTENTION_OUT, work, d->slot, outputs, NULL);
    colibri_dispatch_combine(d, outputs, colibri_vector_of(e, a->layer, COLIBRI_ROLE_ATTENTION_OUT_BIAS), out);
}
#endif

colibri_status colibri_attention(const struct engine *e, uint32_t layer, struct activations *normed)
{
    const colibri_config *c = &e->image->config;
    float *key = colibri_floats(e, COLIBRI_BUFFER_KEY_VALUE);
    struct activations work = *normed;
    struct attention a = {.engine = e, .layer = layer, .kv = colibri_kv_of(e, layer)};
    colibri_image_layer(e->image, layer, &a.kind);
    uint32_t queries = c->heads * a.kind.head_size, keys = a.kind.kv_heads * a.kind.head_size;
#if COLIBRI_WITH_ATTENTION_EXTRAS
    find_extras(e, &a);
#endif
    work.values = colibri_floats(e, COLIBRI_BUFFER_WORK);
    work.columns = work.stride = queries;
    work.group = 0;
    colibri_status status = COLIBRI_OK;
    struct colibri_linear_to to[3];
    uint32_t count = 0;
#if COLIBRI_WITH_EXPERT_ATTENTION
    struct colibri_dispatch d = {.engine = e, .layer = layer};
    if (a.kind.mixer == COLIBRI_MIXER_EXPERTS)
        status = expert_queries(&d, normed, work.values);
    else
#endif
        to[count++] = (struct colibri_linear_to){COLIBRI_ROLE_QUERY, COLIBRI_ROLE_QUERY_BIAS, work.values, queries};
    if (status != COLIBRI_OK)
        return status;
    to[count++] = (struct colibri_linear_to){COLIBRI_ROLE_KEY, COLIBRI_ROLE_KEY_BIAS, key, keys * 2};
    if (!(a.kind.flags & COLIBRI_LAYER_KEY_IS_VALUE))
        to[count++] = (struct colibri_linear_to){COLIBRI_ROLE_VALUE, COLIBRI_ROLE_VALUE_BIAS, key + keys, keys * 2};
    colibri_linears(e, layer, normed, to, count);
    colibri_run_rows(e, e->tokens, queries, remember_token, &a);
    colibri_run(e, e->tokens * c->heads, attend_head, &a);
    colibri_trace_attention(e, layer, a.kind.kv_heads * 2, a.kind.head_size);
#if COLIBRI_WITH_ATTENTION_EXTRAS
    gate_output(e, layer, normed, work.values);
#endif
#if COLIBRI_WITH_EXPERT_ATTENTION
    if (a.kind.mixer == COLIBRI_MIXER_EXPERTS)
        expert_out(&d, &a, &work, normed->values);
    else
#endif
        colibri_linear(e, layer, COLIBRI_ROLE_ATTENTION_OUT, COLIBRI_ROLE_ATTENTION_OUT_BIAS, &work,
                       normed->values, c->hidden);
    return COLIBRI_OK;
}
