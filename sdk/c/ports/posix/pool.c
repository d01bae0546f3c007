/* SPDX-License-Identifier: Apache-2.0 */
/* A pool whose runs start without a system call. The caller puts the items of a run on offer
 * (colibri/items.h) and raises the round; a thread that is looking takes part within the time
 * that a cache line needs, one that sleeps is woken. Nobody waits for a thread that has not come:
 * its items are done by the others.
 *
 * Sleeping: whoever goes to sleep first says so (`asleep`, `caller_asleep`), then looks once more;
 * whoever changes what the sleeper looks at does so before asking whether someone sleeps. All four
 * steps are sequentially consistent, so one of the two sees the other, and no wake-up is lost. */
#define _POSIX_C_SOURCE 200809L

#include "colibri_posix.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "colibri/items.h"
#include "cpus.h"

#define MAX_WORKERS 64u
#define SPIN_US 100u
#define LOOKS_PER_CLOCK 64u /* a look costs less than reading the clock */
#define YIELDS 4u           /* looks after spinning, each leaving the CPU to another thread */

typedef struct worker {
    struct colibri_posix_pool *pool;
    pthread_t thread;
    uint32_t index;
} worker;

struct colibri_posix_pool {
    colibri_pool interface;
    colibri_items items;
    colibri_stretch stretch[MAX_WORKERS];
    uint64_t spin_ns;
    uint32_t threads; /* started */
    _Alignas(COLIBRI_CACHE_LINE) atomic_uint round; /* counts runs */
    _Alignas(COLIBRI_CACHE_LINE) atomic_uint asleep; /* threads that sleep until the round changes */
    atomic_uint caller_asleep;
    atomic_bool stop;
    pthread_mutex_t mutex; /* guards the two conditions, nothing else */
    pthread_cond_t start;
    pthread_cond_t done;
    worker worker[MAX_WORKERS];
};

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* How long someone has been looking. */
typedef struct patience {
    uint64_t end;
    uint32_t looks;
    uint32_t yields;
} patience;

/* A short wait before the next look; false when it is time to sleep. */
static bool wait_a_little(patience *p, uint64_t spin_ns)
{
    if (spin_ns > 0 && p->yields == 0) {
        colibri_pause();
        if (++p->looks % LOOKS_PER_CLOCK != 0) return true;
        const uint64_t now = now_ns();
        if (p->end == 0) p->end = now + spin_ns;
        if (now < p->end) return true;
    }
    if (p->yields++ >= YIELDS) return false;
    sched_yield();
    return true;
}

/* Until the round is another one than `seen`; returns it. */
static uint32_t await_round(colibri_posix_pool *pool, uint32_t seen)
{
    patience p = {0};
    do {
        const uint32_t round = atomic_load(&pool->round);
        if (round != seen) return round;
    } while (wait_a_little(&p, pool->spin_ns));
    pthread_mutex_lock(&pool->mutex);
    atomic_fetch_add(&pool->asleep, 1);
    while (atomic_load(&pool->round) == seen) pthread_cond_wait(&pool->start, &pool->mutex);
    atomic_fetch_sub(&pool->asleep, 1);
    pthread_mutex_unlock(&pool->mutex);
    return atomic_load(&pool->round);
}

static void await_items(colibri_posix_pool *pool)
{
    patience p = {0};
    do {
        if (colibri_items_finished(&pool->items)) return;
    } while (wait_a_little(&p, pool->spin_ns));
    pthread_mutex_lock(&pool->mutex);
    atomic_store(&pool->caller_asleep, 1);
    while (!colibri_items_finished(&pool->items)) pthread_cond_wait(&pool->done, &pool->mutex);
    atomic_store(&pool->caller_asleep, 0);
    pthread_mutex_unlock(&pool->mutex);
}

static void wake(colibri_posix_pool *pool, atomic_uint *asleep, pthread_cond_t *condition)
{
    if (atomic_load(asleep) == 0) return;
    pthread_mutex_lock(&pool->mutex);
    pthread_cond_broadcast(condition);
    pthread_mutex_unlock(&pool->mutex);
}

static void *thread_main(void *arg)
{
    const worker *self = arg;
    colibri_posix_pool *pool = self->pool;
    uint32_t round = 0;
    for (;;) {
        round = await_round(pool, round);
        if (atomic_load(&pool->stop)) return NULL;
        if (colibri_items_work(&pool->items, self->index))
            wake(pool, &pool->caller_asleep, &pool->done);
    }
}

