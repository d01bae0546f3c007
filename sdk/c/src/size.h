/* SPDX-License-Identifier: Apache-2.0 */
/* The one place where sizes are computed. Every operation can fail; none wraps. */
#ifndef COLIBRI_SIZE_H
#define COLIBRI_SIZE_H

#include <stdbool.h>
#include <stdint.h>

static inline bool colibri_add(uint64_t a, uint64_t b, uint64_t *sum)
{
    *sum = a + b;
    return *sum >= a;
}

/* Factors stay below 2^32, so that the product cannot wrap and 32-bit targets need no helper. */
static inline bool colibri_mul(uint64_t a, uint64_t b, uint64_t *product)
{
    *product = (uint64_t)(uint32_t)a * (uint32_t)b;
    return (a | b) >> 32 == 0;
}

/* alignment: a power of two */
static inline bool colibri_align(uint64_t x, uint32_t alignment, uint64_t *aligned)
{
    bool ok = colibri_add(x, alignment - 1u, aligned);
    *aligned &= ~(uint64_t)(alignment - 1u);
    return ok;
}

/* [offset, offset + bytes) lies in [0, limit) */
static inline bool colibri_inside(uint64_t offset, uint64_t bytes, uint64_t limit)
{
    return offset <= limit && bytes <= limit - offset;
}

static inline uint32_t colibri_divide_up(uint32_t a, uint32_t b)
{
    return a / b + (a % b != 0);
}

#endif
