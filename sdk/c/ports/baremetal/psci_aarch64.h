/* SPDX-License-Identifier: Apache-2.0 */
/* Switching on a core of an AArch64 chip through PSCI, the interface that its boot firmware (or QEMU)
 * offers. Source: Arm DEN0022, Power State Coordination Interface, CPU_ON. */
#ifndef COLIBRI_PSCI_AARCH64_H
#define COLIBRI_PSCI_AARCH64_H

#include <stdint.h>

/* The instruction that reaches it: the board's documentation says which. */
enum { COLIBRI_PSCI_HVC = 1, COLIBRI_PSCI_SMC = 2 };

/* Starts the core whose affinity is `target` (MPIDR_EL1 without its flags) at the physical address
 * `entry`, with `context` in x0, MMU and caches off, in the highest exception level below the secure
 * ones. 0, or a negative PSCI error (-2: no such core, -4: it is on already). */
static inline int64_t colibri_psci_cpu_on(int conduit, uint64_t target, uint64_t entry,
                                          uint64_t context)
{
    register uint64_t x0 __asm__("x0") = 0xC4000003u; /* CPU_ON, 64-bit calling convention */
    register uint64_t x1 __asm__("x1") = target;
    register uint64_t x2 __asm__("x2") = entry;
    register uint64_t x3 __asm__("x3") = context;
#define CALL(instruction)                                                                          \
    __asm__ volatile(instruction : "+r"(x0), "+r"(x1), "+r"(x2), "+r"(x3) : : "x4", "x5", "x6", "x7",  \
                     "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15", "x16", "x17", "memory")
    if (conduit == COLIBRI_PSCI_SMC) CALL("smc #0");
    else CALL("hvc #0");
#undef CALL
    return (int64_t)x0;
}

/* The affinity of the n-th core of the first cluster: level 1 where level 0 counts the threads of a
 * core (MPIDR_EL1.MT, as on Cortex-A55), else level 0. */
static inline uint64_t colibri_psci_core(uint32_t n)
{
    uint64_t mpidr;
    __asm__("mrs %0, mpidr_el1" : "=r"(mpidr));
    return (mpidr >> 24 & 1u) != 0 ? (uint64_t)n << 8 : n;
}

#endif
