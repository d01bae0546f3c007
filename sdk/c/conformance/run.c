/* SPDX-License-Identifier: Apache-2.0 */
#include "run.h"

#include <string.h>

#include "../src/bytes.h"
#include "colibri/image.h"

#define AROUND 64u       /* bytes before and behind an output in scratch memory */
#define PATTERN 0xA5u    /* what an output holds before: a float as good as no other */
#define NAN_BITS 0x7FC00000u

static void *take(case_run *run, uint32_t bytes, uint32_t alignment)
{
    const colibri_conformance *s = run->setup;
    if (s->exact != NULL)
        return s->exact(s->context, bytes, alignment);
    /* No better aligned than promised. The levels' sizes are such that it is always there. */
    uint8_t *taken = run->next + (alignment & 63u);
    run->next += ((alignment & 63u) + bytes + 63u) & ~63u;
    uint32_t used = (uint32_t)(run->next - (uint8_t *)s->memory);
    run->part.scratch = used > run->part.scratch ? used : run->part.scratch;
    return taken;
}

void *colibri_case_input(case_run *run, uint32_t bytes, uint32_t alignment)
{
    case_input *input = &run->inputs[run->input_count++];
    void *data = take(run, bytes, alignment);
    input->data = data;
    input->bytes = bytes;
    return data;
}

/* In exact memory nothing lies behind: there the host sees it. */
static uint32_t behind(const case_run *run)
{
    return run->setup->exact != NULL ? 0 : AROUND;
}

case_output *colibri_case_output(case_run *run, uint32_t bytes, uint32_t floats)
{
    case_output *output = &run->outputs[run->output_count++];
    uint32_t whole = AROUND + bytes + behind(run);
    uint8_t *want = take(run, whole, 4), *got = take(run, whole, 4);
    memset(want, PATTERN, whole);
    memset(got, PATTERN, whole);
    *output = (case_output){.want = want + AROUND, .got = got + AROUND, .bytes = bytes, .floats = floats};
    return output;
}

static uint32_t hash(const uint8_t *data, uint32_t bytes)
{
    uint32_t h = bytes, i = 0;
    for (; i + 4 <= bytes; i += 4)
        h = (h ^ colibri_load_u32(data + i)) * 0x9E3779B1u;
    for (; i < bytes; i++)
        h = (h ^ data[i]) * 0x9E3779B1u;
    return h;
}

void colibri_case_begin(case_run *run, colibri_conformance_case what)
{
    run->now = what;
    run->next = run->setup->memory;
    run->input_count = run->output_count = 0;
    run->turn++;
    /* Of its own for each case, so that one case can be looked at alone. */
    run->random = (run->turn * 0x9E3779B1u) | 1u;
}

void colibri_case_inputs_done(case_run *run)
{
    for (uint32_t i = 0; i < run->input_count; i++)
        run->inputs[i].hash = hash(run->inputs[i].data, run->inputs[i].bytes);
}

static void failed(case_run *run, uint32_t wrong, int32_t index, uint32_t want, uint32_t got)
{
    colibri_conformance_result *r = &run->part;
    if (r->wrong != 0)
        return;
    r->first = run->now;
    r->wrong = wrong;
    r->index = index;
    r->want = want;
    r->got = got;
}

static int is_nan(uint32_t bits)
{
    return (bits & 0x7FFFFFFFu) > 0x7F800000u;
}

/* The element at a byte of the output: a float's bits, or a code. */
static uint32_t element(const case_output *o, const uint8_t *data, int32_t at)
{
    return o->floats ? colibri_load_u32(data + at) : data[at];
}

