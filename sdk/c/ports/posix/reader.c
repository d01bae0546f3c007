/* SPDX-License-Identifier: Apache-2.0 */
/* Reads that overlap compute: threads that take pieces of the oldest read that has any left. One mutex guards
 * everything; it is held for a few instructions around reads of a megabyte or two.
 *
 * No system takes a read back that its device does not answer: it writes whenever it likes. With a time limit
 * threads read into memory of their own and copy what arrives in time, so that a read can be given up. */
#define _GNU_SOURCE /* O_DIRECT */
#define _FILE_OFFSET_BITS 64

#include "reader.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "storage.h"

enum { BLOCK = 4096, BOUNCED = 1 << 18, MAX_THREADS = 64 };

/* Until it has been waited for; oldest first. */
typedef struct read_request {
    struct read_request *next;
    int descriptor;
    uint64_t offset;
    char *destination;
    uint64_t bytes;
    uint64_t given;   /* bytes handed out to threads */
    uint64_t missing; /* bytes that are not there yet */
    uint64_t piece;   /* bytes that a thread takes, the last one's the rest */
    uint64_t moved;   /* when a piece of it was last handed out or came back, in ms */
    uint32_t ticket;
    uint32_t copying; /* threads that write to the destination */
    int failed;
    int given_up;     /* nobody writes to the destination any more */
} read_request;

struct colibri_posix_reader {
    uint32_t piece;
    uint32_t threads;
    uint32_t limit_ms;  /* 0: none */
    int direct;
    uint32_t ticket;    /* the next */
    int stop;
    int left;           /* the file was closed without the threads that hang: the last one tidies up */
    uint32_t come_up;   /* threads, ... */
    uint32_t running;   /* ... which have not ended */
    uint64_t moved;     /* the latest of any request */
    char *bounce;       /* a piece and two blocks for each thread; NULL when nothing passes through it */
    pthread_mutex_t mutex;
    pthread_cond_t work;
    pthread_cond_t done;
    read_request *requests;
    pthread_t thread[MAX_THREADS];
};

static uint64_t now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000u + (uint64_t)t.tv_nsec / 1000000u;
}

/* Waits for `done`; with a limit for a moment only, so that no change of the system's clock can hold it up. */
static void wait_done(colibri_posix_reader *r)
{
    struct timespec t;
    if (r->limit_ms == 0) {
        (void)pthread_cond_wait(&r->done, &r->mutex);
        return;
    }
    (void)clock_gettime(CLOCK_REALTIME, &t);
    t.tv_nsec += 20000000;
    t.tv_sec += t.tv_nsec >= 1000000000;
    t.tv_nsec %= 1000000000;
    (void)pthread_cond_timedwait(&r->done, &r->mutex, &t);
}

/* The oldest request that still has bytes to hand out. */
static read_request *oldest(const colibri_posix_reader *r)
{
    read_request *q = r->requests;
    while (q != NULL && (q->given == q->bytes || q->given_up)) q = q->next;
    return q;
}

static read_request *find(const colibri_posix_reader *r, uint32_t ticket)
{
    read_request *q = r->requests;
    while (q != NULL && q->ticket != ticket) q = q->next;
    return q;
}

