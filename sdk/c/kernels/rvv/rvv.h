/* SPDX-License-Identifier: Apache-2.0 */
/* RISC-V V 1.0, vectors of 128 bits or more. Registers are used in fours with sixteen float lanes, whatever
 * their length, because sums have sixteen parts and tiles sixteen rows. */
#ifndef COLIBRI_RVV_H
#define COLIBRI_RVV_H

#include <stddef.h>

#include "colibri/kernels.h"

void colibri_rvv_matmul(const colibri_matmul *m, uint32_t row_begin, uint32_t row_end);
void colibri_rvv_matmul_float(const colibri_matmul *m, uint32_t row_begin, uint32_t row_end);
void colibri_rvv_attend(const colibri_attend *a);

#endif
