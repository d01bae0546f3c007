/* SPDX-License-Identifier: Apache-2.0 */
/* Workers wait for the round to change, the caller for the last item. No core is needed for a run to
 * end: items of one that is late are done by the others (colibri/items.h). */
#include "colibri_smp.h"

#include <string.h>

/* Until an event. One that came since the last look is remembered, so none is lost; on other
 * CPUs the loop around this does the waiting. */
static inline void await_event(void)
{
#if defined(__aarch64__) || (defined(__arm__) && __ARM_ARCH >= 7)
    __asm__ volatile("wfe" ::: "memory");
#else
    colibri_pause();
#endif
}

/* After stores that others wait for: they are visible before the event is. */
static inline void send_event(void)
{
#if defined(__aarch64__)
    __asm__ volatile("dsb ishst\n\tsev" ::: "memory");
#elif defined(__arm__) && __ARM_ARCH >= 7
    __asm__ volatile("dsb\n\tsev" ::: "memory");
#endif
}

static void run(void *context, uint32_t n, colibri_task task, void *arg)
{
    colibri_smp_pool *pool = context;
    uint32_t shared = n < COLIBRI_ITEMS_MAX ? n : COLIBRI_ITEMS_MAX;
    if (n <= 1 || pool->interface.workers == 1) shared = 0; /* nobody to share with */
    if (shared > 0) {
        colibri_items_offer(&pool->items, shared, task, arg);
        atomic_fetch_add(&pool->round, 1);
        send_event();
        if (!colibri_items_work(&pool->items, 0))
            while (!colibri_items_finished(&pool->items)) await_event();
    }
    for (uint32_t item = shared; item < n; item++) task(arg, item, 0);
}

bool colibri_smp_pool_init(colibri_smp_pool *pool, uint32_t workers)
{
    if (workers < 1 || workers > COLIBRI_SMP_WORKERS) return false;
    memset(pool, 0, sizeof *pool);
    pool->interface.struct_bytes = sizeof pool->interface;
    pool->interface.workers = workers;
    pool->interface.context = pool;
    pool->interface.run = run;
    pool->items.workers = workers;
    pool->items.stretch = pool->stretch;
    return true;
}

void colibri_smp_pool_work(colibri_smp_pool *pool, uint32_t worker)
{
    uint32_t seen = 0;
    atomic_fetch_add(&pool->present, 1);
    send_event();
    while (!atomic_load(&pool->stop)) {
        const uint32_t round = atomic_load(&pool->round);
        if (round == seen)
            await_event();
        else if (colibri_items_work(&pool->items, worker))
            send_event();
        seen = round;
    }
}

uint32_t colibri_smp_pool_present(const colibri_smp_pool *pool)
{
    return atomic_load(&pool->present);
}

void colibri_smp_pool_stop(colibri_smp_pool *pool)
{
    atomic_store(&pool->stop, true);
    send_event();
}
