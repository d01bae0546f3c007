/* SPDX-License-Identifier: Apache-2.0 */
/* The part of start-up that every CPU shares: memory, stack paint, the end, the fault record. */
#include "board.h"
#include "mailbox.h"

#define STACK_PAINT 0xC0113B21u

extern uint32_t __data_start[], __data_end[], __data_load[], __bss_start[], __bss_end[];

__attribute__((section(".mailbox"), used)) volatile colibri_mailbox_layout colibri_mailbox;

uint32_t firmware_cores;

static uintptr_t stack_bytes(void)
{
    return (uintptr_t)__stack_top - (uintptr_t)__stack_bottom;
}

/* Lowest word of a core's stack; the first core has the last one. */
static uint32_t *stack_of(uint32_t core)
{
    return core == 0 ? __stack_bottom : __core_stacks + (core - 1u) * (stack_bytes() / 4u);
}

static void paint(uint32_t *word, uintptr_t end)
{
    for (; (uintptr_t)word < end; word++) {
        *word = STACK_PAINT;
    }
}

void firmware_paint_stack(uint32_t core)
{
    paint(stack_of(core), (uintptr_t)stack_of(core) + stack_bytes());
}

static uintptr_t stack_high_water(uint32_t core)
{
    const uint32_t *bottom = stack_of(core);
    uintptr_t clean = 0;
    while (clean < stack_bytes() && bottom[clean / 4u] == STACK_PAINT) {
        clean += 4u;
    }
    return stack_bytes() - clean;
}

/* Of the core that used most. */
static void report_stack(void)
{
    uintptr_t most = 0;
    for (uint32_t core = 0; core < firmware_cores; core++) {
        uintptr_t used = stack_high_water(core);
        most = used > most ? used : most;
    }
    colibri_mailbox.stack_bytes = stack_bytes();
    colibri_mailbox.stack_high_water = most;
    colibri_mailbox.cores = firmware_cores;
}

/* Targets with a way to start more cores bring their own. */
__attribute__((weak)) const colibri_pool *firmware_pool(uint32_t workers)
{
    (void)workers;
    return 0;
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
    firmware_cores = 1;
    paint(__stack_bottom, (uintptr_t)__builtin_frame_address(0) - 256u); /* above, it is in use */
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
