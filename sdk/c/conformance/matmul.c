/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of matmul. The reference always reads row-contiguous weights, the table those of the order under test, so
 * that an order is held to its meaning and not to another reader of it. */
#include <string.h>

#include "../kernels/ref/ref.h"
#include "../src/bytes.h"
#include "colibri/image.h"
#include "run.h"

enum { TILE = 16, MOST_ROWS = 40, MOST_IN_ROWS = 9 };
enum { CODES_RANDOM, CODES_EXTREME, CODES_ZERO, CODES_HOSTILE };
enum { SCALES_PLAIN, SCALES_FINITE, SCALES_SUBNORMAL, SCALES_LARGEST, SCALES_ZERO, SCALES_NEGATIVE, SCALES_HOSTILE };

/* Which values meet in a quantised product. HOSTILE: what no packer writes, but an image may hold. */
typedef struct mixture {
    uint8_t codes, scales, activations, activation_scales;
} mixture;

static const mixture mixtures[] = {
    {CODES_RANDOM, SCALES_PLAIN, CODES_RANDOM, NUMBERS_PLAIN},
    {CODES_EXTREME, SCALES_PLAIN, CODES_EXTREME, NUMBERS_PLAIN},
    {CODES_RANDOM, SCALES_FINITE, CODES_RANDOM, NUMBERS_ANY_EXPONENT},
    {CODES_RANDOM, SCALES_SUBNORMAL, CODES_RANDOM, NUMBERS_SUBNORMAL},
    {CODES_RANDOM, SCALES_PLAIN, CODES_RANDOM, NUMBERS_SUBNORMAL},
    {CODES_EXTREME, SCALES_LARGEST, CODES_EXTREME, NUMBERS_NEAR_OVERFLOW},
    {CODES_ZERO, SCALES_NEGATIVE, CODES_RANDOM, NUMBERS_PLAIN},
    {CODES_RANDOM, SCALES_NEGATIVE, CODES_EXTREME, NUMBERS_SMALL},
    {CODES_RANDOM, SCALES_ZERO, CODES_ZERO, NUMBERS_ZEROS},
    {CODES_HOSTILE, SCALES_HOSTILE, CODES_RANDOM, NUMBERS_ANY_EXPONENT},
};
enum { MIXTURES = sizeof mixtures / sizeof mixtures[0] };

/* Everything about a call that is not swept. */
typedef struct shape {
    uint32_t rows, columns, tokens, in_rows, out_rows, begin, end;
    uint32_t groups, stride; /* of the weights */
    uint32_t listed, biased, split;
} shape;

static int8_t random_code(case_run *run, uint32_t kind)
{
    uint32_t bits = colibri_random(run);
    switch (kind) {
    case CODES_ZERO: return 0;
    case CODES_EXTREME: return bits >> 31 ? 127 : -127;
    case CODES_HOSTILE: return (int8_t)(bits >> 24);
    default: return (int8_t)((int32_t)((bits >> 16) * 255u >> 16) - 127);
    }
}

static uint8_t random_nibbles(case_run *run, uint32_t kind)
{
    uint32_t bits = colibri_random(run);
    switch (kind) {
    case CODES_ZERO: return 0x88;
    case CODES_EXTREME: return (uint8_t)((bits >> 31 ? 0xF0u : 0u) | (bits >> 30 & 1u ? 0x0Fu : 0u));
    default: return (uint8_t)(bits >> 24);
    }
}

static uint16_t random_half(case_run *run, uint32_t kind)
{
    uint32_t bits = colibri_random(run) >> 16;
    switch (kind) {
    case SCALES_FINITE: return (uint16_t)(bits * 0x7C00u >> 16);
    case SCALES_SUBNORMAL: return (uint16_t)(bits & 0x3FFu);
    case SCALES_LARGEST: return 0x7BFF; /* 65504 */
    case SCALES_ZERO: return (uint16_t)(bits & 0x8000u);
    case SCALES_NEGATIVE: return (uint16_t)(0x9C00u | (bits & 0x3FFu));
    case SCALES_HOSTILE: return (uint16_t)bits;
    default: return (uint16_t)(0x1C00u | (bits & 0x7FFu)); /* 2^-8 .. 2^-6 */
    }
}

