/* SPDX-License-Identifier: Apache-2.0 */
/* Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434) with the key and value projections absorbed: the
 * cache keeps one latent and one rotated key a position, shared by all heads. Each head's query is carried into
 * the latent, attends there, and its result is carried out again. */
#include <string.h>

#include "engine_state.h"
#include "kv.h"
#include "options.h"
#include "rope.h"
#include "step_tokens.h"

#if COLIBRI_WITH_LATENT
struct latent {
    const struct engine *engine;
    uint32_t layer;
    colibri_layer kind;
    struct colibri_kv kv;
    uint32_t wide;      /* latent_size + rope_size */
    const float *norm;
    float *query;       /* tokens x heads x head_size */
    float *wide_query;  /* tokens x heads x wide: latent part, rotated part; then the result */
};

/* A product for each head: out[token][head] = tensor's rows of the head x in[token][head]. */
struct heads_product {
    const struct engine *engine;
    colibri_matrix matrix;        /* of all heads */
    const struct activations *in; /* a row for each token and head */
    float *out;
    uint32_t out_stride;          /* between heads */
};

static void head_rows(void *arg, uint32_t head, uint32_t worker)
{
    const struct heads_product *p = arg;
    uint32_t heads = p->engine->image->config.heads;
    colibri_matrix w = p->matrix;
    colibri_matmul m = {0};
    (void)worker;
    colibri_matrix_rows(&w, head * (w.rows / heads), w.rows / heads);
    colibri_matmul_inputs(&m, &w, p->in);
    m.values += (size_t)head * m.value_stride;
    m.codes = m.codes != NULL ? m.codes + (size_t)head * m.code_stride : NULL;
    m.scales = m.scales != NULL ? m.scales + (size_t)head * m.scale_stride : NULL;
    m.value_stride *= heads;
    m.code_stride *= heads;
    m.scale_stride *= heads;
    m.out = p->out + (size_t)head * p->out_stride;
    m.out_stride = p->out_stride * heads;
    m.tokens = p->engine->tokens;
    p->engine->kernels->matmul(&m, 0, w.rows);
}

static void each_head(const struct engine *e, uint32_t layer, uint32_t role, struct activations *in,
                      float *out, uint32_t out_stride)
{
    uint32_t heads = e->image->config.heads;
    colibri_tensor t;
    struct heads_product p = {.engine = e, .in = in, .out = out, .out_stride = out_stride};
    (void)colibri_image_find(e->image, layer, role, &t);
    colibri_matrix_init(&p.matrix, &t, colibri_weights_at(e, t.offset));
    colibri_quantize(e, in, p.matrix.group);
    colibri_run(e, heads, head_rows, &p);
    colibri_trace(e, COLIBRI_EVENT_MATMUL, layer, role, e->tokens, t.bytes,
                  (uint64_t)t.rows * t.columns * e->tokens);
}

/* Rotates a token's query and key parts, and puts its latent and key into the cache. */
static void remember_token(void *arg, uint32_t token, uint32_t worker)
{
    const struct latent *a = arg;
    const struct engine *e = a->engine;
    const colibri_config *c = &e->image->config;
    const float *row = colibri_rope_row(e, a->kind.rope, token);
    float *latent = colibri_floats(e, COLIBRI_BUFFER_KEY_VALUE) + (size_t)token * a->wide;
    (void)worker;
    e->kernels->rms_norm(latent, a->norm, c->latent_size, c->latent_epsilon, latent);
    colibri_rotate(c, a->kind.rope, row, latent + c->latent_size);
    colibri_kv_store(e, latent, a->wide,
                     colibri_kv_at(&a->kv, colibri_sequences(e)[token], 0, colibri_positions(e)[token]));
    for (uint32_t h = 0; h < c->heads; h++) {
        size_t head = (size_t)token * c->heads + h;
        float *rotated = a->wide_query + head * a->wide + c->latent_size;
        memcpy(rotated, a->query + (head + 1) * c->head_size - c->rope_size, c->rope_size * sizeof *rotated);
        colibri_rotate(c, a->kind.rope, row, rotated);
    }
}

