/* SPDX-License-Identifier: Apache-2.0 */
/* Identity map for AArch64: the board's memory as Normal write-back, everything else as Device.
 * 1 GiB blocks, and 2 MiB blocks in a gibibyte that is only partly memory. Runs with the MMU off, so
 * it is built with -mstrict-align, and before .bss is cleared, so the tables have a section of their
 * own and every entry is written. */
#include "board.h"

#define ENTRIES 512u
#define SPLIT_TABLES 6u
#define GIB (1ull << 30)
#define MIB2 (1ull << 21)
#define DEVICE ((1ull << 54) | (1ull << 53) | (1ull << 10) | 1u) /* never executed; access flag; block */
#define NORMAL ((1ull << 10) | (3ull << 8) | (1ull << 2) | 1u)   /* access flag, inner shareable, MAIR 1 */
#define TABLE 3u

#define level1 firmware_mmu_level1 /* further cores take it as it is */
__attribute__((section(".tables"), aligned(4096))) uint64_t level1[ENTRIES];
__attribute__((section(".tables"), aligned(4096))) static uint64_t level2[SPLIT_TABLES][ENTRIES];

void firmware_mmu_tables(void);

static void fill_device(uint64_t *table, uint64_t base, uint64_t step)
{
    for (uint32_t i = 0; i < ENTRIES; i++) {
        table[i] = (base + i * step) | DEVICE;
    }
}

/* The level 2 table of a gibibyte, made on first use. NULL when there are no more. */
static uint64_t *split(uint32_t gib, uint32_t *tables)
{
    if ((level1[gib] & TABLE) == TABLE) {
        return (uint64_t *)(uintptr_t)(level1[gib] & ~0xFFFull);
    }
    if (*tables == SPLIT_TABLES) {
        return 0;
    }
    uint64_t *table = level2[(*tables)++];
    fill_device(table, gib * GIB, MIB2);
    level1[gib] = (uint64_t)(uintptr_t)table | TABLE;
    return table;
}

static void map_normal(uint64_t base, uint64_t end, uint32_t *tables)
{
    for (uint64_t at = base & ~(MIB2 - 1u); at < end && at < ENTRIES * GIB;) {
        uint32_t gib = (uint32_t)(at / GIB);
        if (at % GIB == 0 && end - at >= GIB) {
            level1[gib] = at | NORMAL;
            at += GIB;
            continue;
        }
        uint64_t *table = split(gib, tables);
        if (table != 0) {
            table[at / MIB2 % ENTRIES] = at | NORMAL;
        }
        at += MIB2;
    }
}

void firmware_mmu_tables(void)
{
    uint32_t tables = 0;
    fill_device(level1, 0, GIB);
    for (uint32_t i = 0; i < colibri_board_memory_count; i++) {
        map_normal(colibri_board_memory[i].base,
                   colibri_board_memory[i].base + colibri_board_memory[i].size, &tables);
    }
}
