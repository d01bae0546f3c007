/* SPDX-License-Identifier: Apache-2.0 */
/* Experts that are read when a token needs them: what init, the planner and the dispatcher have to do with it. */
#ifndef COLIBRI_STREAM_H
#define COLIBRI_STREAM_H

#include "dispatch.h"
#include "options.h"
#include "prefetch.h"

/* Experts of one layer in the order in which they can be computed: those in memory, those that a guess has begun
 * to read, the others as they arrive. */
struct colibri_stream {
    uint16_t *experts; /* the dispatch's active list */
    uint32_t count;
    uint32_t guessed;  /* up to here in memory or on the way when the layer was routed ... */
    uint32_t done;     /* ... handed out ... */
    uint32_t released; /* ... given back to the cache ... */
    uint32_t begun;    /* ... have a slot */
    bool looked_ahead; /* guesses for the next layer have been begun */
};

/* A layer's mixture between its router and its experts. */
struct colibri_mixture {
    struct colibri_dispatch dispatch;
#if COLIBRI_WITH_STREAMING
    struct colibri_stream stream;
#endif
};

/* dispatch.c: chooses experts for every token and begins to read what is missing. in: what the router reads.
 * NONFINITE when a score is; nothing has been begun then. */
colibri_status colibri_mixture_route(struct colibri_mixture *m, const struct engine *e, uint32_t layer,
                                     struct activations *in);

/* dispatch.c: the same of a router that reads the layer's input; its reads are under way while the mixer runs. */
colibri_status colibri_mixture_route_early(struct colibri_mixture *m, const struct engine *e, uint32_t layer);

/* dispatch.c: in.values become the output. After a failure nothing of the layer is under way. */
colibri_status colibri_mixture_run(struct colibri_mixture *m, struct activations *in);

#if COLIBRI_WITH_STREAMING
/* What the planner asks: bytes of a slot, the fewest slots that a layer can do with, and the cache of so many slots
 * and that policy, without memory. */
uint64_t colibri_stream_slot_bytes(const colibri_image *image);
uint32_t colibri_stream_least(const colibri_image *image);
struct colibri_expert_cache colibri_stream_cache(const colibri_image *image, const colibri_limits *limits);

/* Reads or maps what is not streamed, and empties the slots. */
colibri_status colibri_stream_init(struct engine *e, colibri_error *error);

/* A step begins. */
static inline void colibri_stream_step(const struct engine *e)
{
    if (colibri_streams(e))
        e->cache.state->step++;
}

/* It ends, well or not: nothing is under way any more. */
static inline void colibri_stream_step_end(const struct engine *e)
{
    colibri_prefetch_settle(e, COLIBRI_GLOBAL_LAYER, COLIBRI_NO_GUESS);
}

/* Begins the reads of the layer's missing experts, and leaves on the active list those in memory. */
void colibri_stream_start(struct colibri_mixture *m);

/* Puts the next expert that was missing on the list, alone, once it is there. False when there is none left,
 * or when it could not be had: then nothing is under way any more, and status says why. */
bool colibri_stream_next(struct colibri_mixture *m, colibri_status *status);

/* After a failure elsewhere: nothing is under way any more, every slot is given back. */
void colibri_stream_abandon(struct colibri_mixture *m);

/* At init: brings one expert into a slot, to be given back with colibri_cache_release. Nothing to do when
 * experts are not streamed. STORAGE or CORRUPT when it could not be had. */
colibri_status colibri_stream_fetch(const struct colibri_dispatch *d, uint32_t expert);
#else
static inline colibri_status colibri_stream_init(struct engine *e, colibri_error *error)
{
    (void)e;
    return colibri_fail(error, COLIBRI_ERR_UNSUPPORTED, 7, COLIBRI_WEIGHTS_STREAMED, COLIBRI_WEIGHTS_LOADED);
}

static inline void colibri_stream_step(const struct engine *e)
{
    (void)e;
}

static inline void colibri_stream_step_end(const struct engine *e)
{
    (void)e;
}

static inline void colibri_stream_start(struct colibri_mixture *m)
{
    (void)m;
}

static inline bool colibri_stream_next(struct colibri_mixture *m, colibri_status *status)
{
    (void)m, (void)status;
    return false;
}

static inline void colibri_stream_abandon(struct colibri_mixture *m)
{
    (void)m;
}

static inline colibri_status colibri_stream_fetch(const struct colibri_dispatch *d, uint32_t expert)
{
    (void)d, (void)expert;
    return COLIBRI_OK;
}
#endif

#endif