/* At least `least` bytes, up to `bytes`: a block at the end of a file may be cut. */
static int read_from(int descriptor, char *out, uint64_t bytes, uint64_t least, uint64_t offset)
{
    uint64_t done = 0;
    while (done < least) {
        const ssize_t got = pread(descriptor, out + done, (size_t)(bytes - done), (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return -1;
        done += (uint64_t)got;
    }
    return 0;
}

/* O_DIRECT moves whole blocks between aligned places; `bounce` takes what does not begin or end at one, and
 * what may come too late. *from: where the bytes are, NULL when they could not be read. */
static void read_piece(const colibri_posix_reader *r, const read_request *q, uint64_t at, uint64_t bytes, char *bounce,
                       const char **from)
{
    const uint64_t offset = q->offset + at, skip = offset % BLOCK;
    const uint64_t whole = (skip + bytes + BLOCK - 1) / BLOCK * BLOCK;
    char *const out = q->destination + at;
    const int in_place = !r->direct || (whole == bytes && (uintptr_t)out % BLOCK == 0);
    int failed;
    if (in_place && r->limit_ms == 0) {
        failed = read_from(q->descriptor, out, bytes, bytes, offset);
        *from = out;
    } else {
        failed = read_from(q->descriptor, bounce, whole, skip + bytes, offset - skip);
        *from = bounce + skip;
    }
    if (failed) *from = NULL;
}

static uint64_t bounce_bytes(const colibri_posix_reader *r)
{
    return (uint64_t)r->piece + 2 * BLOCK;
}

/* A piece has come back; its request may have been given up meanwhile. */
static void deliver(colibri_posix_reader *r, uint32_t ticket, uint64_t at, uint64_t bytes, const char *from)
{
    read_request *const q = find(r, ticket);
    r->moved = now_ms();
    if (q == NULL || q->given_up) return;
    if (from != NULL && from != q->destination + at) {
        q->copying++;
        pthread_mutex_unlock(&r->mutex);
        memcpy(q->destination + at, from, (size_t)bytes);
        pthread_mutex_lock(&r->mutex);
        q->copying--;
    }
    q->moved = r->moved;
    q->failed |= from == NULL;
    q->missing -= bytes;
    if (q->missing == 0 || q->given_up) pthread_cond_broadcast(&r->done);
}

static void destroy(colibri_posix_reader *r)
{
    (void)pthread_mutex_destroy(&r->mutex);
    (void)pthread_cond_destroy(&r->work);
    (void)pthread_cond_destroy(&r->done);
    while (r->requests != NULL) {
        read_request *const q = r->requests;
        r->requests = q->next;
        free(q);
    }
    free(r->bounce);
    free(r);
}

static void *thread_main(void *arg)
{
    colibri_posix_reader *r = arg;
    read_request *q;
    pthread_mutex_lock(&r->mutex);
    char *const bounce = r->bounce != NULL ? r->bounce + r->come_up++ * bounce_bytes(r) : NULL;
    while (q = oldest(r), q != NULL || !r->stop) {
        if (q == NULL) {
            pthread_cond_wait(&r->work, &r->mutex);
            continue;
        }
        const uint64_t at = q->given, left = q->bytes - at, n = left < q->piece ? left : q->piece;
        const char *from;
        q->given += n;
        q->moved = r->moved = now_ms();
        const read_request copy = *q;
        pthread_mutex_unlock(&r->mutex);
        read_piece(r, &copy, at, n, bounce, &from);
        pthread_mutex_lock(&r->mutex);
        deliver(r, copy.ticket, at, n, from);
    }
    const int last = --r->running == 0 && r->left;
    pthread_cond_broadcast(&r->done);
    pthread_mutex_unlock(&r->mutex);
    if (last) destroy(r);
    return NULL;
}

/* As few pieces as the largest allows, all of a size: a small one left over would cost as much as a large one. What
 * passes through `bounce` for its place alone goes in small ones, which use little of it. */
static uint64_t piece_of(const colibri_posix_reader *r, uint64_t offset, const void *destination, uint64_t bytes)
{
    const int bounced = r->direct && (offset | bytes | (uintptr_t)destination) % BLOCK != 0;
    const uint64_t most = bounced && r->piece > BOUNCED ? BOUNCED : r->piece;
    const uint64_t pieces = (bytes + most - 1) / most, each = (bytes + pieces - 1) / pieces;
    return (each + BLOCK - 1) / BLOCK * BLOCK;
}

static int start(void *context, uint32_t number, uint64_t offset, void *destination, uint64_t bytes, uint32_t *ticket)
{
    const colibri_posix_file *image = context, *file = colibri_file_of(image, number, offset, bytes);
    colibri_posix_reader *r = image->reader;
    read_request *const q = file != NULL && bytes != 0 ? calloc(1, sizeof *q) : NULL;
    if (q == NULL) return -1;
    *q = (read_request){.descriptor = r->direct ? file->direct : file->descriptor, .offset = offset,
                        .destination = destination, .bytes = bytes, .missing = bytes,
                        .piece = piece_of(r, offset, destination, bytes), .moved = now_ms()};
    pthread_mutex_lock(&r->mutex);
    read_request **end = &r->requests;
    while (*end != NULL) end = &(*end)->next;
    *end = q;
    *ticket = q->ticket = r->ticket++;
    pthread_cond_broadcast(&r->work);
    pthread_mutex_unlock(&r->mutex);
    return 0;
}

/* Until when a request that does not move on may take. One that waits for a thread moves on with the others. */
static uint64_t deadline(const colibri_posix_reader *r, const read_request *q)
{
    const int in_hand = q->given + q->missing != q->bytes;
    return (in_hand || q->moved > r->moved ? q->moved : r->moved) + r->limit_ms;
}

static int wait_for(void *context, uint32_t ticket)
{
    colibri_posix_reader *r = ((const colibri_posix_file *)context)->reader;
    if (r == NULL) return -1;
    pthread_mutex_lock(&r->mutex);
    read_request *const q = find(r, ticket);
    while (q != NULL && q->missing != 0 && !q->given_up) {
        wait_done(r);
        q->given_up = r->limit_ms != 0 && q->missing != 0 && now_ms() >= deadline(r, q);
    }
    while (q != NULL && q->copying != 0) (void)pthread_cond_wait(&r->done, &r->mutex);
    const int failed = q == NULL || q->failed || q->given_up;
    read_request **at = &r->requests;
    while (*at != q) at = &(*at)->next; /* NULL is its end */
    if (q != NULL) *at = q->next;
    pthread_mutex_unlock(&r->mutex);
    free(q);
    return failed ? -1 : 0;
}

/* Long reads go the threads' way, too: past the page cache, several pieces at once. So does every read with a time
 * limit. */
static int read_through(void *context, uint32_t number, uint64_t offset, void *destination, uint64_t bytes)
{
    uint32_t ticket;
    const colibri_posix_reader *r = ((const colibri_posix_file *)context)->reader;
    if (r == NULL || bytes == 0 || (r->limit_ms == 0 && bytes <= r->piece))
        return colibri_file_read(context, number, offset, destination, bytes);
    if (start(context, number, offset, destination, bytes, &ticket) != 0) return -1;
    return wait_for(context, ticket);
}

/* A second descriptor of the same file; errno when the file system has no O_DIRECT. */
int colibri_reader_add(const colibri_posix_reader *r, colibri_posix_file *file)
{
    if (r == NULL || !r->direct || file->direct >= 0) return 0;
#ifdef O_DIRECT
    char path[32];
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", file->descriptor);
    file->direct = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    return file->direct >= 0 ? 0 : errno;
#else
    return EINVAL;
#endif
}

/* Of every file that is open; companions that come later are added then. */
static int open_direct(const colibri_posix_reader *r, colibri_posix_file *image)
{
    int error = colibri_reader_add(r, image);
    for (uint32_t i = 0; error == 0 && i < COLIBRI_MAX_COMPANIONS; i++)
        if (image->companions[i] != NULL) error = colibri_reader_add(r, image->companions[i]);
    return error;
}

static int make_bounce(colibri_posix_reader *r, uint32_t threads)
{
    void *bounce = NULL;
    if (!r->direct && r->limit_ms == 0) return 0;
    if (posix_memalign(&bounce, BLOCK, (size_t)(bounce_bytes(r) * threads)) != 0) return ENOMEM;
    r->bounce = bounce;
    return 0;
}

void colibri_reader_end(colibri_posix_reader *r)
{
    if (r == NULL) return;
    const uint64_t until = now_ms() + r->limit_ms;
    pthread_mutex_lock(&r->mutex);
    r->stop = 1;
    for (read_request *q = r->requests; q != NULL; q = q->next) q->given_up = 1;
    pthread_cond_broadcast(&r->work);
    while (r->running != 0 && (r->limit_ms == 0 || now_ms() < until)) wait_done(r);
    const int left = r->left = r->running != 0;
    for (uint32_t i = 0; left && i < r->threads; i++) (void)pthread_detach(r->thread[i]);
    pthread_mutex_unlock(&r->mutex);
    if (left) return;
    for (uint32_t i = 0; i < r->threads; i++) (void)pthread_join(r->thread[i], NULL);
    destroy(r);
}

/* 0 or an errno. */
static int start_threads(colibri_posix_reader *r, uint32_t threads)
{
    int error = 0;
    pthread_mutex_lock(&r->mutex);
    for (; error == 0 && r->threads < threads; r->threads += error == 0)
        error = pthread_create(&r->thread[r->threads], NULL, thread_main, r);
    r->running = r->threads;
    pthread_mutex_unlock(&r->mutex);
    return error;
}

int colibri_posix_read_ahead(colibri_posix_file *file, const colibri_posix_reader_options *options)
{
    colibri_posix_reader_options o = {0};
    memcpy(&o, options, options->struct_bytes < sizeof o ? options->struct_bytes : sizeof o);
    o.threads = o.threads != 0 ? o.threads : 4;
    o.piece_bytes = o.piece_bytes != 0 ? o.piece_bytes : 2u << 20;
    if (file->reader != NULL || o.threads > MAX_THREADS || o.piece_bytes % BLOCK != 0 || o.direct > 1) return EINVAL;
    colibri_posix_reader *r = calloc(1, sizeof *r);
    if (r == NULL) return ENOMEM;
    r->piece = o.piece_bytes;
    r->limit_ms = o.time_limit_ms;
    r->direct = o.direct != 0;
    (void)pthread_mutex_init(&r->mutex, NULL);
    (void)pthread_cond_init(&r->work, NULL);
    (void)pthread_cond_init(&r->done, NULL);
    int error = make_bounce(r, o.threads);
    error = error == 0 && o.direct ? open_direct(r, file) : error;
    error = error == 0 ? start_threads(r, o.threads) : error;
    if (error != 0) {
        colibri_reader_end(r);
        return error;
    }
    file->reader = r;
    file->storage.start = start;
    file->storage.wait = wait_for;
    file->storage.read = read_through;
    return 0;
}
