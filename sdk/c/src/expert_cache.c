/* SPDX-License-Identifier: Apache-2.0 */
/* Slots of streamed experts. The policies differ in one comparison (`colder`), so that a victim is found in
 * one pass over the slots of a set: at most as many as a layer has experts, or as one token uses. */
#include "expert_cache.h"

#include <string.h>

#include "colibri/plan.h"
#include "options.h"

#if COLIBRI_WITH_STREAMING
/* Counts are halved after this many uses for each expert there is. */
enum { USES_AN_EXPERT = 16 };

uint64_t colibri_cache_bytes(uint32_t experts, uint32_t slots)
{
    return sizeof(struct colibri_cache_state) + (uint64_t)slots * (uint32_t)sizeof(struct colibri_slot) +
           (((uint64_t)experts * 4u + 7u) & ~(uint64_t)7);
}

void colibri_cache_init(struct colibri_expert_cache *c, void *memory)
{
    uint32_t experts = c->layers * c->each;
    c->state = memory;
    c->slots = (struct colibri_slot *)(void *)(c->state + 1);
    c->places = (uint16_t *)(void *)(c->slots + c->slot_count);
    c->uses = c->places + experts;
    memset(memory, 0, (size_t)colibri_cache_bytes(experts, c->slot_count));
    memset(c->places, 0xFF, experts * sizeof *c->places);
}

void colibri_cache_set(const struct colibri_expert_cache *c, uint32_t expert, uint32_t *first, uint32_t *end)
{
    uint32_t layer = expert / c->each, part = c->slot_count / c->layers, over = c->slot_count % c->layers;
    *first = c->shared ? 0 : layer * part + (layer < over ? layer : over);
    *end = c->shared ? c->slot_count : *first + part + (layer < over);
}

static void use(const struct colibri_expert_cache *c, struct colibri_slot *slot)
{
    uint32_t experts = c->layers * c->each;
    uint16_t *uses = &c->uses[slot->expert];
    slot->state = COLIBRI_SLOT_IN_USE;
    slot->used = ++c->state->clock;
    slot->step = c->state->step;
    c->state->layer = slot->expert / c->each;
    if (*uses < COLIBRI_PINNED - 1u)
        ++*uses;
    if (++c->state->uses < experts * USES_AN_EXPERT)
        return;
    c->state->uses = 0;
    for (uint32_t i = 0; i < experts; i++)
        if (c->uses[i] != COLIBRI_PINNED)
            c->uses[i] = (uint16_t)(c->uses[i] / 2);
}

bool colibri_cache_hold(const struct colibri_expert_cache *c, uint32_t expert)
{
    uint32_t slot = c->places[expert];
    if (slot == COLIBRI_NO_SLOT || c->slots[slot].state != COLIBRI_SLOT_RESIDENT)
        return false;
    use(c, &c->slots[slot]);
    return true;
}

/* How often the expert's layer has run since it used it. */
static uint32_t passed_over(const struct colibri_expert_cache *c, const struct colibri_slot *slot)
{
    uint32_t to_come = slot->expert / c->each > c->state->layer;
    return c->state->step - slot->step - (to_come && c->state->step != slot->step);
}

/* Layers until the expert's runs again. */
static uint32_t distance(const struct colibri_expert_cache *c, const struct colibri_slot *slot)
{
    uint32_t layer = slot->expert / c->each, now = c->state->layer;
    return layer > now ? layer - now : layer + c->layers - now;
}

/* Whether a goes before b. */
static bool colder(const struct colibri_expert_cache *c, const struct colibri_slot *a, const struct colibri_slot *b)
{
    uint32_t x = 0, y = 0; /* the larger goes */
    if (c->policy == COLIBRI_POLICY_FREQUENCY) {
        x = c->uses[b->expert];
        y = c->uses[a->expert];
    } else if (c->policy == COLIBRI_POLICY_LEAST_STALE) {
        x = passed_over(c, a);
        y = passed_over(c, b);
        if (x == y) {
            x = distance(c, a);
            y = distance(c, b);
        }
    }
    return x != y ? x > y : c->state->clock - a->used > c->state->clock - b->used;
}

/* The invariant of every insert: an evicted slot is nobody's, and the table knew it. */
static bool can_go(const struct colibri_expert_cache *c, uint32_t slot)
{
    const struct colibri_slot *s = &c->slots[slot];
    return s->state == COLIBRI_SLOT_RESIDENT && c->uses[s->expert] != COLIBRI_PINNED &&
           c->places[s->expert] == slot;
}

uint32_t colibri_cache_take(const struct colibri_expert_cache *c, uint32_t expert)
{
    uint32_t first, end, best = COLIBRI_NO_SLOT;
    colibri_cache_set(c, expert, &first, &end);
    if (c->places[expert] != COLIBRI_NO_SLOT)
        return COLIBRI_NO_SLOT;
    for (uint32_t i = first; i < end; i++) {
        if (c->slots[i].state == COLIBRI_SLOT_EMPTY) {
            best = i;
            break;
        }
        if (can_go(c, i) && (best == COLIBRI_NO_SLOT || colder(c, &c->slots[i], &c->slots[best])))
            best = i;
    }
    if (best == COLIBRI_NO_SLOT)
        return best;
    if (c->slots[best].state == COLIBRI_SLOT_RESIDENT)
        colibri_cache_drop(c, best);
    c->slots[best] = (struct colibri_slot){.expert = expert, .state = COLIBRI_SLOT_LOADING};
    c->places[expert] = (uint16_t)best;
    return best;
}

void colibri_cache_arrive(const struct colibri_expert_cache *c, uint32_t slot)
{
    use(c, &c->slots[slot]);
}

void colibri_cache_drop(const struct colibri_expert_cache *c, uint32_t slot)
{
    c->places[c->slots[slot].expert] = COLIBRI_NO_SLOT;
    c->slots[slot].state = COLIBRI_SLOT_EMPTY;
}

void colibri_cache_release(const struct colibri_expert_cache *c, uint32_t expert)
{
    c->slots[c->places[expert]].state = COLIBRI_SLOT_RESIDENT;
}

void colibri_cache_keep(const struct colibri_expert_cache *c, uint32_t slot)
{
    c->slots[slot].state = COLIBRI_SLOT_RESIDENT;
}

static void change(const struct colibri_expert_cache *c, uint32_t expert, uint32_t from, uint32_t to)
{
    uint32_t slot = c->places[expert];
    if (slot != COLIBRI_NO_SLOT && c->slots[slot].state == from)
        c->slots[slot].state = to;
}

void colibri_cache_guard(const struct colibri_expert_cache *c, uint32_t expert)
{
    change(c, expert, COLIBRI_SLOT_RESIDENT, COLIBRI_SLOT_IN_USE);
}

void colibri_cache_unguard(const struct colibri_expert_cache *c, uint32_t expert)
{
    change(c, expert, COLIBRI_SLOT_IN_USE, COLIBRI_SLOT_RESIDENT);
}
#endif
