/* SPDX-License-Identifier: Apache-2.0 */
/* The reader of ports/posix over files whose reads are cut, interrupted, fail, or do not come back; built with
 * ThreadSanitizer too.
 *   reader engines IMAGE SLOTS   engines in threads of their own, on files of their own and on one
 *   reader cut IMAGE SLOTS       reads that come in parts, are interrupted, fail, or end too early
 *   reader hang IMAGE SLOTS      reads that come back after they were given up
 *   reader close IMAGE SLOTS     a file that is closed meanwhile; calls on a closed one; options out of range
 * All of them give the logits of mapped weights, before and after what goes wrong. */
#define _GNU_SOURCE
#include "support.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "colibri_posix.h"

enum { TOKENS = 24, PROMPT = 11, LIMIT_MS = 100, ENGINES = 4 };

/* What becomes of the next calls of pread, by all threads. */
static struct {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    uint32_t after;   /* calls that nothing happens to */
    uint32_t count;   /* then so many, */
    enum { WHOLE, PARTS, EIO_ALWAYS, END_OF_FILE, HANG } how;
    uint32_t hanging; /* calls that hang */
    uint32_t round;   /* those of earlier rounds come back, with other bytes */
} disk = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

ssize_t __real_pread(int descriptor, void *buffer, size_t bytes, off_t offset);
ssize_t __real_pread64(int descriptor, void *buffer, size_t bytes, off_t offset);
ssize_t __wrap_pread(int descriptor, void *buffer, size_t bytes, off_t offset);
ssize_t __wrap_pread64(int descriptor, void *buffer, size_t bytes, off_t offset);

static ssize_t hang(void *buffer, size_t bytes)
{
    const uint32_t round = disk.round;
    disk.hanging++;
    pthread_cond_broadcast(&disk.changed);
    while (disk.round == round) pthread_cond_wait(&disk.changed, &disk.mutex);
    memset(buffer, 0xEE, bytes); /* whoever gets these computes something else */
    disk.hanging--;
    pthread_cond_broadcast(&disk.changed);
    return (ssize_t)bytes;
}

ssize_t __wrap_pread(int descriptor, void *buffer, size_t bytes, off_t offset)
{
    ssize_t got = -1;
    pthread_mutex_lock(&disk.mutex);
    const int hit = disk.after == 0 && disk.count != 0;
    disk.after -= disk.after != 0;
    disk.count -= (uint32_t)hit;
    const int how = hit ? (int)disk.how : WHOLE, interrupted = how == PARTS && disk.count % 3 == 0;
    if (how == HANG) got = hang(buffer, bytes);
    pthread_mutex_unlock(&disk.mutex);
    if (how == HANG) return got;
    errno = interrupted ? EINTR : EIO;
    if (how == EIO_ALWAYS || interrupted) return -1;
    if (how == END_OF_FILE) return 0;
    return __real_pread(descriptor, buffer, how == PARTS ? bytes / 3 + 1 : bytes, offset);
}

ssize_t __wrap_pread64(int descriptor, void *buffer, size_t bytes, off_t offset)
{
    return __wrap_pread(descriptor, buffer, bytes, offset);
}

static void fault(int how, uint32_t after, uint32_t count)
{
    pthread_mutex_lock(&disk.mutex);
    disk.after = after;
    disk.count = count;
    disk.how = how;
    pthread_mutex_unlock(&disk.mutex);
}

/* Lets what hangs come back, and waits until it has. */
static void release(void)
{
    pthread_mutex_lock(&disk.mutex);
    disk.round++;
    pthread_cond_broadcast(&disk.changed);
    while (disk.hanging != 0) pthread_cond_wait(&disk.changed, &disk.mutex);
    pthread_mutex_unlock(&disk.mutex);
    nanosleep(&(struct timespec){0, 5000000}, NULL); /* the reader's threads have the bytes now */
}

static uint32_t hanging(void)
{
    pthread_mutex_lock(&disk.mutex);
    const uint32_t n = disk.hanging;
    pthread_mutex_unlock(&disk.mutex);
    return n;
}

static const char *path;
static uint32_t slots;

