/* SPDX-License-Identifier: Apache-2.0 */
/* Expert dispatcher: routes every token of the step, packs tokens by expert, runs each expert once on
 * all its tokens, and adds the outputs in the order in which each token chose them. No token data is
 * copied to be routed: the kernels get lists of rows. */
#include "dispatch.h"

#include <string.h>

#include "float_math.h"
#include "offload.h"
#include "preference.h"
#include "size.h"
#include "stream.h"

uint32_t colibri_first_expert(const colibri_image *image, uint32_t layer)
{
    uint32_t first = 0;
    for (uint32_t i = 0; i < layer; i++) {
        colibri_layer l;
        colibri_image_layer(image, i, &l);
        if (l.ffn & COLIBRI_FFN_MOE)
            first += image->config.experts - image->config.identities;
    }
    return first;
}

static void lay_out(struct colibri_dispatch *d)
{
    const struct engine *e = d->engine;
    uint32_t slots = e->limits.batch * e->image->config.top_k, experts = e->image->config.experts;
    d->weights = colibri_floats(e, COLIBRI_BUFFER_ROUTES);
    d->ids = (uint16_t *)(void *)(d->weights + slots);
    d->token = (uint16_t *)(void *)e->buffers[COLIBRI_BUFFER_DISPATCH];
    d->slot = d->token + slots;
    d->start = d->slot + slots;
    d->active = d->start + experts + 1;
    d->first = colibri_first_expert(e->image, d->layer);
}

/* Counting sort of all slots by expert; within an expert, tokens stay in order. */
static void pack(struct colibri_dispatch *d)
{
    const colibri_config *c = &d->engine->image->config;
    uint32_t slots = d->engine->tokens * c->top_k;
    memset(d->start, 0, (c->experts + 1u) * sizeof *d->start);
    for (uint32_t s = 0; s < slots; s++)
        d->start[d->ids[s] + 1u]++;
    d->active_count = 0;
    for (uint32_t x = 0; x < c->experts; x++) {
        if (d->start[x + 1] != 0 && x < c->experts - c->identities)
            d->active[d->active_count++] = (uint16_t)x;
        d->start[x + 1] = (uint16_t)(d->start[x + 1] + d->start[x]);
    }
    for (uint32_t s = slots; s-- != 0;) { /* from the back: start[x + 1] moves down to expert x's first */
        uint32_t at = --d->start[d->ids[s] + 1u];
        d->slot[at] = (uint16_t)s;
        d->token[at] = (uint16_t)(s / c->top_k);
    }
    memmove(d->start, d->start + 1, c->experts * sizeof *d->start);
    d->start[c->experts] = (uint16_t)slots;
}

/* What the router reads: the experts' input, or the residual stream under a norm of its own. */
static void score(const struct colibri_dispatch *d, uint32_t role, struct activations *in, float *scores)
{
    const struct engine *e = d->engine;
    struct activations own = *in;
    if (role == COLIBRI_ROLE_ROUTER && colibri_vector_of(e, d->layer, COLIBRI_ROLE_ROUTER_NORM) != NULL) {
        own.values = colibri_floats(e, COLIBRI_BUFFER_WORK);
        colibri_norm(e, colibri_floats(e, COLIBRI_BUFFER_HIDDEN), d->layer, COLIBRI_ROLE_ROUTER_NORM, 0, &own);
    }
    colibri_linear(e, d->layer, role, role == COLIBRI_ROLE_ROUTER ? COLIBRI_ROLE_ROUTER_BIAS : 0, &own,
                   scores, e->image->config.experts);
}

/* The choice of one token; those of attention's experts go by the scores alone. */
static colibri_status choose(const struct colibri_dispatch *d, uint32_t token, uint32_t role, const float *selection,
                             float *scores)
{
    const colibri_config *c = &d->engine->image->config;
    uint16_t *ids = d->ids + (size_t)token * c->top_k;
    float *weights = d->weights + (size_t)token * c->top_k;
#if COLIBRI_WITH_PREFERENCE
    struct colibri_preference p;
    if (role == COLIBRI_ROLE_ROUTER && colibri_preference_of(d, token, &p)) {
        colibri_status status = colibri_route(c, selection, &p, scores, ids, weights);
        colibri_preference_count(d, token);
        return status;
    }
#endif
    (void)role;
    return colibri_route_topk(c, selection, scores, ids, weights);
}

