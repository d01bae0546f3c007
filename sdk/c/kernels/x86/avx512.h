/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLIBRI_X86_AVX512_H
#define COLIBRI_X86_AVX512_H

#include "colibri/kernels.h"

extern const colibri_kernels colibri_avx512_table;

void colibri_avx512_matmul(const colibri_matmul *m, uint32_t row_begin, uint32_t row_end);
void colibri_avx512_matmul_floats(const colibri_matmul *m, uint32_t row_begin, uint32_t row_end);
void colibri_avx512_attend(const colibri_attend *a);

#endif
