/* SPDX-License-Identifier: Apache-2.0 */
/* What the cases share: memory, numbers, comparison. A case takes its inputs and outputs, runs the reference into
 * `want` and the table into `got`, and calls colibri_case_end. */
#ifndef COLIBRI_CONFORMANCE_RUN_H
#define COLIBRI_CONFORMANCE_RUN_H

#include "conformance.h"

enum { COLIBRI_CASE_INPUTS = 10, COLIBRI_CASE_OUTPUTS = 2 };

/* Classes of numbers. Those from SPECIAL on hold infinities and NaN. */
enum { NUMBERS_PLAIN, NUMBERS_TIES, NUMBERS_SUBNORMAL, NUMBERS_ANY_EXPONENT, NUMBERS_HUGE, NUMBERS_EQUAL,
       NUMBERS_SMALL, NUMBERS_ZEROS, NUMBERS_NEAR_OVERFLOW, NUMBERS_SPECIAL, NUMBERS_CLASSES };

typedef struct case_input {
    const uint8_t *data;
    uint32_t bytes;
    uint32_t hash;
} case_input;

/* Bytes of want and got are alike before the calls, before and behind the output too. */
typedef struct case_output {
    uint8_t *want;
    uint8_t *got;
    uint32_t bytes;
    uint32_t scratch; /* contents are free, only what lies around is compared */
    uint32_t floats;
} case_output;

typedef struct case_run {
    const colibri_kernels *table;
    const colibri_conformance *setup;
    colibri_conformance_result *total;
    colibri_conformance_result part;
    colibri_conformance_case now;
    uint8_t *next;
    uint32_t random;
    uint32_t turn; /* counts cases: what is not swept changes with it */
    uint32_t input_count;
    uint32_t output_count;
    case_input inputs[COLIBRI_CASE_INPUTS];
    case_output outputs[COLIBRI_CASE_OUTPUTS];
} case_run;

/* run.c: memory of the case. Inputs must be filled before the first call of the table. */
void *colibri_case_input(case_run *run, uint32_t bytes, uint32_t alignment);
case_output *colibri_case_output(case_run *run, uint32_t bytes, uint32_t floats);
void colibri_case_begin(case_run *run, colibri_conformance_case what);
void colibri_case_inputs_done(case_run *run);
void colibri_case_end(case_run *run);
void colibri_part_end(case_run *run);
/* Does the level take the length n of 0 .. last, with blocks of `block`? */
int colibri_length_taken(const case_run *run, uint32_t n, uint32_t block);

/* numbers.c */
uint32_t colibri_random(case_run *run);
uint32_t colibri_random_below(case_run *run, uint32_t limit);
float *colibri_floats(case_run *run, uint32_t n, uint32_t numbers);
void colibri_fill_floats(case_run *run, float *x, uint32_t n, uint32_t numbers);
float colibri_number(case_run *run, uint32_t numbers);

void colibri_cases_quantize(case_run *run);
void colibri_cases_vectors(case_run *run);
void colibri_cases_matmul(case_run *run);
void colibri_cases_attend(case_run *run);

#endif