colibri_status colibri_dispatch_route(struct colibri_dispatch *d, uint32_t role, struct activations *in)
{
    const struct engine *e = d->engine;
    const colibri_config *c = &e->image->config;
    float *scores = colibri_floats(e, COLIBRI_BUFFER_ROUTER);
    const float *factor = colibri_vector_of(e, d->layer, COLIBRI_ROLE_ROUTER_WEIGHT);
    uint32_t place = d->layer | (role == COLIBRI_ROLE_ROUTER ? 0 : COLIBRI_TRACE_ATTENTION);
    const float *selection = colibri_vector_of(e, d->layer, COLIBRI_ROLE_ROUTER_SELECTION);
    lay_out(d);
    score(d, role, in, scores);
    for (uint32_t t = 0; t < e->tokens; t++) {
        uint32_t at = t * c->top_k;
        if (choose(d, t, role, selection, scores + (size_t)t * c->experts) != COLIBRI_OK)
            return colibri_fail(e->error, COLIBRI_ERR_NONFINITE, d->layer, 0, 0);
        for (uint32_t k = 0; k < c->top_k; k++) {
            if (factor != NULL)
                d->weights[at + k] = d->weights[at + k] * factor[d->ids[at + k]];
            colibri_trace(e, COLIBRI_EVENT_ROUTE, place, d->ids[at + k], k << 16 | t,
                          colibri_float_bits(d->weights[at + k]), 0);
        }
    }
    pack(d);
    return COLIBRI_OK;
}

/* One product for all active experts at once. */
struct expert_product {
    const struct colibri_dispatch *dispatch;
    colibri_tensor tensor;   /* in every record, or of all experts one after the other */
    uint64_t bias;           /* offset in the record */
    bool in_record;
    bool biased;
    const struct activations *in;
    const uint16_t *in_rows; /* packed list */
    float *out;
    uint32_t rows;           /* of one expert */
};

/* Products side by side: an item is some rows of one product of one expert. */
struct expert_products {
    struct expert_product each[2];
    uint32_t count;
    uint32_t chunk;
    uint32_t chunks;
};

static void matrix_of(const struct expert_product *p, uint32_t expert, colibri_matrix *w, colibri_matmul *m)
{
    const struct colibri_dispatch *d = p->dispatch;
    const struct engine *e = d->engine;
    if (!p->in_record) {
        colibri_matrix_init(w, &p->tensor, colibri_weights_at(e, p->tensor.offset));
        colibri_matrix_rows(w, expert * p->rows, p->rows);
        return;
    }
    const uint8_t *record = colibri_record_of(e, d->first + expert);
    colibri_matrix_init(w, &p->tensor, record + (size_t)p->tensor.offset);
    if (p->biased)
        m->bias = (const float *)(const void *)(record + (size_t)p->bias);
}

static void expert_rows(void *arg, uint32_t item, uint32_t worker)
{
    const struct expert_products *all = arg;
    const struct expert_product *p = &all->each[item / all->chunks % all->count];
    const struct colibri_dispatch *d = p->dispatch;
    uint32_t x = d->active[item / (all->chunks * all->count)], begin = item % all->chunks * all->chunk;
    uint32_t first = d->start[x];
    colibri_matrix w;
    colibri_matmul m = {0};
    (void)worker;
    matrix_of(p, x, &w, &m);
    colibri_matmul_inputs(&m, &w, p->in);
    m.in_rows = p->in_rows + first;
    m.out_rows = d->slot + first;
    m.out = p->out;
    m.out_stride = p->rows;
    m.tokens = d->start[x + 1] - first;
    d->engine->kernels->matmul(&m, begin, p->rows - begin < all->chunk ? p->rows : begin + all->chunk);
}

static void run_products(const struct colibri_dispatch *d, struct expert_products *all)
{
    uint32_t rows = all->each[0].rows;
    if (d->active_count == 0)
        return; /* every choice gives its input back */
    all->chunk = colibri_chunk(d->engine, d->active_count * all->count * rows);
    all->chunk = all->chunk < rows ? all->chunk : rows;
    all->chunks = colibri_divide_up(rows, all->chunk);
    colibri_run(d->engine, d->active_count * all->chunks * all->count, expert_rows, all);
    all->count = 0;
}

static void add_product(struct expert_products *all, const struct colibri_dispatch *d, uint32_t role,
                        struct activations *in, const uint16_t *in_rows, float *out)
{
    const struct engine *e = d->engine;
    struct expert_product p = {.dispatch = d, .in = in, .in_rows = in_rows, .out = out};
    colibri_tensor bias;
    (void)colibri_image_find(e->image, d->layer, role, &p.tensor);
    p.in_record = colibri_role_in_record(role);
    p.biased = p.in_record && colibri_image_find(e->image, d->layer, role + 3, &bias) == COLIBRI_OK;
    p.bias = p.biased ? bias.offset : 0;
    p.rows = p.in_record ? p.tensor.rows : p.tensor.rows / e->image->config.experts;
    if (p.tensor.group != 0 && in->group != p.tensor.group && all->count != 0)
        run_products(d, all); /* the codes that it needs are about to go */
    colibri_quantize(e, in, p.tensor.group);
    all->each[all->count++] = p;
}

