/* SPDX-License-Identifier: Apache-2.0 */
/* A small program for an emulated CPU, which measures or checks one thing: words in, words out. Its globals start
 * as zeros.
 * emulator/colibri_emulator/bench_program.py builds and runs it. */
#ifndef COLIBRI_FIRMWARE_PROGRAM_H
#define COLIBRI_FIRMWARE_PROGRAM_H

#include <stdint.h>

#define COLIBRI_PROGRAM_ARGUMENTS 16u
#define COLIBRI_PROGRAM_RESULTS 64u

extern volatile uint32_t colibri_arguments[COLIBRI_PROGRAM_ARGUMENTS]; /* set before it starts */
extern volatile uint32_t colibri_results[COLIBRI_PROGRAM_RESULTS];     /* zeros when it starts */

void firmware_run(void); /* the program's own */

#endif
