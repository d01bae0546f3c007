/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary positions. */
#ifndef COLIBRI_ROPE_H
#define COLIBRI_ROPE_H

#include "engine_state.h"

/* Cosines, then sines, of each token's angles with frequency set 1 or 2. */
void colibri_rope_table(const struct engine *e, uint32_t set);

/* A token's row of the table. */
const float *colibri_rope_row(const struct engine *e, uint32_t set, uint32_t token);

/* Rotates the first rope_size elements of x. */
void colibri_rotate(const colibri_config *c, const float *row, float *x);

#endif
