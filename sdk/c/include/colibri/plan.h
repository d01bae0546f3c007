/* SPDX-License-Identifier: Apache-2.0 */
/* From image + limits + regions to an exact placement. A pure function: host and device agree. */
#ifndef COLIBRI_PLAN_H
#define COLIBRI_PLAN_H

#include "colibri/image.h"

#ifdef __cplusplus
extern "C" {
#endif

#define COLIBRI_MAX_REGIONS 8u
#define COLIBRI_MAX_BUFFERS 25u
#define COLIBRI_MAX_WORKERS 64u
#define COLIBRI_MAX_BATCH 4096u

/* Kernel profile: alignment of buffers. Fixed by the target, never by the machine that plans. */
enum { COLIBRI_PROFILE_SMALL = 1, /* 16 bytes: Cortex-M, RV32 */
       COLIBRI_PROFILE_WIDE = 2 };/* 64 bytes: everything with wide vectors or cache lines */

/* MAPPED: weights are used where the storage maps them and cost no arena.
 * LOADED: the plan has a buffer for the whole image, companion files included, and init reads it.
 * STREAMED: for models larger than memory. Init reads everything but the routed experts; these are read into
 *     slots when a token needs them and stay until others need the place.
 * STREAMED_MAPPED: the same, but everything else is used where the storage maps it. */
enum { COLIBRI_WEIGHTS_MAPPED = 1, COLIBRI_WEIGHTS_LOADED = 2, COLIBRI_WEIGHTS_STREAMED = 3,
       COLIBRI_WEIGHTS_STREAMED_MAPPED = 4 };

/* Which expert makes room (docs/expert-cache.md). Results never depend on it.
 * LRU: the one used longest ago.
 * FREQUENCY: the one with fewest uses, then the one used longest ago. Uses count up to 31, whether the expert is in
 *     memory or not, and are halved after 8 uses for each expert of the model; of two whose counts become equal by
 *     that, the one that had fewer goes first.
 * LEAST_STALE: the one that its layer passed over most often, then the one whose layer comes last, then the one
 *     used longest ago. */
enum { COLIBRI_POLICY_LRU = 1, COLIBRI_POLICY_FREQUENCY = 2, COLIBRI_POLICY_LEAST_STALE = 3 };

/* Whether reads for the next layer with experts begin before its router has spoken, behind the last read of
 * this one (steps of one token, a storage with start and wait). Results never depend on it. */
enum { COLIBRI_PREFETCH_OFF = 1, COLIBRI_PREFETCH_ON = 2 };

#define COLIBRI_MAX_BALANCE 200u          /* choices in a row */
#define COLIBRI_MAX_PREFER_CACHED 1000u   /* thousandths */

typedef struct colibri_limits {
    uint32_t struct_bytes;
    uint32_t sequences; /* independent contexts, from 1. Cost: KV cache each */
    uint32_t context;   /* tokens per sequence; 0: the model's own. Cost: KV cache, scores */
    uint32_t batch;     /* tokens per step, 1 .. 4096; 0: 16. Cost: activations */
    uint32_t workers;   /* as the pool's; 0: 1. Cost: one row of scores each */
    uint32_t kv;        /* COLIBRI_F32 (0 too), _F16, _Q8 */
    uint32_t profile;   /* COLIBRI_PROFILE_*; 0: WIDE */
    uint32_t weights;   /* COLIBRI_WEIGHTS_*; 0: MAPPED */
    uint32_t expert_slots; /* STREAMED: records in memory at once, top_k .. all; 0: as many as fit the regions.
                            * From top_k a layer on, each layer has its share, the first ones those left over;
                            * fewer are shared by all layers. Cost: the largest record each */
    uint32_t policy;    /* COLIBRI_POLICY_*; 0: FREQUENCY, which missed least wherever experts differ in how often
                            * they are used, and as little as LRU where they do not (docs/expert-cache.md) */
    uint32_t prefetch;  /* STREAMED: COLIBRI_PREFETCH_*; 0: OFF. Cost: a row of activations and of scores */

    /* What follows changes which experts are chosen, and so the logits (docs/numerics.md, section 6) */
    uint32_t balance;   /* from so many choices of an expert in a row on, its probability is halved with each one
                         * more; 0: never. Cost: two bytes for each expert, layer and sequence */
    uint32_t prefer_cached; /* STREAMED: experts in memory gain so many thousandths of the range of a token's
                             * scores, 0 .. 1000. Logits depend on slots, policy, prefetching, batch and what
                             * ran before */
} colibri_limits;

typedef struct colibri_region {
    const char *name; /* for reports; the runtime does not read it */
    void *base;       /* aligned to the profile; colibri_plan ignores it */
    uint64_t size;
    uint32_t rank;    /* 0 is the fastest */
    uint32_t use;     /* COLIBRI_REGION_* */
} colibri_region;

/* What may lie in a region. WORK: only what no engine keeps from one call to the next, activations above all, so
 * that engines may share the memory. At least one region of a plan must be for ANY. */
enum { COLIBRI_REGION_ANY = 0, COLIBRI_REGION_WORK = 1 };

typedef struct colibri_buffer {
    uint32_t kind;    /* colibri_buffer_name tells */
    uint32_t region;  /* index */
    uint64_t offset;
    uint64_t bytes;   /* rounded up to the profile's alignment */
    uint64_t touched; /* bytes read or written per decoded token at full context: why it lies where it does */
} colibri_buffer;

typedef struct colibri_plan_result {
    uint32_t struct_bytes;
    uint32_t alignment;
    uint32_t buffer_count;
    uint32_t region_count;
    uint64_t total_bytes; /* sum over buffers; logits are the caller's and not counted */
    uint64_t used[COLIBRI_MAX_REGIONS];
    colibri_buffer buffers[COLIBRI_MAX_BUFFERS];
    colibri_limits limits; /* effective: zeros replaced */
    uint32_t slots_per_layer; /* STREAMED: of the layer with fewest; 0: shared by all layers */
    uint32_t slot_bytes;
} colibri_plan_result;

/* Places buffers by bytes touched per byte of size: fast memory first.
 * MEMORY when they do not fit: where = the region to enlarge, have = its size, need = a size that
 * works; plan then holds sizes (total_bytes, buffers[].bytes) and no placement. */
colibri_status colibri_plan(const colibri_image *image, const colibri_limits *limits,
                            const colibri_region *regions, uint32_t region_count,
                            colibri_plan_result *plan, colibri_error *error);

/* The regions in which another image can be planned while the planned one stays: of each region the part that
 * plan's engine uses during its calls only, as WORK, then what it leaves free. Engines that share a part must not
 * infer at the same time; nothing else binds them. May be repeated with the plan made in `left`, for a third image.
 * regions: those of plan. left: COLIBRI_MAX_REGIONS entries. All images have the same profile.
 * Plan the image first whose calls use most: all that the others' calls use can then be shared.
 * Errors: ARGUMENT, with where 2 when the parts are too many: have = how many, need = COLIBRI_MAX_REGIONS; or when a
 * region is smaller than what the plan has in it: have = its size, need = that. */
colibri_status colibri_plan_beside(const colibri_plan_result *plan, const colibri_region *regions,
                                   colibri_region *left, uint32_t *left_count, colibri_error *error);

/* Longest context that fits with these limits, 0 when none does. limits->context is ignored. */
uint32_t colibri_plan_max_context(const colibri_image *image, const colibri_limits *limits,
                                  const colibri_region *regions, uint32_t region_count);

/* "kv_cache", "scores", ... and one line on what it holds; "?" for unknown kinds. */
const char *colibri_buffer_name(uint32_t kind);
const char *colibri_buffer_purpose(uint32_t kind);

/* 1 when a buffer holds something between calls, 0 when it may be shared. */
int colibri_buffer_keeps(uint32_t kind);

#ifdef __cplusplus
}
#endif
#endif
