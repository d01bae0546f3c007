/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLIBRI_TENSOR_H
#define COLIBRI_TENSOR_H

#include <stdbool.h>
#include <stddef.h>

#include "colibri/image.h"
#include "colibri/kernels.h"

/* Whether type (with its group) is one of the format's. */
bool colibri_type_valid(uint32_t type, uint32_t group);

/* Whether this build carries the type. */
bool colibri_type_built(uint32_t type);

/* Bytes of a tensor of a valid type (docs/spec.md section 4); false when the product does not fit. */
bool colibri_tensor_bytes(const colibri_tensor *tensor, uint64_t *bytes);

/* Narrows a matrix to some of its rows; of tiles, to whole ones. */
static inline void colibri_matrix_rows(colibri_matrix *m, uint32_t first, uint32_t rows)
{
    m->codes += (size_t)first * m->stride;
    m->scales = m->scales != NULL ? m->scales + (size_t)first * m->groups : NULL;
    m->rows = rows;
}

/* Values of one row of any type, dequantised. out: columns floats. */
void colibri_row_values(const colibri_matrix *matrix, uint32_t row, float *out);

static inline bool colibri_type_quantised(uint32_t type)
{
    return type >= COLIBRI_Q8;
}

#endif
