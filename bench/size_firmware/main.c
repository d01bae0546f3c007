/* SPDX-License-Identifier: Apache-2.0 */
/* The firmware on which size tools are compared: every section has a size that is known by hand,
 * whatever the compiler makes of the code, which the linker scripts fill up. */
#include <stddef.h>
#include <stdint.h>

#define IN(name) __attribute__((section(name), used))
#define APART __attribute__((noinline, noclone))

void uart_write(const char *text);
int main(void);
void reset(void);
extern uint8_t __stack_top[];

uint32_t table[56] = {7};                       /* .data: 224 bytes */
volatile uint32_t samples[128];                 /* .bss: 512 bytes */
static volatile uint32_t ticks;                 /* .bss: 4 bytes */
static volatile uint32_t sum;                   /* .bss: 4 bytes */
const uint8_t coefficients[512] = {1, 2, 3};    /* .rodata: 512 bytes */
IN(".noinit") volatile uint8_t crash_log[256];  /* neither stored nor cleared */
IN(".fast_zero") volatile uint32_t line[256];   /* 1,024 bytes of TCM between stored bytes */
IN(".fast_data") uint32_t window[32] = {9};     /* 128 bytes of TCM, stored in flash */
IN(".mode_a") uint32_t mode_a[96] = {1};        /* overlays: 384 and 640 bytes in flash, */
IN(".mode_b") uint32_t mode_b[160] = {2};       /* at one address of SRAM */
#ifdef CANARY
IN(".bss.canary") uint8_t canary[CANARY];
#endif

IN(".fast") APART uint32_t fast_filter(uint32_t x)
{
    volatile uint32_t products[32];
    for (size_t i = 0; i < 32; i++)
        products[i] = window[i] * line[i];
    return x + products[x % 32];
}

static APART uint32_t scale(uint32_t x)
{
    return x * coefficients[x % 512] + 3;
}

typedef uint32_t step(uint32_t x);
static step *const steps[2] = {fast_filter, scale}; /* .rodata: 8 bytes */

/* 160 bytes of stack in an array; whom it calls only pointers tell: 128 more, or none. */
static APART uint32_t control(uint32_t x)
{
    volatile uint32_t history[40];
    for (size_t i = 0; i < 40; i++)
        history[i] = samples[i] + x;
    return steps[x & 1](history[x % 40]) + history[1];
}

#ifdef HEAP
APART void *malloc(size_t size)
{
    return size > sizeof(table) ? NULL : table;
}
#endif

int main(void)
{
    uart_write("size tools compared 123"); /* 24 bytes that no symbol has */
    for (;;) {
        sum = control(samples[ticks % 128] + table[sum % 56]);
#ifdef HEAP
        samples[0] = (uint32_t)(uintptr_t)malloc(sum);
#endif
    }
}

void reset(void)
{
    main();
}

static void fault(void)
{
    for (size_t i = 0; i < 256; i++)
        crash_log[i] = (uint8_t)i;
    for (;;) {
    }
}
void nmi(void) __attribute__((alias("fault"))); /* aliases: one body, three names */
void hard_fault(void) __attribute__((alias("fault")));

/* The interrupt: 48 bytes of stack in an array. */
static void tick(void)
{
    volatile uint32_t copy[12];
    for (size_t i = 0; i < 12; i++)
        copy[i] = samples[i];
    ticks += copy[11] + 1;
}

IN(".vectors") static const void *const vectors[16] = { /* 64 bytes */
    __stack_top, (void *)reset, (void *)nmi, (void *)hard_fault, [15] = (void *)tick,
};