static uint32_t code_of(const uint8_t *row, uint32_t type, uint32_t group, uint32_t column)
{
    if (type == COLIBRI_Q8)
        return row[column];
    uint32_t in_group = column % group, half = group / 2;
    uint32_t byte = row[column / group * half + in_group % half];
    return in_group < half ? byte & 15u : byte >> 4;
}

/* Order TILES from order ROWS (docs/spec.md section 4): blocks of 64 bytes, sixteen rows by four bytes. */
static void tile_codes(uint8_t *to, const uint8_t *from, const colibri_matrix *w)
{
    uint32_t tiled = w->rows / TILE * TILE;
    for (uint32_t r = 0; r < tiled; r++) {
        const uint8_t *row = from + r * w->stride;
        uint8_t *tile = to + r / TILE * TILE * w->stride + r % TILE * 4;
        for (uint32_t b = 0; b < w->stride; b++) {
            uint32_t column = w->type == COLIBRI_Q8 ? b : b / 4 * 8 + b % 4;
            uint32_t byte = code_of(row, w->type, w->group, column);
            if (w->type == COLIBRI_Q4)
                byte |= code_of(row, w->type, w->group, column + 4) << 4;
            tile[b / 4 * 64 + b % 4] = (uint8_t)byte;
        }
    }
    memcpy(to + tiled * w->stride, from + tiled * w->stride, (w->rows - tiled) * w->stride);
}

static void tile_scales(uint16_t *to, const uint16_t *from, const colibri_matrix *w)
{
    for (uint32_t r = 0; r < w->rows; r++)
        for (uint32_t g = 0; g < w->groups; g++)
            to[r < w->rows / TILE * TILE ? (r / TILE * w->groups + g) * TILE + r % TILE : r * w->groups + g] =
                from[r * w->groups + g];
}

/* The same weights in another order. */
static colibri_matrix reordered(case_run *run, const colibri_matrix *w, uint32_t order)
{
    colibri_matrix made = *w;
    if (order == COLIBRI_ORDER_ROWS)
        return made;
    uint8_t *codes = colibri_case_input(run, w->rows * w->stride, 64);
    uint16_t *scales = colibri_case_input(run, w->rows * w->groups * 2, 64);
    tile_codes(codes, w->codes, w);
    tile_scales(scales, w->scales, w);
    made.codes = codes;
    made.scales = scales;
    made.order = order;
    return made;
}

static shape random_shape(case_run *run, uint32_t columns)
{
    static const uint8_t tokens[2][13] = {[COLIBRI_CONFORMANCE_QUICK] = {1, 4, 2, 8, 3, 0, 5, 1, 6, 9, 7, 17, 2},
                                          [COLIBRI_CONFORMANCE_FULL] = {1, 4, 2, 8, 3, 0, 5, 16, 6, 9, 7, 17, 33}};
    shape s = {.columns = columns, .rows = 1 + colibri_random_below(run, MOST_ROWS),
               .tokens = tokens[run->setup->level][run->turn % 13]};
    uint32_t bits = colibri_random(run);
    s.listed = bits >> 8 & 1u;
    s.biased = bits >> 9 & 1u;
    s.split = bits >> 10 & 3u;
    s.in_rows = s.listed ? 1 + colibri_random_below(run, MOST_IN_ROWS) : s.tokens;
    s.out_rows = s.tokens + (s.listed ? 3 : 0);
    s.begin = s.split == 3 ? colibri_random_below(run, s.rows + 1) : 0;
    s.end = s.split == 3 ? s.begin + colibri_random_below(run, s.rows - s.begin + 1) : s.rows;
    return s;
}

