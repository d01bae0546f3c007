/* SPDX-License-Identifier: Apache-2.0 */
/* The operation expert_ffn as it is defined: one token after the other with the kernels of a table. */
#include "colibri/backend.h"

#include <stddef.h>

#include "ffn_gate.h"
#include "options.h"

#if COLIBRI_WITH_BACKENDS
/* Parts of the scratch for one token: g and u, then scales and codes of what is being quantised. */
struct scratch {
    float *gate;
    float *up;
    float *scales;
    int8_t *codes;
};

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static uint32_t groups_of(const colibri_expert_ffn *c)
{
    return larger(larger(c->gate.groups, c->up.groups), c->down.groups);
}

uint32_t colibri_expert_ffn_scratch(const colibri_expert_ffn *c)
{
    uint32_t codes = larger(larger(c->gate.groups * c->gate.group, c->up.groups * c->up.group),
                            c->down.groups * c->down.group);
    return (c->gate.rows * 2 + groups_of(c)) * 4 + codes;
}

/* out = w x + bias for one row; codes and scales NULL: x is quantised here when w asks for it. */
static void product(const colibri_kernels *kernels, const colibri_matrix *w, const float *bias, const float *x,
                    const int8_t *codes, const float *scales, const struct scratch *s, float *out)
{
    colibri_matmul m = {.weight = w, .bias = bias, .values = x, .codes = codes, .scales = scales,
                        .out = out, .tokens = 1};
    if (w->group != 0 && codes == NULL) {
        kernels->quantize(x, w->columns, w->group, s->codes, s->scales);
        m.codes = s->codes;
        m.scales = s->scales;
    }
    kernels->matmul(&m, 0, w->rows);
}

static void one_token(const colibri_expert_ffn *c, const colibri_kernels *kernels, uint32_t t,
                      const struct scratch *s)
{
    uint32_t n = c->gate.rows;
    size_t in = c->in_rows != NULL ? c->in_rows[t] : t, out = c->out_rows != NULL ? c->out_rows[t] : t;
    const float *x = c->values + in * c->value_stride;
    const int8_t *codes = c->codes != NULL ? c->codes + in * c->code_stride : NULL;
    const float *scales = c->codes != NULL ? c->scales + in * c->scale_stride : NULL;
    product(kernels, &c->gate, c->gate_bias, x, codes, scales, s, s->gate);
    product(kernels, &c->up, c->up_bias, x, codes, scales, s, s->up);
    if (c->row_weights != NULL)
        colibri_weigh_gate(s->gate, s->up, c->row_weights[out], n);
    colibri_gate(kernels, c->activation, c->activation_limit, c->activation_alpha, s->gate, s->up, n);
    product(kernels, &c->down, c->down_bias, s->gate, NULL, NULL, s, c->out + out * c->out_stride);
}

void colibri_expert_ffn_run(const colibri_expert_ffn *c, const colibri_kernels *kernels, void *scratch)
{
    float *floats = scratch;
    struct scratch s = {.gate = floats, .up = floats + c->gate.rows, .scales = floats + c->gate.rows * 2u};
    s.codes = (int8_t *)(void *)(s.scales + groups_of(c));
    for (uint32_t t = 0; t < c->tokens; t++)
        one_token(c, kernels, t, &s);
}
#endif
