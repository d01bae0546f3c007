/* SPDX-License-Identifier: Apache-2.0 */
/* The gated feed-forward of dense layers and shared experts. */
#include "engine_state.h"

struct activations colibri_ffn_inner(const struct engine *e, uint32_t rows, uint32_t columns)
{
    struct activations inner = {
        .values = colibri_floats(e, COLIBRI_BUFFER_FFN_GATE),
        .columns = columns,
        .rows = rows,
        .codes = (int8_t *)e->buffers[COLIBRI_BUFFER_FFN_CODES],
        .scales = colibri_floats(e, COLIBRI_BUFFER_FFN_SCALES),
    };
    return inner;
}

struct silu_task {
    const struct engine *engine;
    struct activations *gate;
    const float *up;
};

static void silu_row(void *arg, uint32_t row, uint32_t worker)
{
    const struct silu_task *t = arg;
    size_t at = (size_t)row * t->gate->columns;
    (void)worker;
    t->engine->kernels->silu_gate(t->gate->values + at, t->up + at, t->gate->columns);
}

void colibri_silu_rows(const struct engine *e, struct activations *gate, const float *up)
{
    struct silu_task task = {e, gate, up};
    gate->group = 0;
    colibri_run(e, gate->rows, silu_row, &task);
    colibri_trace(e, COLIBRI_EVENT_VECTOR, 0, 0, gate->rows, (uint64_t)gate->rows * gate->columns * 12, 0);
}

void colibri_dense_ffn(const struct engine *e, uint32_t layer, struct activations *in,
                       uint32_t gate_role, uint32_t size, float *out)
{
    struct activations inner = colibri_ffn_inner(e, e->tokens, size);
    float *up = colibri_floats(e, COLIBRI_BUFFER_FFN_UP);
    colibri_linear(e, layer, gate_role, 0, in, inner.values, size);
    colibri_linear(e, layer, gate_role + 1, 0, in, up, size);
    colibri_silu_rows(e, &inner, up);
    colibri_linear(e, layer, gate_role + 2, 0, &inner, out, e->image->config.hidden);
}
