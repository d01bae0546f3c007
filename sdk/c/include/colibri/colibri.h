/* SPDX-License-Identifier: Apache-2.0 */
/* Colibri: Mixture-of-Experts language models on small boards.
 *
 *   colibri_image_open -> colibri_plan -> colibri_init -> colibri_infer -> colibri_sample
 *
 * Conventions, said once:
 * - The library never allocates, spawns, prints, exits or keeps writable globals. It needs memcpy,
 *   memmove, memset and memcmp.
 * - Every struct is the caller's. Structs that may grow start with struct_bytes = sizeof(struct).
 * - Pointers must not be NULL unless a comment says so; `error` may always be NULL.
 * - Sizes are bytes unless a name says otherwise; all file offsets are 64-bit.
 * - Any bytes given as an image are refused with a status or handled; weights are trusted only after
 *   colibri_verify (SECURITY.md).
 * - The same image and tokens give the same bits on every CPU (docs/numerics.md). */
#ifndef COLIBRI_COLIBRI_H
#define COLIBRI_COLIBRI_H

#include "colibri/backend.h"
#include "colibri/engine.h"
#include "colibri/image.h"
#include "colibri/kernels.h"
#include "colibri/plan.h"
#include "colibri/platform.h"
#include "colibri/status.h"

#endif
