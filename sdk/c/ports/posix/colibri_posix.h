/* SPDX-License-Identifier: Apache-2.0 */
/* What a POSIX system gives the runtime: files as storage, threads as a pool. This is the only part
 * of the C side that spawns threads or opens files, and only when it is asked to. */
#ifndef COLIBRI_POSIX_H
#define COLIBRI_POSIX_H

#include "colibri/image.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct colibri_posix_reader colibri_posix_reader;

/* An image file, and the companions beside it once colibri_image_open has asked for them. The files must not be
 * truncated or changed while they are open: a page of a mapped file that has gone is a SIGBUS. */
typedef struct colibri_posix_file {
    colibri_storage storage; /* pass its address to colibri_image_open */
    int descriptor;
    int error;               /* errno of the last failed open */
    const void *mapping;     /* the whole image, or NULL */
    void *reserved;          /* what close unmaps, and its length */
    uint64_t reserved_bytes;
    uint64_t own_bytes;      /* memory that holds a copy of the file */
    const char *reason;      /* why there is none although it was asked for */
    int mode;
    int direct;              /* a second descriptor, past the page cache, or -1 */
    colibri_posix_reader *reader; /* threads that read ahead, of all files of the image, or NULL */
    char *path;              /* companions are looked for in the folder of it, by the image's names for them */
    struct colibri_posix_file *companions[COLIBRI_MAX_COMPANIONS];
} colibri_posix_file;

enum {
    COLIBRI_POSIX_MAP = 0,   /* map the file; weights are used in place */
    COLIBRI_POSIX_READ = 1,  /* never map: every byte goes through pread */
    COLIBRI_POSIX_HUGE = 2   /* copy the file into huge pages (Linux); where that cannot be, map it */
};

/* 0, or -1 with error set (ENOENT, EISDIR, ...). The struct must not move while it is open. */
int colibri_posix_open(colibri_posix_file *file, const char *path, int mode);
void colibri_posix_close(colibri_posix_file *file);

/* How the memory of a file opened with COLIBRI_POSIX_HUGE lies. A CPU that reads weights from pages of
 * 4 KiB has to look up five hundred times as many addresses. What it costs: the whole file is read
 * before the open returns, and memory of its size belongs to this process, while mapped pages of a
 * file are the system's, which may drop them and read them again. */
typedef struct colibri_posix_pages {
    uint64_t bytes;      /* memory that holds a copy of the image; 0: the file is mapped */
    uint64_t huge_bytes; /* of these in huge pages now, as the kernel counts them */
    const char *reason;  /* why not all of it is, or why the file is mapped; NULL: all is well */
} colibri_posix_pages;
void colibri_posix_file_pages(const colibri_posix_file *file, colibri_posix_pages *pages);

/* Gives the storage of an open file its start and wait: a few threads that read experts while others compute
 * (weights STREAMED). Large records are read in pieces, several at once, which is what makes an SSD fast.
 * Before colibri_image_open or colibri_init; close ends the threads. One that still hangs in a read after the
 * time limit is left to the process, with its buffer. */
typedef struct colibri_posix_reader_options {
    uint32_t struct_bytes;
    uint32_t threads;     /* reads at once, 1 .. 64; 0: 4. Disks share their speed among reads, so with more
                           * of them the first record comes late, and all at once what is done with it */
    uint32_t piece_bytes; /* most bytes of one read, a multiple of 4096; 0: 2 MiB. A record is cut into as few
                           * pieces of equal size as this allows */
    uint32_t direct;      /* 1: past the page cache (Linux, O_DIRECT), so that a model's bytes are not in memory
                           * twice. Best with images whose alignment is 4096: what does not begin and end at
                           * a block passes through a buffer */
    uint32_t time_limit_ms; /* a read whose device does not answer for so long has failed, and read has the limit
                             * too; 0: reads take as long as the system lets them. With a limit all bytes pass
                             * through a buffer, so that what comes too late is written to nobody's memory */
} colibri_posix_reader_options;

/* 0, or an errno: EINVAL (a value out of range, or a reader is there already), ENOMEM, EAGAIN, or what the file
 * system says to O_DIRECT (EINVAL, too: it has none). */
int colibri_posix_read_ahead(colibri_posix_file *file, const colibri_posix_reader_options *options);

/* Threads for colibri_platform.pool. The thread that calls run works too, so a pool of n workers starts
 * n - 1, but no more than this process has CPUs for: more would only stand in each other's way. Each
 * has a contiguous stretch of the items, the same in every run of as many items, so that rows of a
 * matrix stay in its core's cache; who is done early helps the others.
 *
 * After a run the threads look for the next one for a moment, so that the runs of a forward pass start
 * without a system call, and then sleep: an idle pool takes no CPU time. They have the floating-point
 * environment of the thread that creates the pool (POSIX: it is inherited); create it in the one that
 * docs/numerics.md asks for. */
typedef struct colibri_posix_pool colibri_posix_pool;

#define COLIBRI_POSIX_NO_SPIN UINT32_MAX

typedef struct colibri_posix_pool_options {
    uint32_t struct_bytes;
    uint32_t workers;       /* 1 .. 64 */
    uint32_t spin_us;       /* how long a waiting thread looks before it sleeps. 0: 100, or none with
                             * more threads than CPUs; COLIBRI_POSIX_NO_SPIN: none */
    uint32_t pin;           /* 1: each started thread stays on a CPU of its own among those of the
                             * process, the first one left to the caller, who is not moved. Linux only */
    uint32_t oversubscribe; /* 1: workers - 1 threads, however few CPUs there are */
} colibri_posix_pool_options;

/* NULL with errno: EINVAL (a value out of range), ENOMEM or EAGAIN (memory or threads are missing),
 * ENOTSUP (pin is not to be had here). */
colibri_posix_pool *colibri_posix_pool_create_with(const colibri_posix_pool_options *options);

/* The same with nothing but the number of workers. */
colibri_posix_pool *colibri_posix_pool_create(uint32_t workers);

/* Ends the threads. NULL is allowed. Not during a run. */
void colibri_posix_pool_destroy(colibri_posix_pool *pool);

/* For colibri_platform.pool; lives as long as the pool. One run at a time, and none from a task. */
const colibri_pool *colibri_posix_pool_interface(const colibri_posix_pool *pool);

#ifdef __cplusplus
}
#endif
#endif
