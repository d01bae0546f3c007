/* SPDX-License-Identifier: Apache-2.0 */
/* Little-endian loads from any alignment, and float bits. */
#ifndef COLIBRI_BYTES_H
#define COLIBRI_BYTES_H

#include <stdint.h>
#include <string.h>

static inline uint32_t colibri_load_u16(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8;
}

static inline uint32_t colibri_load_u32(const uint8_t *p)
{
    return colibri_load_u16(p) | colibri_load_u16(p + 2) << 16;
}

static inline uint64_t colibri_load_u64(const uint8_t *p)
{
    return colibri_load_u32(p) | (uint64_t)colibri_load_u32(p + 4) << 32;
}

static inline uint32_t colibri_float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float colibri_float_from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Neither NaN nor infinity. */
static inline int colibri_finite_bits(uint32_t bits)
{
    return (bits & 0x7F800000u) != 0x7F800000u;
}

#endif
