/* SPDX-License-Identifier: Apache-2.0 */
/* Cortex-M (v7-M, v8-M main line) start-up: vector table, FPU and Helium on, stack limit, fault vectors. */
#include "board.h"

#define SCB_VTOR 0xE000ED08u
#define SCB_CFSR 0xE000ED28u
#define SCB_MMFAR 0xE000ED34u
#define SCB_BFAR 0xE000ED38u
#define CFSR_MMARVALID 0x80u

void Reset_Handler(void);
void Fault_Handler(void);
_Noreturn void firmware_fault_frame(const uint32_t *frame);

#define FAULT ((const void *)Fault_Handler)
__attribute__((used, section(".vectors"))) const void *const firmware_vectors[16] = {
    __stack_top, (const void *)Reset_Handler, FAULT, FAULT, FAULT, FAULT, FAULT, FAULT,
    0, 0, 0, FAULT, FAULT, 0, FAULT, FAULT,
};

/* MSPLIM, from v8-M on: a stack overflow faults instead of running into the data below. */
#if __ARM_ARCH >= 8
#define LIMIT_STACK "ldr r0, =__stack_bottom\n" \
                    "msr msplim, r0\n"
#else
#define LIMIT_STACK ""
#endif

/* CPACR: full access to CP10 and CP11, before any C code that could use them. */
__attribute__((naked, used)) void Reset_Handler(void)
{
    __asm__ volatile("ldr r0, =0xE000ED88\n"
                     "ldr r1, [r0]\n"
                     "orr r1, r1, #0xF00000\n"
                     "str r1, [r0]\n"
                     "ldr r0, =0xE000ED08\n"
                     "ldr r1, =firmware_vectors\n"
                     "str r1, [r0]\n"
                     "dsb\n"
                     "isb\n"
                     "ldr r0, =__stack_top\n"
                     "mov sp, r0\n"
                     LIMIT_STACK
                     "b firmware_start\n"
                     ".pool\n");
}

/* The frame that the CPU stacked holds the pc at word 6. */
__attribute__((naked, used)) void Fault_Handler(void)
{
    __asm__ volatile("mrs r0, msp\n"
                     "ldr r1, =__stack_top\n"
                     "mov sp, r1\n"
                     "b firmware_fault_frame\n"
                     ".pool\n");
}

static uint32_t peek(uint32_t address)
{
    return *(const volatile uint32_t *)(uintptr_t)address;
}

__attribute__((used)) _Noreturn void firmware_fault_frame(const uint32_t *frame)
{
    uint32_t cause = peek(SCB_CFSR);
    uint32_t address = peek((cause & CFSR_MMARVALID) ? SCB_MMFAR : SCB_BFAR);
    int inside = frame >= __stack_bottom && frame + 8 <= __stack_top;
    firmware_fault(cause, address, inside ? frame[6] : 0u);
}
