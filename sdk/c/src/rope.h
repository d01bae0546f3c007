/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary positions. */
#ifndef COLIBRI_ROPE_H
#define COLIBRI_ROPE_H

#include "engine_state.h"

/* Cosines, then sines, of each token's angles with frequency set 1 or 2. */
void colibri_rope_table(const struct engine *e, uint32_t set);

/* A token's row of the table. */
const float *colibri_rope_row(const struct engine *e, uint32_t set, uint32_t token);

/* Rotates the first elements of x, as many as the set has angles for. */
void colibri_rotate(const colibri_config *c, uint32_t set, const float *row, float *x);

static inline uint32_t colibri_rope_size(const colibri_config *c, uint32_t set)
{
    return set == 2 && c->rope_size_2 != 0 ? c->rope_size_2 : c->rope_size;
}

#endif
