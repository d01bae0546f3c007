/* SPDX-License-Identifier: Apache-2.0 */
#include "prefetch.h"

#include <string.h>

#include "record.h"

#if COLIBRI_WITH_PREFETCH
/* What a guess is made with. */
struct guess {
    float *input;  /* hidden */
    float *scores; /* experts */
    float *weights; /* top_k, not used */
    uint16_t *ids; /* top_k */
};

uint64_t colibri_prefetch_bytes(const colibri_image *image)
{
    const colibri_config *c = &image->config;
    return sizeof(struct colibri_prefetch) + ((uint64_t)c->hidden + c->experts + c->top_k) * 4u + c->top_k * 2u;
}

static struct guess lay_out(const struct engine *e)
{
    const colibri_config *c = &e->image->config;
    struct guess g;
    g.input = (float *)(void *)(colibri_prefetch_of(e) + 1);
    g.scores = g.input + c->hidden;
    g.weights = g.scores + c->experts;
    g.ids = (uint16_t *)(void *)(g.weights + c->top_k);
    return g;
}

/* What the layer's router would read if nothing came before it: the stream, normed as there. */
static void read_stream(const struct engine *e, uint32_t layer, const colibri_layer *kind, float *input)
{
    static const uint16_t roles[] = {COLIBRI_ROLE_ROUTER_NORM, COLIBRI_ROLE_EXPERTS_NORM, COLIBRI_ROLE_FFN_NORM};
    const colibri_config *c = &e->image->config;
    const float *hidden = colibri_floats(e, COLIBRI_BUFFER_HIDDEN), *weight = NULL, *bias = NULL;
    uint32_t first = 0, end = kind->flags & COLIBRI_LAYER_EARLY_ROUTER ? 1 : 3;
    for (; first < end && weight == NULL; first++)
        weight = colibri_vector_of(e, layer, roles[first]);
    if (first == 3 && c->norm == COLIBRI_NORM_LAYER)
        bias = colibri_vector_of(e, layer, COLIBRI_ROLE_FFN_NORM_BIAS);
    if (weight != NULL)
        colibri_norm_row(e, hidden, weight, bias, c->norm_epsilon, c->hidden, input);
    else
        memcpy(input, hidden, c->hidden * sizeof *input);
}

/* The next layer with experts; false when there is none. */
static bool next_layer(const struct engine *e, uint32_t *layer, colibri_layer *kind)
{
    while (++*layer < e->image->config.layers) {
        colibri_image_layer(e->image, *layer, kind);
        if (kind->ffn & COLIBRI_FFN_MOE)
            return true;
    }
    return false;
}

static bool choose(const struct engine *e, uint32_t layer, const colibri_layer *kind, const struct guess *g)
{
    const colibri_config *c = &e->image->config;
    struct activations in = {.values = g->input, .columns = c->hidden, .stride = c->hidden, .rows = 1};
    read_stream(e, layer, kind, g->input);
    colibri_linear(e, layer, COLIBRI_ROLE_ROUTER, COLIBRI_ROLE_ROUTER_BIAS, &in, g->scores, c->experts);
    return colibri_route_topk(c, colibri_vector_of(e, layer, COLIBRI_ROLE_ROUTER_SELECTION), g->scores, g->ids,
                              g->weights) == COLIBRI_OK;
}

/* Begins the reads of what was guessed and is not there, the best first: half of what a token chooses, because later
 * guesses are worse. What was guessed and is there does not make room. */
static void begin(const struct engine *e, struct colibri_prefetch *p, const uint16_t *ids)
{
    const struct colibri_expert_cache *c = &e->cache;
    uint32_t top_k = e->image->config.top_k, most = (top_k + 1) / 2;
    most = most < COLIBRI_PREFETCHES ? most : COLIBRI_PREFETCHES;
    p->count = p->done = 0;
    for (uint32_t k = 0; k < top_k; k++)
        if (ids[k] < c->each)
            colibri_cache_guard(c, p->first + ids[k]);
    for (uint32_t k = 0; k < top_k && p->count < most; k++) {
        if (ids[k] >= c->each || colibri_cache_take(c, p->first + ids[k]) == COLIBRI_NO_SLOT)
            continue;
        struct colibri_record r = colibri_record_in(e, p->layer, p->first, ids[k]);
        if (!colibri_record_begin(&r, 0)) {
            colibri_cache_drop(c, r.slot);
            break;
        }
        p->experts[p->count++] = ids[k];
    }
    for (uint32_t k = 0; k < top_k; k++)
        if (ids[k] < c->each)
            colibri_cache_unguard(c, p->first + ids[k]);
    p->begun += p->count;
}

bool colibri_prefetch_start(const struct colibri_dispatch *d)
{
    const struct engine *e = d->engine;
    struct colibri_prefetch *p = colibri_prefetch_of(e);
    uint32_t layer = d->layer;
    colibri_layer kind;
    if (p == NULL || e->tokens != 1 || p->done != p->count || !colibri_storage_overlaps(e->image->storage) ||
        !next_layer(e, &layer, &kind))
        return false;
    struct guess g = lay_out(e);
    if (!choose(e, layer, &kind, &g))
        return false;
    p->layer = layer;
    p->first = d->first + e->cache.each;
    begin(e, p, g.ids);
    return p->count != 0;
}

void colibri_prefetch_settle(const struct engine *e, uint32_t layer, uint32_t expert)
{
    struct colibri_prefetch *p = colibri_prefetch_of(e);
    while (p != NULL && p->layer <= layer && p->done < p->count) {
        struct colibri_record r = colibri_record_in(e, p->layer, p->first, p->experts[p->done++]);
        if (r.expert == expert) {
            p->used++;
            return;
        }
        p->wasted_bytes += r.entry.bytes;
        if (colibri_record_end(&r) != COLIBRI_OK) {
            colibri_cache_drop(&e->cache, r.slot);
            continue;
        }
        e->cache.state->bytes_read += r.entry.bytes;
        colibri_cache_keep(&e->cache, r.slot);
    }
}
#endif
