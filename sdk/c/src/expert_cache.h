/* SPDX-License-Identifier: Apache-2.0 */
/* Which expert lies in which slot, and which one goes when another needs the place. Knows nothing of
 * storage or images: experts are numbered as in the expert table, `each` of them a layer.
 *
 * Slots that can be taken wait in queues, in the order in which they were released, and the first one of the first
 * queue that is not empty goes. A set of slots has a queue of empty slots, then
 *   LRU          one
 *   FREQUENCY    one for each count of uses, the lowest first
 *   LEAST_STALE  one for each layer, of which the one whose first expert is stalest comes first
 * so that finding a slot takes no longer with more of them. A slot that is loading, in use or pinned is in none. */
#ifndef COLIBRI_EXPERT_CACHE_H
#define COLIBRI_EXPERT_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#define COLIBRI_NO_SLOT 0xFFFFu

/* With the queues of the most layers that there can be, below COLIBRI_NO_SLOT. */
#define COLIBRI_MAX_SLOTS 30720u

/* EMPTY -> take -> LOADING -> arrive -> IN_USE -> release -> RESIDENT -> hold -> IN_USE ...; drop empties.
 * Only EMPTY and RESIDENT slots can be taken. */
enum { COLIBRI_SLOT_EMPTY, COLIBRI_SLOT_LOADING, COLIBRI_SLOT_RESIDENT, COLIBRI_SLOT_IN_USE };

struct colibri_slot {
    uint32_t expert;
    uint32_t step;   /* of the last use */
    uint32_t ticket;
    uint16_t state;
    uint16_t begun;  /* the ticket is to be waited for */
};

/* A slot's or a queue's neighbours. A queue is a ring through its own link; who is in none is his own neighbour. */
struct colibri_link {
    uint16_t before;
    uint16_t after;
};

/* Lies in the arena; behind it the slots, the links of slots and queues, a place and a count for each expert. */
struct colibri_cache_state {
    uint64_t hits;
    uint64_t misses;
    uint64_t bytes_read;
    uint64_t retries;
    uint32_t step;   /* steps begun */
    uint32_t layer;  /* that runs */
    uint32_t uses;   /* counted since the counts were last halved */
    uint32_t pinned;
};

struct colibri_expert_cache {
    struct colibri_cache_state *state;
    struct colibri_slot *slots;
    struct colibri_link *links;
    uint16_t *places; /* an expert's slot, or COLIBRI_NO_SLOT */
    uint8_t *uses;    /* of an expert, up to COLIBRI_MOST_USES, halved from time to time; or COLIBRI_PINNED */
    uint32_t layers;
    uint32_t each;
    uint32_t slot_count;
    uint32_t policy;
    bool shared;      /* one set of slots for all layers */
};

/* In `uses`. PINNED: stays once it is there. */
enum { COLIBRI_MOST_USES = 31, COLIBRI_PINNED = 0xFF };

/* All functions want layers, each, slot_count, policy and shared set: at most COLIBRI_MAX_SLOTS slots, 1024
 * layers, 2^24 experts. This one needs no more, and is a multiple of 8. */
uint64_t colibri_cache_bytes(const struct colibri_expert_cache *c);

/* Sets of slots: one a layer from `least` slots a layer on, else one for all. */
static inline uint32_t colibri_cache_per_layer(uint32_t slots, uint32_t layers, uint32_t least)
{
    return slots / layers >= least ? slots / layers : 0;
}

/* Empties it. memory: colibri_cache_bytes, aligned to 8. */
void colibri_cache_init(struct colibri_expert_cache *c, void *memory);

/* Before the first use: the expert stays once it is there. False when its set has no room for one more: half of
 * a set may be pinned, and not so much that less than `least` slots are left. */
bool colibri_cache_pin(const struct colibri_expert_cache *c, uint32_t expert, uint32_t least);

/* Uses an expert when it is in memory; false when it is not. */
bool colibri_cache_hold(const struct colibri_expert_cache *c, uint32_t expert);

/* A slot for an expert that is not in memory, from now on LOADING; COLIBRI_NO_SLOT when none is free and
 * none can be emptied. */
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
