/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of quantize, rms_norm and silu_gate. */
#include <string.h>

#include "../kernels/ref/ref.h"
#include "../src/bytes.h"
#include "colibri/image.h"
#include "run.h"

static void quantize_case(case_run *run, uint32_t n, uint32_t group, uint32_t numbers)
{
    uint32_t groups = (n + group - 1) / group;
    colibri_case_begin(run, (colibri_conformance_case){.operation = COLIBRI_OP_QUANTIZE, .type = COLIBRI_Q8,
                                                       .group = group, .columns = n, .numbers = numbers});
    float *x = colibri_floats(run, n, numbers);
    case_output *codes = colibri_case_output(run, groups * group, 0);
    case_output *scales = colibri_case_output(run, groups * 4, 1);
    colibri_case_inputs_done(run);
    colibri_ref_quantize(x, n, group, (int8_t *)codes->want, (float *)(void *)scales->want);
    run->table->quantize(x, n, group, (int8_t *)codes->got, (float *)(void *)scales->got);
    colibri_case_end(run);
}

/* A KV vector is one group of head_size elements, so groups are any even number. */
void colibri_cases_quantize(case_run *run)
{
    static const uint32_t groups[] = {32, 64, 128, 2, 6, 20, 48, 8, 16, 24, 80, 130, 256};
    int full = run->setup->level == COLIBRI_CONFORMANCE_FULL;
    for (uint32_t g = 0; g < (full ? 13u : 7u); g++) {
        for (uint32_t n = 0; n <= 2 * groups[g] + 1; n++)
            for (uint32_t i = 0; colibri_length_taken(run, n, groups[g]) && i < NUMBERS_CLASSES; i++)
                if (full || i == n % 10 || (i < 3 && n == groups[g]))
                    quantize_case(run, n, groups[g], i);
        colibri_part_end(run);
    }
}

/* The next length of both vector operations: up to four sums of sixteen, then some longer ones. */
static uint32_t next_length(uint32_t n)
{
    return n < 67 ? n + 1 : n < 125 ? 125 : n < 130 ? n + 1 : n < 255 ? 255 : n + 1;
}

static void rms_norm_case(case_run *run, uint32_t n, uint32_t numbers)
{
    static const uint32_t epsilons[] = {0x358637BD, 0x3727C5AC, 0x00000200}; /* 1e-6, 1e-5, 2^-140 */
    float epsilon = colibri_float_from_bits(epsilons[run->turn % 3]);
    colibri_case_begin(run, (colibri_conformance_case){.operation = COLIBRI_OP_RMS_NORM, .type = COLIBRI_F32,
                                                       .columns = n, .numbers = numbers});
    float *x = colibri_floats(run, n, numbers), *weight = colibri_floats(run, n, run->turn % 5);
    case_output *o = colibri_case_output(run, n * 4, 1);
    float *want = (float *)(void *)o->want, *got = (float *)(void *)o->got;
    const float *from = x;
    if (run->turn & 4u) { /* out is x */
        memcpy(got, x, (size_t)n * 4);
        from = got;
    }
    colibri_case_inputs_done(run);
    colibri_ref_rms_norm(x, weight, n, epsilon, want);
    run->table->rms_norm(from, weight, n, epsilon, got);
    colibri_case_end(run);
}

static void silu_gate_case(case_run *run, uint32_t n, uint32_t numbers)
{
    colibri_case_begin(run, (colibri_conformance_case){.operation = COLIBRI_OP_SILU_GATE, .type = COLIBRI_F32,
                                                       .columns = n, .numbers = numbers});
    uint32_t of_gate = run->turn & 1u ? numbers : (uint32_t)NUMBERS_PLAIN;
    float *up = colibri_floats(run, n, run->turn & 1u ? run->turn / 2 % NUMBERS_CLASSES : numbers);
    case_output *o = colibri_case_output(run, n * 4, 1);
    float *want = (float *)(void *)o->want, *got = (float *)(void *)o->got;
    colibri_fill_floats(run, want, n, of_gate);
    for (uint32_t i = 0; of_gate == NUMBERS_PLAIN && i < n; i++)
        want[i] = want[i] * 64.0f; /* across the whole range of exp */
    memcpy(got, want, (size_t)n * 4);
    colibri_case_inputs_done(run);
    colibri_ref_silu_gate(want, up, n);
    run->table->silu_gate(got, up, n);
    colibri_case_end(run);
}

void colibri_cases_vectors(case_run *run)
{
    int full = run->setup->level == COLIBRI_CONFORMANCE_FULL;
    for (uint32_t norm = 0; norm < 2; norm++) {
        for (uint32_t n = 0; n < 260; n = next_length(n))
            for (uint32_t i = 0; colibri_length_taken(run, n, 16) && i < NUMBERS_CLASSES * 2; i++) {
                if (!full && i % NUMBERS_CLASSES != n % NUMBERS_CLASSES)
                    continue;
                (norm == 0 ? rms_norm_case : silu_gate_case)(run, n, i % NUMBERS_CLASSES);
            }
        colibri_part_end(run);
    }
}
