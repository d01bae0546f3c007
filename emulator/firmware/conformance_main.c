/* SPDX-License-Identifier: Apache-2.0 */
/* The conformance test of one kernel table as a program (program.h). Argument: the level. Results: the status of
 * the call, then the words of colibri_conformance_result. */
#ifdef __linux__
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include <stdio.h>
#include <sys/mman.h>
#endif

#include "colibri/kernels.h"
#include "conformance.h"
#include "program.h"

extern const colibri_kernels COLIBRI_BOARD_KERNELS; /* may be one that kernels.h does not name */

_Static_assert(sizeof(colibri_conformance_result) / 4 < COLIBRI_PROGRAM_RESULTS, "one word more");

#ifdef __linux__
/* Each buffer of a case ends at a page that nobody may touch. */
enum { SLOTS = 16, SLOT_BYTES = 1 << 18, PAGE = 65536 };
static uint8_t *slots[SLOTS];
static uint32_t taken;

static void *exact(void *context, size_t bytes, size_t alignment)
{
    (void)context;
    if (taken == SLOTS || bytes > SLOT_BYTES) {
        return 0;
    }
    uint8_t **slot = &slots[taken++];
    if (*slot == 0) {
        void *memory = mmap(0, SLOT_BYTES + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED || mprotect((uint8_t *)memory + SLOT_BYTES, PAGE, PROT_NONE)) {
            return 0;
        }
        *slot = memory;
    }
    return (void *)(((uintptr_t)*slot + SLOT_BYTES - bytes) & ~(uintptr_t)(alignment - 1));
}

static void release(void *context)
{
    (void)context;
    taken = 0;
}

/* Should the table be stopped by such a page, the last line says behind which part. */
static void report(void *context, const colibri_conformance_result *part)
{
    const colibri_conformance_case *c = &part->first;
    (void)context;
    fprintf(stderr, "passed: operation %u type %u group %u order %u\n", (unsigned)c->operation,
            (unsigned)c->type, (unsigned)c->group, (unsigned)c->order);
}

#define MEMORY .exact = exact, .release = release, .report = report
#else
static uint8_t memory[COLIBRI_CONFORMANCE_FULL_BYTES] __attribute__((aligned(64)));
#define MEMORY .memory = memory, .bytes = sizeof memory
#endif

void firmware_run(void)
{
    colibri_conformance_result result;
    colibri_conformance setup = {.level = colibri_arguments[0], MEMORY};
    colibri_results[0] = colibri_conformance_run(&COLIBRI_BOARD_KERNELS, &setup, &result);
    const uint32_t *words = (const uint32_t *)(const void *)&result;
    for (uint32_t i = 0; i < sizeof result / 4; i++) {
        colibri_results[1 + i] = words[i];
    }
}
