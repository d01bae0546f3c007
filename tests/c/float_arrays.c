/* SPDX-License-Identifier: Apache-2.0 */
/* float_math.h and convert.h over arrays, for the accuracy tests. */
#include <stddef.h>

#include "convert.h"
#include "float_math.h"

void test_exp(const float *x, float *y, size_t n);
void test_sigmoid(const float *x, float *y, size_t n);
void test_rsqrt(const float *x, float *y, size_t n);
void test_sincos(const float *x, float *sine, float *cosine, size_t n);
void test_from_f16(const uint16_t *x, float *y, size_t n);
void test_to_f16(const float *x, uint16_t *y, size_t n);

void test_exp(const float *x, float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = colibri_exp(x[i]);
}

void test_sigmoid(const float *x, float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = colibri_sigmoid(x[i]);
}

void test_rsqrt(const float *x, float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = colibri_rsqrt(x[i]);
}

void test_sincos(const float *x, float *sine, float *cosine, size_t n)
{
    for (size_t i = 0; i < n; i++)
        colibri_sincos(x[i], &sine[i], &cosine[i]);
}

void test_from_f16(const uint16_t *x, float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = colibri_f16_to_float(x[i]);
}

void test_to_f16(const float *x, uint16_t *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = colibri_float_to_f16(x[i]);
}
