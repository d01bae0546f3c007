/* SPDX-License-Identifier: Apache-2.0 */
/* RV64 start-up in machine mode: traps recorded, FP and vectors on, one hart; the others sleep. */
    .section .text.start, "ax"
    .globl _start
    .type _start, @function
_start:
    csrr t0, mhartid
    bnez t0, park
    .option push
    .option norelax
    la gp, __global_pointer$
    .option pop
    la t0, trap
    csrw mtvec, t0
    li t0, 0x6600               /* mstatus.FS, VS = dirty; a hart without vectors leaves VS at zero */
    csrs mstatus, t0
    csrw fcsr, zero             /* round to nearest */
    la sp, __stack_top
    j firmware_start
park:
    wfi
    j park

    .balign 4
trap:
    csrr a0, mcause
    csrr a1, mtval
    csrr a2, mepc
    la sp, __stack_top          /* the old stack may be what failed */
    j firmware_fault
