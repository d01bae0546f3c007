/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of attend. Scores stay finite, as everything in a model does that is not an error already. */
#include <string.h>

#include "../kernels/ref/ref.h"
#include "../src/bytes.h"
#include "colibri/image.h"
#include "run.h"

enum { MOST_POSITIONS = 70, QUICK_CACHE = 20 << 10 };

/* One vector of the cache. q8: its scale, then its codes. */
static void fill_vector(case_run *run, uint8_t *to, uint32_t kv, uint32_t n, uint32_t numbers)
{
    uint32_t at = 0;
    if (kv == COLIBRI_F32) {
        colibri_fill_floats(run, (float *)(void *)to, n, numbers);
        return;
    }
    if (kv == COLIBRI_Q8) {
        float scale = colibri_number(run, numbers) * 0x1p-7f;
        uint32_t bits = colibri_float_bits(scale) & 0x7FFFFFFFu;
        memcpy(to, &bits, 4);
        at = 4;
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits = colibri_random(run) >> 16;
        if (kv == COLIBRI_Q8) {
            to[at + i] = (uint8_t)((bits * 255u >> 16) - 127u);
            continue;
        }
        if (numbers == NUMBERS_SUBNORMAL)
            bits &= 0x83FFu;
        else if (numbers == NUMBERS_PLAIN || numbers == NUMBERS_TIES)
            bits = (bits & 0x9FFFu) | 0x2000u;
        else if ((bits & 0x7C00u) == 0x7C00u)
            bits ^= 0x4000u;
        uint16_t half = (uint16_t)bits;
        memcpy(to + i * 2, &half, 2);
    }
}

static uint8_t *cache(case_run *run, const colibri_attend *a, uint32_t numbers)
{
    /* the last vector ends where its elements do, so that reading on is seen */
    uint32_t wide = a->kv == COLIBRI_F32 ? a->head_size * 4
                                         : a->kv == COLIBRI_F16 ? a->head_size * 2 : 4 + a->head_size;
    uint32_t bytes = (a->positions - 1) * a->stride + ((wide + 3) & ~3u);
    uint8_t *data = colibri_case_input(run, bytes, 4);
    memset(data, 0x7F, bytes); /* gaps hold NaNs */
    for (uint32_t p = 0; p < a->positions; p++)
        fill_vector(run, data + p * a->stride, a->kv, a->head_size, numbers);
    return data;
}

static uint32_t stride_of(case_run *run, uint32_t kv, uint32_t n)
{
    uint32_t bytes = kv == COLIBRI_F32 ? n * 4 : kv == COLIBRI_F16 ? n * 2 : n + 4;
    return ((bytes + 3) & ~3u) + 4 * colibri_random_below(run, 4);
}

/* Values as wide as keys, or narrower; beside the keys, or (latent attention) a part of them. */
static colibri_attend random_call(case_run *run, const colibri_conformance_case *what)
{
    uint32_t bits = colibri_random(run);
    colibri_attend a = {.kv = what->type, .head_size = what->columns, .positions = what->rows};
    a.stride = stride_of(run, a.kv, a.head_size);
    a.value_size = bits >> 8 & 1u ? a.head_size : 1 + colibri_random_below(run, a.head_size);
    a.scale = bits >> 9 & 1u ? 0.25f : 0x1.6a09e6p-4f;
    uint32_t of_keys = what->numbers == NUMBERS_NEAR_OVERFLOW ? (uint32_t)NUMBERS_PLAIN : what->numbers;
    a.keys = cache(run, &a, of_keys);
    int beside = (bits >> 10 & 3u) != 0 && (run->setup->level == COLIBRI_CONFORMANCE_FULL ||
                                            a.stride * a.positions < QUICK_CACHE);
    a.values = beside ? cache(run, &a, what->numbers) : a.keys;
    if (bits >> 12 & 1u)
        a.sink = colibri_floats(run, 1, bits >> 13 & 1u ? NUMBERS_TIES : NUMBERS_PLAIN);
    return a;
}

static void attend_case(case_run *run, colibri_conformance_case what)
{
    colibri_case_begin(run, what);
    colibri_attend a = random_call(run, &what);
    run->now.tokens = a.value_size;
    float *query = colibri_floats(run, a.head_size, run->turn % 4 ? (uint32_t)NUMBERS_PLAIN : what.numbers % 4);
    int in_place = (int)(run->turn / 4 & 1u);
    case_output *out = colibri_case_output(run, (in_place ? a.head_size : a.value_size) * 4, 1);
    case_output *scores = colibri_case_output(run, a.positions * 4, 1);
    scores->scratch = 1;
    if (in_place) { /* what lies behind value_size of the query stays */
        memcpy(out->want, query, a.head_size * 4);
        memcpy(out->got, query, a.head_size * 4);
    }
    colibri_case_inputs_done(run);
    a.query = query;
    a.out = (float *)(void *)out->want;
    a.scores = (float *)(void *)scores->want;
    colibri_ref_attend(&a);
    a.out = (float *)(void *)out->got;
    a.scores = (float *)(void *)scores->got;
    if (in_place)
        a.query = a.out;
    run->table->attend(&a);
    colibri_case_end(run);
}

static int quick_takes(uint32_t head_size, uint32_t positions)
{
    static const uint8_t sizes[] = {2, 6, 16, 20, 34, 64, 130}, counts[] = {1, 2, 7, 15, 16, 17, 33, 70};
    int size = 0, count = 0;
    for (uint32_t i = 0; i < sizeof sizes; i++)
        size |= sizes[i] == head_size;
    for (uint32_t i = 0; i < sizeof counts; i++)
        count |= counts[i] == positions;
    return size && count;
}

void colibri_cases_attend(case_run *run)
{
    static const uint32_t types[] = {COLIBRI_F32, COLIBRI_F16, COLIBRI_Q8};
    int full = run->setup->level == COLIBRI_CONFORMANCE_FULL;
    for (uint32_t t = 0; t < 3; t++) {
        for (uint32_t head_size = 2; head_size <= 130; head_size += 2)
            for (uint32_t positions = 1; positions <= MOST_POSITIONS; positions++)
                if (full || quick_takes(head_size, positions))
                    attend_case(run, (colibri_conformance_case){
                                         .operation = COLIBRI_OP_ATTEND, .type = types[t],
                                         .rows = positions, .columns = head_size,
                                         .numbers = run->turn * 5 % NUMBERS_SPECIAL});
        colibri_part_end(run);
    }
}
