/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens of a step sorted by the experts they chose. */
#ifndef COLIBRI_DISPATCH_H
#define COLIBRI_DISPATCH_H

#include "engine_state.h"

/* Choice `rank` of token t is slot t * top_k + rank. Lists are packed by expert: entries
 * start[x] .. start[x + 1] - 1 of token and slot are expert x's. They lie in the arena and stay until
 * the next route. Set engine and layer, zero the rest. */
struct colibri_dispatch {
    const struct engine *engine;
    uint32_t layer;
    uint32_t first; /* the layer's first entry in the expert table */
    float *weights;
    uint16_t *ids;
    uint16_t *token;
    uint16_t *slot;
    uint16_t *start;
    uint16_t *active;
    uint32_t active_count;
};

/* In COLIBRI_EVENT_ROUTE: the router of attention's experts, not of the FFN's. */
#define COLIBRI_TRACE_ATTENTION 0x10000u

/* Index of a layer's first expert in the expert table. */
uint32_t colibri_first_expert(const colibri_image *image, uint32_t layer);

/* Scores in with the router of that role, chooses, packs. NONFINITE when a score is. */
colibri_status colibri_dispatch_route(struct colibri_dispatch *d, uint32_t role, struct activations *in);

/* out[slot] = the chosen expert's matrix x in[in_rows of the slot]. in_rows: d->token or d->slot.
 * next: the same with the matrix of role + 1, or NULL. */
void colibri_dispatch_product(const struct colibri_dispatch *d, uint32_t role, struct activations *in,
                              const uint16_t *in_rows, float *out, float *next);

/* out[token] = sum of weight * outputs[slot] in the order of selection, plus bias (or NULL). */
void colibri_dispatch_combine(const struct colibri_dispatch *d, const float *outputs, const float *bias, float *out);

#endif
