/* SPDX-License-Identifier: Apache-2.0 */
/* Both pools: every item once, by one worker at a time; the environment of the threads; an idle pool
 * sleeps; and inference, whose logits may not depend on the workers. Built with ThreadSanitizer too.
 *
 *   pool items          random runs on pools of 1 to 8 workers
 *   pool environment    rounding mode and subnormals of started threads
 *   pool idle           CPU time of a pool that has nothing to do
 *   pool options        what create_with refuses
 *   pool infer IMAGE    checksums of the logits by pool and number of workers */
#define _GNU_SOURCE /* sysconf(_SC_NPROCESSORS_ONLN) */
#include "support.h"

#include <errno.h>
#include <fenv.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "colibri_posix.h"
#include "colibri_smp.h"

#define MOST 300u

static const uint32_t worker_counts[] = {1, 2, 3, 4, 7, 8};
#define COUNTS (sizeof worker_counts / sizeof *worker_counts)

/* A pool of either kind. The bare-metal one gets threads for cores, not all of them at once. */
struct crew {
    const colibri_pool *pool;
    colibri_posix_pool *posix;
    colibri_smp_pool smp;
    pthread_t core[8];
    struct seat {
        struct crew *crew;
        uint32_t worker;
    } seat[8];
};

static void *core_main(void *arg)
{
    const struct seat *seat = arg;
    colibri_smp_pool_work(&seat->crew->smp, seat->worker);
    return NULL;
}

static struct crew *hire(int bare, uint32_t workers, uint32_t spin_us, uint32_t pin)
{
    struct crew *c = (struct crew *)(void *)exact(sizeof *c);
    const colibri_posix_pool_options options = {sizeof options, workers, spin_us, pin, 1};
    memset(c, 0, sizeof *c);
    if (!bare) {
        c->posix = colibri_posix_pool_create_with(&options);
        if (c->posix == NULL) stop(2, "no pool of %u workers: %s", (unsigned)workers, strerror(errno));
        c->pool = colibri_posix_pool_interface(c->posix);
        return c;
    }
    if (!colibri_smp_pool_init(&c->smp, workers)) stop(2, "no pool of %u cores", (unsigned)workers);
    c->pool = &c->smp.interface;
    for (uint32_t i = 1; i < workers; i++) {
        c->seat[i] = (struct seat){c, i};
        if (pthread_create(&c->core[i], NULL, core_main, &c->seat[i]) != 0) stop(2, "no thread");
    }
    return c;
}

static void dismiss(struct crew *c)
{
    colibri_posix_pool_destroy(c->posix);
    if (c->posix == NULL) colibri_smp_pool_stop(&c->smp);
    for (uint32_t i = 1; c->posix == NULL && i < c->pool->workers; i++) pthread_join(c->core[i], NULL);
    free(c);
}

/* Plain memory throughout: the pool alone orders what caller and workers do. */
struct items {
    const colibri_pool *pool;
    uint32_t count[MOST]; /* how often an item was done */
    uint32_t input;
    uint64_t by_worker[64];
    int busy[64];
};

static void count_item(void *arg, uint32_t item, uint32_t worker)
{
    struct items *t = arg;
    if (worker >= t->pool->workers || item >= MOST) stop(1, "item %u, worker %u", (unsigned)item, (unsigned)worker);
    if (t->busy[worker]++ != 0) stop(1, "worker %u has two items", (unsigned)worker);
    for (volatile uint32_t spin = 0; spin < item % 7 * t->input; spin++) { }
    t->count[item] += t->input;
    t->by_worker[worker]++;
    t->busy[worker]--;
}

static void runs(const colibri_pool *pool, uint32_t rounds, uint64_t seed)
{
    struct random random = {seed};
    struct items t = {.pool = pool};
    uint64_t total = 0, done = 0;
    for (uint32_t round = 0; round < rounds; round++) {
        const uint32_t n = random_below(&random, random_below(&random, 4) == 0 ? MOST : 9);
        t.input = 1 + random_below(&random, 40);
        memset(t.count, 0, sizeof t.count);
        pool->run(pool->context, n, count_item, &t);
        for (uint32_t i = 0; i < MOST; i++)
            if (t.count[i] != (i < n ? t.input : 0))
                stop(1, "run %u of %u items: item %u was done %u times", (unsigned)round, (unsigned)n,
                     (unsigned)i, (unsigned)(t.count[i] / t.input));
        total += n;
        if (random_below(&random, 200) == 0) /* long enough for everyone to fall asleep */
            nanosleep(&(struct timespec){0, 300000}, NULL);
    }
    for (uint32_t w = 0; w < 64; w++) done += t.by_worker[w];
    if (done != total) stop(1, "%llu items were done, not %llu", (unsigned long long)done, (unsigned long long)total);
}

