/* SPDX-License-Identifier: Apache-2.0 */
/* Experts streamed from storage. A layer's reads begin as soon as its router has spoken; the experts in memory
 * are computed while they are under way, then each missing one as it arrives. A slot that has been computed
 * takes the next read, so a step may use more experts than there are slots. */
#include "stream.h"

#include <stddef.h>
#include <string.h>

#include "image_rules.h"
#include "record.h"
#include "size.h"

#if COLIBRI_WITH_STREAMING
enum { ATTEMPTS = 3 };

uint64_t colibri_stream_slot_bytes(const colibri_image *image)
{
    uint64_t bytes = 0;
    colibri_expert record;
    for (uint32_t i = 0; colibri_image_expert(image, i, &record) == COLIBRI_OK; i++)
        bytes = record.bytes > bytes ? record.bytes : bytes;
    (void)colibri_align(bytes, colibri_record_alignment(image), &bytes);
    return bytes;
}

/* What one token uses; not all that it chooses need have weights. */
uint32_t colibri_stream_least(const colibri_image *image)
{
    uint32_t each = image->config.experts - image->config.identities;
    return image->config.top_k < each ? image->config.top_k : each;
}

struct colibri_expert_cache colibri_stream_cache(const colibri_image *image, const colibri_limits *limits)
{
    uint32_t least = colibri_stream_least(image);
    return (struct colibri_expert_cache){
        .layers = image->moe_layers,
        .each = image->config.experts - image->config.identities,
        .slot_count = limits->expert_slots,
        .policy = limits->policy,
        .shared = colibri_cache_per_layer(limits->expert_slots, image->moe_layers, least) == 0,
    };
}

static struct colibri_record record_of(const struct colibri_mixture *m, uint32_t i)
{
    const struct colibri_dispatch *d = &m->dispatch;
    return colibri_record_in(d->engine, d->layer, d->first, m->stream.experts[i]);
}

static void use(const struct colibri_record *r)
{
    r->engine->cache.state->bytes_read += r->entry.bytes;
    colibri_cache_arrive(&r->engine->cache, r->slot);
}

/* A read that a guess has begun counts as the first attempt. */
static colibri_status arrive(const struct colibri_record *r)
{
    struct colibri_cache_state *state = r->engine->cache.state;
    colibri_status status = colibri_record_end(r);
    for (uint32_t attempt = 2; status != COLIBRI_OK && attempt <= ATTEMPTS; attempt++) {
        state->retries++;
        (void)colibri_record_begin(r, attempt);
        status = colibri_record_end(r);
    }
    if (status != COLIBRI_OK)
        return colibri_fail(r->engine->error, status, r->layer << 16 | r->expert, r->entry.offset, r->entry.bytes);
    use(r);
    return COLIBRI_OK;
}

/* Begins as many reads as there are slots that can be taken, and as a storage must keep in mind. */
static void fill(struct colibri_mixture *m)
{
    struct colibri_stream *s = &m->stream;
    const struct colibri_dispatch *d = &m->dispatch;
    uint32_t guessed = colibri_prefetch_under_way(d->engine);
    for (; s->begun < s->count && s->begun - s->done + guessed < COLIBRI_READS_UNDER_WAY; s->begun++) {
        if (colibri_cache_take(&d->engine->cache, d->first + s->experts[s->begun]) == COLIBRI_NO_SLOT)
            return;
        struct colibri_record r = record_of(m, s->begun);
        (void)colibri_record_begin(&r, 1);
    }
}

/* Moves an entry forward; those between stay in the order of the file. */
static void bring_forward(uint16_t *experts, uint32_t from, uint32_t to)
{
    uint16_t expert = experts[from];
    for (; from > to; from--)
        experts[from] = experts[from - 1];
    experts[to] = expert;
}

/* The experts in memory come first, then those under way, in the order of their starts. */
static void sort(struct colibri_mixture *m)
{
    struct colibri_stream *s = &m->stream;
    const struct colibri_dispatch *d = &m->dispatch;
    uint32_t held = 0, under_way;
    for (uint32_t i = 0; i < s->count; i++)
        if (colibri_cache_hold(&d->engine->cache, d->first + s->experts[i]))
            bring_forward(s->experts, i, held++);
    s->done = s->guessed = held;
    for (uint32_t n = 0; colibri_prefetch_expert(d->engine, d->layer, n, &under_way); n++)
        for (uint32_t i = s->guessed; i < s->count; i++)
            if (s->experts[i] == under_way)
                bring_forward(s->experts, i, s->guessed++);
    s->begun = s->guessed;
}

void colibri_stream_start(struct colibri_mixture *m)
{
    struct colibri_dispatch *d = &m->dispatch;
    struct colibri_stream *s = &m->stream;
    struct colibri_cache_state *state = d->engine->cache.state;
    if (!colibri_streams(d->engine))
        return;
    *s = (struct colibri_stream){.experts = d->active, .count = d->active_count};
    sort(m);
    state->hits += s->guessed;
    state->misses += s->count - s->guessed;
    d->active_count = s->done;
    fill(m);
    if (s->done == s->count)
        s->looked_ahead = colibri_prefetch_start(d);
}

