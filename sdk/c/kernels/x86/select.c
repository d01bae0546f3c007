/* SPDX-License-Identifier: Apache-2.0 */
/* Is this CPU able to run the AVX2 table? Asks the CPU and, through XGETBV, the operating system. */
#include <cpuid.h>
#include <stddef.h>

#include "avx2.h"

static int has_avx2(void)
{
    unsigned a, b, c, d, low, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE) || !(c & bit_AVX) || !(c & bit_F16C))
        return 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if ((low & 6u) != 6u) /* XMM and YMM state are saved */
        return 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_AVX2);
}

const colibri_kernels *colibri_kernels_avx2(void)
{
    return has_avx2() ? &colibri_avx2_table : NULL;
}
