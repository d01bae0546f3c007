/* SPDX-License-Identifier: Apache-2.0 */
/* The one order in which floats are summed (docs/numerics.md section 2): sixteen partial sums by index
 * mod 16, each from +0, then a fixed tree. */
#ifndef COLIBRI_REF_SUMS_H
#define COLIBRI_REF_SUMS_H

#include <stdint.h>

typedef struct colibri_sums {
    float part[16];
} colibri_sums;

float colibri_sums_tree(const colibri_sums *s);

/* Sum of a[i] * b[i]. */
float colibri_dot(const float *a, const float *b, uint32_t n);

#endif
