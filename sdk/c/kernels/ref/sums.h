/* SPDX-License-Identifier: Apache-2.0 */
/* The one order in which floats are summed (docs/numerics.md section 2): sixteen partial sums by index
 * mod 16, each from +0, then a fixed tree. */
#ifndef COLIBRI_REF_SUMS_H
#define COLIBRI_REF_SUMS_H

#include <stdint.h>

typedef struct colibri_sums {
    float part[16];
} colibri_sums;

static inline float colibri_sums_tree(const colibri_sums *s)
{
    float eight[8], four[4];
    for (int i = 0; i < 8; i++)
        eight[i] = s->part[i] + s->part[i + 8];
    for (int i = 0; i < 4; i++)
        four[i] = eight[i] + eight[i + 4];
    float even = four[0] + four[2], odd = four[1] + four[3];
    return even + odd;
}

static inline float colibri_dot(const float *a, const float *b, uint32_t n)
{
    colibri_sums s = {{0}};
    for (uint32_t i = 0; i < n; i++)
        s.part[i % 16] = s.part[i % 16] + a[i] * b[i];
    return colibri_sums_tree(&s);
}

#endif