struct reading {
    colibri_posix_file file;
    colibri_image image;
    uint8_t *meta;
};

struct running {
    colibri_engine engine;
    const colibri_image *image;
    uint8_t *memory;
    float *logits;
};

static void open_reading(struct reading *r, int mode, uint32_t threads, uint32_t piece, uint32_t limit_ms)
{
    const colibri_posix_reader_options options = {sizeof options, threads, piece, 0, limit_ms};
    colibri_error error = {0};
    r->meta = exact(1 << 20);
    if (colibri_posix_open(&r->file, path, mode) != 0) stop(2, "%s: %s", path, strerror(r->file.error));
    if (threads != 0) EXPECT(colibri_posix_read_ahead(&r->file, &options) == 0);
    if (colibri_image_open(&r->image, &r->file.storage, r->meta, 1 << 20, &error) != COLIBRI_OK)
        stop(2, "open: %s", colibri_status_name(error.status));
}

static void close_reading(struct reading *r)
{
    colibri_posix_close(&r->file);
    free(r->meta);
}

static void begin(struct running *e, const colibri_image *image, uint32_t weights)
{
    const colibri_limits limits = {.struct_bytes = sizeof limits, .sequences = 1, .context = TOKENS, .batch = 4,
                                   .weights = weights, .expert_slots = weights == COLIBRI_WEIGHTS_STREAMED ? slots : 0};
    colibri_region region = {.size = UINT64_MAX};
    colibri_plan_result plan;
    colibri_error error = {0};
    e->image = image;
    if (colibri_plan(image, &limits, &region, 1, &plan, &error) != COLIBRI_OK)
        stop(2, "plan: %s", colibri_status_name(error.status));
    e->memory = exact((size_t)plan.used[0]);
    e->logits = (float *)(void *)exact(image->config.vocabulary * sizeof *e->logits);
    region = (colibri_region){.base = e->memory, .size = plan.used[0]};
    if (colibri_init(&e->engine, image, &limits, &region, 1, NULL, &error) != COLIBRI_OK)
        stop(2, "init: %s", colibri_status_name(error.status));
}

static void end(struct running *e)
{
    free(e->memory);
    free(e->logits);
}

static colibri_status feed(struct running *e, uint32_t from, colibri_error *error)
{
    uint32_t ids[PROMPT], count = from == 0 ? PROMPT : 1;
    for (uint32_t i = 0; i < count; i++) ids[i] = (from + i) * 7919u % e->image->config.vocabulary;
    colibri_batch batch = {.struct_bytes = sizeof batch, .count = count, .tokens = ids, .logits = e->logits,
                           .logits_floats = e->image->config.vocabulary};
    return colibri_infer(&e->engine, &batch, error);
}

/* Checksum of all logits; failures: calls that failed and were repeated. */
static uint32_t run(struct running *e, uint32_t *failures)
{
    uint32_t crc = 0;
    EXPECT(colibri_reset(&e->engine, 0) == COLIBRI_OK);
    for (uint32_t done = 0; done < TOKENS;) {
        colibri_error error = {0};
        const colibri_status status = feed(e, done, &error);
        if (status != COLIBRI_OK) {
            EXPECT(status == COLIBRI_ERR_STORAGE && error.where < 0xFFFF0000u && error.need != 0);
            EXPECT(++*failures < 100);
            continue;
        }
        crc = colibri_crc32(crc, e->logits, e->image->config.vocabulary * sizeof *e->logits);
        done += done == 0 ? PROMPT : 1;
    }
    return crc;
}

static uint32_t expected(void)
{
    struct reading mapped;
    struct running e;
    uint32_t failures = 0;
    open_reading(&mapped, COLIBRI_POSIX_MAP, 0, 0, 0);
    begin(&e, &mapped.image, COLIBRI_WEIGHTS_MAPPED);
    const uint32_t crc = run(&e, &failures);
    EXPECT(failures == 0);
    end(&e);
    close_reading(&mapped);
    return crc;
}

static uint64_t retries(const struct running *e)
{
    colibri_expert_stats stats = {.struct_bytes = sizeof stats};
    EXPECT(colibri_expert_statistics(&e->engine, &stats) == COLIBRI_OK);
    return stats.retries;
}

