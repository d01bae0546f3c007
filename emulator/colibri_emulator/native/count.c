/* SPDX-License-Identifier: Apache-2.0 */
/* Unicorn hook that counts executed instructions, once per translated block. In C, because a Python
 * hook on this path is a hundred times slower; per block, because per instruction is twice as slow.
 *
 * The hook is told where a block starts and its bytes. Where instructions have two lengths the block
 * is decoded, once: a small table remembers. */
#include <stdint.h>

#define SLOTS 65536u

enum { COLIBRI_COUNT_FIXED4 = 0, COLIBRI_COUNT_THUMB = 1, COLIBRI_COUNT_RISCV = 2 };

typedef struct slot {
    uint64_t address;
    uint32_t bytes;
    uint32_t instructions;
} slot;

typedef struct colibri_counter {
    uint64_t instructions;
    const uint8_t *code; /* host address of the region that code runs from */
    uint64_t base;       /* and what the CPU calls it */
    uint64_t size;
    uint64_t kind;
    slot table[SLOTS];
} colibri_counter;

uint64_t colibri_counter_bytes(void);
void colibri_on_block(void *engine, uint64_t address, uint32_t bytes, colibri_counter *counter);

uint64_t colibri_counter_bytes(void)
{
    return sizeof(colibri_counter);
}

/* Thumb: 32-bit instructions start with 0b11101, 0b1111. RISC-V: both low bits set. */
static uint32_t length(uint64_t kind, uint32_t half)
{
    if (kind == COLIBRI_COUNT_THUMB) {
        return (half >> 11) >= 0x1Du ? 4u : 2u;
    }
    return (half & 3u) == 3u ? 4u : 2u;
}

static uint32_t decode(const colibri_counter *counter, uint64_t address, uint32_t bytes)
{
    uint64_t offset = address - counter->base;
    if (counter->kind == COLIBRI_COUNT_FIXED4 || offset > counter->size ||
        bytes > counter->size - offset) {
        return bytes / 4u;
    }
    uint32_t instructions = 0;
    for (uint32_t at = 0; at + 1u < bytes; instructions++) {
        const uint8_t *half = counter->code + offset + at;
        at += length(counter->kind, (uint32_t)half[0] | (uint32_t)half[1] << 8);
    }
    return instructions;
}

void colibri_on_block(void *engine, uint64_t address, uint32_t bytes, colibri_counter *counter)
{
    (void)engine;
    slot *known = &counter->table[(address >> 1) % SLOTS];
    if (known->address != address || known->bytes != bytes) {
        known->address = address;
        known->bytes = bytes;
        known->instructions = decode(counter, address, bytes);
    }
    counter->instructions += known->instructions;
}
