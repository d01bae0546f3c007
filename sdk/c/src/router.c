/* SPDX-License-Identifier: Apache-2.0 */
/* Token router: scores to experts and weights. Formula of Qwen2-MoE, OLMoE and Mixtral:
 * p = softmax(scores); S = the top_k largest p, ties to the lowest id; w = p[S], renormalised on demand. */
#include "../kernels/ref/sums.h"
#include "colibri/engine.h"
#include "float_math.h"

static int softmax(float *scores, uint32_t n)
{
    float maximum = scores[0];
    for (uint32_t i = 0; i < n; i++) {
        if (!colibri_finite_bits(colibri_float_bits(scores[i])))
            return 0;
        maximum = scores[i] > maximum ? scores[i] : maximum;
    }
    colibri_sums s = {{0}};
    for (uint32_t i = 0; i < n; i++) {
        scores[i] = colibri_exp(scores[i] - maximum);
        s.part[i % 16] = s.part[i % 16] + scores[i];
    }
    float sum = colibri_sums_tree(&s);
    for (uint32_t i = 0; i < n; i++)
        scores[i] = scores[i] / sum;
    return 1;
}

/* Takes the largest out: a probability is never negative, so -1 is never chosen again. */
static uint32_t take_largest(float *p, uint32_t n, float *value)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (p[i] > p[best])
            best = i;
    *value = p[best];
    p[best] = -1.0f;
    return best;
}

colibri_status colibri_route_topk(const colibri_config *config, float *scores, uint16_t *ids,
                                  float *weights)
{
    if (!softmax(scores, config->experts))
        return COLIBRI_ERR_NONFINITE;
    float sum = 0.0f;
    for (uint32_t k = 0; k < config->top_k; k++) {
        ids[k] = (uint16_t)take_largest(scores, config->experts, &weights[k]);
        sum = sum + weights[k];
    }
    for (uint32_t k = 0; k < config->top_k && config->router_flags & COLIBRI_ROUTER_RENORMALISE; k++)
        weights[k] = weights[k] / sum;
    return COLIBRI_OK;
}