/* An engine again and again, as its thread. */
struct seat {
    const colibri_image *image;
    uint32_t crc;
    uint32_t rounds;
};

static void *engine_main(void *arg)
{
    struct seat *seat = arg;
    for (uint32_t i = 0, failures = 0; i < seat->rounds; i++) {
        struct running e;
        begin(&e, seat->image, COLIBRI_WEIGHTS_STREAMED);
        EXPECT(run(&e, &failures) == seat->crc && failures == 0 && retries(&e) == 0);
        end(&e);
    }
    return NULL;
}

static void engines(uint32_t crc)
{
    static const uint32_t threads[] = {1, 2, 3, 8}, limits[] = {0, 60000};
    for (uint32_t i = 0; i < 16; i++) {
        struct reading files[ENGINES];
        struct seat seats[ENGINES];
        pthread_t thread[ENGINES];
        const uint32_t own = i % 2 != 0 ? ENGINES : 1, piece = i < 8 ? 4096 : 1u << 20;
        for (uint32_t f = 0; f < own; f++)
            open_reading(&files[f], COLIBRI_POSIX_READ, threads[i / 2 % 4], piece, limits[i / 8]);
        for (uint32_t t = 0; t < ENGINES; t++) {
            seats[t] = (struct seat){&files[t % own].image, crc, 3};
            EXPECT(pthread_create(&thread[t], NULL, engine_main, &seats[t]) == 0);
        }
        for (uint32_t t = 0; t < ENGINES; t++) (void)pthread_join(thread[t], NULL);
        for (uint32_t f = 0; f < own; f++) close_reading(&files[f]);
    }
}

static void cut(uint32_t crc)
{
    for (uint32_t threads = 0; threads < 6; threads += threads == 0 ? 1 : 4) {
        for (uint32_t limit = 0; limit <= 60000; limit += 60000) {
            struct reading r;
            struct running e;
            uint32_t failures = 0;
            open_reading(&r, COLIBRI_POSIX_READ, threads, 4096, limit);
            begin(&e, &r.image, COLIBRI_WEIGHTS_STREAMED);
            fault(PARTS, 0, UINT32_MAX);
            EXPECT(run(&e, &failures) == crc && failures == 0 && retries(&e) == 0);
            for (int how = EIO_ALWAYS; how <= END_OF_FILE; how++) {
                fault(how, 9, 1);
                EXPECT(run(&e, &failures) == crc && failures == 0 && retries(&e) == (uint64_t)(how - EIO_ALWAYS + 1));
            }
            fault(EIO_ALWAYS, 20, 60);
            EXPECT(run(&e, &failures) == crc && failures != 0);
            fault(WHOLE, 0, 0);
            end(&e);
            close_reading(&r);
        }
    }
}

static void hang_and_go_on(uint32_t crc)
{
    for (uint32_t threads = 4; threads <= 8; threads += 4) {
        struct reading r;
        struct running e;
        uint32_t failures = 0;
        open_reading(&r, COLIBRI_POSIX_READ, threads, 4096, LIMIT_MS);
        begin(&e, &r.image, COLIBRI_WEIGHTS_STREAMED);
        for (uint32_t after = 0; after < 40; after += 13) { /* one read: tried again, the slots used meanwhile */
            const uint64_t before = retries(&e);
            fault(HANG, after, 1);
            EXPECT(run(&e, &failures) == crc && retries(&e) > before); /* a busy machine may exceed the limit, too */
            EXPECT(hanging() == 1);
            release();
            EXPECT(run(&e, &failures) == crc);
        }
        colibri_error error = {0};
        EXPECT(colibri_reset(&e.engine, 0) == COLIBRI_OK);
        while (feed(&e, 0, &error) != COLIBRI_OK) EXPECT(error.status == COLIBRI_ERR_STORAGE);
        fault(HANG, 0, UINT32_MAX); /* every thread: what is read next is given up, and said */
        uint32_t token = PROMPT;
        while (token < TOKENS && feed(&e, token, &error) == COLIBRI_OK) token++;
        EXPECT(token < TOKENS && error.status == COLIBRI_ERR_STORAGE && error.need != 0);
        EXPECT(feed(&e, token, &error) == COLIBRI_ERR_STORAGE && hanging() != 0);
        uint8_t byte;
        EXPECT(r.file.storage.read(&r.file, 0, 0, &byte, 1) != 0); /* has the limit too */
        fault(WHOLE, 0, 0);
        release();
        EXPECT(run(&e, &failures) == crc);
        end(&e);
        close_reading(&r);
    }
}

