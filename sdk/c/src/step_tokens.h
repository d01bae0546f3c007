/* SPDX-License-Identifier: Apache-2.0 */
/* The step buffer: u32 position, u32 sequence, u16 wanted row, each for up to limits.batch tokens. */
#ifndef COLIBRI_STEP_TOKENS_H
#define COLIBRI_STEP_TOKENS_H

#include "engine_state.h"

static inline uint32_t *colibri_positions(const struct engine *e)
{
    return (uint32_t *)(void *)e->buffers[COLIBRI_BUFFER_STEP];
}

static inline uint32_t *colibri_sequences(const struct engine *e)
{
    return colibri_positions(e) + e->limits.batch;
}

static inline uint16_t *colibri_wanted(const struct engine *e)
{
    return (uint16_t *)(void *)(colibri_sequences(e) + e->limits.batch);
}

#endif
