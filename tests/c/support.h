/* SPDX-License-Identifier: Apache-2.0 */
/* What the test programs share: files, exact memory, a storage over memory, numbers without a library. */
#ifndef TESTS_SUPPORT_H
#define TESTS_SUPPORT_H

#include <stddef.h>
#include <stdint.h>

#include "colibri/colibri.h"

/* Exit with a message: 2 for a broken set-up, 1 for a broken promise. */
_Noreturn void stop(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define EXPECT(condition)                                               \
    do {                                                                \
        if (!(condition)) stop(1, "%s:%d: %s", __FILE__, __LINE__, #condition); \
    } while (0)

/* 64-byte aligned and exactly this long, so that AddressSanitizer sees one byte too far. */
uint8_t *exact(size_t bytes);
uint8_t *load_file(const char *path, size_t *bytes);

/* A storage over memory. Reads count down `reads_left` and fail when it is 0. Companion files: beside[0] is file 1. */
struct memory {
    const uint8_t *bytes;
    size_t size;
    uint64_t reads;
    uint64_t reads_left;
    const struct memory *beside;
    uint32_t companions;
};
void memory_storage(colibri_storage *storage, struct memory *memory, const uint8_t *bytes, size_t size,
                    int map, int read);

/* The tables of this build: "ref", then those of x86 that the CPU has. NULL after the last. */
const colibri_kernels *kernel_table(uint32_t index);

/* Knuth's generator: the same numbers everywhere. */
struct random {
    uint64_t state;
};
uint32_t random_bits(struct random *r);
uint32_t random_below(struct random *r, uint32_t n);

uint32_t crc_u32(uint32_t crc, uint32_t word);
float float_from(uint32_t bits);
uint32_t bits_of(float x);

#endif
