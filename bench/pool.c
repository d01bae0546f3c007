/* SPDX-License-Identifier: Apache-2.0 */
/* What a run of the POSIX pool costs beside its items, against a plain pool: one mutex, one condition
 * to start a run and one to end it, fixed shares. Both alternate in one process; medians and ratios.
 *
 *   cc -O2 -std=c11 -Isdk/c/include -Isdk/c/ports/posix bench/pool.c sdk/c/ports/posix/pool.c \
 *      sdk/c/ports/posix/cpus.c -lpthread -o pool && ./pool [WORKERS]
 *
 * An item reads `bytes` of memory that belongs to it. Then the machine alone: `none`, the caller does
 * the items. A ratio above 1 says how many times faster the POSIX pool was. */
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "colibri_posix.h"

#define ROUNDS 21 /* odd: the median is one of them */
#define MOST_ITEMS 64u
#define MOST_BYTES (256u << 10)

typedef struct plain {
    colibri_pool interface;
    pthread_mutex_t mutex;
    pthread_cond_t start, done;
    uint64_t run;
    uint32_t busy, items, index;
    colibri_task task;
    void *arg;
} plain;

static void plain_share(const plain *p, uint32_t index)
{
    const uint64_t items = p->items;
    const uint32_t end = (uint32_t)(items * (index + 1) / p->interface.workers);
    for (uint32_t i = (uint32_t)(items * index / p->interface.workers); i < end; i++) p->task(p->arg, i, index);
}

static void *plain_thread(void *arg)
{
    plain *p = arg;
    pthread_mutex_lock(&p->mutex);
    const uint32_t index = ++p->index;
    for (uint64_t seen = 0;;) {
        while (p->run == seen) pthread_cond_wait(&p->start, &p->mutex);
        seen = p->run;
        pthread_mutex_unlock(&p->mutex);
        plain_share(p, index);
        pthread_mutex_lock(&p->mutex);
        if (--p->busy == 0) pthread_cond_signal(&p->done);
    }
    return NULL;
}

static void plain_run(void *context, uint32_t n, colibri_task task, void *arg)
{
    plain *p = context;
    pthread_mutex_lock(&p->mutex);
    p->items = n, p->task = task, p->arg = arg, p->busy = p->interface.workers - 1, p->run++;
    pthread_cond_broadcast(&p->start);
    pthread_mutex_unlock(&p->mutex);
    plain_share(p, 0);
    pthread_mutex_lock(&p->mutex);
    while (p->busy > 0) pthread_cond_wait(&p->done, &p->mutex);
    pthread_mutex_unlock(&p->mutex);
}

static void none_run(void *context, uint32_t n, colibri_task task, void *arg)
{
    (void)context;
    for (uint32_t i = 0; i < n; i++) task(arg, i, 0);
}

static const colibri_pool *plain_pool(uint32_t workers) /* lives as long as the program */
{
    static plain p;
    pthread_t thread;
    p.interface = (colibri_pool){sizeof p.interface, workers, &p, plain_run};
    pthread_mutex_init(&p.mutex, NULL);
    pthread_cond_init(&p.start, NULL);
    pthread_cond_init(&p.done, NULL);
    for (uint32_t i = 1; i < workers; i++)
        if (pthread_create(&thread, NULL, plain_thread, &p) != 0) exit(2);
    return &p.interface;
}

static unsigned char memory[MOST_ITEMS][MOST_BYTES];
static volatile uint32_t sink[MOST_ITEMS * 16];
static uint32_t item_bytes;

static void read_item(void *arg, uint32_t item, uint32_t worker)
{
    uint64_t sum = 0, word;
    (void)arg, (void)worker;
    for (uint32_t i = 0; i < item_bytes; i += 8) {
        memcpy(&word, &memory[item][i], 8);
        sum += word;
    }
    sink[item * 16] = (uint32_t)sum;
}

/* Microseconds a run. */
static double measure(const colibri_pool *pool, uint32_t items, uint32_t runs)
{
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    for (uint32_t i = 0; i < runs; i++) pool->run(pool->context, items, read_item, NULL);
    clock_gettime(CLOCK_MONOTONIC, &b);
    return ((double)(b.tv_sec - a.tv_sec) * 1e6 + (double)(b.tv_nsec - a.tv_nsec) / 1e3) / runs;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    const uint32_t workers = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 2;
    colibri_posix_pool *posix = workers < 2 ? NULL : colibri_posix_pool_create(workers);
    if (posix == NULL) return fprintf(stderr, "usage: pool [WORKERS], 2 .. 64\n"), 2;
    const colibri_pool none = {sizeof none, 1, NULL, none_run};
    const colibri_pool *pools[3] = {colibri_posix_pool_interface(posix), plain_pool(workers), &none};
    static const uint32_t sizes[] = {0, 1024, 4096, 16384, 65536, MOST_BYTES};
    memset(memory, 1, sizeof memory);
    printf("%u workers, us a run (median)\n items  bytes    posix    plain     none  plain/posix  none/posix\n",
           (unsigned)workers);
    for (uint32_t items = workers; items <= workers * 4 && items <= MOST_ITEMS; items *= 4)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            double us[3][ROUNDS];
            item_bytes = sizes[s];
            for (int round = 0; round < ROUNDS; round++)
                for (int p = 0; p < 3; p++) us[p][round] = measure(pools[p], items, 200);
            for (int p = 0; p < 3; p++) qsort(us[p], ROUNDS, sizeof(double), compare);
            const double *m[3] = {&us[0][ROUNDS / 2], &us[1][ROUNDS / 2], &us[2][ROUNDS / 2]};
            printf("%6u %6u %8.2f %8.2f %8.2f %12.2f %11.2f\n", (unsigned)items, (unsigned)item_bytes, *m[0],
                   *m[1], *m[2], *m[1] / *m[0], *m[2] / *m[0]);
        }
    colibri_posix_pool_destroy(posix);
    return 0;
}
