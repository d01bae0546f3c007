/* SPDX-License-Identifier: Apache-2.0 */
/* The expert cache under random operations, in any order that its states allow: `expert_cache STEPS SEED`.
 * A second book of who is where is kept by hand; after every operation the cache must agree with it, and what
 * left must have been free to go and the coldest by its policy, found by looking at all of them. */
#include "expert_cache.h"

#include <stdio.h>
#include <stdlib.h>

#include "colibri/plan.h"
#include "support.h"

enum { LAYERS = 3, EACH = 7, EXPERTS = LAYERS * EACH, OUT = COLIBRI_SLOT_EMPTY };

static struct colibri_expert_cache cache;
static uint32_t slots, least, time_now;
static struct random generator;

/* What is known of each expert. */
static struct {
    uint32_t state;    /* OUT or a slot's */
    uint32_t released; /* when */
    uint32_t step;
    uint32_t pinned;
} book[EXPERTS];

static uint32_t below(uint32_t n)
{
    return random_below(&generator, n);
}

static uint32_t set_of(uint32_t expert)
{
    return cache.shared ? 0 : expert / EACH;
}

static uint32_t set_size(uint32_t set)
{
    return cache.shared ? slots : slots / LAYERS + (set < slots % LAYERS);
}

static uint32_t inside(uint32_t set)
{
    uint32_t count = 0;
    for (uint32_t x = 0; x < EXPERTS; x++)
        count += set_of(x) == set && book[x].state != OUT;
    return count;
}

static int may_go(uint32_t expert)
{
    return book[expert].state == COLIBRI_SLOT_RESIDENT && !book[expert].pinned;
}

/* Caps, states and places; no slot is two experts', none lies in another layer's set. */
static void check(void)
{
    uint32_t owner[EXPERTS] = {0}, first = 0;
    for (uint32_t x = 0; x < EXPERTS; x++) {
        uint32_t slot = cache.places[x];
        EXPECT((slot == COLIBRI_NO_SLOT) == (book[x].state == OUT));
        if (slot == COLIBRI_NO_SLOT)
            continue;
        EXPECT(slot < slots && owner[slot]++ == 0);
        EXPECT(cache.slots[slot].expert == x && cache.slots[slot].state == book[x].state);
        first = 0;
        for (uint32_t set = 0; set < set_of(x); set++)
            first += set_size(set);
        EXPECT(slot >= first && slot < first + set_size(set_of(x)));
    }
    for (uint32_t set = 0; set < (cache.shared ? 1 : LAYERS); set++)
        EXPECT(inside(set) <= set_size(set));
}

/* Runs of an expert's own layer since it was used; layers until the next one. */
static uint32_t stale(uint32_t expert, uint32_t now)
{
    uint32_t used = book[expert].step * LAYERS + expert / EACH;
    return (cache.state->step * LAYERS + now - used) / LAYERS;
}

static uint32_t ahead(uint32_t expert, uint32_t now)
{
    return (expert / EACH + LAYERS - now - 1) % LAYERS;
}

/* Whether a may not stay when b goes: lower counts, staler layers, or else longer unused. */
static int colder(uint32_t a, uint32_t b, uint32_t now)
{
    if (cache.policy == COLIBRI_POLICY_FREQUENCY) /* of equal counts halving makes another order than age */
        return cache.uses[a] < cache.uses[b];
    if (cache.policy == COLIBRI_POLICY_LEAST_STALE && cache.shared) {
        if (stale(a, now) != stale(b, now))
            return stale(a, now) > stale(b, now);
        if (ahead(a, now) != ahead(b, now))
            return ahead(a, now) > ahead(b, now);
    }
    return book[a].released < book[b].released;
}

