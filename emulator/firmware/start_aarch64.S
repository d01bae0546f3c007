/* SPDX-License-Identifier: Apache-2.0 */
/* AArch64 start-up: from any exception level to EL1, FP and SIMD on, MMU and caches on, exceptions
 * recorded. With the MMU off all memory is Device memory, where silicon faults on the unaligned
 * vector loads that compilers emit. */
    .section .text.start, "ax"
    .globl _start
    .type _start, %function
_start:
    mrs x0, mpidr_el1
    tst x0, #0xffffff           /* one core works, the others sleep */
    b.ne park
    mrs x0, CurrentEL
    lsr x0, x0, #2
    cmp x0, #2
    b.lt el1
    mov x1, #0x3c5              /* EL1h, interrupts masked */
    adr x2, el1
    cmp x0, #3
    b.eq el3

el2:
    mov x3, #(1 << 31)          /* HCR_EL2.RW: EL1 is AArch64 */
    msr hcr_el2, x3
    mov x3, #0x33ff             /* no FP traps */
    msr cptr_el2, x3
    msr spsr_el2, x1
    msr elr_el2, x2
    eret

el3:
    mov x3, #0x431              /* SCR_EL3: RW, NS and the bits that read as one */
    msr scr_el3, x3
    msr cptr_el3, xzr
    mrs x4, id_aa64pfr0_el1
    ubfx x4, x4, #8, #4
    cbz x4, 1f                  /* no EL2 to prepare */
    mov x3, #(1 << 31)
    msr hcr_el2, x3
    mov x3, #0x33ff
    msr cptr_el2, x3
1:  msr spsr_el3, x1
    msr elr_el3, x2
    eret

el1:
    mov x1, #(3 << 20)          /* CPACR_EL1.FPEN */
    msr cpacr_el1, x1
    adrp x1, vectors
    add x1, x1, :lo12:vectors
    msr vbar_el1, x1
    isb
    msr fpcr, xzr               /* round to nearest, denormals kept */
    adrp x1, __stack_top
    add x1, x1, :lo12:__stack_top
    mov sp, x1
    bl firmware_mmu_tables       /* x0: level 1 table */
    msr ttbr0_el1, x0
    ldr x1, =0xff00             /* MAIR: 0 Device-nGnRnE, 1 Normal write-back */
    msr mair_el1, x1
    ldr x1, =0x280803519        /* TCR: 39-bit addresses, 4 KiB granules, write-back walks, no TTBR1 */
    msr tcr_el1, x1
    tlbi vmalle1
    dsb sy
    ic iallu
    isb
    mrs x1, sctlr_el1
    mov x2, #0x1005             /* I, C, M */
    orr x1, x1, x2
    bic x1, x1, #2              /* no alignment faults */
    msr sctlr_el1, x1
    isb
    b firmware_start
park:
    wfe
    b park

    .balign 2048
vectors:
    .rept 16
    .balign 128
    mrs x0, esr_el1
    mrs x1, far_el1
    mrs x2, elr_el1
    adrp x3, __stack_top        /* the old stack may be what failed */
    add x3, x3, :lo12:__stack_top
    mov sp, x3
    b firmware_fault
    .endr
