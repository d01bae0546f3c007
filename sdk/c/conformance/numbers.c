/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers by class, made of integers and powers of two, so that they are the same everywhere. */
#include "../src/bytes.h"
#include "run.h"

/* xorshift32 (Marsaglia 2003). */
uint32_t colibri_random(case_run *run)
{
    uint32_t x = run->random;
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    return run->random = x;
}

/* limit up to 2^16. */
uint32_t colibri_random_below(case_run *run, uint32_t limit)
{
    return (colibri_random(run) >> 16) * limit >> 16;
}

/* 16 random bits and a sign, times a power of two: exact. */
static float scaled(uint32_t bits, float power)
{
    float x = (float)(bits & 0xFFFFu) * power;
    return bits >> 31 ? -x : x;
}

float colibri_number(case_run *run, uint32_t numbers)
{
    static const uint32_t special[] = {0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC12345,
                                       0x7F7FFFFF, 0x00000001, 0x80000000, 0x3F800000};
    uint32_t bits = colibri_random(run);
    switch (numbers) {
    case NUMBERS_TIES: /* -126.5 .. 126.5 in halves; colibri_fill_floats puts a 127 among them */
        return (float)((int32_t)((bits >> 8) % 254u) - 127) + 0.5f;
    case NUMBERS_SUBNORMAL:
        return scaled(bits, 0x1p-149f);
    case NUMBERS_ANY_EXPONENT: /* 2^-133 .. 2^26: sums of products stay finite */
        return colibri_float_from_bits((bits & 0x807FFFFFu) | colibri_random_below(run, 154) << 23);
    case NUMBERS_HUGE:
        return scaled(bits, 0x1p84f);
    case NUMBERS_SMALL: /* about where activations are raised before the division */
        return scaled(bits, 0x1p-80f);
    case NUMBERS_ZEROS:
        return colibri_float_from_bits(bits & 0x80000000u);
    case NUMBERS_NEAR_OVERFLOW: /* 2^126 .. 2^128 */
        return colibri_float_from_bits((bits & 0x80FFFFFFu) | 0x7E800000u);
    case NUMBERS_SPECIAL:
        if (bits & 1u)
            return colibri_float_from_bits(special[bits >> 8 & 7u]);
        break;
    default:
        break;
    }
    return scaled(bits, 0x1p-15f);
}

void colibri_fill_floats(case_run *run, float *x, uint32_t n, uint32_t numbers)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] = i != 0 && numbers == NUMBERS_EQUAL ? x[0] : colibri_number(run, numbers);
    if (numbers != NUMBERS_TIES)
        return;
    for (uint32_t i = 0; i < n; i += 2 + colibri_random_below(run, 32)) /* so that codes are the values */
        x[i] = 127.0f;
}

float *colibri_floats(case_run *run, uint32_t n, uint32_t numbers)
{
    float *x = colibri_case_input(run, n * 4, 4);
    colibri_fill_floats(run, x, n, numbers);
    return x;
}