static void closed(uint32_t crc)
{
    struct reading r;
    struct running e;
    uint32_t failures = 0, ticket = 0;
    uint8_t *bytes = exact(1 << 16);
    open_reading(&r, COLIBRI_POSIX_READ, 2, 4096, 60000);
    begin(&e, &r.image, COLIBRI_WEIGHTS_STREAMED);
    EXPECT(run(&e, &failures) == crc && failures == 0);
    end(&e);
    colibri_storage s = r.file.storage;
    EXPECT(s.wait(s.context, 123456) != 0 && s.start(s.context, 99, 0, bytes, 1, &ticket) != 0);
    EXPECT(s.start(s.context, 0, s.bytes - 3, bytes, 4, &ticket) != 0);
    EXPECT(s.start(s.context, 0, 0, bytes, 64, &ticket) == 0 && s.wait(s.context, ticket) == 0);
    EXPECT(s.wait(s.context, ticket) != 0); /* once */
    close_reading(&r);
    open_reading(&r, COLIBRI_POSIX_READ, 2, 4096, LIMIT_MS);
    s = r.file.storage;
    fault(HANG, 0, 1);
    EXPECT(s.start(s.context, 0, 0, bytes, 4096, &ticket) == 0);
    while (hanging() == 0) nanosleep(&(struct timespec){0, 1000000}, NULL);
    EXPECT(s.start(s.context, 0, 0, bytes + 4096, 99, &ticket) == 0); /* by another thread, or not at all */
    memset(bytes, 1, 4096);
    close_reading(&r); /* does not wait for what hangs ... */
    EXPECT(hanging() == 1);
    EXPECT(s.start(s.context, 0, 0, bytes, 64, &ticket) != 0 && s.wait(s.context, ticket) != 0);
    EXPECT(s.read(s.context, 0, 0, bytes, 64) != 0);
    release();
    for (uint32_t i = 0; i < 4096; i++) EXPECT(bytes[i] == 1); /* ... nor write what it brings */
    free(bytes);
    open_reading(&r, COLIBRI_POSIX_READ, 3, 4096, 0);
    const colibri_posix_reader_options again = {.struct_bytes = sizeof again};
    EXPECT(colibri_posix_read_ahead(&r.file, &again) == EINVAL);
    close_reading(&r);
    static const colibri_posix_reader_options wrong[] = {
        {sizeof *wrong, 65, 0, 0, 0}, {sizeof *wrong, 1, 4095, 0, 0}, {sizeof *wrong, 1, 0, 2, 0}};
    for (uint32_t i = 0; i < 3; i++) {
        colibri_posix_file file;
        EXPECT(colibri_posix_open(&file, path, COLIBRI_POSIX_READ) == 0);
        EXPECT(colibri_posix_read_ahead(&file, &wrong[i]) == EINVAL && file.reader == NULL);
        colibri_posix_close(&file);
    }
}

int main(int argc, char **argv)
{
    if (argc != 4) stop(2, "usage: reader engines|cut|hang|close IMAGE SLOTS");
    path = argv[2];
    slots = (uint32_t)strtoul(argv[3], NULL, 10);
    const uint32_t crc = expected();
    if (strcmp(argv[1], "engines") == 0) engines(crc);
    else if (strcmp(argv[1], "cut") == 0) cut(crc);
    else if (strcmp(argv[1], "hang") == 0) hang_and_go_on(crc);
    else if (strcmp(argv[1], "close") == 0) closed(crc);
    else stop(2, "what is %s?", argv[1]);
    puts("ok");
    return 0;
}