/* At most one expert left for another, and it was the one to go. */
static void take(uint32_t expert)
{
    uint32_t set = set_of(expert), full = inside(set) == set_size(set), gone = EXPERTS, can = 0;
    for (uint32_t x = 0; x < EXPERTS; x++)
        can += set_of(x) == set && may_go(x);
    uint32_t slot = colibri_cache_take(&cache, expert);
    if (book[expert].state != OUT || (full && can == 0)) {
        EXPECT(slot == COLIBRI_NO_SLOT);
        return;
    }
    EXPECT(slot != COLIBRI_NO_SLOT);
    for (uint32_t x = 0; x < EXPERTS; x++) {
        if (book[x].state == OUT || cache.places[x] != COLIBRI_NO_SLOT)
            continue;
        EXPECT(gone == EXPERTS && full && set_of(x) == set && may_go(x));
        gone = x;
    }
    EXPECT((gone != EXPERTS) == full);
    for (uint32_t x = 0; full && x < EXPERTS; x++)
        EXPECT(set_of(x) != set || !may_go(x) || x == gone || !colder(x, gone, expert / EACH));
    if (full)
        book[gone].state = OUT;
    book[expert].state = COLIBRI_SLOT_LOADING;
}

static void used(uint32_t expert)
{
    book[expert].state = COLIBRI_SLOT_IN_USE;
    book[expert].step = cache.state->step;
}

static void operate(uint32_t expert, uint32_t layer)
{
    uint32_t slot = cache.places[expert], was = book[expert].state;
    if (was == COLIBRI_SLOT_LOADING) { /* reads arrive, or fail, in any order */
        if (below(8) == 0) {
            colibri_cache_drop(&cache, slot);
            book[expert].state = OUT;
        } else {
            colibri_cache_arrive(&cache, slot);
            used(expert);
        }
    } else if (was == COLIBRI_SLOT_IN_USE) {
        EXPECT(!colibri_cache_hold(&cache, expert));
        colibri_cache_release(&cache, expert);
        book[expert].state = COLIBRI_SLOT_RESIDENT;
        book[expert].released = ++time_now;
    } else if (expert / EACH == layer) { /* only the layer that runs asks */
        int held = colibri_cache_hold(&cache, expert);
        EXPECT(held == (was == COLIBRI_SLOT_RESIDENT));
        if (held)
            used(expert);
        else
            take(expert);
    }
}

static void pin_some(void)
{
    uint32_t pinned[LAYERS] = {0}, all = 0;
    for (uint32_t i = below(2 * EXPERTS); i != 0; i--) {
        uint32_t x = below(EXPERTS), set = set_of(x), size = set_size(set);
        int room = pinned[set] + 1 <= size / 2 && pinned[set] + 1 + least <= size;
        EXPECT(colibri_cache_pin(&cache, x, least) == (book[x].pinned || room));
        pinned[set] += !book[x].pinned && room;
        all += !book[x].pinned && room;
        book[x].pinned |= (uint32_t)room;
    }
    EXPECT(cache.state->pinned == all);
}

static void run(uint32_t policy, int shared, uint32_t steps)
{
    least = 1 + below(3);
    uint32_t fewest = shared ? least : least * LAYERS;
    slots = fewest + below(EXPERTS - fewest + 1);
    cache = (struct colibri_expert_cache){.layers = LAYERS, .each = EACH, .slot_count = slots, .policy = policy,
                                          .shared = shared};
    void *memory = exact((size_t)colibri_cache_bytes(&cache));
    colibri_cache_init(&cache, memory);
    for (uint32_t x = 0; x < EXPERTS; x++)
        book[x].state = book[x].released = book[x].step = book[x].pinned = 0;
    time_now = 0;
    pin_some();
    for (uint32_t step = 0; step < steps; step++) {
        cache.state->step++;
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            for (uint32_t n = below(20); n != 0; n--) {
                operate(below(EXPERTS), layer);
                check();
            }
            for (uint32_t x = 0; x < EXPERTS; x++) /* a layer ends with nothing in use or under way */
                while (book[x].state == COLIBRI_SLOT_LOADING || book[x].state == COLIBRI_SLOT_IN_USE)
                    operate(x, layer);
            check();
        }
    }
    free(memory);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        stop(2, "usage: expert_cache STEPS SEED");
    uint32_t steps = (uint32_t)strtoul(argv[1], NULL, 10), runs = 0;
    generator.state = (uint32_t)strtoul(argv[2], NULL, 10);
    for (uint32_t round = 0; round < 20; round++)
        for (uint32_t policy = COLIBRI_POLICY_LRU; policy <= COLIBRI_POLICY_LEAST_STALE; policy++)
            for (int shared = 0; shared < 2; shared++, runs++)
                run(policy, shared, steps);
    printf("%u caches, %u steps each\n", (unsigned)runs, (unsigned)steps);
    return 0;
}
