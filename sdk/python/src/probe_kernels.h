// SPDX-License-Identifier: Apache-2.0
// What this machine can do at best, for `colibri bench`: reading memory, multiplying int8. Nothing of the
// runtime is in here; each function picks the widest instructions that the CPU has when it runs.
#pragma once

#include <cstddef>
#include <cstdint>

struct ReadKernel {
    const char *name; // "avx512", "avx2", "plain"
    // Reads bytes (a multiple of 4096) from data once; ahead: bytes to prefetch ahead, 0 for none.
    uint64_t (*read)(const uint8_t *data, size_t bytes, size_t ahead);
};

struct Int8Kernel {
    const char *name; // the instruction
    // Runs `rounds` rounds on registers; returns something that depends on all of them.
    int32_t (*run)(uint64_t rounds);
    uint64_t macs; // multiply-adds of a round
};

const ReadKernel &best_read_kernel();
const Int8Kernel &best_int8_kernel();
