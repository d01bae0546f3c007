/* SPDX-License-Identifier: Apache-2.0 */
#include "float_math.h"

float colibri_exp(float x)
{
    if (x < COLIBRI_EXP_LOW)
        return 0.0f;
    if (x > COLIBRI_EXP_HIGH)
        x = COLIBRI_EXP_HIGH;
    float t = x * COLIBRI_LOG2_E + COLIBRI_ROUND_MAGIC;
    uint32_t n = colibri_float_bits(t) - COLIBRI_ROUND_BITS;
    t = t - COLIBRI_ROUND_MAGIC;
    float r = x - t * COLIBRI_LN2_HIGH;
    r = r - t * COLIBRI_LN2_LOW;
    float y = COLIBRI_EXP_0 * r + COLIBRI_EXP_1;
    y = y * r + COLIBRI_EXP_2;
    y = y * r + COLIBRI_EXP_3;
    y = y * r + COLIBRI_EXP_4;
    y = y * r + COLIBRI_EXP_5;
    y = y * (r * r) + r;
    y = y + 1.0f;
    return y * colibri_float_from_bits((n + 127u) << 23);
}

float colibri_sigmoid(float x)
{
    return 1.0f / (1.0f + colibri_exp(-x));
}

float colibri_tanh(float x)
{
    return 1.0f - 2.0f / (1.0f + colibri_exp(2.0f * x));
}

/* Cephes logf: the mantissa in [sqrt(1/2), sqrt(2)), its logarithm by a polynomial, the exponent times ln 2. */
float colibri_log(float x)
{
    uint32_t bits = colibri_float_bits(x);
    uint32_t exponent = (bits - 0x3F3504F3u) >> 23; /* of x / sqrt(1/2), wrapping */
    float e = (float)((int32_t)(exponent << 23) / (1 << 23));
    float m = colibri_float_from_bits(bits - (exponent << 23)) - 1.0f;
    float z = m * m;
    float y = 7.0376836292e-2f * m + -1.1514610310e-1f;
    y = y * m + 1.1676998740e-1f;
    y = y * m + -1.2420140846e-1f;
    y = y * m + 1.4249322787e-1f;
    y = y * m + -1.6668057665e-1f;
    y = y * m + 2.0000714765e-1f;
    y = y * m + -2.4999993993e-1f;
    y = y * m + 3.3333331174e-1f;
    y = y * m * z + COLIBRI_LN2_LOW * e;
    y = y - 0.5f * z;
    return m + y + COLIBRI_LN2_HIGH * e;
}

/* max(x, 0) + log(1 + u) with u = exp(-|x|); log(1 + u) by Kahan's correction of 1 + u. */
float colibri_softplus(float x)
{
    float u = colibri_exp(x > 0.0f ? -x : x), w = 1.0f + u;
    float y = w == 1.0f ? u : colibri_log(w) * (u / (w - 1.0f));
    return x > 0.0f ? x + y : y;
}

float colibri_rsqrt(float x)
{
    float half = 0.5f * x;
    float y = colibri_float_from_bits(0x5F375A86u - (colibri_float_bits(x) >> 1));
    for (int i = 0; i < 4; i++)
        y = y * (1.5f - (half * y) * y);
    return y;
}

/* Quadrant by Cody and Waite: the first three parts of pi/2 have 7 bits, so their products with a
 * quadrant below 2^17 are exact, and so are the differences. */
void colibri_sincos(float x, float *sine, float *cosine)
{
    float t = x * 0.63661975f + COLIBRI_ROUND_MAGIC;
    uint32_t quadrant = colibri_float_bits(t) - COLIBRI_ROUND_BITS;
    t = t - COLIBRI_ROUND_MAGIC;
    float r = x - t * 1.5625f;
    r = r - t * 0.0081787109375f;
    r = r - t * 0.00011730194091796875f;
    r = r - t * 3.1391647326017846e-7f;
    float z = r * r;
    float s = -1.9515295891e-4f * z + 8.3321608736e-3f;
    s = s * z + -1.6666654611e-1f;
    s = s * z * r + r;
    float c = 2.443315711809948e-5f * z + -1.388731625493765e-3f;
    c = c * z + 4.166664568298827e-2f;
    c = c * z * z - 0.5f * z + 1.0f;
    float swap = quadrant & 1u ? s : c;
    s = quadrant & 1u ? c : s;
    *sine = quadrant & 2u ? -s : s;
    *cosine = (quadrant + 1u) & 2u ? -swap : swap;
}

void colibri_silu(float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] = x[i] / (1.0f + colibri_exp(-x[i]));
}
