/* SPDX-License-Identifier: Apache-2.0 */
/* Kernel tables with one defect each, as kernels have had them: the conformance test must see every one. */
#ifndef TESTS_BROKEN_H
#define TESTS_BROKEN_H

#include "colibri/kernels.h"

const char *broken_name(uint32_t index);               /* NULL after the last */
const colibri_kernels *broken_table(const char *name); /* NULL: no such defect */

#endif
