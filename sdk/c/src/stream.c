/* SPDX-License-Identifier: Apache-2.0 */
/* Experts streamed from storage. A layer's reads begin as soon as its router has spoken; the experts in memory
 * are computed while they are under way, then each missing one as it arrives. A slot that has been computed
 * takes the next read, so a step may use more experts than there are slots. */
#include "stream.h"

#include <stddef.h>
#include <string.h>

#include "image_rules.h"
#include "size.h"

#if COLIBRI_WITH_STREAMING
enum { ATTEMPTS = 3 };

static bool overlaps(const colibri_storage *s)
{
    return s->struct_bytes >= offsetof(colibri_storage, wait) + sizeof s->wait && s->start != NULL && s->wait != NULL;
}

static int read_now(const colibri_storage *s, uint32_t file, uint64_t offset, void *destination, uint64_t bytes)
{
    if (s->read != NULL)
        return s->read(s->context, file, offset, destination, bytes);
    const void *mapped = s->map(s->context, file, offset, bytes);
    if (mapped == NULL)
        return -1;
    memcpy(destination, mapped, (size_t)bytes);
    return 0;
}

static uint32_t crc_of(const struct engine *e, const uint8_t *data, uint64_t bytes)
{
    const colibri_kernels *k = e->kernels;
    bool own = k->struct_bytes >= offsetof(colibri_kernels, crc32) + sizeof k->crc32 && k->crc32 != NULL;
    return own ? k->crc32(0, data, bytes) : colibri_crc32(0, data, bytes);
}

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

/* A record on its way. */
struct record {
    const struct engine *engine;
    uint32_t layer;
    uint32_t expert;
    uint32_t slot;
    colibri_expert entry;
};

static struct record record_in(const struct colibri_dispatch *d, uint32_t expert)
{
    const struct engine *e = d->engine;
    struct record r = {.engine = e, .layer = d->layer, .expert = expert,
                       .slot = e->cache.places[d->first + expert]};
    (void)colibri_image_expert(e->image, d->first + expert, &r.entry);
    return r;
}

static uint8_t *memory_of(const struct record *r)
{
    return r->engine->slots + (size_t)r->slot * r->engine->slot_bytes;
}

/* Begins a read where the storage can. */
static void begin(const struct record *r, uint32_t attempt)
{
    const colibri_storage *s = r->engine->image->storage;
    struct colibri_slot *slot = &r->engine->cache.slots[r->slot];
    colibri_trace(r->engine, COLIBRI_EVENT_READ, r->layer, r->expert, attempt, r->entry.bytes, 0);
    slot->begun = overlaps(s) && s->start(s->context, r->entry.file, r->entry.offset, memory_of(r), r->entry.bytes,
                                          &slot->ticket) == 0;
}

/* Waits for it, or reads now what could not be begun. */
static colibri_status end(const struct record *r)
{
    const colibri_storage *s = r->engine->image->storage;
    struct colibri_slot *slot = &r->engine->cache.slots[r->slot];
    int failed = -1;
    if (slot->begun)
        failed = s->wait(s->context, slot->ticket);
    else if (!overlaps(s) || s->read != NULL)
        failed = read_now(s, r->entry.file, r->entry.offset, memory_of(r), r->entry.bytes);
    slot->begun = 0;
    colibri_status status = COLIBRI_OK;
    if (failed != 0)
        status = COLIBRI_ERR_STORAGE;
    else if (crc_of(r->engine, memory_of(r), r->entry.bytes) != r->entry.crc32)
        status = COLIBRI_ERR_CORRUPT;
    colibri_trace(r->engine, COLIBRI_EVENT_READ_WAIT, r->layer, r->expert, (uint32_t)status, r->entry.bytes, 0);
    return status;
}

static void use(const struct record *r)
{
    r->engine->cache.state->bytes_read += r->entry.bytes;
    colibri_cache_arrive(&r->engine->cache, r->slot);
}

static colibri_status arrive(const struct record *r)
{
    struct colibri_cache_state *state = r->engine->cache.state;
    colibri_status status = end(r);
    for (uint32_t attempt = 2; status != COLIBRI_OK && attempt <= ATTEMPTS; attempt++) {
        state->retries++;
        begin(r, attempt);
        status = end(r);
    }
    if (status != COLIBRI_OK)
        return colibri_fail(r->engine->error, status, r->layer << 16 | r->expert, r->entry.offset, r->entry.bytes);
    use(r);
    return COLIBRI_OK;
}

/* Begins as many reads as there are slots that can be taken, and as a storage must keep in mind. */
static void fill(struct colibri_stream *s, const struct colibri_dispatch *d)
{
    for (; s->begun < s->count && s->begun - s->done < COLIBRI_READS_UNDER_WAY; s->begun++) {
        uint32_t expert = s->experts[s->begun];
        if (colibri_cache_take(&d->engine->cache, d->first + expert) == COLIBRI_NO_SLOT)
            return;
        struct record r = record_in(d, expert);
        begin(&r, 1);
    }
}

