/* SPDX-License-Identifier: Apache-2.0 */
/* A storage over the files of an image, in memory, that can fail at any of its reads. Reads that were begun
 * finish out of order: younger ones first, the one that is waited for last, and a destination holds no byte of
 * a file before that. It stops the program when a caller breaks the contract of colibri/platform.h. */
#ifndef FAULTY_STORAGE_H
#define FAULTY_STORAGE_H

#include "support.h"

enum fault {
    NONE,
    REFUSED, /* start does not begin it */
    FAILED,  /* EIO: nothing is written */
    SHORT,   /* half of it is */
    LATE,    /* all of it, but not before its own wait */
    NEVER,   /* the device hangs until the port gives it up: every read under way fails */
    CORRUPT, /* one bit is another */
    FAULTS
};

enum {
    MAX_UNDER_WAY = COLIBRI_READS_UNDER_WAY + 1, /* + one begun again */
    MAX_FILES = COLIBRI_MAX_COMPANIONS + 1
};

struct faulty_read {
    uint32_t file;
    uint64_t offset;
    uint8_t *destination;
    uint64_t bytes;
    enum fault fault;
    int given; /* its bytes have been written */
    int again; /* not the first read of a record that failed */
    int ended;
};

struct faulty_storage {
    colibri_storage storage; /* pass its address to colibri_image_open */
    const char *path;
    uint8_t *files[MAX_FILES];
    size_t sizes[MAX_FILES];
    const colibri_image *records; /* once set, only whole expert records may be read */

    uint32_t fail_at;    /* the n-th read from 0, ... */
    uint32_t fail_count; /* ... and further ones of the same place, this many in all */
    enum fault fault;
    uint32_t fail_file;
    uint64_t fail_offset;

    uint32_t reads;  /* begun so far */
    uint32_t failed; /* of these */
    uint64_t bytes;  /* of records that arrived as they should */
    struct faulty_read under_way[MAX_UNDER_WAY]; /* oldest first; tickets count from 0 */
    uint32_t first, end;
};

enum reading { OVERLAPPED, BLOCKING, MAPPED }; /* start, wait and read; read; start, wait and map */

/* Of a zeroed struct, or anew. Companions are loaded when they are asked for. */
void faulty_storage(struct faulty_storage *s, const char *path, enum reading how);

/* The next fault; reads are counted on. */
void set_fault(struct faulty_storage *s, enum fault fault, uint32_t at, uint32_t count);

/* Whether it fails no read. */
int harmless(const struct faulty_storage *s);

#endif
