/* SPDX-License-Identifier: Apache-2.0 */
/* Which expert lies in which slot, and which one goes when another needs the place. Knows nothing of
 * storage or images: experts are numbered as in the expert table, `each` of them a layer. */
#ifndef COLIBRI_EXPERT_CACHE_H
#define COLIBRI_EXPERT_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#define COLIBRI_NO_SLOT 0xFFFFu
#define COLIBRI_MAX_SLOTS 0xFFFEu

/* EMPTY -> take -> LOADING -> arrive -> IN_USE -> release -> RESIDENT -> hold -> IN_USE ...; drop empties.
 * Only EMPTY and RESIDENT slots can be taken. */
enum { COLIBRI_SLOT_EMPTY, COLIBRI_SLOT_LOADING, COLIBRI_SLOT_RESIDENT, COLIBRI_SLOT_IN_USE };

struct colibri_slot {
    uint32_t expert;
    uint32_t used; /* clock of the last use */
    uint32_t step; /* step of the last use */
    uint32_t state;
    uint32_t ticket;
    uint32_t begun; /* the ticket is to be waited for */
};

/* Lies in the arena, with the slots, then a place and a count of uses for each expert behind it. */
struct colibri_cache_state {
    uint64_t hits;
    uint64_t misses;
    uint64_t bytes_read;
    uint64_t retries;
    uint32_t clock; /* uses so far */
    uint32_t step;  /* steps begun */
    uint32_t layer; /* of the last use */
    uint32_t uses;  /* counted since the counts were last halved */
};

struct colibri_expert_cache {
    struct colibri_cache_state *state;
    struct colibri_slot *slots;
    uint16_t *places; /* an expert's slot, or COLIBRI_NO_SLOT */
    uint16_t *uses;   /* of an expert, halved from time to time; or COLIBRI_PINNED */
    uint32_t layers;
    uint32_t each;
    uint32_t slot_count;
    uint32_t policy;
    bool shared;      /* one set of slots for all layers */
};

/* In `uses`: stays once it is there. */
#define COLIBRI_PINNED 0xFFFFu

/* A multiple of 8. Below COLIBRI_MAX_SLOTS slots and 2^24 experts. */
uint64_t colibri_cache_bytes(uint32_t experts, uint32_t slots);

/* Sets of slots: one a layer from `least` slots a layer on, else one for all. */
static inline uint32_t colibri_cache_per_layer(uint32_t slots, uint32_t layers, uint32_t least)
{
    return slots / layers >= least ? slots / layers : 0;
}

/* Set layers, each, slot_count, policy, shared; memory: colibri_cache_bytes, aligned to 8. */
void colibri_cache_init(struct colibri_expert_cache *c, void *memory);

/* First slot of the set that an expert can lie in, and the end of the set. */
void colibri_cache_set(const struct colibri_expert_cache *c, uint32_t expert, uint32_t *first, uint32_t *end);

/* Uses an expert when it is in memory; false when it is not. */
bool colibri_cache_hold(const struct colibri_expert_cache *c, uint32_t expert);

/* A slot for an expert that is not in memory, from now on LOADING; COLIBRI_NO_SLOT when none is free and
 * none can be emptied. Linear in the slots of the set. */
uint32_t colibri_cache_take(const struct colibri_expert_cache *c, uint32_t expert);

/* LOADING -> IN_USE; LOADING -> EMPTY; IN_USE -> RESIDENT */
void colibri_cache_arrive(const struct colibri_expert_cache *c, uint32_t slot);
void colibri_cache_drop(const struct colibri_expert_cache *c, uint32_t slot);
void colibri_cache_release(const struct colibri_expert_cache *c, uint32_t expert);

/* LOADING -> RESIDENT: read on a guess and not used, so the first to go. */
void colibri_cache_keep(const struct colibri_expert_cache *c, uint32_t slot);

/* RESIDENT -> IN_USE and back, without a use: it does not make room meanwhile. Nothing for other states. */
void colibri_cache_guard(const struct colibri_expert_cache *c, uint32_t expert);
void colibri_cache_unguard(const struct colibri_expert_cache *c, uint32_t expert);

#endif
