/* SPDX-License-Identifier: Apache-2.0 */
/* Reads that overlap compute: threads that take pieces of the oldest read that has any left. One mutex guards
 * everything; it is held for a few instructions around reads of a megabyte or two. */
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

enum { BLOCK = 4096, BOUNCE = 1 << 18, WINDOW = 2 * COLIBRI_READS_UNDER_WAY, MAX_THREADS = 64 };

typedef struct read_request {
    int descriptor;
    uint64_t offset;
    char *destination;
    uint64_t bytes;
    uint64_t given;   /* bytes handed out to threads */
    uint64_t missing; /* bytes that are not there yet */
    uint64_t piece;   /* bytes that a thread takes, the last one's the rest */
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
    char *bounce;       /* BOUNCE bytes for each thread; NULL without O_DIRECT */
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
    uint64_t skip = offset % BLOCK;
    if (bounce == NULL || (skip == 0 && bytes % BLOCK == 0 && (uintptr_t)out % BLOCK == 0))
        return read_from(descriptor, out, bytes, bytes, offset);
    while (bytes > 0) {
        const uint64_t n = bytes < BOUNCE - skip ? bytes : BOUNCE - skip;
        const uint64_t whole = (skip + n + BLOCK - 1) / BLOCK * BLOCK;
        if (read_from(descriptor, bounce, whole, skip + n, offset - skip) != 0) return -1;
        memcpy(out, bounce + skip, (size_t)n);
        out += n;
        offset += n;
        bytes -= n;
        skip = 0;
    }
    return 0;
}

static void *thread_main(void *arg)
{
    colibri_posix_reader *r = arg;
    read_request *q;
    pthread_mutex_lock(&r->mutex);
    char *const bounce = r->bounce != NULL ? r->bounce + (size_t)r->running * BOUNCE : NULL;
    r->running++;
    while (q = oldest(r), q != NULL || !r->stop) {
        if (q == NULL) {
            pthread_cond_wait(&r->work, &r->mutex);
            continue;
        }
        const uint64_t at = q->given, left = q->bytes - at, n = left < q->piece ? left : q->piece;
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

/* As few pieces as the largest allows, all of a size: a small one left over would cost as much as a large one. */
static uint64_t piece_of(const colibri_posix_reader *r, uint64_t bytes)
{
    const uint64_t pieces = (bytes + r->piece - 1) / r->piece, each = (bytes + pieces - 1) / pieces;
    return (each + BLOCK - 1) / BLOCK * BLOCK;
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
        r->requests[i] = (read_request){descriptor, offset, destination, bytes, 0, bytes, piece_of(r, bytes),
                                        *ticket, 1, 0};
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

/* Long reads go the threads' way, too: past the page cache, several pieces at once. */
static int read_long(void *context, uint32_t number, uint64_t offset, void *destination, uint64_t bytes)
{
    uint32_t ticket;
    const colibri_posix_file *image = context;
    if (bytes > image->reader->piece && start(context, number, offset, destination, bytes, &ticket) == 0)
        return wait_for(context, ticket);
    return colibri_file_read(context, number, offset, destination, bytes);
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
    if (posix_memalign(&bounce, BLOCK, (size_t)threads * BOUNCE) != 0) return ENOMEM;
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
    o.piece_bytes = o.piece_bytes != 0 ? o.piece_bytes : 2u << 20;
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
    file->storage.read = read_long;
    file->storage.start = start;
    file->storage.wait = wait_for;
    return 0;
}
