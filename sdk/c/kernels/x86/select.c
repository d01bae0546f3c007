/* SPDX-License-Identifier: Apache-2.0 */
/* Which tables can this CPU run? Asks the CPU and, through XGETBV, the operating system. */
#include <cpuid.h>
#include <stddef.h>

#include "avx2.h"
#include "avx512.h"

enum { YMM_STATE = 0x06, ZMM_STATE = 0xE6 }; /* registers that the operating system saves */

static int saves(unsigned state)
{
    unsigned a, b, c, d, low, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE) || !(c & bit_AVX) || !(c & bit_F16C) ||
        !(c & bit_PCLMUL))
        return 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & state) == state;
}

static int has_avx2(void)
{
    unsigned a, b, c, d;
    return saves(YMM_STATE) && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_AVX2);
}

static int has_avx512(void)
{
    const unsigned wanted = bit_AVX512F | bit_AVX512BW | bit_AVX512VL;
    unsigned a, b, c, d;
    return has_avx2() && saves(ZMM_STATE) && __get_cpuid_count(7, 0, &a, &b, &c, &d) &&
           (b & wanted) == wanted && (c & bit_AVX512VNNI);
}

const colibri_kernels *colibri_kernels_avx2(void)
{
    return has_avx2() ? &colibri_avx2_table : NULL;
}

const colibri_kernels *colibri_kernels_avx512(void)
{
    return has_avx512() ? &colibri_avx512_table : NULL;
}
