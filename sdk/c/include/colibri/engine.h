/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens in, logits out. There is no free function because nothing was taken. */
#ifndef COLIBRI_ENGINE_H
#define COLIBRI_ENGINE_H

#include "colibri/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Caller-owned handle of fixed size; its contents belong to the library. It must not move: the engine's memory
 * knows its address. One thread at a time, and of engines that share WORK memory (plan.h) one at a time. */
typedef struct colibri_engine {
    uint64_t opaque[96];
} colibri_engine;

/* Plans and carves the regions; the given memory is the engine's until it is used for another.
 * image, its storage and the platform's members must outlive the engine.
 *
 * Another image in the same memory: call it again with that image, with this handle or another; nothing needs to
 * be freed, and no read is under way between calls. Where both states (the plan's first buffer) begin at the same
 * address, as they do in the same one region, the older handle answers ARGUMENT from then on; do not rely on more.
 * A call that fails before anything was written (MEMORY, LIMIT, ALIGNMENT, FP_ENV) leaves another handle's engine
 * as it was.
 *
 * Errors: those of colibri_plan, ALIGNMENT, FP_ENV, STORAGE (weights LOADED),
 * UNSUPPORTED when weights are MAPPED and the storage cannot map (where 7), or when experts are bound and
 * this build leaves backends out (where 8). STREAMED: CHECKSUM as colibri_verify. Bindings: ARGUMENT with
 * have = index of a wrong one (where 6), BACKEND when a backend refuses an expert; STREAMED also STORAGE and
 * CORRUPT, as colibri_infer. */
colibri_status colibri_init(colibri_engine *engine, const colibri_image *image,
                            const colibri_limits *limits, const colibri_region *regions,
                            uint32_t region_count, const colibri_platform *platform,
                            colibri_error *error);

/* A batch of any size; steps of limits.batch tokens are cut inside. A token's position is the length
 * of its sequence at that point. Logits rows come in batch order. */
typedef struct colibri_batch {
    uint32_t struct_bytes;
    uint32_t count;
    const uint32_t *tokens;
    const uint32_t *sequences;     /* NULL: all in sequence 0 */
    const uint8_t *want_logits;    /* non-zero: a row for this token. NULL: for the last one only */
    float *logits;                 /* rows wanted x vocabulary */
    uint64_t logits_floats;        /* capacity */
} colibri_batch;

/* Errors: those that mend the call, NONFINITE, and BACKEND when a bound expert failed: the call may be repeated.
 * STREAMED also: STORAGE and CORRUPT when an expert's record could not be had, after three attempts; the engine
 * goes on working and the call may be repeated.
 * All or nothing: a failed call leaves every sequence at the length it had. In a model with recurrent
 * states (short convolutions), a call that fails after its first step breaks the sequences it held:
 * they answer BROKEN until they are reset. */
colibri_status colibri_infer(colibri_engine *engine, const colibri_batch *batch, colibri_error *error);

/* Forgets a sequence. */
colibri_status colibri_reset(colibri_engine *engine, uint32_t sequence);

/* Tokens held by a sequence, 0 for an unknown one. */
uint32_t colibri_length(const colibri_engine *engine, uint32_t sequence);

/* What became of the experts of all steps since init; zeros when nothing is streamed. A step asks once for each
 * expert that any of its tokens chose. A hit is in memory, or on its way, when its layer asks for it. */
typedef struct colibri_expert_stats {
    uint32_t struct_bytes; /* a shorter one gets the members that it has, from `retries` on */
    uint32_t slots;
    uint32_t slots_per_layer; /* of the layer with fewest; 0: shared by all layers */
    uint32_t policy;          /* COLIBRI_POLICY_* */
    uint64_t hits;
    uint64_t misses;
    uint64_t bytes_read;      /* records that arrived, each at its size in the expert table */
    uint64_t retries;         /* reads that were begun again after a failure */
    uint32_t pinned;          /* of platform.pins */
    uint32_t reserved;
    /* limits.prefetch. What a read begun early brings in time counts as a hit, and in bytes_read */
    uint64_t prefetched;      /* reads begun before their layer's router had spoken */
    uint64_t prefetched_used; /* of them, those of experts that it chose */
    uint64_t prefetched_wasted_bytes; /* of the others */
} colibri_expert_stats;
colibri_status colibri_expert_statistics(const colibri_engine *engine, colibri_expert_stats *stats);

/* Bytes of a region that the engine carved: equals the plan's used[region]. */
uint64_t colibri_high_water(const colibri_engine *engine, uint32_t region);

/* Runs the image's golden vector through the engine and compares checksums. Uses sequence 0 and
 * resets it. logits: vocabulary floats. Needs a context of at least the vector's length. */
colibri_status colibri_selftest(colibri_engine *engine, float *logits, colibri_error *error);

/* Settings of colibri_sample. All zero: greedy. */
typedef struct colibri_sampling {
    float temperature; /* 0: the highest logit (lowest id on ties). Negative or NaN: ARGUMENT */
    uint32_t top_k;    /* keep the k best; 0 or >= count: all */
    float top_p;       /* keep the smallest set with this mass; 0: the best one; >= 1: all. NaN, < 0: ARGUMENT */
} colibri_sampling;

/* Draws one id. rng: state, any value seeds it. -inf logits are never drawn; NaN, +inf or nothing
 * finite: NONFINITE. Linear in count, no memory. */
colibri_status colibri_sample(const float *logits, uint32_t count, const colibri_sampling *sampling,
                              uint64_t *rng, uint32_t *token);

/* Router: scores of one token -> top_k expert ids and weights, in the order of selection.
 * Formula by config (router, router_flags, groups, scale, epsilon). selection: experts floats added for
 * the choice only, or NULL. NONFINITE on NaN or infinity. scores is overwritten. */
colibri_status colibri_route_topk(const colibri_config *config, const float *selection, float *scores,
                                  uint16_t *ids, float *weights);

/* Library version, major << 16 | minor << 8 | patch, and what was compiled in. */
uint32_t colibri_version(void);
enum { COLIBRI_HAS_F32 = 1, COLIBRI_HAS_F16 = 2, COLIBRI_HAS_BF16 = 4, COLIBRI_HAS_Q8 = 8,
       COLIBRI_HAS_Q4 = 16, COLIBRI_HAS_KV_F16 = 32, COLIBRI_HAS_KV_Q8 = 64 };
uint32_t colibri_built_with(void);

#ifdef __cplusplus
}
#endif
#endif
