/* SPDX-License-Identifier: Apache-2.0 */
/* Cortex-M with the DSP extension (M4, M7, M33): two 16-bit products an instruction. */
#ifndef COLIBRI_DSP_H
#define COLIBRI_DSP_H

#include <stdint.h>

#include "../../src/convert.h"
#include "colibri/kernels.h"

void colibri_dsp_matmul(const colibri_matmul *m, uint32_t row_begin, uint32_t row_end);
void colibri_dsp_attend(const colibri_attend *a);

/* Exact, subnormals too: the conversion heeds no flush-to-zero. Every FPU of a Cortex-M has it, but GCC has the
 * type only when it is told the format. */
static inline float colibri_dsp_f16(uint16_t half)
{
#if defined(__ARM_FP)
    float value;
    __asm__("vmov %0, %1\n\tvcvtb.f32.f16 %0, %0" : "=t"(value) : "r"(half));
    return value;
#else
    return colibri_f16_to_float(half);
#endif
}

#endif