/* in: any rows, again too; out: some rows in a random order, none twice. */
static void row_lists(case_run *run, const shape *s, colibri_matmul *m)
{
    if (!s->listed)
        return;
    uint16_t *in = colibri_case_input(run, s->tokens * 2, 2), *out = colibri_case_input(run, s->tokens * 2, 2);
    for (uint32_t t = 0; t < s->tokens; t++) {
        uint32_t other = colibri_random_below(run, t + 1);
        in[t] = (uint16_t)colibri_random_below(run, s->in_rows);
        if (other != t)
            out[t] = out[other];
        out[other] = (uint16_t)(t + 3);
    }
    m->in_rows = in;
    m->out_rows = out;
}

/* Two workers share the rows in some cases, and in some only a part of them is asked for. */
static void run_both(case_run *run, const shape *s, colibri_matmul *m, const colibri_matrix *weight)
{
    case_output *o = colibri_case_output(run, s->out_rows * m->out_stride * 4, 1);
    colibri_case_inputs_done(run);
    m->out = (float *)(void *)o->want;
    colibri_ref_matmul(m, s->begin, s->end);
    m->out = (float *)(void *)o->got;
    m->weight = weight;
    uint32_t middle = s->split == 2 ? colibri_random_below(run, s->rows + 1) : s->begin;
    run->table->matmul(m, middle, s->end);
    if (s->split == 2)
        run->table->matmul(m, 0, middle);
    colibri_case_end(run);
}

static colibri_matmul common(case_run *run, const shape *s, uint32_t numbers)
{
    colibri_matmul m = {.tokens = s->tokens, .out_stride = s->rows + colibri_random_below(run, 4)};
    if (s->biased)
        m.bias = colibri_floats(run, s->rows, numbers);
    row_lists(run, s, &m);
    return m;
}

/* Codes as quantize leaves them: the last group's missing elements are 0. */
static void activations(case_run *run, const shape *s, colibri_matmul *m, uint32_t group, const mixture *mix)
{
    uint32_t padded = s->groups * group;
    m->code_stride = padded + 32 * colibri_random_below(run, 2);
    m->scale_stride = s->groups + colibri_random_below(run, 3);
    int8_t *codes = colibri_case_input(run, s->in_rows * m->code_stride, 32);
    float *scales = colibri_case_input(run, s->in_rows * m->scale_stride * 4, 4);
    for (uint32_t r = 0; r < s->in_rows; r++)
        for (uint32_t i = 0; i < m->code_stride; i++)
            codes[r * m->code_stride + i] =
                i < s->columns || i >= padded ? random_code(run, mix->activations) : (int8_t)0;
    for (uint32_t i = 0; i < s->in_rows * m->scale_stride; i++)
        scales[i] = colibri_float_from_bits(
            colibri_float_bits(colibri_number(run, mix->activation_scales)) & 0x7FFFFFFFu);
    m->codes = codes;
    m->scales = scales;
}

static void quantised_case(case_run *run, colibri_conformance_case what)
{
    const mixture *mix = &mixtures[what.numbers];
    colibri_case_begin(run, what);
    shape s = random_shape(run, what.columns);
    run->now.rows = s.rows;
    run->now.tokens = s.tokens;
    s.groups = (s.columns + what.group - 1) / what.group;
    s.stride = s.groups * what.group / (what.type == COLIBRI_Q4 ? 2 : 1);
    uint8_t *codes = colibri_case_input(run, s.rows * s.stride, 64);
    uint16_t *scales = colibri_case_input(run, s.rows * s.groups * 2, 64);
    for (uint32_t i = 0; i < s.rows * s.stride; i++)
        codes[i] = what.type == COLIBRI_Q8 ? (uint8_t)random_code(run, mix->codes) : random_nibbles(run, mix->codes);
    for (uint32_t i = 0; i < s.rows * s.groups; i++)
        scales[i] = random_half(run, mix->scales);
    colibri_matrix rows = {.codes = codes, .scales = scales, .type = what.type, .rows = s.rows,
                           .columns = s.columns, .group = what.group, .groups = s.groups, .stride = s.stride};
    colibri_matrix weight = reordered(run, &rows, what.order);
    colibri_matmul m = common(run, &s, mix->activation_scales);
    m.weight = &rows;
    activations(run, &s, &m, what.group, mix);
    run_both(run, &s, &m, &weight);
}

