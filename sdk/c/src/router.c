/* SPDX-License-Identifier: Apache-2.0 */
/* Token router: scores to experts and weights (docs/numerics.md section 6, formulas by family in
 * docs/families.md). Ties go to the lowest id. */
#include <stddef.h>

#include "../kernels/ref/sums.h"
#include "colibri/engine.h"
#include "float_math.h"
#include "preference.h"

#define TAKEN (-__builtin_inff()) /* no finite score or probability is below it */

static int all_finite(const float *scores, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!colibri_finite_bits(colibri_float_bits(scores[i])))
            return 0;
    return 1;
}

static void softmax(float *scores, uint32_t n)
{
    float maximum = scores[0];
    for (uint32_t i = 1; i < n; i++)
        maximum = scores[i] > maximum ? scores[i] : maximum;
    colibri_sums s = {{0}};
    for (uint32_t i = 0; i < n; i++) {
        scores[i] = colibri_exp(scores[i] - maximum);
        s.part[i % 16] = s.part[i % 16] + scores[i];
    }
    float sum = colibri_sums_tree(&s);
    for (uint32_t i = 0; i < n; i++)
        scores[i] = scores[i] / sum;
}

/* What the choice goes by. */
static float rank_of(const float *p, const float *selection, uint32_t i)
{
    return p[i] == TAKEN || selection == NULL ? p[i] : p[i] + selection[i];
}

/* The best of [begin, end) that is not taken, or end. */
static uint32_t best_of(const float *p, const float *selection, uint32_t begin, uint32_t end)
{
    uint32_t best = end;
    for (uint32_t i = begin; i < end; i++)
        if (p[i] != TAKEN &&
            (best == end || rank_of(p, selection, i) > rank_of(p, selection, best)))
            best = i;
    return best;
}

#if COLIBRI_WITH_ROUTER_GROUPS
static float group_rank(const colibri_config *c, const float *p, const float *selection, uint32_t group)
{
    uint32_t size = c->experts / c->router_groups, begin = group * size, end = begin + size;
    uint32_t first = best_of(p, selection, begin, end);
    float rank = rank_of(p, selection, first), second = TAKEN;
    for (uint32_t i = begin; i < end; i++)
        if (i != first && rank_of(p, selection, i) > second)
            second = rank_of(p, selection, i);
    return c->router_flags & COLIBRI_ROUTER_GROUP_TWO && second != TAKEN ? rank + second : rank;
}

/* Experts outside the best groups are taken out of the choice, whatever their sign. */
static void keep_groups(const colibri_config *c, float *p, const float *selection)
{
    uint32_t size = c->experts / c->router_groups;
    uint64_t kept = 0;
    for (uint32_t n = 0; n < c->router_groups_kept; n++) {
        uint32_t best = c->router_groups;
        float best_rank = 0;
        for (uint32_t g = 0; g < c->router_groups; g++) {
            float rank = kept >> g & 1u ? TAKEN : group_rank(c, p, selection, g);
            if (!(kept >> g & 1u) && (best == c->router_groups || rank > best_rank)) {
                best = g;
                best_rank = rank;
            }
        }
        kept |= (uint64_t)1 << best;
    }
    for (uint32_t i = 0; i < c->experts; i++)
        if (!(kept >> (i / size) & 1u))
            p[i] = TAKEN;
}
#endif

#if COLIBRI_WITH_ROUTER_SPARSEMIXER
/* One round of PhiMoE's sparsemixer at inference: the best expert's share of the softmax over those that come near it.
 * Near: (max - s) / max(|s|, max) is at most twice the jitter. transformers: modeling_phimoe.py, sparsemixer. */
