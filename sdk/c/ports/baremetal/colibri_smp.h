/* SPDX-License-Identifier: Apache-2.0 */
/* A pool for the cores of one chip without an operating system. The cores share cache-coherent memory
 * (on AArch64: Normal, inner shareable, MMU and caches on, on every core); this port has no start-up
 * code: emulator/firmware/cores_aarch64.c shows how secondary cores get here.
 *
 *   static colibri_smp_pool pool;
 *   core 0:  colibri_smp_pool_init(&pool, 4);
 *            ... starts the other cores ...
 *            platform.pool = &pool.interface;           up to 4 workers, however many cores came up
 *   core i:  colibri_smp_pool_work(&pool, i);           i = 1 .. 3, on its own stack
 *
 * Each core sets up its floating-point unit itself, as docs/numerics.md demands: round to nearest,
 * subnormals kept. Cores that wait are in WFE on Arm, which SEV ends; elsewhere in a loop with a pause.
 */
#ifndef COLIBRI_SMP_H
#define COLIBRI_SMP_H

#include "colibri/items.h"

#define COLIBRI_SMP_WORKERS 16u

typedef struct colibri_smp_pool {
    colibri_pool interface; /* for colibri_platform.pool */
    colibri_items items;
    colibri_stretch stretch[COLIBRI_SMP_WORKERS];
    _Alignas(COLIBRI_CACHE_LINE) atomic_uint round; /* counts runs */
    atomic_uint present;                            /* cores that have come to work */
    atomic_bool stop;
} colibri_smp_pool;

/* workers: 1 .. COLIBRI_SMP_WORKERS, the caller included. False for another number. */
bool colibri_smp_pool_init(colibri_smp_pool *pool, uint32_t workers);

/* What a core does: takes part in every run as worker 1 .. workers - 1 until the pool is stopped. */
void colibri_smp_pool_work(colibri_smp_pool *pool, uint32_t worker);

/* How many cores are at work besides the caller. Runs need none of them: what is missing, the
 * others do. */
uint32_t colibri_smp_pool_present(const colibri_smp_pool *pool);

/* Sends the cores home: colibri_smp_pool_work returns on each. Not during a run. */
void colibri_smp_pool_stop(colibri_smp_pool *pool);

#endif