/* However many are asked for, no more than the CPUs take part. */
static void no_more_than_cpus(void)
{
    colibri_posix_pool *pool = colibri_posix_pool_create(64);
    const colibri_pool *p = colibri_posix_pool_interface(pool);
    struct items t = {.pool = p, .input = 1};
    const long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    if (p->workers != 64) stop(1, "%u workers", (unsigned)p->workers);
    for (int i = 0; i < 200; i++) p->run(p->context, MOST, count_item, &t);
    for (long w = cpus; w < 64; w++)
        if (t.by_worker[w] != 0) stop(1, "worker %ld on %ld CPUs", w, cpus);
    colibri_posix_pool_destroy(pool);
}

/* The first items that a worker takes are those of its own stretch. */
static void own_stretch_first(void)
{
    static colibri_stretch stretch[4];
    colibri_items items = {.workers = 4, .stretch = stretch};
    for (uint32_t n = 0; n < 30; n++)
        for (uint32_t i = 0, begin = 0, parts = n < 4 ? n : 4; i < parts; i++) {
            colibri_items_offer(&items, n, NULL, NULL);
            const uint32_t size = (uint32_t)atomic_load(&stretch[i].left);
            if (stretch[i].end - size != begin || size < n / parts || size > n / parts + 1)
                stop(1, "%u items: worker %u has %u up to %u", (unsigned)n, (unsigned)i, (unsigned)size,
                     (unsigned)stretch[i].end);
            begin = stretch[i].end;
            if (i == parts - 1 && begin != n) stop(1, "%u items end at %u", (unsigned)n, (unsigned)begin);
        }
}

static void test_items(void)
{
    own_stretch_first();
    no_more_than_cpus();
    for (size_t i = 0; i < COUNTS; i++)
        for (uint32_t kind = 0; kind < 4; kind++) {
            static const uint32_t spin[] = {0, COLIBRI_POSIX_NO_SPIN, 20, 0};
            struct crew *c = hire(kind == 3, worker_counts[i], spin[kind], 0);
            runs(c->pool, kind == 3 ? 60 : 800, kind + 1);
            dismiss(c);
        }
    for (uint32_t i = 0; i < 50; i++) { /* threads that have not come yet when the pool goes */
        struct crew *c = hire(0, 8, 0, 0);
        runs(c->pool, i % 3, i);
        dismiss(c);
    }
    printf("ok\n");
}

/* On every worker: 1 / 3 in the rounding mode, and the smallest normal number halved. */
struct environment {
    volatile float third, half;
    pthread_barrier_t all;
};

static void look_around(void *arg, uint32_t item, uint32_t worker)
{
    struct environment *e = arg;
    volatile float one = 1, three = 3, tiny = 0x1p-126f;
    (void)worker;
    pthread_barrier_wait(&e[0].all); /* nobody does two */
    e[item].third = one / three;
    e[item].half = tiny / 2;
}

static void environment_of(int mode, float third)
{
    struct environment e[4];
    if (fesetround(mode) != 0) stop(2, "no rounding mode %d", mode);
    struct crew *c = hire(0, 4, 0, 0);
    pthread_barrier_init(&e[0].all, NULL, 4);
    c->pool->run(c->pool->context, 4, look_around, e);
    for (int i = 0; i < 4; i++)
        if (e[i].third != third || e[i].half != 0x1p-127f) stop(1, "worker of item %d has another mode", i);
    pthread_barrier_destroy(&e[0].all);
    dismiss(c);
}

static void test_environment(void)
{
    environment_of(FE_UPWARD, 0x1.555556p-2f);
    environment_of(FE_DOWNWARD, 0x1.555554p-2f);
    environment_of(FE_TONEAREST, 0x1.555556p-2f);
    printf("ok\n");
}

static double cpu_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* CPU milliseconds of a second without work, after work. */
static void test_idle(void)
{
    struct crew *c = hire(0, 4, 1000, 0);
    runs(c->pool, 50, 1);
    nanosleep(&(struct timespec){0, 100000000}, NULL);
    const double before = cpu_ms();
    nanosleep(&(struct timespec){1, 0}, NULL);
    printf("%.3f\n", cpu_ms() - before);
    dismiss(c);
}

