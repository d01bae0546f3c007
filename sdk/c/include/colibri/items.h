/* SPDX-License-Identifier: Apache-2.0 */
/* How the workers of a pool share the items of a run, for whoever writes a pool: ports/posix and
 * ports/baremetal are built on it. C11 (stdatomic.h, 32-bit atomics), no operating system, no locks;
 * how workers wait for a run and for its end is the pool's. Not part of colibri.h.
 *
 * Every worker owns a contiguous stretch of the items, the same one in every run of as many items,
 * so that its rows stay in its caches. It takes them one by one and then helps the others.
 *
 * Why a worker that comes late does no harm: an item that it claims keeps the run from ending, so
 * `task`, `arg` and `end` cannot change before it reports the item as done. What it reads before a
 * claim are atomic counters only, and those of a run that is over are never above 0. */
#ifndef COLIBRI_ITEMS_H
#define COLIBRI_ITEMS_H

#include <stdatomic.h>
#include <stdbool.h>

#include "colibri/platform.h"

#define COLIBRI_CACHE_LINE 64
#define COLIBRI_ITEMS_MAX 0x7FFF0000u /* of one run; counters are signed and may pass 0 by a few */

/* A worker's stretch, alone on its cache line. */
typedef struct colibri_stretch {
    _Alignas(COLIBRI_CACHE_LINE) atomic_int left; /* items that nobody has claimed */
    uint32_t end;                                 /* first item behind the stretch */
} colibri_stretch;

typedef struct colibri_items {
    colibri_task task;
    void *arg;
    uint32_t workers;
    colibri_stretch *stretch;                          /* [workers], zeroed before the first run */
    _Alignas(COLIBRI_CACHE_LINE) atomic_uint unfinished; /* items of this run that are not done */
} colibri_items;

/* Offers items 0 .. n - 1, n at most COLIBRI_ITEMS_MAX. Workers that are still looking around may
 * start before this returns. */
static inline void colibri_items_offer(colibri_items *items, uint32_t n, colibri_task task, void *arg)
{
    const uint32_t parts = n < items->workers ? n : items->workers;
    items->task = task;
    items->arg = arg;
    atomic_store_explicit(&items->unfinished, n, memory_order_relaxed);
    for (uint32_t i = 0, begin = 0; i < parts; i++) {
        colibri_stretch *own = &items->stretch[i];
        own->end = begin + (n - begin) / (parts - i);
        atomic_store_explicit(&own->left, (int)(own->end - begin), memory_order_release);
        begin = own->end;
    }
}

/* Does what is left of one stretch; returns how many items that were. */
static inline uint32_t colibri_items_take(colibri_items *items, colibri_stretch *stretch,
                                          uint32_t worker)
{
    uint32_t done = 0;
    while (atomic_load_explicit(&stretch->left, memory_order_relaxed) > 0) {
        const int left = atomic_fetch_sub_explicit(&stretch->left, 1, memory_order_acquire);
        if (left <= 0) break; /* another one was faster */
        items->task(items->arg, stretch->end - (uint32_t)left, worker);
        done++;
    }
    return done;
}

/* Works on the run there is, if any: the own stretch, then the others'. True for the one worker
 * that finishes the run's last item; it must wake whoever waits for that. */
static inline bool colibri_items_work(colibri_items *items, uint32_t worker)
{
    uint32_t done = 0;
    for (uint32_t i = 0; i < items->workers; i++) {
        const uint32_t owner = worker + i < items->workers ? worker + i : worker + i - items->workers;
        done += colibri_items_take(items, &items->stretch[owner], worker);
    }
    return done > 0 && atomic_fetch_sub(&items->unfinished, done) == done;
}

/* Whether all items are done; what their workers wrote is then visible. */
static inline bool colibri_items_finished(const colibri_items *items)
{
    return atomic_load(&items->unfinished) == 0;
}

/* Tells the core that this is a waiting loop. */
static inline void colibri_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__) || (defined(__arm__) && __ARM_ARCH >= 7)
    __asm__ volatile("yield" ::: "memory");
#elif defined(__riscv)
    __asm__ volatile(".4byte 0x0100000F" ::: "memory"); /* pause, a hint */
#endif
}

#endif
