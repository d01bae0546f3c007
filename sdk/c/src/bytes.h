/* SPDX-License-Identifier: Apache-2.0 */
/* Little-endian loads from any alignment, and float bits. */
#ifndef COLIBRI_BYTES_H
#define COLIBRI_BYTES_H

#include <stdint.h>

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

/* A union, not memcpy: freestanding code has no builtin one, so each would be a call. */
union colibri_word {
    float value;
    uint32_t bits;
};

static inline uint32_t colibri_float_bits(float x)
{
    return (union colibri_word){.value = x}.bits;
}

static inline float colibri_float_from_bits(uint32_t bits)
{
    return (union colibri_word){.bits = bits}.value;
}

/* Neither NaN nor infinity. */
static inline int colibri_finite_bits(uint32_t bits)
{
    return (bits & 0x7F800000u) != 0x7F800000u;
}

#endif
