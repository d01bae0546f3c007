/* SPDX-License-Identifier: Apache-2.0 */
/* The words of a program on bare metal. The arguments are in memory at reset, so they lie where start-up does
 * not clear. */
#include "program.h"

__attribute__((section(".mailbox"), used)) volatile uint32_t
    colibri_arguments[COLIBRI_PROGRAM_ARGUMENTS];
__attribute__((used)) volatile uint32_t colibri_results[COLIBRI_PROGRAM_RESULTS];
