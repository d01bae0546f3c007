/* SPDX-License-Identifier: Apache-2.0 */
/* Slots of streamed experts. */
#include "expert_cache.h"

#include <string.h>

#include "colibri/plan.h"
#include "options.h"

#if COLIBRI_WITH_STREAMING
/* Counts are halved after this many uses for each expert there is. */
enum { USES_AN_EXPERT = 8 };

static uint32_t set_count(const struct colibri_expert_cache *c)
{
    return c->shared ? 1 : c->layers;
}

/* Of a set: one of empty slots, then those of the policy. */
static uint32_t queue_count(const struct colibri_expert_cache *c)
{
    if (c->policy == COLIBRI_POLICY_FREQUENCY)
        return 1 + COLIBRI_MOST_USES + 1;
    return 1 + (c->policy == COLIBRI_POLICY_LEAST_STALE && c->shared ? c->layers : 1);
}

static uint32_t set_of(const struct colibri_expert_cache *c, uint32_t expert)
{
    return c->shared ? 0 : expert / c->each;
}

/* The link of a set's first queue. */
static uint32_t queues_of(const struct colibri_expert_cache *c, uint32_t set)
{
    return c->slot_count + set * queue_count(c);
}

/* Slots before those of a set: the first sets have those left over. */
static uint32_t first_slot(const struct colibri_expert_cache *c, uint32_t set)
{
    uint32_t part = c->slot_count / set_count(c), over = c->slot_count % set_count(c);
    return set * part + (set < over ? set : over);
}

uint64_t colibri_cache_bytes(const struct colibri_expert_cache *c)
{
    uint32_t links = queues_of(c, set_count(c)), experts = c->layers * c->each;
    uint64_t bytes = sizeof(struct colibri_cache_state) +
                     (uint64_t)c->slot_count * (uint32_t)sizeof(struct colibri_slot) +
                     (uint64_t)links * (uint32_t)sizeof(struct colibri_link) + (uint64_t)experts * 3u;
    return (bytes + 7u) & ~(uint64_t)7;
}

static void leave(const struct colibri_expert_cache *c, uint32_t slot)
{
    struct colibri_link *link = &c->links[slot];
    c->links[link->before].after = link->after;
    c->links[link->after].before = link->before;
    link->before = link->after = (uint16_t)slot;
}

/* Puts a slot that is in no queue, or all of another queue, at the end of one. */
static void append(const struct colibri_expert_cache *c, uint32_t queue, uint32_t first, uint32_t last)
{
    uint32_t end = c->links[queue].before;
    c->links[end].after = (uint16_t)first;
    c->links[first].before = (uint16_t)end;
    c->links[last].after = (uint16_t)queue;
    c->links[queue].before = (uint16_t)last;
}

static void join(const struct colibri_expert_cache *c, uint32_t queue, uint32_t other)
{
    struct colibri_link *link = &c->links[other];
    if (link->after == other)
        return;
    append(c, queue, link->after, link->before);
    link->before = link->after = (uint16_t)other;
}

void colibri_cache_init(struct colibri_expert_cache *c, void *memory)
{
    uint32_t links = queues_of(c, set_count(c)), experts = c->layers * c->each;
    c->state = memory;
    c->slots = (struct colibri_slot *)(void *)(c->state + 1);
    c->links = (struct colibri_link *)(void *)(c->slots + c->slot_count);
    c->places = (uint16_t *)(void *)(c->links + links);
    c->uses = (uint8_t *)(c->places + experts);
    memset(memory, 0, (size_t)colibri_cache_bytes(c));
    memset(c->places, 0xFF, experts * sizeof *c->places);
    for (uint32_t i = 0; i < links; i++)
        c->links[i] = (struct colibri_link){(uint16_t)i, (uint16_t)i};
    for (uint32_t set = 0; set < set_count(c); set++)
        for (uint32_t i = first_slot(c, set); i < first_slot(c, set + 1); i++)
            append(c, queues_of(c, set), i, i);
}

bool colibri_cache_pin(const struct colibri_expert_cache *c, uint32_t expert, uint32_t least)
{
    uint32_t set = set_of(c, expert), size = first_slot(c, set + 1) - first_slot(c, set), pinned = 0;
    for (uint32_t i = 0; !c->shared && i < c->each; i++)
        pinned += c->uses[set * c->each + i] == COLIBRI_PINNED;
    if (c->shared)
        pinned = c->state->pinned;
    if (c->uses[expert] == COLIBRI_PINNED)
        return true;
    if (pinned >= size / 2 || pinned + least >= size)
        return false;
    c->uses[expert] = COLIBRI_PINNED;
    c->state->pinned++;
    return true;
}

/* A queue for every count: those of 2n and 2n + 1 uses become one of n, the former first. */
static void halve(const struct colibri_expert_cache *c)
{
    for (uint32_t i = 0; i < c->layers * c->each; i++)
        if (c->uses[i] != COLIBRI_PINNED)
            c->uses[i] = (uint8_t)(c->uses[i] / 2);
    for (uint32_t set = 0; set < set_count(c); set++)
        for (uint32_t n = 1, first = queues_of(c, set) + 1; n <= COLIBRI_MOST_USES; n++)
            join(c, first + n / 2, first + n);
}

