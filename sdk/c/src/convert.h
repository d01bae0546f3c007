/* SPDX-License-Identifier: Apache-2.0 */
/* IEEE half to and from single, in integers: exact, and the same on targets without half support. */
#ifndef COLIBRI_CONVERT_H
#define COLIBRI_CONVERT_H

#include "bytes.h"

/* Exact. The multiplication moves subnormals and all exponents at once: 2^112 is a power of two. */
static inline float colibri_f16_to_float(uint32_t h)
{
    uint32_t magnitude = (h & 0x7FFFu) << 13;
    uint32_t sign = (h & 0x8000u) << 16;
    if (magnitude >= 0x0F800000u) /* infinity, NaN: widen the exponent */
        return colibri_float_from_bits(sign | magnitude | 0x7F800000u);
    float value = colibri_float_from_bits(magnitude) * 0x1p112f;
    return colibri_float_from_bits(sign | colibri_float_bits(value));
}

/* Round to nearest, ties to even; overflow becomes infinity; NaN becomes a quiet NaN. */
static inline uint16_t colibri_float_to_f16(float x)
{
    uint32_t bits = colibri_float_bits(x);
    uint32_t sign = bits >> 16 & 0x8000u;
    uint32_t magnitude = bits & 0x7FFFFFFFu;
    uint32_t half;
    if (magnitude > 0x7F800000u) {
        half = 0x7E00u;
    } else if (magnitude >= 0x47800000u) { /* 65536 and above */
        half = 0x7C00u;
    } else if (magnitude < 0x38800000u) { /* below 2^-14: subnormal; 0.5 has the half's last bit at 2^-24 */
        half = colibri_float_bits(colibri_float_from_bits(magnitude) + 0.5f) - 0x3F000000u;
    } else { /* rounding may carry into the exponent, up to infinity, which is right */
        half = (magnitude - 0x38000000u + 0xFFFu + (magnitude >> 13 & 1u)) >> 13;
    }
    return (uint16_t)(sign | half);
}

#endif