/* Gives back what has been computed. */
static void release(struct colibri_mixture *m)
{
    struct colibri_stream *s = &m->stream;
    for (; s->released < s->done; s->released++)
        colibri_cache_release(&m->dispatch.engine->cache, m->dispatch.first + s->experts[s->released]);
}

/* After a failure: every read is waited for, so that nobody writes into a slot that others get. */
static void abandon(const struct colibri_mixture *m)
{
    const struct colibri_dispatch *d = &m->dispatch;
    const struct colibri_expert_cache *c = &d->engine->cache;
    colibri_prefetch_settle(d->engine, d->layer, COLIBRI_NO_GUESS);
    for (uint32_t i = m->stream.done; i < m->stream.begun; i++) {
        struct colibri_record r = record_of(m, i);
        if (r.slot == COLIBRI_NO_SLOT || c->slots[r.slot].state != COLIBRI_SLOT_LOADING)
            continue; /* a guess, and settled */
        if (!c->slots[r.slot].begun || colibri_record_end(&r) != COLIBRI_OK) {
            colibri_cache_drop(c, r.slot);
            continue;
        }
        use(&r);
        colibri_cache_release(c, d->first + r.expert);
    }
}

void colibri_stream_abandon(struct colibri_mixture *m)
{
    if (!colibri_streams(m->dispatch.engine))
        return;
    release(m);
    abandon(m);
}

colibri_status colibri_stream_fetch(const struct colibri_dispatch *d, uint32_t expert)
{
    const struct engine *e = d->engine;
    if (!colibri_streams(e) || colibri_cache_hold(&e->cache, d->first + expert))
        return COLIBRI_OK;
    if (colibri_cache_take(&e->cache, d->first + expert) == COLIBRI_NO_SLOT) /* cannot be: as in next */
        return colibri_fail(e->error, COLIBRI_ERR_LIMIT, 8, e->cache.slot_count, 0);
    struct colibri_record r = colibri_record_in(e, d->layer, d->first, expert);
    (void)colibri_record_begin(&r, 1);
    colibri_status status = arrive(&r);
    if (status != COLIBRI_OK)
        colibri_cache_drop(&e->cache, r.slot);
    return status;
}

/* Waits for the next missing expert, whose read has been begun. */
static colibri_status next(const struct colibri_mixture *m)
{
    const struct colibri_dispatch *d = &m->dispatch;
    const struct colibri_stream *s = &m->stream;
    if (s->done == s->begun) /* no slot: cannot be, init leaves room for one beside the pinned ones */
        return colibri_fail(d->engine->error, COLIBRI_ERR_LIMIT, 8, d->engine->cache.slot_count, 0);
    struct colibri_record r = record_of(m, s->done);
    colibri_prefetch_settle(d->engine, d->layer, s->done < s->guessed ? r.expert : COLIBRI_NO_GUESS);
    return arrive(&r);
}

/* The next layer's reads line up behind the last of this one, or begin when that is done. */
static void look_ahead(struct colibri_mixture *m)
{
    struct colibri_stream *s = &m->stream;
    if (s->begun == s->count && s->done + 1 >= s->count && !s->looked_ahead)
        s->looked_ahead = colibri_prefetch_start(&m->dispatch);
}

bool colibri_stream_next(struct colibri_mixture *m, colibri_status *status)
{
    struct colibri_stream *s = &m->stream;
    struct colibri_dispatch *d = &m->dispatch;
    if (!colibri_streams(d->engine))
        return false;
    release(m);
    fill(m);
    if (s->done == s->count)
        return false;
    if (s->done == s->begun) { /* wrong guesses have its slot */
        colibri_prefetch_settle(d->engine, d->layer, COLIBRI_NO_GUESS);
        fill(m);
    }
    look_ahead(m);
    *status = next(m);
    if (*status != COLIBRI_OK) {
        abandon(m);
        return false;
    }
    d->active = s->experts + s->done++;
    d->active_count = 1;
    look_ahead(m);
    return true;
}

/* The dense tensors, read in one go. */
static colibri_status load_dense(struct engine *e, const colibri_section *dense, colibri_error *error)
{
    uint8_t *memory = e->buffers[COLIBRI_BUFFER_WEIGHTS];
    colibri_status status = COLIBRI_ERR_STORAGE;
    e->weights = memory;
    for (uint32_t attempt = 1; status != COLIBRI_OK && attempt <= ATTEMPTS; attempt++) {
        colibri_trace(e, COLIBRI_EVENT_READ, COLIBRI_GLOBAL_LAYER, 0, attempt, dense->bytes, 0);
        if (colibri_storage_read(e->image->storage, dense->file, dense->offset, memory, dense->bytes) != 0) {
            status = colibri_fail(error, COLIBRI_ERR_STORAGE, COLIBRI_NO_EXPERT, dense->offset, dense->bytes);
            continue;
        }
        status = COLIBRI_OK;
        colibri_tensor t;
        for (uint32_t i = 0; status == COLIBRI_OK && colibri_image_tensor(e->image, i, &t) == COLIBRI_OK; i++) {
            uint32_t crc = colibri_role_in_record(t.role)
                               ? t.crc32 : colibri_crc_of(e, colibri_weights_at(e, t.offset), t.bytes);
            if (crc != t.crc32)
                status = colibri_fail(error, COLIBRI_ERR_CHECKSUM, i, crc, t.crc32);
        }
    }
    return status;
}

