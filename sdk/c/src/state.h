/* SPDX-License-Identifier: Apache-2.0 */
/* States of layers without a cache: per sequence, the last inputs of a short filter, then a matrix a head.
 * At position 0 a state counts as zero, so nothing has to clear it. */
#ifndef COLIBRI_STATE_H
#define COLIBRI_STATE_H

#include "engine_state.h"

/* Floats that one sequence takes in layers before `layer` (layers: in all). */
uint64_t colibri_state_floats(const colibri_image *image, uint32_t layer);

/* A layer's state of sequence 0, and how many floats further that of the next sequence lies. */
float *colibri_state_of(const struct engine *e, uint32_t layer, size_t *stride);

/* A causal filter over time, channel by channel, tokens in order: row[i] = sum of filter taps x last inputs,
 * in place. filter: channels x conv_size; bias: channels, or NULL. stride: floats between tokens' rows. */
void colibri_filter(const struct engine *e, uint32_t layer, const float *filter, const float *bias,
                    float *rows, uint32_t channels, uint32_t stride);

#endif
