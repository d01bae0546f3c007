/* SPDX-License-Identifier: Apache-2.0 */
/* The gated feed-forward of dense layers and shared experts. */
#include "engine_state.h"
#include "ffn_gate.h"
#include "float_math.h"
#include "options.h"

struct activations colibri_ffn_inner(const struct engine *e, uint32_t rows, uint32_t columns)
{
    struct activations inner = {
        .values = colibri_floats(e, COLIBRI_BUFFER_FFN_GATE),
        .columns = columns,
        .stride = columns,
        .rows = rows,
        .codes = (int8_t *)e->buffers[COLIBRI_BUFFER_FFN_CODES],
        .scales = colibri_floats(e, COLIBRI_BUFFER_FFN_SCALES),
    };
    return inner;
}

#if COLIBRI_WITH_ACTIVATIONS
static float gelu(float x) /* tanh form: 0.7978845608 = sqrt(2 / pi) */
{
    return 0.5f * x * (1.0f + colibri_tanh(0.7978845608f * (x + 0.044715f * (x * x * x))));
}

/* gpt-oss: transformers modeling_gpt_oss.py, GptOssExperts. */
static float clamped(float limit, float alpha, float gate, float up)
{
    gate = gate > limit ? limit : gate;
    up = up > limit ? limit : up;
    up = up < -limit ? -limit : up;
    return (up + 1.0f) * (gate * colibri_sigmoid(gate * alpha));
}

static void other_gate(uint32_t activation, float limit, float alpha, float *gate, const float *up, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (activation == COLIBRI_ACTIVATION_CLAMPED)
            gate[i] = clamped(limit, alpha, gate[i], up[i]);
        else if (activation == COLIBRI_ACTIVATION_GELU)
            gate[i] = gelu(gate[i]) * up[i];
        else
            gate[i] = (gate[i] > 0.0f ? gate[i] : 0.0f) * up[i];
    }
}
#endif

void colibri_gate(const colibri_kernels *kernels, uint32_t activation, float limit, float alpha, float *gate,
                  float *up, uint32_t n)
{
#if COLIBRI_WITH_ACTIVATIONS
    if (activation != COLIBRI_ACTIVATION_SILU) {
        other_gate(activation, limit, alpha, gate, up, n);
        return;
    }
#endif
    (void)activation;
    (void)limit;
    (void)alpha;
    kernels->silu_gate(gate, up, n);
}

struct activate_task {
    const struct engine *engine;
    struct activations *gate;
    float *up;
    const float *weights;
};

static void activate_row(void *arg, uint32_t row, uint32_t worker)
{
    const struct activate_task *t = arg;
    const colibri_config *c = &t->engine->image->config;
    uint32_t n = t->gate->columns;
    (void)worker;
    row = colibri_row(t->gate, row);
    float *gate = t->gate->values + (size_t)row * n, *up = t->up + (size_t)row * n;
    if (t->weights != NULL)
        colibri_weigh_gate(gate, up, t->weights[row], n);
    colibri_gate(t->engine->kernels, c->activation, c->activation_limit, c->activation_alpha, gate, up, n);
}

void colibri_activate(const struct engine *e, struct activations *gate, float *up, const float *weights)
{
    struct activate_task task = {e, gate, up, weights};
    gate->group = 0;
    colibri_run_rows(e, gate->rows, gate->columns, activate_row, &task);
    colibri_trace(e, COLIBRI_EVENT_VECTOR, 0, 0, gate->rows, (uint64_t)gate->rows * gate->columns * 12, 0);
}

void colibri_dense_ffn(const struct engine *e, uint32_t layer, struct activations *in,
                       uint32_t gate_role, uint32_t size, float *out)
{
    struct activations inner = colibri_ffn_inner(e, e->tokens, size);
    float *up = colibri_floats(e, COLIBRI_BUFFER_FFN_UP);
    struct colibri_linear_to both[] = {{gate_role, 0, inner.values, size}, {gate_role + 1, 0, up, size}};
    colibri_linears(e, layer, in, both, 2);
    colibri_activate(e, &inner, up, NULL);
    colibri_linear(e, layer, gate_role + 2, 0, &inner, out, e->image->config.hidden);
}
