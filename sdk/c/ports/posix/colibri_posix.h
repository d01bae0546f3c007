/* SPDX-License-Identifier: Apache-2.0 */
/* What a POSIX system gives the runtime: files as storage, threads as a pool. This is the only part
 * of the C side that spawns threads or opens files, and only when it is asked to. */
#ifndef COLIBRI_POSIX_H
#define COLIBRI_POSIX_H

#include "colibri/platform.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An image file. The file must not be truncated or changed while it is open: a page of a mapped
 * file that has gone is a SIGBUS. */
typedef struct colibri_posix_file {
    colibri_storage storage; /* pass its address to colibri_image_open */
    int descriptor;
    int error;               /* errno of the last failed open */
    void *mapping;           /* whole file, or NULL */
} colibri_posix_file;

enum {
    COLIBRI_POSIX_MAP = 0,   /* map the file; weights are used in place */
    COLIBRI_POSIX_READ = 1   /* never map: every byte goes through pread */
};

/* 0, or -1 with error set (ENOENT, EISDIR, ...). The struct must not move while it is open. */
int colibri_posix_open(colibri_posix_file *file, const char *path, int mode);
void colibri_posix_close(colibri_posix_file *file);

/* Threads that sleep between calls. The thread that calls run is worker 0, so `workers` threads
 * work and workers - 1 are started. Items are handed out in contiguous stretches of equal length,
 * always to the same worker: rows of a matrix stay in that core's cache. */
typedef struct colibri_posix_pool colibri_posix_pool;

/* NULL when memory or threads are missing. workers: 1 .. 64. */
colibri_posix_pool *colibri_posix_pool_create(uint32_t workers);
void colibri_posix_pool_destroy(colibri_posix_pool *pool);

/* For colibri_platform.pool; lives as long as the pool. One run at a time. */
const colibri_pool *colibri_posix_pool_interface(const colibri_posix_pool *pool);

#ifdef __cplusplus
}
#endif
#endif
