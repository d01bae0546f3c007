/* SPDX-License-Identifier: Apache-2.0 */
/* A program as a Linux executable: arguments from the command line, results as one line of words. */
#include <stdio.h>
#include <stdlib.h>

#include "program.h"

volatile uint32_t colibri_arguments[COLIBRI_PROGRAM_ARGUMENTS];
volatile uint32_t colibri_results[COLIBRI_PROGRAM_RESULTS];

int main(int argc, char **argv)
{
    for (int i = 1; i < argc && i <= (int)COLIBRI_PROGRAM_ARGUMENTS; i++) {
        colibri_arguments[i - 1] = (uint32_t)strtoul(argv[i], NULL, 0);
    }
    firmware_run();
    for (uint32_t i = 0; i < COLIBRI_PROGRAM_RESULTS; i++) {
        printf("%s%u", i == 0 ? "" : " ", (unsigned)colibri_results[i]);
    }
    return putchar('\n') == '\n' ? 0 : 1;
}