static void refuse(colibri_posix_pool_options o, int error)
{
    o.struct_bytes = sizeof o;
    errno = 0;
    if (colibri_posix_pool_create_with(&o) != NULL || errno != error)
        stop(1, "%u workers, pin %u: %s", (unsigned)o.workers, (unsigned)o.pin, strerror(errno));
}

static void test_options(void)
{
    refuse((colibri_posix_pool_options){.workers = 0}, EINVAL);
    refuse((colibri_posix_pool_options){.workers = 65}, EINVAL);
    refuse((colibri_posix_pool_options){.workers = 2, .pin = 2}, EINVAL);
    refuse((colibri_posix_pool_options){.workers = 2, .oversubscribe = 2}, EINVAL);
#ifdef __linux__
    struct crew *c = hire(0, 5, 0, 1);
    runs(c->pool, 200, 5);
    dismiss(c);
#else
    refuse((colibri_posix_pool_options){.workers = 2, .pin = 1}, ENOTSUP);
#endif
    colibri_smp_pool none;
    if (colibri_smp_pool_init(&none, 0) || colibri_smp_pool_init(&none, COLIBRI_SMP_WORKERS + 1))
        stop(1, "a bare-metal pool of no workers, or of too many");
    colibri_posix_pool_destroy(NULL);
    printf("ok\n");
}

/* A prompt in one batch and four tokens; the checksum of all rows of logits. */
static uint32_t infer(const colibri_image *image, const colibri_pool *pool, const colibri_kernels *kernels)
{
    static colibri_engine engine;
    colibri_limits limits = {.struct_bytes = sizeof limits, .sequences = 1, .context = 24, .workers = pool->workers};
    colibri_region region = {.size = UINT64_MAX};
    colibri_plan_result plan = {.struct_bytes = sizeof plan};
    colibri_platform platform = {.struct_bytes = sizeof platform, .pool = pool, .kernels = kernels};
    colibri_error error = {0};
    if (colibri_plan(image, &limits, &region, 1, &plan, &error) != COLIBRI_OK) stop(2, "no plan");
    region.size = plan.used[0];
    region.base = exact((size_t)region.size);
    if (colibri_init(&engine, image, &limits, &region, 1, &platform, &error) != COLIBRI_OK)
        stop(1, "init: %s", colibri_status_name(error.status));
    const uint32_t vocabulary = image->config.vocabulary;
    float *logits = (float *)(void *)exact(vocabulary * sizeof *logits);
    uint32_t crc = 0, tokens[12];
    for (uint32_t i = 0; i < 12; i++) tokens[i] = (i * 7919u + 1) % vocabulary;
    for (uint32_t step = 0; step < 5; step++) {
        colibri_batch batch = {.struct_bytes = sizeof batch, .count = step == 0 ? 8 : 1,
                               .tokens = step == 0 ? tokens : &tokens[7 + step],
                               .logits = logits, .logits_floats = vocabulary};
        if (colibri_infer(&engine, &batch, &error) != COLIBRI_OK)
            stop(1, "infer: %s", colibri_status_name(error.status));
        for (uint32_t v = 0; v < vocabulary; v++) crc = crc_u32(crc, bits_of(logits[v]));
    }
    free(logits);
    free(region.base);
    return crc;
}

static void test_infer(const char *path)
{
    size_t bytes;
    uint8_t *file = load_file(path, &bytes);
    colibri_storage storage;
    struct memory memory;
    static colibri_image image;
    memory_storage(&storage, &memory, file, bytes, 1, 0);
    if (colibri_image_open(&image, &storage, NULL, 0, NULL) != COLIBRI_OK) stop(2, "cannot open %s", path);
    for (uint32_t k = 0; kernel_table(k) != NULL; k++)
        for (uint32_t kind = 0; kind < 3; kind++)
            for (size_t i = 0; i < COUNTS; i++) {
                struct crew *c = hire(kind == 2, worker_counts[i], kind == 1 ? COLIBRI_POSIX_NO_SPIN : 0, 0);
                printf("%08x ", (unsigned)infer(&image, c->pool, kernel_table(k)));
                dismiss(c);
            }
    printf("\n");
    free(file);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "items") == 0) test_items();
    else if (strcmp(what, "environment") == 0) test_environment();
    else if (strcmp(what, "idle") == 0) test_idle();
    else if (strcmp(what, "options") == 0) test_options();
    else if (strcmp(what, "infer") == 0 && argc == 3) test_infer(argv[2]);
    else stop(2, "usage: pool items | environment | idle | options | infer IMAGE");
    return 0;
}