/* First difference of want and got, around the output too; returns 0 when there is none. */
static int compare(case_run *run, const case_output *o)
{
    int32_t step = o->floats ? 4 : 1, end = (int32_t)(o->bytes + behind(run));
    if (!o->scratch && memcmp(o->want - AROUND, o->got - AROUND, (size_t)end + AROUND) == 0)
        return 0;
    for (int32_t at = -(int32_t)AROUND; at < end; at += step) {
        int inside = at >= 0 && at < (int32_t)o->bytes;
        uint32_t want = element(o, o->want, at), got = element(o, o->got, at);
        if (want == got || (inside && (o->scratch || (o->floats && is_nan(want) && is_nan(got)))))
            continue;
        failed(run, inside ? COLIBRI_WRONG_VALUE : COLIBRI_WRONG_OUTSIDE, at / step, want, got);
        return 1;
    }
    return 0;
}

/* A NaN counts as one NaN, whatever its bits. */
static uint32_t checksum(uint32_t crc, const case_output *o)
{
    for (uint32_t at = 0; o->floats && at < o->bytes; at += 4) {
        uint32_t bits = colibri_load_u32(o->got + at), nan = NAN_BITS;
        if (is_nan(bits))
            memcpy(o->got + at, &nan, 4);
    }
    return colibri_crc32(crc, o->got, o->bytes);
}

void colibri_case_end(case_run *run)
{
    int wrong = 0;
    for (uint32_t i = 0; i < run->output_count; i++) {
        const case_output *o = &run->outputs[i];
        wrong |= compare(run, o);
        if (!o->scratch)
            run->part.crc32 = checksum(run->part.crc32, o);
    }
    for (uint32_t i = 0; i < run->input_count; i++) {
        const case_input *in = &run->inputs[i];
        uint32_t now = hash(in->data, in->bytes);
        if (now != in->hash) {
            failed(run, COLIBRI_WRONG_INPUT, (int32_t)i, in->hash, now);
            wrong = 1;
        }
    }
    run->part.cases++;
    run->part.failures += wrong ? 1u : 0u;
    if (run->setup->release != NULL)
        run->setup->release(run->setup->context);
}

void colibri_part_end(case_run *run)
{
    colibri_conformance_result *part = &run->part, *total = run->total;
    if (part->wrong == 0)
        part->first = run->now;
    uint32_t cases = total->cases + part->cases, failures = total->failures + part->failures;
    uint32_t crc = colibri_crc32(total->crc32, &part->crc32, 4);
    uint32_t scratch = part->scratch > total->scratch ? part->scratch : total->scratch;
    if (total->wrong == 0)
        *total = *part;
    total->crc32 = crc;
    total->cases = cases;
    total->failures = failures;
    total->scratch = scratch;
    if (run->setup->report != NULL)
        run->setup->report(run->setup->context, part);
    *part = (colibri_conformance_result){0};
}

int colibri_length_taken(const case_run *run, uint32_t n, uint32_t block)
{
    uint32_t in_block = n % block;
    return run->setup->level == COLIBRI_CONFORMANCE_FULL || n < 4 || n % 29 == 0 || in_block < 2 ||
           in_block == block - 1;
}

colibri_status colibri_conformance_run(const colibri_kernels *table, const colibri_conformance *setup,
                                       colibri_conformance_result *result)
{
    if (table == NULL || setup == NULL || result == NULL || setup->level > COLIBRI_CONFORMANCE_FULL)
        return COLIBRI_ERR_ARGUMENT;
    size_t need = setup->level == COLIBRI_CONFORMANCE_FULL ? COLIBRI_CONFORMANCE_FULL_BYTES
                                                           : COLIBRI_CONFORMANCE_QUICK_BYTES;
    if (setup->exact == NULL && (setup->memory == NULL || setup->bytes < need))
        return COLIBRI_ERR_MEMORY;
    if (setup->exact == NULL && ((uintptr_t)setup->memory & 63u) != 0)
        return COLIBRI_ERR_ALIGNMENT;
    *result = (colibri_conformance_result){0};
    case_run run = {.table = table, .setup = setup, .total = result};
    colibri_cases_quantize(&run);
    colibri_cases_vectors(&run);
    colibri_cases_matmul(&run);
    colibri_cases_attend(&run);
    return COLIBRI_OK;
}
