/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLIBRI_X86_AVX2_H
#define COLIBRI_X86_AVX2_H

#include "colibri/kernels.h"

extern const colibri_kernels colibri_avx2_table;

void colibri_avx2_matmul(const colibri_matmul *m, uint32_t row_begin, uint32_t row_end);
void colibri_avx2_attend(const colibri_attend *a);

#endif
