/* SPDX-License-Identifier: Apache-2.0 */
/* Routing that does not only go by the scores (limits.balance, limits.prefer_cached; docs/numerics.md section 6).
 * Both change a token's choice alone: the weights of what is chosen are the router's own. */
#ifndef COLIBRI_PREFERENCE_H
#define COLIBRI_PREFERENCE_H

#include "dispatch.h"
#include "options.h"

/* What a router's choice knows besides the scores of one token. */
struct colibri_preference {
    const uint8_t *runs;    /* choices in a row of each expert, or NULL */
    uint32_t free;          /* so many cost nothing */
    const uint16_t *places; /* slots of the experts that have weights, or NULL */
    uint32_t each;          /* of them */
    float margin;           /* what those in memory gain, as a part of the range of the scores */
    float *addends;         /* experts floats: what is added to each for the choice */
};

#if COLIBRI_WITH_PREFERENCE
/* Bytes of a sequence behind the lengths in the state buffer. */
uint64_t colibri_preference_bytes(const colibri_image *image, const colibri_limits *limits);

/* No choices yet; a call begins; it has failed: choices in a row as they were; a sequence is forgotten. */
void colibri_preference_init(const struct engine *e);
void colibri_preference_save(const struct engine *e);
void colibri_preference_take_back(const struct engine *e);
void colibri_preference_reset(const struct engine *e, uint32_t sequence);

/* Those of a token of the step in the dispatch's layer; false when there are none. */
bool colibri_preference_of(const struct colibri_dispatch *d, uint32_t token, struct colibri_preference *p);

/* The token has chosen. */
void colibri_preference_count(const struct colibri_dispatch *d, uint32_t token);

/* p->addends from scores (or probabilities) and selection (or NULL). */
const float *colibri_preference_add(const struct colibri_preference *p, const colibri_config *c, const float *scores,
                                    const float *selection);

/* router.c: colibri_route_topk with a preference, or NULL. */
colibri_status colibri_route(const colibri_config *config, const float *selection, const struct colibri_preference *p,
                             float *scores, uint16_t *ids, float *weights);
#else
static inline void colibri_preference_init(const struct engine *e)
{
    (void)e;
}

static inline void colibri_preference_save(const struct engine *e)
{
    (void)e;
}

static inline void colibri_preference_take_back(const struct engine *e)
{
    (void)e;
}

static inline void colibri_preference_reset(const struct engine *e, uint32_t sequence)
{
    (void)e, (void)sequence;
}
#endif

#endif
