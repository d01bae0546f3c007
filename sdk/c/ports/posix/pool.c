/* SPDX-License-Identifier: Apache-2.0 */
/* A plain pool: one mutex, one condition to start a round, one to end it. Workers keep their
 * stretch of items from round to round, so results and caches do not depend on who woke first. */
#define _POSIX_C_SOURCE 200809L

#include "colibri_posix.h"

#include <pthread.h>
#include <stdlib.h>

#define MAX_WORKERS 64u

typedef struct worker {
    struct colibri_posix_pool *pool;
    pthread_t thread;
    uint32_t index;
} worker;

struct colibri_posix_pool {
    colibri_pool interface;
    pthread_mutex_t mutex;
    pthread_cond_t start;
    pthread_cond_t done;
    uint64_t round;      /* counts runs; a worker sleeps until it changes */
    uint32_t busy;       /* started threads that have not finished this round */
    uint32_t threads;    /* started threads */
    int stop;
    uint32_t items;
    colibri_task task;
    void *arg;
    worker worker[MAX_WORKERS];
};

/* First item of a worker's stretch; that of worker + 1 is its end. */
static uint32_t first_item(uint32_t items, uint32_t index, uint32_t workers)
{
    return (uint32_t)((uint64_t)items * index / workers);
}

static void work(const colibri_posix_pool *pool, uint32_t index)
{
    const uint32_t workers = pool->interface.workers;
    const uint32_t end = first_item(pool->items, index + 1, workers);
    for (uint32_t item = first_item(pool->items, index, workers); item < end; item++)
        pool->task(pool->arg, item, index);
}

static void *thread_main(void *arg)
{
    const worker *self = arg;
    colibri_posix_pool *pool = self->pool;
    uint64_t seen = 0;
    pthread_mutex_lock(&pool->mutex);
    for (;;) {
        while (pool->round == seen && !pool->stop) pthread_cond_wait(&pool->start, &pool->mutex);
        if (pool->stop) break;
        seen = pool->round;
        pthread_mutex_unlock(&pool->mutex);
        work(pool, self->index);
        pthread_mutex_lock(&pool->mutex);
        if (--pool->busy == 0) pthread_cond_signal(&pool->done);
    }
    pthread_mutex_unlock(&pool->mutex);
    return NULL;
}

static void run(void *context, uint32_t n, colibri_task task, void *arg)
{
    colibri_posix_pool *pool = context;
    if (n <= 1 || pool->threads == 0) { /* not worth waking anyone */
        for (uint32_t item = 0; item < n; item++) task(arg, item, 0);
        return;
    }
    pthread_mutex_lock(&pool->mutex);
    pool->items = n;
    pool->task = task;
    pool->arg = arg;
    pool->busy = pool->threads;
    pool->round++;
    pthread_cond_broadcast(&pool->start);
    pthread_mutex_unlock(&pool->mutex);
    work(pool, 0);
    pthread_mutex_lock(&pool->mutex);
    while (pool->busy > 0) pthread_cond_wait(&pool->done, &pool->mutex);
    pthread_mutex_unlock(&pool->mutex);
}

static int start_threads(colibri_posix_pool *pool)
{
    for (uint32_t i = 1; i < pool->interface.workers; i++) {
        worker *w = &pool->worker[i];
        w->pool = pool;
        w->index = i;
        if (pthread_create(&w->thread, NULL, thread_main, w) != 0) return -1;
        pool->threads++;
    }
    return 0;
}

colibri_posix_pool *colibri_posix_pool_create(uint32_t workers)
{
    if (workers < 1 || workers > MAX_WORKERS) return NULL;
    colibri_posix_pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL) return NULL;
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->start, NULL);
    pthread_cond_init(&pool->done, NULL);
    pool->interface.struct_bytes = sizeof pool->interface;
    pool->interface.workers = workers;
    pool->interface.context = pool;
    pool->interface.run = run;
    if (start_threads(pool) != 0) {
        colibri_posix_pool_destroy(pool);
        return NULL;
    }
    return pool;
}

void colibri_posix_pool_destroy(colibri_posix_pool *pool)
{
    if (pool == NULL) return;
    pthread_mutex_lock(&pool->mutex);
    pool->stop = 1;
    pthread_cond_broadcast(&pool->start);
    pthread_mutex_unlock(&pool->mutex);
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
