/* SPDX-License-Identifier: Apache-2.0 */
/* Memory in huge pages, where the system has them (Linux, transparent huge pages). */
#ifndef COLIBRI_POSIX_PAGES_H
#define COLIBRI_POSIX_PAGES_H

#include <stdint.h>

typedef struct colibri_huge {
    void *memory;          /* starts at a huge page; zeros, writable */
    uint64_t bytes;        /* whole huge pages */
    void *reserved;        /* what to unmap: the memory and addresses around it that stay empty, so */
    uint64_t reserved_bytes; /* that the kernel counts it apart from its neighbours */
} colibri_huge;

/* Room for `bytes` bytes; the kernel puts huge pages there as they are first touched. NULL, or why
 * there is none. */
const char *colibri_huge_take(uint64_t bytes, colibri_huge *huge);

/* Bytes of it that are in huge pages now; UINT64_MAX: the kernel does not tell. */
uint64_t colibri_huge_count(const colibri_huge *huge);

#endif