static void use(const struct colibri_expert_cache *c, struct colibri_slot *slot)
{
    uint8_t *uses = &c->uses[slot->expert];
    slot->state = COLIBRI_SLOT_IN_USE;
    slot->step = c->state->step;
    c->state->layer = slot->expert / c->each;
    if (c->policy != COLIBRI_POLICY_FREQUENCY)
        return;
    if (*uses < COLIBRI_MOST_USES)
        ++*uses;
    if (++c->state->uses < c->layers * c->each * USES_AN_EXPERT)
        return;
    c->state->uses = 0;
    halve(c);
}

bool colibri_cache_hold(const struct colibri_expert_cache *c, uint32_t expert)
{
    uint32_t slot = c->places[expert];
    if (slot == COLIBRI_NO_SLOT || c->slots[slot].state != COLIBRI_SLOT_RESIDENT)
        return false;
    leave(c, slot);
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

static bool staler(const struct colibri_expert_cache *c, uint32_t slot, uint32_t than)
{
    const struct colibri_slot *a = &c->slots[slot], *b = &c->slots[than];
    uint32_t x = passed_over(c, a), y = passed_over(c, b);
    return x != y ? x > y : distance(c, a) > distance(c, b);
}

/* The slot of a set that goes, or COLIBRI_NO_SLOT. */
static uint32_t first_to_go(const struct colibri_expert_cache *c, uint32_t set)
{
    uint32_t best = COLIBRI_NO_SLOT, queue = queues_of(c, set), end = queue + queue_count(c);
    bool any = c->policy != COLIBRI_POLICY_LEAST_STALE;
    for (uint32_t i = queue; i < end; i++) {
        uint32_t slot = c->links[i].after;
        while (slot != i && c->slots[slot].state == COLIBRI_SLOT_IN_USE) /* guarded: waits, but does not go */
            slot = c->links[slot].after;
        if (slot == i)
            continue;
        if (any || i == queue)
            return slot;
        if (best == COLIBRI_NO_SLOT || staler(c, slot, best))
            best = slot;
    }
    return best;
}

/* The invariant of every insert: an evicted slot is nobody's, and the table knew it. */
static bool can_go(const struct colibri_expert_cache *c, uint32_t slot)
{
    const struct colibri_slot *s = &c->slots[slot];
    return s->state == COLIBRI_SLOT_EMPTY || (s->state == COLIBRI_SLOT_RESIDENT && c->places[s->expert] == slot &&
                                              c->uses[s->expert] != COLIBRI_PINNED);
}

uint32_t colibri_cache_take(const struct colibri_expert_cache *c, uint32_t expert)
{
    if (c->places[expert] != COLIBRI_NO_SLOT)
        return COLIBRI_NO_SLOT;
    c->state->layer = expert / c->each; /* runs now, even if nothing of it was there */
    uint32_t slot = first_to_go(c, set_of(c, expert));
    if (slot == COLIBRI_NO_SLOT || !can_go(c, slot))
        return COLIBRI_NO_SLOT;
    if (c->slots[slot].state == COLIBRI_SLOT_RESIDENT)
        c->places[c->slots[slot].expert] = COLIBRI_NO_SLOT;
    leave(c, slot);
    c->slots[slot] = (struct colibri_slot){.expert = expert, .state = COLIBRI_SLOT_LOADING};
    c->places[expert] = (uint16_t)slot;
    return slot;
}

void colibri_cache_arrive(const struct colibri_expert_cache *c, uint32_t slot)
{
    use(c, &c->slots[slot]);
}

void colibri_cache_drop(const struct colibri_expert_cache *c, uint32_t slot)
{
    uint32_t expert = c->slots[slot].expert;
    c->places[expert] = COLIBRI_NO_SLOT;
    c->slots[slot].state = COLIBRI_SLOT_EMPTY;
    append(c, queues_of(c, set_of(c, expert)), slot, slot);
}

/* The queue that an expert's slot waits in. */
static uint32_t queue_of(const struct colibri_expert_cache *c, uint32_t expert)
{
    uint32_t queue = queues_of(c, set_of(c, expert)) + 1;
    if (c->policy == COLIBRI_POLICY_FREQUENCY)
        return queue + c->uses[expert];
    return queue + (c->policy == COLIBRI_POLICY_LEAST_STALE && c->shared ? expert / c->each : 0);
}

void colibri_cache_release(const struct colibri_expert_cache *c, uint32_t expert)
{
    uint32_t slot = c->places[expert];
    c->slots[slot].state = COLIBRI_SLOT_RESIDENT;
    if (c->uses[expert] != COLIBRI_PINNED)
        append(c, queue_of(c, expert), slot, slot);
}

void colibri_cache_keep(const struct colibri_expert_cache *c, uint32_t slot)
{
    uint32_t expert = c->slots[slot].expert;
    c->slots[slot].state = COLIBRI_SLOT_RESIDENT;
    if (c->uses[expert] != COLIBRI_PINNED) /* before the first of its queue */
        append(c, c->links[queue_of(c, expert)].after, slot, slot);
}

static void change(const struct colibri_expert_cache *c, uint32_t expert, uint16_t from, uint16_t to)
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
