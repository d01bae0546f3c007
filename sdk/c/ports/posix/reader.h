/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLIBRI_READER_H
#define COLIBRI_READER_H

#include "colibri_posix.h"

/* Makes ready to read from one more file of the image: 0 or an errno. NULL, no reader, is allowed. */
int colibri_reader_add(const struct colibri_posix_reader *reader, colibri_posix_file *file);

/* Waits for the reads under way and ends the threads. NULL is allowed. */
void colibri_reader_end(struct colibri_posix_reader *reader);

#endif
