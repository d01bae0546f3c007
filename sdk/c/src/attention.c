/* SPDX-License-Identifier: Apache-2.0 */
/* Grouped-query attention with rotary positions (docs/numerics.md section 6). All tokens of a step
 * enter the cache before any of them attends, so a step may hold several tokens of one sequence. */
#include "convert.h"
#include "engine_state.h"
#include "kv.h"
#include "float_math.h"
#include "size.h"
#include "step_tokens.h"

/* Cosines, then sines, of each token's angles. The angle is one f32 product, as in the reference. */
void colibri_rope_table(const struct engine *e)
{
    const colibri_config *c = &e->image->config;
    const float *frequency = colibri_vector_of(e, COLIBRI_GLOBAL_LAYER, COLIBRI_ROLE_ROPE);
    float *row = colibri_floats(e, COLIBRI_BUFFER_ROPE);
    uint32_t n = c->rope_size / 2;
    for (uint32_t t = 0; t < e->tokens; t++, row += c->rope_size) {
        for (uint32_t i = 0; i < n; i++) {
            colibri_sincos((float)colibri_positions(e)[t] * frequency[i], &row[n + i], &row[i]);
            row[i] = row[i] * c->rope_scale;
            row[n + i] = row[n + i] * c->rope_scale;
        }
    }
}

static void rotate(const colibri_config *c, const float *table, float *x)
{
    uint32_t n = c->rope_size / 2;
    bool pairs = c->rope_style == COLIBRI_ROPE_PAIRS;
    for (uint32_t i = 0; i < n; i++) {
        float *a = pairs ? x + 2 * i : x + i;
        float *b = pairs ? a + 1 : a + n;
        float first = *a * table[i] - *b * table[n + i];
        *b = *b * table[i] + *a * table[n + i];
        *a = first;
    }
}

struct attention {
    const struct engine *engine;
    uint32_t layer;
};

/* Where the keys (side 0) or values (side 1) of a sequence's head begin. */
static uint8_t *cache(const struct attention *a, uint32_t sequence, uint32_t head, uint32_t side)
{
    const struct engine *e = a->engine;
    const colibri_config *c = &e->image->config;
    size_t row = ((size_t)a->layer * e->limits.sequences + sequence) * c->kv_heads + head;
    return e->buffers[COLIBRI_BUFFER_KV] +
           (row * 2 + side) * e->limits.context * colibri_kv_stride(e->limits.kv, c->head_size);
}

static void store(const struct engine *e, const float *x, uint8_t *vector)
{
    uint32_t n = e->image->config.head_size;
#if COLIBRI_WITH_KV_F16
    if (e->limits.kv == COLIBRI_F16) {
        for (uint32_t i = 0; i < n; i++)
            ((uint16_t *)(void *)vector)[i] = colibri_float_to_f16(x[i]);
        return;
    }
#endif
#if COLIBRI_WITH_KV_Q8
    if (e->limits.kv == COLIBRI_Q8) {
        e->kernels->quantize(x, n, n, (int8_t *)vector + 4, (float *)(void *)vector);
        return;
    }
#endif
    memcpy(vector, x, n * sizeof *x);
}

/* Rotates a token's queries and keys and puts its keys and values into the cache. */
static void remember_token(void *arg, uint32_t token, uint32_t worker)
{
    const struct attention *a = arg;
    const struct engine *e = a->engine;
    const colibri_config *c = &e->image->config;
    const float *table = colibri_floats(e, COLIBRI_BUFFER_ROPE) + (size_t)token * c->rope_size;
    float *query = colibri_floats(e, COLIBRI_BUFFER_WORK) + (size_t)token * c->heads * c->head_size;
    uint32_t keys = c->kv_heads * c->head_size;
    float *key = colibri_floats(e, COLIBRI_BUFFER_KEY_VALUE) + (size_t)token * keys * 2;
    size_t at = (size_t)colibri_positions(e)[token] * colibri_kv_stride(e->limits.kv, c->head_size);
    uint32_t sequence = colibri_sequences(e)[token];
    (void)worker;
    for (uint32_t h = 0; h < c->heads; h++)
        rotate(c, table, query + h * c->head_size);
    for (uint32_t h = 0; h < c->kv_heads; h++, key += c->head_size) {
        rotate(c, table, key);
        store(e, key, cache(a, sequence, h, 0) + at);
        store(e, key + keys, cache(a, sequence, h, 1) + at);
    }
}

static void attend_head(void *arg, uint32_t item, uint32_t worker)
{
    const struct attention *a = arg;
    const struct engine *e = a->engine;
    const colibri_config *c = &e->image->config;
    uint32_t token = item / c->heads, head = item % c->heads;
    uint32_t kv_head = head / (c->heads / c->kv_heads);
    uint32_t sequence = colibri_sequences(e)[token];
    float *query = colibri_floats(e, COLIBRI_BUFFER_WORK) + (size_t)item * c->head_size;
    colibri_attend attend = {
        .query = query,
        .keys = cache(a, sequence, kv_head, 0),
        .values = cache(a, sequence, kv_head, 1),
        .stride = colibri_kv_stride(e->limits.kv, c->head_size),
        .kv = e->limits.kv,
        .head_size = c->head_size,
        .positions = colibri_positions(e)[token] + 1,
        .scale = c->attention_scale,
        .scores = colibri_floats(e, COLIBRI_BUFFER_SCORES) + (size_t)worker * e->limits.context,
        .out = query,
    };
    e->kernels->attend(&attend);
}

static void trace_attention(const struct engine *e, uint32_t layer)
{
    const colibri_config *c = &e->image->config;
    uint64_t positions = 0;
    for (uint32_t t = 0; t < e->tokens; t++)
        positions += colibri_positions(e)[t] + 1u;
    colibri_trace(e, COLIBRI_EVENT_ATTEND, layer, 0, e->tokens,
                  positions * c->kv_heads * 2u * colibri_kv_stride(e->limits.kv, c->head_size),
                  positions * c->heads * 2u * c->head_size);
}

void colibri_attention(const struct engine *e, uint32_t layer, struct activations *normed)
{
    const colibri_config *c = &e->image->config;
    uint32_t queries = c->heads * c->head_size, keys = c->kv_heads * c->head_size;
    float *hidden = colibri_floats(e, COLIBRI_BUFFER_HIDDEN);
    float *key = colibri_floats(e, COLIBRI_BUFFER_KEY_VALUE);
    struct activations work = *normed;
    struct attention a = {e, layer};
    work.values = colibri_floats(e, COLIBRI_BUFFER_WORK);
    work.columns = queries;

    colibri_norm(e, hidden, colibri_vector_of(e, layer, COLIBRI_ROLE_ATTENTION_NORM), normed);
    colibri_linear(e, layer, COLIBRI_ROLE_QUERY, COLIBRI_ROLE_QUERY_BIAS, normed, work.values, queries);
    colibri_linear(e, layer, COLIBRI_ROLE_KEY, COLIBRI_ROLE_KEY_BIAS, normed, key, keys * 2);
    colibri_linear(e, layer, COLIBRI_ROLE_VALUE, COLIBRI_ROLE_VALUE_BIAS, normed, key + keys, keys * 2);
    colibri_run(e, e->tokens, remember_token, &a);
    colibri_run(e, e->tokens * c->heads, attend_head, &a);
    trace_attention(e, layer);
    work.group = 0;
    colibri_linear(e, layer, COLIBRI_ROLE_ATTENTION_OUT, 0, &work, normed->values, c->hidden);
    colibri_add_rows(e, hidden, normed->values, c->hidden);
}
