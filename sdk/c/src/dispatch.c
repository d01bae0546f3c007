/* SPDX-License-Identifier: Apache-2.0 */
/* Expert dispatcher: routes every token of the step, packs tokens by expert, runs each expert once on
 * all its tokens, and adds the outputs in the order in which each token chose them. No token data is
 * copied to be routed: the kernels get lists of rows. */
#include "engine_state.h"
#include "float_math.h"
#include "size.h"

/* Choice `rank` of token t is slot t * top_k + rank. Lists are packed by expert: entries
 * start[x] .. start[x + 1] - 1 of token and slot are expert x's. */
struct dispatch {
    const struct engine *engine;
    uint32_t layer;
    uint32_t first; /* the layer's first entry in the expert table */
    float *weights;
    uint16_t *ids;
    uint16_t *token;
    uint16_t *slot;
    uint16_t *start;
    uint16_t *active;
    uint32_t active_count;
};

static bool is_moe(const struct engine *e, uint32_t layer)
{
    colibri_layer l;
    colibri_image_layer(e->image, layer, &l);
    return (l.ffn & COLIBRI_FFN_MOE) != 0;
}

static void lay_out(struct dispatch *d)
{
    const struct engine *e = d->engine;
    uint32_t slots = e->limits.batch * e->image->config.top_k, experts = e->image->config.experts;
    d->weights = colibri_floats(e, COLIBRI_BUFFER_ROUTES);
    d->ids = (uint16_t *)(void *)(d->weights + slots);
    d->token = (uint16_t *)(void *)e->buffers[COLIBRI_BUFFER_DISPATCH];
    d->slot = d->token + slots;
    d->start = d->slot + slots;
    d->active = d->start + experts + 1;
    for (uint32_t l = 0; l < d->layer; l++)
        if (is_moe(e, l))
            d->first += experts - e->image->config.identities;
}

/* What the router reads: the experts' input, or the residual stream under a norm of its own. */
static void score(const struct dispatch *d, struct activations *in, float *scores)
{
    const struct engine *e = d->engine;
    struct activations own = *in;
    if (colibri_vector_of(e, d->layer, COLIBRI_ROLE_ROUTER_NORM) != NULL) {
        own.values = colibri_floats(e, COLIBRI_BUFFER_WORK);
        colibri_norm(e, colibri_floats(e, COLIBRI_BUFFER_HIDDEN), d->layer, COLIBRI_ROLE_ROUTER_NORM, 0, &own);
    }
    colibri_linear(e, d->layer, COLIBRI_ROLE_ROUTER, COLIBRI_ROLE_ROUTER_BIAS, &own, scores,
                   e->image->config.experts);
}

static colibri_status route(struct dispatch *d, struct activations *in)
{
    const struct engine *e = d->engine;
    const colibri_config *c = &e->image->config;
    float *scores = colibri_floats(e, COLIBRI_BUFFER_ROUTER);
    const float *factor = colibri_vector_of(e, d->layer, COLIBRI_ROLE_ROUTER_WEIGHT);
    const float *selection = colibri_vector_of(e, d->layer, COLIBRI_ROLE_ROUTER_SELECTION);
    score(d, in, scores);
    for (uint32_t t = 0; t < e->tokens; t++) {
        uint32_t at = t * c->top_k;
        if (colibri_route_topk(c, selection, scores + (size_t)t * c->experts, d->ids + at,
                               d->weights + at) != COLIBRI_OK)
            return colibri_fail(e->error, COLIBRI_ERR_NONFINITE, d->layer, 0, 0);
        for (uint32_t k = 0; k < c->top_k; k++) {
            if (factor != NULL)
                d->weights[at + k] = d->weights[at + k] * factor[d->ids[at + k]];
            colibri_trace(e, COLIBRI_EVENT_ROUTE, d->layer, d->ids[at + k], k << 16 | t,
                          colibri_float_bits(d->weights[at + k]), 0);
        }
    }
    return COLIBRI_OK;
}

/* Counting sort of all slots by expert; within an expert, tokens stay in order. */
static void pack(struct dispatch *d)
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

/* One of the three matrices, for all active experts at once. */
struct expert_product {
    const struct dispatch *dispatch;
    colibri_tensor tensor;
    uint64_t bias;           /* offset in the record */
    bool biased;
    const struct activations *in;
    const uint16_t *in_rows; /* packed list */
    float *out;
    uint32_t chunk;
    uint32_t chunks;
};

