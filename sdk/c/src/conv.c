/* SPDX-License-Identifier: Apache-2.0 */
/* Gated short convolution (LFM2): y = C * filter(B * x), over the last conv_size tokens of the sequence. */
#include "engine_state.h"
#include "options.h"
#include "state.h"

#if COLIBRI_WITH_CONV
/* rows of B, C, x: `from` times `with` into `to`, each an index of the three */
static void multiply(const struct engine *e, float *rows, uint32_t to, uint32_t from, uint32_t with)
{
    uint32_t n = e->image->config.hidden;
    for (uint32_t t = 0; t < e->tokens; t++, rows += (size_t)n * 3)
        for (uint32_t i = 0; i < n; i++)
            rows[to * n + i] = rows[from * n + i] * rows[with * n + i];
}

void colibri_conv(const struct engine *e, uint32_t layer, struct activations *normed)
{
    enum { B, C, X };
    uint32_t n = e->image->config.hidden;
    float *rows = colibri_floats(e, COLIBRI_BUFFER_WORK);
    struct activations out = *normed;
    colibri_linear(e, layer, COLIBRI_ROLE_CONV_IN, 0, normed, rows, n * 3);
    multiply(e, rows, B, B, X);
    colibri_filter(e, layer, colibri_vector_of(e, layer, COLIBRI_ROLE_CONV), NULL, rows, n, n * 3);
    multiply(e, rows, B, C, B);
    out.values = rows;
    out.stride = n * 3;
    out.group = 0;
    colibri_linear(e, layer, COLIBRI_ROLE_CONV_OUT, 0, &out, normed->values, n);
}
#else
typedef int colibri_conv_left_out;
#endif