static void sparsemixer(const colibri_config *c, const float *scores, const float *selection,
                        const uint16_t *before, uint16_t *id, float *weight)
{
    uint32_t best = c->experts;
    float sum = 0.0f;
    for (uint32_t i = 0; i < c->experts; i++)
        if ((before == NULL || *before != i) &&
            (best == c->experts || rank_of(scores, selection, i) > rank_of(scores, selection, best)))
            best = i;
    for (uint32_t i = 0; i < c->experts; i++) {
        float size = colibri_float_from_bits(colibri_float_bits(scores[i]) & 0x7FFFFFFFu);
        float factor = size > scores[best] ? size : scores[best];
        int far = (scores[best] - scores[i]) / factor > 2.0f * c->router_epsilon;
        if (!far && (before == NULL || *before != i))
            sum = sum + colibri_exp(scores[i] - scores[best]);
    }
    *id = (uint16_t)best;
    *weight = 1.0f / sum;
}
#endif

static float sum_of(const colibri_config *c, const float *weights)
{
    float sum = 0.0f;
    for (uint32_t k = 0; k < c->top_k; k++)
        sum = sum + (c->router_flags & COLIBRI_ROUTER_LENGTH ? weights[k] * weights[k] : weights[k]);
    return sum;
}

static void finish(const colibri_config *c, float *weights)
{
    float divisor = 1.0f, sum = sum_of(c, weights);
    if (c->router_flags & COLIBRI_ROUTER_CLAMP)
        divisor = sum > c->router_epsilon ? sum : c->router_epsilon;
    else if (c->router_flags & COLIBRI_ROUTER_LENGTH)
        divisor = sum * colibri_rsqrt(sum);
    else if (c->router_flags & COLIBRI_ROUTER_RENORMALISE)
        divisor = sum + c->router_epsilon;
    for (uint32_t k = 0; k < c->top_k; k++)
        weights[k] = weights[k] / divisor * c->router_scale;
}

static void choose(const colibri_config *c, float *p, const float *selection, uint16_t *ids, float *weights)
{
#if COLIBRI_WITH_ROUTER_GROUPS
    if (c->router_groups != 0)
        keep_groups(c, p, selection);
#endif
    for (uint32_t k = 0; k < c->top_k; k++) {
        uint32_t best = best_of(p, selection, 0, c->experts);
        ids[k] = (uint16_t)best;
        weights[k] = p[best];
        p[best] = TAKEN;
    }
}

#if !COLIBRI_WITH_PREFERENCE
static
#endif
colibri_status colibri_route(const colibri_config *config, const float *selection, const struct colibri_preference *p,
                             float *scores, uint16_t *ids, float *weights)
{
    if (!all_finite(scores, config->experts))
        return COLIBRI_ERR_NONFINITE;
    if (config->router == COLIBRI_ROUTER_SOFTMAX)
        softmax(scores, config->experts);
#if COLIBRI_WITH_ROUTER_SIGMOID
    for (uint32_t i = 0; config->router == COLIBRI_ROUTER_SIGMOID && i < config->experts; i++)
        scores[i] = colibri_sigmoid(scores[i]);
#endif
#if COLIBRI_WITH_PREFERENCE
    if (p != NULL)
        selection = colibri_preference_add(p, config, scores, selection);
#endif
    (void)p;
#if COLIBRI_WITH_ROUTER_SPARSEMIXER
    if (config->router == COLIBRI_ROUTER_SPARSEMIXER) {
        const float *addends = p != NULL ? selection : NULL;
        sparsemixer(config, scores, addends, NULL, &ids[0], &weights[0]);
        sparsemixer(config, scores, addends, &ids[0], &ids[1], &weights[1]);
        return COLIBRI_OK;
    }
#endif
    choose(config, scores, selection, ids, weights);
#if COLIBRI_WITH_ROUTER_TOPK
    if (config->router == COLIBRI_ROUTER_TOPK_SOFTMAX)
        softmax(weights, config->top_k);
    for (uint32_t k = 0; config->router == COLIBRI_ROUTER_TOPK_SIGMOID && k < config->top_k; k++)
        weights[k] = colibri_sigmoid(weights[k]);
#endif
    finish(config, weights);
    return COLIBRI_OK;
}

colibri_status colibri_route_topk(const colibri_config *config, const float *selection, float *scores,
                                  uint16_t *ids, float *weights)
{
    return colibri_route(config, selection, NULL, scores, ids, weights);
}