/* f16: any finite half; bf16: the upper half of a float of the class. */
static void float_weights(case_run *run, void *data, uint32_t n, uint32_t type, uint32_t numbers)
{
    uint16_t *halves = data;
    if (type == COLIBRI_F32)
        colibri_fill_floats(run, data, n, numbers);
    for (uint32_t i = 0; type != COLIBRI_F32 && i < n; i++) {
        uint32_t bits = colibri_random(run) >> 16;
        if (type == COLIBRI_BF16)
            bits = colibri_float_bits(colibri_number(run, numbers)) >> 16;
        else if (numbers == NUMBERS_SUBNORMAL)
            bits &= 0x83FFu;
        else if (numbers == NUMBERS_PLAIN) /* 2^-7 .. 2, so that sums round */
            bits = (bits & 0x9FFFu) | 0x2000u;
        else if (numbers != NUMBERS_SPECIAL && (bits & 0x7C00u) == 0x7C00u)
            bits ^= 0x4000u;
        halves[i] = (uint16_t)bits;
    }
}

static void float_case(case_run *run, colibri_conformance_case what)
{
    colibri_case_begin(run, what);
    shape s = random_shape(run, what.columns);
    run->now.rows = s.rows;
    run->now.tokens = s.tokens;
    s.stride = s.columns * (what.type == COLIBRI_F32 ? 4 : 2);
    void *codes = colibri_case_input(run, s.rows * s.stride, 64);
    uint32_t calm = what.numbers >= NUMBERS_HUGE && run->turn % 2; /* so that not everything overflows */
    float_weights(run, codes, s.rows * s.columns, what.type, calm ? (uint32_t)NUMBERS_PLAIN : what.numbers);
    colibri_matrix weight = {.codes = codes, .type = what.type, .rows = s.rows, .columns = s.columns,
                             .stride = s.stride};
    colibri_matmul m = common(run, &s, what.numbers);
    m.weight = &weight;
    m.value_stride = s.columns + colibri_random_below(run, 4);
    m.values = colibri_floats(run, s.in_rows * m.value_stride, what.numbers);
    run_both(run, &s, &m, &weight);
}

static void quantised_part(case_run *run, uint32_t type, uint32_t group, uint32_t order)
{
    int full = run->setup->level == COLIBRI_CONFORMANCE_FULL;
    for (uint32_t columns = 0; columns <= 2 * group; columns++) {
        uint32_t one = run->turn % MIXTURES;
        for (uint32_t i = 0; colibri_length_taken(run, columns, group) && i < MIXTURES; i++)
            if (full || i == one || columns == 1 || columns == group)
                quantised_case(run, (colibri_conformance_case){.operation = COLIBRI_OP_MATMUL, .type = type,
                                                               .order = order, .group = group,
                                                               .columns = columns, .numbers = i});
    }
    colibri_part_end(run);
}

static void float_part(case_run *run, uint32_t type)
{
    int full = run->setup->level == COLIBRI_CONFORMANCE_FULL;
    for (uint32_t columns = 0; columns <= 67; columns++)
        for (uint32_t i = 0; colibri_length_taken(run, columns, 16) && i < NUMBERS_CLASSES; i++)
            if (full || i == columns % NUMBERS_CLASSES || columns == 1 || columns == 32)
                float_case(run, (colibri_conformance_case){.operation = COLIBRI_OP_MATMUL, .type = type,
                                                           .columns = columns, .numbers = i});
    colibri_part_end(run);
}

void colibri_cases_matmul(case_run *run)
{
    for (uint32_t order = COLIBRI_ORDER_ROWS; order <= COLIBRI_ORDER_TILES; order++)
        for (uint32_t group = 32; group <= 128; group *= 2) {
            quantised_part(run, COLIBRI_Q8, group, order);
            quantised_part(run, COLIBRI_Q4, group, order);
        }
    float_part(run, COLIBRI_F32);
    float_part(run, COLIBRI_F16);
    float_part(run, COLIBRI_BF16);
}
