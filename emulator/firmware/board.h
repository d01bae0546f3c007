/* SPDX-License-Identifier: Apache-2.0 */
/* What the firmware knows of its board. board.c is generated from the board file by
 * emulator/colibri_emulator/linker.py, with the addresses that the linker script holds too. */
#ifndef COLIBRI_FIRMWARE_BOARD_H
#define COLIBRI_FIRMWARE_BOARD_H

#include <stdint.h>

#include "colibri/plan.h"

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

/* Everything that behaves like memory, flash included: the MMU maps it as Normal. */
extern const colibri_board_ram colibri_board_memory[];
extern const uint32_t colibri_board_memory_count;

/* From the linker script. */
extern uint32_t __stack_bottom[], __stack_top[];

void firmware_start(void);                    /* start-up code -> C */
void firmware_run(void);                      /* the runner application */
_Noreturn void colibri_done(void);           /* the end; an emulator stops here */
_Noreturn void firmware_fault(uintptr_t cause, uintptr_t address, uintptr_t pc);

#endif
