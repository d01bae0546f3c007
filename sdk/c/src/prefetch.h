/* SPDX-License-Identifier: Apache-2.0 */
/* Reads that are begun before their layer's router has spoken: while the storage does a layer's last read, the
 * next router is asked what it would choose for the stream as it is. A guess changes which bytes lie where,
 * and no result. */
#ifndef COLIBRI_PREFETCH_H
#define COLIBRI_PREFETCH_H

#include "dispatch.h"
#include "options.h"

enum { COLIBRI_PREFETCHES = 8 }; /* at most under way: half of what a storage keeps in mind */

#define COLIBRI_NO_GUESS UINT32_MAX

/* Lies in the arena behind the cache, whose size is a multiple of 8; behind it the floats and ids that the guess
 * is made with. */
struct colibri_prefetch {
    uint64_t begun;        /* reads since init */
    uint64_t used;         /* of them, those that their layer did choose */
    uint64_t wasted_bytes; /* of the others */
    uint32_t layer;        /* that the reads under way are for */
    uint32_t first;        /* its first entry in the expert table */
    uint32_t count;
    uint32_t done;         /* experts done .. count - 1 are under way, oldest first */
    uint16_t experts[COLIBRI_PREFETCHES];
};

#if COLIBRI_WITH_PREFETCH
uint64_t colibri_prefetch_bytes(const colibri_image *image);

/* Behind the cache; NULL when it is off. */
static inline struct colibri_prefetch *colibri_prefetch_of(const struct engine *e)
{
    const struct colibri_expert_cache *c = &e->cache;
    if (c->slot_count == 0 || e->limits.prefetch != COLIBRI_PREFETCH_ON)
        return NULL;
    uint8_t *end = e->buffers[COLIBRI_BUFFER_EXPERT_CACHE] + (size_t)colibri_cache_bytes(c);
    return (struct colibri_prefetch *)(void *)end;
}

static inline void colibri_prefetch_init(const struct engine *e)
{
    struct colibri_prefetch *p = colibri_prefetch_of(e);
    if (p != NULL)
        *p = (struct colibri_prefetch){.count = 0};
}

/* Reads under way. */
static inline uint32_t colibri_prefetch_under_way(const struct engine *e)
{
    const struct colibri_prefetch *p = colibri_prefetch_of(e);
    return p != NULL ? p->count - p->done : 0;
}

/* The i-th expert under way for that layer, oldest first; false when there is none. */
static inline bool colibri_prefetch_expert(const struct engine *e, uint32_t layer, uint32_t i, uint32_t *expert)
{
    const struct colibri_prefetch *p = colibri_prefetch_of(e);
    if (i >= colibri_prefetch_under_way(e) || p->layer != layer)
        return false;
    *expert = p->experts[p->done + i];
    return true;
}

/* No more than a layer's last read is under way: guesses what the next one needs, for steps of one token. Whether a
 * read was begun. */
bool colibri_prefetch_start(const struct colibri_dispatch *d);

/* Waits for reads that are not for a later layer: those older than an expert's, which it takes off the list, so that
 * its read is the caller's to wait for; all for COLIBRI_NO_GUESS. A read that failed leaves its slot empty. */
void colibri_prefetch_settle(const struct engine *e, uint32_t layer, uint32_t expert);
#else
static inline void colibri_prefetch_init(const struct engine *e)
{
    (void)e;
}

static inline uint32_t colibri_prefetch_under_way(const struct engine *e)
{
    (void)e;
    return 0;
}

static inline bool colibri_prefetch_expert(const struct engine *e, uint32_t layer, uint32_t i, uint32_t *expert)
{
    (void)e, (void)layer, (void)i, (void)expert;
    return false;
}

static inline bool colibri_prefetch_start(const struct colibri_dispatch *d)
{
    (void)d;
    return false;
}

static inline void colibri_prefetch_settle(const struct engine *e, uint32_t layer, uint32_t expert)
{
    (void)e, (void)layer, (void)expert;
}
#endif

#endif
