/* SPDX-License-Identifier: Apache-2.0 */
/* Cortex-M with Helium (M55, M85). */
#ifndef COLIBRI_MVE_H
#define COLIBRI_MVE_H

#include "colibri/kernels.h"

void colibri_mve_matmul(const colibri_matmul *m, uint32_t row_begin, uint32_t row_end);

#endif
