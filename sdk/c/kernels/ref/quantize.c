/* SPDX-License-Identifier: Apache-2.0 */
/* Activations to int8 (docs/numerics.md section 3). */
#include "../../src/float_math.h"
#include "ref.h"

/* Very small groups are scaled up first, exactly, so that 127 / amax stays finite. */
#define SMALL 0x1p-64f
#define RAISE 0x1p64f

static int8_t code(float x, float raise, float inverse)
{
    float t = x * raise * inverse;
    if (!(t >= -127.0f)) /* NaN too */
        t = -127.0f;
    if (t > 127.0f)
        t = 127.0f;
    return (int8_t)(colibri_float_bits(t + COLIBRI_ROUND_MAGIC) - COLIBRI_ROUND_BITS);
}

static float largest_magnitude(const float *x, uint32_t n)
{
    float amax = 0.0f;
    for (uint32_t i = 0; i < n; i++) {
        float a = colibri_float_from_bits(colibri_float_bits(x[i]) & 0x7FFFFFFFu);
        amax = a > amax ? a : amax;
    }
    return amax;
}

void colibri_ref_quantize(const float *x, uint32_t n, uint32_t group, int8_t *codes, float *scales)
{
    for (uint32_t begin = 0; begin < n; begin += group, codes += group) {
        uint32_t here = n - begin < group ? n - begin : group;
        float amax = largest_magnitude(x + begin, here);
        float raise = amax < SMALL ? RAISE : 1.0f;
        float inverse = amax > 0.0f ? 127.0f / (amax * raise) : 0.0f;
        *scales++ = amax / 127.0f;
        for (uint32_t i = 0; i < group; i++)
            codes[i] = i < here && amax > 0.0f ? code(x[begin + i], raise, inverse) : 0;
    }
}
