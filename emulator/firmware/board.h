/* SPDX-License-Identifier: Apache-2.0 */
/* What the firmware knows of its board. board.c is generated from the board file by
 * emulator/colibri_emulator/linker.py, with the addresses that the linker script holds too. */
#ifndef COLIBRI_FIRMWARE_BOARD_H
#define COLIBRI_FIRMWARE_BOARD_H

#include <stdint.h>

#include "colibri/plan.h"
#include "colibri/platform.h"

typedef struct colibri_board_ram {
    uint64_t base;
    uint64_t size;
} colibri_board_ram;

extern const colibri_region colibri_board_regions[]; /* memory for the engine */
extern const uint32_t colibri_board_region_count;
extern const uint32_t colibri_board_profile;
extern const void *const colibri_board_model;
extern const uint64_t colibri_board_model_bytes;
extern float *const colibri_board_logits;
extern const uint32_t colibri_board_logits_floats;
extern const uint32_t colibri_board_cores; /* that the firmware can use; each has a stack */
extern const int colibri_board_psci;       /* COLIBRI_PSCI_HVC, COLIBRI_PSCI_SMC, or 0 */

/* Only in firmware that streams experts (COLIBRI_RUNNER_STREAMS). */
extern const uint32_t colibri_board_weights;      /* COLIBRI_WEIGHTS_STREAMED or _STREAMED_MAPPED */
extern void *const colibri_board_tables;          /* for header and tables of an image that is not mapped */
extern const uint32_t colibri_board_tables_bytes; /* 0: it is mapped */
extern void *const colibri_board_device;          /* registers of the block device, or NULL */

/* Everything that behaves like memory, flash included: the MMU maps it as Normal. */
extern const colibri_board_ram colibri_board_memory[];
extern const uint32_t colibri_board_memory_count;

/* From the linker script. */
extern uint32_t __stack_bottom[], __stack_top[];
extern uint32_t __core_stacks[]; /* one as large for each further core, ending at __stack_bottom */

void firmware_start(void);                    /* start-up code -> C */
void firmware_run(void);                      /* the runner application */
_Noreturn void colibri_done(void);           /* the end; an emulator stops here */

/* A pool of this many cores, the calling one included; NULL where they are not to be had. */
const colibri_pool *firmware_pool(uint32_t workers);
extern uint32_t firmware_cores;           /* switched on so far, the first included */
void firmware_paint_stack(uint32_t core); /* of a core that does not run yet: 1 .. */

_Noreturn void firmware_fault(uintptr_t cause, uintptr_t address, uintptr_t pc);

#endif
