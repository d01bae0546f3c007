/* SPDX-License-Identifier: Apache-2.0 */
/* AArch64 start-up: from any exception level to EL1, FP and SIMD on, MMU and caches on, exceptions
 * recorded. With the MMU off all memory is Device memory, where silicon faults on the unaligned
 * vector loads that compilers emit. The first core begins at _start and makes the page tables, those
 * that it switches on begin at firmware_core_start with their number in x0. x20: that number, or 0. */
    .section .text.start, "ax"
    .globl _start
    .type _start, %function
_start:
    mrs x0, mpidr_el1
    tst x0, #0xffffff           /* a core that nobody asked for sleeps */
    b.ne park
    mov x20, #0
    b any_core
    .globl firmware_core_start
    .type firmware_core_start, %function
firmware_core_start:
    mov x20, x0
any_core:
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
    adrp x1, __stack_top
    add x1, x1, :lo12:__stack_top
    cbz x20, 1f
    ldr x1, =__core_stacks       /* stack n ends n sizes above the first one's start */
    ldr x2, =__core_stack_bytes
    madd x1, x20, x2, x1
1:  mov sp, x1
    msr tpidr_el1, x1           /* for the vectors */
    adrp x1, vectors
    add x1, x1, :lo12:vectors
    msr vbar_el1, x1
    isb
    msr fpcr, xzr               /* round to nearest, denormals kept */
    cbnz x20, 1f
    bl firmware_mmu_tables
1:  adrp x0, firmware_mmu_level1
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
    cbz x20, 1f
    mov x0, x20
    b firmware_core_run
1:  b firmware_start
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
    mrs x3, tpidr_el1           /* from its top: what is on the stack may be what failed */
    mov sp, x3
    b firmware_fault
    .endr