static void attend_head(void *arg, uint32_t item, uint32_t worker)
{
    const struct latent *a = arg;
    const struct engine *e = a->engine;
    const colibri_config *c = &e->image->config;
    uint32_t token = item % e->tokens, head = item / e->tokens, position = colibri_positions(e)[token];
    uint32_t first = colibri_kv_first(&a->kind, position);
    const uint8_t *plane = colibri_kv_at(&a->kv, colibri_sequences(e)[token], 0, first);
    float *query = a->wide_query + ((size_t)token * c->heads + head) * a->wide;
    colibri_attend attend = {
        .query = query,
        .keys = plane,
        .values = plane,
        .stride = a->kv.stride,
        .kv = e->limits.kv,
        .head_size = a->wide,
        .value_size = c->latent_size,
        .positions = position + 1 - first,
        .scale = c->attention_scale,
        .scores = colibri_floats(e, COLIBRI_BUFFER_SCORES) + (size_t)worker * e->limits.context,
        .out = query,
    };
    e->kernels->attend(&attend);
}

static void norm_queries(const struct latent *a, struct activations *rows)
{
    const struct engine *e = a->engine;
    const float *weight = colibri_vector_of(e, a->layer, COLIBRI_ROLE_LATENT_QUERY_NORM);
    for (uint32_t t = 0; t < rows->rows; t++) {
        float *row = rows->values + (size_t)t * rows->stride;
        e->kernels->rms_norm(row, weight, rows->columns, e->image->config.latent_epsilon, row);
    }
    rows->group = 0;
}

/* The query, by way of its own latent when it has one. */
static void project_query(const struct latent *a, struct activations *normed)
{
    const struct engine *e = a->engine;
    const colibri_config *c = &e->image->config;
    struct activations *in = normed, inner = *normed;
    if (c->query_latent != 0) {
        inner.values = a->wide_query; /* not in use yet */
        inner.columns = inner.stride = c->query_latent;
        colibri_linear(e, a->layer, COLIBRI_ROLE_LATENT_QUERY, 0, normed, inner.values, c->query_latent);
        in = &inner;
        norm_queries(a, &inner);
    }
    colibri_linear(e, a->layer, COLIBRI_ROLE_QUERY, 0, in, a->query, c->heads * c->head_size);
}

void colibri_latent_attention(const struct engine *e, uint32_t layer, struct activations *normed)
{
    const colibri_config *c = &e->image->config;
    struct latent a = {
        .engine = e,
        .layer = layer,
        .kv = colibri_kv_of(e, layer),
        .wide = c->latent_size + c->rope_size,
        .norm = colibri_vector_of(e, layer, COLIBRI_ROLE_LATENT_NORM),
        .query = colibri_floats(e, COLIBRI_BUFFER_WORK),
        .wide_query = colibri_floats(e, COLIBRI_BUFFER_LATENT),
    };
    struct activations rows = *normed;
    colibri_image_layer(e->image, layer, &a.kind);
    colibri_linear(e, layer, COLIBRI_ROLE_LATENT, 0, normed,
                   colibri_floats(e, COLIBRI_BUFFER_KEY_VALUE), a.wide);
    project_query(&a, normed);
    colibri_run(e, e->tokens, remember_token, &a);

    rows.rows = e->tokens * c->heads;
    rows.values = a.query;
    rows.columns = c->head_size - c->rope_size;
    rows.stride = c->head_size;
    rows.group = 0;
    each_head(e, layer, COLIBRI_ROLE_LATENT_KEY, &rows, a.wide_query, a.wide);
    colibri_run(e, e->tokens * c->heads, attend_head, &a);
    colibri_trace_attention(e, layer, 1, a.wide);

    rows.values = a.wide_query;
    rows.columns = c->latent_size;
    rows.stride = a.wide;
    rows.group = 0;
    each_head(e, layer, COLIBRI_ROLE_LATENT_VALUE, &rows, a.query, c->value_size);

    rows.rows = e->tokens;
    rows.values = a.query;
    rows.columns = rows.stride = c->heads * c->value_size;
    rows.group = 0;
    colibri_linear(e, layer, COLIBRI_ROLE_ATTENTION_OUT, COLIBRI_ROLE_ATTENTION_OUT_BIAS, &rows,
                   normed->values, c->hidden);
}
#else
typedef int colibri_latent_left_out;
#endif