void colibri_dispatch_product(const struct colibri_dispatch *d, uint32_t role, struct activations *in,
                              const uint16_t *in_rows, float *out, float *next)
{
    struct expert_products all = {.count = 0};
    add_product(&all, d, role, in, in_rows, out);
    if (next != NULL)
        add_product(&all, d, role + 1, in, in_rows, next);
    run_products(d, &all);
}

static void trace_experts(const struct colibri_dispatch *d)
{
    const struct engine *e = d->engine;
    const colibri_config *c = &e->image->config;
    for (uint32_t i = 0; e->platform.trace != NULL && i < d->active_count; i++) {
        uint32_t x = d->active[i], count = (uint32_t)(d->start[x + 1] - d->start[x]);
        colibri_expert record;
        (void)colibri_image_expert(e->image, d->first + x, &record);
        colibri_trace(e, COLIBRI_EVENT_EXPERT, d->layer, x, count, record.bytes,
                      (uint64_t)c->hidden * c->expert_size * 3u * count);
    }
}

struct combine {
    const struct colibri_dispatch *dispatch;
    const float *outputs; /* one row a slot */
    const float *shared;  /* one row a token, or NULL */
    const float *gates;   /* the shared expert's score of each token, or NULL */
    const float *bias;    /* one row for all, or NULL */
    float *in;            /* the block's input, one row a token: becomes its output */
    bool weighted;        /* the weights have not been used on the input already */
};

/* Output of choice k; the last `identities` experts give their input back. */
static const float *output_of(const struct combine *c, uint32_t token, uint32_t k)
{
    const colibri_config *config = &c->dispatch->engine->image->config;
    size_t slot = (size_t)token * config->top_k + k;
    if (c->dispatch->ids[slot] >= config->experts - config->identities)
        return c->in + (size_t)token * config->hidden;
    return c->outputs + slot * config->hidden;
}

/* sum[i] over the choices in order, for some elements: the row that it replaces may be an input. */
static void add_choices(const struct combine *c, uint32_t token, uint32_t from, uint32_t n, float *sum)
{
    const struct colibri_dispatch *d = c->dispatch;
    uint32_t top_k = d->engine->image->config.top_k;
    for (uint32_t k = 0; k < top_k; k++) {
        float weight = c->weighted ? d->weights[(size_t)token * top_k + k] : 1.0f;
        const float *output = output_of(c, token, k) + from;
        for (uint32_t i = 0; i < n; i++)
            sum[i] = k == 0 ? weight * output[i] : sum[i] + weight * output[i];
    }
}

enum { PART = 64 };

static void combine_token(void *arg, uint32_t token, uint32_t worker)
{
    const struct combine *c = arg;
    uint32_t hidden = c->dispatch->engine->image->config.hidden;
    size_t row = (size_t)token * hidden;
    float gate = c->gates != NULL ? colibri_sigmoid(c->gates[token]) : 1.0f;
    (void)worker;
    for (uint32_t from = 0; from < hidden; from += PART) {
        uint32_t n = hidden - from < PART ? hidden - from : PART;
        float sum[PART];
        add_choices(c, token, from, n, sum);
        for (uint32_t i = 0; c->shared != NULL && i < n; i++)
            sum[i] = sum[i] + gate * c->shared[row + from + i];
        for (uint32_t i = 0; c->bias != NULL && i < n; i++)
            sum[i] = sum[i] + c->bias[from + i];
        memcpy(c->in + row + from, sum, n * sizeof *sum);
    }
}

void colibri_dispatch_combine(const struct colibri_dispatch *d, const float *outputs, const float *bias, float *out)
{
    struct combine c = {.dispatch = d, .outputs = outputs, .bias = bias, .in = out, .weighted = true};
    colibri_run_rows(d->engine, d->engine->tokens, d->engine->image->config.hidden, combine_token, &c);
}

/* Runs the shared expert, when the model has one, with its gate's scores. */
static void share(const struct colibri_dispatch *d, struct activations *in, struct combine *c)
{
    const struct engine *e = d->engine;
    const colibri_config *config = &e->image->config;
    if (config->shared_size == 0)
        return;
    float *out = colibri_floats(e, COLIBRI_BUFFER_WORK);
    colibri_dense_ffn(e, d->layer, in, COLIBRI_ROLE_SHARED_GATE, config->shared_size, out);
    c->shared = out;
    if (config->shared_flags & COLIBRI_SHARED_SIGMOID) {
        float *gates = colibri_floats(e, COLIBRI_BUFFER_ROUTER); /* the router's scores are used up */
        colibri_linear(e, d->layer, COLIBRI_ROLE_SHARED_ROUTER, 0, in, gates, 1);
        c->gates = gates;
    }
}