void colibri_stream_start(struct colibri_stream *s, struct colibri_dispatch *d)
{
    const struct colibri_expert_cache *c = &d->engine->cache;
    *s = (struct colibri_stream){.experts = d->active, .count = d->active_count};
    for (uint32_t i = 0; i < s->count; i++) {
        uint16_t expert = s->experts[i];
        if (!colibri_cache_hold(c, d->first + expert))
            continue;
        for (uint32_t j = i; j > s->held; j--) /* the missing ones stay in the order of the file */
            s->experts[j] = s->experts[j - 1];
        s->experts[s->held++] = expert;
    }
    c->state->hits += s->held;
    c->state->misses += s->count - s->held;
    s->done = s->begun = d->active_count = s->held;
    fill(s, d);
}

/* Gives back what has been computed. */
static void release(struct colibri_stream *s, const struct colibri_dispatch *d)
{
    for (; s->released < s->done; s->released++)
        colibri_cache_release(&d->engine->cache, d->first + s->experts[s->released]);
}

/* After a failure: every read is waited for, so that nobody writes into a slot that others get. */
static void abandon(const struct colibri_stream *s, const struct colibri_dispatch *d)
{
    const struct colibri_expert_cache *c = &d->engine->cache;
    for (uint32_t i = s->done; i < s->begun; i++) {
        struct record r = record_in(d, s->experts[i]);
        if (!c->slots[r.slot].begun || end(&r) != COLIBRI_OK) {
            colibri_cache_drop(c, r.slot);
            continue;
        }
        use(&r);
        colibri_cache_release(c, d->first + r.expert);
    }
}

void colibri_stream_abandon(struct colibri_stream *s, const struct colibri_dispatch *d)
{
    release(s, d);
    abandon(s, d);
}

colibri_status colibri_stream_fetch(const struct colibri_dispatch *d, uint32_t expert)
{
    const struct colibri_expert_cache *c = &d->engine->cache;
    if (!colibri_streams(d->engine) || colibri_cache_hold(c, d->first + expert))
        return COLIBRI_OK;
    if (colibri_cache_take(c, d->first + expert) == COLIBRI_NO_SLOT) /* cannot be: as in colibri_stream_next */
        return colibri_fail(d->engine->error, COLIBRI_ERR_LIMIT, 8, c->slot_count, 0);
    struct record r = record_in(d, expert);
    begin(&r, 1);
    colibri_status status = arrive(&r);
    if (status != COLIBRI_OK)
        colibri_cache_drop(c, r.slot);
    return status;
}

bool colibri_stream_next(struct colibri_stream *s, struct colibri_dispatch *d, colibri_status *status)
{
    release(s, d);
    fill(s, d);
    if (s->done == s->count)
        return false;
    if (s->done == s->begun) /* no slot: cannot be, init leaves room for one beside the pinned ones */
        *status = colibri_fail(d->engine->error, COLIBRI_ERR_LIMIT, 8, d->engine->cache.slot_count, 0);
    else {
        struct record r = record_in(d, s->experts[s->done]);
        *status = arrive(&r);
    }
    if (*status != COLIBRI_OK) {
        abandon(s, d);
        return false;
    }
    d->active = s->experts + s->done++;
    d->active_count = 1;
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
        if (read_now(e->image->storage, dense->file, dense->offset, memory, dense->bytes) != 0) {
            status = colibri_fail(error, COLIBRI_ERR_STORAGE, COLIBRI_NO_EXPERT, dense->offset, dense->bytes);
            continue;
        }
        status = COLIBRI_OK;
        colibri_tensor t;
        for (uint32_t i = 0; status == COLIBRI_OK && colibri_image_tensor(e->image, i, &t) == COLIBRI_OK; i++) {
            uint32_t crc = colibri_role_in_record(t.role)
                               ? t.crc32 : crc_of(e, colibri_weights_at(e, t.offset), t.bytes);
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
    return pin(e, error);
}
#endif

colibri_status colibri_expert_statistics(const colibri_engine *handle, colibri_expert_stats *stats)
{
    const struct engine *e = (const struct engine *)(const void *)handle;
    if (e == NULL || e->image == NULL || stats == NULL || stats->struct_bytes < sizeof *stats)
        return COLIBRI_ERR_ARGUMENT;
    *stats = (colibri_expert_stats){.struct_bytes = sizeof *stats};
#if COLIBRI_WITH_STREAMING
    const struct colibri_expert_cache *c = &e->cache;
    if (!colibri_streams(e))
        return COLIBRI_OK;
    stats->slots = c->slot_count;
    stats->slots_per_layer = c->shared ? 0 : c->slot_count / c->layers;
    stats->policy = c->policy;
    stats->hits = c->state->hits;
    stats->misses = c->state->misses;
    stats->bytes_read = c->state->bytes_read;
    stats->retries = c->state->retries;
    stats->pinned = c->state->pinned;
#endif
    return COLIBRI_OK;
}
