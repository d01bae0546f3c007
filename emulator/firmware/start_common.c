/* SPDX-License-Identifier: Apache-2.0 */
/* The part of start-up that every CPU shares: memory, stack paint, the end, the fault record. */
#include "board.h"
#include "mailbox.h"

#define STACK_PAINT 0xC0113B21u

extern uint32_t __data_start[], __data_end[], __data_load[], __bss_start[], __bss_end[];

__attribute__((section(".mailbox"), used)) volatile colibri_mailbox_layout colibri_mailbox;

/* Below this frame only: what lies above is in use. */
static void paint_stack(void)
{
    uintptr_t here = (uintptr_t)__builtin_frame_address(0);
    for (uint32_t *word = __stack_bottom; (uintptr_t)word < here - 256u; word++) {
        *word = STACK_PAINT;
    }
}

static uint64_t stack_high_water(void)
{
    const uint32_t *word = __stack_bottom;
    while (word < __stack_top && *word == STACK_PAINT) {
        word++;
    }
    return (uint64_t)((uintptr_t)__stack_top - (uintptr_t)word);
}

static void report_stack(void)
{
    colibri_mailbox.stack_bytes = (uint64_t)((uintptr_t)__stack_top - (uintptr_t)__stack_bottom);
    colibri_mailbox.stack_high_water = stack_high_water();
}

void firmware_start(void)
{
    if (&__data_load[0] != &__data_start[0]) {
        const uint32_t *from = __data_load;
        for (uint32_t *to = __data_start; to < __data_end; to++) {
            *to = *from++;
        }
    }
    for (uint32_t *word = __bss_start; word < __bss_end; word++) {
        *word = 0;
    }
    paint_stack();
    colibri_mailbox.state = COLIBRI_STATE_RUNNING;
    firmware_run();
    report_stack();
    colibri_mailbox.state = COLIBRI_STATE_DONE;
    colibri_done();
}

__attribute__((noinline, used)) _Noreturn void colibri_done(void)
{
    for (;;) {
        __asm__ volatile("wfi");
    }
}

/* Called by the fault vectors, on a fresh stack: the old one may be what failed. */
_Noreturn void firmware_fault(uintptr_t cause, uintptr_t address, uintptr_t pc)
{
    colibri_mailbox.fault_cause = cause;
    colibri_mailbox.fault_address = address;
    colibri_mailbox.fault_pc = pc;
    report_stack();
    colibri_mailbox.state = COLIBRI_STATE_FAULT;
    colibri_done();
}