static void run_shared(colibri_posix_pool *pool, uint32_t n, colibri_task task, void *arg)
{
    colibri_items_offer(&pool->items, n, task, arg);
    atomic_fetch_add(&pool->round, 1);
    wake(pool, &pool->asleep, &pool->start);
    if (!colibri_items_work(&pool->items, 0)) await_items(pool);
}

static void run(void *context, uint32_t n, colibri_task task, void *arg)
{
    colibri_posix_pool *pool = context;
    uint32_t shared = n < COLIBRI_ITEMS_MAX ? n : COLIBRI_ITEMS_MAX;
    if (n <= 1 || pool->threads == 0) shared = 0; /* nobody to share with */
    if (shared > 0) run_shared(pool, shared, task, arg);
    for (uint32_t item = shared; item < n; item++) task(arg, item, 0);
}

static int start_threads(colibri_posix_pool *pool, bool pin)
{
    for (uint32_t i = 1; i < pool->items.workers; i++) {
        worker *w = &pool->worker[i];
        w->pool = pool;
        w->index = i;
        int error = pthread_create(&w->thread, NULL, thread_main, w);
        if (error == 0) pool->threads++;
        if (error == 0 && pin) error = colibri_cpus_pin(w->thread, i);
        if (error != 0) return error;
    }
    return 0;
}

static uint32_t thread_count(const colibri_posix_pool_options *o)
{
    const uint32_t cpus = colibri_cpus();
    return o->oversubscribe == 1 || o->workers <= cpus ? o->workers : cpus;
}

static uint64_t spin_time(const colibri_posix_pool_options *o)
{
    if (o->spin_us == COLIBRI_POSIX_NO_SPIN) return 0;
    if (o->spin_us == 0) return thread_count(o) > colibri_cpus() ? 0 : SPIN_US * 1000u;
    return (uint64_t)o->spin_us * 1000u;
}

static colibri_posix_pool *new_pool(const colibri_posix_pool_options *o)
{
    void *memory = NULL;
    if (posix_memalign(&memory, COLIBRI_CACHE_LINE, sizeof(colibri_posix_pool)) != 0) return NULL;
    colibri_posix_pool *pool = memory;
    memset(pool, 0, sizeof *pool);
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->start, NULL);
    pthread_cond_init(&pool->done, NULL);
    pool->interface.struct_bytes = sizeof pool->interface;
    pool->interface.workers = o->workers;
    pool->interface.context = pool;
    pool->interface.run = run;
    pool->items.workers = thread_count(o);
    pool->items.stretch = pool->stretch;
    pool->spin_ns = spin_time(o);
    return pool;
}

colibri_posix_pool *colibri_posix_pool_create_with(const colibri_posix_pool_options *options)
{
    colibri_posix_pool_options o = {0};
    memcpy(&o, options, options->struct_bytes < sizeof o ? options->struct_bytes : sizeof o);
    errno = EINVAL;
    if (o.workers < 1 || o.workers > MAX_WORKERS || o.pin > 1 || o.oversubscribe > 1) return NULL;
    errno = ENOMEM;
    colibri_posix_pool *pool = new_pool(&o);
    const int error = pool == NULL ? ENOMEM : start_threads(pool, o.pin == 1);
    if (error == 0) return pool;
    colibri_posix_pool_destroy(pool);
    errno = error;
    return NULL;
}

colibri_posix_pool *colibri_posix_pool_create(uint32_t workers)
{
    const colibri_posix_pool_options options = {.struct_bytes = sizeof options, .workers = workers};
    return colibri_posix_pool_create_with(&options);
}

void colibri_posix_pool_destroy(colibri_posix_pool *pool)
{
    if (pool == NULL) return;
    atomic_store(&pool->stop, true);
    atomic_fetch_add(&pool->round, 1);
    wake(pool, &pool->asleep, &pool->start);
    for (uint32_t i = 1; i <= pool->threads; i++) pthread_join(pool->worker[i].thread, NULL);
    pthread_cond_destroy(&pool->done);
    pthread_cond_destroy(&pool->start);
    pthread_mutex_destroy(&pool->mutex);
    free(pool);
}

const colibri_pool *colibri_posix_pool_interface(const colibri_posix_pool *pool)
{
    return &pool->interface;
}
