/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLIBRI_POSIX_STORAGE_H
#define COLIBRI_POSIX_STORAGE_H

#include "colibri_posix.h"

/* The file of that number when it is open and the range lies inside it, else NULL. */
const colibri_posix_file *colibri_file_of(const colibri_posix_file *image, uint32_t number, uint64_t offset,
                                          uint64_t bytes);

/* The storage's read: all bytes, through the page cache. */
int colibri_file_read(void *context, uint32_t number, uint64_t offset, void *destination, uint64_t bytes);

#endif