static colibri_status map_dense(struct engine *e, const colibri_section *dense, colibri_error *error)
{
    const colibri_storage *s = e->image->storage;
    if (dense->bytes <= SIZE_MAX && s->map != NULL)
        e->weights = s->map(s->context, dense->file, dense->offset, dense->bytes);
    if (e->weights == NULL)
        return colibri_fail(error, COLIBRI_ERR_UNSUPPORTED, 7, COLIBRI_WEIGHTS_STREAMED_MAPPED,
                            COLIBRI_WEIGHTS_STREAMED);
    if (((uintptr_t)e->weights & 7u) != 0)
        return colibri_fail(error, COLIBRI_ERR_ALIGNMENT, COLIBRI_MAX_REGIONS, 0, 8);
    return COLIBRI_OK;
}

/* Marks the pinned experts, the hottest first, as long as their sets have room. */
static colibri_status pin(const struct engine *e, colibri_error *error)
{
    const colibri_platform *p = &e->platform;
    if (p->pin_count != 0 && p->pins == NULL)
        return colibri_fail(error, COLIBRI_ERR_ARGUMENT, 6, 0, 0);
    for (uint32_t i = 0; i < p->pin_count; i++) {
        uint32_t layer = p->pins[i] >> 16, expert = p->pins[i] & 0xFFFFu;
        colibri_layer kind = {.ffn = 0};
        if (layer < e->image->config.layers)
            colibri_image_layer(e->image, layer, &kind);
        if (!(kind.ffn & COLIBRI_FFN_MOE) || expert >= e->cache.each)
            return colibri_fail(error, COLIBRI_ERR_ARGUMENT, 6, i, 0);
        (void)colibri_cache_pin(&e->cache, colibri_first_expert(e->image, layer) + expert,
                                colibri_stream_least(e->image));
    }
    return COLIBRI_OK;
}

colibri_status colibri_stream_init(struct engine *e, colibri_error *error)
{
    const colibri_image *image = e->image;
    colibri_section dense;
    (void)colibri_find_section(image, COLIBRI_SECTION_WEIGHTS, &dense);
    e->weights_from = dense.offset;
    colibri_status status = e->limits.weights == COLIBRI_WEIGHTS_STREAMED ? load_dense(e, &dense, error)
                                                                          : map_dense(e, &dense, error);
    if (status != COLIBRI_OK || e->limits.expert_slots == 0)
        return status; /* or a model without experts */
    e->slots = e->buffers[COLIBRI_BUFFER_EXPERT_SLOTS];
    e->slots += (0 - (uintptr_t)e->slots) & (colibri_record_alignment(image) - 1u); /* the plan has room for it */
    e->slot_bytes = (size_t)colibri_stream_slot_bytes(image);
    e->cache = colibri_stream_cache(image, &e->limits);
    colibri_cache_init(&e->cache, e->buffers[COLIBRI_BUFFER_EXPERT_CACHE]);
    colibri_prefetch_init(e);
    return pin(e, error);
}
#endif

#if COLIBRI_WITH_STREAMING
static void count(const struct engine *e, colibri_expert_stats *stats)
{
    const struct colibri_expert_cache *c = &e->cache;
    stats->slots = c->slot_count;
    stats->slots_per_layer = c->shared ? 0 : c->slot_count / c->layers;
    stats->policy = c->policy;
    stats->hits = c->state->hits;
    stats->misses = c->state->misses;
    stats->bytes_read = c->state->bytes_read;
    stats->retries = c->state->retries;
    stats->pinned = c->state->pinned;
#if COLIBRI_WITH_PREFETCH
    const struct colibri_prefetch *p = colibri_prefetch_of(e);
    if (p == NULL)
        return;
    stats->prefetched = p->begun;
    stats->prefetched_used = p->used;
    stats->prefetched_wasted_bytes = p->wasted_bytes;
#endif
}
#endif

#define FIRST_STATS (offsetof(colibri_expert_stats, retries) + 8u) /* what the first callers had */

colibri_status colibri_expert_statistics(const colibri_engine *handle, colibri_expert_stats *stats)
{
    const struct engine *e = (const struct engine *)(const void *)handle;
    if (e == NULL || e->image == NULL || stats == NULL || stats->struct_bytes < FIRST_STATS)
        return COLIBRI_ERR_ARGUMENT;
    uint32_t bytes = stats->struct_bytes < sizeof *stats ? stats->struct_bytes : (uint32_t)sizeof *stats;
    colibri_expert_stats all = {.struct_bytes = bytes};
#if COLIBRI_WITH_STREAMING
    if (colibri_streams(e))
        count(e, &all);
#endif
    memcpy(stats, &all, bytes);
    return COLIBRI_OK;
}
