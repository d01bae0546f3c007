/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLIBRI_FAIL_H
#define COLIBRI_FAIL_H

#include <stddef.h>

#include "colibri/status.h"

/* Fills error, when there is one, and returns status. */
colibri_status colibri_fail(colibri_error *error, colibri_status status, uint32_t where,
                            uint64_t have, uint64_t need);

/* Where of a failed read that was not of an expert's record; with the file's number in the low bits. */
#define COLIBRI_NO_EXPERT 0xFFFF0000u

#endif
