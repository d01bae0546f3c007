/* SPDX-License-Identifier: Apache-2.0 */
#include "preference.h"

#include <string.h>

#include "float_math.h"
#include "step_tokens.h"

#if COLIBRI_WITH_PREFERENCE
enum { MOST_HALVINGS = 64 };

#define LN2 0.69314718f

/* Rows of a layer, of a sequence. */
static size_t row_bytes(const colibri_image *image)
{
    return image->config.experts;
}

static size_t sequence_bytes(const colibri_image *image)
{
    return row_bytes(image) * image->moe_layers;
}

uint64_t colibri_preference_bytes(const colibri_image *image, const colibri_limits *limits)
{
    return limits->balance != 0 ? (uint64_t)image->config.experts * image->moe_layers * 2u : 0;
}

/* Behind the lengths: the counts, then the saved ones. */
static uint8_t *runs_of(const struct engine *e, uint32_t sequence)
{
    return e->buffers[COLIBRI_BUFFER_STATE] + (size_t)e->limits.sequences * 8u + sequence * sequence_bytes(e->image);
}

void colibri_preference_init(const struct engine *e)
{
    for (uint32_t s = 0; s < e->limits.sequences; s++)
        colibri_preference_reset(e, s);
}

static void copy(const struct engine *e, bool back)
{
    size_t bytes = sequence_bytes(e->image) * e->limits.sequences;
    uint8_t *runs = runs_of(e, 0), *saved = runs + bytes;
    if (e->limits.balance != 0)
        memcpy(back ? runs : saved, back ? saved : runs, bytes);
}

void colibri_preference_save(const struct engine *e)
{
    copy(e, false);
}

void colibri_preference_take_back(const struct engine *e)
{
    copy(e, true);
}

void colibri_preference_reset(const struct engine *e, uint32_t sequence)
{
    if (e->limits.balance != 0)
        memset(runs_of(e, sequence), 0, sequence_bytes(e->image));
}

static uint8_t *row_of(const struct colibri_dispatch *d, uint32_t token)
{
    const struct engine *e = d->engine;
    const colibri_config *c = &e->image->config;
    uint32_t layer = d->first / (c->experts - c->identities);
    return runs_of(e, colibri_sequences(e)[token]) + layer * row_bytes(e->image);
}

bool colibri_preference_of(const struct colibri_dispatch *d, uint32_t token, struct colibri_preference *p)
{
    const struct engine *e = d->engine;
    const colibri_config *c = &e->image->config;
    memset(p, 0, sizeof *p);
    p->addends = colibri_floats(e, COLIBRI_BUFFER_ROUTER) + (size_t)e->limits.batch * c->experts;
    if (e->limits.balance != 0) {
        p->runs = row_of(d, token);
        p->free = e->limits.balance;
    }
#if COLIBRI_WITH_STREAMING
    if (e->limits.prefer_cached != 0) {
        p->places = e->cache.places + d->first;
        p->each = e->cache.each;
        p->margin = (float)e->limits.prefer_cached / 1000.0f;
    }
#endif
    return p->runs != NULL || p->places != NULL;
}

void colibri_preference_count(const struct colibri_dispatch *d, uint32_t token)
{
    const colibri_config *c = &d->engine->image->config;
    const uint16_t *ids = d->ids + (size_t)token * c->top_k;
    if (d->engine->limits.balance == 0)
        return;
    uint8_t *runs = row_of(d, token);
    for (uint32_t i = 0; i < c->experts; i++) {
        uint32_t chosen = 0;
        for (uint32_t k = 0; k < c->top_k; k++)
            chosen |= ids[k] == i;
        runs[i] = (uint8_t)(chosen == 0 ? 0u : runs[i] < UINT8_MAX ? runs[i] + 1u : UINT8_MAX);
    }
}

/* Routers that choose by what comes out of the product; the others by a probability. */
static bool raw_scores(const colibri_config *c)
{
    return c->router != COLIBRI_ROUTER_SOFTMAX && c->router != COLIBRI_ROUTER_SIGMOID;
}

/* What halving the probability so many times takes from what the choice goes by. */
static float halved(const colibri_config *c, float score, uint32_t times)
{
    times = times < MOST_HALVINGS ? times : MOST_HALVINGS;
    if (raw_scores(c))
        return (float)times * -LN2;
    return score * colibri_float_from_bits((127u - times) << 23) - score;
}

/* The best experts are as exact as without a preference: they gain what those in memory gain. */
static uint32_t exact_choices(const colibri_config *c)
{
    return c->top_k < 4 ? c->top_k / 2 : 2;
}

/* Whether fewer than n go before i, ties to the lowest id. */
static bool among_best(const float *scores, const float *addends, uint32_t experts, uint32_t i, uint32_t n)
{
    uint32_t before = 0;
    float own = scores[i] + addends[i];
    for (uint32_t j = 0; j < experts; j++) {
        float other = scores[j] + addends[j];
        before += other > own || (other == own && j < i);
    }
    return before < n;
}

static float range_of(const float *scores, const float *addends, uint32_t experts)
{
    float low = scores[0] + addends[0], high = low;
    for (uint32_t i = 1; i < experts; i++) {
        float score = scores[i] + addends[i];
        low = score < low ? score : low;
        high = score > high ? score : high;
    }
    return high - low;
}

/* In two passes: ranks are those before anything is gained. */
static void prefer_cached(const struct colibri_preference *p, const colibri_config *c, const float *scores,
                          float *addends)
{
    float gain = p->margin * range_of(scores, addends, c->experts);
    uint16_t best[2] = {UINT16_MAX, UINT16_MAX};
    for (uint32_t i = 0, n = 0; i < c->experts && n < exact_choices(c); i++)
        if (among_best(scores, addends, c->experts, i, exact_choices(c)))
            best[n++] = (uint16_t)i;
    for (uint32_t i = 0; i < c->experts; i++)
        if (i == best[0] || i == best[1] || i >= p->each || p->places[i] != COLIBRI_NO_SLOT)
            addends[i] = addends[i] + gain;
}

const float *colibri_preference_add(const struct colibri_preference *p, const colibri_config *c, const float *scores,
                                    const float *selection)
{
    for (uint32_t i = 0; i < c->experts; i++) {
        p->addends[i] = selection != NULL ? selection[i] : 0.0f;
        if (p->runs != NULL && p->runs[i] > p->free)
            p->addends[i] = p->addends[i] + halved(c, scores[i], p->runs[i] - p->free);
    }
    if (p->places != NULL)
        prefer_cached(p, c, scores, p->addends);
    return p->addends;
}
#endif
