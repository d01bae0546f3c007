/* SPDX-License-Identifier: Apache-2.0 */
/* One matrix-vector product, some times over, for counting instructions. Arguments: type, rows, columns,
 * group, calls, weight order. The result is a checksum over the outputs, the same for every table that reads that order. */
#include "colibri/image.h"
#include "colibri/kernels.h"
#include "program.h"

#define MOST 512u
static _Alignas(64) uint8_t codes[MOST * MOST];
static _Alignas(64) uint16_t scales[MOST * MOST / 32];
static _Alignas(64) int8_t x[MOST];
static float x_scales[MOST / 32], out[MOST];

static uint32_t random_word(void)
{
    static uint32_t state;
    state = state * 1664525u + 1013904223u;
    return state >> 8;
}

static void fill(void)
{
    for (uint32_t i = 0; i < sizeof codes; i++)
        codes[i] = (uint8_t)(random_word() % 255 + 129); /* -127 .. 127: also every pair of nibbles but one */
    for (uint32_t i = 0; i < sizeof scales / sizeof scales[0]; i++)
        scales[i] = (uint16_t)(0x2000 + random_word() % 0x400);
    for (uint32_t i = 0; i < MOST; i++)
        x[i] = (int8_t)(random_word() % 255 + 129);
    for (uint32_t i = 0; i < MOST / 32; i++)
        x_scales[i] = (float)(random_word() % 1000) * 0x1p-10f;
}

void firmware_run(void)
{
    uint32_t type = colibri_arguments[0], rows = colibri_arguments[1], columns = colibri_arguments[2];
    uint32_t group = colibri_arguments[3], calls = colibri_arguments[4];
    fill();
    const colibri_matrix w = { .codes = codes, .scales = scales, .type = type, .rows = rows, .columns = columns,
                               .group = group, .groups = columns / group, .order = colibri_arguments[5],
                               .stride = type == COLIBRI_Q4 ? columns / 2 : columns };
    const colibri_matmul m = { .weight = &w, .codes = x, .scales = x_scales, .code_stride = columns,
                               .scale_stride = w.groups, .out_stride = rows, .out = out, .tokens = 1 };
    for (uint32_t i = 0; i < calls; i++)
        TABLE.matmul(&m, 0, rows);
    colibri_results[0] = colibri_crc32(0, out, (uint64_t)rows * sizeof(float));
}
