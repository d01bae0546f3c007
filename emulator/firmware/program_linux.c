/* SPDX-License-Identifier: Apache-2.0 */
/* A program as a Linux executable: arguments from the command line, results on one line, words of eight hexadecimal
 * digits each. Reading and writing them takes the same instructions whatever their values, so that the difference of
 * two runs is the program's own. */
#include <stdio.h>

#include "program.h"

enum { DIGITS = 8 };

volatile uint32_t colibri_arguments[COLIBRI_PROGRAM_ARGUMENTS];
volatile uint32_t colibri_results[COLIBRI_PROGRAM_RESULTS];

static uint32_t word_of(const char *text)
{
    uint32_t word = 0;
    for (uint32_t i = 0; i < DIGITS && text[i] != 0; i++) {
        uint32_t c = (uint8_t)text[i];
        word = word << 4 | ((c & 15u) + (c >> 6) * 9u);
    }
    return word;
}

int main(int argc, char **argv)
{
    char line[COLIBRI_PROGRAM_RESULTS * (DIGITS + 1)];
    for (int i = 1; i < argc && i <= (int)COLIBRI_PROGRAM_ARGUMENTS; i++) {
        colibri_arguments[i - 1] = word_of(argv[i]);
    }
    firmware_run();
    for (uint32_t i = 0; i < sizeof line; i++) {
        uint32_t word = colibri_results[i / (DIGITS + 1)], digit = i % (DIGITS + 1);
        line[i] = digit == DIGITS ? ' ' : "0123456789abcdef"[word >> (28u - 4u * digit) & 15u];
    }
    line[sizeof line - 1] = '\n';
    return fwrite(line, 1, sizeof line, stdout) == sizeof line ? 0 : 1;
}
