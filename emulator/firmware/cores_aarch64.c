/* SPDX-License-Identifier: Apache-2.0 */
/* More than one core: switches the others on through PSCI and puts them to work in a pool
 * (sdk/c/ports/baremetal). They start at firmware_core_start in start_aarch64.S. */
#include "board.h"
#include "colibri_smp.h"
#include "psci_aarch64.h"

static colibri_smp_pool pool;

extern char firmware_core_start[];
_Noreturn void firmware_core_run(uint64_t worker);

/* Where a started core enters C: on its own stack, MMU, caches and FPU as on the first. */
_Noreturn void firmware_core_run(uint64_t worker)
{
    colibri_smp_pool_work(&pool, (uint32_t)worker);
    for (;;) {
        __asm__ volatile("wfi");
    }
}

const colibri_pool *firmware_pool(uint32_t workers)
{
    if (workers > colibri_board_cores || !colibri_smp_pool_init(&pool, workers)) {
        return 0;
    }
    for (uint32_t i = 1; i < workers; i++) {
        firmware_cores = i + 1u;
        firmware_paint_stack(i);
        if (colibri_psci_cpu_on(colibri_board_psci, colibri_psci_core(i),
                                (uint64_t)(uintptr_t)firmware_core_start, i) != 0) {
            return 0;
        }
    }
    while (colibri_smp_pool_present(&pool) < workers - 1u) {
        __asm__ volatile("wfe" ::: "memory"); /* each sends an event when it is there */
    }
    return &pool.interface;
}
