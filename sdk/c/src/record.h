/* SPDX-License-Identifier: Apache-2.0 */
/* One read of a streamed expert's record into its slot: begun, waited for, checked. */
#ifndef COLIBRI_RECORD_H
#define COLIBRI_RECORD_H

#include "engine_state.h"

#if COLIBRI_WITH_STREAMING
/* A record that has a slot. */
struct colibri_record {
    const struct engine *engine;
    uint32_t layer;
    uint32_t expert; /* of the layer */
    uint32_t slot;
    colibri_expert entry;
};

/* first: the layer's first entry in the expert table. */
struct colibri_record colibri_record_in(const struct engine *e, uint32_t layer, uint32_t first, uint32_t expert);

/* Whether the storage can read while something else is computed. */
bool colibri_storage_overlaps(const colibri_storage *s);

/* Non-zero when not all bytes are there. */
int colibri_storage_read(const colibri_storage *s, uint32_t file, uint64_t offset, void *destination, uint64_t bytes);

uint32_t colibri_crc_of(const struct engine *e, const uint8_t *data, uint64_t bytes);

/* Begins a read where the storage can, and tells whether it did. attempt: from 1; 0: the read is only a guess. */
bool colibri_record_begin(const struct colibri_record *r, uint32_t attempt);

/* Waits for it, or reads now what could not be begun. STORAGE, CORRUPT. */
colibri_status colibri_record_end(const struct colibri_record *r);
#endif

#endif