static void expert_rows(void *arg, uint32_t item, uint32_t worker)
{
    const struct expert_product *p = arg;
    const struct dispatch *d = p->dispatch;
    const struct engine *e = d->engine;
    uint32_t x = d->active[item / p->chunks], begin = item % p->chunks * p->chunk;
    uint32_t first = d->start[x], rows = p->tensor.rows;
    colibri_expert record;
    colibri_matrix w;
    colibri_matmul m = {0};
    (void)worker;
    (void)colibri_image_expert(e->image, d->first + x, &record);
    colibri_matrix_init(&w, &p->tensor, e->weights + (size_t)(record.offset + p->tensor.offset));
    colibri_matmul_inputs(&m, &w, p->in);
    if (p->biased)
        m.bias = (const float *)(const void *)(e->weights + (size_t)(record.offset + p->bias));
    m.in_rows = p->in_rows + first;
    m.out_rows = d->slot + first;
    m.out = p->out;
    m.out_stride = rows;
    m.tokens = d->start[x + 1] - first;
    e->kernels->matmul(&m, begin, rows - begin < p->chunk ? rows : begin + p->chunk);
}

static void expert_product(const struct dispatch *d, uint32_t role, struct activations *in,
                           const uint16_t *in_rows, float *out)
{
    const struct engine *e = d->engine;
    struct expert_product p = {.dispatch = d, .in = in, .in_rows = in_rows, .out = out};
    colibri_tensor bias;
    (void)colibri_image_find(e->image, d->layer, role, &p.tensor);
    p.biased = colibri_image_find(e->image, d->layer, role + 3, &bias) == COLIBRI_OK;
    p.bias = bias.offset;
    p.chunk = colibri_chunk(e, p.tensor.rows);
    p.chunks = colibri_divide_up(p.tensor.rows, p.chunk);
    colibri_quantize(e, in, p.tensor.group);
    colibri_run(e, d->active_count * p.chunks, expert_rows, &p);
}

static void trace_experts(const struct dispatch *d)
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
    const struct dispatch *dispatch;
    const float *outputs; /* one row a slot */
    const float *shared;  /* one row a token, or NULL */
    const float *gates;   /* the shared expert's score of each token, or NULL */
    float *in;            /* the block's input, one row a token: becomes its output */
    bool weighted;        /* the weights have not been used on the input already */
};

/* Output of choice k; the last `identities` experts give their input back. */
static float output_of(const struct combine *c, uint32_t token, uint32_t k, uint32_t i)
{
    const colibri_config *config = &c->dispatch->engine->image->config;
    size_t slot = (size_t)token * config->top_k + k;
    if (c->dispatch->ids[slot] >= config->experts - config->identities)
        return c->in[(size_t)token * config->hidden + i];
    return c->outputs[slot * config->hidden + i];
}

static void combine_token(void *arg, uint32_t token, uint32_t worker)
{
    const struct combine *c = arg;
    const struct dispatch *d = c->dispatch;
    const colibri_config *config = &d->engine->image->config;
    const float *weights = d->weights + (size_t)token * config->top_k;
    float *row = c->in + (size_t)token * config->hidden;
    float gate = c->gates != NULL ? colibri_sigmoid(c->gates[token]) : 1.0f;
    (void)worker;
    for (uint32_t i = 0; i < config->hidden; i++) {
        float sum = 0.0f;
        for (uint32_t k = 0; k < config->top_k; k++) {
            float y = (c->weighted ? weights[k] : 1.0f) * output_of(c, token, k, i);
            sum = k == 0 ? y : sum + y;
        }
        if (c->shared != NULL)
            sum = sum + gate * c->shared[(size_t)token * config->hidden + i];
        row[i] = sum;
    }
}

/* Runs the shared expert, when the model has one, with its gate's scores. */
static void share(const struct dispatch *d, struct activations *in, struct combine *c)
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

colibri_status colibri_experts(const struct engine *e, uint32_t layer, struct activations *in)
{
    const colibri_config *c = &e->image->config;
    struct dispatch d = {.engine = e, .layer = layer};
    lay_out(&d);
    colibri_status status = route(&d, in);
    if (status != COLIBRI_OK)
        return status;
    pack(&d);
    struct activations inner = colibri_ffn_inner(e, e->tokens * c->top_k, c->expert_size);
    bool on_input = (c->router_flags & COLIBRI_ROUTER_ON_INPUT) != 0;
    float *up = colibri_floats(e, COLIBRI_BUFFER_FFN_UP);
    float *outputs = colibri_floats(e, COLIBRI_BUFFER_EXPERT_OUT);
    expert_product(&d, COLIBRI_ROLE_EXPERT_GATE, in, d.token, inner.values);
    expert_product(&d, COLIBRI_ROLE_EXPERT_UP, in, d.token, up);
    colibri_activate(e, &inner, up, on_input ? d.weights : NULL);
    expert_product(&d, COLIBRI_ROLE_EXPERT_DOWN, &inner, d.slot, outputs);
    trace_experts(&d);
    struct combine combine = {&d, outputs, NULL, NULL, in->values, !on_input};
    share(&d, in, &combine);
    colibri_run(e, e->tokens, combine_token, &combine);
    return COLIBRI_OK;
}
