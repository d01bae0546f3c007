/* SPDX-License-Identifier: Apache-2.0 */
/* Reads that overlap compute: threads that take pieces of the oldest read that has any left. One mutex guards
 * everything; it is held for a few instructions around reads of a megabyte. */
#define _GNU_SOURCE /* O_DIRECT */
#define _FILE_OFFSET_BITS 64

#include "reader.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "storage.h"

enum { BLOCK = 4096, WINDOW = 2 * COLIBRI_READS_UNDER_WAY, MAX_THREADS = 64 };

typedef struct read_request {
    int descriptor;
    uint64_t offset;
    char *destination;
    uint64_t bytes;
    uint64_t given;   /* bytes handed out to threads */
    uint64_t missing; /* bytes that are not there yet */
    uint32_t ticket;
    int busy;         /* until it has been waited for */
    int failed;
} read_request;

struct colibri_posix_reader {
    uint32_t piece;
    uint32_t threads;
    uint32_t next;      /* ticket */
    int stop;
    uint32_t running;   /* threads that have come up */
    char *bounce;       /* a piece and two blocks for each thread; NULL without O_DIRECT */
    pthread_mutex_t mutex;
    pthread_cond_t work;
    pthread_cond_t done;
    read_request requests[WINDOW];
    pthread_t thread[MAX_THREADS];
};