/* Down(act(gate) * up) of the experts on the active list, into a row a slot. list: the slots they have, or
 * NULL for all there are. */
static void compute(const struct colibri_dispatch *d, struct activations *in, const uint16_t *list, uint32_t rows,
                    float *outputs)
{
    const struct engine *e = d->engine;
    const colibri_config *c = &e->image->config;
    struct activations inner = colibri_ffn_inner(e, rows, c->expert_size);
    float *up = colibri_floats(e, COLIBRI_BUFFER_FFN_UP);
    inner.list = list;
    colibri_dispatch_product(d, COLIBRI_ROLE_EXPERT_GATE, in, d->token, inner.values, up);
    colibri_activate(e, &inner, up, c->router_flags & COLIBRI_ROUTER_ON_INPUT ? d->weights : NULL);
    colibri_dispatch_product(d, COLIBRI_ROLE_EXPERT_DOWN, &inner, d->slot, outputs, NULL);
    trace_experts(d);
}

/* Streamed experts one by one: rows of others wait for theirs. */
static void compute_active(const struct colibri_dispatch *d, struct activations *in, float *outputs)
{
    struct colibri_dispatch one = *d;
    if (!colibri_streams(d->engine)) {
        if (d->active_count != 0) /* none when all are bound, or give their input back */
            compute(d, in, NULL, d->engine->tokens * d->engine->image->config.top_k, outputs);
        return;
    }
    for (one.active_count = 1; one.active < d->active + d->active_count; one.active++) {
        uint32_t first = d->start[*one.active];
        compute(&one, in, d->slot + first, (uint32_t)d->start[*one.active + 1u] - first, outputs);
    }
}

/* Those that were missing, as they arrive; a bound one goes to its backend out of its slot. */
static colibri_status run_arriving(struct colibri_mixture *m, struct activations *in, const float *weights,
                                   float *outputs)
{
    colibri_status status = COLIBRI_OK;
    struct colibri_offload away;
    while (status == COLIBRI_OK && colibri_stream_next(m, &status)) {
        status = colibri_offload_start(&away, &m->dispatch, in, weights, outputs);
        if (status == COLIBRI_OK) {
            compute_active(&m->dispatch, in, outputs);
            status = colibri_offload_wait(&away);
        }
        if (status != COLIBRI_OK)
            colibri_stream_abandon(m);
    }
    return status;
}

colibri_status colibri_mixture_route(struct colibri_mixture *m, const struct engine *e, uint32_t layer,
                                     struct activations *in)
{
    m->dispatch = (struct colibri_dispatch){.engine = e, .layer = layer};
    colibri_status status = colibri_dispatch_route(&m->dispatch, COLIBRI_ROLE_ROUTER, in);
    if (status == COLIBRI_OK)
        colibri_stream_start(m);
    return status;
}

colibri_status colibri_mixture_route_early(struct colibri_mixture *m, const struct engine *e, uint32_t layer)
{
    const uint32_t columns = e->image->config.hidden;
    struct activations hidden = {.values = colibri_floats(e, COLIBRI_BUFFER_HIDDEN), .columns = columns,
                                 .stride = columns, .rows = e->tokens};
    return colibri_mixture_route(m, e, layer, &hidden);
}

colibri_status colibri_mixture_run(struct colibri_mixture *m, struct activations *in)
{
    struct colibri_dispatch *d = &m->dispatch;
    const struct engine *e = d->engine;
    const colibri_config *c = &e->image->config;
    bool on_input = (c->router_flags & COLIBRI_ROUTER_ON_INPUT) != 0;
    const float *weights = on_input ? d->weights : NULL;
    float *outputs = colibri_floats(e, COLIBRI_BUFFER_EXPERT_OUT);
    struct colibri_offload away;
    struct combine combine = {d, outputs, NULL, NULL,
                              colibri_vector_of(e, d->layer, COLIBRI_ROLE_EXPERTS_BIAS), in->values, !on_input};
    colibri_status status = colibri_offload_start(&away, d, in, weights, outputs);
    if (status == COLIBRI_OK) {
        compute_active(d, in, outputs);
        share(d, in, &combine);
        status = colibri_offload_wait(&away);
    }
    if (status == COLIBRI_OK)
        status = run_arriving(m, in, weights, outputs);
    else
        colibri_stream_abandon(m);
    if (status == COLIBRI_OK)
        colibri_run_rows(e, e->tokens, c->hidden, combine_token, &combine);
    return status;
}
