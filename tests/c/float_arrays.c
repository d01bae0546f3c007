/* SPDX-License-Identifier: Apache-2.0 */
/* float_math.h, convert.h and a router's preference over arrays, for ctypes. */
#include <stddef.h>

#include "convert.h"
#include "float_math.h"
#include "preference.h"

void test_exp(const float *x, float *y, size_t n);
void test_sigmoid(const float *x, float *y, size_t n);
void test_rsqrt(const float *x, float *y, size_t n);
void test_sincos(const float *x, float *sine, float *cosine, size_t n);
void test_from_f16(const uint16_t *x, float *y, size_t n);
void test_to_f16(const float *x, uint16_t *y, size_t n);

/* numbers: router, experts, top_k, free, each; runs, places: or NULL. addends: experts floats. */
int test_route(const uint32_t *numbers, const float *selection, const uint8_t *runs, const uint16_t *places,
               float margin, float *scores, float *addends, uint16_t *ids, float *weights);

int test_route(const uint32_t *numbers, const float *selection, const uint8_t *runs, const uint16_t *places,
               float margin, float *scores, float *addends, uint16_t *ids, float *weights)
{
    colibri_config config = {.router = numbers[0], .experts = numbers[1], .top_k = numbers[2], .router_scale = 1.0f,
                             .router_epsilon = 0.01f};
    struct colibri_preference p = {runs, numbers[3], places, numbers[4], margin, addends};
    return (int)colibri_route(&config, selection, &p, scores, ids, weights);
}

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