/* The oldest request that still has bytes to hand out. */
static read_request *oldest(colibri_posix_reader *r)
{
    read_request *found = NULL;
    for (uint32_t i = 0; i < WINDOW; i++) {
        read_request *q = &r->requests[i];
        if (q->busy && q->given < q->bytes && (found == NULL || (int32_t)(q->ticket - found->ticket) < 0)) found = q;
    }
    return found;
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

/* O_DIRECT moves whole blocks between aligned places; `bounce` takes what does not begin or end at one. */
static int read_piece(int descriptor, char *out, uint64_t bytes, uint64_t offset, char *bounce)
{
    const uint64_t skip = offset % BLOCK, whole = (skip + bytes + BLOCK - 1) / BLOCK * BLOCK;
    if (bounce == NULL || (whole == bytes && (uintptr_t)out % BLOCK == 0))
        return read_from(descriptor, out, bytes, bytes, offset);
    if (read_from(descriptor, bounce, whole, skip + bytes, offset - skip) != 0) return -1;
    memcpy(out, bounce + skip, (size_t)bytes);
    return 0;
}

static uint64_t bounce_bytes(const colibri_posix_reader *r)
{
    return (uint64_t)r->piece + 2 * BLOCK;
}

static void *thread_main(void *arg)
{
    colibri_posix_reader *r = arg;
    read_request *q;
    pthread_mutex_lock(&r->mutex);
    char *const bounce = r->bounce != NULL ? r->bounce + r->running * bounce_bytes(r) : NULL;
    r->running++;
    while (q = oldest(r), q != NULL || !r->stop) {
        if (q == NULL) {
            pthread_cond_wait(&r->work, &r->mutex);
            continue;
        }
        const uint64_t at = q->given, left = q->bytes - at, n = left < r->piece ? left : r->piece;
        q->given += n;
        pthread_mutex_unlock(&r->mutex);
        const int failed = read_piece(q->descriptor, q->destination + at, n, q->offset + at, bounce);
        pthread_mutex_lock(&r->mutex);
        q->failed |= failed;
        q->missing -= n;
        if (q->missing == 0) pthread_cond_broadcast(&r->done);
    }
    pthread_mutex_unlock(&r->mutex);
    return NULL;
}

static int start(void *context, uint32_t number, uint64_t offset, void *destination, uint64_t bytes, uint32_t *ticket)
{
    const colibri_posix_file *image = context, *file = colibri_file_of(image, number, offset, bytes);
    colibri_posix_reader *r = image->reader;
    if (file == NULL || bytes == 0) return -1;
    const int descriptor = r->bounce != NULL ? file->direct : file->descriptor;
    pthread_mutex_lock(&r->mutex);
    uint32_t i = 0;
    while (i < WINDOW && r->requests[i].busy) i++;
    if (i < WINDOW) {
        *ticket = r->next++;
        r->requests[i] = (read_request){descriptor, offset, destination, bytes, 0, bytes, *ticket, 1, 0};
        pthread_cond_broadcast(&r->work);
    }
    pthread_mutex_unlock(&r->mutex);
    return i < WINDOW ? 0 : -1;
}

static int wait_for(void *context, uint32_t ticket)
{
    colibri_posix_reader *r = ((const colibri_posix_file *)context)->reader;
    int failed = -1;
    pthread_mutex_lock(&r->mutex);
    for (uint32_t i = 0; i < WINDOW; i++) {
        read_request *q = &r->requests[i];
        if (!q->busy || q->ticket != ticket) continue;
        while (q->missing != 0) pthread_cond_wait(&r->done, &r->mutex);
        failed = q->failed;
        q->busy = 0;
        break;
    }
    pthread_mutex_unlock(&r->mutex);
    return failed;
}

/* A second descriptor of the same file; errno when the file system has no O_DIRECT. */
int colibri_reader_add(const colibri_posix_reader *r, colibri_posix_file *file)
{
    if (r == NULL || r->bounce == NULL || file->direct >= 0) return 0;
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
static int open_direct(colibri_posix_reader *r, colibri_posix_file *image, uint32_t threads)
{
    void *bounce = NULL;
    if (posix_memalign(&bounce, BLOCK, (size_t)(bounce_bytes(r) * threads)) != 0) return ENOMEM;
    r->bounce = bounce;
    int error = colibri_reader_add(r, image);
    for (uint32_t i = 0; error == 0 && i < COLIBRI_MAX_COMPANIONS; i++)
        if (image->companions[i] != NULL) error = colibri_reader_add(r, image->companions[i]);
    return error;
}

void colibri_reader_end(colibri_posix_reader *r)
{
    if (r == NULL) return;
    pthread_mutex_lock(&r->mutex);
    r->stop = 1;
    pthread_cond_broadcast(&r->work);
    pthread_mutex_unlock(&r->mutex);
    for (uint32_t i = 0; i < r->threads; i++) (void)pthread_join(r->thread[i], NULL);
    (void)pthread_mutex_destroy(&r->mutex);
    (void)pthread_cond_destroy(&r->work);
    (void)pthread_cond_destroy(&r->done);
    free(r->bounce);
    free(r);
}

int colibri_posix_read_ahead(colibri_posix_file *file, const colibri_posix_reader_options *options)
{
    colibri_posix_reader_options o = {0};
    memcpy(&o, options, options->struct_bytes < sizeof o ? options->struct_bytes : sizeof o);
    o.threads = o.threads != 0 ? o.threads : 4;
    o.piece_bytes = o.piece_bytes != 0 ? o.piece_bytes : 1u << 20;
    if (file->reader != NULL || o.threads > MAX_THREADS || o.piece_bytes % BLOCK != 0 || o.direct > 1) return EINVAL;
    colibri_posix_reader *r = calloc(1, sizeof *r);
    if (r == NULL) return ENOMEM;
    r->piece = o.piece_bytes;
    (void)pthread_mutex_init(&r->mutex, NULL);
    (void)pthread_cond_init(&r->work, NULL);
    (void)pthread_cond_init(&r->done, NULL);
    int error = o.direct ? open_direct(r, file, o.threads) : 0;
    for (; error == 0 && r->threads < o.threads; r->threads += error == 0)
        error = pthread_create(&r->thread[r->threads], NULL, thread_main, r);
    if (error != 0) {
        colibri_reader_end(r);
        return error;
    }
    file->reader = r;
    file->storage.start = start;
    file->storage.wait = wait_for;
    return 0;
}
